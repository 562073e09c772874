"""A party's rows about a centre that the server chose.

With n rows of mean m and scatter S, the scatter about a centre c is ``S + n (m - c)(m - c)'``. So rows are centred by
their own mean, wherever c lies, and c only meets their sums. If c were subtracted from each row, a number as large as
2^53 would round away all values of a row that are below some threshold.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import blas

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import Columns, gram_product
from fedpca_flwr.maths.moments import Head, Moments, centre_rows, head_and_diagonal, scale_columns, unpack
from fedpca_flwr.maths.rows import Rows, to_array
from fedpca_flwr.strategies.personalised.stiefel import transpose

MAX_SQUARED_DISTANCE = 1e300  # to a centre, so that no product of a row with it is infinite
SHIFT_ROUNDING = 64 * np.finfo(np.float64).eps  # share of a shift, for each feature, up to which a rest is rounding
MIN_ENTRY_SHARE = 1e-100  # of a column's largest: smaller numbers are taken for zero, as products may be rounded


@dataclass(frozen=True)
class FormedScatter:
    """Scatter of a party's rows about their own mean, in place of the rows where many columns meet the scatter."""

    matrix: Array  # (d, d), of which the lower triangle is read
    rows: int  # number of rows n


@dataclass(frozen=True)
class LocalRows:
    """A party's rows, less a centre c that the server chose."""

    centred: Array | Columns | FormedScatter  # rows (n, d) less their own mean m, an array if n <= d, or their scatter
    shift: Array  # sqrt(n) (m - c), (d,): as a further row it makes the scatter that about c

    @cached_property
    def within(self) -> float:
        """Trace of the scatter of the rows about their own mean: the sum of the squared distances."""
        rows = self.centred
        if isinstance(rows, FormedScatter):
            return float(np.trace(rows.matrix))
        return rows.energy if isinstance(rows, Columns) else float(np.vdot(rows, rows))

    @property
    def energy(self) -> float:
        """Trace of the scatter of the rows about the centre."""
        return self.within + float(self.shift @ self.shift)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        rows = self.centred
        return rows.rows if isinstance(rows, FormedScatter) else rows.shape[0], self.shift.size

    @property
    def factor(self) -> Array | None:
        """Array F (n + 1, d) with F.T @ F the scatter about the centre; None if the rows are not held as an array."""
        return np.vstack([self.centred, self.shift]) if isinstance(self.centred, np.ndarray) else None

    @property
    def scatter(self) -> Array | None:
        """Scatter (d, d) of the rows about the centre, in its lower triangle; None if it is not formed."""
        if not isinstance(self.centred, FormedScatter):
            return None
        return np.asfortranarray(self.centred.matrix + np.outer(self.shift, self.shift))

    def times(self, X: Array) -> Array:
        """Multiply the scatter (d, d) of the rows about the centre with blocks of columns X (..., d, r)."""
        rows = self.centred
        if isinstance(rows, FormedScatter):  # all blocks side by side: one product reads the matrix once
            side_by_side = np.moveaxis(X, -2, 0)
            flat = blas.dsymm(1.0, rows.matrix, side_by_side.reshape(X.shape[-2], -1), lower=1)
            product = np.ascontiguousarray(np.moveaxis(flat.reshape(side_by_side.shape), 0, -2))
        elif isinstance(rows, Columns):
            product = np.stack([gram_product(rows.T, block) for block in X.reshape(-1, *X.shape[-2:])]).reshape(X.shape)
        else:
            product = transpose(rows) @ (rows @ X)
        product += self.shift[:, None] * (self.shift @ X)[..., None, :]
        return product

    def times_scaled(self, V: Array) -> Array:
        """Multiply the scatter with columns of very large or small numbers, without overflow within the product.

        Each column is scaled by a power of 2 before, and back after the product, which is infinite where it exceeds
        float64.
        Shapes: V (d, b) -> (d, b).
        """
        sizes = np.abs(V)
        if sizes.min() > MIN_ENTRY_SHARE and sizes.max() < 1 / MIN_ENTRY_SHARE:
            return self.times(V)
        block, exponents = scale_columns(np.where(sizes > MIN_ENTRY_SHARE * sizes.max(axis=0), V, 0.0))
        with np.errstate(over="ignore"):
            return np.ldexp(self.times(block), exponents)

    def gram(self, U: Array) -> Array:
        """Compute ``U' T U`` for columns U (d, k), where T is the scatter of the rows about the centre."""
        shift_scores = self.shift @ U
        if isinstance(self.centred, FormedScatter):  # the shift by itself: a far one would take the digits of the rest
            within = U.T @ blas.dsymm(1.0, self.centred.matrix, U, lower=1)
        else:
            scores = self.centred @ U
            within = scores.T @ scores
        return np.asarray(within + np.outer(shift_scores, shift_scores))

    def residual_energy(self, U: Array) -> float:
        """Sum the squared distances of the rows about the centre to the span of orthonormal U (d, k), not below 0.

        The shift counts by its distance to the span, not by a difference of squares, and not where the distance may be
        rounding: a far centre would show the last bits of U, which depend on more than the moments of the rows.
        """
        rows = self.centred
        if isinstance(rows, FormedScatter):
            explained = float(np.vdot(U, blas.dsymm(1.0, rows.matrix, U, lower=1)))
        else:
            explained = float(np.square(rows @ U).sum())
        rest = self.shift - U @ (self.shift @ U)
        beyond, limit = float(rest @ rest), (SHIFT_ROUNDING * self.shift.size) ** 2 * float(self.shift @ self.shift)
        return max(0.0, self.within - explained) + (beyond if beyond > limit else 0.0)


def centre_local_rows(rows: Rows, centre: Array, remainder: Array, head: Head | None = None) -> LocalRows:
    """Centre a party's rows by their own mean, and record the shift from there to ``centre + remainder``.

    ``head`` is the number and mean of the rows, if known; ``remainder`` is what float64 rounds off the centre. Raise
    ContractError if the centre is so far away that squares would overflow, whatever the rows are.
    Shapes: rows (n, d), centre, remainder (d,).
    """
    n, d = rows.shape
    if n > d:
        head = head or head_and_diagonal(rows)[0]
        centred: Array | Columns = Columns(rows, head.mean, head.remainder, np.ones(d), np.zeros(d, dtype=bool))
    elif n:
        head, centred = centre_rows(to_array(rows))
    else:  # zero means
        head, centred = Head(0, np.zeros(d), np.zeros(d)), np.empty((0, d))
    return LocalRows(centred, _shift(n, head, centre, remainder))


def centre_local_moments(moments: Moments, centre: Array, remainder: Array) -> LocalRows:
    """Make a party's scatter about ``centre + remainder`` from the moments of its rows.

    Raise ContractError if the centre is so far away that squares would overflow, whatever the rows are.
    Shapes: centre, remainder (d,).
    """
    scatter = FormedScatter(unpack(moments.scatter, moments.n_features), int(moments.count))
    return LocalRows(scatter, _shift(scatter.rows, moments.head, centre, remainder))


def _shift(n: int, head: Head, centre: Array, remainder: Array) -> Array:
    """Return the vector sqrt(n) (m - c) for n rows of mean m and a centre c; raise ContractError if c is too far."""
    with np.errstate(over="ignore", invalid="ignore"):
        shift: Array = np.sqrt(n) * ((head.mean - centre) + (head.remainder - remainder))
        too_far = not float(shift @ shift) < MAX_SQUARED_DISTANCE
    if too_far:
        raise ContractError("the server tells a mean so far from this site's that the squares of distances overflow")
    return shift
