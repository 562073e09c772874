"""CPU cost of a message at a real site: in the site's own process, and where Flower starts a program for it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from typing_extensions import override

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations.benchmarks.harness import Lines, benchmark
from fedpca_flwr.site.deployment import Deployment, make_site_configs, write_site_files
from fedpca_flwr.site.flower_command import COMPLETED_STATUS

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("site node", "flower-supernode")


class BothWays(Deployment):
    """Deployment of two sites: the first has a process of its own, the second a SuperNode alone."""

    @override
    def spawn_site(self, i: int) -> None:
        """Start a site in its way."""
        if i == 0:
            super().spawn_site(i)
        else:
            self.spawn_supernode(i)

    def messages(self, i: int) -> int:
        """Return the number of messages that a site has got."""
        return self.read_log(f"node{i}").count("Receiving:")

    def cpu_seconds(self, i: int) -> float:
        """Return the CPU time of all processes that a site has had."""
        group, ticks = self.processes[f"node{i}"].pid, 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[2]) == group:  # of the process group: its own time, and that of children that have ended
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")


@benchmark("docs/benchmarks.md", runs=1, rows=200)
def processes(runs: int = 4, rows: int = 2000, features: int = 50) -> Lines:
    """CPU seconds of a message at two sites of one real deployment, one in each way; the first run is not counted."""
    data = np.random.default_rng(0).standard_normal((2 * rows, features)) / np.sqrt(np.arange(1.0, features + 1))
    with TemporaryDirectory(prefix="fedpca-processes-") as name:
        folder = Path(name)
        files = write_site_files(folder, [f"x{j}" for j in range(features)], np.split(data, 2))
        (folder / "flower").mkdir()
        costs: list[list[float]] = []
        deployment = BothWays(folder / "flower", ROOT, make_site_configs(folder, "site", files))
        with deployment:
            for number in range(runs + 1):
                before = [(deployment.cpu_seconds(i), deployment.messages(i)) for i in range(2)]
                status, log = deployment.run(f"method='p-cov' n-components=5 output='{folder}/model{number}'")
                if status != COMPLETED_STATUS:
                    raise FedPCAError(f"a run ended as {status}: {log}")
                after = [(deployment.cpu_seconds(i), deployment.messages(i)) for i in range(2)]
                costs.append([(b[0] - a[0]) / (b[1] - a[1]) for a, b in zip(before, after, strict=True)])
    counted = np.array(costs[1:])
    yield "way", "CPU s of a message", "range", "ratio"
    for i, way in enumerate(WAYS):
        values = counted[:, i]
        ratio = f"{np.median(values / counted[:, 0]):.1f}"
        yield way, f"{np.median(values):.2f}", f"{values.min():.2f} to {values.max():.2f}", ratio
