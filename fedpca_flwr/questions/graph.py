"""Base of DSA and FAST-PCA: parties that talk only to their neighbours in a graph, which Flower's server simulates.

The server relays a party's messages unchanged to its neighbours, adds nothing up, and sees all that passes.

Centring is exact. In the first rounds every party forwards all heads (count, mean, trace of the scatter) that it knows,
until after as many rounds as the graph's diameter each knows all K heads, hence the pooled mean ``m``. Then party i
works with A_i = K (S_i + n_i (m_i - m)(m_i - m)^T) / (trace of the pooled scatter), whose mean over the parties has
trace one, so that ``step-size`` has no unit. With ``auto`` the step follows from the largest eigenvalue that any A_i
may have, which heads bound by one number more, and from how fast the graph mixes (`graph.safe_step`).

The model is the mean of the parties' estimates, with the variances of all rows along it. The parties project their rows
with their own estimates.
"""

import math
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, reduce
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths import graph as graphs
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import order_free_sum
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES, Eigenpairs, fix_signs, principal_angles
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution, require_variance
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import CountOptions, Disclosure, VariantOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.progress import log_progress
from fedpca_flwr.protocol.question import Answer, Public, Question, Questions, Round
from fedpca_flwr.questions.rows import projection_questions
from fedpca_flwr.questions.rows_client import Party, Projection, RowsClient
from fedpca_flwr.questions.rows_run import RowsStrategy

GRAPH_DISCLOSURE = Disclosure(
    "all that the site sends, because the server relays it: number of rows, mean, total variance, iterates, "
    "components and their variances; differences of iterates are products of the site's covariance with blocks that "
    "the server knows",
    "the number of rows, mean and total variance of **every** site, the iterates of their neighbours, the pooled "
    "components and mean",
    "sizes and times of messages, which show the graph",
)
"""Who learns what of a party, of a method whose parties talk to their neighbours."""

DIFFERENCES = (
    "The published iteration needs a constant step, and a step that suits one data set may diverge or stand still on "
    "another. By default ('auto') the step follows from the sites and the graph. The papers assume centred rows; "
    "here the sites first compute the mean of all rows. With 5 components of digits at five sites that differ "
    "(`alpha=0.1`), 500 iterations end {} degrees from exact, and {} with `variant='paper'`, whose step is 0.1."
)
"""How DSA and FAST-PCA differ from their papers, with two angles to fill in."""

MAX_RELAY_ROUNDS = 10_000  # rounds of relaying heads that are allowed for while the number of parties is not known yet


class GraphOptions(CountOptions, VariantOptions):
    """Options of the decentralised methods: components, graph, iterations and step size."""

    published: ClassVar[Mapping[str, Any]] = {"step_size": 0.1}

    graph: Literal["ring", "grid", "star", "complete", "erdos-renyi"] = "ring"
    """Graph of the sites: each site exchanges numbers with its neighbours."""
    edge_probability: Annotated[float, Limits(gt=0, le=1, examples=[0.5, 1.0])] = 0.5
    """Probability of each edge of the graph 'erdos-renyi', which is drawn with `seed`."""
    iterations: Annotated[Count, Limits(examples=[1, 5, 20])] = 500
    """Number of iterations; each is one round."""
    step_size: Annotated[
        Annotated[float, Limits(gt=0, le=100)] | Literal["auto"], Limits(examples=["auto", 0.05, 0.2, 1.0])
    ] = "auto"
    """Step size for a pooled scatter of trace 1: 'auto' computes it from the sites' largest eigenvalue and the graph,
    and the papers take a constant (with variant='paper' 0.1)."""
    early_stopping: bool = False
    """End a run whose steps, looked at after every 50 iterations, shrink so slowly that `iterations` are too few."""

    @override
    def product_columns(self, public: Public) -> int:
        """Return the number of vectors that a party multiplies with its scatter in the whole run, at most."""
        return graphs.PROBE_COLUMNS * graphs.POWER_STEPS + self.n_components * (self.iterations + 2)


