"""Seconds of several programs, measured in turn in one process: ratios hold on other machines, seconds do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from fedpca_flwr.maths.arrays import Array


def seconds(program: Callable[[], object]) -> float:
    """Of a clock on the wall."""
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def cpu_seconds(program: Callable[[], object]) -> float:
    """Of this process: others on the machine count less."""
    start = time.process_time()
    program()
    return time.process_time() - start


def alternated(
    programs: Sequence[Callable[[], object]],
    repeats: int,
    clock: Callable[[Callable[[], object]], float] = seconds,
) -> Array:
    """Seconds of every program, one row for each repetition."""
    return np.array([[clock(program) for program in programs] for _ in range(repeats)])


def ratio(times: Array, of: int, to: int) -> float:
    """The median, over the repetitions, of one program's time to another's."""
    return float(np.median(times[:, of] / times[:, to]))
