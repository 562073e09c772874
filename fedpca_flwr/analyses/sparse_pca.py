r"""Sparse components of a covariance: unit vectors of largest variance with at most s loadings other than zero.

The largest variance is the largest of the leading eigenvalues of the covariances (s, s) of s features, their *support*
(Moghaddam, Weiss and Avidan 2006). Two numbers bound it: the leading eigenvalue of all features, and, since no
eigenvalue exceeds the largest row sum of absolute entries (Gershgorin), the largest sum, in a row, of the variance and
the s - 1 largest other absolute entries.

**Search.** From the leading eigenvector, and from rows of the covariance, steps of the truncated power iteration (Yuan
and Zhang 2013) give supports: multiply by the covariance, keep the s largest entries. Then a feature i of the support
is swapped for another, j, as long as that adds variance. With v the component, u what is left of v without i, scaled
to length 1, and a its variance, the swap gives at least the larger eigenvalue of

    [ a    c    ]      c = u^T C e_j
    [ c    C_jj ]

for all pairs (i, j) at once.

**Branch and bound.** A node is the supports that hold the features F and lie within F and G; it branches on a feature
of G that is in the support or is not. Of t features T of G that join F, the covariance is at most the larger eigenvalue
of ``[f b; b g]``: f is the leading eigenvalue of F, g a bound as above on that of T, and :math:`b^2` the sum of the
t largest sums of squares of a column of :math:`C_{FG}`. A node whose bound is no larger than the best variance so far
ends.

**The next component.** The scores of a component v are regressed out of all features, which leaves the covariance
:math:`C - C v v^T C / v^T C v` (Schur complement deflation, Mackey 2008). A component's variance there is what it adds
to the earlier ones: the adjusted variance of Zou, Hastie and Tibshirani (2006). Components need not be orthogonal.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import column_signs, leading_eigenpairs

MAX_EXACT_FEATURES = 30  # of so many features, at most, the best support is searched for by branch and bound
MAX_NODES = 50_000  # nodes after which that search ends: random covariances of 30 features took at most 6,000
ROW_STARTS = 30  # rows of the covariance, those of the largest bounds, from which supports begin
MAX_STEPS = 100  # steps of the power iteration, and swaps, from one start
MIN_GAIN = 1e-10  # share of a variance by which a larger one exceeds it: less is rounding


class SparseComponent(NamedTuple):
    """Unit vector of few loadings, with bounds on the variance of any component of as many loadings."""

    loadings: Array  # (d,), of length 1; the largest absolute loading is positive
    variance: float  # of the scores
    bound: float  # the smaller of both bounds on the variance of any component with as many loadings
    exact: bool  # no component with as many loadings has a larger variance, up to rounding


def sparse_component(C: Array, s: int) -> SparseComponent:
    """Compute the component with at most s loadings whose variance under the covariance C is largest, as far as found.

    Shapes: C (d, d), 1 <= s <= d.
    """
    pairs = leading_eigenpairs(np.asfortranarray(C), 1)
    sums = _largest_row_sums(np.abs(C), s)
    bound = min(float(pairs.values[0]), float(sums.max()))
    rows = np.argsort(-sums, kind="stable")[:ROW_STARTS]
    supports = [_power(C, weights, s) for weights in (pairs.vectors[:, 0], *C[rows])]
    support, variance = supports[0], 0.0
    for start in dict.fromkeys(map(tuple, supports)):
        candidate, larger = _swap(C, np.array(start))
        if larger > variance * (1 + MIN_GAIN):
            support, variance = candidate, larger
    exact = bound <= variance * (1 + MIN_GAIN)
    if not exact and len(C) <= MAX_EXACT_FEATURES:
        support, exact = _branch_and_bound(C, s, support, variance)
    support = np.sort(support)
    variance, vector = _leading_pair(C, support)
    loadings = np.zeros(len(C))
    loadings[support] = vector * column_signs(vector[:, None])
    return SparseComponent(loadings, variance, max(bound, variance), exact)


def deflate(C: Array, v: Array) -> Array:
    """Compute the covariance C (d, d) without what the scores of a component v (d,), of variance > 0, explain."""
    covariances = C @ v
    return C - np.outer(covariances, covariances) / (v @ covariances)


def _leading_pair(C: Array, support: NDArray[np.intp]) -> tuple[float, Array]:
    """Return the leading eigenvalue, and its vector, of the covariance of some features."""
    values, vectors = eigh(C[np.ix_(support, support)], check_finite=False)
    return float(values[-1]), vectors[:, -1]


def _largest_row_sums(A: Array, s: int) -> Array:
    """Return for each row of absolute entries (d, d) the sum of its diagonal and of its s - 1 largest other entries."""
    diagonal = np.diagonal(A)
    return np.asarray(diagonal + np.sort(A - np.diag(diagonal), axis=1)[:, len(A) - s + 1 :].sum(axis=1))


def _larger_eigenvalue(a: Array | float, b: Array | float, c: Array | float) -> Array:
    """Return the larger eigenvalue of each matrix ``[a c; c b]``."""
    return np.asarray((a + b) / 2 + np.hypot((a - b) / 2, c))


def _power(C: Array, weights: Array, s: int) -> NDArray[np.intp]:
    """Return the support at which the truncated power iteration from some weights (d,) of features ends."""
    support = np.arange(0)
    for _ in range(MAX_STEPS):
        largest = np.sort(np.argsort(-np.abs(weights), kind="stable")[:s])
        if np.array_equal(largest, support):
            break
        support, weights = largest, C[:, largest] @ weights[largest]
        weights = weights / (np.linalg.norm(weights) or 1.0)
    return support


def _swap(C: Array, support: NDArray[np.intp]) -> tuple[NDArray[np.intp], float]:
    """Swap a feature of a support for another as long as its variance grows; return the support and its variance."""
    variance, v = _leading_pair(C, support)
    for _ in range(MAX_STEPS):
        others = np.setdiff1d(np.arange(len(C)), support)
        rest = 1 - v**2
        removable = rest > MIN_GAIN  # else the component is one feature alone, without which nothing is left
        if not others.size or not removable.any():
            break
        remainder = (variance * (1 - 2 * v**2) + v**2 * np.diagonal(C)[support])[removable] / rest[removable]
        block = C[np.ix_(support, others)]
        cross = ((v @ block) - v[:, None] * block)[removable] / np.sqrt(rest[removable, None])
        bounds = _larger_eigenvalue(remainder[:, None], np.diagonal(C)[others], cross)
        i, j = np.unravel_index(bounds.argmax(), bounds.shape)
        candidate = np.append(np.delete(support, np.flatnonzero(removable)[i]), others[j])
        larger, vector = _leading_pair(C, candidate)
        if larger <= variance * (1 + MIN_GAIN):
            break
        support, variance, v = candidate, larger, vector
    return support, variance


def _branch_and_bound(C: Array, s: int, support: NDArray[np.intp], variance: float) -> tuple[NDArray[np.intp], bool]:
    """Return the best support, from one that is known, and whether the search ended before `MAX_NODES`."""
    A, features = np.abs(C), np.arange(len(C))
    nodes = [(features[:0], features)]
    for _ in range(MAX_NODES):
        if not nodes:
            return support, True
        inside, free = nodes.pop()
        t = s - inside.size
        if t == 0 or free.size == t:
            candidate = np.append(inside, free[:t])
            larger, _ = _leading_pair(C, candidate)
            if larger > variance * (1 + MIN_GAIN):
                support, variance = candidate, larger
            continue
        bound, vector = _leading_pair(C, np.append(inside, free))
        if inside.size:
            squares = np.sort(np.sum(A[np.ix_(inside, free)] ** 2, axis=0))[-t:].sum()
            within = min(bound, _largest_row_sums(A[np.ix_(free, free)], t).max())
            first, _ = _leading_pair(C, inside)
            bound = min(bound, float(_larger_eigenvalue(first, within, np.sqrt(squares))))
        if bound > variance * (1 + MIN_GAIN):
            place = np.abs(vector[inside.size :]).argmax()
            others = np.delete(free, place)
            nodes += [(inside, others), (np.append(inside, free[place]), others)]
    return support, False
