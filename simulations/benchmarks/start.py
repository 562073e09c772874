"""What a message to a site costs before anything is computed: CPU time of importing an app, to that of Flower alone.

    python -m simulations.benchmarks start [--repeats 5]

In a deployment every message starts a process, which imports the ClientApp and the run's method. A command's help
imports what its options need. The processes run in turn; each figure is the median over the repetitions.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array

from .setting import parser
from .timing import ratio

FLOWER = "import flwr.clientapp, flwr.serverapp"
METHOD = "from strategies import METHODS; METHODS['p-cov']"
PROGRAMS = {
    "ClientApp and p-cov": f"import fedpca_flwr.site_app; {METHOD}",
    "ServerApp and p-cov": f"import fedpca_flwr.server_app; {METHOD}",
}

HELPS = ("simulations.compare", "simulations.report", "simulations.hunt", "simulations.monitor", "fedpca_flwr.site")
"""Commands whose ``-h`` is measured too."""


def help_of(command: str) -> str:
    """Code that shows a command's help."""
    return f"import runpy, sys; sys.argv[1:] = ['-h']; runpy.run_module('{command}', run_name='__main__')"


def cpu_seconds(code: str) -> float:
    """Of a new process that runs the code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(codes: Sequence[str], repeats: int) -> Array:
    """CPU seconds of each, one row for each repetition; a first one warms up."""
    return np.array([[cpu_seconds(code) for code in codes] for _ in range(repeats + 1)])[1:]


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, repeats=5).parse_args(arguments)
    times = measured([FLOWER, *PROGRAMS.values(), *map(help_of, HELPS)], args.repeats)
    print(head(["what is imported", "CPU s", "times Flower alone"]))
    for i, name in enumerate(["flwr.clientapp, flwr.serverapp", *PROGRAMS, *(f"{name} -h" for name in HELPS)]):
        print(row([name, f"{np.median(times[:, i]):.2f}", f"{ratio(times, i, 0):.2f}"]))
