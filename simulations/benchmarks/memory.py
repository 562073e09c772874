"""Peak memory of the server's aggregation: 50 replies of 3,072 features, against the replies plus two d x d matrices.

python -m simulations.benchmarks memory [--clients 50] [--features 3072]
python -m simulations.benchmarks memory --secure [--clients 1000]     # masked vectors, added as they come
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Sequence

import numpy as np
from flwr.common import ndarrays_to_parameters

from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.maths.moments import Moments, packed_size
from fedpca_flwr.protocol.inbox import Inbox
from fedpca_flwr.transports.words import MASKED, RunningSum
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


def secure_peak(clients: int, features: int) -> tuple[float, float]:
    """Bytes of all parties' masked scatters, and what the process takes to add them up as they come, in MB."""
    before, total = _peak_mb(), RunningSum(Layout({"scatter": np.ones(packed_size(features))}))
    inbox, rng = Inbox(MASKED, {}, total.add), np.random.default_rng()
    for _ in range(clients):
        words = rng.integers(0, 2**64 - 1, total.layout.size, np.uint64)
        ((_, reply),) = results([ndarrays_to_parameters([words])], [64])
        inbox.receive(reply)
    return clients * total.layout.size * 8 / 1e6, _peak_mb() - before


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__, clients=50, features=3072)
    options.add_argument("--secure", action="store_true")
    args = options.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    square = args.features**2 * 8 / 1e6
    if args.secure:
        vectors, more = secure_peak(args.clients, args.features)
        print(f"masked vectors {vectors:.0f} MB; to add them up {more:.0f} MB: {more / square:.2f} d x d matrices")
        return
    before, replies, after = peak(args.clients, args.features)
    print(f"replies {replies:.0f} MB, one d x d matrix {square:.0f} MB")
    print(f"peak before the aggregation {before:.0f} MB (the replies, the libraries, one client's work)")
    print(f"peak after it {after:.0f} MB: {(after - before) / square:.2f} d x d matrices more")
