"""`GraphClient`: a party of the decentralised methods: its neighbours, its own iterate, its own estimate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.graph import metropolis_weights
from fedpca_flwr.maths.heads import Heads
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.sanger import POWERS, PROBES, largest_eigenvalue, mixed, orthonormalised, sanger_direction
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.solution import require_variance
from fedpca_flwr.statistics.graphs import GraphOptions, network, step_size
from fedpca_flwr.statistics.rows_client import RowsClient

DIVERGED = 1e3
"""Norm of an iterate that no stable run reaches (that of the solution is the root of n-components)."""


class GraphClient(RowsClient):
    """Keeps its own iterate over the rounds. A method adds `begin` and `advance`."""

    options: GraphOptions
    exchanged: ClassVar[tuple[str, ...]]
    """Names of the blocks that neighbours get: the first of what `begin` and `advance` return."""
    share: ClassVar[float] = 1.0
    """What part of the Metropolis weights a party's neighbours get."""

    @abstractmethod
    def begin(self, X: Array) -> list[Array]:
        """All that this party keeps of the first iterate: ``X`` (d, k), the direction that it follows next, more."""

    @abstractmethod
    def advance(self, own: list[Array], average: list[Array]) -> list[Array]:
        """The same one iteration later, from its own and from the neighbours' average of what is exchanged."""

    @property
    def columns(self) -> int:
        return PROBES * POWERS + self.options.n_components * (self.options.iterations + 1)

    @property
    def step_size(self) -> float:
        """By which it follows its direction."""
        return float(self._centred[1][2])

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        answers = {
            "head": self.head,
            "heads": self.heads,
            "start": self.start,
            "step": self.step,
            "report": self.report,
            "project": self.project,
        }
        return answers[phase](asked)

    def head(self, asked: Fields) -> Fields:
        """A table with this party's own head."""
        head, diagonal = self.own.head_and_diagonal()
        top = largest_eigenvalue(self.own.times, diagonal.size)
        return self._known(Heads.of(self._party, self.public.parties, head, float(diagonal.sum()), top))

    def heads(self, asked: Fields) -> Fields:
        """The table with the neighbours' news."""
        return self._known(self._heads_filled_from(asked))

    def start(self, asked: Fields) -> Fields:
        """The first iterate, the same at all parties."""
        self._centre(self._heads_filled_from(asked))
        first = random_block(self.data.shape[1], self.options.n_components, self.site.config.seed)
        return self._iterate(self.begin(orthonormalised(first)))

    def step(self, asked: Fields) -> Fields:
        """The next iterate."""
        return self._iterate(self._advanced(asked))

    def report(self, asked: Fields) -> Fields:
        """This party's estimate, and the energies of its rows in it."""
        X, direction = self._advanced(asked)[:2]
        vectors, numbers = self._centred
        estimate = orthonormalised(X)
        self.site.state["estimate"] = [estimate]
        energies = np.einsum("ij,ij->j", estimate, self._product(estimate)) / numbers[0]
        return {
            "mean": vectors[1],
            "trace": numbers[1],
            "direction": np.linalg.norm(direction),
            "energies": energies,
            "estimate": estimate,
        }

    def loadings(self, asked: Fields) -> Array:
        """This party's own estimate, in the model's order and with its signs."""
        components, order = asked["components"], asked["order"]
        if sorted(order.tolist()) != list(range(order.size)) or not np.array_equal(asked["mean"], self._centred[0][1]):
            raise ContractError("the server's last question does not fit what the parties have reported")
        own = self.site.state["estimate"][0].T[order]
        turned = np.einsum("ij,ij->i", own, components) < 0
        signed: Array = np.where(turned[:, None], -own, own)
        return signed

    def direction(self, X: Array) -> Array:
        """Sanger's direction (d, k) of this party's A at ``X``.

        Raises
        ------
        ConfigError
            When the iterates diverge.
        """
        if not np.linalg.norm(X) <= DIVERGED:  # NaN too
            asked = self.options.step_size
            taken = f"'auto', here {self.step_size:.3g}" if asked == "auto" else f"{asked:g}"
            raise ConfigError(
                f"run-config: 'step-size' is {taken}, too large for these parties on this {self.options.graph} graph: "
                f"the iterates diverge; {'give a lower one' if asked == 'auto' else 'lower it'}"
            )
        return sanger_direction(self._product(X), X)

    # Inside

    @property
    def _party(self) -> int:
        return self.site.node.partition_id

    def _known(self, heads: Heads) -> Fields:
        self.site.state["heads"] = list(heads)
        return heads._asdict()

    def _heads_filled_from(self, asked: Fields) -> Heads:
        """The heads that this party knows now."""
        heads = Heads(*self.site.state["heads"])
        for table in zip(*(asked[name] for name in Heads._fields), strict=True):
            heads = heads.filled_from(Heads(*table))
        return heads

    def _centre(self, heads: Heads) -> None:
        """Keep what the iterations need of all heads."""
        if not heads.counts.all():
            unknown = ", ".join(str(party) for party in np.flatnonzero(heads.counts == 0))
            raise ContractError(f"the heads of parties {unknown} did not arrive; do all parties have the same graph?")
        pooled, total, traces, deviations = heads.pooled()
        require_variance(total, pooled.n, pooled.mean)
        me, parties = self._party, len(heads.counts)
        graph = network(self.options, parties, self.site.config.seed)
        weights = self.share * metropolis_weights(graph)[me, graph[me]]
        step = step_size(self.options, heads, graph)
        vectors = np.stack([deviations[me], pooled.mean])
        self.site.state["centre"] = [vectors, np.array([parties / total, traces[me], step, heads.counts[me], *weights])]

    @cached_property
    def _centred(self) -> tuple[Array, Array]:
        """Own deviation and the pooled mean (2, d); the factor of A, own trace, step, own rows, neighbours' weights.

        Few arrays, read once in a round: reading a message's small arrays costs more than computing with them.
        """
        vectors, numbers = self.site.state["centre"]
        return vectors, numbers

    def _product(self, V: Array) -> Array:
        """``A @ V`` (d, b) for this party's A (see `fedpca_flwr.statistics.graphs`)."""
        (deviation, _), numbers = self._centred
        between = numbers[3] * np.outer(deviation, deviation @ V)
        product: Array = numbers[0] * (self.own.times(V) + between)
        return product

    def _advanced(self, asked: Fields) -> list[Array]:
        """What this party keeps, one iteration later."""
        own, weights = list(self.site.state["iterate"][0]), self._centred[1][4:]
        received = len(asked[self.exchanged[0]])
        if received != weights.size:
            raise ContractError(f"the server sent what {received} neighbours said, but this party has {weights.size}")
        average = [mixed(mine, list(asked[name]), weights) for mine, name in zip(own, self.exchanged, strict=False)]
        return self.advance(own, average)

    def _iterate(self, own: list[Array]) -> Fields:
        """Keep it, and return what neighbours get."""
        self.site.state["iterate"] = [np.stack(own)]
        return dict(zip(self.exchanged, own, strict=False))
