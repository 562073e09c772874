"""A party of the decentralised methods: its neighbours, its own iterate, its own estimate (see `graph_relay`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.graph import Adjacency, graph_of, metropolis_weights
from fedpca_flwr.maths.heads import Heads
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.products import head_and_diagonal, scatter_product
from fedpca_flwr.maths.sanger import mixed, orthonormalised, sanger_direction
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, PCAClient

DIVERGED = 1e3
"""Norm of an iterate that no stable run reaches (that of the solution is the root of n-components)."""


class GraphOptions(CountOptions):
    """Options of the decentralised methods."""

    graph: Literal["ring", "star", "complete", "erdos-renyi"] = "ring"
    """Who is whose neighbour."""
    edge_probability: Annotated[float, Limits(gt=0, le=1)] = 0.5
    """Of an Erdős-Rényi graph, which `seed` draws."""
    iterations: Count = 500
    """One round each."""
    step_size: Annotated[float, Limits(gt=0, le=100)] = 0.2
    """Against the pooled scatter with trace one; what is stable depends on how unlike the parties are."""


def payloads_of(*blocks: str) -> dict[str, Payload]:
    """The payloads of a method whose parties exchange these d x k blocks."""
    exchanged = Payload(tuple(Field(name, ("d", "k")) for name in blocks))
    return {
        "heads": Payload(
            (
                Field("counts", ("parties",), dtype="int64"),  # 0: not known yet
                Field("traces", ("parties",)),
                Field("means", ("parties", "d")),
                Field("remainders", ("parties", "d")),
            )
        ),
        "start": exchanged,
        "step": exchanged,
        "report": Payload(
            (
                Field("mean", ("d",)),
                Field("trace", ()),
                Field("direction", ()),
                Field("energies", ("k",)),
                Field("estimate", ("d", "k")),
            )
        ),
    }


def network(options: GraphOptions, parties: int, seed: int) -> Adjacency:
    """The graph of a run: every party makes the same.

    Raises
    ------
    ConfigError
    """
    try:
        return graph_of(options.graph, parties, probability=options.edge_probability, seed=seed)
    except ValueError as error:
        raise ConfigError(
            f"run-config: 'edge-probability' is {options.edge_probability:g}: {error}; raise it, or take another graph"
        ) from None


class GraphClient(PCAClient):
    """Keeps its own iterate over the rounds. A method adds `begin` and `advance`."""

    share: ClassVar[float] = 1.0
    """What part of the Metropolis weights a party's neighbours get."""

    @abstractmethod
    def begin(self, X: NDArray) -> list[NDArray]:
        """All that this party keeps of the first iterate: ``X`` (d, k), the direction that it follows next, more."""

    @abstractmethod
    def advance(self, own: list[NDArray], average: list[NDArray]) -> list[NDArray]:
        """The same one iteration later, from its own and from the neighbours' average of what is exchanged."""

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "heads":
            heads = self._heads(received)
            self._keep("heads", heads)
            return heads._asdict()
        if phase == "start":
            self._centre(self._heads(received))
            first = orthonormalised(random_block(self.data.shape[1], self.sizes["k"], self.config.seed))
            own = self.begin(first)
        else:
            own = self._advanced(received)
        if phase == "report":
            return self._told(*own[:2])
        self._keep("iterate", [np.stack(own)])
        return dict(zip(self._exchanged, own, strict=False))

    def projection(self, received: list[NDArray]) -> list[NDArray]:
        components, mean, scale, order = received
        own = self._kept("estimate")[0].T[order]
        turned = np.einsum("ij,ij->i", own, components) < 0
        return [np.where(turned[:, None], -own, own), mean, scale]

    def direction(self, X: NDArray) -> NDArray:
        """Sanger's direction (d, k) of this party's A at ``X``.

        Raises
        ------
        ConfigError
            When the iterates diverge.
        """
        if not np.linalg.norm(X) <= DIVERGED:  # NaN too
            raise ConfigError(
                f"run-config: 'step-size' is {self.options.step_size:g}, too large for these parties on this "
                f"{self.options.graph} graph: the iterates diverge; lower it"
            )
        return sanger_direction(self._product(X), X)

    # Inside

    @property
    def _exchanged(self) -> list[str]:
        """Names of the blocks that neighbours get: the first of what `begin` and `advance` return."""
        return [field.name for field in self.card.payloads["step"].fields]

    def _keep(self, name: str, arrays: Iterable[NDArray]) -> None:
        self.context.state.array_records[name] = ArrayRecord(list(arrays))

    def _kept(self, name: str) -> list[NDArray]:
        return self.context.state.array_records[name].to_numpy_ndarrays()

    def _heads(self, received: list[NDArray]) -> Heads:
        """The heads that this party knows now."""
        if "heads" not in self.context.state.array_records:
            head, diagonal = head_and_diagonal(self.data)
            return Heads.of(self.node.partition_id, self.sizes["parties"], head, float(diagonal.sum()))
        heads = Heads(*self._kept("heads"))
        for table in _groups(received, len(heads)):
            heads = heads.with_news(Heads(*table))
        return heads

    def _centre(self, heads: Heads) -> None:
        """Keep what the iterations need of all heads."""
        if not heads.counts.all():
            unknown = ", ".join(str(party) for party in np.flatnonzero(heads.counts == 0))
            raise ContractError(f"the heads of parties {unknown} did not arrive; do all parties have the same graph?")
        pooled, total, traces, deviations = heads.pooled()
        require_variance(total, pooled.n, pooled.mean)
        me, parties = self.node.partition_id, len(heads.counts)
        graph = network(self.options, parties, self.config.seed)
        weights = self.share * metropolis_weights(graph)[me, graph[me]]
        vectors = np.stack([heads.means[me], heads.remainders[me], deviations[me], pooled.mean])
        self._keep("centre", [vectors, np.array([parties / total, traces[me], *weights])])

    @cached_property
    def _centred(self) -> tuple[NDArray, NDArray]:
        """Own mean, remainder, deviation and the pooled mean (4, d); the factor of A, own trace, neighbours' weights.

        Few arrays, read once in a round: reading a message's small arrays costs more than computing with them.
        """
        vectors, numbers = self._kept("centre")
        return vectors, numbers

    def _product(self, V: NDArray) -> NDArray:
        """``A @ V`` (d, b) for this party's A (see `graph_relay`)."""
        (mean, remainder, deviation, _), numbers = self._centred
        head = Head(len(self.data), mean, remainder)
        between = head.n * np.outer(deviation, deviation @ V)
        return numbers[0] * (scatter_product(self.data, head, V) + between)

    def _advanced(self, received: list[NDArray]) -> list[NDArray]:
        own, weights = list(self._kept("iterate")[0]), self._centred[1][2:]
        blocks = zip(*_groups(received, len(self._exchanged)), strict=True) if received else [()] * len(self._exchanged)
        average = [mixed(mine, theirs, weights) for mine, theirs in zip(own, blocks, strict=False)]
        return self.advance(own, average)

    def _told(self, X: NDArray, direction: NDArray) -> Fields:
        """What a party reports at the end."""
        vectors, numbers = self._centred
        estimate = orthonormalised(X)
        self._keep("estimate", [estimate])
        energies = np.einsum("ij,ij->j", estimate, self._product(estimate)) / numbers[0]
        return {
            "mean": vectors[3],
            "trace": numbers[1],
            "direction": np.linalg.norm(direction),
            "energies": energies,
            "estimate": estimate,
        }


def _groups(arrays: list[NDArray], size: int) -> list[list[NDArray]]:
    """The arrays of each neighbour."""
    return [arrays[start : start + size] for start in range(0, len(arrays), size)]
