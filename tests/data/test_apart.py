"""Values far from all others of their column are noted; heavy tails, rare ones and counts are not."""

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.data.apart import apart, text_of
from simulations import run
from tests.families import rows

N = 200


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    columns = [rng.integers(18, 90, N), rng.normal(1, 0.3, N), rng.lognormal(0, 1, N), rng.random(N) < 0.05]
    return np.column_stack([*columns, rng.poisson(0.5, N), rng.standard_t(3, N)]).astype(np.float64)


def test_usual_tables_have_none(table):
    assert apart(table) == {}
    assert apart(np.ones((N, 2))) == {}
    assert apart(np.arange(18.0)[:, None] ** 9) == {}
    table[3, 1], table[4, 1] = np.inf, 1.7e308
    assert apart(table) == {1: 1}
    for other in (np.full((N, 2), "text"), np.ones((N, 0)), table[:, 1], np.uint8(table > 1) * 255):
        assert apart(other) == {}


def test_codes_and_slips_are_counted_from_both_ends_beside_missing_values(table):
    table[:7, 1] = -999
    table[[3, 4], 0] = 40_000, 61_000
    table[5, 0] = -9999
    table[20:40, :2] = np.nan
    assert apart(table) == {0: 3, 1: 7}
    assert apart(table.astype(np.float32)) == {0: 3, 1: 7}
    assert text_of(apart(table), ("age", "creatinine")) == "10 values of 'age', 'creatinine'"
    assert text_of({1: 1}, ()) == "1 value of 1"


def test_a_second_group_of_rows_is_none(table):
    """A tenth of the rows at most: what more rows have is a part of the data."""
    table[: N // 10, 1] = -999
    assert apart(table) == {1: N // 10}
    table[0, 1] = 40_000
    assert apart(table) == {1: N // 10}
    table[N // 10, 1] = -999
    assert apart(table) == {}


def test_a_model_of_tables_has_a_note(table):
    frames = [pd.DataFrame(rows(N, 3), columns=list("abc")) for _ in range(2)]
    assert not any("'b'" in note for note in run("p-cov", frames, n_components=2).log["notes"])
    frames[1].iloc[3, 1] = 1e6
    (note,) = [note for note in run("p-cov", frames, n_components=2).log["notes"] if "'b'" in note]
    assert "party 1" in note
    assert "1 value" in note
