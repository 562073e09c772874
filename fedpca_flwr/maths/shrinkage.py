"""By how much scores of new rows are too near the centre where features are many (Lee, Zou and Wright 2010).

With gamma features for each of n - 1 directions and noise of one level s, a component of variance x s stands for one of
variance l s in the population, and new rows have scores of (l - 1) / (l + gamma - 1) of those of the rows in the PCA.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array


def shrinkage(variances: Array, total: float, n: int, d: int) -> Array:
    """The factor (k,) of scores of new rows; NaN where a component does not stand out of the noise.

    Parameters
    ----------
    variances : ndarray of shape (k,)
        Of the components.
    total : float
        Of all d features that vary, in n rows.
    """
    gamma, left = d / max(1, n - 1), min(n - 1, d) - variances.size
    if left <= 0 or total <= variances.sum():
        return np.ones(variances.size)  # no noise is left
    level = (total - float(variances.sum())) / (left * max(1.0, gamma))
    b = 1 + variances / level - gamma
    root = b**2 - 4 * variances / level
    population = (b + np.sqrt(root.clip(min=0.0))) / 2
    stands = (root > 0) & (population > 1)
    factor: Array = (population - 1) / np.where(stands, population + gamma - 1, 1.0)  # else that may be 0
    return np.where(stands, factor, np.nan)
