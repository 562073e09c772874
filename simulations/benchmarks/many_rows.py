"""Methods for columns where there are many rows: CPU time as rows grow, or how soon a run is refused.

    python -m simulations.benchmarks many-rows [--rows 100000]

Three parties with 20 columns each of a quarter of the rows, and of all. What grows with the square of the rows
(``solver='gram'``, kernels) is refused by its size, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.figures.markdown import head, row

from .. import run
from .setting import parser
from .timing import cpu_seconds

METHODS = ("vertical", "vertical solver=gram", "vertical-kernel")


def parties(rows: int) -> list[NDArray[np.float64]]:
    """Columns (rows, 20) of each of three: five directions that stand out of noise."""
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((rows, 5)) * [5, 4, 3, 2, 1]
    X = signal @ rng.standard_normal((5, 60)) + rng.standard_normal((rows, 60))
    return np.split(X, 3, axis=1)


def outcome(method: str, own: Sequence[NDArray[np.float64]]) -> str:
    """CPU seconds of a run, or of its refusal."""
    told = "refused"

    def work() -> None:
        nonlocal told
        try:
            model = run(method, own, n_components=5, may_show="inner products", progress=False)
            told = f"{model.rounds} rounds, {model.bytes_up / len(own) / 1e6:.3g} MB up a party"
        except FedPCAError:
            pass

    return f"{cpu_seconds(work):.2f} s, {told}"


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, rows=100_000).parse_args(arguments)
    sizes = (args.rows // 4, args.rows)
    shares = [parties(rows) for rows in sizes]
    run("vertical", parties(1000), n_components=5, may_show="scores")  # warms up
    print(head(["method", *(f"{rows:,} rows" for rows in sizes)]))
    for method in METHODS:
        print(row([method, *(outcome(method, own) for own in shares)]), flush=True)
