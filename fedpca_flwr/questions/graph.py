"""What DSA and FAST-PCA share: parties that talk only to their neighbours in a graph, which Flower's server simulates.

Flower has a hub, so the server relays: what a party sends goes unchanged to its neighbours, and the server adds nothing
up. It is a simulated network, and the server sees all that passes.

Centring is exact. In the first rounds every party forwards all heads (count, mean, trace of the scatter) that it knows;
after as many rounds as the graph's diameter each knows all K of them, hence the pooled mean ``m`` and the total
variance. Then party i works with::

    A_i = K (S_i + n_i (m_i - m)(m_i - m)^T) / trace of the pooled scatter

whose mean over the parties is the pooled scatter with trace one, so that ``step-size`` has no unit. With ``auto`` it
follows from the largest eigenvalue that any A_i may have, and from how fast the graph mixes (`sanger.safe_step`). Heads
bring a bound on it, the largest eigenvalue of S_i and ``n_i |m_i - m|^2``: one number a party, and no further round.

The end is for the reader. Each party reports its own estimate, made orthonormal, and the energies of its rows in it.
The server averages the estimates to the model's components and adds the energies to its eigenvalues. The parties
project their rows with their own estimates.
"""

import math
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import added
from fedpca_flwr.maths.eigen import EXACT, Eigenpairs, fix_signs, principal_angles
from fedpca_flwr.maths.graph import (
    POWERS,
    PROBES,
    Adjacency,
    MeanTable,
    diameter,
    graph_of,
    iterations_left,
    largest_eigenvalue,
    metropolis_weights,
    mixed,
    mixing_rate,
    orthonormalised,
    safe_step,
    sanger_direction,
    way_left,
)
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution, require_variance
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import CountOptions, Shown
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Answer, Ask, Public, Question, Questions
from fedpca_flwr.questions.projection import Projection
from fedpca_flwr.questions.rows import projection_phase
from fedpca_flwr.questions.rows_run import Party, RowsClient, RowsStrategy

SHOWS = Shown(
    "all that passes, since it relays: number of rows, mean and total variance of each party, its iterates, its "
    "components and their variances; differences of iterates are products of its covariance with blocks that the "
    "server knows",
    "number of rows, mean and total variance of **every** party; the iterates of neighbours; the pooled components and "
    "mean",
    "sizes and times of messages, which show the graph",
)
"""Who learns what of a party, of a method whose parties talk to their neighbours."""

LONGEST = 10_000
"""Rounds of passing heads on, allowed for while the number of parties is not known yet."""


class GraphOptions(CountOptions):
    """Options of the decentralised methods."""

    graph: Literal["ring", "grid", "star", "complete", "erdos-renyi"] = "ring"
    """Who is whose neighbour."""
    edge_probability: Annotated[float, Limits(gt=0, le=1, examples=[0.5, 1.0])] = 0.5
    """Of an Erdős-Rényi graph, which `seed` draws."""
    iterations: Annotated[Count, Limits(examples=[1, 5, 20])] = 500
    """One round each."""
    step_size: Annotated[
        Annotated[float, Limits(gt=0, le=100)] | Literal["auto"], Limits(examples=["auto", 0.05, 0.2, 1.0])
    ] = "auto"
    """Against the pooled scatter with trace one: a number as published, or 'auto', from the parties' largest eigenvalue
    and the graph."""

    def columns(self, public: Public) -> int:
        return PROBES * POWERS + self.n_components * (self.iterations + 1)


def network(options: GraphOptions, parties: int, seed: int) -> Adjacency:
    """The graph of a run: every party makes the same."""
    try:
        return graph_of(options.graph, parties, probability=options.edge_probability, seed=seed)
    except ValueError as error:
        raise ConfigError(
            f"run-config: 'edge-probability' is {options.edge_probability:g}: {error}; raise it, or take another graph"
        ) from None


def step_size(options: GraphOptions, heads: MeanTable, graph: Adjacency) -> float:
    """The step of all iterations, which every party takes from all heads."""
    if options.step_size != "auto":
        return options.step_size
    return safe_step(heads.steepest(), mixing_rate(metropolis_weights(graph)))


def rounds_between(graph: Adjacency) -> int:
    """So often are heads passed on, after each party has told its own, until their neighbours' make them complete."""
    return max(1, diameter(graph)) - 1