def _network(options: GraphOptions, parties: int, seed: int) -> graphs.Adjacency:
    """Return the run's graph, drawn by server and parties from one seed; ConfigError if it cannot be connected."""
    try:
        return graphs.make_graph(options.graph, parties, probability=options.edge_probability, seed=seed)
    except ValueError as error:
        raise ConfigError(
            f"run-config: 'edge-probability' is {options.edge_probability:g}: {error}; raise it, or take another graph"
        ) from None


def _step_size(options: GraphOptions, heads: graphs.MeanTable, graph: graphs.Adjacency) -> float:
    """Return the step size of all iterations: the option's number, or `safe_step` for 'auto'."""
    if options.step_size != "auto":
        return options.step_size
    return graphs.safe_step(heads.max_eigenvalue_share(), graphs.mixing_rate(graphs.metropolis_weights(graph)))


def _relay_rounds(graph: graphs.Adjacency) -> int:
    """Return the number of rounds that only relay heads: the graph's diameter minus 1, 0 for a single party."""
    return max(1, graphs.diameter(graph)) - 1


COUNTS = Field("counts", ("parties",), "int64", kind="size")  # 0: not known yet
SIZES = tuple(Field(name, ("parties",), kind="size") for name in ("traces", "tops"))
HEADS = Payload((COUNTS, *SIZES, *(Field(name, ("parties", "d")) for name in ("means", "remainders"))))
"""The heads that a party knows (`fedpca_flwr.maths.sums`)."""

ESTIMATE = Field("estimate", ("d", "k"), kind="orthonormal columns")
LENGTHS = tuple(Field(name, (), kind="size") for name in ("trace", "direction"))
REPORT = Payload((Field("mean", ("d",)), *LENGTHS, ESTIMATE))


def graph_questions(config: RunConfig, options: GraphOptions, block_names: tuple[str, ...]) -> Questions:
    """Return the questions of parties that exchange (d, k) blocks with their neighbours, in the order of a run."""
    blocks = Payload(tuple(Field(name, ("d", "k")) for name in block_names))

    def question(relayed: Payload, reply: Payload, answer: Answer, **settings: Any) -> Question:
        """Return a question whose request stacks the relayed fields of all neighbours."""
        stacked = Payload(tuple(replace(field, shape=("<=neighbours", *field.shape)) for field in relayed.fields))
        return Question(request=stacked, reply=reply, answer=answer, sizes=_sizes, **settings)

    @cache  # the server counts the rounds that are left in each of them
    def relay_times(parties: int) -> int:
        """Return how often heads are relayed, or a public maximum before the parties are known."""
        return _relay_rounds(_network(options, parties, config.seed)) if parties else MAX_RELAY_ROUNDS

    step = {"step": question(blocks, blocks, GraphParty._step, times=options.iterations - 1)}
    project = projection_questions()["project"]
    components, *other_fields = project.request.fields
    order = Field("order", ("k",), "int64", kind="size")
    request = Payload((replace(components, shape=("k", "d")), *other_fields, order))
    return {
        "head": question(Payload(()), HEADS, GraphParty._head),
        "heads": question(HEADS, HEADS, GraphParty._heads, times=lambda p: relay_times(p.parties), optional=True),
        "start": question(HEADS, blocks, GraphParty._start),
        **(step if options.iterations > 1 else {}),
        "report": question(blocks, REPORT, GraphParty._report),
        "energies": Question(
            request=Payload((replace(components, shape=("k", "d")),)),
            reply=Payload((Field("energies", ("k",)),)),
            answer=GraphParty._energies,
            sizes=_sizes,
        ),
        "project": replace(project, request=request, sizes=_sizes, limits=None),
    }


def _sizes(public: Public) -> dict[str, int]:
    """Return the values of the symbols in field shapes: parties, the most neighbours of one (all others), and k."""
    return {"parties": public.parties, "neighbours": max(0, public.parties - 1), "k": public.options.n_components}


DIVERGED_NORM = 1e3  # norm of an iterate that no stable run reaches (that of the solution is the root of n-components)


