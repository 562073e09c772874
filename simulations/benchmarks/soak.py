"""A federation over many runs: a real SuperLink and SuperNodes, one drawn method after another, with drawn faults."""

import json
import os
import signal
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks.harness import Lines, benchmark
from fedpca_flwr.site import audit
from fedpca_flwr.site.deployment import Deployment, make_site_configs, wait_for_question, write_site_files
from fedpca_flwr.site.flower_command import COMPLETED_STATUS, TIMEOUT_SECONDS
from fedpca_flwr.site.journal import COPY_TIMEOUT

APP = Path(__file__).resolve().parents[2]
COMPONENTS, FEATURES, ROWS = 3, 12, 200
DEADLINE = 20  # seconds that a run waits for an answer
HANG = 300.0  # seconds after which a run that has not ended hangs
SETTLE = 40.0  # seconds within which processes of a run end
EXACT = 1e-6  # degrees
LEVEL = 1.5  # how much more memory than after the first run a server or a node may have at the end
MINUTE = 65  # seconds for which the SuperLink takes a node that died for online, and refuses it
SMALL = 2**12  # bytes up to which a file may grow on a full disk

HARMLESS = {"none", "a SuperNode too many"}

METHODS = (
    "p-cov",
    "sub-it",
    "qr-pca",
    "p-cov secure-aggregation=true bound=100.0",
    "sub-it secure-aggregation=true bound=100.0",
)


class Soaked(NamedTuple):
    """What came of a run."""

    number: int
    method: str
    fault: str
    status: str
    findings: list[str]


class Soak:
    """Runs on a deployment, one after another, each with a fault or none.

    A fault is a context: it is there while the run lasts, from a site's first question on, and is mended afterwards.
    """

    def __init__(self, deployment: Deployment, folder: Path, parties: list[Array], seed: int) -> None:
        self.deployment, self.folder, self.parties = deployment, folder, parties
        self.truth = pooled_pca(np.vstack(parties), COMPONENTS)
        self.rng = np.random.default_rng(seed)
        self.faults: dict[str, Callable[[int], Any]] = {
            "none": lambda site: nullcontext(),
            "a SuperNode is killed": self.killed_node,
            "a ClientApp is killed": self.killed_app,
            "a SuperNode stands still": self.stopped,
            "the disk is full": self.full_disk,
            "a SuperNode too many": self.one_more,
        }
        self.memory: dict[str, tuple[int, int]] = {}  # by process: resident bytes after the first run, and now
        self.questions = [0] * len(parties)

    def until(self, end: float) -> Iterator[Soaked]:
        """Run until this time (`time.monotonic`)."""
        for number in count():
            if number % len(self.faults) == 0:
                names = self.rng.permutation([*self.faults])
            if time.monotonic() > end:
                break
            fault, method = str(names[number % len(names)]), str(self.rng.choice(METHODS))
            yield self.one(number, fault, method, int(self.rng.integers(len(self.parties))))

    def one(self, number: int, fault: str, method: str, site: int) -> Soaked:
        """One run, and what is wrong after it."""
        name, *keys = method.split()
        output = self.folder / f"model{number}"
        config = f"method='{name}' n-components={COMPONENTS} {' '.join(keys)} round-deadline={DEADLINE}.0"
        config += f" join-deadline=90.0 output={json.dumps(str(output))}"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.deployment.run, config)
            if fault != "none":
                wait_for_question(self.folder / f"journal{site}", running, earlier=self.questions[site])
            with self.faults[fault](site):
                try:
                    status, log = running.result(HANG)
                except TimeoutError:
                    self.deployment.flwr.kill()
                    status, log = "hangs", ""
        found = list(self.wrong(fault, status, log, output))
        self.measure()
        return Soaked(number, method, fault, status, found)

    def wrong(self, fault: str, status: str, log: str, output: Path) -> Iterator[str]:
        """What is not as it should be after a run."""
        if status == "hangs":
            yield f"no end after {HANG:.0f} s"
        model = output.with_suffix(".npz")
        if status == COMPLETED_STATUS:
            angle = principal_angles(PCAModel.load(model), self.truth).max
            if not angle <= EXACT:
                yield f"the model is {angle:.2g} degrees off"
        elif fault in HARMLESS:
            yield f"a run that nothing stops ended as {status}: {log[-400:]}"
        elif "The run failed" not in log and status != "hangs":
            yield f"no sentence of ours says why it ended as {status}: {log[-400:]}"
        elif model.exists():
            yield "a run that failed wrote a model"
        self.deployment.wait_until(self.deployment.all_nodes_online, "all SuperNodes to be online again")
        end = time.monotonic() + SETTLE
        while (left := self.apps()) and time.monotonic() < end:
            time.sleep(1)
        if left:
            yield f"{len(left)} processes of a run are left after {SETTLE:.0f} s"
        for site in range(len(self.parties)):
            yield from self.journal(site)

    def journal(self, site: int) -> Iterator[str]:
        """What is wrong in a site's journal: it has no gap, lost no question, and keeps no copy of rows for long."""
        folder = self.folder / f"journal{site}"
        old = time.time() - COPY_TIMEOUT.total_seconds() - HANG
        if left := [path for path in folder.glob("rows.*") if path.stat().st_mtime < old]:
            yield f"site {site} keeps {len(left)} old copies of its rows"
        found = audit.audit(str(folder))
        asked = sum(event.kind == "question" for event in found.events)
        if found.gap or asked < self.questions[site]:
            yield f"the journal of site {site} lost lines: {asked} questions, {self.questions[site]} before"
        self.questions[site] = asked

    # Faults

    @contextmanager
    def killed_node(self, site: int) -> Iterator[None]:
        name = f"node{site}"
        again = [str(word) for word in self.deployment.processes[name].args]  # type: ignore[union-attr]  # a list
        self.deployment.kill_node(site)
        yield
        time.sleep(MINUTE)
        self.deployment.spawn(name, again)

    @contextmanager
    def killed_app(self, site: int) -> Iterator[None]:
        for process in self.apps(site):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        yield

    @contextmanager
    def stopped(self, site: int) -> Iterator[None]:
        group = self.deployment.processes[f"node{site}"].pid
        os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(group, signal.SIGCONT)

    @contextmanager
    def one_more(self, site: int) -> Iterator[None]:
        """Another SuperNode signs in, with the rows of a site and a number that no site has."""
        configs, number = self.deployment.node_configs, len(self.parties)
        self.deployment.node_configs = [*configs, {**configs[site], "partition-id": number}]
        self.deployment.start_node(number)
        try:
            self.deployment.wait_until(self.deployment.all_nodes_online, "the SuperNode too many to be online")
            yield
        finally:
            self.deployment.node_configs = configs
            process = self.deployment.processes.pop(f"node{number}")
            process.terminate()
            process.wait(TIMEOUT_SECONDS)
            for key in self.deployment.folder.glob(f"node{number}*"):
                key.unlink()

    @contextmanager
    def full_disk(self, site: int) -> Iterator[None]:
        import resource  # POSIX only

        group = self.deployment.processes[f"node{site}"].pid
        before = resource.prlimit(group, resource.RLIMIT_FSIZE)
        for process in [*processes(group)]:
            with suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, (SMALL, before[1]))
        try:
            yield
        finally:
            for process in [*processes(group)]:
                with suppress(ProcessLookupError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, before)

    # Processes

    def apps(self, site: int | None = None) -> list[int]:
        """The processes of ClientApps, of a site or of all, and without one of the ServerApp too."""
        names = ["superlink", *(f"node{i}" for i in range(len(self.parties)))] if site is None else [f"node{site}"]
        groups = [self.deployment.processes[name].pid for name in names if name in self.deployment.processes]
        kinds = (b"flwr-clientapp", b"flwr-serverapp")
        return [
            process
            for group in groups
            for process in processes(group)
            if any(kind in command(process) for kind in kinds)
        ]

    def measure(self) -> None:
        """Note how much memory the SuperLink and each SuperNode have."""
        page = os.sysconf("SC_PAGE_SIZE")
        for name, process in self.deployment.processes.items():
            pages = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1])
            first, _ = self.memory.get(f"{name} {process.pid}", (pages * page, 0))
            self.memory[f"{name} {process.pid}"] = first, pages * page


