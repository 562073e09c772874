"""Rows on a grid: whole numbers, never longer than they may be."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths import privacy
from fedpca_flwr.maths.privacy import STEPS, clip, on_grid, whole_products, whole_sum
from fedpca_flwr.maths.rows import chunks
from tests.families import rows


def test_clipping_shortens_long_rows_only():
    data = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clip(data, 1.0)
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-11)
    assert (np.linalg.norm(clip(rows(2000, 50) * 1e8, 0.1), axis=1) <= 0.1).all()


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e8, 1e150])
@pytest.mark.parametrize("bound", [1e-150, 0.1, 7.0, 1e150])
def test_no_row_on_the_grid_is_longer_than_the_bound(size, bound):
    """Counted in Python's whole numbers: the sum of squares is at most the square of the steps, with nothing over."""
    placed = on_grid(rows(500, 20) * size, bound)
    assert np.array_equal(placed, np.round(placed))
    assert max(sum(int(value) ** 2 for value in row) for row in placed) <= STEPS**2


def test_rounding_makes_no_row_longer_where_every_value_is_rounded_up():
    """At the bound, each value half a step above a whole number: to the nearest, without a margin, is beyond."""
    row = np.full((1, 900), (STEPS // 30 + 0.5) / STEPS)
    assert float((np.rint(row * STEPS) ** 2).sum()) > STEPS**2
    assert float((on_grid(row, 1.0) ** 2).sum()) <= STEPS**2


def test_rounding_leaves_variances_as_they_are():
    """Of rows far below the bound; toward zero, each would be smaller by a hundredth."""
    data = rows(20_000, 5)
    placed = on_grid(data, 100.0) * (100.0 / STEPS)
    np.testing.assert_allclose((placed**2).sum(axis=0), (data**2).sum(axis=0), rtol=2e-3)


@pytest.mark.parametrize("at_once", [2**22, 100])
def test_sums_are_exact_whole_numbers(at_once, monkeypatch):
    """Beyond what float32 or a rounding would keep: against Python's integers."""
    monkeypatch.setattr(privacy, "CHUNK_ELEMENTS", at_once)
    monkeypatch.setattr(chunks, "__defaults__", (at_once,))
    data, centre = rows(3000, 5) * 4, np.arange(5.0)
    placed = on_grid(data - centre, 2.0).astype(int).astype(object)
    expected = (placed.T @ placed)[np.triu_indices(5)]
    assert [int(value) for value in whole_products(data, centre, 2.0)] == list(expected)
    assert [int(v) for v in whole_sum(data, centre, 2.0)] == list(placed.sum(axis=0))
