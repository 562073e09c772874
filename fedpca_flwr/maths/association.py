r"""Association of a phenotype with each variant, from sums over people: linear regression, and logistic score test.

With covariates Z (n, q), whose first column is 1, the null model of a phenotype y has fitted values m and weights w:
Z b and 1 if it is linear, p = 1 / (1 + exp(-Z b)) and p (1 - p) if it is logistic. A variant x then has

.. math:: u = x'(y - m), \quad v = x'Wx - x'WZ (Z'WZ)^{-1} Z'Wx,

where u less x'WZ (Z'WZ)^{-1} Z'(y - m), which is 0 at the fitted b, is the score. The effect is u / v: exact least
squares if linear, one step from 0 if logistic. Everything is a sum over people, so that parties add it up.

Adding multiples of Z to x changes neither u nor v. So a variant may be centred by any number.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import dense_rows

MEDIAN_CHI_SQUARE = 0.4549364
"""Median of the chi-square distribution with one degree of freedom."""

MIN_SHARE = 1e-9
"""Share of x'Wx that covariates leave, below which they explain the variant; of covariates, the same of the others."""

MIN_RESIDUAL = 1e-24
"""Share of the phenotype's squares below which residuals are rounding, and the phenotype does not vary."""


class NullSums(NamedTuple):
    """Sums over people about the null model.

    Parameters
    ----------
    people : float
        Number of people.
    squares : float
        Squares of the residuals, (y - m)'(y - m).
    score : ndarray of shape (q,)
        Z'(y - m).
    information : ndarray of shape (q, q)
        Z'WZ.
    """

    people: float
    squares: float
    score: Array
    information: Array

    def root(self) -> Array:
        """Return the lower triangular L (q, q) with L L' = Z'WZ, or refuse collinear covariates.

        Returns
        -------
        ndarray of shape (q, q)
        """
        deviation = np.sqrt(np.diagonal(self.information))
        unit = np.where(deviation > 0, deviation, 1.0)
        if linalg.eigvalsh(self.information / unit / unit[:, None])[0] < MIN_SHARE:
            raise DataError(
                "of the covariates and scores some combination does not vary among the people with a phenotype: name "
                "fewer covariates, or run with fewer components"
            )
        root: Array = linalg.cholesky(self.information / unit / unit[:, None], lower=True) * unit[:, None]
        return root

    def step(self) -> tuple[Array, float]:
        """Return Newton's step (q,) of the coefficients, and twice the gain that it promises.

        Returns
        -------
        step : ndarray of shape (q,)
        decrement : float
        """
        step: Array = linalg.cho_solve((self.root(), True), self.score)
        return step, float(self.score @ step)


class VariantSums(NamedTuple):
    """Sums over people for each variant.

    Parameters
    ----------
    score : ndarray of shape (d,)
        x'(y - m).
    information : ndarray of shape (d,)
        x'Wx.
    cross : ndarray of shape (d, q)
        x'WZ.
    """

    score: Array
    information: Array
    cross: Array


def residuals(y: Array, Z: Array, coefficients: Array, *, logistic: bool) -> tuple[Array, Array]:
    """Return y - m (n,) and the weights w (n,) of a null model.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Phenotype; 0 and 1 if logistic.
    Z : ndarray of shape (n, q)
        Covariates, with a column of ones.
    coefficients : ndarray of shape (q,)
    logistic : bool

    Returns
    -------
    residual, weights : ndarray of shape (n,)
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of a server's odd coefficients: the answer is checked
        fitted = Z @ coefficients
        if not logistic:
            return y - fitted, np.ones(y.size)
        shares = 1 / (1 + np.exp(-fitted))
    return y - shares, shares * (1 - shares)


def variant_sums(
    blocks: Iterable[Any], people: NDArray[np.bool_], residual: Array, weights: Array, Z: Array
) -> VariantSums:
    """Sum residuals, squares and covariates over the people of a mask, for each variant.

    Parameters
    ----------
    blocks : iterable of ndarray of shape (m, d)
        Consecutive rows (`fedpca_flwr.maths.rows.centred_chunks`).
    people : ndarray of bool of shape (n,)
        Rows that count.
    residual, weights : ndarray of shape (people,)
    Z : ndarray of shape (people, q)

    Returns
    -------
    VariantSums
    """
    right, row, first = np.column_stack([residual, weights[:, None] * Z]), 0, 0
    products: Any = 0.0
    squares: Any = 0.0
    for block in blocks:
        for part in dense_rows(block):
            x = part[people[row : row + len(part)]]
            among = slice(first, first + len(x))
            products, squares = products + x.T @ right[among], squares + weights[among] @ np.square(x)
            row, first = row + len(part), first + len(x)
    return VariantSums(products[:, 0], squares, products[:, 1:])


def effects(null: NullSums, variants: VariantSums, *, logistic: bool) -> tuple[Array, Array]:
    """Return effect and standard error of each variant; NaN where covariates explain the variant.

    Parameters
    ----------
    null : NullSums
        Sums at the fitted coefficients.
    variants : VariantSums
    logistic : bool

    Returns
    -------
    beta, se : ndarray of shape (d,)
    """
    root = null.root()
    explained = linalg.solve_triangular(root, variants.cross.T, lower=True)
    rest = linalg.solve_triangular(root, null.score, lower=True)
    v = variants.information - np.einsum("ij,ij->j", explained, explained)
    v = np.where(v > MIN_SHARE * variants.information, v, np.nan)
    u = variants.score - rest @ explained
    beta = u / v
    if logistic:
        return beta, 1 / np.sqrt(v)
    squares = null.squares - rest @ rest - beta * u
    return beta, np.sqrt(squares.clip(min=0.0) / degrees(null.people, null.score.size) / v)


def degrees(people: float, covariates: int) -> float:
    """Return the degrees of freedom of the residuals of a linear model with one variant.

    Parameters
    ----------
    people : float
        Number of people.
    covariates : int
        Number of columns of Z.

    Returns
    -------
    float
    """
    return people - covariates - 1


def inflation(statistics: Array) -> float:
    """Return the genomic inflation: the median of squared statistics over the one expected without any association.

    Parameters
    ----------
    statistics : ndarray of shape (d,)
        T or normal statistics; NaN is left out.

    Returns
    -------
    float
        Lambda; near 1 where only few variants are associated.
    """
    return float(np.nanmedian(statistics**2) / MEDIAN_CHI_SQUARE)


def p_values(statistic: Array, degrees_of_freedom: float | None) -> Array:
    """Return two-sided p values of T statistics, or of normal ones where there are no degrees of freedom.

    Parameters
    ----------
    statistic : ndarray of shape (d,)
    degrees_of_freedom : float, optional

    Returns
    -------
    ndarray of shape (d,)
    """
    from scipy import special  # a run needs none of it

    below = -np.abs(statistic)
    values: Array = special.ndtr(below) if degrees_of_freedom is None else special.stdtr(degrees_of_freedom, below)
    return 2 * values
