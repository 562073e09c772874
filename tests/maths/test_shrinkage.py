"""New rows' scores are too small by what the spectrum tells."""

import numpy as np
import pytest

from fedpca_flwr import analyses, run
from fedpca_flwr.maths.inference import shrinkage


def populations(n, d, seed):
    """Rows of three populations whose centres are a noise level's multiple apart, and new rows of the same."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((3, d)) * 0.12
    label = np.arange(2 * n) % 3
    rows = centres[label] + rng.standard_normal((2 * n, d))
    return rows[:n], label[:n], rows[n:], label[n:]


@pytest.mark.parametrize(("n", "d"), [(150, 3000), (300, 1500)])
def test_corrected_scores_of_new_rows_lie_where_those_of_the_pca_do(n, d):
    old, old_label, new, new_label = populations(n, d, 0)
    model = run("qr-pca", np.array_split(old, 3), n_components=2)

    def centres(scores, label):
        return np.array([scores[label == one].mean(axis=0) for one in range(3)])

    seen = centres(model.transform(old), old_label)
    plain = np.linalg.norm(centres(model.transform(new), new_label)) / np.linalg.norm(seen)
    right = np.linalg.norm(centres(analyses.projected(model, new), new_label)) / np.linalg.norm(seen)
    assert plain < 0.9
    np.testing.assert_allclose(right, 1, atol=0.04)
    np.testing.assert_allclose(model.shrinkage_, plain, atol=0.05)
    assert any("scores of new rows lie at 0." in note for note in model.log["notes"])


def test_shrinkage_is_the_formulas_and_none_of_few_features_or_without_variance():
    rows = np.random.default_rng(0).standard_normal((2000, 5)) * [5, 4, 1, 1, 1]
    model = run("p-cov", np.array_split(rows, 2), n_components=2)
    np.testing.assert_allclose(model.shrinkage_, 1, atol=0.01)
    assert model.log["notes"] == []
    # Beside a level of 1e28 a variance of 1 is nothing: l + gamma - 1 is 0, and nothing is divided by it.
    with np.errstate(all="raise"):
        assert np.isnan(shrinkage(np.array([1e30, 1.0]), 1e30 + 1.0 + 5e29, 100, 30)[1])
    # gamma = 4, level 1: a component of 12 stands for l with l + 4 l / (l - 1) = 12.
    found = shrinkage(np.array([12.0, 4.0]), 12.0 + 4.0 + 4.0 * 98, 101, 400)
    spike = (9 + np.sqrt(81 - 48)) / 2
    np.testing.assert_allclose(spike + 4 * spike / (spike - 1), 12)
    np.testing.assert_allclose(found[0], (spike - 1) / (spike + 3))
    assert np.isnan(found[1])
    with np.errstate(all="raise"):
        found = shrinkage(np.array([4.0, 0.0]), 5.0, 20, 10)
    assert found[0] > 0
    assert np.isnan(found[1])
