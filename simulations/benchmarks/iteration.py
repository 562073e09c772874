"""CPU of whole runs beside the least that any program needs, measured in turn: what sites keep for a run of SUB-IT.

    python -m simulations.benchmarks iteration --dataset mnist --data-root DEST [--methods p-cov qr-pca]

10 clients, Dirichlet 0.1, 50 components, float64, one BLAS thread. The least: the moments of the pooled rows, ARPACK on
them, and the projection of every row, without any federation. Ratios are medians over repetitions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.sparse.linalg import eigsh
from threadpoolctl import threadpool_limits

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, symmetric
from fedpca_flwr.maths.rows import centred_chunks

from .. import run
from .setting import COMPONENTS, clients, data_parser
from .timing import alternated, cpu_seconds, ratio

METHODS = ("sub-it", "sub-it block-size=10", "sub-it warm-start=svd", "sub-it warm-start=svd wire=float32")


def least(rows: Array) -> Array:
    """The scores (n, k) of pooled rows."""
    moments = Moments.of(rows)
    _, vectors = eigsh(symmetric(moments.scatter, moments.n_features), COMPONENTS, tol=0)
    return np.vstack([chunk @ vectors for chunk in centred_chunks(rows, moments.mean)])


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, repeats=3)
    options.add_argument("--methods", nargs="+", default=METHODS, help="names, each with its options in quotes")
    args = options.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    parts = [np.asarray(part, dtype=np.float64) for part in clients(args.dataset, args.data_root)]
    pooled = np.vstack(parts)
    print(head(["method", "rounds", "CPU, over the least"]))
    with threadpool_limits(1, user_api="blas"):
        for method in args.methods:
            ours = partial(run, method, parts, n_components=COMPONENTS)
            rounds = ours().rounds
            times = alternated([ours, partial(least, pooled)], args.repeats, clock=cpu_seconds)
            print(row([method, str(rounds), f"{ratio(times, 0, 1):.1f}"]), flush=True)
