"""SAPCA: every party follows its stream of rows in one pass, and the subspaces are merged (Grammenos et al. 2019).

Take it for streams; docs/streaming.md compares the choices. A party needs O(d (r + b)) memory for r tracked directions
and blocks of b rows. It sends its directions times their singular values, mean, energy and an error bound. One QR and
one SVD, with a column for each mean, merge the subspaces: at the server for all parties at once (star), or pairwise
along a tree of parties, whose messages the server relays.

The order of the rows matters only where ``tracked`` is less than both the number of features and the rank of the data.
The model then depends on it a little, and says by a bound how far it may be off.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator

from fedpca_flwr.config.run_config import refusal
from fedpca_flwr.maths import eigen, streams
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rows import pieces
from fedpca_flwr.model import stream_state
from fedpca_flwr.questions import method
from fedpca_flwr.questions.fields import remainder_if_needed
from fedpca_flwr.site.policy import permit_rows

MEASURES = ("weight", "energy", "omitted", "rank")
"""Of a subspace: its rows, weighted; the trace of their scatter; the error bound; what the rule says of the rank."""

DEEPEST = 32
"""Levels of a tree allowed for while the number of parties is not known yet."""

UNKNOWN = 50
"""Directions tracked where a fraction of the variance is asked for."""

COUNT, MEAN, REMAINDER = method.HEAD

SUBSPACE = (
    method.Field("measures", ("4",)),
    REMAINDER,
    method.Field("mean", ("d",), optional=True),
    method.Field("directions", ("r", "d"), optional=True),
)
"""A subspace; ``directions`` are its vectors times their singular values. Of no rows all is zero."""

SUMMARY = method.Payload((COUNT, *(MEAN if field.name == "mean" else field for field in SUBSPACE)))
"""The first reply: of a party whose turn it is not to send its subspace everything but the directions."""

NO_ROWS: method.Fields = {
    "measures": np.zeros(len(MEASURES)),
    "remainder": np.empty(0),
    "mean": np.empty(0),
    "directions": np.empty((0, 0)),
}
"""The subspace of no rows."""


class SAPCAOptions(method.CentreOptions):
    """Options of SAPCA."""

    rank_rule: Literal["energy", "paper"] = "energy"
    """``energy``: as many components as `n-components` says; ``paper``: from that number on as the shares of the
    singular values say."""
    share_low: Annotated[float, Limits(ge=0, lt=1)] = 0.01
    """Of ``paper``: the paper's alpha; below it the rank falls."""
    share_high: Annotated[float, Limits(gt=0, le=1)] = 0.10
    """Of ``paper``: the paper's beta; above it the rank grows."""
    tracked: Annotated[int, Limits(ge=0, examples=["k", "2k", "d", 100])] = 0
    """Directions that are kept; 0: twice as many as components (50 for a fraction)."""
    block_size: Annotated[method.Count, Limits(examples=[1, 7, 50])] = 50
    """Rows that are taken in at once."""
    forgetting: Annotated[float, Limits(gt=0, le=1, examples=[1.0, 0.9])] = 1.0
    """Factor by which the singular values shrink before each block."""
    topology: Literal["star", "tree"] = "star"
    """Whether the server merges all at once, or the parties pairwise."""
    center: bool = True
    """Subtract the pooled mean."""
    state: str = ""
    """Folder at the server of a running model, into which rows are merged."""
    old_weight: Annotated[float, Limits(gt=0, le=1)] = 1.0
    """Of the running model's singular values: the paper's lambda 1."""
    new_weight: Annotated[float, Limits(ge=1, le=1e6)] = 1.0
    """Of the new ones: the paper's lambda 2."""

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.rank_rule == "paper" and isinstance(self.n_components, float):
            raise refusal("rank-rule='paper' begins with a number of components; give n-components=10")
        if self.share_low >= self.share_high:
            raise refusal(f"'share-low' is {self.share_low:g}, expected less than share-high = {self.share_high:g}")
        if self.tracked and self.tracked < self.n_components:
            raise refusal(
                f"'tracked' is {self.tracked}, expected at least n-components = {self.n_components}, and better twice "
                "that"
            )
        if not self.state and (self.old_weight, self.new_weight) != (1.0, 1.0):
            raise refusal("'old-weight' and 'new-weight' are for a running model; give state='...'")
        return self

    def rule(self) -> streams.RankRule:
        """A new rule at its beginning."""
        if self.rank_rule == "paper":
            return streams.Band(int(self.n_components), self.share_low, self.share_high)
        if isinstance(self.n_components, float):
            return streams.Energy(self.n_components)
        return streams.Fixed(self.n_components)

    def tracks(self, features: int) -> int:
        """How many directions a party keeps."""
        most = UNKNOWN if isinstance(self.n_components, float) else 2 * self.n_components
        if self.rank_rule == "paper":
            most = max(most, 2 * math.ceil(1 / self.share_high))  # the rank never grows beyond that half
        return min(self.tracked or most, features)


