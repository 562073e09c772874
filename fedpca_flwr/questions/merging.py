"""Base of VFedPCA and VFedAKPCA: the server merges or relays the parties' leading directions.

In every period each party takes the leading direction of its own data, these are merged with weights in proportion to
their eigenvalues, and each party keeps the part of its data along the merged one: of rank one, so that later periods
change only the weights. Further components come from the data without the merged directions (deflation).

With a ``graph`` the server only relays: each party merges its vector with its neighbours', and the model is the mean of
the parties' directions. The last rounds measure the energy of every party's columns in these.
"""

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits
from scipy.linalg import qr
from typing_extensions import override

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import (
    deflate,
    merge_vectors,
    order_free_sum,
    orthogonal_direction,
    project_on_direction,
    scores_on_direction,
)
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.graph import make_graph
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import Disclosure, VariantOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, Round
from fedpca_flwr.questions import columns
from fedpca_flwr.questions.columns_run import ColumnsClient, ColumnsOptions, ColumnsStrategy, ScoresSolution

MERGE_DISCLOSURE = Disclosure(
    "its numbers of rows and columns, the sum of squares of its columns, its own leading scores in each period with "
    "their eigenvalues, and its sums of squares along the merged directions",
    "the merged scores of all rows; with `graph` also the neighbours' own leading scores",
    "sizes and times of messages, which show the graph",
)
"""Disclosure of methods that merge the parties' directions."""

DIFFERENCES = (
    "The paper computes only one component; here each further component comes from the columns without the earlier "
    "ones. With `graph` the paper's sites keep different directions; the model has their mean. The angles are for "
    "scikit-learn's breast cancer data, scaled to 0 to 1, with 3, 5 and 22 columns at three sites."
)
"""End of both methods' texts on what differs from the paper."""

BEYOND_MOMENTS = "directions of rows, which a site must allow, after many steps that enlarge rounding"
"""Why a party's answers tell more of its rows than their moments do."""

LOCAL_DIRECTION = Payload((Field("value", ()), Field("vector", ("n",))))  # a party's leading direction, and its weight

MERGED_DIRECTION = Payload((Field("merged", ("n",)),))
NEIGHBOUR_DIRECTIONS = Payload((Field("values", ("<=parties",)), Field("vectors", ("<=parties", "n"))))


class MergeOptions(ColumnsOptions, VariantOptions):
    """Options of VFedPCA and VFedAKPCA: variant, periods, weights, and who merges the parties' directions."""

    variant: Literal["ours", "paper", "faithful"] = "ours"  # type: ignore[assignment]  # wider than in the base class
    """Defaults of the other options: those of this project ('ours'), or those of the paper's equations ('paper'). With
    'faithful' the run repeats the authors' program, which centres no columns, turns no signs, and forgets no vector."""
    periods: Annotated[Count, Limits(examples=[1, 2, 4])] = 10
    """Number of merges for each component."""
    start: Literal["common", "own"] = "common"
    """First vector of the power method: the same random vector for all sites, drawn in each period; or a random
    vector of each site's own (the paper's algorithm 2), drawn once for each component."""
    warm_start: Literal["random", "previous"] = "random"
    """Start of the power method after the first period: the random vector, or the last merged vector (the paper's
    algorithm 3)."""
    align_signs: bool = True
    """Turn the sites' vectors to one side before they are added. The paper adds them with the signs that they have
    (equation 13)."""
    weight_scaling: bool = False
    """Increase the larger weights (the paper's equation 15)."""
    graph: Literal["server", "complete", "ring", "star"] = "server"
    """Who merges the vectors: the server, or each site those of its neighbours in this graph."""

    @property
    def faithful(self) -> bool:
        """True if the run reproduces the authors' published program."""
        return self.variant == "faithful"

    @property
    @override
    def centres_columns(self) -> bool:
        """True if columns are centred, which the authors' program does not do."""
        return self.center and not self.faithful

    @abstractmethod
    def local_direction(self, X: Array, start: Array) -> tuple[float, Array]:
        """Return the eigenvalue and the leading direction (n,) of columns X (n, f); iterations begin at start (n,)."""

    @override
    def max_gram_columns(self, rows: int) -> int:
        """Return the largest number of columns of products with a party's X X' that a run reveals."""
        # once a block is overwritten it has rank one, and tells no more
        return self.n_components * min(self.total_periods, 2 + self.isolated_periods)

    @property
    def needs_products_only(self) -> bool:
        """True if a direction depends on a party's columns X by X X' alone, so that rank one is a single column."""
        return False

    @property
    def isolated_periods(self) -> int:
        """Number of first periods in which parties do not yet project on the merged direction."""
        return int(self.graph == "server" and self.faithful)

    @property
    def total_periods(self) -> int:
        """Number of periods for each component: `periods` and the isolated periods."""
        return self.periods + self.isolated_periods

    def merge(self, values: Sequence[float], vectors: Sequence[Array]) -> Array:
        """Return the sum of the parties' directions (n,), weighted by ``values``, as a direction (n,)."""
        aligned = self.align_signs and not self.faithful
        return merge_vectors(values, vectors, aligned=aligned, scaled=self.weight_scaling, faithful=self.faithful)


