"""What a party of P-COV returns about its own rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.loadings import Loadings
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows
from fedpca_flwr.maths.centred import dense_rows
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.site.odd_rows import OddRows, outlier_file
from fedpca_flwr.statistics.last_round import told_count
from fedpca_flwr.statistics.own_adjustment import OwnAdjustment, covariate_places
from fedpca_flwr.statistics.rows_client import RowsClient

from .script import PooledOptions


class PooledCovarianceClient(RowsClient):
    """Sends the moments of its rows.

    In the last round it adjusts its rows as the run does, and judges each of them where the run has limits for that.
    """

    options: PooledOptions
    odd: OddRows | None = None

    @property
    def exposes(self) -> str:
        return "distribution" if self.options.tells_more else self.card.exposes

    @property
    def within(self) -> bool:
        return self.options.within

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Of the covariates."""
        return covariate_places(self.options.covariates, self.site.table)

    def about(self) -> dict[str, Any]:
        told = {"covariates": " ".join(map(str, self.places.tolist()))} if self.places.size else {}
        return {**super().about(), **told}

    def require_ready(self) -> None:
        super().require_ready()
        assert self.places is not None  # or it was refused

    def statistics(self, phase: str, asked: Fields) -> Any:
        if phase == "harmonised":
            return {"scatter": self._adjusted(asked).scatter()}
        return super().statistics(phase, asked)

    def centred(self, rows: Rows, asked: Fields) -> Iterator[Any]:
        adjusted = self.options.adjusts
        for centred in self._adjusted(asked).centred(rows) if adjusted else super().centred(rows, asked):
            if self.odd is not None:
                for part in dense_rows(centred):
                    self.odd.add(part)
            yield centred

    def squared_error(self, asked: Fields) -> float:
        if not self.options.adjusts:
            return super().squared_error(asked)
        return self._adjusted(asked).squared_error(self.loadings(asked))

    @property
    def writes_scores(self) -> bool:
        return super().writes_scores or self.odd is not None

    def own_loadings(self, asked: Fields, components: Array) -> Loadings:
        if not self.options.adjusts:
            return super().own_loadings(asked, components)
        return self._adjusted(asked).loadings(components, self.site.table.columns)

    def project(self, asked: Fields) -> Fields:
        if "variances" not in asked:
            return super().project(asked)
        components, variances, limits = asked["components"], asked["variances"], asked.get("limits", np.empty(0))
        if len(components) != variances.size:
            raise ContractError(f"{SERVER}: it sent {variances.size} variances of {len(components)} components")
        with outlier_file(self.site.node.scores, limits) as stream:
            self.odd = OddRows(components, variances, limits, len(self.data), stream)
            reply = super().project(asked)
        counts = [told_count(int(count), len(self.data), self.site.node.min_rows) for count in self.odd.above]
        return {**reply, "above": np.array(counts), "fourth": self.odd.fourth}

    def _adjusted(self, asked: Fields) -> OwnAdjustment:
        if self.transport.sums_only and self.options.harmonise == "variances":
            said = b"".join(np.ascontiguousarray(asked[name]).tobytes() for name in ("slopes", "spread"))
            self.site.permit_slopes(self.card.split, hashlib.sha256(said).hexdigest())
        return OwnAdjustment(self.own, self.places, self.within, asked)
