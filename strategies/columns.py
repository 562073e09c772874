"""Base of the methods for parties that hold different columns of the same rows.

Every run begins with a round ``rows``: each party says how many rows and columns it has, and the energy of its columns
(the sum of their squares after its own centring and scaling). Nothing else is asked before all have the same rows.
The model holds the scores, which all parties learn; the loadings of a column stay where the column is.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from flwr.common import Parameters, Scalar, ndarrays_to_parameters
from numpy.typing import NDArray

from fedpca_flwr.alignment import difference
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.loadings import Loadings, run_digest
from fedpca_flwr.maths.columns import Block, added, block_of, energies
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.model import PCAModel
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, PCAStrategy, Reply, Request
from strategies.client import PCAClient, score_file

ABOUT_ROWS = (
    Field("count", (), "int64", kind="count"),
    Field("features", (), "int64", kind="count"),
    Field("ids", ("n",), "uint64", optional=True),
)
"""What each party says of its rows, so that all have the same."""

ROWS = Payload((*ABOUT_ROWS, Field("energy", ())))

ENERGIES = Payload((Field("energies", ("k",)),))
"""What each party's columns hold of the directions that it received."""


def summed(replies: Sequence[Reply]) -> Fields:
    """The sum over the parties of each field of their replies."""
    return {name: added([reply.fields[name] for reply in replies]) for name in replies[0].fields}


class ColumnsOptions(CountOptions):
    """Options of every method for data split by columns."""

    center: bool = True
    """Each party subtracts the means of its own columns."""
    scale: bool = False
    """Each party divides its own columns by their standard deviations."""


class ColumnsStrategy(PCAStrategy):
    """Base of the strategies. A method adds `ask` and `aggregate`, which ends with `conclude`."""

    options: CountOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self.n_rows = 0
        self._widths: list[int] = []  # columns of each party, once known
        self._total = 0.0  # energy of all columns
        self._by_ids = False

    # What a method writes

    @abstractmethod
    def ask(self) -> tuple[str, Sequence[NDArray], dict[str, int]]:
        """The next phase after ``rows``, what every party receives, and the sizes in its payload besides n."""

    @abstractmethod
    def aggregate(self, replies: list[Reply], *, last: bool) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The method's aggregation of what it asked; ``last``: no further round is allowed."""

    def met(self, replies: list[Reply]) -> None:
        """Take what else the first round told."""

    # What a method calls

    def weigh(self, total: float) -> None:
        """Take the energy of all columns."""
        require_variance(total, self.n_rows, np.zeros(1))
        self._total = total

    def conclude(
        self,
        pairs: Eigenpairs,
        total: float,
        *,
        notes: Sequence[str] = (),
        measured: dict[str, str] | None = None,
    ) -> tuple[Parameters, dict[str, Scalar]]:
        """Make the model of the leading eigenpairs of ``X X'``, whose trace is ``total``."""
        log = self.history(pairs.of_rank(self.n_rows - getattr(self.options, "center", True)), notes, measured)
        self.model = PCAModel.of_scores(pairs, total=total, features=sum(self._widths), log=log)
        return ndarrays_to_parameters([pairs.vectors, self.model.singular_values_]), {}

    def conclude_measured(self, U: NDArray, replies: list[Reply], **told: Any) -> tuple[Parameters, dict[str, Scalar]]:
        """Make the model of an orthonormal ``U`` (n, k), whose energies the parties replied."""
        held = added([reply.fields["energies"] for reply in replies])
        order = np.argsort(-held, kind="stable")
        return self.conclude(Eigenpairs(held[order], fix_signs(U[:, order]), following=0.0), self._total, **told)

    # What the base calls

    def request(self) -> Request:
        if not self._widths:
            return Request("rows")
        phase, arrays, sizes = self.ask()
        return Request(phase, arrays, {"n": self.n_rows, **sizes})

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        if self._widths:
            return self.aggregate(replies, last=server_round == self.rounds)
        self.meet(replies)
        self.weigh(math.fsum(float(reply.fields["energy"]) for reply in replies))
        return None, {}

    def meet(self, replies: list[Reply]) -> None:
        """Take the first round, if all parties have the same rows."""
        self._require_same_ids(replies)
        self._require_same_rows(replies)
        self.n_rows = int(replies[0].fields["count"])
        widths = [int(reply.fields["features"]) for reply in replies]
        self.n_components(self.n_rows, sum(widths))
        self.met(replies)
        self._widths = widths

    def history(self, pairs, notes=(), measured=None) -> dict[str, Any]:
        if not (self._by_ids or self.quorum.simulated):
            notes = [*notes, "rows were taken in the order of the files: nothing shows that they belong together"]
        log = super().history(pairs, notes, measured)
        parties = zip(log["parties"], self._widths, strict=True)
        return {**log, "parties": [{**party, "features": width} for party, width in parties]}

    def projected(self, replies: list[Reply]) -> tuple[int, float] | None:
        return self.n_rows, sum(sorted(reply.loss for reply in replies))

    # Inside

    def _require_same_ids(self, replies: list[Reply]) -> None:
        told = [reply for reply in replies if reply.fields["ids"].size]
        self._by_ids = bool(told)
        for reply in replies if told else []:
            ids, witness = reply.fields["ids"], told[0]
            if not ids.size:
                raise ConfigError(
                    f"{reply.sender}: its node-config names no 'ids', but that of {witness.sender} does; name an id "
                    "column at every site, or at none (rows then belong together in the order of the files)"
                )
            if (ids[1:] <= ids[:-1]).any():
                raise ContractError(f"{reply.sender}: field 'ids' is not in ascending order, or holds an id twice")
            missing, extra = difference(ids, witness.fields["ids"])
            if missing or extra:
                raise DataError(
                    f"{reply.sender}: it lacks {missing} ids that {witness.sender} has, and has {extra} that "
                    f"{witness.sender} lacks; keep the rows that all sites have (do all have the same 'group-secret'?)"
                )

    def _require_same_rows(self, replies: list[Reply]) -> None:
        told = [int(reply.fields["count"]) for reply in replies]
        (rows, _), *_ = Counter(told).most_common(1)
        witness = replies[told.index(rows)].sender
        for reply, own in zip(replies, told, strict=True):
            if own != rows:
                raise ContractError(
                    f"{reply.sender}: it has {own} rows, {witness} has {rows}; the method '{self.card.name}' is "
                    "for parties that hold different columns of the same rows. For other rows of the same columns take "
                    "a method for data split by rows, such as 'p-cov'"
                )


