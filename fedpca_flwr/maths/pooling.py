"""The moments of rows that several parties hold, from those of each (Chan, Golub and LeVeque 1983).

Scatters are added as they come (`fedpca_flwr.maths.reproducible_sum`), and only counts and means are kept until all
have come, since what lies between the means needs the mean of all. No order, of parties or of their coming, changes a
bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, Moments, head_order, pool_heads
from fedpca_flwr.maths.reproducible_sum import ReproducibleSum, reproducible_sum


class MomentsSum:
    """The moments of all rows, from those of parts that come one by one and need not be kept.

    Parameters
    ----------
    d : int
        Features.
    """

    def __init__(self, d: int) -> None:
        self.heads: list[Head] = []
        self._scatter = ReproducibleSum((d * (d + 1) // 2,))

    def add(self, part: Moments) -> None:
        """Add a part.

        Raises
        ------
        ValueError
            Where it has other features.
        """
        self._scatter.add(part.scatter)
        self.heads.append(part.head)

    def pooled(self, *, within: bool = False) -> Moments:
        """Moments of all rows; ``within``: their scatter leaves out what lies between the parts' means."""
        return _pooled(self.heads, self._scatter.total(), within=within)


def pool(parts: Iterable[Moments]) -> Moments:
    """Moments of all rows together."""
    parts = list(parts)
    return _pooled([part.head for part in parts], _added(parts))


def pool_within(parts: Iterable[Moments]) -> Moments:
    """Pooled count and mean, but only the scatter *within* the parts: what averaging covariances keeps (AP-COV)."""
    parts = list(parts)
    return _pooled([part.head for part in parts], _added(parts), within=True)


def _added(parts: Sequence[Moments]) -> Array:
    return reproducible_sum([part.scatter for part in parts])


def _pooled(heads: Sequence[Head], scatter: Array, *, within: bool = False) -> Moments:
    """Moments from the heads of parts, and the sum of their scatters, which is handed over."""
    ordered = sorted(heads, key=head_order)
    pooled, deviations = pool_heads(ordered)
    if not within:
        for head, deviation in zip(ordered, deviations, strict=True):
            scatter = blas.dspr(deviation.size, float(head.n), deviation, scatter, lower=1, overwrite_ap=1)
    return Moments(*pooled, scatter=scatter)