class GraphParty(Party):
    """Party of a decentralised method, which stores its iterate between rounds. A method adds `begin`, `advance`."""

    options: GraphOptions
    block_names: ClassVar[tuple[str, ...]]
    """Names of the blocks that neighbours get: the first of what `begin` and `advance` return."""
    share: ClassVar[float] = 1.0
    """Share of the Metropolis weights that a party's neighbours get."""

    @abstractmethod
    def begin(self, X: Array) -> list[Array]:
        """Return the first iterate: blocks (d, k), `block_names` first, X, the shared start, before the direction."""

    @abstractmethod
    def advance(self, iterate: list[Array], average: list[Array]) -> list[Array]:
        """Return the next iterate from the own one and the average of its `block_names` over party and neighbours."""

    @property
    def step_size(self) -> float:
        """Multiple of the direction that each iteration adds."""
        return float(self.centring[1][2])

    def _head(self, request: Fields) -> Fields:
        """Store and return a table of all parties' heads in which only this party's entry is filled."""
        head, diagonal = self.vault.head_and_diagonal()
        top = graphs.largest_eigenvalue(self.vault.times, diagonal.size)
        total = float(diagonal.sum())
        heads = graphs.MeanTable.for_party(self.partition, self.public.parties, head, total, top)
        self.state["heads"] = list(heads)
        return heads._asdict()

    def _heads(self, request: Fields) -> Fields:
        """Add the neighbours' heads to the party's table, and store and return the table."""
        heads = self._merged_heads(request)
        self.state["heads"] = list(heads)
        return heads._asdict()

    def _start(self, request: Fields) -> Fields:
        """Store centre, weights and the first iterate; ContractError for a missing head, DataError for no variance."""
        heads = self._merged_heads(request)
        if not heads.counts.all():
            unknown = ", ".join(str(party) for party in np.flatnonzero(heads.counts == 0))
            raise ContractError(f"the heads of parties {unknown} did not arrive; do all parties have the same graph?")
        pooled, total, traces, deviations = heads.pooled()
        require_variance(total, pooled.n, pooled.mean)
        partition, parties = self.partition, len(heads.counts)
        graph = _network(self.options, parties, self.public.config.seed)
        weights = self.share * graphs.metropolis_weights(graph)[partition, graph[partition]]
        step = _step_size(self.options, heads, graph)
        numbers = [parties / total, traces[partition], step, heads.counts[partition], *weights]
        self.state["centre"] = [np.stack([deviations[partition], pooled.mean]), np.array(numbers)]
        first = random_block(self.vault.features, self.options.n_components, self.public.config.seed)
        return self._store_iterate(self.begin(graphs.orthonormalise(first)))

    def _step(self, request: Fields) -> Fields:
        """Run an iteration, and store the new iterate and return its blocks `block_names`."""
        return self._store_iterate(self._next_iterate(request))

    def _report(self, request: Fields) -> Fields:
        """Run the last iteration; store and return an orthonormal estimate."""
        X, direction = self._next_iterate(request)[:2]
        vectors, numbers = self.centring
        estimate = graphs.orthonormalise(X)
        self.state["estimate"] = [estimate]
        return {"mean": vectors[1], "trace": numbers[1], "direction": np.linalg.norm(direction), "estimate": estimate}

    def _energies(self, request: Fields) -> Fields:
        """Return the sums of squares (k,) of the party's rows, about the pooled mean, along components."""
        V = request["components"].T
        return {"energies": np.einsum("ij,ij->j", V, self._product(V)) / self.centring[1][0]}

    def direction(self, X: Array) -> Array:
        """Return Sanger's direction (d, k) at the iterate X (d, k) for A; ConfigError if the iterates diverge."""
        if not np.linalg.norm(X) <= DIVERGED_NORM:  # NaN too
            option = self.options.step_size
            step_text = f"'auto', here {self.step_size:.3g}" if option == "auto" else f"{option:g}"
            raise ConfigError(
                f"run-config: 'step-size' is {step_text}, too large for these parties on this {self.options.graph} "
                f"graph: the iterates diverge; {'give a lower one' if option == 'auto' else 'lower it'}"
            )
        return graphs.sanger_direction(self._product(X), X)

    def _merged_heads(self, request: Fields) -> graphs.MeanTable:
        """Return the stored table of heads, with unknown entries filled from the neighbours' tables."""
        heads = graphs.MeanTable(*self.state["heads"])
        for table in zip(*(request[name] for name in graphs.MeanTable._fields), strict=True):
            heads = heads.filled_from(graphs.MeanTable(*table))
        return heads

    @cached_property
    def centring(self) -> tuple[Array, Array]:
        """Vectors (2, d), deviation and pooled mean; numbers: factor of A, trace, step, rows, neighbours' weights."""
        vectors, numbers = self.state["centre"]
        return vectors, numbers

    def _product(self, V: Array) -> Array:
        """Return ``A @ V`` (d, b) for A, this party's scatter about the pooled mean times a factor K / trace."""
        (deviation, _), numbers = self.centring
        between = numbers[3] * np.outer(deviation, deviation @ V)
        product: Array = numbers[0] * (self.vault.times(V) + between)
        return product

    def _next_iterate(self, request: Fields) -> list[Array]:
        """Average the party's blocks with its neighbours' (ContractError if some lack), and return the next iterate."""
        iterate, weights = list(self.state["iterate"][0]), self.centring[1][4:]
        received = len(request[self.block_names[0]])
        if received != weights.size:
            raise ContractError(f"the server sent what {received} neighbours said, but this party has {weights.size}")
        pairs = zip(iterate, self.block_names, strict=False)
        return self.advance(iterate, [graphs.mix(block, list(request[name]), weights) for block, name in pairs])

    def _store_iterate(self, iterate: list[Array]) -> Fields:
        """Store the iterate, and return its blocks `block_names`, which neighbours receive."""
        self.state["iterate"] = [np.stack(iterate)]
        return dict(zip(self.block_names, iterate, strict=False))


