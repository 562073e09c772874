"""What rows count that lie so far from a centre, and quantiles of distances that are counted on a grid."""

import numpy as np
import pytest

from fedpca_flwr.maths import spatial_signs as signs


def test_rows_count_in_full_up_to_a_reach_less_beyond_it_and_then_not_at_all():
    """Rows at distances of 1, 2 and 4 from the centre, of which the first is nearer than the floor of 1.5."""
    rows, reach = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]]), np.array([1.0, 3.0])
    found = signs.sign_sums([rows[:1], rows[1:]], 2, 1.5, reach)
    np.testing.assert_allclose(found.signs, [1 / 1.5, 0.5])
    assert (found.weight, found.rows) == (pytest.approx(1 / 1.5 + 0.25), 3)
    np.testing.assert_allclose(found.step, found.signs / found.weight)
    assert found.size == pytest.approx(np.hypot(1 / 1.5, 0.5) / 3)
    assert not signs.sign_sums([rows], 2, 1.5, signs.NOWHERE).step.any()
    np.testing.assert_allclose(signs.sign_scatter([rows], 2, 0.5, reach), np.diag([4.0, 0.5 * 16]))
    assert signs.within(np.array([1.0, 2.0, 3.0]), reach, 1).tolist() == [True, True, False]
    assert signs.within(np.array([1.0, 2.0, 3.0]), reach, 2).all()


def test_floors_reaches_and_limits_follow_from_quantiles():
    assert [signs.floor_of(np.array(far)) for far in ([1.0, 2.0, 9.0], [0.0, 0.0, 3.0], [0.0])] == [0.5, 0.25, 1]
    counts = np.zeros(signs.BINS, dtype=np.int64)
    counts[[100, 140]] = 2, 6
    unit = 3.0 * 2.0**signs.LOWEST
    expected = [unit * 2 ** (place / signs.STEPS) for place in (100.5, 141.0)]
    np.testing.assert_allclose([signs.quantile(counts, share, 3.0) for share in (0.125, 1.0)], expected)
    # The roots of squared distances are nearly normal, and half of those that count lie below the middle.
    first, middle = (signs.quantile(counts, share, 3.0) ** (2 / 3) for share in (0.25, 0.5))
    deviation = (middle - first) / 0.6744897501960817
    np.testing.assert_allclose(signs.reach_of(counts, 3.0), (middle + np.array([1.96, 3.29]) * deviation) ** 1.5)
    assert signs.normal_variance(counts, 3.0) == pytest.approx((middle**1.5 / 0.6744897501960817) ** 2)
    found, third = signs.Errors.of(counts, 3.0), signs.quantile(counts, 0.75, 3.0) ** (2 / 3)
    assert (found.middle, found.deviation) == pytest.approx((middle, (third - first) / (2 * 0.6744897501960817)))
    assert signs.Errors(2.0, 0.5).limit(0.5) == pytest.approx(8)
    assert signs.Errors(2.0, 0.5).limit(0.8413447460685429) == pytest.approx(2.5**3)
