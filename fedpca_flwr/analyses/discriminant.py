"""Linear discriminant analysis, where classes are columns of the rows: 1 in the rows of a class, else 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.analyses.blocks import Blocks, blocks, rows_of
from fedpca_flwr.analyses.kinds import of_moments
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.discriminant import discriminants
from fedpca_flwr.second_moments import Features, SecondMoments


@dataclass(frozen=True, eq=False)
class Discriminant:
    """A fitted linear discriminant analysis of c classes.

    Attributes
    ----------
    slopes : ndarray of shape (p, c)
    intercepts : ndarray of shape (c,)
    directions : ndarray of shape (p, at most c - 1)
        What tells the classes apart, the first one best.
    mean : ndarray of shape (p,)
    counts : ndarray of int of shape (c,)
        Rows of each class.
    features, classes : tuple of str
        Names; empty where the moments have none.
    """

    slopes: Array
    intercepts: Array
    directions: Array
    mean: Array
    counts: NDArray[np.int64]
    features: tuple[str, ...]
    classes: tuple[str, ...]

    def decision(self, X: ArrayLike) -> Array:
        """Log posterior of each class (n, c), but for a constant of each row ``X`` (n, p).

        Raises
        ------
        DataError
        """
        return rows_of(X, self.features, len(self.slopes)) @ self.slopes + self.intercepts

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Which of the classes each row is in (n,): its place in the list that the fit was given."""
        best: NDArray[np.intp] = self.decision(X).argmax(axis=1)
        return best

    def transform(self, X: ArrayLike) -> Array:
        """Scores in the discriminants' directions."""
        return (rows_of(X, self.features, len(self.slopes)) - self.mean) @ self.directions


@of_moments
def discriminant(moments: SecondMoments, classes: Features, features: Features | None = None) -> Discriminant:
    """Linear discriminant analysis with the classes' shares as priors, as scikit-learn's from 1.9 on (divisor n).

    Parameters
    ----------
    moments : SecondMoments
        Of rows in which each class is a column: 1 in its rows, else 0. Each row is in one class.
    classes : sequence of str or int
        These columns.
    features : sequence of str or int, optional
        By which they are told apart; without, by all others.

    Raises
    ------
    ConfigError, DataError
    """
    found = blocks(moments, classes, features)
    n = moments.n_samples
    counts = np.rint(n * found.mean_y).astype(np.int64)
    _require_classes(found, counts, n)
    told = discriminants(n, found.mean_x, found.S_xx, found.S_xy, counts / n)
    names = moments.names(found.x), moments.names(found.y)
    return Discriminant(*told, found.mean_x, counts, *names)


def _require_classes(found: Blocks, counts: NDArray[np.int64], n: int) -> None:
    """Refuse columns that are not 1 for the rows of a class, and 0 else, each row in one: their moments tell."""
    shares = counts / n
    expected = n * (np.diag(shares) - np.outer(shares, shares))
    fault = max(np.abs(n * found.mean_y - counts).max(), np.abs(found.S_yy - expected).max())
    if fault > 1e-6 * n or counts.sum() != n or counts.min() < 1 or n <= len(counts):
        raise DataError(
            "the columns of the classes are not each 1 in some rows and 0 in the others, every row in one class; code "
            "them so at every site"
        )
