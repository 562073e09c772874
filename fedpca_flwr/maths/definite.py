"""Whether scatters can be those of any rows: whether they are positive semidefinite.

A matrix whose diagonal is that of a scatter can still have a negative eigenvalue. Added to the scatters of others, it
takes a direction of theirs away, and nothing in the sum shows it. A Cholesky factor of each would cost more than the
components do, so they are added up in a few groups, drawn at random, and each group's sum is factored, in float32. A
party can then take away no more than the others of its group have, and it cannot know who they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from scipy.linalg import lapack

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, pack

GROUPS = 5
"""At most. Each costs a Cholesky factor."""


class RandomGroups:
    """Sums of scatters in groups drawn at random, of parts that come one by one and are not kept.

    Parameters
    ----------
    parts : int
        How many will come.
    rng : Generator
        Draws the groups; whoever made the parts must not know its seed.
    """

    def __init__(self, parts: int, rng: np.random.Generator) -> None:
        self._groups = itertools.cycle(rng.permutation(parts) % min(GROUPS, parts))
        self._sums: dict[int, Array] = {}
        self._names: dict[int, list[str]] = {}

    def add(self, name: str, part: Moments) -> None:
        """Add a part to the next group."""
        group = int(next(self._groups))
        self._names.setdefault(group, []).append(name)
        if group not in self._sums:
            self._sums[group] = part.scatter.copy()
            return
        with np.errstate(over="ignore"):
            self._sums[group] += part.scatter

    def indefinite(self, d: int, largest: float, scale: Array | None) -> list[list[str]]:
        """The names of each group whose sum is not positive semidefinite; see `indefinite`."""
        return [self._names[i] for i, added in self._sums.items() if not _semidefinite(added.copy(), d, largest, scale)]


def indefinite(parts: Sequence[Moments], largest: float, scale: Array | None, rng: np.random.Generator) -> list[int]:
    """Which parts are in a group whose sum is not positive semidefinite, and are not so themselves.

    Parameters
    ----------
    parts : sequence of Moments
    largest : float
        The largest eigenvalue of the sum of their scatters, in the unit of ``scale``. A negative one is rounding where
        it is less than ``4 d`` roundings of float32 of that (4e-4 for 784 features).
    scale : ndarray of shape (d,) or None
        What each feature is divided by.
    rng : Generator
        Draws the groups; whoever made the parts must not know its seed.
    """
    found: list[int] = []
    for group in np.array_split(rng.permutation(len(parts)), min(GROUPS, len(parts)) or 1):
        if group.size and not _together([parts[i] for i in group], largest, scale):
            found += [int(i) for i in group if not _together([parts[i]], largest, scale)]
    return sorted(found)


def _together(parts: Sequence[Moments], largest: float, scale: Array | None) -> bool:
    packed = parts[0].scatter.copy()
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            packed += part.scatter
    return _semidefinite(packed, parts[0].n_features, largest, scale)


def _semidefinite(packed: Array, d: int, largest: float, scale: Array | None) -> bool:
    """Whether a scatter, which is overwritten, has no negative eigenvalue, up to rounding."""
    with np.errstate(over="ignore", invalid="ignore"):  # so much larger than the sum of all: others are negative
        packed /= largest
        if scale is not None:
            packed /= pack(np.outer(scale, scale))  # float32 does not hold what it was before
        matrix, _ = lapack.stpttr(d, packed.astype(np.float32), uplo="L")
    matrix[np.diag_indices(d)] += np.float32(4 * d * np.finfo(np.float32).eps)
    _, info = lapack.spotrf(matrix, lower=1, clean=0, overwrite_a=1)
    return bool(info == 0)
