"""What a stage of a method for rows can do: hooks at a party and at the server, and how a party projects its rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, centred_chunks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution
from fedpca_flwr.protocol.card import Stage
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Ask, Total
from fedpca_flwr.site.vault import Vault

if TYPE_CHECKING:
    from fedpca_flwr.questions.row_limits import Pooled
    from fedpca_flwr.questions.rows import Pooling
    from fedpca_flwr.questions.rows_run import Fitting, RowsClient, RowsStrategy

Closing = Generator[Ask, Any, Fields]
"""Questions between the fit and the last round; returns what the last round says besides."""


@dataclass(frozen=True)
class Projection:
    """How a party projects its own rows: ``(rows - mean) / scale @ components.T``.

    Parameters
    ----------
    vault : Vault
        The moments of the rows that take part.
    components : ndarray of shape (k, d)
        With orthonormal rows.
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or (0,)
        Empty where features are not divided by anything.
    columns : str
        Digest of the columns' names.
    """

    vault: Vault
    components: Array
    mean: Array
    scale: Array
    columns: str

    def centred(self, rows: Rows) -> Iterator[Any]:
        """Centre and scale rows (n, d), chunk by chunk."""
        return centred_chunks(rows, self.mean, self.scale if self.scale.size else None)

    def scores(self, rows: Rows) -> Iterator[Array]:
        """Project rows (n, d) to scores (n, k), chunk by chunk."""
        for centred in self.centred(rows):
            yield centred @ self.components.T

    def squared_error(self) -> float:
        """Return what the projection leaves of the squares of the rows that take part, from their moments."""
        return self.vault.squared_error(self.mean, self.scale, self.components)

    def loadings(self) -> Loadings:
        """Return what projects new rows."""
        scale = self.scale if self.scale.size else np.ones_like(self.mean)
        return Loadings(self.components, self.mean, scale, columns=self.columns)


class Observer:
    """Watches a party's rows in the last round, and may add to its reply."""

    def passing(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Watch chunks of centred rows, and give each on."""
        return chunks

    def reply(self) -> Fields:
        """Return what the party's reply holds besides count and squared error."""
        return {}


class RowsStage(Stage):
    """A stage of methods for rows. What it does not write does nothing."""

    scales: bool = False  # whether it divides features by a deviation of its own

    # A party

    def ready(self, party: RowsClient) -> None:
        """Refuse, before anything is answered, what the party's rows do not allow."""

    def about(self, party: RowsClient) -> dict[str, Any]:
        """Return what every reply says of the party besides."""
        return {}

    def take(self, party: RowsClient, asked: Fields) -> None:
        """Keep what later answers need of a question."""

    def rows(self, party: RowsClient, rows: Rows) -> Rows:
        """Return the rows that the method sees."""
        return rows

    def projection(self, party: RowsClient, asked: Fields, projection: Projection) -> Projection:
        """Return how the party projects its own rows."""
        return projection

    def observer(self, party: RowsClient, asked: Fields, projection: Projection, files: ExitStack) -> Observer | None:
        """Return what watches the rows in the last round; ``files`` closes what it writes to."""
        return None

    # The server

    def head(self) -> Pooled | None:
        """Return count, mean and variances of all rows where the stage has them: then they are not asked for."""
        return None

    def moments(self, run: RowsStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        """Return the moments of all rows that the method sees, from those that ``pooled`` asks for."""
        return pooled()

    def fit(self, run: RowsStrategy, fitting: Fitting) -> Fitting:
        """Run the method, and the stage's own questions before it."""
        return fitting

    def model(self, run: RowsStrategy, model: PCAModel, solution: Solution) -> tuple[PCAModel, Solution]:
        """Return the model, and what the parties project with, in the unit of the data."""
        return model, solution

    def closing(self, run: RowsStrategy, model: PCAModel, asked: Fields) -> Closing:
        """Ask between the fit and the last round, whose question has what is ``asked`` so far."""
        return {}
        yield

    def conclude(self, model: PCAModel, fit: Total) -> None:
        """Note in the model what the last round told."""
