"""DSA and FAST-PCA on four graphs: angle to the exact components and between the parties, by iteration; bytes.

    python -m simulations.benchmarks decentralised

Synthetic rows of 10 unequal parties with shifted means; 12 features, 3 components well separated from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.model.reference import pooled_pca, principal_angles

from .. import run
from .setting import parser

COMPONENTS = 3
GRAPHS = ("ring", "star", "complete", "erdos-renyi")
SPREAD = np.array([2.0, 1.5, 1.0, *[0.1] * 9])


def parties(count: int = 10, seed: int = 0) -> list[NDArray[Any]]:
    """Unequal parties whose means differ by some 0.6 standard deviations."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((SPREAD.size, SPREAD.size)))
    sizes = rng.integers(20, 200, count)
    return [
        ((rng.standard_normal((n, SPREAD.size)) + 0.6 * rng.standard_normal(SPREAD.size)) * SPREAD) @ basis.T
        for n in sizes
    ]


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__, step_size=0.2)
    options.add_argument("--iterations", type=int, nargs="+", default=[1, 50, 100, 200, 500])
    args = options.parse_args(arguments)
    parts = parties()
    truth = pooled_pca(np.vstack(parts), COMPONENTS)
    print(
        "Largest angle of the model to the exact components / consensus error, in degrees, after so many iterations\n"
    )
    print(head(["method", "graph (mixing rate)", *map(str, args.iterations), "bytes up, down"]))
    for method in ("dsa", "fast-pca"):
        for graph in GRAPHS:
            cells = []
            for iterations in args.iterations:
                chosen = {"graph": graph, "iterations": iterations, "step_size": args.step_size}
                model = run(method, parts, n_components=COMPONENTS, engine="loopback", **chosen)
                apart = model.log["measured"]["consensus_error_degrees"]
                cells.append(f"{principal_angles(model, truth).max:.1e} / {apart:.1e}")
            rate = f"{model.log['measured']['mixing_rate']:.3f}"
            step = model.log["rounds"][-3]  # before the report and the projection
            each = f"{max(step['up']):,}, {max(step['down']):,}"
            print(row([method, f"{graph} ({rate})", *cells, each]), flush=True)
