"""One party's rows about a centre that somebody else chose, as their count, mean and scatter have them.

With n rows of mean m and scatter S, the scatter about a centre c is ``S + n (m - c)(m - c)'``. So rows are centred by their
own mean, wherever c lies, and c meets what they add up to: subtracted from each row, a number as large as 2^53 would
round away what is below some threshold of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows
from fedpca_flwr.maths.columns import Columns, gram_product
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.maths.stiefel import transposed

UNITS = 1000
"""A column of a block is multiplied by no other powers of two than those from -1000 to 1000."""


@dataclass(frozen=True)
class OwnRows:
    """The rows of a party about a centre.

    Attributes
    ----------
    centred : ndarray or Columns of shape (n, d)
        Rows about their own mean; one array where they are not more than the features: then products do not suffice.
    shift : ndarray of shape (d,)
        sqrt(n) (m - c): one further row, with which the others have the scatter about c.
    energy : float
        Trace of that scatter.
    """

    centred: Array | Columns
    shift: Array
    energy: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.centred.shape[0], self.centred.shape[1]

    @property
    def factor(self) -> Array | None:
        """An array F (n + 1, d) with the scatter F'F, where the rows are one array."""
        return None if isinstance(self.centred, Columns) else np.vstack([self.centred, self.shift])

    def times(self, X: Array) -> Array:
        """The scatter times ``X`` (..., d, r), whose columns may be of any size: no product of a single row overflows."""
        largest = np.abs(X).max(axis=-2, keepdims=True)
        unit = np.exp2(np.clip(np.frexp(largest)[1], -UNITS, UNITS))
        X = X / unit
        found = self._about_mean(X) + self.shift[:, None] * (self.shift @ X)[..., None, :]
        with np.errstate(over="ignore"):
            scaled: Array = found * unit
        return scaled

    def gram(self, U: Array) -> Array:
        """``U' T U`` (k, k) for the scatter T and ``U`` (d, k)."""
        scores, moved = self.centred @ U, self.shift @ U
        return np.asarray(scores.T @ scores + np.outer(moved, moved))

    def left_by(self, U: Array) -> float:
        """The sum of squares, a number from 0, that a projection to the orthonormal ``U`` (d, k) leaves."""
        kept = float(np.square(self.centred @ U).sum()) + float(np.square(self.shift @ U).sum())
        return max(0.0, self.energy - kept)

    def _about_mean(self, X: Array) -> Array:
        rows = self.centred
        if not isinstance(rows, Columns):
            return transposed(rows) @ (rows @ X)
        own = np.stack([gram_product(rows.T, block) for block in X.reshape(-1, *X.shape[-2:])])
        return own.reshape(X.shape)


def own_rows(rows: Rows, centre: Array, remainder: Array, known: tuple[Head, Array] | None = None) -> OwnRows:
    """Rows (n, d) about ``centre + remainder``, each (d,).

    Parameters
    ----------
    rows : rows of shape (n, d)
    centre, remainder : ndarray of shape (d,)
        In two floats.
    known : Head and ndarray of shape (d,), optional
        Count and mean of these rows, and the diagonal of their scatter.

    Raises
    ------
    ContractError
        Where the squares of the distances to the centre add up to no number.
    """
    n, d = rows.shape
    head, diagonal = known or (head_and_diagonal(rows) if n else (Head(0, np.zeros(d), np.zeros(d)), np.zeros(d)))
    with np.errstate(over="ignore", invalid="ignore"):
        shift = np.sqrt(n) * ((head.mean - centre) + (head.remainder - remainder))
        energy = float(diagonal.sum() + shift @ shift)
    if not np.isfinite(energy):
        raise ContractError("the server tells a mean so far from this site's that the squares of distances overflow")
    centred = Columns(rows, head.mean, head.remainder, np.ones(d), np.zeros(d, dtype=bool))
    return OwnRows(centred if n > d else centred.X, shift, energy)
