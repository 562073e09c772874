"""What a message costs as parties become many: CPU of whole runs of p-cov in one process, 10 rows of 20 features each.

    python -m simulations.benchmarks parties [--few 1000] [--many 10000]

A party sends three messages: what it holds, its moments, and the error of its projection. The last column is the cost
of a message of many parties against one of few: 1 where time is linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpca_flwr.figures.markdown import head, row

from .. import run
from .setting import parser
from .timing import cpu_seconds

MESSAGES = 3


def seconds_a_message(parties: int) -> float:
    """CPU seconds of a run, by the messages that its parties send."""
    rng = np.random.default_rng(0)
    data = [rng.standard_normal((10, 20)) for _ in range(parties)]
    whole = cpu_seconds(lambda: run("p-cov", data, n_components=3, engine="loopback", min_rows=1))
    return whole / (MESSAGES * parties)


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, few=1000, many=10_000).parse_args(arguments)
    seconds_a_message(3)  # libraries are loaded
    first = seconds_a_message(args.few)
    print(head(("parties", "CPU ms a message", "of that with few")))
    print(row((f"{args.few:,}", f"{1e3 * first:.2f}", "1.00")), flush=True)
    many = seconds_a_message(args.many)
    print(row((f"{args.many:,}", f"{1e3 * many:.2f}", f"{many / first:.2f}")))
