"""Peak memory of the server's aggregation: 50 replies of 3,072 features, against the replies plus two d x d matrices.

python -m simulations.benchmarks memory [--clients 50] [--features 3072]
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Sequence

import numpy as np

from fedpca_flwr.maths.moments import Moments
from simulations.benchmarks.replies import asking, message, results
from simulations.benchmarks.setting import parser


def peak(clients: int, features: int) -> tuple[float, float, float]:
    """Bytes before the aggregation, of the replies, and at the peak, in MB."""
    rng = np.random.default_rng(0)
    spectrum = np.sqrt(np.arange(1, features + 1))
    strategy = asking(clients, features, 50)
    replies = results(
        [message(Moments.of(rng.standard_normal((64, features)) / spectrum)) for _ in range(clients)], [64] * clients
    )
    size = sum(len(tensor) for _, reply in replies for tensor in reply.parameters.tensors)
    before = _peak_mb()
    strategy.aggregate_fit(1, replies, [])
    return before, size / 1e6, _peak_mb()


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, clients=50, features=3072).parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    before, replies, after = peak(args.clients, args.features)
    square = args.features**2 * 8 / 1e6
    print(f"replies {replies:.0f} MB, one d x d matrix {square:.0f} MB")
    print(f"peak before the aggregation {before:.0f} MB (the replies, the libraries, one client's work)")
    print(f"peak after it {after:.0f} MB: {(after - before) / square:.2f} d x d matrices more")
