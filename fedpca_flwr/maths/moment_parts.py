"""Moments of a part: of some features, of features in another unit, of some of the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, pack, two_sum, unpack


def dense(moments: Moments) -> Array:
    """The whole symmetric scatter, shape (d, d)."""
    lower = unpack(moments.scatter, moments.n_features)
    return np.tril(lower) + np.tril(lower, -1).T


def of_features(moments: Moments, places: NDArray[np.intp]) -> Moments:
    """The moments of the features in ``places`` (m,), in this order."""
    part = dense(moments)[np.ix_(places, places)]
    return Moments(moments.count, moments.mean[places], moments.remainder[places], pack(part))


def in_units(moments: Moments, unit: Array) -> Moments:
    """The moments of rows whose features were divided by ``unit`` (d,)."""
    mean, remainder = two_sum(moments.mean / unit, moments.remainder / unit)
    return Moments(moments.count, mean, remainder, pack(dense(moments) / unit / unit[:, None]))


def without(whole: Moments, part: Moments) -> Moments:
    """The moments of the rows of ``whole`` that are not in ``part``, which has fewer rows.

    With n rows in all, p in the part, and :math:`\\delta` the difference of their means::

        m - p / (n - p) delta,    S - S_p - n p / (n - p) delta delta^T

    Digits that whole and part share are lost.
    """
    left = whole.count - part.count
    delta = (part.mean - whole.mean) + (part.remainder - whole.remainder)
    mean, remainder = two_sum(whole.mean, whole.remainder - part.count / left * delta)
    scatter = whole.scatter - part.scatter
    scatter = blas.dspr(whole.n_features, -whole.count * part.count / left, delta, scatter, lower=1, overwrite_ap=1)
    return Moments(left, mean, remainder, scatter)