HEADS = Payload(
    (
        Field("counts", ("parties",), "int64", kind="size"),  # 0: not known yet
        Field("traces", ("parties",), kind="size"),
        Field("tops", ("parties",), kind="size"),
        Field("means", ("parties", "d")),
        Field("remainders", ("parties", "d")),
    )
)
"""The heads that a party knows (`fedpca_flwr.maths.sums`)."""

REPORT = Payload(
    (
        Field("mean", ("d",)),
        Field("trace", (), kind="size"),
        Field("direction", (), kind="size"),
        Field("energies", ("k",)),
        Field("estimate", ("d", "k"), kind="orthonormal columns"),
    )
)


def graph_phases(config: RunConfig, options: GraphOptions, exchanged: tuple[str, ...]) -> Questions:
    """The questions of a method whose parties exchange (d, k) blocks of these names with their neighbours."""
    blocks = Payload(tuple(Field(name, ("d", "k")) for name in exchanged))

    def question(relayed: Payload, reply: Payload, answer: Answer, **rest: Any) -> Question:
        return Question(asked=_of_neighbours(relayed), reply=reply, answer=answer, sizes=_sizes, **rest)

    def passed_on(public: Public) -> int:
        return rounds_between(network(options, public.parties, config.seed)) if public.parties else LONGEST

    step = {"step": question(blocks, blocks, GraphParty.step, times=options.iterations - 1)}
    return {
        "head": question(Payload(()), HEADS, GraphParty.head),
        "heads": question(HEADS, HEADS, GraphParty.heads, times=passed_on, optional=True),
        "start": question(HEADS, blocks, GraphParty.start),
        **(step if options.iterations > 1 else {}),
        "report": question(blocks, REPORT, GraphParty.report),
        "project": _projection(config),
    }


def _of_neighbours(payload: Payload) -> Payload:
    """What neighbours sent, one beside the other."""
    return Payload(tuple(replace(field, shape=("<=neighbours", *field.shape)) for field in payload.fields))


def _sizes(public: Public) -> dict[str, int]:
    return {"parties": public.parties, "neighbours": max(0, public.parties - 1), "k": public.options.n_components}


def _projection(config: RunConfig) -> Question:
    """The last question: parties project with their own estimates, whose columns come in the model's order."""
    known = projection_phase()["project"]
    components, *others = known.asked.fields
    order = Field("order", ("k",), "int64", kind="size")
    asked = Payload((replace(components, shape=("k", "d")), *others, order))
    return replace(known, asked=asked, sizes=_sizes, limits=None)


DIVERGED = 1e3
"""Norm of an iterate that no stable run reaches (that of the solution is the root of n-components)."""


