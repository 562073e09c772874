"""Steps of k-means, of mixtures and of Harmony on a few points."""

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

from fedpca_flwr.maths import clustering, harmony


def test_centres_move_to_the_means_of_their_cells_and_chords_share_rows_out():
    drawn = clustering.draw_starts(np.array([4.0, 1.0]), 50, 40, seed=0)
    assert drawn.shape == (40, 50, 2)
    assert (drawn != clustering.draw_starts(np.array([4.0, 1.0]), 50, 40, seed=1)).all()
    np.testing.assert_allclose(drawn.reshape(-1, 2).var(axis=0), [4, 1], rtol=0.05)
    centres = np.array([[[0.0], [4.0]]])
    cells = clustering.CellSums.empty(centres)
    for points in (np.array([[0.0], [1.0]]), np.array([[6.0]])):
        cells.add(points, centres)
    assert (cells.counts.tolist(), cells.sums.tolist(), cells.inertia.tolist()) == ([[2, 1]], [[[1.0], [2.0]]], [5.0])
    np.testing.assert_array_equal(cells.step(centres), [[[0.5], [6.0]]])
    # One row of length 1 at a centre, and at a chord of 2 from the other, which its batch is drawn to.
    penalty = np.array([0.0, 2 / harmony.CLUSTER_WIDTH - 1])
    (found,), (objective,) = harmony.cluster_shares(np.array([[1.0, 0.0]]), np.eye(2), penalty)
    expected = softmax([0.0, -1.0])
    np.testing.assert_allclose(found, expected)
    assert objective == pytest.approx(expected @ ([0, 2] + harmony.CLUSTER_WIDTH * np.log(expected)))
    told = harmony.log_excess(np.array([[3.0, 1.0], [1.0, 3.0]]))
    np.testing.assert_allclose(told, np.log([[4 / 3, 2 / 3], [2 / 3, 4 / 3]]))
    units = harmony.normalise_rows(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 0.5]]))
    np.testing.assert_array_equal(units, [[0.6, 0.8], [0, 0], [0, 1]])
    steps, points = harmony.Steps.empty(2, 1, 2).begin_step(np.eye(2), np.zeros((2, 1))), drawn[0, :9]
    added = harmony.BatchSums.from_scores(steps, iter([points[:4], points[4:]]), 0)
    units = harmony.normalise_rows(points)
    shares, objective = harmony.cluster_shares(units, np.eye(2), np.zeros(2))
    np.testing.assert_allclose([added.units, added.sums], [shares.T @ units, shares.T @ points], rtol=1e-12)
    assert [*added.counts, added.objective] == pytest.approx([*shares.sum(axis=0), objective.sum()])


def test_a_step_of_a_mixture_counts_all_points_by_their_shares():
    covariances = np.array([[[1.0, 0.6], [0.6, 2.0]], [[3.0, -1.0], [-1.0, 1.0]], np.eye(2)])
    means = np.array([[0.0, 1.0], [2.0, -1.0], [1e3, 1e3]])
    mixture = clustering.Mixture(np.array([0.3, 0.6, 0.1]), means, covariances)
    points, sums = np.random.default_rng(0).normal(1, 2, (40, 2)), clustering.MixtureSums.empty(mixture)
    laws = map(multivariate_normal, means, covariances)
    densities = np.transpose([law.pdf(points) for law in laws]) * mixture.weights
    shares = (densities / densities.sum(axis=1, keepdims=True))[:, :2]
    found, logs = mixture.responsibilities(np.array([points[0], [1e5, 1e5]]))
    np.testing.assert_allclose(found, [[*shares[0], 0], [1, 0, 0]], atol=1e-15)
    np.testing.assert_allclose(logs, [np.log(densities[0].sum()), -clustering.MAX_LOG_DENSITY])
    for part in (points[:15], points[15:]):
        sums.add(part, mixture)
    assert sums.log_density == pytest.approx(np.log(densities.sum(axis=1)).sum())
    moved = sums.step(mixture.means, 0.5)
    assert moved.weights == pytest.approx([*shares.mean(axis=0), 0])
    assert moved.weights[2] > 0
    np.testing.assert_allclose(moved.means, [*(shares.T @ points / shares.sum(axis=0)[:, None]), [1e3, 1e3]])
    expected = [*(np.cov(points.T, aweights=weights, ddof=0) for weights in shares.T), np.zeros((2, 2))]
    np.testing.assert_allclose(moved.covariances, expected + 0.5 * np.eye(2), atol=1e-12)
