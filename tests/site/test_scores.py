"""What a site finds of its rows in the last round, in closed form."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from fedpca_flwr.site.scores import OddRows


def test_a_row_is_odd_beyond_either_limit_and_counts_where_it_takes_part():
    """One component of variance 4 along the first of three features; limits of T2 and SPE are 4 and 1."""
    stream = BytesIO()
    found = OddRows(np.array([[1.0, 0.0, 0.0]]), np.array([4.0]), np.array([4.0, 1.0]), 3, stream)
    found.add(np.array([[4.0, 0.0, 1.0], [6.0, 1.0, 0.0]]))
    found.add(np.array([[0.0, 0.5, 2.0], [99.0, 99.0, 98.0]]))
    np.testing.assert_array_equal(found.above, [1, 1])
    np.testing.assert_array_equal(found.fourth, [2.0**4 + 3.0**4])
    lines = [line.split(",") for line in stream.getvalue().decode().splitlines()]
    assert [line[0] for line in lines[:3]] == ["4", "9", "0"]
    assert [line[2] for line in lines[:3]] == ["1", "1", "4.25"]
    assert [line[4] for line in lines] == ["0", "1", "1", "1"]
    assert [line[5] for line in lines] == ["2 0 1", "1 0 2", "2 1 0", "1 2 0"]
