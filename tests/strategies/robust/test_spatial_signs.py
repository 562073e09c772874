"""Which rows count that lie far from a centre, and quantiles of values that are counted on a grid."""

import numpy as np
import pytest

from fedpca_flwr.strategies.robust import spatial_signs as signs


def test_rows_count_by_their_directions():
    """Rows at distances of 1, 2 and 4 from the centre, of which the first is nearer than the floor of 1.5."""
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]])
    found = signs.sign_sums([rows[:1], rows[1:]], 2, 1.5)
    np.testing.assert_allclose(found.signs, [1 / 1.5 + 1, 1])
    assert (found.weight, found.rows) == (pytest.approx(1 / 1.5 + 0.5 + 0.25), 3)
    np.testing.assert_allclose(found.step, found.signs / found.weight)
    assert found.mean_sign_length == pytest.approx(np.hypot(1 / 1.5 + 1, 1) / 3)
    np.testing.assert_allclose(signs.sign_scatter([rows[:2], rows[2:]], 2, 1.5), np.diag([1 / 1.5**2 + 1, 1.0]))
    assert not signs.sign_scatter([np.zeros((1, 2))], 2, 0.0).any()
    rows = np.random.default_rng(4).standard_normal((220, 8)) * [240, 7, 6, 5, 4, 3, 2, 1]
    rows[200:] = 1e5
    median = signs.spatial_median(lambda c: signs.sign_sums([rows - c], 8, 0.0), rows.mean(axis=0))
    assert np.linalg.norm(((rows - median) / np.linalg.norm(rows - median, axis=1)[:, None]).mean(axis=0)) < 1e-8


def test_far_rows_count_less():
    shape = signs.Directions(np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 1e6]))
    survivors = signs.Survivors(shape, np.array([5.0, 10.0]))
    rows = np.array([[0, 0], [3.5, 0], [4.0, 0], [4.5, 0], [0, 6], [0, 11.0], [0, 17]])
    np.testing.assert_allclose(survivors.row_weights(rows), [1, 1, 0.5, 0, 0.8, 0, 0])
    np.testing.assert_allclose(survivors.blunt(np.array([8.0, 0.0]), 6.0).row_weights(rows), [1, 1, 1, 1, 5 / 6, 0, 0])
    assert not signs.Survivors(shape, np.array([1e3, 1e4])).row_weights(rows)[-1]  # beyond what the sum has room for


@pytest.mark.parametrize(("own_gap", "far"), [(3.0, 10.0), (6.0, 11.0), (1e9, 1e9 + 5)])
def test_a_party_moves_a_reach_by_its_distances_only(own_gap, far):
    """Count no row for which a sum has no room, however far the end of the reach is."""
    shape = signs.Directions(np.eye(2), np.zeros(2), np.full(2, 1e6))
    blunted = signs.Survivors(shape, np.array([5.0, 10.0])).blunt(np.zeros(2), own_gap)
    assert blunted.reach.tolist() == [5, far]
    np.testing.assert_allclose(blunted.row_weights(np.array([[8.0, 0], [16.5, 0]])), [(far - 8) / (far - 5), 0])


def test_directions_that_do_not_stand_out_leave_no_row_out():
    """Take 400 rows along 4 directions: 1.21 is the edge of chance, and cutting begins at 3/4 of the way."""
    counts = np.zeros((5, signs.BINS))
    counts[:, signs.SIDE_BINS + np.arange(0, 40)] = 5.0
    for ratio, strength in ((1.1, 2.0**-20), (1.21, 0.5), (1.3, 1.0)):
        values = np.array([ratio, *[(4 - ratio) / 3] * 3])
        found = signs.find_survivors(np.eye(4), values, 400, counts)
        own = signs.directions_from_counts(np.eye(4), np.ones(4), counts[:-1]).spreads
        np.testing.assert_allclose(found.shape.spreads[0], own[0] / strength)
        np.testing.assert_allclose(found.shape.spreads[1:], own[1:] * 2**20)
    first, middle = ((2 + signs.quantile(counts[-1], share)) ** (2 / 3) for share in (0.25, 0.5))
    deviation = (middle - first) / 0.6744897501960817
    np.testing.assert_allclose(found.reach, (middle + np.array([1.96, 3.29]) * deviation) ** 1.5)


