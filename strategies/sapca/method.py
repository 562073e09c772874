"""SPCA and SAPCA: each site follows its stream of rows in one pass; the subspaces are merged (Grammenos et al. 2019).

Take one of the two if rows arrive in a stream; docs/streaming.md compares the choices. `spca` has a fixed number of
components, or as many as hold a share of the variance. `sapca` begins with n-components, and then keeps the last one's
share of the singular values within limits. A site needs O(d (r + b)) memory for d features, r tracked directions and
blocks of b rows. It sends its directions times their singular values, its mean, the trace of its scatter, and an error
bound. The server merges these ("star"), or the sites merge them along a tree, and the server relays their messages.

The model states a bound on its error. If ``tracked`` is less than the number of features and the rank of the data, the
model depends a little on the order of the rows, within this bound.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator
from typing_extensions import override

from fedpca_flwr.config.run_config import refusal
from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rows import row_chunks
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions import method
from fedpca_flwr.questions.pooling import remainder_if_needed
from fedpca_flwr.site.rules.policy import permit_rows
from fedpca_flwr.strategies.sapca import stream_state, streams

# a subspace's numbers: weighted number of rows, trace of the scatter, error bound, and rank by the rule
MEASURE_NAMES = ("weight", "energy", "omitted", "rank")
RANK = MEASURE_NAMES.index("rank")
MAX_TREE_LEVELS = 32  # while the number of parties is unknown
DEFAULT_TRACKED = 50  # directions where the user wants a fraction of the variance
COUNT, MEAN, REMAINDER = method.HEAD

SUBSPACE_FIELDS = (
    method.Field("measures", ("4",)),
    REMAINDER,
    method.Field("mean", ("d",), optional=True),
    method.Field("directions", ("r", "d"), optional=True),
)
"""Fields of a subspace; ``directions`` are its vectors times their singular values."""

# the request of a tree: up to m subspaces that a party merges with its own
SUBSPACES_PAYLOAD = method.Payload(tuple(replace(field, shape=("<=m", *field.shape)) for field in SUBSPACE_FIELDS))

# the first reply, in which a party whose turn to send has not come leaves out the directions
SUMMARY_PAYLOAD = method.Payload((COUNT, *(MEAN if field.name == "mean" else field for field in SUBSPACE_FIELDS)))

EMPTY_SUBSPACE: method.Fields = {
    "measures": np.zeros(len(MEASURE_NAMES)),
    "remainder": np.empty(0),
    "mean": np.empty(0),
    "directions": np.empty((0, 0)),
}
"""Fields of the subspace of no rows, in the order in which a party stores them."""


class SPCAOptions(method.CentreOptions, method.VariantOptions):
    """Options of SPCA: components, the tracked directions, the topology, and a running model."""

    published: ClassVar[Mapping[str, Any]] = {"tracked": "rank", "center": False, "topology": "tree", "merge_batch": 2}
    unavailable: ClassVar[Mapping[str, str]] = {
        **method.PCAOptions.unavailable,
        "rank-rule": "take the method spca for a fixed number of components or a fraction of the variance, and sapca "
        "for the paper's rule",
    }

    tracked: Annotated[
        Annotated[int, Limits(ge=0)] | Literal["rank"], Limits(examples=["k", "2k", "d", 100, "rank"])
    ] = 0
    """Number of tracked directions. With 0 it is twice the largest possible number of components (50 if n-components is
    a fraction). With 'rank' it is the present number of components, as published."""
    block_size: Annotated[method.Count, Limits(examples=[1, 7, 50])] = 50
    """Number of rows of a block."""
    forgetting: Annotated[float, Limits(gt=0, le=1, examples=[1.0, 0.9])] = 1.0
    """Factor by which the singular values are multiplied before each block."""
    topology: Literal["star", "tree"] = "star"
    """Who merges: the server, the subspaces of all sites ('star'), or the sites, along a tree ('tree')."""
    fan_in: Annotated[method.Count, Limits(ge=2, examples=[2, 3])] = 2
    """With a tree: number of subspaces that meet at a node (the paper's l)."""
    merge_batch: Annotated[int, Limits(ge=0, examples=[0, 2, 3])] = 0
    """Number of subspaces that are merged at once, and then the results (the paper's k). With 0 or 1 all are."""
    state: str = ""
    """Folder of a running model at the server, into which the run merges its rows."""
    old_weight: Annotated[float, Limits(gt=0, le=1)] = 1.0
    """Factor of the running model's singular values (the paper's lambda 1)."""
    new_weight: Annotated[float, Limits(ge=1, le=1e6)] = 1.0
    """Factor of the new singular values (the paper's lambda 2)."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        """Raise for options that contradict each other: tracked directions, weights."""
        if self.tracked == "rank" and isinstance(self.n_components, float):
            raise refusal(
                "'tracked' is 'rank', which needs a number of components; give n-components=10, or tracked=50"
            )
        if self.tracked and self.tracked != "rank" and self.tracked < self.n_components:
            raise refusal(
                f"'tracked' is {self.tracked}, expected at least n-components = {self.n_components}, and better twice "
                "that"
            )
        if not self.state and (self.old_weight, self.new_weight) != (1.0, 1.0):
            raise refusal("'old-weight' and 'new-weight' are for a running model; give state='...'")
        return self

    def make_rule(self) -> streams.RankRule:
        """Return a new rule of the number of components: by explained variance for a fraction, else fixed."""
        if isinstance(self.n_components, float):
            return streams.Energy(self.n_components)
        return streams.Fixed(self.n_components)

    @property
    def largest_rank(self) -> int:
        """Largest number of components that the rule gives; 0 for a fraction, which sets no limit."""
        return int(self.n_components)

    def max_directions(self, features: int) -> int:
        """Return how many directions a party sends: `tracked`, or its default, and at most the features."""
        if isinstance(self.tracked, int) and self.tracked:
            return min(self.tracked, features)
        return min(self.largest_rank if self.tracked else 2 * self.largest_rank or DEFAULT_TRACKED, features)

    def merged_directions(self, features: int, rank: int) -> int:
        """Return how many directions a merge keeps: `max_directions`, or with ``tracked='rank'`` the rank, if less."""
        most = self.max_directions(features)
        return min(rank, most) if self.tracked == "rank" else most

    def arity(self, parties: int) -> int:
        """Return the number of subspaces that meet at a node of the tree; in a star, a tree of one level, all."""
        return self.fan_in if self.topology == "tree" else max(2, parties)


class SAPCAOptions(SPCAOptions):
    """Options of SAPCA: those of SPCA, and the rule of the number of components."""

    published: ClassVar[Mapping[str, Any]] = {**SPCAOptions.published, "hysteresis": False}

    share_low: Annotated[float, Limits(ge=0, lt=1)] = 0.01
    """The number of components falls if the last singular value is a smaller share of the sum (the paper's alpha)."""
    share_high: Annotated[float, Limits(gt=0, le=1)] = 0.10
    """The number of components grows if the last singular value is a larger share of the sum (the paper's beta)."""
    hysteresis: bool = True
    """Let the number grow only if the next direction would not be dropped again, and fall only after two steady blocks;
    the model's number is where the rule settles. Without, as published, the model has the sites' largest number."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        """Raise for a share-low that is not below share-high."""
        if self.share_low >= self.share_high:
            raise refusal(f"'share-low' is {self.share_low:g}, expected less than share-high = {self.share_high:g}")
        return self

    @override
    def make_rule(self) -> streams.RankRule:
        """Return a new rule of the number of components: the paper's, or by explained variance for a fraction."""
        if isinstance(self.n_components, float):
            return super().make_rule()
        return streams.Band(self.n_components, self.share_low, self.share_high, hysteresis=self.hysteresis)

    @property
    @override
    def largest_rank(self) -> int:
        """Largest number of components that the rule gives; 0 for a fraction, which sets no limit."""
        start = super().largest_rank
        return max(start, math.ceil(1 / self.share_high)) if start else 0


def spca_script(config: method.RunConfig, options: SPCAOptions) -> method.Questions:
    """Return the questions of SPCA: every party's subspace, in a tree merged subspaces by level, the projection."""
    summary = method.Question(
        reply=SUMMARY_PAYLOAD,
        answer=_answer_summary,
        sizes=lambda public: {"r": options.max_directions(public.features), "m": options.fan_in - 1},
    )
    merged = replace(
        summary,
        request=SUBSPACES_PAYLOAD,
        reply=method.Payload((COUNT, *SUBSPACE_FIELDS)),
        answer=_answer_merged,
        times=lambda public: tree_levels(public.parties, options.fan_in) - 1 if public.parties else MAX_TREE_LEVELS,
        optional=True,
    )
    tree = {"merged": merged} if options.topology == "tree" else {}
    return {"summary": summary, **tree, **method.projection_questions()}


def _answer_summary(party: method.Client, request: method.Fields) -> method.Fields:
    """Track and store the subspace of a party's rows; return it without directions and remainder if it is not due."""
    options, d = party.options, party.selection.shape[1]
    r = options.max_directions(d)
    tracked = 0 if options.tracked == "rank" else r
    tracker = streams.Tracker(
        d, options.make_rule(), tracked=tracked, forgetting=options.forgetting, center=options.center
    )
    for block in row_chunks(party.selection.rows, options.block_size):
        tracker.update(block)
    local = _subspace_fields(tracker.subspace, tracker.rank, r)
    return {**_store_subspace(party, local, level=0), "measures": local["measures"], "mean": local["mean"]}


def _answer_merged(party: method.Client, request: method.Fields) -> method.Fields:
    """Merge the request's subspaces, checked, if any, into a party's stored one; return as `_store_subspace`."""
    *arrays, level = party.site.state["subspace"]
    local: method.Fields = dict(zip(EMPTY_SUBSPACE, arrays, strict=True))
    subspaces = _split_subspaces(request)
    if subspaces:
        rank = max(int(fields["measures"][RANK]) for fields in (local, *subspaces))
        options, d = party.options, party.public.features
        merged = streams.merge(
            [_read_subspace(fields) for fields in (local, *subspaces)],
            options.merged_directions(d, rank),
            batch=options.merge_batch,
        )
        local = _subspace_fields(merged, rank, options.max_directions(d))
    return _store_subspace(party, local, level=int(level) + 1)


def _stack_subspaces(subspaces: Sequence[method.Fields]) -> method.Fields:
    """Return the fields of a request that holds the fields of several subspaces, or of none."""
    if not subspaces:
        return {name: np.empty((0, *array.shape)) for name, array in EMPTY_SUBSPACE.items()}
    complete = [{**fields, "remainder": _read_subspace(fields).head.remainder} for fields in subspaces]
    return {name: np.stack([fields[name] for fields in complete]) for name in EMPTY_SUBSPACE}


def _split_subspaces(request: method.Fields) -> list[method.Fields]:
    """Return the fields of each subspace of a request (`_stack_subspaces`), checked by `_require_subspace`."""
    lengths = {len(request[name]) for name in EMPTY_SUBSPACE}
    if len(lengths) > 1:
        raise method.ContractError(f"{method.SERVER}: its fields hold unequal numbers of subspaces")
    subspaces: list[method.Fields] = [{name: request[name][i] for name in EMPTY_SUBSPACE} for i in range(max(lengths))]
    for fields in subspaces:
        _require_subspace(fields, method.SERVER)
    return subspaces


def _store_subspace(party: method.Client, local: method.Fields, *, level: int) -> method.Fields:
    """Store a party's subspace and tree level; return ``count``, and the subspace or, if not due, `EMPTY_SUBSPACE`."""
    party.site.state["subspace"] = [*(local[name] for name in EMPTY_SUBSPACE), np.asarray(level)]
    parties = party.public.parties
    sends = sends_at_level(party.site.node.partition_id, level, parties, party.options.arity(parties))
    return {**(local if sends else EMPTY_SUBSPACE), "count": np.asarray(len(party.selection))}


def _require_subspace(fields: method.Fields, sender: str) -> None:
    """Raise ContractError for subspace fields that are empty, or whose weight, energy, bound or rank is too small."""
    if not fields["directions"].size or not fields["mean"].size:
        raise method.ContractError(f"{sender}: field 'directions' is empty, but it was its turn to send")
    minima = (np.finfo(np.float64).tiny, 0.0, 0.0, 1.0)
    for name, value, minimum in zip(MEASURE_NAMES, fields["measures"].tolist(), minima, strict=True):
        if value < minimum:
            raise method.ContractError(f"{sender}: its {name} is {value:g}, expected at least {minimum:g}")


def _subspace_fields(subspace: streams.Subspace, rank: int, r: int) -> method.Fields:
    """Return the message fields of a subspace: measures, mean, and directions padded with zeros to ``r`` rows."""
    directions = np.zeros((r, len(subspace.vectors)))
    directions[: subspace.sigma.size] = (subspace.vectors * subspace.sigma).T
    head = subspace.head
    return {
        "measures": np.array([head.n, subspace.energy, subspace.omitted, rank]),
        "remainder": remainder_if_needed(head, np.einsum("ij,ij->j", directions, directions)),
        "mean": head.mean,
        "directions": directions,
    }


def _read_subspace(fields: method.Fields) -> streams.Subspace:
    """Return the subspace that message fields hold, without the zero rows that pad its directions."""
    weight, energy, omitted, _ = fields["measures"].tolist()
    mean, directions = fields["mean"], fields["directions"]
    remainder = fields["remainder"] if fields["remainder"].size else np.zeros_like(mean)
    sigma = np.linalg.norm(directions, axis=1)
    directions, sigma = directions[sigma > 0], sigma[sigma > 0]
    return streams.Subspace(Head(weight, mean, remainder), directions.T / sigma, sigma, energy, omitted)


def tree_levels(parties: int, fan_in: int = 2) -> int:
    """Return the number of levels of the merge tree, at least 1: rounds until the server has all subspaces."""
    return next(levels for levels in itertools.count(1) if fan_in**levels >= parties)


def sends_at_level(party: int, level: int, parties: int, fan_in: int) -> bool:
    """Return whether a party sends its subspace at a level of the merge tree.

    At level l the multiples of fan_in^l are left; of each fan_in of them, the first one gets the subspaces of the
    others. At the last level all send theirs to the server.
    """
    step: int = fan_in**level
    return party % step == 0 and (step * fan_in >= parties or party % (step * fan_in) > 0)


DIFFERENCES = (
    "By default a site tracks twice as many directions as components, centres its rows, and the server merges the "
    "directions of all sites at once. In the publication a site tracks as many directions as components and does "
    "not centre its rows, and sites merge along a tree (`variant='paper'`: two at a time). Both variants correct "
    "an error of algorithms 2 and 3: lambda 2 also multiplies the block Z Sigma 2, as in algorithm 4. On the digits "
    "of scikit-learn, in five parts, ten components leave 0.02 % more squared error than those of the pooled rows. "
    "With `variant='paper'` it is 2.7 % more, of which 2.2 are due to rows that are not centred."
)

SPCA_CARD = method.MethodCard(
    name="spca",
    title="Streaming with fixed rank",
    exact=False,
    result="The model states a bound",
    rounds="1; log2(sites) with `topology='tree'`, or to the base `fan-in`",
    upload="d `tracked` + d + 5, for d features",
    server_sees="mean, total variance, leading local components",
    disclosure=method.Disclosure(
        "its number of rows, mean, total variance, leading components with their variances, and an error bound; in a "
        "tree also merged ones. With `state` the server keeps the merged model and a digest of each contribution on "
        "disk",
        "the pooled components and mean; in a tree also the **merged subspace, mean and weight of the sites below**, "
        "which at the lowest level are those of one other site",
        "sizes and times of messages; in a tree, which site is the parent of which",
    ),
    options=SPCAOptions,
    script=spca_script,
    reference="Grammenos et al. 2019, algorithms 1 to 3",
    differences=DIFFERENCES,
    examples=({}, {"topology": "tree"}),
    exposes="distribution",
    needs=("rows",),
    beyond_moments="a summary of blocks of rows, in their order, which the run's 'block-size', 'forgetting' and "
    "'tracked' cut and weigh",
)

SAPCA_CARD = replace(
    SPCA_CARD,
    name="sapca",
    title="Streaming with adaptive rank",
    result="The model states a bound. The run begins with `n-components`, and adapts their number to the data",
    options=SAPCAOptions,
    reference="Grammenos et al. 2019, algorithms 1 to 3 and equation 6",
    differences=f"{DIFFERENCES} The number of components follows equation 6, which as printed can alternate between "
    "two numbers; by default it changes only by a margin. From two components on, it gives 8 on the digits, and 6 "
    "with `variant='paper'`. When the number grows, the next singular vector is added; algorithm 3 adds a unit "
    "vector, which is not orthogonal to the others. The paper gives no values of alpha and beta: 0.01 and 0.1 are "
    "those of the authors' program.",
    adapts_rank=True,
)


class SPCAClient(method.Client):
    """Client of SPCA and SAPCA, which tracks its rows in a single pass."""

    options: SPCAOptions

    @override
    def require_ready(self) -> None:
        """Raise as the base class, and DisclosureError if by forgetting too few of the site's rows keep weight."""
        super().require_ready()
        rows, options = len(self.selection), self.options
        blocks_after = (rows - 1) // options.block_size - np.arange(rows) // options.block_size
        permit_rows(self.site.node, rows, np.power(options.forgetting**2, blocks_after))


class SPCA(method.Strategy):
    """Strategy of SPCA: leading directions of the parties' merged subspaces, each from a pass over its rows.

    A subspace stands for rows by V (d, r), singular values s and the mean: ``V diag(s^2) V'`` is the rows'
    scatter but for what truncation left out. After each block of rows, whose singular values are multiplied by
    ``forgetting`` before, the SVD of ``[V diag(s), block - mean, sqrt(n n_B / (n + n_B)) (mean_B - mean)]`` gives the
    next V and s (Grammenos, Mendoza Smith, Crowcroft and Mascolo 2019, Federated principal component analysis,
    algorithms 1 to 3). Two subspaces merge in the same way. Each truncation adds the first omitted ``s^2`` to a bound
    on the spectral norm of the error.
    """

    card = SPCA_CARD
    party = SPCAClient
    options: SPCAOptions

    @override
    def prepare(self, config: method.RunConfig, options: method.PCAOptions, transport: ServerTransport) -> None:
        """Set configuration, options and transport, and open the running model if there is a ``state``."""
        assert isinstance(options, SPCAOptions)
        super().prepare(config, options, transport)
        self.running = stream_state.RunningModel(options.state) if options.state else None
        self._next_content: stream_state.RunningContent | None = None  # once this run has succeeded
        self._present_rows = 0

    @property
    @override
    def exact(self) -> bool:
        """True if every direction is tracked, nothing is forgotten, and there is no running model."""
        options, features = self.options, self.quorum.features
        all_tracked = options.merged_directions(features, rank=1) == features  # whatever the rank is
        return all_tracked and options.forgetting == 1 and not options.state

    @override
    def program(self) -> method.Program:
        """Run the method, and save the running model once the run has succeeded."""
        yield from super().program()
        if self.running:
            assert self._next_content is not None
            self.running.save(self._next_content)

    @override
    def aggregate(self) -> method.Fitting:
        """Collect the parties' subspaces, along a tree if requested, and merge them; raise as `_solve`."""
        parties = self.quorum.initial_parties
        fan_in = self.options.arity(parties)
        replies: list[method.Reply] = yield method.Round("summary")
        due = self._due_replies(0, replies)
        for level in range(1, tree_levels(parties, fan_in)):
            received: dict[int, list[method.Fields]] = {party: [] for party in range(parties)}
            for reply in due:
                received[reply.party - reply.party % fan_in**level].append(reply.fields)
            requests = {party: _stack_subspaces(subspaces) for party, subspaces in received.items()}
            replies = yield method.Round("merged", party_requests=requests)
            due = self._due_replies(level, replies)
        self._present_rows = sum(reply.rows for reply in replies)
        ranks = [int(reply.fields["measures"][RANK]) for reply in due]
        return self._solve([_read_subspace(reply.fields) for reply in due], ranks)

    @override
    def projected_rows(self, model: method.PCAModel) -> int:
        """Return the number of rows that the parties of this run hold."""
        return self._present_rows

    def _due_replies(self, level: int, replies: Sequence[method.Reply]) -> list[method.Reply]:
        """Return the replies of the parties that send at this tree level, checked by `_require_subspace`."""
        parties = self.quorum.initial_parties
        fan_in = self.options.arity(parties)
        due = [reply for reply in replies if sends_at_level(reply.party, level, parties, fan_in)]
        for reply in due:
            _require_subspace(reply.fields, reply.sender)
        return due

    def _solve(self, subspaces: list[streams.Subspace], ranks: Sequence[int]) -> method.Solution:
        """Merge the parties' subspaces into a solution, with error bound and truncated share of the variance.

        Raise ConfigError for more components than the rows allow, DataError for rows without variance, and as
        `_merge_running_model` and `_rank`.
        """
        tracked = self.options.merged_directions(self.quorum.features, max(ranks))
        merged, rows = self._merge_running_model(subspaces, self._present_rows, tracked)
        self.n_components(rows, len(merged.vectors))
        method.require_variance(merged.diagonal(), rows, merged.head.mean)
        pairs = merged.pairs(self._rank(merged, ranks))
        measured: dict[str, float] = {
            "tracked_directions": tracked,
            "truncated_variance_share": max(0.0, 1 - float(merged.sigma @ merged.sigma) / merged.energy),
            "angle_bound_degrees": eigen.angle_bound(merged.omitted, pairs),
        }
        if not isinstance(self.options.make_rule(), streams.Fixed):
            measured |= {"smallest_rank": min(ranks), "largest_rank": max(ranks)}
        if content := self._next_content:
            measured |= {"running_model_rows": content.rows, "running_model_revision": content.revision}
        unit = rows / merged.head.n  # forgotten rows count less: the variances are those of the weighted rows
        return method.Solution(
            pairs=eigen.Eigenpairs(unit * pairs.values, pairs.vectors, unit * pairs.following),
            mean=merged.head.mean,
            total=unit * merged.energy,
            rows=rows,
            measurements=measured,
        )

    def _merge_running_model(
        self, subspaces: list[streams.Subspace], rows: int, tracked: int
    ) -> tuple[streams.Subspace, int]:
        """Merge the parties' subspaces and the running model, if any; return the merged subspace and number of rows.

        Keep the content of the next running model. Raise ContractError if the number of features differs, and
        ConfigError if centring or column names differ, or rows are in the model already.
        """
        options, running = self.options, self.running
        if running is None:
            return streams.merge(subspaces, tracked, batch=options.merge_batch), rows
        old, columns = running.content, self.quorum.columns
        digests = sorted(map(stream_state.subspace_digest, subspaces))
        if old is None:
            merged = streams.merge(subspaces, tracked, batch=options.merge_batch)
            self._next_content = stream_state.RunningContent(merged, rows, options.center, columns, tuple(digests))
            return merged, rows
        features, row_features = len(old.subspace.vectors), len(subspaces[0].vectors)
        if features != row_features:
            raise method.ContractError(
                f"the rows have {row_features} features, those of the model in {running.path} have {features}"
            )
        if old.center != options.center:
            raise method.ConfigError(
                f"run-config: 'center' is {options.center}, but the model in {running.path} was made with "
                f"{old.center}; keep it, or name another folder"
            )
        if columns and old.columns not in ("", columns):
            raise method.ConfigError(
                f"the column names, or their order, differ from those of the model in {running.path}"
            )
        if set(digests) & set(old.merged):
            raise method.ConfigError(
                f"a party brings rows that are in the model in {running.path} already, and would count twice; bring "
                "only new ones"
            )
        factors = [options.old_weight] + [options.new_weight] * len(subspaces)
        merged = streams.merge([old.subspace, *subspaces], tracked, factors, batch=options.merge_batch)
        rows += old.rows
        digests_of_all, columns = (*old.merged, *digests), columns or old.columns
        self._next_content = stream_state.RunningContent(
            merged, rows, options.center, columns, digests_of_all, old.revision + 1
        )
        return merged, rows

    def _rank(self, merged: streams.Subspace, ranks: Sequence[int]) -> int:
        """Return the number of components that the rank rule chooses from the merged singular values.

        Raise ConfigError if the tracked directions hold less than the requested share of the variance.
        """
        rule, sigma = self.options.make_rule(), merged.sigma
        if isinstance(rule, streams.Band):
            rule.rank = min(sigma.size, max(ranks))
            return rule.stationary_rank(sigma) if rule.hysteresis else rule.rank
        rank = rule.step(sigma, merged.energy)
        if isinstance(rule, streams.Energy) and rank > sigma.size:
            tracked, tracked_share = (
                self.options.max_directions(len(merged.vectors)),
                float(sigma @ sigma) / merged.energy,
            )
            raise method.ConfigError(
                f"run-config: 'tracked' is {tracked}, and so many directions hold {tracked_share:.4%} of the "
                f"variance, less than n-components = {rule.target:g}; raise 'tracked', or lower n-components"
            )
        return rank


class SAPCA(SPCA):
    """Strategy of SAPCA: as `SPCA`, with a number of components that follows the singular values (equation 6)."""

    card = SAPCA_CARD
    options: SAPCAOptions
