r"""Differential privacy of sums over clipped rows: sensitivities, the analytic Gaussian mechanism, composition.

For rows :math:`u_i` with :math:`|u_i| \le 1` the released statistic is

.. math:: (a \sum u_i,\; b \sum u_i u_i^T,\; c \, n)

and its sensitivity is the largest Euclidean (for the matrix: Frobenius) distance between its values on two neighbouring
data sets. Two relations are known:

* ``add-remove``: one row more or less. One row changes the statistic by at most :math:`\sqrt{a^2 + b^2 + c^2}`;
* ``replace-one``: one row differs, the number of rows does not. Rows ``u, w`` of length 1 with cosine ``t`` are the
  worst: :math:`a^2 (2 - 2t) + b^2 (2 - 2t^2)`, largest at :math:`t = -a^2 / 2b^2`, or at -1 where that lies beyond.

Other values beside ``u_i u_i^T`` that are never negative and no longer than 1 (in which of several groups a row is, the
squares of its scores) count as products: two replaced rows are no farther apart in them than orthogonal ones, which are
the worst for products too, and so weights of several join b as ``sqrt(b^2 + ...)``.

A noise multiplier is the noise's standard deviation over the sensitivity. What it gives is Theorem 8 of Balle and Wang
(2018), "Improving the Gaussian mechanism for differential privacy: analytical calibration and optimal denoising", which
is exact: the smallest noise that is (epsilon, delta)-private. Gaussians with multipliers ``s_i`` compose to one with
:math:`1/s^2 = \sum 1/s_i^2`, exactly too (Dong, Roth and Su 2019, "Gaussian differential privacy", corollary 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

from scipy.special import log_ndtr

Relation = Literal["add-remove", "replace-one"]


def sensitivity(relation: Relation, *, sums: float = 0.0, products: float = 0.0, count: float = 0.0) -> float:
    """Sensitivity of ``(sums * sum u, products * sum uu', count * n)`` for rows with ``|u| <= 1`` (see above)."""
    if relation == "add-remove":
        return math.hypot(sums, products, count)
    if sums**2 <= 2 * products**2 and products:
        return (sums**2 + 2 * products**2) / (math.sqrt(2) * products)
    return 2 * sums


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """The delta that a noise multiplier gives for an epsilon (Balle and Wang, theorem 8), without cancellation."""
    if multiplier == math.inf:
        return 0.0
    first = float(log_ndtr(0.5 / multiplier - epsilon * multiplier))
    second = epsilon + float(log_ndtr(-0.5 / multiplier - epsilon * multiplier))
    return -math.exp(first) * math.expm1(min(0.0, second - first))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier that is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        Above 0; infinity gives 0, no noise.
    delta : float
        In (0, 1).
    """
    if epsilon == math.inf:
        return 0.0
    low = high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
    while gaussian_delta(epsilon, low) <= delta:
        low /= 2
    root = _root(lambda s: gaussian_delta(epsilon, s) - delta, low, high, absolute=1e-300)
    return root * (1 + 1e-12)  # the root's own rounding must not cost privacy


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest epsilon that a noise multiplier gives at ``delta``; 0 noise gives infinity."""
    if multiplier == 0:
        return math.inf
    if gaussian_delta(0.0, multiplier) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, multiplier) > delta:
        high *= 2
    return _root(lambda e: gaussian_delta(e, multiplier) - delta, 0.0, high, absolute=1e-14)


def composed(multipliers: Iterable[float]) -> float:
    """The multiplier of one release that is as private as several together; infinity for none."""
    costs = [s**-2 if s > 0 else math.inf for s in multipliers]
    total = math.fsum(costs) if math.inf not in costs else math.inf
    return total**-0.5 if total else math.inf


def _root(function: Callable[[float], float], low: float, high: float, *, absolute: float) -> float:
    """Where a function changes its sign between two numbers."""
    from scipy.optimize import brentq  # a tenth of a second to import, which every message of a deployment would cost

    return float(brentq(function, low, high, xtol=absolute, rtol=1e-14))
