"""The table of faults, in `faults/*.toml`, and whether each still fits the code.

One entry is one careless change, as a programmer might make it::

    [[fault]]
    name = "n for n - 1 in the interval of an eigenvalue"
    file = "fedpca_flwr/maths/inference.py"
    is = "np.sqrt(2 / (n - 1))"
    becomes = "np.sqrt(2 / n)"
    tests = ["tests/maths/test_inference.py::test_the_interval_in_closed_form"]

`is` occurs once in the file. The tests are what pytest takes: a file, or a test of a file.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpca_flwr.errors import FedPCAError

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent / "faults"


@dataclass(frozen=True)
class Fault:
    """A change of one file's text, and the tests that see it."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def misfits(self, root: Path) -> list[str]:
        """Whatever keeps this fault from being put in, one sentence each."""
        path = root / self.file
        if not path.is_file():
            return [f"{self.name!r}: there is no file {self.file}"]
        found = path.read_text("utf-8").count(self.before)
        wrong = [] if found == 1 else [f"{self.name!r}: {self.file} has its text {found} times, expected once"]
        if self.before == self.after:
            wrong.append(f"{self.name!r} changes nothing")
        if not self.tests:
            wrong.append(f"{self.name!r} names no test")
        return wrong + [f"{self.name!r}: there is no test {test}" for test in self.tests if not exists(test, root)]

    def touched_by(self, changed: Iterable[str]) -> bool:
        """Whether the file of the fault, or one of its tests, is among those files."""
        return not {self.file, *(test.partition("::")[0] for test in self.tests)}.isdisjoint(changed)

    def put_into(self, root: Path) -> None:
        """Write the changed file into a copy of the repository."""
        path = root / self.file
        path.write_text(path.read_text("utf-8").replace(self.before, self.after), "utf-8")


def exists(test: str, root: Path) -> bool:
    """Whether there is the file of a test and, where one is named, a function of that name in it."""
    file, _, name = test.partition("::")
    path = root / file
    function = name.partition("[")[0]
    return path.exists() and (not name or re.search(rf"def {function}\(", path.read_text("utf-8")) is not None)


def read(folder: Path = TABLES) -> list[Fault]:
    """All faults of a folder of tables.

    Raises
    ------
    FedPCAError
        Where an entry lacks a key, has one too many, or has the name of another.
    """
    entries = [
        (path, entry)
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text("utf-8"))["fault"]
    ]
    faults = [fault_of(path, entry) for path, entry in entries]
    names = [fault.name for fault in faults]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise FedPCAError(f"faults have the same name: {', '.join(map(repr, double))}; give each its own")
    return faults


def fault_of(path: Path, entry: dict[str, Any]) -> Fault:
    """The fault of one entry of a table."""
    expected = {"name", "file", "is", "becomes", "tests"}
    if set(entry) != expected:
        raise FedPCAError(
            f"{path.name}: the fault {entry.get('name')!r} has the keys {sorted(entry)}, expected {sorted(expected)}"
        )
    return Fault(entry["name"], entry["file"], entry["is"], entry["becomes"], tuple(entry["tests"]))


def changed_files(since: str, root: Path = ROOT) -> set[str]:
    """Files that differ from a commit, relative to the repository."""
    command = ["git", "diff", "--name-only", since]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FedPCAError(f"git knows no commit {since!r}: {done.stderr.strip()}")
    return set(done.stdout.split())
