"""VERTICAL-SCORES: scores of new rows, by the loadings that the parties kept of an earlier run.

With V_i a party's own loadings, the scores of rows X = [X_1, ..., X_p] that came later are ``sum X_i V_i'``, once each
party has centred and scaled its columns as it did in that run. Every party sends its part (n x k), the server adds
them, and all get the sum for their files `scores`. Nothing is fitted: the model holds the scores, and how much of the
new rows' energy about the old means they hold.

Loadings are of one run where they hold the same digest of its scores.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from flwr.common import ndarrays_to_parameters
from numpy.typing import NDArray

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.loadings import Loadings
from fedpca_flwr.maths.columns import Block
from fedpca_flwr.model import PCAModel
from strategies.base import CountOptions, MethodCard, Reply
from strategies.columns import ABOUT_ROWS, ColumnsClient, ColumnsStrategy, summed


class ScoresOptions(CountOptions):
    """Options of VERTICAL-SCORES."""

    n_components: Count = 10  # type: ignore[assignment]
    """The first so many of the components that the loadings hold."""


CARD = MethodCard(
    name="vertical-scores",
    title="Scores of new rows",
    exact=True,
    result="of new rows, by the loadings that the parties kept of a run with `vertical`",
    rounds=2,
    upload="5, then n k",
    server_sees="each party's part of the scores",
    options=ScoresOptions,
    payloads={
        "rows": Payload(
            (
                *ABOUT_ROWS,
                Field("run", (), "uint64"),
                Field("components", (), "int64", kind="size"),
                Field("energy", ()),
            )
        ),
        "scores": Payload((Field("scores", ("n", "k")),)),
    },
    reference="paper 004, equation 10",
    split="columns",
    exposes="scores",
)


class VerticalScores(ColumnsStrategy):
    """VERTICAL-SCORES."""

    card = CARD
    options: ScoresOptions

    def n_components(self, rows, features):
        return self.options.n_components  # nothing is fitted: one row is enough

    def met(self, replies: list[Reply]) -> None:
        witness = replies[0]
        for reply in replies:
            if reply.fields["run"] != witness.fields["run"]:
                raise ConfigError(
                    f"{reply.sender}: its loadings are of another run than those of {witness.sender}; name in every "
                    "node-config the 'loadings' of one run"
                )
        held = int(witness.fields["components"])
        self._k = min(self.options.n_components, held)
        self._notes = [] if self._k == held else [f"the first {self._k} of the {held} components of the loadings"]

    def weigh(self, total):
        if not 0 < total < np.inf:
            raise DataError("the new rows have no energy about the means of the fitted ones: all are equal to these")
        self._total = total

    def ask(self):
        return "scores", [np.asarray(self._k)], {"k": self._k}

    def aggregate(self, replies, *, last):
        return self.take(summed(replies))

    def take(self, fields: Fields):
        """The model, from the sum over the parties."""
        log = self.history(None, self._notes)
        self.model = PCAModel.of_new_scores(fields["scores"], total=self._total, features=sum(self._widths), log=log)
        return ndarrays_to_parameters([fields["scores"]]), {}

    def projected(self, replies: list[Reply]) -> None:
        return None  # nothing was fitted that could be wrong


class VerticalScoresClient(ColumnsClient):
    """Returns its part of the scores."""

    @cached_property
    def own(self) -> Loadings:
        """What this party kept of the earlier run."""
        path, width = self.node.loadings, self.data.shape[1]
        if not path:
            raise ConfigError(
                "this site's node-config names no 'loadings': the file that a run with the method 'vertical' wrote here"
            )
        try:
            own = Loadings.load(path)
        except ContractError as error:
            raise ContractError(
                "the file of this site's 'loadings' is missing or not whole; see its own log", local=str(error)
            ) from None
        if own.mean.size != width:
            raise DataError(f"this site's new rows have {width} columns, its loadings are of {own.mean.size}")
        if self.table.columns and own.columns not in ("", self.table.columns):
            raise DataError(
                "this site's new rows have other column names, or another order of them, than the rows that its "
                "loadings are of"
            )
        if not own.run:
            raise ConfigError("this site's loadings do not say of which run they are; fit again with 'vertical'")
        return own

    @cached_property
    def block(self) -> Block:
        return Block(self.own.scaled(self.data), self.own.mean, self.own.scale)

    def about_rows(self) -> Fields:
        told = {"run": np.asarray(self.own.run, np.uint64), "components": np.asarray(len(self.own.components))}
        return {**super().about_rows(), **told}

    def part(self, phase: str, received: list[NDArray]) -> Fields:
        return {"scores": self.block.X @ self.own.components[: int(received[0])].T}

    def project(self, received: list[NDArray]) -> float:
        self.keep_scores(received[0])
        return 0.0
