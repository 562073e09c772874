"""Anderson acceleration of a fixed point iteration.

Anderson acceleration serves an iteration that converges slowly, as EM does (Anderson 1965). From the last points x_i,
with residuals f_i = G(x_i) - x_i, the iteration goes to the combination with the smallest residual::

    x <- G(x) - (dG) c,    c = argmin | f - (dF) c |

with the columns of dF and dG the differences of residuals and images. Near the fixed point this is GMRES. An iteration
may raise a function, as EM raises the likelihood. If the function is lower at a point than before, the iteration goes
back to the last image and forgets its history: without this rule it may come to rest at saddle points (Walker and Ni
2011, SIAM Journal on Numerical Analysis 49; with restarts and monotonicity for EM: Henderson and Varadhan 2019, Journal
of Computational and Graphical Statistics 28). Where nobody computes the function, the residual may not grow too much.

**How far it is to the end.** If the map were linear, with the matrix J, the distance would be ``(I - J)^-1 f``. The
differences dX of the points and dF give the largest eigenvalue of ``(I - J)^-1`` among the directions that the
iteration has seen: the number of plain steps, each as large as f, that remain.
"""

from collections.abc import Callable

import numpy as np

from fedpca_flwr.maths.arrays import Array

MAX_DIFFERENCES = 7  # how many differences are remembered
# singular values of the differences below the root of this, relative to the first, count little: along these
# directions the map is not linear enough, or there is only rounding
DAMPING = 1e-6
MAX_GROWTH = 3.0  # of the residual, from the least since the last restart, where no function is computed
OBJECTIVE_SLACK = 1e-9  # share of the function's size by which rounding may make it seem lower


class Anderson:
    """An accelerated fixed point iteration x <- g(x) from a start, whose map g and objective the caller computes.

    `point` (p,) is the point whose image the iteration needs next; it satisfies `is_valid`, which says whether g can
    map a point. `steps_ahead` estimates how many plain steps of the last step's size remain; it is None without a
    history.
    """

    def __init__(self, start: Array, is_valid: Callable[[Array], bool]) -> None:
        self.point = start  # whose image is wanted next
        self.steps_ahead: float | None = None
        self._is_valid = is_valid
        self._points, self._images = list[Array](), list[Array]()
        self._best_objective = -np.inf

    def add(self, image: Array, objective: float | None = None) -> None:
        """Take the image g(x) (p,) of the current `point` x, and choose the next point.

        The iteration raises the objective, whose value at x is given. Where it falls, the iteration goes back to the
        last image and forgets its history. Without an objective the residual g(x) - x must not grow beyond
        `MAX_GROWTH`.
        """
        if objective is None:
            objective, lowest = -float(np.linalg.norm(image - self.point)), MAX_GROWTH * self._best_objective
        else:
            lowest = self._best_objective - OBJECTIVE_SLACK * abs(self._best_objective)
        self.steps_ahead = None
        if self._points and objective < lowest:
            self.point = self._images[-1]
            self._points, self._images = [], []
            return
        self._best_objective = max(objective, self._best_objective) if self._points else objective
        self._points = [*self._points, self.point][-MAX_DIFFERENCES - 1 :]
        self._images = [*self._images, image][-MAX_DIFFERENCES - 1 :]
        candidate = self._combine() if len(self._points) > 1 else image
        self.point = candidate if self._is_valid(candidate) else image

    def _combine(self) -> Array:
        """Return the combination of the last images with the smallest residual g(x) - x, and set `steps_ahead`."""
        points, residuals = np.array(self._points), np.array(self._images)  # a row each
        residuals -= points
        moves, steps = np.diff(points, axis=0), np.diff(residuals, axis=0)
        sizes = np.linalg.norm(steps, axis=1)
        equal = sizes == 0  # or so near to each other that the squares of what parts them are 0
        steps[equal], sizes[equal] = 0.0, 1.0
        steps /= sizes[:, None]
        values, vectors = np.linalg.eigh(steps @ steps.T)  # the squared singular values: damping needs no more digits
        weights = np.divide(1 + DAMPING, values + DAMPING * values[-1], out=np.zeros_like(values), where=values > 0)
        inverse = (vectors * weights) @ vectors.T  # times the steps
        self.steps_ahead = max(1.0, float(np.linalg.eigvals(inverse @ (steps @ -moves.T) / sizes[:, None]).real.max()))
        coefficients = inverse @ (steps @ residuals[-1])
        return np.asarray(self._images[-1] - coefficients @ steps - coefficients / sizes @ moves)
