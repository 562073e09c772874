"""`IncompleteClient`: what a party returns about rows with missing values, for the statistics of `incomplete`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, chunks
from fedpca_flwr.maths.gaussian_em import Gaussian, expected_sums
from fedpca_flwr.maths.incomplete import filled
from fedpca_flwr.maths.moments import pack, symmetric
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.statistics.rows_client import RowsClient

ELEMENTS = 2**22
"""Of a chunk, each pattern of which is factored: larger ones have fewer patterns a row."""


class IncompleteClient(RowsClient):
    """Rows without any value have no part in any sum, and scores of zero."""

    def statistics(self, phase: str, asked: Fields) -> Fields:
        """As `PCAClient.statistics`, of the phases in `fedpca_flwr.statistics.incomplete`."""
        answers: dict[str, Callable[[Fields], Fields]] = {
            "observed": self.observed,
            "deviations": self.deviations,
            "expected": self.expected,
            "project": self.project,
        }
        return answers[phase](asked)

    def observed(self, asked: Fields) -> Fields:
        """Rows, those without any value, how many have both of two features, and the sums of what is observed."""
        d = self.data.shape[1]
        empty, pairs, total = 0, np.zeros((d, d)), np.zeros(d)
        for chunk in chunks(self.data, ELEMENTS):
            seen = ~np.isnan(chunk)
            empty += int((~seen.any(axis=1)).sum())
            pairs += seen.T.astype(np.float64) @ seen.astype(np.float64)
            total += np.where(seen, chunk, 0).sum(axis=0, dtype=np.float64)
        return {
            "count": np.asarray(len(self.data)),
            "empty": np.asarray(empty),
            "pairs": pack(pairs),
            "sum": total,
        }

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
            sums = expected_sums(self.standardised(asked["centre"], asked["spread"]), model)
        except ValueError as error:
            raise ContractError(f"{SERVER}: 'covariance': {error}") from None
        return {"first": sums.first, "second": sums.second}

    def standardised(self, centre: Array, spread: Array) -> Iterator[Array]:
        """Rows that have any value, chunk by chunk, less the centre and divided by the spread."""
        unit = np.where(spread > 0, spread, 1.0)
        for chunk in chunks(self.data, ELEMENTS):
            rows = np.subtract(chunk, centre, dtype=np.float64) / unit
            yield rows[~np.isnan(rows).all(axis=1)]

    def centred(self, rows: Rows, asked: Fields) -> Iterator[Array]:
        """As `RowsClient.centred`, with what is expected of rows in place of missing values."""
        covariance = symmetric(asked["covariance"], asked["mean"].size)
        for chunk in chunks(rows):
            yield filled(np.subtract(chunk, asked["mean"], dtype=np.float64), covariance) / (
                asked["scale"] if asked["scale"].size else 1.0
            )
