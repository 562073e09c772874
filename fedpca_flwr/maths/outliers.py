r"""How far a row lies from the others within the components (Hotelling's T squared), and how far off them (SPE, Q).

With scores t of variances l and the part e of a centred row that the components leave out::

    T2 = sum_i t_i^2 / l_i,    SPE = |e|^2

For a new normal row, with k components of n rows, T2 n (n - k) / (k (n^2 - 1)) has the distribution F(k, n - k) (Tracy,
Young and Mason 1992), and SPE nearly that of :math:`g \chi^2_h` (Box 1954), where with the left-out eigenvalues
:math:`\theta_1 = \sum l, \theta_2 = \sum l^2` it is :math:`h = \theta_1^2 / \theta_2` and :math:`g = \theta_1 / h`: the
variance left out, and over how many directions it is spread.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas
from scipy.special import fdtri, gammaincinv  # scipy.stats takes half a second to import

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs

NEGLIGIBLE = 1e-10
"""A smaller share of the variance that is left out is rounding, and has no directions."""


ROUNDING = 1e-13
"""Share of the first variance below which another is none."""


def left_out_directions(matrix: Array, pairs: Eigenpairs) -> float | None:
    """Over how many directions the variance is spread that the pairs leave out; None where they leave nothing.

    Parameters
    ----------
    matrix : ndarray of shape (d, d), Fortran order
        The scatter; its lower triangle is read, the upper one is zero. What is in it is lost.
    pairs : Eigenpairs
    """
    total = float(np.trace(matrix))
    if total <= 0:
        return None
    factor = np.asfortranarray(pairs.vectors * np.sqrt(pairs.values.clip(min=0.0)))
    rest = blas.dsyrk(-1.0, factor, beta=1.0, c=matrix, lower=1, overwrite_c=1)
    rest /= total  # its squares are fourth powers of the data's unit
    lower, diagonal = rest.ravel(order="K"), np.diagonal(rest)
    first = float(diagonal.sum())
    if first <= NEGLIGIBLE:
        return None
    return first**2 / float(2 * (lower @ lower) - diagonal @ diagonal)


def t_squared(scores: Array, variances: Array) -> Array:
    """T2 (n,) of scores (n, k)."""
    distances: Array = np.sum(scores**2 / variances, axis=1)
    return distances


def t_squared_limit(k: int, n: int, level: float) -> float:
    """What T2 of a new row exceeds with probability 1 - ``level``."""
    return float(k * (n**2 - 1) / (n * (n - k)) * fdtri(k, n - k, level))


def spe_limit(left_out: float, directions: float, level: float) -> float:
    """The same of SPE, of which ``left_out`` is the expectation."""
    return float(left_out / directions * 2 * gammaincinv(directions / 2, level))


def t_squared_contributions(centred: Array, components: Array, variances: Array) -> Array:
    """What each feature adds to T2 (n, d), which may be negative (Westerhuis, Gurden and Smilde 2000)."""
    scores = centred @ components.T
    contributions: Array = centred * ((scores / variances) @ components)
    return contributions