def processes(group: int) -> Iterator[int]:
    """Those of a process group."""
    for path in Path("/proc").iterdir():
        with suppress(ValueError, ProcessLookupError):
            if os.getpgid(int(path.name)) == group:
                yield int(path.name)


def command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


@benchmark(minutes=30, sites=5, seed=0)
def soak(args: Namespace) -> Lines:
    """Runs of drawn methods in a row on a real SuperLink and SuperNodes, with drawn faults, for some minutes.

    A fault comes once a site was asked something: its SuperNode or its ClientApp is killed, it stands still beyond the
    round's deadline, its disk is full, or a SuperNode too many signs in. After each run its model is held against the
    pooled rows, no process of it may be left, and every journal must be whole. Its exit code is 1 if it found any.
    Linux only; clocks are not changed.
    """
    rng = np.random.default_rng(args.seed)
    parties = [rng.standard_normal((ROWS, FEATURES)) * np.linspace(4, 1, FEATURES) + i for i in range(args.sites)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flower").mkdir()
        names = [f"x{j}" for j in range(FEATURES)]
        with Deployment(
            folder / "flower", APP, make_site_configs(folder, "site", write_site_files(folder, names, parties))
        ) as deployment:
            soaking, found = Soak(deployment, folder, parties, args.seed), list[Soaked]()
            yield "run", "method", "fault", "end", "findings"
            for one in soaking.until(time.monotonic() + 60 * args.minutes):
                yield *one[:-1], "; ".join(one.findings)
                found.append(one)
    ends = Counter((one.fault, one.status) for one in found)
    yield f"\n{args.minutes} minutes, {args.sites} sites, {len(found)} runs\n"
    yield "fault", "end", "runs"
    for (fault, status), runs in sorted(ends.items()):
        yield fault, status, runs
    yield ""
    yield "resident memory, MB", "after its first run", "at the end"
    for process, (first, last) in soaking.memory.items():
        yield process, f"{first / 1e6:.0f}", f"{last / 1e6:.0f}"
    grown = [process for process, (first, last) in soaking.memory.items() if last > LEVEL * first]
    wrong = sum(len(one.findings) for one in found) + len(grown)
    yield f"\n{wrong} findings{f'; grew beyond {LEVEL} times: ' if grown else ''}{', '.join(grown)}"
    if wrong:
        raise SystemExit(1)
