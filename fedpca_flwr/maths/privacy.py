r"""Accounting of differential privacy: epsilon and delta of Gaussian noise, and of several releases.

A noise multiplier is the standard deviation of the noise over the sensitivity. Its privacy is that of
Theorem 8 of Balle and Wang (2018), "Improving the Gaussian mechanism for differential privacy: analytical calibration
and optimal denoising", which is exact: the smallest noise that is (epsilon, delta)-private. Gaussians with multipliers
``s_i`` compose to one with :math:`1/s^2 = \sum 1/s_i^2`, exactly too (Dong, Roth and Su 2019, "Gaussian differential
privacy", corollary 2).
"""

import math
from collections.abc import Callable, Iterable

import scipy  # `scipy.special` is loaded when it is used, which few messages to a site do


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Compute the smallest delta of (epsilon, delta)-private Gaussian noise (Balle and Wang, theorem 8)."""
    if multiplier == math.inf:
        return 0.0
    first = float(scipy.special.log_ndtr(0.5 / multiplier - epsilon * multiplier))
    second = epsilon + float(scipy.special.log_ndtr(-0.5 / multiplier - epsilon * multiplier))
    return -math.exp(first) * math.expm1(min(0.0, second - first))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Compute the smallest noise multiplier for (epsilon, delta)-private Gaussian noise; 0 for an infinite epsilon."""
    if epsilon == math.inf:
        return 0.0
    low = high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
    while gaussian_delta(epsilon, low) <= delta:
        low /= 2
    root = _find_root(lambda s: gaussian_delta(epsilon, s) - delta, low, high, absolute=1e-300)
    return root * (1 + 1e-12)  # the root's own rounding must not cost privacy


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Compute the smallest epsilon, from 0, of (epsilon, delta)-private Gaussian noise; infinity for no noise."""
    if multiplier == 0:
        return math.inf
    if gaussian_delta(0.0, multiplier) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, multiplier) > delta:
        high *= 2
    return _find_root(lambda e: gaussian_delta(e, multiplier) - delta, 0.0, high, absolute=1e-14)


def compose_multipliers(multipliers: Iterable[float]) -> float:
    """Compute the multiplier as private as several: ``1 / s^2 = sum 1 / s_i^2``; infinity for none, 0 if any is 0."""
    costs = [s**-2 if s > 0 else math.inf for s in multipliers]
    total = math.fsum(costs) if math.inf not in costs else math.inf
    return total**-0.5 if total else math.inf


def _find_root(function: Callable[[float], float], low: float, high: float, *, absolute: float) -> float:
    """Return the root of a function between ``low`` and ``high``, to the tolerance ``absolute`` (Brent's method)."""
    from scipy.optimize import brentq  # a tenth of a second to import, which every message of a deployment would cost

    return float(brentq(function, low, high, xtol=absolute, rtol=1e-14))
