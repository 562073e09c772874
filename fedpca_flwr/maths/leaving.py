r"""By how much the components turn where one party leaves, and all others stay as they are.

Where it is cheap the components of the others' scatter S - E are computed. Else products :math:`E V` with those of all
bound the angles. With :math:`V^T (S - E) V = U diag(a) U^T` and :math:`R = (I - V V^T) E V U`, the vectors :math:`V U`
are the best that the span of V has for the others. Since E is positive semidefinite, what lies outside the span has no
eigenvalue above :math:`\lambda_{r+1}` of S. So for the first j of them the theorem of Davis and Kahan holds::

    tan 2 theta_j <= 2 |R_1..j| / (a_j - c_j)

where :math:`c_j` bounds what the orthogonal complement of these j has: the largest eigenvalue of
:math:`(a_{j+1}, \rho; \rho, \lambda_{r+1})` with :math:`\rho` the norm of the later columns of R. The squared sine of
the angle by which vector j is off is at most :math:`\sin^2 \theta_{j-1} + \sin^2 \theta_j`, and U tells what it turns
within the span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import subspace_angles

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs

RESOLVED = 1e-12
"""Share of the first eigenvalue of which neither eigenvalues nor gaps between them are told from none."""


@dataclass(frozen=True)
class Turn:
    """What the first r components turn by at most, in degrees, 0 to 90.

    Attributes
    ----------
    axes : ndarray of shape (r,)
        Each of them, to the one of the same number.
    span : float
        All of them together: the largest principal angle.
    """

    axes: Array
    span: float


def exact_turn(others: Array, V: Array) -> Turn:
    """From components ``V`` (d, r) to those of the scatter ``others`` (d, d), in multiples of the first eigenvalue of
    all; 90 where the others do not determine one."""
    d, r = V.shape
    pairs = leading_eigenpairs(np.asfortranarray(others), r)
    values = np.concatenate([[np.inf], pairs.values, [pairs.following if r < d else -np.inf]])
    gaps = values[:-1] - values[1:]
    cosines = np.abs(np.einsum("di,di->i", pairs.vectors, V))
    axes = np.degrees(np.arccos(np.minimum(1.0, cosines)))
    axes[np.minimum(gaps[:-1], gaps[1:]) <= RESOLVED] = 90.0
    if r == d:
        return Turn(axes, 0.0)
    span = float(np.degrees(subspace_angles(pairs.vectors, V)[0])) if gaps[-1] > RESOLVED else 90.0
    return Turn(axes, span)


def bounded_turn(taken: Array, V: Array, values: Array, following: float) -> Turn:
    """From components ``V`` (d, r), of these ``values`` and the ``following`` one, without E: ``taken = E V``."""
    d, r = V.shape
    inside = V.T @ taken
    left, U = np.linalg.eigh(np.diag(values) - (inside + inside.T) / 2)
    left, U = left[::-1], U[:, ::-1]
    R = (taken - V @ inside) @ U
    cuts = np.array([0.0, *(_cut(R, left, following, j) for j in range(1, r + 1))])
    if r == d:
        cuts[-1] = 0.0
    sines = np.sqrt(np.minimum(1.0, np.sin(cuts[:-1]) ** 2 + np.sin(cuts[1:]) ** 2))
    axes = np.arcsin(sines) + np.arccos(np.minimum(1.0, np.abs(np.diagonal(U))))
    return Turn(np.minimum(90.0, np.degrees(axes)), float(np.degrees(cuts[-1])))


def _cut(R: Array, left: Array, following: float, j: int) -> float:
    """Bound on the angle of the first j, in radians."""
    above, below = float(np.linalg.norm(R[:, :j], 2)), following
    if j < left.size:
        later = float(np.linalg.norm(R[:, j:], 2))
        below = float((left[j] + following) / 2 + np.hypot((left[j] - following) / 2, later))
    gap = float(left[j - 1]) - below
    return float(np.arctan2(2 * above, gap) / 2) if gap > RESOLVED else np.pi / 2