def test_half_of_equal_scores_leave_no_row_far():
    counts = signs.tally(np.append(np.zeros(60), np.linspace(0.5, 9, 40))[:, None])
    directions = signs.directions_from_counts(np.eye(1), np.array([2.0]), counts)
    assert (directions.middles[0], directions.spreads[0]) == (0, 32)
    assert signs.variances_from_counts(np.array([2.0]), counts) == [0]


def test_floors_and_limits_follow_from_quantiles():
    assert [signs.distance_floor(np.array(far)) for far in ([1.0, 2.0, 9.0], [0.0, 0.0, 3.0], [0.0])] == [0.5, 0.25, 1]
    counts, places = np.zeros(signs.BINS, dtype=np.int64), [100, 140]
    counts[places] = 2, 6
    np.testing.assert_array_equal(np.flatnonzero(signs.tally(signs.BIN_EDGES[places, None])), places)
    expected = [(signs.BIN_EDGES[100] + signs.BIN_EDGES[101]) / 2, signs.BIN_EDGES[141]]
    np.testing.assert_allclose([signs.quantile(counts, share) for share in (0.125, 1.0)], expected)
    first, middle, third = ((3 * signs.quantile(counts, share)) ** (2 / 3) for share in (0.25, 0.5, 0.75))
    found = signs.SquaredErrors.from_counts(counts, 3.0)
    assert (found.middle, found.deviation) == pytest.approx((middle, (third - first) / (2 * 0.6744897501960817)))
    assert signs.SquaredErrors(2.0, 0.5).limit(0.5) == pytest.approx(8)
    assert signs.SquaredErrors(2.0, 0.5).limit(0.8413447460685429) == pytest.approx(2.5**3)


def test_numbers_of_counts_are_those_of_the_rows():
    values = np.random.default_rng(4).standard_normal((20_000, 12)) * 3 + 0.5
    counts, middle = signs.tally(values / 3), np.median(values, axis=0)
    assert (counts.sum(axis=1) == 20_000).all()
    spread = np.median(np.abs(values - middle), axis=0) / 0.6744897501960817
    directions = signs.directions_from_counts(np.eye(12), np.full(12, 3.0), counts)
    np.testing.assert_allclose(directions.middles, middle, atol=0.02)
    np.testing.assert_allclose(directions.spreads, spread, rtol=0.01)
    np.testing.assert_allclose(signs.variances_from_counts(np.full(12, 3.0), counts), spread**2, rtol=0.02)
    lengths = np.linalg.norm(values - 0.5, axis=1) / 3
    errors = signs.SquaredErrors.from_counts(signs.tally(lengths[:, None])[0], 1.0)
    assert errors.mean == pytest.approx(12, rel=0.03)
    assert (lengths**2 > errors.limit(0.99)).mean() == pytest.approx(0.01, abs=0.004)
    assert signs.SquaredErrors(2.0, 0.5).mean == 8 + 3 * 2 * 0.25


@pytest.mark.parametrize("minimum", [1, 5, 30])
def test_no_bin_counts_fewer_rows_than_the_minimum(minimum):
    sizes = np.append(np.random.default_rng(4).standard_normal(100), [0.0, 1e9])
    both = signs.tally(np.column_stack([sizes, 3 * sizes]))
    for factor, counts in zip((1, 3), signs.merge_small_bins(both, minimum), strict=True):
        assert counts.sum() == 102
        assert counts[counts > 0].min() >= minimum
        assert signs.quantile(counts, 0.5) == pytest.approx(factor * np.median(sizes), abs=0.2 * factor)