def phases(config: method.RunConfig, options: SAPCAOptions) -> method.Questions:
    """Everybody's own subspace; in a tree, level by level, what two parties have together."""
    summary = method.Question(
        reply=SUMMARY, answer=_summary, sizes=lambda public: {"r": options.tracks(public.features)}
    )
    merged = replace(
        summary,
        asked=method.Payload(SUBSPACE),
        reply=method.Payload((COUNT, *SUBSPACE)),
        answer=_with_child,
        times=lambda public: levels_of(public.parties) - 1 if public.parties else DEEPEST,
        optional=True,
    )
    tree = {"merged": merged} if options.topology == "tree" else {}
    return {"summary": summary, **tree, **method.projection_phase()}


def _summary(party: method.Client, asked: method.Fields) -> method.Fields:
    """The subspace of a party's rows."""
    options, d = party.options, party.data.shape[1]
    r = options.tracks(d)
    tracker = streams.Tracker(d, options.rule(), tracked=r, forgetting=options.forgetting, center=options.center)
    for block in pieces(party.data, options.block_size):
        tracker.update(block)
    own = fields_of(tracker.subspace, tracker.rank, r)
    return {**_kept(party, own, level=0), "measures": own["measures"], "mean": own["mean"]}


def _with_child(party: method.Client, asked: method.Fields) -> method.Fields:
    """A party's subspace with what another gave it."""
    *arrays, level = party.site.state["subspace"]
    own: method.Fields = dict(zip(NO_ROWS, arrays, strict=True))
    if asked["measures"].any():
        require_subspace(asked, method.SERVER)
        r, rank = party.options.tracks(party.public.features), max(_rank_in(own), _rank_in(asked))
        own = fields_of(streams.merge([subspace_in(own), subspace_in(asked)], r), rank, r)
    return _kept(party, own, level=int(level) + 1)


def _kept(party: method.Client, own: method.Fields, *, level: int) -> method.Fields:
    """Keep a party's subspace; return it where it is its turn to send."""
    party.site.state["subspace"] = [*(own[name] for name in NO_ROWS), np.asarray(level)]
    sends = sends_at(party.site.node.partition_id, level, party.public.parties, party.options.topology)
    return {**(own if sends else NO_ROWS), "count": np.asarray(len(party.data))}


def require_subspace(fields: method.Fields, sender: str) -> None:
    """Refuse what has no directions, or numbers that no subspace has."""
    if not fields["directions"].size or not fields["mean"].size:
        raise method.ContractError(f"{sender}: field 'directions' is empty, but it was its turn to send")
    smallest = (np.finfo(np.float64).tiny, 0.0, 0.0, 1.0)
    for name, value, least in zip(MEASURES, fields["measures"].tolist(), smallest, strict=True):
        if value < least:
            raise method.ContractError(f"{sender}: its {name} is {value:g}, expected at least {least:g}")


def fields_of(subspace: streams.Subspace, rank: int, r: int) -> method.Fields:
    """A subspace as it travels, with rows of zeros up to ``r`` directions."""
    directions = np.zeros((r, len(subspace.vectors)))
    directions[: subspace.sigma.size] = (subspace.vectors * subspace.sigma).T
    head = subspace.head
    return {
        "measures": np.array([head.n, subspace.energy, subspace.omitted, rank]),
        "remainder": remainder_if_needed(head, np.einsum("ij,ij->j", directions, directions)),
        "mean": head.mean,
        "directions": directions,
    }