def merge_questions(config: RunConfig, options: MergeOptions) -> Questions:
    """Return the questions of a run: ``rows``, ``start``, ``local`` and ``report``, ``energies``, ``project``."""
    first = 1 + options.isolated_periods
    merged = MERGED_DIRECTION if options.graph == "server" else NEIGHBOUR_DIRECTIONS
    later = options.n_components * options.total_periods - first
    local = Question(request=merged, reply=LOCAL_DIRECTION, answer=_local_period, sizes=_parties, times=later)
    directions = Payload((Field("directions", ("n", "k")),))
    report = Question(request=merged, reply=directions, answer=_report_directions, sizes=_parties)
    return {
        **columns.clear_rows_questions(columns.LOCAL_ENERGY),
        "start": Question(reply=LOCAL_DIRECTION, answer=_local_period, times=first),
        **({"local": local} if later else {}),
        **({} if options.graph == "server" else {"report": report}),
        **columns.energies_questions(),
        **columns.projection_questions(),
    }


def _report_directions(party: ColumnsClient, request: Fields) -> Fields:
    """Return all directions (n, k) that a party has merged, with the direction of the last period."""
    return {"directions": _with_direction(party, _local_merged(party, request))}


def _parties(public: Public) -> dict[str, int]:
    """Return the values of the symbols in field shapes: ``k`` components and ``parties``."""
    return {**columns.component_sizes(public), "parties": public.parties}


class MergeStrategy(ColumnsStrategy):
    """Strategy that merges the parties' leading directions at the server, or relays them between neighbours."""

    options: MergeOptions

    @override
    def aggregate(self) -> Generator[Round, Any, ScoresSolution]:
        """Run all periods, and return the merged directions ordered by energy; raise DataError if none is left."""
        yield from columns.rows_and_energy(self)
        notes = ["an average of the parties' own directions, not the principal components of all columns"]
        measured: dict[str, float] = {"periods_per_component": self.options.periods}
        if self.options.graph == "server":
            U = yield from self._merge_directions()
        else:
            directions = yield from self._relay_directions()
            reference = max(directions, key=lambda V: V.tobytes())
            aligned = [V * np.where(np.einsum("ij,ij->j", V, reference) < 0, -1.0, 1.0) for V in directions]
            U = qr(order_free_sum(aligned), mode="economic")[0]
            notes.append("a simulated network: the server relayed; the model is the mean of the parties' directions")
            measured["consensus_error_degrees"] = max(float(principal_angles(V, U).max()) for V in directions)
        pairs = yield from columns.pairs_by_energy(U)
        return ScoresSolution(pairs=pairs, total=self.total, notes=notes, measurements=measured)

    def _merge_directions(self) -> Generator[Round, Any, Array]:
        """Run all periods with merging at the server; return orthonormal directions (n, k)."""
        options, question = self.options, Round("start")
        directions = np.empty((self.n_rows, 0))
        for component in range(options.n_components):
            values: list[float] = []
            vectors: list[Array] = []
            for period in range(options.total_periods):
                replies = yield question
                if not options.faithful:  # the authors' program never forgets what came before
                    values, vectors = [], []
                values += _weights(replies, first=component == 0)
                vectors += [reply.fields["vector"] for reply in replies]
                if period >= options.isolated_periods:
                    u = options.merge(values, vectors)
                    question = Round("local", {"merged": u})
            following = orthogonal_direction(u, directions)
            if not following.any():
                raise DataError(
                    f"the parties' directions leave nothing for component {component + 1}; run with n-components = "
                    f"{component} at most"
                )
            directions = np.column_stack([directions, following])
        return directions

    def _relay_directions(self) -> Generator[Round, Any, list[Array]]:
        """Relay directions between neighbours in all periods, and return each party's own directions (n, k)."""
        options, question = self.options, Round("start")
        graph = make_graph(options.graph, self.quorum.expected)
        for step in range(options.n_components * options.periods):
            replies = yield question
            values = np.array(_weights(replies, first=step < options.periods))
            vectors = np.stack([reply.fields["vector"] for reply in replies])
            pairs = [(reply.party, near) for reply, near in zip(replies, graph, strict=True)]
            requests = {party: {"values": values[near], "vectors": vectors[near]} for party, near in pairs}
            question = Round("local", party_requests=requests)
        replies = yield Round("report", party_requests=question.party_requests)
        return [reply.fields["directions"] for reply in replies]


