"""How a linearly convergent iteration would go on, as far as the sizes of its steps show.

If steps shrink by a factor r < 1 in each iteration, what is left of the way after a step s is ``s r / (1 - r)``, and
after m more iterations ``r^m`` times that. It is an extrapolation: a mode that is hidden yet may be slower, and near a
saddle point steps shrink before they grow again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

FEWEST = 16
"""Steps from which a rate can be told."""


def linear_rate(steps: Sequence[float]) -> float | None:
    """The factor r by which positive steps shrink in an iteration; None where they do not shrink steadily.

    Their logarithms fall by straight lines in the third and in the last quarter, and the slopes agree up to a factor 2.
    """
    if len(steps) < FEWEST or min(steps) <= 0:
        return None
    quarter = len(steps) // 4
    logs = np.log(steps[-2 * quarter :])
    before, after = (np.polyfit(np.arange(quarter), part, 1)[0] for part in (logs[:quarter], logs[quarter:]))
    if not (before < 0 and after < 0 and 0.5 < before / after < 2):
        return None
    return float(np.exp(after))


def way_left(steps: Sequence[float]) -> float | None:
    """How far it still is after the last step, in its unit; None where no rate can be seen."""
    rate = linear_rate(steps)
    return None if rate is None else steps[-1] * rate / (1 - rate)


def iterations_left(steps: Sequence[float], goal: float) -> int | None:
    """How many more iterations bring what is left of the way below ``goal``; None where no rate can be seen."""
    rate, left = linear_rate(steps), way_left(steps)
    if rate is None or left is None:
        return None
    return max(0, math.ceil(math.log(left / goal) / -math.log(rate)))
