r"""An accelerated fixed point iteration.

Anderson acceleration is for an iteration that raises a function, as EM raises the likelihood (Anderson 1965). Of the
last points x_i, with residuals f_i = G(x_i) - x_i, it goes to the combination whose residual is least::

    x <- G(x) - (dG) c,    c = argmin | f - (dF) c |

with the columns of dF and dG the differences of residuals and images. Near the fixed point that is GMRES. A point where
the function is lower than before is given up for the last image, and so is all that is remembered: without this the
iteration may come to rest at saddle points (Walker and Ni 2011, SIAM Journal on Numerical Analysis 49; with restarts
and monotonicity for EM: Henderson and Varadhan 2019, Journal of Computational and Graphical Statistics 28).
"""

from collections.abc import Callable

import numpy as np
from scipy.linalg import svd

from fedpca_flwr.maths.arrays import Array

MAX_DIFFERENCES = 10  # how many differences are remembered
# singular values of the differences below the root of this, relative to the first, count little: they are rounding
DAMPING = 1e-10
OBJECTIVE_SLACK = 1e-9  # share of the function's size by which rounding may make it seem lower


class Anderson:
    """The iteration from a ``start`` (p,), whose map and function somebody else computes.

    `point` is always one that is ``allowed``, which can be mapped.
    """

    def __init__(self, start: Array, is_valid: Callable[[Array], bool]) -> None:
        self.point = start  # whose image is wanted next
        self._is_valid = is_valid
        self._points: list[Array] = []
        self._images: list[Array] = []
        self._best_objective = -np.inf

    def add(self, image: Array, objective: float) -> None:
        """Go on from the image of `point`, at which the function has the value ``height``."""
        if self._points and objective < self._best_objective - OBJECTIVE_SLACK * abs(self._best_objective):
            self.point = self._images[-1]
            self._points, self._images = [], []
            return
        self._best_objective = max(objective, self._best_objective) if self._points else objective
        self._points = [*self._points, self.point][-MAX_DIFFERENCES - 1 :]
        self._images = [*self._images, image][-MAX_DIFFERENCES - 1 :]
        candidate = self._combine() if len(self._points) > 1 else image
        self.point = candidate if self._is_valid(candidate) else image

    def _combine(self) -> Array:
        images = np.array(self._images).T
        residuals = images - np.array(self._points).T
        steps = np.diff(residuals)
        sizes = np.linalg.norm(steps, axis=0)
        equal = sizes == 0  # or so near to each other that the squares of what parts them are 0
        steps[:, equal], sizes[equal] = 0.0, 1.0
        U, s, Vt = svd(steps / sizes, full_matrices=False, check_finite=False)
        weights = np.divide(s, s**2 + DAMPING * s[0] ** 2, out=np.zeros_like(s), where=s > 0)
        combined: Array = images[:, -1] - np.diff(images) @ (Vt.T @ (weights * (U.T @ residuals[:, -1])) / sizes)
        return combined
