"""Tables of cases, of which so many run by day that every pair of values is there, and all by night."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def pairs_of(case: Sequence[Any], columns: Iterable[tuple[int, int]]) -> set[tuple[int, int, str, str]]:
    """Return the pairs of values that a case has in these pairs of columns."""
    return {(first, second, str(case[first]), str(case[second])) for first, second in columns}


def pairwise_by_day(cases: Iterable[Sequence[Any]], columns: Collection[tuple[int, int]]) -> list[Any]:
    """Return all cases, with the mark `nightly` but for some that have every pair of values in these pairs of columns.

    The next case by day is always the first of those with the most pairs that are in no case before.
    """
    ordered = list(cases)
    missing = set().union(*(pairs_of(case, columns) for case in ordered))
    by_day = set()
    while missing:
        best = max(range(len(ordered)), key=lambda number: len(pairs_of(ordered[number], columns) & missing))
        missing -= pairs_of(ordered[best], columns)
        by_day.add(best)
    return [
        pytest.param(*case, marks=[] if number in by_day else pytest.mark.nightly)
        for number, case in enumerate(ordered)
    ]
