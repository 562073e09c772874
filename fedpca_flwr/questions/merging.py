"""VFedPCA and VFedAKPCA: the server merges the parties' leading directions, or relays them between neighbours.

In every period each party takes the leading direction of its own data, the directions are merged with weights in
proportion to their eigenvalues, and each party replaces its data by their part along the merged direction. That part
has rank one, so later periods change the weights and nothing else. Further components come from the data without the
directions found (deflation), each in as many periods.

With a ``graph`` the server only relays: a party merges its own vector and its neighbours', each comes to a direction of
its own, and the model is the mean of these. The last rounds measure what every party's columns hold of it.
"""

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits
from scipy.linalg import qr

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import added, deflated, direction, merged, overwritten
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.graph import Adjacency, graph_of
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import Shown
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Public, Question, Questions
from fedpca_flwr.questions import columns
from fedpca_flwr.questions.columns_run import ColumnsClient, ColumnsOptions, ColumnsStrategy, ScoresSolution

SHOWS = Shown(
    "number of rows and of columns, energy of its columns, its leading local scores in each period and their "
    "eigenvalues, the energies of the merged directions",
    "the merged scores of all rows; with `graph` the leading local scores of neighbours",
    "sizes and times of messages, which show the graph",
)
"""Who learns what of a party."""

BEYOND_MOMENTS = "directions of rows, which a site must allow, after many steps that enlarge rounding"
"""Why a party's answers tell more of its rows than their moments do."""

LOCAL = Payload((Field("value", ()), Field("vector", ("n",))))
"""A party's leading direction, and its weight."""

MERGED = Payload((Field("merged", ("n",)),))

NEIGHBOURS = Payload((Field("values", ("<=parties",)), Field("vectors", ("<=parties", "n"))))
"""What a party's neighbours said."""


class MergeOptions(ColumnsOptions):
    """Options of VFedPCA and VFedAKPCA."""

    variant: Literal["corrected", "faithful"] = "corrected"
    """``faithful``: as the authors' program (`fedpca_flwr.maths.columns`), without ``center``."""
    periods: Annotated[Count, Limits(examples=[1, 2, 4])] = 10
    """Communication periods for each component."""
    weight_scaling: bool = False
    """Boost the larger weights (the paper's equation 15)."""
    graph: Literal["server", "complete", "ring", "star"] = "server"
    """Who merges: the server, or every party what it has from its neighbours."""

    @property
    def faithful(self) -> bool:
        return self.variant == "faithful"

    @property
    def about_means(self) -> bool:
        return self.center and not self.faithful

    @abstractmethod
    def local(self, X: Array, start: Array) -> tuple[float, Array]:
        """Weight and leading direction (n,) of a party's block ``X`` (n, f)."""

    def products(self, rows: int) -> int:
        # once a block is overwritten it has rank one, and tells no more
        return self.n_components * min(self.all_periods, 2 + self.isolated)

    @property
    def from_merged(self) -> bool:
        """Whether a party starts each period from the merged vector."""
        return False

    @property
    def isolated(self) -> int:
        """Periods without communication that come first; the authors merge their vectors all the same."""
        return int(self.graph == "server" and self.faithful)

    @property
    def all_periods(self) -> int:
        """Of each component, with the isolated one."""
        return self.periods + self.isolated

    def merge(self, values: Sequence[float], vectors: Sequence[Array]) -> Array:
        """The merged direction (n,)."""
        return merged(values, vectors, faithful=self.faithful, scaled=self.weight_scaling)


def merge_phases(config: RunConfig, options: MergeOptions) -> Questions:
    """The questions of a run: a party's own directions, period by period."""
    first, merged = 1 + options.isolated, MERGED if options.graph == "server" else NEIGHBOURS
    later = options.n_components * options.all_periods - first
    local = Question(asked=merged, reply=LOCAL, answer=_step, sizes=_parties, times=later)
    report = Question(
        asked=merged,
        reply=Payload((Field("directions", ("n", "k")),)),
        answer=lambda party, asked: {"directions": _with_next(party, _own_merged(party, asked))},
        sizes=_parties,
    )
    return {
        **columns.rows_in_clear(columns.ENERGIES),
        "start": Question(reply=LOCAL, answer=_step, times=first),
        **({"local": local} if later else {}),
        **({} if options.graph == "server" else {"report": report}),
        **columns.energies_phase(),
        **columns.projection_phase(),
    }


def _parties(public: Public) -> dict[str, int]:
    return {**columns.k_of_options(public), "parties": public.parties}


