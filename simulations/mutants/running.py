"""Put faults into copies of the repository, one at a time, and run the tests that must see them."""

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from fedpca_flwr.errors import FedPCAError

from .faults import ROOT, Fault

SEEN, UNSEEN, BROKEN = "seen", "NOT SEEN", "BROKEN"
"""What comes of a fault: a test is red, or dies; all are green; pytest could not run them at all."""


@contextmanager
def copies(number: int, root: Path = ROOT) -> Iterator[list[Path]]:
    """So many copies of the repository as it stands, without what git ignores, removed at the end."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    with TemporaryDirectory(prefix="faults-") as folder:
        made = [Path(folder) / str(i) for i in range(number)]
        for copy in made:
            for name in filter(None, listed.split("\0")):
                if (root / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(root / name, copy / name)
        yield made


def run_tests(copy: Path, tests: Sequence[str], workers: int = 0) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy until the first is red; a test that hangs for five minutes is red."""
    given = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=300", "-n", str(workers), "--dist", "loadfile", *tests]
    command = [sys.executable, "-m", "pytest", *given]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def date_by_content(path: Path) -> None:
    """Give a file a time that other content would not have: Python knows by it whose bytecode it has kept."""
    seconds = 10**9 + zlib.crc32(path.read_bytes()) % 10**9  # from 2001 to 2033
    os.utime(path, (seconds, seconds))


def outcome(copy: Path, fault: Fault) -> str:
    """What comes of a fault in a copy, which has its own text again afterwards."""
    path = copy / fault.file
    text = path.read_text("utf-8")
    fault.put_into(copy)
    date_by_content(path)
    try:
        code = run_tests(copy, fault.tests).returncode
    finally:
        path.write_text(text, "utf-8")
        date_by_content(path)
    return SEEN if code < 0 else {0: UNSEEN, 1: SEEN}.get(code, BROKEN)  # below zero: a signal ended the tests


def require_green(copy: Path, faults: Iterable[Fault], workers: int) -> None:
    """Refuse tests that are red without any fault: what they see is something else."""
    tests = sorted({test for fault in faults for test in fault.tests})
    done = run_tests(copy, tests, workers)
    if done.returncode:
        raise FedPCAError(f"the tests are not green without a fault:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")


def outcomes(faults: Sequence[Fault], workers: int, root: Path = ROOT) -> Iterator[tuple[Fault, str]]:
    """What comes of each fault, in the order of the table."""
    with copies(workers, root) as made, ThreadPoolExecutor(workers) as pool:
        require_green(made[0], faults, workers)
        free: Queue[Path] = Queue()
        for copy in made:
            free.put(copy)

        def one(fault: Fault) -> str:
            copy = free.get()
            try:
                return outcome(copy, fault)
            finally:
                free.put(copy)

        yield from zip(faults, pool.map(one, faults), strict=True)
