"""The server's peak memory while replies come, are added and become components, by number of parties and features.

    python -m simulations.benchmarks memory [--clients 60 1000] [--features 256 3072]

Replies of p-cov, a few repeated under the names of all parties, each in bytes of its own as a message brings them.
Memory is what Python and NumPy take beyond what they had when the question was out, in MB and in matrices of d x d
float64. In clear: as it is; with nothing kept for the parties' influence, as where that would be too
much; with all kept, as `max-share` wants it. Masked: words, added as they come.
"""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.moments import Moments, packed_size
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.protocol.replies import Replies
from fedpca_flwr.questions import rows as arriving_moments
from fedpca_flwr.transports.encoding import MASKED, MaskedSum

from .replies import asking, message, results
from .setting import parser

ROWS, DIFFERENT, COMPONENTS = 64, 3, 10
"""Rows that a reply is of, how many replies are made, and components."""


class Peak(NamedTuple):
    """Bytes that all replies have together, and that the process took, in MB."""

    replies: float
    taken: float


def clear(clients: int, features: int, kept: int | None) -> Peak:
    """In clear, with ``kept`` bytes for the parties' influence (None: as it is)."""
    most = arriving_moments.FOR_INFLUENCE if kept is None else kept
    with mock.patch.object(arriving_moments, "FOR_INFLUENCE", most):
        strategy, messages = asking(clients, features, COMPONENTS), _messages(features)
        answers = []
        _begin()
        for party in range(clients):
            (answer,) = results([_copied(messages[party % DIFFERENT])], [ROWS], first=party, parties=clients)
            strategy.receive(answer[1])
            answers.append(answer)
        strategy.aggregate_fit(1, answers, [])
        size = sum(map(len, messages[0].tensors))
    return Peak(clients * size / 1e6, _peak_mb())


def masked(clients: int, features: int) -> Peak:
    """Masked vectors of scatters, which a server adds up and decodes."""
    layout, rng = Layout({"scatter": np.ones(packed_size(features))}), np.random.default_rng()
    words = ndarrays_to_parameters([rng.integers(0, 2**64 - 1, layout.size, np.uint64)])
    _begin()
    total = MaskedSum(layout)
    incoming = Replies(MASKED, {}, total.add)
    for party in range(clients):
        ((_, reply),) = results([_copied(words)], [ROWS], first=party, parties=clients)
        incoming.receive(reply)
    layout.decode(total.whole([]))
    return Peak(clients * layout.size * 8 / 1e6, _peak_mb())


WAYS: dict[str, tuple[Callable[..., Peak], tuple[Any, ...]]] = {
    "clear": (clear, (None,)),
    "clear, nothing kept": (clear, (0,)),
    "clear, all kept": (clear, (2**60,)),
    "masked": (masked, ()),
}


def _messages(features: int) -> list[Parameters]:
    """Replies, made with little more memory than they have."""
    rng, made = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        rows = rng.standard_normal((ROWS, features)) / np.sqrt(np.arange(1, features + 1))
        rows -= rows.mean(axis=0)
        packed = np.concatenate([rows[:, i] @ rows[:, i:] for i in range(features)])
        made.append(message(Moments(ROWS, rng.standard_normal(features), np.zeros(features), packed)))
    return made


def _copied(sent: Parameters) -> Parameters:
    return Parameters([bytes(bytearray(tensor)) for tensor in sent.tensors], sent.tensor_type)


def _begin() -> None:
    gc.collect()
    tracemalloc.start()


def _peak_mb() -> float:
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__)
    options.add_argument("--clients", type=int, nargs="+", default=[60, 1000])
    options.add_argument("--features", type=int, nargs="+", default=[256, 3072])
    options.add_argument("--ways", nargs="+", choices=list(WAYS), default=["clear", "clear, nothing kept", "masked"])
    args = options.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clear(2, 20, None)  # libraries are loaded
    print(head(("features", "way", "parties", "all replies, MB", "peak, MB", "in d x d matrices")))
    for features in args.features:
        for way in args.ways:
            for clients in args.clients:
                program, more = WAYS[way]
                found = program(clients, features, *more)
                matrices = found.taken / (features**2 * 8e-6)
                cells = (f"{found.replies:,.0f}", f"{found.taken:.1f}", f"{matrices:.1f}")
                print(row((f"{features:,}", way, f"{clients:,}", *cells)), flush=True)