class GraphParty(Party):
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
    def step_size(self) -> float:
        """By which it follows its direction."""
        return float(self.centred[1][2])

    def head(self, asked: Fields) -> Fields:
        """A table with this party's own head."""
        head, diagonal = self.vault.head_and_diagonal()
        top = largest_eigenvalue(self.vault.times, diagonal.size)
        return self._known(MeanTable.of(self.partition, self.public.parties, head, float(diagonal.sum()), top))

    def heads(self, asked: Fields) -> Fields:
        """The table with the neighbours' news."""
        return self._known(self._heads_filled_from(asked))

    def start(self, asked: Fields) -> Fields:
        """The first iterate, the same at all parties."""
        self._centre(self._heads_filled_from(asked))
        first = random_block(self.vault.features, self.options.n_components, self.public.config.seed)
        return self._iterate(self.begin(orthonormalised(first)))

    def step(self, asked: Fields) -> Fields:
        """The next iterate."""
        return self._iterate(self._advanced(asked))

    def report(self, asked: Fields) -> Fields:
        """This party's estimate, and the energies of its rows in it."""
        X, direction = self._advanced(asked)[:2]
        vectors, numbers = self.centred
        estimate = orthonormalised(X)
        self.state["estimate"] = [estimate]
        energies = np.einsum("ij,ij->j", estimate, self._product(estimate)) / numbers[0]
        return {
            "mean": vectors[1],
            "trace": numbers[1],
            "direction": np.linalg.norm(direction),
            "energies": energies,
            "estimate": estimate,
        }

    def direction(self, X: Array) -> Array:
        """Sanger's direction (d, k) of this party's A at ``X``; a `ConfigError` when the iterates diverge."""
        if not np.linalg.norm(X) <= DIVERGED:  # NaN too
            asked = self.options.step_size
            taken = f"'auto', here {self.step_size:.3g}" if asked == "auto" else f"{asked:g}"
            raise ConfigError(
                f"run-config: 'step-size' is {taken}, too large for these parties on this {self.options.graph} graph: "
                f"the iterates diverge; {'give a lower one' if asked == 'auto' else 'lower it'}"
            )
        return sanger_direction(self._product(X), X)

    # Inside

    def _known(self, heads: MeanTable) -> Fields:
        self.state["heads"] = list(heads)
        return heads._asdict()

    def _heads_filled_from(self, asked: Fields) -> MeanTable:
        """The heads that this party knows now."""
        heads = MeanTable(*self.state["heads"])
        for table in zip(*(asked[name] for name in MeanTable._fields), strict=True):
            heads = heads.filled_from(MeanTable(*table))
        return heads

    def _centre(self, heads: MeanTable) -> None:
        """Keep what the iterations need of all heads."""
        if not heads.counts.all():
            unknown = ", ".join(str(party) for party in np.flatnonzero(heads.counts == 0))
            raise ContractError(f"the heads of parties {unknown} did not arrive; do all parties have the same graph?")
        pooled, total, traces, deviations = heads.pooled()
        require_variance(total, pooled.n, pooled.mean)
        me, parties = self.partition, len(heads.counts)
        graph = network(self.options, parties, self.public.config.seed)
        weights = self.share * metropolis_weights(graph)[me, graph[me]]
        step = step_size(self.options, heads, graph)
        vectors = np.stack([deviations[me], pooled.mean])
        self.state["centre"] = [vectors, np.array([parties / total, traces[me], step, heads.counts[me], *weights])]

    @cached_property
    def centred(self) -> tuple[Array, Array]:
        """Own deviation and the pooled mean (2, d); the factor of A, own trace, step, own rows, neighbours' weights.

        Few arrays, read once in a round: reading a message's small arrays costs more than computing with them.
        """
        vectors, numbers = self.state["centre"]
        return vectors, numbers

    def _product(self, V: Array) -> Array:
        """``A @ V`` (d, b) for this party's A (see `fedpca_flwr.questions.graph`)."""
        (deviation, _), numbers = self.centred
        between = numbers[3] * np.outer(deviation, deviation @ V)
        product: Array = numbers[0] * (self.vault.times(V) + between)
        return product

    def _advanced(self, asked: Fields) -> list[Array]:
        """What this party keeps, one iteration later."""
        own, weights = list(self.state["iterate"][0]), self.centred[1][4:]
        received = len(asked[self.exchanged[0]])
        if received != weights.size:
            raise ContractError(f"the server sent what {received} neighbours said, but this party has {weights.size}")
        average = [mixed(mine, list(asked[name]), weights) for mine, name in zip(own, self.exchanged, strict=False)]
        return self.advance(own, average)

    def _iterate(self, own: list[Array]) -> Fields:
        """Keep it, and return what neighbours get."""
        self.state["iterate"] = [np.stack(own)]
        return dict(zip(self.exchanged, own, strict=False))


STANDSTILL = 1e-11
"""Degrees of a step that is rounding."""

NOTE = "a simulated network: the server relayed; scores are by each party's own estimate, the model is their mean"


class GraphClient(RowsClient):
    """Projects its rows by its own iterate."""

    kind: ClassVar[type[GraphParty]]
    party: GraphParty

    def projection(self, asked: Fields) -> Projection:
        """By this party's own estimate, in the model's order and with its signs."""
        components, order = asked["components"], asked["order"]
        if sorted(order.tolist()) != list(range(order.size)) or not np.array_equal(
            asked["mean"], self.party.centred[0][1]
        ):
            raise ContractError("the server's last question does not fit what the parties have reported")
        own = self.site.state["estimate"][0].T[order]
        turned = np.einsum("ij,ij->i", own, components) < 0
        return replace(super().projection(asked), components=np.where(turned[:, None], -own, own))


