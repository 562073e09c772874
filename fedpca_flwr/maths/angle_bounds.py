"""Bounds on the angles between the first Ritz pairs and the eigenvectors they stand for, in the course of an iteration.

The certificate is the sine theorem with a bound on the next eigenvalue (`fedpca_flwr.maths.eigenvalue_bounds`), of the
first j pairs together, for any j: two such cuts certify what lies between them, one component or a cluster.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.certificate import ALIKE, at_most, sine_theorem
from fedpca_flwr.maths.eigenvalue_bounds import bound_outside_last_block, presumed_bound, proven_bound
from fedpca_flwr.maths.first_block import FirstBlock
from fedpca_flwr.maths.krylov import KnownProducts, Ritz
from fedpca_flwr.maths.refine import RefinedSketch


class AngleBounds:
    """Bounds of one iteration.

    Parameters
    ----------
    k : int
        How many are wanted.
    trace : float
        Of the matrix: it tells how much may be orthogonal to the span.
    accelerated : bool
        Block Krylov; else the plain iteration, whose span is its last block.
    sketch : RefinedSketch or None
        An approximation that bounds the matrix outside the span.

    Attributes
    ----------
    proven : bool
        Whether the last bound asked for presumes nothing; else that no eigenvalue occurs more often than the first
        block has columns.
    upto : int
        How many of the first pairs it was of: k, or more where pair k is tied with them.
    """

    def __init__(self, k: int, trace: float, *, accelerated: bool, sketch: RefinedSketch | None) -> None:
        self.k, self.trace, self.accelerated, self._sketch = k, trace, accelerated, sketch
        self.proven, self.upto = False, k
        self._ceilings: dict[int, float] = {}  # of eigenvalues, by what was asked before: they hold for ever

    def take(self, known: KnownProducts, ritz: Ritz, start: FirstBlock, asked: int) -> None:
        """Go on with what is known after so many products."""
        self._known, self._ritz, self._start = known, ritz, start
        self._rest = self._bound_outside(asked)

    def wanted(self) -> tuple[float, int]:
        """Bound on the angle of the first k in degrees, and how many of them it determines.

        Not determined are those that are tied with the next, or have no variance that float64 tells from none. Of a
        tie, the bound is to the nearest of its bases.
        """
        values, k = self._ritz.values, self.k
        self.upto = k
        alike = ALIKE * len(self._ritz.vectors) * float(values[0])
        if self._known.error > alike:
            return self.angle(k), k  # equal values may be what the wire made of them
        distinct, upto = int((values[:k] > values[k - 1] + alike).sum()), int((values >= values[k - 1] - alike).sum())
        if max(values[k - 1], self._rest) <= alike:
            return self.angle(distinct), distinct  # no variance is left, of which the last pairs could have any
        if upto == k:
            return self.angle(k), k
        self.upto = upto
        first, proven = self.angle(upto), self.proven  # of a tie at the cut any basis will do
        second = self.angle(distinct)
        self.proven &= proven
        return min(90.0, first + second), distinct

    def cuts(self, most: int, tolerance: float) -> list[tuple[int, float]]:
        """Every j <= ``most`` whose first j pairs are certified to ``tolerance`` degrees, presuming nothing, with
        their angles."""
        some = range(1, min(most, self._ritz.values.size - 1) + 1)
        return [(j, self.angle(j)) for j in some if self.certifies(j, tolerance)]

    def certifies(self, j: int, tolerance: float) -> bool:
        """Whether the first j pairs, of more, are certified to ``tolerance`` degrees, presuming nothing."""
        residual, values = self._ritz.residual(j), self._ritz.values
        least = sine_theorem(residual, float(values[j - 1] - values[j]))  # no Ritz value is above its eigenvalue
        return least <= tolerance and self.angle(j) <= tolerance and self.proven

    def angle(self, j: int) -> float:
        """Bound on the angle of the first j Ritz pairs, in degrees."""
        if j in (0, len(self._ritz.vectors)):
            self.proven = True
            return 0.0
        return sine_theorem(self._ritz.residual(j), float(self._ritz.values[j - 1]) - self.eigenvalue(j))

    def eigenvalue(self, j: int, level: float | None = None) -> float:
        """Bound on eigenvalue j + 1; a certain ``level`` where that is one."""
        ritz, width = self._ritz, self._start.columns
        if not self._known.room:
            self.proven = True
            return float(ritz.values[j]) + 2 * ritz.error
        ceiling, wide = min(proven_bound(ritz, j, self._rest, level), self._ceilings.get(j, np.inf)), j < width
        proven = wide or ceiling < np.inf
        if self._sketch is None and self.accelerated and (wide or not proven):
            ceiling = min(ceiling, presumed_bound(ritz, j, self._start, level))
        self.proven = proven
        if proven:
            self._ceilings[j] = ceiling
        return ceiling

    def level(self, tolerance: float) -> float:
        """What the eigenvalue after these (`upto`) may be at most for a certificate of ``tolerance`` degrees."""
        j = self.upto
        half = tolerance / (1 if j == self.k else 2)  # of a tie both ends count
        return float(self._ritz.values[j - 1]) - 1.0001 * self._ritz.residual(j) / float(np.sin(np.radians(half)))

    @property
    def following(self) -> float:
        """What the eigenvalue after these is at least."""
        return float(self._ritz.values[self.upto]) if self._ritz.values.size > self.upto else np.inf

    def hold(self, ceilings: dict[int, float]) -> None:
        """Take bounds on eigenvalues i + 1, by i, from elsewhere."""
        self._ceilings |= {i: min(ceiling, self._ceilings.get(i, np.inf)) for i, ceiling in ceilings.items()}

    def _bound_outside(self, asked: int) -> float:
        """Bound on the matrix orthogonal to the span."""
        values, error = self._ritz.values, self._ritz.error
        rounding = np.sqrt(values.size) * error + 4 * float(np.finfo(np.float64).eps) * self.trace
        bounds: list[float] = [max(0.0, self.trace - float(values.sum())) + rounding]
        if self._sketch is not None:
            bounds.append(self._sketch.outside)
        elif not self.accelerated and self._start.columns > self.k:
            bounds.append(bound_outside_last_block(self._ritz, self._start.block, asked))
        return min(bounds)


def parts_text(cuts: list[tuple[int, float]]) -> str:
    """What certified cuts (see `AngleBounds.cuts`) tell of single components and of clusters, in words.

    What lies between two cuts is turned by no more than both together.
    """
    single: list[int] = []
    clusters, before, most, above = [], 0, 0.0, 0.0
    for j, degrees in cuts:
        most = max(most, degrees + above)
        if j == before + 1:
            single.append(j)
        else:
            clusters.append(f"{before + 1} to {j}")
        before, above = j, degrees
    each = [f"{_listed(single)} each"] if single else []
    together = [f"{' and '.join(clusters)} as {'subspaces' if len(clusters) > 1 else 'a subspace'}"] if clusters else []
    return f"{', '.join([*each, *together])}, to {at_most(most)} degrees"


def _listed(numbers: list[int]) -> str:
    """Ascending numbers, runs of them by their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