RATE_ITERATIONS = 50  # after so many iterations, and again, the run says if it will not converge
STANDSTILL_DEGREES = 1e-11  # largest step, in degrees, that is rounding

GRAPH_NOTE = "a simulated network: the server relayed; scores are by each party's own estimate, the model is their mean"


class GraphClient(RowsClient):
    """Client of a party that projects its rows with its own estimate of the components."""

    party_type: ClassVar[type[GraphParty]]
    party: GraphParty

    def projection(self, request: Fields) -> Projection:
        """Return the projection by this party's own estimate, in the model's order and with the model's signs."""
        components, order = request["components"], request["order"]
        same_mean = np.array_equal(request["mean"], self.party.centring[0][1])
        if sorted(order.tolist()) != list(range(order.size)) or not same_mean:
            raise ContractError("the server's last question does not fit what the parties have reported")
        estimate = self.site.state["estimate"][0].T[order]
        flipped = np.einsum("ij,ij->i", estimate, components) < 0
        return replace(super().projection(request), components=np.where(flipped[:, None], -estimate, estimate))


class GraphStrategy(RowsStrategy):
    """Base of the decentralised methods: the server relays iterates along a graph and averages the estimates."""

    options: GraphOptions

    @override
    def aggregate(self) -> Generator[Round, Any, Solution]:
        """Relay heads, iterates and reports between neighbours, and return the mean of the parties' estimates."""
        graph = _network(self.options, self.quorum.initial_parties, self.config.seed)
        self._steps: list[float] = []  # largest distance that any party's iterate moved, in each iteration
        replies: list[Reply] = yield Round("head")
        rows = sum(reply.rows for reply in replies)
        self.n_components(rows, self.quorum.features)
        for _ in range(_relay_rounds(graph)):
            replies = yield _relay_round("heads", graph, replies)
        heads = reduce(graphs.MeanTable.filled_from, (graphs.MeanTable(**reply.fields) for reply in replies))
        replies = yield _relay_round("start", graph, replies)
        for _ in range(self.options.iterations - 1):
            previous, replies = replies, (yield _relay_round("step", graph, replies))
            pairs = zip(previous, replies, strict=True)
            steps = (float(np.linalg.norm(new.fields["iterate"] - old.fields["iterate"])) for old, new in pairs)
            self._steps.append(max(steps))
            if self._is_too_slow() and self.options.early_stopping:
                break
        reports: list[Reply] = yield _relay_round("report", graph, replies)
        estimates = [report.fields["estimate"] for report in reports]
        components = fix_signs(graphs.orthonormalise(order_free_sum(estimates)))
        replies = yield Round("energies", {"components": components.T})
        energies = order_free_sum([reply.fields["energies"] for reply in replies])
        # after too few iterations the energies are in no order; parties reorder their own estimates by it
        self._order = np.argsort(-energies, kind="stable")
        solved = Eigenpairs(energies[self._order], components[:, self._order], following=0.0)
        return self._mean_solution(solved, [report.fields for report in reports], rows, graph, heads)

    @override
    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        """Return the request fields for projecting rows, with the order of the components by energy."""
        return {**super().loadings(model, solution), "order": self._order}

    def _mean_solution(
        self, pairs: Eigenpairs, reports: Sequence[Fields], rows: int, graph: graphs.Adjacency, heads: graphs.MeanTable
    ) -> Solution:
        """Return the solution with the averaged estimates, and notes and measurements on how they converged."""
        estimates = [report["estimate"] for report in reports]
        return Solution(
            pairs=pairs,
            mean=reports[0]["mean"],
            total=math.fsum(report["trace"] for report in reports),
            rows=rows,
            notes=[GRAPH_NOTE, *self._convergence_notes(estimates)],
            measurements={
                "iterations": len(self._steps) + 1,
                "mixing_rate": float(graphs.mixing_rate(graphs.metropolis_weights(graph))),
                "consensus_error_degrees": max(float(principal_angles(E, pairs.vectors).max()) for E in estimates),
                "last_direction_norm": max(float(report["direction"]) for report in reports),
                "step_size": _step_size(self.options, heads, graph),
            },
        )

    def _is_too_slow(self) -> bool:
        """Return whether the rate of the steps, after every `RATE_ITERATIONS`, is too slow, and log what to take."""
        done, allowed = len(self._steps), self.options.iterations
        if done % RATE_ITERATIONS:
            return False
        remaining = graphs.remaining_iterations(self._steps, math.radians(EXACT_ANGLE_DEGREES))
        if remaining is None or done + remaining <= allowed:
            return False
        text = "after %d of %d iterations: at this rate the run needs %d; set 'iterations' to that, or take p-cov"
        log_progress(f"{text} (exact); 'early-stopping' ends such a run", done, allowed, done + remaining)
        return True

    def _convergence_notes(self, estimates: Sequence[Array]) -> list[str]:
        """Return one note if the iterations ended before convergence or the parties' estimates differ, else none."""
        disagreement = max((float(principal_angles(a, b).max()) for a, b in combinations(estimates, 2)), default=0.0)
        step = math.degrees(self._steps[-1]) if self._steps else math.inf
        exact = math.radians(EXACT_ANGLE_DEGREES)
        remaining = 0 if step <= STANDSTILL_DEGREES else graphs.remaining_iterations(self._steps, exact)
        if remaining == 0 and disagreement <= EXACT_ANGLE_DEGREES:
            return []
        last = f"the last step was {step:.2g} degrees at most" if self._steps else "only one step was made"
        if remaining is None:
            advice = (
                "the steps show no linear rate yet, so it cannot be said how many more iterations are needed, and the "
                "components may be others still, up to 90 degrees from those of all rows"
            )
        elif remaining:
            distance = math.degrees(graphs.remaining_distance(self._steps) or 0.0)
            advice = (
                f"at the rate of the last ones, {distance:.2g} degrees of the way are left, and about {remaining:,} "
                f"more iterations leave {EXACT_ANGLE_DEGREES:g}; a direction that has hardly begun to turn does not "
                "show in that"
            )
        else:
            advice = "the parties stand still, where more iterations change nothing and a smaller 'step-size' may"
        return [
            f"not converged: after {len(self._steps) + 1} iterations the parties' estimates are up to "
            f"{disagreement:.2g} degrees from each other, and {last}: {advice}"
        ]


def _relay_round(phase: str, graph: graphs.Adjacency, replies: Sequence[Reply]) -> Round:
    """Return a round that sends every party the stacked reply fields of its neighbours from the round before."""
    tables = {name: np.stack([reply.fields[name] for reply in replies]) for name in replies[0].fields}
    requests = {reply.party: {name: table[graph[reply.party]] for name, table in tables.items()} for reply in replies}
    return Round(phase, party_requests=requests)
