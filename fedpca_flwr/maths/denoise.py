r"""The eigenpairs behind a noisy scatter matrix, when the noise is symmetric with a known deviation.

Everything here uses only what was released: post-processing, which costs no privacy.

For a matrix of size m with noise of deviation :math:`\tau` off the diagonal, the noise alone has eigenvalues up to
:math:`2q, q = \tau \sqrt{m}`. An eigenvalue :math:`\lambda > q` shows up as :math:`\theta = \lambda + q^2 / \lambda`,
one below :math:`q` not at all (Baik, Ben Arous and Péché 2005; Benaych-Georges and Nadakuditi 2011, theorem 2.1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs
from fedpca_flwr.maths.moments import unpack

Array = NDArray[np.float64]

DEVIATIONS = 2.0
"""A coordinate is dropped when its noisy sum of squares is below so many standard deviations of its noise."""


TRACY_WIDOM = 2.02
"""The noise's largest eigenvalue, less 2q and over q m^(-2/3), is below this in 99 of 100 cases (Tracy and Widom 1996).
"""


class Denoised(NamedTuple):
    """What a noisy scatter tells.

    Attributes
    ----------
    pairs : Eigenpairs
        With eigenvalues as they are without the noise.
    total : float
        Estimate of the trace.
    detectable : int
        How many of the pairs the noise alone does not explain.
    kept : int
        How many coordinates were not dropped.
    """

    pairs: Eigenpairs
    total: float
    detectable: int
    kept: int


def denoised(scatter: Array, d: int, k: int, deviation: float, *, drop: bool) -> Denoised:
    """The k leading eigenpairs behind a noisy scatter.

    Parameters
    ----------
    scatter : ndarray of shape (d (d + 1) / 2,)
        Packed triangle; noise of ``deviation`` on the diagonal, ``deviation / sqrt(2)`` off it.
    d, k : int
    deviation : float
        In squared units of the data.
    drop : bool
        Leave out coordinates that do not stand out of the noise (at least k stay).
    """
    matrix = unpack(scatter, d)
    diagonal = np.diagonal(matrix)
    kept = np.arange(d)
    if drop:
        order = np.argsort(-diagonal, kind="stable")
        above = int((diagonal > DEVIATIONS * deviation).sum())
        kept = np.sort(order[: max(k, above)])
    noisy = leading_eigenpairs(np.asfortranarray(matrix[np.ix_(kept, kept)]), k)
    edge, whole = (deviation * np.sqrt(size / 2) for size in (len(kept), d))
    # which features stay depends on the noise, but no part of its matrix has a larger eigenvalue than all (Cauchy)
    detectable = int((noisy.values > whole * (2 + TRACY_WIDOM * d ** (-2 / 3))).sum())
    vectors = np.zeros((d, k))
    vectors[kept] = noisy.vectors
    values = without_noise(noisy.values, edge)
    following = float(without_noise(np.array(noisy.following), edge))
    total = max(float(diagonal.sum()), float(values.sum()))
    return Denoised(Eigenpairs(values, vectors, following), total, detectable, len(kept))


def without_noise(theta: Array, edge: float) -> Array:
    """The eigenvalues behind noisy ones: the inverse of the map above; half of those that the noise explains.

    Never negative: the matrix behind is positive semidefinite.
    """
    theta = theta.clip(min=0.0)
    return (theta + np.sqrt((theta - 2 * edge).clip(min=0.0)) * np.sqrt(theta + 2 * edge)) / 2
