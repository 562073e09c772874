"""Many runs of a federation on a real SuperLink and SuperNodes: one method after another, with drawn faults.

python -m tests.deployment.soak --minutes 30 --sites 5
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import typer

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks.harness import Lines, print_tables
from fedpca_flwr.site.node.deployment import Deployment, wait_for_question, write_site_files
from fedpca_flwr.site.node.deployment import make_site_configs as node_configs
from fedpca_flwr.site.node.flower_command import COMPLETED_STATUS, TIMEOUT_SECONDS
from fedpca_flwr.site.rules import audit

APP = Path(__file__).resolve().parents[2]
COMPONENTS, FEATURES, ROWS = 3, 12, 200
DEADLINE = 20  # seconds that a run waits for an answer
HANG_SECONDS = 300.0  # after which a run that has not ended hangs
SETTLE_SECONDS = 40.0  # within which processes of a run end
ANGLE_TOLERANCE_DEGREES = 1e-6
MAX_MEMORY_RATIO = 1.5  # of the memory of a server or a node at the end to that after the first run
REJOIN_SECONDS = 65  # for which the SuperLink takes a node that died for online, and refuses it
FULL_DISK_BYTES = 2**12  # up to which a file may grow on a full disk
HARMLESS = {"none", "a SuperNode too many"}
METHODS = "p-cov", "sub-it", "qr-pca", *(f"{name} secure-aggregation=true bound=100.0" for name in ("p-cov", "sub-it"))
Outcome = tuple[int, str, str, str, list[str]]  # number, method, fault, how the run ended, and findings


class Soak:
    """Runs on a deployment, each with a fault or none: a context from a site's first question to the run's end."""

    def __init__(self, deployment: Deployment, folder: Path, parties: list[Array], seed: int) -> None:
        self.deployment, self.folder, self.parties = deployment, folder, parties
        self.truth = pooled_pca(np.vstack(parties), COMPONENTS)
        self.rng = np.random.default_rng(seed)
        self.faults: dict[str, Callable[[int], Any]] = {
            "none": lambda site: nullcontext(),
            "a SuperNode is killed": self._kill_node,
            "a ClientApp is killed": self._kill_app,
            "a SuperNode stands still": self._stop_node,
            "the disk is full": self._fill_disk,
            "a SuperNode too many": self._add_node,
        }
        self.memory: dict[str, tuple[int, int]] = {}  # by process: resident bytes after the first run, and now
        self.questions = [0] * len(parties)

    def runs(self, end: float) -> Iterator[Outcome]:
        number = count()
        while True:
            for fault in self.rng.permutation([*self.faults]):
                if time.monotonic() > end:
                    return
                method, site = str(self.rng.choice(METHODS)), int(self.rng.integers(len(self.parties)))
                yield self._run(next(number), str(fault), method, site)

    def _run(self, number: int, fault: str, method: str, site: int) -> Outcome:
        (name, *keys), output = method.split(), self.folder / f"model{number}"
        config = f"method='{name}' n-components={COMPONENTS} {' '.join(keys)} round-deadline={DEADLINE}.0"
        config += f" join-deadline=90.0 output={json.dumps(str(output))}"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.deployment.run, config)
            if fault != "none":
                wait_for_question(self.folder / f"journal{site}", running, earlier=self.questions[site])
            with self.faults[fault](site):
                try:
                    status, log = running.result(HANG_SECONDS)
                except TimeoutError:
                    self.deployment.flwr.kill()
                    status, log = "hangs", ""
        findings = [*self._model_findings(fault, status, log, output.with_suffix(".npz"))]
        self.deployment.wait_until(self.deployment.all_nodes_online, "all SuperNodes to be online again")
        end = time.monotonic() + SETTLE_SECONDS
        while (processes := self.apps()) and time.monotonic() < end:
            time.sleep(1)
        if processes:
            findings.append(f"{len(processes)} processes of a run are left after {SETTLE_SECONDS:.0f} s")
        findings += [text for site in range(len(self.parties)) for text in self._journal_findings(site)]
        page = os.sysconf("SC_PAGE_SIZE")
        for name, process in self.deployment.processes.items():
            resident = page * int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1])
            first, _ = self.memory.get(f"{name} {process.pid}", (resident, 0))
            self.memory[f"{name} {process.pid}"] = first, resident
        return number, method, fault, status, findings

    def _model_findings(self, fault: str, status: str, log: str, model: Path) -> Iterator[str]:
        if status == "hangs":
            yield f"no end after {HANG_SECONDS:.0f} s"
        if status == COMPLETED_STATUS:
            angle = principal_angles(PCAModel.load(model), self.truth).max
            if not angle <= ANGLE_TOLERANCE_DEGREES:
                yield f"the model is {angle:.2g} degrees off"
        elif fault in HARMLESS:
            yield f"a run that nothing stops ended as {status}: {log[-400:]}"
        elif "The run failed" not in log and status != "hangs":
            yield f"no sentence of ours says why it ended as {status}: {log[-400:]}"
        elif model.exists():
            yield "a run that failed wrote a model"

    def _journal_findings(self, site: int) -> Iterator[str]:
        """Check that a site's journal has no gap and lost no question."""
        journal = audit.audit(str(self.folder / f"journal{site}"))
        questions = sum(event.kind == "question" for event in journal.events)
        if journal.gap or questions < self.questions[site]:
            yield f"the journal of site {site} lost lines: {questions} questions, {self.questions[site]} before"
        self.questions[site] = questions

    @contextmanager
    def _kill_node(self, site: int) -> Iterator[None]:
        name = f"node{site}"
        command = [str(word) for word in self.deployment.processes[name].args]
        self.deployment.kill_node(site)
        yield
        time.sleep(REJOIN_SECONDS)
        self.deployment.spawn(name, command)

    @contextmanager
    def _kill_app(self, site: int) -> Iterator[None]:
        for process in self.apps(site):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        yield

    @contextmanager
    def _stop_node(self, site: int) -> Iterator[None]:
        group = self.deployment.processes[f"node{site}"].pid
        os.killpg(group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(group, signal.SIGCONT)

    @contextmanager
    def _add_node(self, site: int) -> Iterator[None]:
        """Let another SuperNode sign in, with the rows of a site and a number that no site has."""
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
    def _fill_disk(self, site: int) -> Iterator[None]:
        import resource  # POSIX only

        group = self.deployment.processes[f"node{site}"].pid
        before = resource.prlimit(group, resource.RLIMIT_FSIZE)

        def limit(size: int) -> None:
            for process in [*_members(group)]:
                with suppress(ProcessLookupError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, (size, before[1]))

        limit(FULL_DISK_BYTES)
        try:
            yield
        finally:
            limit(before[0])

    def apps(self, site: int | None = None) -> list[int]:
        names = ["superlink", *(f"node{i}" for i in range(len(self.parties)))] if site is None else [f"node{site}"]
        groups = [self.deployment.processes[name].pid for name in names if name in self.deployment.processes]
        members = [process for group in groups for process in _members(group) if process != group]
        return [process for process in members if any(kind in _command(process) for kind in APP_PROGRAMS)]


APP_PROGRAMS = (b"site\0node", b"flwr-serverapp")  # of a site: its resident process, forked


def _members(group: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        with suppress(ValueError, ProcessLookupError):
            if os.getpgid(int(path.name)) == group:
                yield int(path.name)


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def soak(minutes: float, sites: int, seed: int) -> Lines:
    """Run drawn methods with drawn faults for some minutes (Linux); the exit code is 1 after any finding."""
    rng = np.random.default_rng(seed)
    parties = [rng.standard_normal((ROWS, FEATURES)) * np.linspace(4, 1, FEATURES) + i for i in range(sites)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flower").mkdir()
        files = write_site_files(folder, [f"x{j}" for j in range(FEATURES)], parties)
        with Deployment(folder / "flower", APP, node_configs(folder, "site", files)) as deployment:
            soaking, ends, findings = Soak(deployment, folder, parties, seed), Counter[tuple[str, str]](), 0
            yield "run", "method", "fault", "end", "findings"
            for number, method, fault, status, found in soaking.runs(time.monotonic() + 60 * minutes):
                yield number, method, fault, status, "; ".join(found)
                ends[fault, status] += 1
                findings += len(found)
    yield f"\n{minutes:g} minutes, {sites} sites, {ends.total()} runs\n"
    yield "fault", "end", "runs"
    for (fault, status), runs in sorted(ends.items()):
        yield fault, status, runs
    yield ""
    yield "resident memory, MB", "after its first run", "at the end"
    for process, (first, last) in soaking.memory.items():
        yield process, f"{first / 1e6:.0f}", f"{last / 1e6:.0f}"
    grown = [process for process, (first, last) in soaking.memory.items() if last > MAX_MEMORY_RATIO * first]
    findings += len(grown)
    yield f"\n{findings} findings{f'; grew beyond {MAX_MEMORY_RATIO} times: ' if grown else ''}{', '.join(grown)}"
    if findings:
        raise SystemExit(1)


def main(minutes: float = 30, sites: int = 5, seed: int = 0) -> None:
    for _ in print_tables(soak(minutes, sites, seed)):
        pass


if __name__ == "__main__":
    typer.run(main)