def _weights(replies: list[Reply], *, first: bool) -> list[float]:
    """Return the parties' eigenvalues as weights; raise DataError if those of the first component are all zero."""
    values = [float(reply.fields["value"]) for reply in replies]
    if first and not any(values):
        raise DataError(
            "there is no variance to explain in any party's columns, up to rounding: the rows are identical, a "
            "kernel's 'gamma' is too small for them, its eigenvalues are negative, or variant='faithful' takes a "
            "single column's row means away"
        )
    return values


# What a party answers


def _local_period(party: ColumnsClient, request: Fields) -> Fields:
    """Run a party's next period, store its state, and return its block's eigenvalue and leading direction."""
    options, state = party.options, party.site.state
    component, period = divmod(party.question_number - 1, options.total_periods)  # `rows` was the first question
    stored: Array | None = state["block"][0] if period else None
    direction: Array = _local_merged(party, request) if request else np.empty(0)
    if component and period == 0:
        state["found"] = [_with_direction(party, direction)]
    X = deflate(party.local_columns.X, _local_directions(party)) if stored is None else stored
    if period > options.isolated_periods and X.shape[1] > 1:  # a single column is its own projection
        X = (scores_on_direction if options.needs_products_only else project_on_direction)(X, direction)
    if period > options.isolated_periods and options.warm_start == "previous":
        start = direction
    else:  # a common start is the same for every party, so that the order of parties has no effect
        stream = party.site.node.partition_id if options.start == "own" else period
        rng, n = np.random.default_rng((party.site.config.seed, component, stream)), len(party.selection)
        start = rng.random(n) if options.faithful else rng.standard_normal(n)
    value, vector = options.local_direction(X, start)
    if X is not stored and period + 1 < options.total_periods:
        state["block"] = [X]
    if options.graph != "server":
        state["own"] = [value, vector]
    return {"value": np.asarray(value), "vector": vector}


def _local_merged(party: ColumnsClient, request: Fields) -> Array:
    """Return the merged direction (n,) that the server sent, or merge the neighbours' directions with the own one."""
    if "merged" in request:
        return request["merged"]
    values: list[Any] = list(request["values"])
    vectors: list[Array] = list(request["vectors"])
    if not (party.options.faithful and values):  # the authors' program leaves a node's own vector out
        value, vector = party.site.state["own"]
        values, vectors = [value, *values], [vector, *vectors]
    merged: Array = party.options.merge([float(value) for value in values], vectors)
    return merged


def _local_directions(party: ColumnsClient) -> Array:
    """Return the merged directions (n, components so far) that a party has stored."""
    state = party.site.state
    return state["found"][0] if "found" in state else np.empty((len(party.selection), 0))


def _with_direction(party: ColumnsClient, u: Array) -> Array:
    """Return a party's directions with the part of ``u`` (n,) that is orthogonal to the earlier directions."""
    return np.column_stack([_local_directions(party), orthogonal_direction(u, _local_directions(party))])