class GraphStrategy(RowsStrategy):
    """Base of the decentralised methods: a subclass is its card."""

    options: GraphOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        graph = network(self.options, self.quorum.total, self.config.seed)
        self._steps: list[float] = []  # how far any party's iterate moved at most, in each iteration
        said: list[Reply] = yield Ask("head")
        rows = sum(reply.rows for reply in said)
        self.n_components(rows, self.quorum.features)
        for _ in range(rounds_between(graph)):
            said = yield _relayed("heads", graph, said)
        heads = reduce(MeanTable.filled_from, (MeanTable(**reply.fields) for reply in said))
        said = yield _relayed("start", graph, said)
        for _ in range(self.options.iterations - 1):
            before, said = said, (yield _relayed("step", graph, said))
            self._steps.append(_largest_step(before, said))
        reports: list[Reply] = yield _relayed("report", graph, said)
        return self._reported([report.fields for report in reports], rows, graph, heads)

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        return {**super().loadings(model, solution), "order": self._order}

    # Inside

    def _reported(self, reports: Sequence[Fields], rows: int, graph: Adjacency, heads: MeanTable) -> Solution:
        """The mean of the parties' estimates, with the sums of the energies."""
        estimates = [report["estimate"] for report in reports]
        energies = added([report["energies"] for report in reports])
        # a run that was too short has them in no order; parties need it for their own estimates
        self._order = np.argsort(-energies, kind="stable")
        components = fix_signs(orthonormalised(added(estimates))[:, self._order])
        return Solution(
            pairs=Eigenpairs(energies[self._order], components, following=0.0),
            mean=reports[0]["mean"],
            total=math.fsum(report["trace"] for report in reports),
            rows=rows,
            notes=[NOTE, *self._unfinished(estimates)],
            measured=self._measured(reports, components, graph) | {"step_size": step_size(self.options, heads, graph)},
        )

    def _measured(self, reports: Sequence[Fields], components: Array, graph: Adjacency) -> dict[str, float]:
        return {
            "iterations": self.options.iterations,
            "mixing_rate": float(mixing_rate(metropolis_weights(graph))),
            "consensus_error_degrees": max(
                float(principal_angles(report["estimate"], components).max()) for report in reports
            ),
            "last_direction_norm": max(float(report["direction"]) for report in reports),
        }

    def _unfinished(self, estimates: Sequence[Array]) -> list[str]:
        """What a reader must know where the iterations ended too early, or the parties do not agree."""
        apart = max((float(principal_angles(a, b).max()) for a, b in combinations(estimates, 2)), default=0.0)
        step = math.degrees(self._steps[-1]) if self._steps else math.inf
        left = 0 if step <= STANDSTILL else iterations_left(self._steps, math.radians(EXACT))
        if left == 0 and apart <= EXACT:
            return []
        last = f"the last step was {step:.2g} degrees at most" if self._steps else "only one step was made"
        if left is None:
            more = (
                "the steps show no linear rate yet, so it cannot be said how many more iterations are needed, and the "
                "components may be others still, up to 90 degrees from those of all rows"
            )
        elif left:
            way = math.degrees(way_left(self._steps) or 0.0)
            more = (
                f"at the rate of the last ones, {way:.2g} degrees of the way are left, and about {left:,} more "
                f"iterations leave {EXACT:g}; a direction that has hardly begun to turn does not show in that"
            )
        else:
            more = "the parties stand still, where more iterations change nothing and a smaller 'step-size' may"
        return [
            f"not converged: after {self.options.iterations} iterations the parties' estimates are up to {apart:.2g} "
            f"degrees from each other, and {last}: {more}"
        ]


def _largest_step(before: Sequence[Reply], now: Sequence[Reply]) -> float:
    """How far any party's iterate moved at most."""
    pairs = zip(before, now, strict=True)
    return max(float(np.linalg.norm(new.fields["iterate"] - old.fields["iterate"])) for old, new in pairs)


def _relayed(phase: str, graph: Adjacency, said: Sequence[Reply]) -> Ask:
    """A question with which every party receives what its neighbours said."""
    tables = {name: np.stack([reply.fields[name] for reply in said]) for name in said[0].fields}
    each = {reply.party: {name: table[graph[reply.party]] for name, table in tables.items()} for reply in said}
    return Ask(phase, each=each)
