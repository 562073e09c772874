"""Public limits on sums: what they must take, and what no rows can have."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.questions import columns, genotypes, incomplete, row_limits
from fedpca_flwr.questions.products import require_possible
from fedpca_flwr.questions.row_limits import ROWS, UNSEEN
from tests.refusals import refused

SPREAD = np.array([2.0, 3.0])  # of rows that are all on one line, which meet Cauchy and Schwarz
THREE = SimpleNamespace(config=SimpleNamespace(bound=3.0))
TEN = {"rows": np.asarray(10)}
SQUARES = 1.01 * 10 * np.array([4.0, 1.0])  # ten rows of variance 1, and a deviation beyond the model's mean
NAMES = ("energy", "sum", "spread")


def of_columns(largest):
    """Of four rows and five columns."""
    return {"energy": 20 * largest**2, "sum": 20 * largest, "spread": 20 * 4 * largest**2}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (row_limits.sum_limits(3.0, 2), {"count": ROWS, "sum": [3.0 * ROWS] * 2}),
        (row_limits.deviation_limits(3.0, 10, 2), {"shift": [60.0] * 2, "diagonal": [360.0] * 2}),  # about -3: 6 away
        (row_limits.projection_limits(10, 5.0), {"count": 10, "squared": 10.0}),
        (
            row_limits.uncentred_limits(3.0, 2, within=True),
            {"count": ROWS, "sum": [3.0 * ROWS] * 2, "scatter": [9.0 * ROWS] * 3, "squares": [9.0 * ROWS] * 2},
        ),
        (row_limits.scatter_limits(SPREAD), {"scatter": [4.0, 6.0, 9.0]}),
        (
            row_limits.product_limits(SPREAD, np.array([[1.0, 0.0], [-1.0, 5.0]])),
            {"product": [[10.0, 30.0], [15.0, 45.0]]},
        ),
        (columns.measure_limits(NAMES, 3.0, 4, 5, scaled=False, centred=()), of_columns(2 * 3.0)),
        (columns.measure_limits(NAMES, 3.0, 4, 5, scaled=False, centred=NAMES), of_columns(2 * 3.0)),
        (columns.measure_limits(NAMES, 3.0, 4, 5, scaled=True, centred=()), of_columns(columns.LARGEST_SCALED)),
        (columns.measure_limits(NAMES, 3.0, 4, 5, scaled=True, centred=NAMES), of_columns(2 * 4**0.5)),
        (
            genotypes.ALLELES["alleles"].limits({}, None),  # two copies of every allele at most
            {"count": ROWS, "called": ROWS, "alleles": 2 * ROWS, "squares": 4 * ROWS},
        ),
        (
            incomplete._deviation_limits({**TEN, "centre": np.array([-2.0, 0.0])}, THREE),
            {"shift": [50.0, 30.0], "diagonal": [250.0, 90.0]},
        ),
        (
            incomplete._expected_limits({**TEN, "mean": np.array([1.0, 0.0]), "covariance": np.zeros(3)}, None),
            {"first": np.sqrt(10 * SQUARES), "second": [SQUARES[0], np.sqrt(SQUARES.prod()), SQUARES[1]]},
        ),
    ],
)
def test_limits_in_closed_form(limits, expected):
    assert limits.keys() == expected.keys()
    for name, value in expected.items():
        assert np.shape(limits[name]) in ((), np.shape(value))
        np.testing.assert_allclose(limits[name], value, rtol=1e-14)


def test_what_a_nearly_singular_model_expects_is_within_the_limits():
    """Four rows have 1 or -1 as the first of two features with the covariance [[f, c], [c, 1]], and not the second: it
    is expected to be c / f times as large. With f = 2^-39 and c^2 = f / 2 that is 524,288, of a deviation of 1."""
    n, f = 4, 2.0**-39
    c = np.sqrt(f / 2)
    sums = {"first": np.zeros(2), "second": n * np.array([1.0, c / f, (c / f) ** 2 + 1 - c**2 / f])}
    asked = {"rows": np.asarray(n), "centre": np.zeros(2), "spread": np.ones(2), "mean": np.zeros(2)}
    config = RunConfig.parse({"secure-aggregation": True, "bound": 1.0})
    layout = incomplete.expected_phase(1).layout(
        {**asked, "covariance": np.array([f, c, 1.0])}, Public(config, None, parties=3, features=2)
    )
    _, opened = layout.decode(layout.encode(sums))
    np.testing.assert_allclose(opened["second"], sums["second"])


def test_what_two_sums_say_of_all_rows_in_closed_form():
    """Four rows whose values are 0.5 beyond the centre in the mean, of squares about it that add up to 9."""
    pooled = row_limits.pooled_of(10.0, 4, np.array([1.0, 1.0]), np.array([2.0, 0.0]), np.array([9.0, 0.0]))
    np.testing.assert_array_equal(pooled.remainder, [0.5, 0.0])
    np.testing.assert_array_equal(pooled.diagonal, [9.0 - 4 * 0.25, 0.0])
    assert 3.0 < pooled.spread[0] < 3.0 + 1e-5, "about the centre, since later sums are"
    assert 0 < pooled.spread[1] < 1e-20, "fixed point may have missed what is not zero"


# What no rows have


def test_sites_have_their_part_of_the_rows_and_sums_a_billionth_unseen():
    row_limits.require_few_rows(ROWS // 8, 8)
    with refused(DataError, "1,099,511,627,776"):
        row_limits.require_few_rows(ROWS // 8 + 1, 8)
    diagonal = np.array([3.0, 1.0])
    row_limits.require_resolved(1.0, np.array([UNSEEN * 4.0, 0.0]), diagonal)
    with refused(ConfigError, "'bound'"):
        row_limits.require_resolved(1.0, np.array([UNSEEN * 4.0, 1e-15]), diagonal)
    assert UNSEEN <= 1e-9


@pytest.mark.parametrize("rows", [-1, 0, 1, 2, ROWS + 1])
def test_fewer_rows_than_parties_or_more_than_a_sum_holds_are_a_false_share(rows):
    assert [row_limits.rows_in(np.asarray(float(right)), 3) for right in (3, ROWS)] == [3, ROWS]
    with refused(ContractError, 3, rows):
        row_limits.rows_in(np.asarray(float(rows)), 3)


def test_a_feature_has_values_in_some_rows_and_no_more_than_there_are():
    incomplete._require_observed(3, np.array([3.0, 1.0]))
    for counts in ([4.0, 1.0], [-1.0, 1.0]):
        with refused(ContractError):
            incomplete._require_observed(3, np.array(counts))
    with refused(DataError, "[1]"):
        incomplete._require_observed(3, np.array([3.0, 0.0]))


def test_squared_distances_are_below_zero_by_rounding_at_most():
    columns.require_distances(np.array([-0.5, 3.0]), 0.5)
    columns.require_distances(np.empty(0), 0.0)
    with refused(ContractError, -0.501):
        columns.require_distances(np.array([-0.501, 3.0]), 0.5)


@pytest.mark.parametrize("size", [2.0001e6, -2.0001e6, 1e300, np.nan, np.inf])
def test_a_product_is_not_a_million_times_what_variances_allow(size):
    block = np.eye(3)[:, :1]
    require_possible(np.array([[0.0], [2e6], [-2e6]]), block, 2.0)
    with refused(ContractError, 2, "'p-cov'"):
        require_possible(np.array([[0.0], [size], [0.0]]), block, 2.0)
