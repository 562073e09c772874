"""A party of `sapca`: it follows its own rows in one pass, and in a tree merges what other parties give it.

Who sends to whom in the tree: at level l (from 0) party i with ``i mod 2**(l+1) == 2**l`` sends to party ``i - 2**l``,
by way of the server; the last level has the parties 0 and ``2**(levels-1)``, whose subspaces the server merges itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rank_rules import Band, Energy, Fixed, RankRule
from fedpca_flwr.maths.streaming_pca import Subspace, Tracker, blocks, merge
from strategies.base import PCAClient, PCAOptions
from strategies.moments import HEAD, remainder_if_needed

MEASURES = ("weight", "energy", "omitted", "rank")
"""Of a subspace: its rows, weighted; the trace of their scatter; the error bound; what the rule says of the rank."""

COUNT, MEAN, REMAINDER = HEAD

SUMMARY = Payload(
    (COUNT, Field("measures", ("measures",)), REMAINDER, MEAN, Field("directions", ("r", "d"), optional=True))
)
"""A subspace; ``directions`` are its vectors times their singular values, or empty where this party sends none now."""


class SAPCAOptions(PCAOptions):
    """Options of SAPCA."""

    rank_rule: Literal["energy", "paper"] = "energy"
    """``energy``: as many components as `n-components` says, a number or a fraction of the variance; ``paper``: from
    that number on as the shares of the singular values say (`fedpca_flwr.maths.rank_rules`)."""
    share_low: Annotated[float, Limits(ge=0, lt=1)] = 0.01
    """Of ``paper``: the paper's alpha; below it the rank falls."""
    share_high: Annotated[float, Limits(gt=0, le=1)] = 0.10
    """Of ``paper``: the paper's beta; above it the rank grows."""
    tracked: Annotated[int, Limits(ge=0)] = 0
    """Directions that are kept; 0: twice the number of components that there may be (50 for a fraction)."""
    block_size: Count = 50
    """Rows that are taken in at once."""
    forgetting: Annotated[float, Limits(gt=0, le=1)] = 1.0
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


class SAPCAClient(PCAClient):
    """Tracks its rows; keeps its subspace over the rounds of a tree."""

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "summary":
            own = self._tracked()
        else:
            own = self._kept()
            if received:
                child = dict(zip(("measures", "remainder", "mean", "directions"), received, strict=True))
                own = merged([own, child], self.sizes["r"])
        self._keep(own)
        sends = sends_at(self.node.partition_id, self.sizes["level"], self.sizes["parties"], self.options.topology)
        return {**own, "count": np.asarray(len(self.data)), **({} if sends else {"directions": np.empty((0, 0))})}

    def _tracked(self) -> Fields:
        options, r = self.options, self.sizes["r"]
        d = self.data.shape[1]
        tracker = Tracker(d, options.rule(), tracked=r, forgetting=options.forgetting, center=options.center)
        for block in blocks(self.data, options.block_size):
            tracker.update(block)
        return fields_of(tracker.subspace, tracker.rank, r)

    def _keep(self, own: Fields) -> None:
        names = ("measures", "remainder", "mean", "directions")
        self.context.state.array_records["subspace"] = ArrayRecord([own[name] for name in names])

    def _kept(self) -> Fields:
        arrays = self.context.state.array_records["subspace"].to_numpy_ndarrays()
        return dict(zip(("measures", "remainder", "mean", "directions"), arrays, strict=True))


def merged(parts: list[Fields], r: int) -> Fields:
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