class MergeStrategy(ColumnsStrategy):
    """Merges, or relays."""

    options: MergeOptions

    def aggregate(self) -> Generator[Ask, Any, ScoresSolution]:
        yield from columns.rows_and_energy(self)
        notes = ["an average of the parties' own directions, not the principal components of all columns"]
        measured: dict[str, float] = {"periods_per_component": self.options.periods}
        if self.options.graph == "server":
            U = yield from self._merged()
        else:
            own = yield from self._relayed()
            U = _mean(own)
            apart = max(float(principal_angles(V, U).max()) for V in own)
            notes.append("a simulated network: the server relayed; the model is the mean of the parties' directions")
            measured["consensus_error_degrees"] = apart
        pairs = yield from columns.measured_pairs(U)
        return ScoresSolution(pairs=pairs, total=self.total, notes=notes, measured=measured)

    # Inside

    def _merged(self) -> Generator[Ask, Any, Array]:
        """The directions (n, k), one component after the other."""
        options, question = self.options, Ask("start")
        found = np.empty((self.n_rows, 0))
        for component in range(options.n_components):
            values: list[float] = []
            vectors: list[Array] = []
            for period in range(options.all_periods):
                replies = yield question
                if not options.faithful:  # the authors' program never forgets what came before
                    values, vectors = [], []
                values += _values(replies, first=component == 0)
                vectors += [reply.fields["vector"] for reply in replies]
                if period >= options.isolated:
                    u = options.merge(values, vectors)
                    question = Ask("local", {"merged": u})
            following = direction(u, found)
            if not following.any():
                raise DataError(
                    f"the parties' directions leave nothing for component {component + 1}; run with n-components = "
                    f"{component} at most"
                )
            found = np.column_stack([found, following])
        return found

    def _relayed(self) -> Generator[Ask, Any, list[Array]]:
        """Each party's own directions (n, k)."""
        options, question = self.options, Ask("start")
        graph = graph_of(options.graph, self.quorum.expected)
        for step in range(options.n_components * options.periods):
            replies = yield question
            _values(replies, first=step < options.periods)
            question = Ask("local", each=_neighbours(graph, replies))
        replies = yield Ask("report", each=question.each)
        return [reply.fields["directions"] for reply in replies]


def _values(replies: list[Reply], *, first: bool) -> list[float]:
    """The weights of the parties; those of the ``first`` component are not all zero."""
    values = [float(reply.fields["value"]) for reply in replies]
    if first and not any(value > 0 for value in values):
        raise DataError(
            "there is no variance to explain in any party's columns, up to rounding: the rows are identical, a "
            "kernel's 'gamma' is too small for them, or variant='faithful' takes a single column's row means away"
        )
    return values


def _neighbours(graph: Adjacency, replies: list[Reply]) -> dict[int, Fields]:
    """What each party receives of the others."""
    values = np.array([reply.fields["value"] for reply in replies])
    vectors = np.stack([reply.fields["vector"] for reply in replies])
    return {
        reply.party: {"values": values[near], "vectors": vectors[near]}
        for reply, near in zip(replies, graph, strict=True)
    }


def _mean(own: list[Array]) -> Array:
    """An orthonormal basis (n, k) of the mean of the parties' directions, turned alike."""
    largest = max(own, key=lambda U: U.tobytes())
    turned = [U * np.where(np.einsum("ij,ij->j", U, largest) < 0, -1.0, 1.0) for U in own]
    U: Array = qr(added(turned), mode="economic")[0]
    return U


# What a party answers


def _step(party: ColumnsClient, asked: Fields) -> Fields:
    """One period: it follows from how many there were."""
    options, state = party.options, party.site.state
    steps = int(state["steps"][0]) if "steps" in state else 0
    component, period = divmod(steps, options.all_periods)
    direction: Array = _own_merged(party, asked) if asked else np.empty(0)
    if period == 0:
        if component:
            state["found"] = [_with_next(party, direction)]
        X = deflated(party.own_columns.X, _found(party))
    else:
        (X,) = state["block"]
        X = overwritten(X, direction) if period > options.isolated else X
    start = _start(party, component, period, direction)
    value, vector = options.local(X, start)
    state["block"], state["own"], state["steps"] = [X], [value, vector], [steps + 1]
    return {"value": np.asarray(value), "vector": vector}


def _start(party: ColumnsClient, component: int, period: int, direction: Array) -> Array:
    """The same for every party, so that it matters to nobody who is which."""
    options, n = party.options, len(party.data)
    if period > options.isolated and options.from_merged:
        return direction
    rng = np.random.default_rng((party.site.config.seed, component, period))
    return rng.random(n) if options.faithful else rng.standard_normal(n)


def _own_merged(party: ColumnsClient, asked: Fields) -> Array:
    """The merged direction: the server's, or that of a party and its neighbours."""
    if "merged" in asked:
        return asked["merged"]
    values: list[Any] = list(asked["values"])
    vectors: list[Array] = list(asked["vectors"])
    if not (party.options.faithful and values):  # the authors' program leaves a node's own vector out
        value, vector = party.site.state["own"]
        values, vectors = [value, *values], [vector, *vectors]
    merged: Array = party.options.merge([float(value) for value in values], vectors)
    return merged


def _found(party: ColumnsClient) -> Array:
    """The directions that a party has found (n, k)."""
    state = party.site.state
    return state["found"][0] if "found" in state else np.empty((len(party.data), 0))


def _with_next(party: ColumnsClient, u: Array) -> Array:
    """The same, and what ``u`` (n,) adds."""
    return np.column_stack([_found(party), direction(u, _found(party))])