class ColumnsClient(PCAClient):
    """Base of the clients. A method adds `part`."""

    @abstractmethod
    def part(self, phase: str, received: list[NDArray]) -> Fields:
        """The fields that this party returns in a phase of the method's own."""

    @cached_property
    def block(self) -> Block:
        """This party's columns, centred and scaled as the run says."""
        return block_of(self.data, center=self.options.center, scale=self.options.scale)

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "rows":
            return {**self.about_rows(), **self.measures()}
        if phase == "energies":
            return {"energies": energies(self.block.X, received[0])}
        return self.part(phase, received)

    def about_rows(self) -> Fields:
        """What this party says of its rows in the first round."""
        n, f = self.data.shape
        ids = np.empty(0, np.uint64) if self.table.ids is None else self.table.ids
        return {"count": np.asarray(n), "features": np.asarray(f), "ids": ids}

    def measures(self) -> Fields:
        """What it says of its columns then."""
        return {"energy": np.asarray(self.block.energy)}

    def project(self, received: list[NDArray]) -> float:
        """Keep the scores of the rows and the loadings of this party's own columns; the energy that is left."""
        U, singular = received[:2]
        self.keep_scores(U * singular)
        return self.keep_loadings(U, singular)

    def keep_scores(self, scores: NDArray) -> None:
        """Write the scores (n, k), in the order of the site's own file."""
        with score_file(self.node.scores, *scores.shape) as keep:
            keep(scores if self.table.places is None else scores[self.table.places])

    def keep_loadings(self, U: NDArray, singular: NDArray) -> float:
        """Write ``X_i' U / s``; the energy of this party's columns that the directions ``U`` (n, k) leave."""
        projected = self.block.X.T @ U
        if self.node.loadings:
            held = singular > 0
            components = np.where(held, projected / np.where(held, singular, 1.0), 0.0).T
            own = Loadings(components, self.block.mean, self.block.scale, run_digest(U, singular), self.table.columns)
            own.save(self.node.loadings)
        return self.block.energy - float(np.vdot(projected, projected))

    def _about(self) -> dict[str, Any]:
        return {**super()._about(), "columns": ""}  # the parties' column names differ
