"""A party of `sapca`: it follows its own rows in one pass, and in a tree merges what other parties give it.

Who sends to whom in the tree: at level l (from 0) party i with ``i mod 2**(l+1) == 2**l`` sends to party ``i - 2**l``,
by way of the server; the last level has the parties 0 and ``2**(levels-1)``, whose subspaces the server merges itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config import Count, RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.blocks import pieces
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rank_rules import Band, Energy, Fixed, RankRule
from fedpca_flwr.maths.subspace_tracking import Subspace, Tracker, merge
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import SERVER, Phase, Phases, Public
from fedpca_flwr.statistics.moment_fields import HEAD, remainder_if_needed
from fedpca_flwr.statistics.rows import projection_phase
from fedpca_flwr.statistics.rows_client import RowsClient

MEASURES = ("weight", "energy", "omitted", "rank")
"""Of a subspace: its rows, weighted; the trace of their scatter; the error bound; what the rule says of the rank."""

DEEPEST = 32
"""Levels of a tree allowed for while the number of parties is not known yet."""

UNKNOWN = 50
"""Directions tracked where a fraction of the variance is asked for."""

COUNT, MEAN, REMAINDER = HEAD

SUBSPACE = (
    Field("measures", ("4",)),
    REMAINDER,
    Field("mean", ("d",), optional=True),
    Field("directions", ("r", "d"), optional=True),
)
"""A subspace; ``directions`` are its vectors times their singular values. Of no rows all is zero."""

SUMMARY = Payload((COUNT, *(MEAN if field.name == "mean" else field for field in SUBSPACE)))
"""The first reply: of a party whose turn it is not to send its subspace everything but the directions."""

NO_ROWS: Fields = {
    "measures": np.zeros(len(MEASURES)),
    "remainder": np.empty(0),
    "mean": np.empty(0),
    "directions": np.empty((0, 0)),
}
"""The subspace of no rows."""


class SAPCAOptions(PCAOptions):
    """Options of SAPCA."""

    rank_rule: Literal["energy", "paper"] = "energy"
    """``energy``: as many components as `n-components` says, a number or a fraction of the variance; ``paper``: from
    that number on as the shares of the singular values say (`fedpca_flwr.maths.rank_rules`)."""
    share_low: Annotated[float, Limits(ge=0, lt=1)] = 0.01
    """Of ``paper``: the paper's alpha; below it the rank falls."""
    share_high: Annotated[float, Limits(gt=0, le=1)] = 0.10
    """Of ``paper``: the paper's beta; above it the rank grows."""
    tracked: Annotated[int, Limits(ge=0, examples=["k", "2k", "d", 100])] = 0
    """Directions that are kept; 0: twice the number of components that there may be (50 for a fraction)."""
    block_size: Annotated[Count, Limits(examples=[1, 7, 50])] = 50
    """Rows that are taken in at once."""
    forgetting: Annotated[float, Limits(gt=0, le=1, examples=[1.0, 0.9])] = 1.0
    """Before each block the singular values shrink by this factor: a window of b / (1 - forgetting^2) rows."""
    topology: Literal["star", "tree"] = "star"
    """Whether the server merges all at once, or the parties pairwise: log2(parties) rounds."""
    center: bool = True
    """Subtract the mean, which is followed too."""
    state: str = ""
    """Folder at the server that holds a running model, into which the parties' rows are merged."""
    old_weight: Annotated[float, Limits(gt=0, le=1)] = 1.0
    """Of the running model's singular values: the paper's lambda 1."""
    new_weight: Annotated[float, Limits(ge=1, le=1e6)] = 1.0
    """Of the new ones: the paper's lambda 2."""

    def rule(self) -> RankRule:
        """A new rule at its beginning."""
        if self.rank_rule == "paper":
            return Band(int(self.n_components), self.share_low, self.share_high)
        return Energy(self.n_components) if isinstance(self.n_components, float) else Fixed(self.n_components)

    def tracks(self, features: int) -> int:
        """How many directions a party keeps."""
        most = UNKNOWN if isinstance(self.n_components, float) else 2 * self.n_components
        if self.rank_rule == "paper":
            most = max(most, 2 * math.ceil(1 / self.share_high))  # the rank never grows beyond that half
        return min(self.tracked or most, features)


