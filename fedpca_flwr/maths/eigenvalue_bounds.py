r"""Upper bounds on the first eigenvalue that a set of Ritz pairs leaves out.

For the first j Ritz pairs :math:`(\theta_i, u_i)` of a symmetric :math:`A`, with residuals R, the sine theorem of Davis
and Kahan needs an upper bound for :math:`\lambda_{j+1}(A)`. A Ritz value is none: it lies below.

`proven_bound` takes a bound c on A outside the span asked (from the trace, or a known approximation). With W, T the
other Ritz pairs and R_W their residuals, :math:`\lambda_{j+1} \le \mu` for every :math:`\mu > c` with
:math:`T + R_W^T R_W / (\mu - c) \preceq \mu` (Courant and Fischer, and a Schur complement).

`presumed_bound` knows of the outside only that the first block S was random. Every eigenvector x of
:math:`\lambda \ge \mu` obeys :math:`(\lambda - \theta_i) u_i^T x = r_i^T x`, so if the first j pairs do not see x,

.. math:: S^T x = F(\lambda)\, x, \qquad F(\lambda) = S^T W (\lambda - T)^{-1} R_W^T

which falls exponentially as the span grows. Random numbers do not: where F is smaller than what S shows of any
direction, but for a probability of `MISSED`, no such x exists. That holds for j + 1 eigenvectors together if S has more
than j columns; else for each alone, as if those behind the same Ritz value were no more than the columns.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.special import gammaln

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.first_block import FirstBlock
from fedpca_flwr.maths.krylov import Ritz

MISSED = 1e-6
"""Probability that a random block is so unlucky that what it does not show exists."""

SHARES = (1 / 2, 1 / 8, 1 / 64)
"""Of the gap above the next Ritz value that a bound may take."""


def proven_bound(ritz: Ritz, j: int, outside: float, wanted: float | None = None) -> float:
    """Bound on eigenvalue j + 1, infinite where there is none.

    Parameters
    ----------
    ritz : Ritz
    j : int
        From 1 to the number of pairs.
    outside : float
        Bound on the matrix orthogonal to all pairs.
    wanted : float, optional
        The bound that is looked for; else as small a one as is found.
    """
    others, residuals, above = ritz.values[j:], ritz.residuals[:, j:], float(ritz.values[j - 1])
    if others.size == 0:
        return outside + 2 * ritz.error if outside < above else np.inf
    base, ceiling = max(float(others[0]), outside), np.inf
    gram = residuals.T @ residuals
    for level in _levels(base, above) if wanted is None else [wanted]:
        if level <= base or not _is_positive_definite(np.diag(level - others) - gram / (level - outside)):
            break
        ceiling = level + 2 * ritz.error
    return ceiling


def presumed_bound(ritz: Ritz, j: int, start: FirstBlock, wanted: float | None = None) -> float:
    """The same from a random first block."""
    above, columns, values = float(ritz.values[j - 1]), start.columns, ritz.values
    lowest = float(values[j]) if values.size > j else 0.0
    seen, _ = start.seen(ritz, above)
    if j < columns:
        bound = least_overlap(columns, j + 1) / np.sqrt(j + 1)
    else:  # what may hide behind the first j is far nearer to them
        bound = least_overlap(columns, 1, MISSED / (j + 1)) / 2
        above -= 10 * ritz.residual(j) * float(np.linalg.norm(seen[:j], 2)) / bound
    levels = _levels(lowest, above) if wanted is None else [min(wanted, above)]
    return _least_not_shown(ritz, j, start, levels, bound)


def first_bound(ritz: Ritz, start: FirstBlock, above: float) -> float:
    """Bound, at most ``above``, on the first eigenvalue from a random first block of any width; infinite: none."""
    levels = [above, *_levels(float(ritz.values[0]), above)]
    return _least_not_shown(ritz, 0, start, levels, least_overlap(start.columns, 1))


def _least_not_shown(ritz: Ritz, j: int, start: FirstBlock, levels: list[float], bound: float) -> float:
    """The last of descending levels such that the block would show eigenvectors above; ``bound`` is what it shows."""
    lowest, ceiling = float(ritz.values[j]) if ritz.values.size > j else 0.0, np.inf
    hidden = Hidden(ritz, j, start)
    for level in levels:
        if level <= lowest:
            break
        seen, outside = start.seen(ritz, level)
        wrong = ritz.error * float(np.linalg.norm(seen[j:]))
        allowed = bound - outside - wrong / (level - lowest)
        if _largest_norm_above(hidden, level, allowed) > allowed:
            break
        ceiling = level + 2 * ritz.error
    return ceiling


class Hidden:
    """F: what a first block shows of an eigenvector that the first j Ritz pairs do not see, by its eigenvalue.

    After a restart the block depends on the eigenvalue, and so what it shows of the first pairs does not quite cancel.
    As :math:`(\\lambda - \\theta_i) u_i^T x = r_i^T x` it leaves the quotients of differences, times their residuals.
    """

    def __init__(self, ritz: Ritz, j: int, start: FirstBlock) -> None:
        self.ritz, self.j, self.start = ritz, j, start
        self.lowest = float(ritz.values[j]) if ritz.values.size > j else 0.0
        self.first = np.zeros((0, start.columns))
        if start.restarts:
            self.first = np.array([start.seen(ritz, float(ritz.values[i]))[0][i] for i in range(j)])

    def norm(self, eigenvalue: float) -> float:
        """Of F there."""
        values, residuals, j = self.ritz.values, self.ritz.residuals, self.j
        seen, _ = self.start.seen(self.ritz, eigenvalue)
        weights = seen[j:] / (eigenvalue - values[j:])[:, None]
        if not len(self.first):
            return float(np.linalg.norm(weights.T @ residuals[:, j:].T)) if len(weights) else 0.0
        apart = eigenvalue - values[:j]
        apart[apart == 0] = np.inf
        return float(np.linalg.norm(np.vstack([(seen[:j] - self.first) / apart[:, None], weights]).T @ residuals.T))

    def crude(self, eigenvalue: float) -> float:
        """What it is no more than there and above, times the distance to the lowest value."""
        seen, _ = self.start.seen(self.ritz, eigenvalue)
        residuals = self.ritz.residuals if len(self.first) else self.ritz.residuals[:, self.j :]
        shown = float(np.hypot(np.linalg.norm(seen[self.j :]), np.linalg.norm(self.first)))
        return shown * float(np.linalg.norm(residuals))


def least_overlap(columns: int, directions: int, probability: float = MISSED) -> float:
    """What a random block (uniform between -1 and 1, or larger) shows of any direction among some fixed ones.

    The least singular value of a Gaussian matrix (columns, directions) of variance 1/3 (Edelman 1988; Chen and Dongarra
    2005, lemma 4.1), but for a probability.
    """
    free = columns - directions + 1
    log = np.log(probability) + gammaln(directions / 2) + gammaln(free + 1) - gammaln((columns + 1) / 2)
    return float(np.exp(log / free) / np.sqrt(2 * 3))


def bound_outside_last_block(ritz: Ritz, start: Array, asked: int) -> float:
    """Bound on the matrix orthogonal to the last of ``asked`` blocks of a plain iteration from a random ``start``.

    If no eigenvalue outside is larger than the last Ritz value and its residual, what the block lacks of eigenvector i
    falls as the powers of their ratio (Saad 2011, theorem 5.2). Infinite until it lacks little of the first.
    """
    values, b = ritz.values, start.shape[1]
    last = float(values[-1]) + float(np.linalg.norm(ritz.residuals[:, -1])) + ritz.error
    with np.errstate(over="ignore", divide="ignore"):
        lacks = (last / values.clip(min=0.0)) ** (asked - 1) * float(np.linalg.norm(start, 2)) / least_overlap(b, b)
    found = int((lacks < 0.01).sum())  # they rise
    if not found:
        return np.inf
    largest = 1.01 * values[:found]  # of an eigenvalue of which the block lacks so little: more than `last`
    return float(largest[-1]) + float(largest @ lacks[:found] ** 2)


def _levels(lowest: float, above: float) -> list[float]:
    return [lowest + share * (above - lowest) for share in SHARES]


def _largest_norm_above(hidden: Hidden, level: float, allowed: float = np.inf) -> float:
    """The largest norm of F at ``level`` and above: twice what a grid finds, as F varies slowly between its points.

    What is more than ``allowed`` may be less than the largest.
    """
    most, step = 0.0, level - hidden.lowest
    crude = hidden.crude(level)
    while crude > most * (level - hidden.lowest) and 2 * most <= allowed:
        most = max(most, hidden.norm(level))
        level += step
        step *= 2
    return 2 * most


def _is_positive_definite(matrix: Array) -> bool:
    try:
        cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    return True
