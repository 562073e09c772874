"""The party's half of SUB-IT."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.factors import truncated, truncated_moments
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.statistics.moment_fields import head_fields
from fedpca_flwr.statistics.rows_client import RowsClient

from .script import SubspaceOptions


class SubspaceIterationClient(RowsClient):
    """Returns products of its own scatter with the blocks that it receives."""

    options: SubspaceOptions

    def statistics(self, phase: str, asked: Fields) -> Any:
        if phase == "sketch":
            return self._sketch()
        if phase == "refine":
            product = self._correction(asked["block"].astype(np.float64)).astype(self.options.wire)
            return {"product": product, **({"again": self._correction(asked["vectors"])} if "vectors" in asked else {})}
        return super().statistics(phase, asked)

    def first_block(self) -> Array:
        return random_block(self.data.shape[1], self.options.width(self.public), self.site.config.seed)

    @property
    def columns(self) -> int:
        return self.options.columns(self.public)

    def _sketch(self) -> Fields:
        rank = self.options.sketch_rank(self.public)
        factor = truncated_moments(self.own.moments(), rank) if self.own.formed else truncated(self.data, rank)
        factor = factor.filled()
        root = root_unit(factor.trace)
        rows, floor = (factor.rows / root).astype(np.float32), np.asarray(factor.floor)
        self.site.state["sketch"] = [rows, floor, root]
        head = head_fields(*self.own.head_and_diagonal())
        return {**head, "trace": np.asarray(factor.trace), "floor": floor, "rows": rows}

    def _correction(self, V: Array) -> Array:
        """What the sketch of this party's scatter gets wrong about a block, in the unit of that scatter."""
        kept, floor, root = self.site.state["sketch"]
        rows = kept.astype(np.float64) * root
        missed = self.own.times(V) - rows.T @ (rows @ V) - float(floor) * V
        return np.asarray(missed / float(root) ** 2)


def root_unit(trace: float) -> float:
    """The power of two in which the root of a scatter travels: float32 holds it, whatever the unit of the data."""
    return float(2.0 ** (np.frexp(trace)[1] // 2))