def phases(config: RunConfig, options: SAPCAOptions) -> Phases:
    """Everybody's own subspace; in a tree, level by level, what two parties have together."""
    known: dict[str, Phase] = {"summary": Phase(reply=SUMMARY, sizes=_sizes)}
    if options.topology == "tree":
        merged = Payload((COUNT, *SUBSPACE))
        known["merged"] = Phase(asked=Payload(SUBSPACE), reply=merged, sizes=_sizes, times=_merges, optional=True)
    return {**known, **projection_phase(config)}


def _sizes(public: Public) -> dict[str, int]:
    return {"r": public.options.tracks(public.features)}


def _merges(public: Public) -> int:
    return levels_of(public.parties) - 1 if public.parties else DEEPEST


class SAPCAClient(RowsClient):
    """Tracks its rows; keeps its subspace over the rounds of a tree."""

    options: SAPCAOptions

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        answers = {"summary": self.summary, "merged": self.with_child, "project": self.project}
        return answers[phase](asked)

    def summary(self, asked: Fields) -> Fields:
        """The subspace of this party's rows."""
        options, r = self.options, self._directions
        d = self.data.shape[1]
        tracker = Tracker(d, options.rule(), tracked=r, forgetting=options.forgetting, center=options.center)
        for block in pieces(self.data, options.block_size):
            tracker.update(block)
        own = fields_of(tracker.subspace, tracker.rank, r)
        return {**self._kept(own, level=0), "measures": own["measures"], "mean": own["mean"]}

    def with_child(self, asked: Fields) -> Fields:
        """This party's subspace with what another gave it."""
        *arrays, level = self.site.state["subspace"]
        own: Fields = dict(zip(NO_ROWS, arrays, strict=True))
        if asked["measures"].any():
            require_subspace(asked, SERVER)
            own = merged([own, asked], self._directions)
        return self._kept(own, level=int(level) + 1)

    @property
    def _directions(self) -> int:
        return self.options.tracks(self.data.shape[1])

    def _kept(self, own: Fields, *, level: int) -> Fields:
        """Keep it; return it where it is this party's turn to send."""
        self.site.state["subspace"] = [*(own[name] for name in NO_ROWS), np.asarray(level)]
        sends = sends_at(self.site.node.partition_id, level, self.public.parties, self.options.topology)
        return {**(own if sends else NO_ROWS), "count": np.asarray(len(self.data))}


def require_subspace(fields: Fields, sender: str) -> None:
    """Refuse what has no directions, or numbers that no subspace has.

    Raises
    ------
    ContractError
    """
    if not fields["directions"].size or not fields["mean"].size:
        raise ContractError(f"{sender}: field 'directions' is empty, but it was its turn to send")
    smallest = (np.finfo(np.float64).tiny, 0.0, 0.0, 1.0)
    for name, value, least in zip(MEASURES, fields["measures"].tolist(), smallest, strict=True):
        if value < least:
            raise ContractError(f"{sender}: its {name} is {value:g}, expected at least {least:g}")


def merged(parts: Sequence[Fields], r: int) -> Fields:
    """The fields of what several parties have together; the rank is the largest of theirs."""
    rank = int(max(part["measures"][3] for part in parts))
    return fields_of(merge([subspace_in(part) for part in parts], r), rank, r)


def fields_of(subspace: Subspace, rank: int, r: int) -> Fields:
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


def subspace_in(fields: Fields) -> Subspace:
    """The subspace that has travelled."""
    weight, energy, omitted, _ = fields["measures"].tolist()
    mean, directions = fields["mean"], fields["directions"]
    remainder = fields["remainder"] if fields["remainder"].size else np.zeros_like(mean)
    sigma = np.linalg.norm(directions, axis=1)
    directions, sigma = directions[sigma > 0], sigma[sigma > 0]
    return Subspace(Head(weight, mean, remainder), directions.T / sigma, sigma, energy, omitted)


def levels_of(parties: int) -> int:
    """Levels of the tree: rounds until the server has all."""
    return max(1, (parties - 1).bit_length())


def sends_at(party: int, level: int, parties: int, topology: str) -> bool:
    """Whether a party sends its subspace in the round of this level."""
    if topology == "star":
        return True
    last = level == levels_of(parties) - 1
    return party % 2 ** (level + 1) == 2**level or (last and party == 0)
