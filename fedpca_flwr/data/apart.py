"""Values that lie apart from all others of their column: codes for missing values such as -999, slips of a unit."""

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.frames import listed
from fedpca_flwr.maths.rows import Blocks, Rows

FEWEST = 20  # rows; of fewer nobody can tell what is usual
MOST = 0.1  # share of a column that may lie apart
TIMES = 10  # so many times the range of all others lies between them and those apart
SAMPLE = 1000  # rows by which columns are chosen that are worth sorting


def apart(rows: Rows) -> dict[int, int]:
    """How many values of each column of ``rows`` (n, d) lie apart, of the columns in which some do.

    The largest or the smallest values, a tenth of the column at most, lie apart where the gap to all others is more
    than ten times the range of these. Rows that are sparse, read in blocks, or in bytes are not looked at.
    """
    if isinstance(rows, Blocks) or rows.dtype.itemsize == 1 or rows.dtype.kind not in "fiu":
        return {}
    if rows.ndim != 2 or not rows.shape[1] or len(rows) < FEWEST:
        return {}
    with np.errstate(all="ignore"):  # what is not finite is refused elsewhere
        counts = {int(column): _count(rows[:, column].astype(np.float64)) for column in _worth_sorting(rows)}
    return {column: count for column, count in counts.items() if count}


def text_of(counts: dict[int, int], names: tuple[str, ...]) -> str:
    """The columns and how many of their values lie apart, or nothing."""
    if not counts:
        return ""
    columns = [names[column] if names else column for column in counts]
    values = sum(counts.values())
    return f"{values} {'value' if values == 1 else 'values'} of {listed(columns)}"


def _worth_sorting(rows: NDArray[np.generic]) -> NDArray[np.intp]:
    """Columns whose extremes are far from where most of their values are."""
    sample = rows[:: -(-len(rows) // SAMPLE)].astype(np.float64)
    ordered = np.sort(sample.T, axis=1)  # (d, n); what is missing comes last
    last = np.maximum(0, len(sample) - np.isnan(sample).sum(axis=0) - 1)
    columns = np.arange(rows.shape[1])
    low, high = ordered[columns, last // 5], ordered[columns, last - last // 5]  # a fifth lies below, a fifth above
    reach = TIMES * (high - low)
    outside = (np.fmax.reduce(rows, axis=0) - high > reach) | (low - np.fmin.reduce(rows, axis=0) > reach)
    return np.flatnonzero(outside & (reach > 0))


def _count(column: NDArray[np.float64]) -> int:
    """How many values of one column lie apart: what is left as its middle grows over all gaps that are not so large."""
    values = np.sort(column[np.isfinite(column)])
    most = int(MOST * len(values))
    low, high, last = most, len(values) - most, (0, 0)
    while values[high - 1] > values[low] and (low, high) != last:
        last, reach = (low, high), TIMES * (values[high - 1] - values[low])
        while high < len(values) and values[high] - values[high - 1] <= reach:
            high += 1
        while low and values[low] - values[low - 1] <= reach:
            low -= 1
    count = len(values) - (high - low)
    return count if count <= most and values[high - 1] > values[low] else 0