def subspace_in(fields: method.Fields) -> streams.Subspace:
    """The subspace that has travelled."""
    weight, energy, omitted, _ = fields["measures"].tolist()
    mean, directions = fields["mean"], fields["directions"]
    remainder = fields["remainder"] if fields["remainder"].size else np.zeros_like(mean)
    sigma = np.linalg.norm(directions, axis=1)
    directions, sigma = directions[sigma > 0], sigma[sigma > 0]
    return streams.Subspace(Head(weight, mean, remainder), directions.T / sigma, sigma, energy, omitted)


def _rank_in(fields: method.Fields) -> int:
    return int(fields["measures"][3])


def levels_of(parties: int) -> int:
    """Levels of the tree: rounds until the server has all."""
    return max(1, (parties - 1).bit_length())


def sends_at(party: int, level: int, parties: int, topology: str) -> bool:
    """Whether a party sends its subspace in the round of this level."""
    if topology == "star":
        return True
    last = level == levels_of(parties) - 1
    return party % 2 ** (level + 1) == 2**level or (last and party == 0)


CARD = method.MethodCard(
    name="sapca",
    title="Streaming with adaptive rank",
    exact=False,
    result="with a bound; one pass over the rows",
    rounds="1; `topology='tree'` log2(parties)",
    upload="d `tracked` + d + 5",
    server_sees="mean, total variance, leading local components",
    shows=method.Shown(
        "number of rows, mean, total variance, its leading components and their variances, an error bound, in a "
        "tree merged ones too; with `state` it keeps what was merged, and a digest of each contribution, on disk",
        "the pooled components and mean; in a tree a party sees the **merged subspace, mean and weight of those "
        "below it**, at the lowest level those of one other party",
        "sizes and times of messages; in a tree who is whose parent",
    ),
    options=SAPCAOptions,
    phases=phases,
    reference="Grammenos et al. 2019, algorithms 1 to 3",
    examples=({}, {"topology": "tree"}),
    exposes="distribution",
    needs=("rows",),
    beyond_moments="a summary of blocks of rows, in their order, which the run's 'block-size', 'forgetting' and "
    "'tracked' cut and weigh",
)


class SAPCAClient(method.Client):
    """Summarises its rows in one pass, if their weights are not those of few."""

    options: SAPCAOptions

    def require_ready(self) -> None:
        super().require_ready()
        rows, options = len(self.data), self.options
        blocks_after = (rows - 1) // options.block_size - np.arange(rows) // options.block_size
        permit_rows(self.site.node, rows, np.power(options.forgetting**2, blocks_after))


