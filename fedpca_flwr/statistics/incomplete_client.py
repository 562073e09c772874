"""`IncompleteClient`: what a party returns about rows with missing values, for the statistics of `incomplete`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, chunks
from fedpca_flwr.maths.factor_model import Factors, factor_sums, filled_by
from fedpca_flwr.maths.gaussian_em import Gaussian, expected_sums
from fedpca_flwr.maths.incomplete import FLOOR
from fedpca_flwr.maths.moments import pack, symmetric
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.statistics.incomplete_factors import unit_of
from fedpca_flwr.statistics.rows_client import RowsClient

ELEMENTS = 2**22
"""Of a chunk, each pattern of which is factored: larger ones have fewer patterns a row."""


class IncompleteClient(RowsClient):
    """Rows without any value have no part in any sum, and scores of zero."""

    def statistics(self, phase: str, asked: Fields) -> Fields:
        """As `PCAClient.statistics`, of the phases in `fedpca_flwr.statistics.incomplete` and `incomplete_factors`."""
        answers: dict[str, Callable[[Fields], Fields]] = {
            "observed": self.observed,
            "deviations": self.deviations,
            "expected": self.expected,
            "products": self.products,
            "project": self.project,
        }
        return answers[phase](asked)

    def observed(self, asked: Fields) -> Fields:
        """Rows, those without any value, the sums of what is observed of each feature, and how many rows that are.

        By a covariance, how many rows have both of two features instead.
        """
        empty, values, total = 0, np.zeros(self.data.shape[1]), np.zeros(self.data.shape[1])
        for chunk in chunks(self.data, ELEMENTS):
            seen = ~np.isnan(chunk)
            empty += int((~seen.any(axis=1)).sum())
            values += seen.sum(axis=0)
            total += np.where(seen, chunk, 0).sum(axis=0, dtype=np.float64)
        counts = {"values": values} if self.options.model == "factors" else {"pairs": pack(self._pairs())}
        return {"count": np.asarray(len(self.data)), "empty": np.asarray(empty), **counts, "sum": total}

    def _pairs(self) -> Array:
        d = self.data.shape[1]
        pairs = np.zeros((d, d))
        for chunk in chunks(self.data, ELEMENTS):
            seen = (~np.isnan(chunk)).astype(np.float64)
            pairs += seen.T @ seen
        return pairs

    def deviations(self, asked: Fields) -> Fields:
        """Sums of deviations from the centre, and of their squares, of what is observed."""
        shift, diagonal = np.zeros_like(asked["centre"]), np.zeros_like(asked["centre"])
        for chunk in chunks(self.data):
            deviations = np.nan_to_num(np.subtract(chunk, asked["centre"], dtype=np.float64))
            shift += deviations.sum(axis=0)
            diagonal += np.einsum("ij,ij->j", deviations, deviations)
        return {"shift": shift, "diagonal": diagonal}

    def expected(self, asked: Fields) -> Fields:
        """Expected deviations from a model's mean, and their products."""
        model = Gaussian(asked["mean"], symmetric(asked["covariance"], asked["mean"].size))
        try:
            sums = expected_sums(self.standardised(asked["centre"], unit_of(asked["spread"], scale=True)), model)
        except ValueError as error:
            raise ContractError(f"{SERVER}: 'covariance': {error}") from None
        return {"first": sums.first, "second": sums.second}

    def products(self, asked: Fields) -> Fields:
        """Expected deviations from the mean of a model of factors, and their products with its directions."""
        model = Factors(asked["mean"], asked["basis"], asked["variances"], float(asked["noise"]))
        if model.noise < FLOOR or model.variances.min() <= model.noise:
            raise ContractError(
                f"{SERVER}: 'noise' is {model.noise:.3g}, expected at least {FLOOR:.3g} and below all 'variances'"
            )
        unit = unit_of(asked["spread"], scale=self.options.scale)
        sums = factor_sums(self.standardised(asked["centre"], unit), model)
        return {
            "first": sums.first,
            "product": sums.product,
            "square": np.asarray(sums.square),
            "likelihood": np.asarray(sums.likelihood),
        }

    def standardised(self, centre: Array, unit: Array) -> Iterator[Array]:
        """Rows that have any value, chunk by chunk, less the centre and divided by the unit."""
        for chunk in chunks(self.data, ELEMENTS):
            rows = np.subtract(chunk, centre, dtype=np.float64) / unit
            yield rows[~np.isnan(rows).all(axis=1)]

    def centred(self, rows: Rows, asked: Fields) -> Iterator[Array]:
        """As `RowsClient.centred`, with what is expected of rows in place of missing values."""
        factors = asked.get("factors")
        covariance = None if factors is not None else symmetric(asked["covariance"], asked["mean"].size)
        for chunk in chunks(rows, ELEMENTS):
            deviations = np.subtract(chunk, asked["mean"], dtype=np.float64)
            yield filled_by(deviations, covariance, factors) / (asked["scale"] if asked["scale"].size else 1.0)
