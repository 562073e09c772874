"""SQUAREM: a fixed point iteration that converges slowly, as EM does where much is missing, in few steps of it.

A cycle has two steps of the map G, an extrapolation along them, and a third step that stabilises it::

    r = G(x) - x,    v = (G(G(x)) - G(x)) - r,    a = |r| / |v|,    x <- G(x + 2 a r + a^2 v)

The step length a is 1 / (1 - rate) for a single linear rate, and 1 gives G(G(x)), the plain iteration (scheme S3 of
Varadhan and Roland 2008, Scandinavian Journal of Statistics 35; the sign of a is turned). An extrapolation that leaves
the allowed region, or from which the map moves further than it did at the cycle's start, is given up for G(G(x)).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpca_flwr.maths.arrays import Array


class Squarem:
    """The iteration, whose map somebody else computes.

    Parameters
    ----------
    start : ndarray of shape (p,)
    allowed : callable
        Whether a point (p,) can be mapped.

    Attributes
    ----------
    point : ndarray of shape (p,)
        Whose image is wanted next.
    ahead : float or None
        After the second step of a cycle: an estimate of how many times its length is left to go, if the rate
        stays what it is.
    """

    def __init__(self, start: Array, allowed: Callable[[Array], bool]) -> None:
        self.point = start
        self.ahead: float | None = None
        self._allowed = allowed
        self._path = [start]  # of the cycle: a point and its images
        self._moved = np.inf  # by the cycle's first step

    def add(self, image: Array) -> None:
        """Go on from the image of `point`."""
        start, *images = self._path
        self.ahead = None
        if len(images) == 2:
            went_wrong = float(np.linalg.norm(image - self.point)) > self._moved
            self._begin(images[-1] if went_wrong else image)
        elif not images:
            self._path.append(image)
            self._moved = float(np.linalg.norm(image - start))
            self.point = image
        else:
            self._extrapolate(start, images[0], image)

    def _extrapolate(self, start: Array, once: Array, twice: Array) -> None:
        r = once - start
        v = (twice - once) - r
        bend = float(np.linalg.norm(v))
        length = max(1.0, self._moved / bend) if bend > 0 else 1.0
        self.ahead = length
        far = start + 2 * length * r + length**2 * v
        if length > 1 and self._allowed(far):
            self._path.append(twice)
            self.point = far
        else:
            self._begin(twice)

    def _begin(self, start: Array) -> None:
        self._path, self.point = [start], start