class SAPCA(method.Strategy):
    """SAPCA; ``measured`` has the error bound and what was truncated."""

    card = CARD
    party = SAPCAClient
    options: SAPCAOptions

    def prepare(self, config: method.RunConfig, options: method.PCAOptions, transport: method.ServerTransport) -> None:
        assert isinstance(options, SAPCAOptions)
        super().prepare(config, options, transport)
        self.running = stream_state.RunningModel(options.state) if options.state else None
        self._next: stream_state.Content | None = None  # of the running model, once this run has succeeded
        self._rows_here = 0

    @property
    def exact(self) -> bool:
        """Where every direction is tracked nothing is truncated."""
        options = self.options
        return self._tracked == self.quorum.features and options.forgetting == 1 and not options.state

    def program(self) -> method.Program:
        yield from super().program()
        if self.running:
            assert self._next is not None
            self.running.save(self._next)

    def aggregate(self) -> method.Fitting:
        parties = self.quorum.total
        replies: list[method.Reply] = yield method.Ask("summary")
        sent = self._sent_at(0, replies)
        for level in range(1, levels_of(parties) if self.options.topology == "tree" else 1):
            passed = {reply.party - 2 ** (level - 1): reply.fields for reply in sent}
            received = {party: passed.get(party, NO_ROWS) for party in range(parties)}
            each = {party: {name: fields[name] for name in NO_ROWS} for party, fields in received.items()}
            replies = yield method.Ask("merged", each=each)
            sent = self._sent_at(level, replies)
        self._rows_here = sum(reply.rows for reply in replies)
        parts = [reply.fields for reply in sent]
        return self._solved([subspace_in(part) for part in parts], [_rank_in(part) for part in parts])

    def rows_here(self, model: method.PCAModel) -> int:
        return self._rows_here

    # Inside

    @property
    def _tracked(self) -> int:
        return self.options.tracks(self.quorum.features)

    def _sent_at(self, level: int, replies: Sequence[method.Reply]) -> list[method.Reply]:
        """The replies of those whose turn it was to send their subspace, checked."""
        parties, topology = self.quorum.total, self.options.topology
        sent = [reply for reply in replies if sends_at(reply.party, level, parties, topology)]
        for reply in sent:
            require_subspace(reply.fields, reply.sender)
        return sent

    def _solved(self, parts: list[streams.Subspace], ranks: Sequence[int]) -> method.Solution:
        everything, rows = self._with_the_past(parts, self._rows_here)
        self.n_components(rows, len(everything.vectors))
        method.require_variance(everything.diagonal(), rows, everything.head.mean)
        pairs = everything.pairs(self._rank(everything, ranks))
        unit = rows / everything.head.n  # forgotten rows count less: the variances are those of the weighted rows
        return method.Solution(
            pairs=eigen.Eigenpairs(unit * pairs.values, pairs.vectors, unit * pairs.following),
            mean=everything.head.mean,
            total=unit * everything.energy,
            rows=rows,
            measured=self._measured(everything, pairs, ranks),
        )

    def _with_the_past(self, parts: list[streams.Subspace], rows: int) -> tuple[streams.Subspace, int]:
        """All subspaces merged, with that of the running model where there is one, and how many rows that are."""
        options, running = self.options, self.running
        if running is None:
            return streams.merge(parts, self._tracked), rows
        old, digests, columns = running.content, sorted(map(stream_state.subspace_digest, parts)), self.quorum.columns
        if old is None:
            everything = streams.merge(parts, self._tracked)
            self._next = stream_state.Content(everything, rows, options.center, columns, tuple(digests))
            return everything, rows
        _check_fit(old, parts, options.center, columns, digests, running)
        factors = [options.old_weight] + [options.new_weight] * len(parts)
        everything, rows = streams.merge([old.subspace, *parts], self._tracked, factors), rows + old.rows
        known, columns = (*old.merged, *digests), columns or old.columns
        self._next = stream_state.Content(everything, rows, options.center, columns, known, old.revision + 1)
        return everything, rows

    def _rank(self, everything: streams.Subspace, ranks: Sequence[int]) -> int:
        rule, sigma = self.options.rule(), everything.sigma
        if isinstance(rule, streams.Band):
            rule.rank = min(sigma.size, max(ranks))
            return rule.stationary_rank(sigma)
        rank = rule.step(sigma, everything.energy)
        if isinstance(rule, streams.Energy) and rank > sigma.size:
            held = float(sigma @ sigma) / everything.energy
            raise method.ConfigError(
                f"run-config: 'tracked' is {self._tracked}, and so many directions hold {held:.4%} of the variance, "
                f"less than n-components = {rule.target:g}; raise 'tracked', or lower n-components"
            )
        return rank

    def _measured(
        self, everything: streams.Subspace, pairs: eigen.Eigenpairs, ranks: Sequence[int]
    ) -> dict[str, float]:
        left = max(0.0, 1 - float(everything.sigma @ everything.sigma) / everything.energy)
        measured: dict[str, float] = {
            "tracked_directions": self._tracked,
            "truncated_variance_share": left,
            "angle_bound_degrees": eigen.angle_bound(everything.omitted, pairs),
        }
        if self.options.rank_rule == "paper" or isinstance(self.options.n_components, float):
            measured |= {"smallest_rank": min(ranks), "largest_rank": max(ranks)}
        if self._next:
            measured |= {"running_model_rows": self._next.rows, "running_model_revision": self._next.revision}
        return measured


def _check_fit(
    old: stream_state.Content,
    parts: list[streams.Subspace],
    center: bool,
    columns: str,
    digests: list[str],
    running: stream_state.RunningModel,
) -> None:
    """Refuse what cannot be merged into a running model."""
    features, here = len(old.subspace.vectors), len(parts[0].vectors)
    if features != here:
        raise method.ContractError(
            f"the rows have {here} features, those of the model in {running.path} have {features}"
        )
    if old.center != center:
        raise method.ConfigError(
            f"run-config: 'center' is {center}, but the model in {running.path} was made with {old.center}; "
            "keep it, or name another folder"
        )
    if columns and old.columns not in ("", columns):
        raise method.ConfigError(f"the column names, or their order, differ from those of the model in {running.path}")
    if set(digests) & set(old.merged):
        raise method.ConfigError(
            f"a party brings rows that are in the model in {running.path} already, and would count twice; bring only "
            "new ones"
        )
