"""Seconds of several programs, measured in turn in one process: ratios hold on other machines, seconds do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def alternated(programs: Sequence[Callable[[], object]], repeats: int) -> NDArray[np.float64]:
    """Seconds of every program, one row for each repetition."""
    return np.array([[seconds(program) for program in programs] for _ in range(repeats)])


def ratio(times: NDArray[np.float64], of: int, to: int) -> float:
    """The median, over the repetitions, of one program's time to another's."""
    return float(np.median(times[:, of] / times[:, to]))


def seconds(program: Callable[[], object]) -> float:
    start = time.perf_counter()
    program()
    return time.perf_counter() - start
