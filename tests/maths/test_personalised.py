"""Ozkara et al. 2023's mathematics: gradients by finite differences, the gauge, both solvers, the ends."""

import numpy as np
import pytest
from scipy.linalg import eigh

from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.personalised import (
    converged_components,
    distance,
    gradient_step,
    local_components,
    objective,
    own_gradient,
    perpca,
    personal_components,
    shared,
    shared_gradient,
    strength,
)
from fedpca_flwr.maths.rows import held_out
from fedpca_flwr.maths.stiefel import polar, retraction, tangent

NOISE, SPREAD = 0.5, 0.04


def setting(n=20, d=12, r=3, m=6):
    rng = np.random.default_rng(0)
    U, V = (polar(rng.standard_normal((d, r))) for _ in range(2))
    return rng.standard_normal((m, n, d)) * np.linspace(2, 0.5, d), U, V


def dense_objective(rows, U, V):
    """Equation (4) with its d x d matrices, and no turning."""
    W = U @ U.T + NOISE * np.eye(len(U))
    S = rows.T @ rows / len(rows)
    prior = np.square(tangent(V, U)).sum() / (2 * SPREAD)
    return len(rows) / 2 * (np.linalg.slogdet(W)[1] + np.trace(np.linalg.solve(W, S))) + prior


def test_objective_and_distance_are_those_over_all_rotations():
    rows, U, V = setting()
    value = objective(rows[0], U, V, noise=NOISE, spread=SPREAD)
    left, _, right = np.linalg.svd(U.T @ V)
    assert value == pytest.approx(dense_objective(rows[0], U @ left @ right, V), rel=1e-12)
    assert value < dense_objective(rows[0], U, V)
    _, U, V = setting()
    W, _, Z = np.linalg.svd(U.T @ V)
    turned = U @ W @ Z
    assert np.square(tangent(V, turned)).sum() == pytest.approx(3 - np.square(V.T @ U).sum(), rel=1e-12)
    assert distance(U, V) == pytest.approx(3 - np.square(V.T @ U).sum(), rel=1e-12)
    assert distance(V, V) < 1e-28


def test_gradients_are_those_of_finite_differences():
    rows, U, V = setting()
    c, scale = strength(NOISE, SPREAD), NOISE * (1 + NOISE)
    gradient = tangent(U, own_gradient(rows[0], U, V, c)) / scale
    rng, h = np.random.default_rng(1), 1e-4
    for _ in range(5):
        T = tangent(U, rng.standard_normal(U.shape))
        ends = [dense_objective(rows[0], retraction(U, step * T), V) for step in (2 * h, h, -h, -2 * h)]
        slope = (-ends[0] + 8 * ends[1] - 8 * ends[2] + ends[3]) / (12 * h)
        assert np.vdot(gradient, T) == pytest.approx(slope, rel=1e-6)
    _, U, V = setting()
    rng, h = np.random.default_rng(2), 1e-4
    for _ in range(5):
        T = tangent(V, rng.standard_normal(V.shape))
        halves = [np.square(tangent(W, U)).sum() / 2 for W in (retraction(V, h * T), retraction(V, -h * T))]
        assert np.vdot(shared_gradient(U, V), T) == pytest.approx((halves[0] - halves[1]) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("n", [4, 9, 40])
def test_personal_components_are_the_leading_eigenvectors(n):
    rows, _, V = setting(n=n)
    own = converged_components(rows[0], V, 5.0, V)
    _, vectors = eigh(rows[0].T @ rows[0] + 5.0 * V @ V.T)
    assert principal_angles(own, vectors[:, -3:]).max() < 1e-5


def test_components_of_many_are_their_members_and_never_lose():
    rows, _, V = setting(n=7)
    strengths, several = np.array([0.5, 2.0]), np.array([V, V[:, ::-1]])
    for i in range(2):
        one = personal_components(rows[0], several[i], strengths[i], several[i])
        assert principal_angles(personal_components(rows[0], several, strengths, several)[i], one).max() < 1e-6
    rows, U, V = setting(n=40, d=30, r=3)

    def gain(own):
        return np.square(rows[0] @ own).sum() + 2.0 * np.square(V.T @ own).sum()

    gains = [gain(U)]
    for _ in range(6):
        U = personal_components(rows[0], V, 2.0, U)
        gains.append(gain(U))
    assert (np.diff(gains) >= -1e-10).all()


@pytest.mark.parametrize("n", [2, 8, 40])
def test_local_components_are_the_partys_pca(n):
    rows, _, V = setting(n=n)
    own = local_components(rows[0], V)
    np.testing.assert_allclose(own.T @ own, np.eye(3), atol=1e-13)
    _, vectors = eigh(rows[0].T @ rows[0])
    rank = min(n, 3)
    assert principal_angles(own[:, :rank], vectors[:, -rank:]).max() < 1e-6


def test_a_local_pca_of_few_rows_is_filled_by_what_it_is_given():
    rows, _, V = setting(n=2)
    own = local_components(rows[0], V)
    limit = personal_components(rows[0], V, 1e-9, V)
    assert principal_angles(own, limit).max() < 1e-3
    assert distance(local_components(np.zeros((2, 12)), V), V) < 1e-25


def test_both_solvers_reach_the_same_objective():
    rows, _, _ = setting(n=20, d=12, r=3, m=8)
    _, _, vectors = np.linalg.svd(rows.reshape(-1, 12), full_matrices=False)
    start = vectors[:3].T
    c = strength(NOISE, SPREAD)
    U, V = np.broadcast_to(start, (8, 12, 3)), start
    for _ in range(200):
        U = personal_components(rows, V, c, U)
        V = np.linalg.qr(shared(U, V).mean(axis=0)).Q
    closed = objective(rows, U, V, noise=NOISE, spread=SPREAD).mean()
    largest = np.linalg.norm(rows, 2, axis=(-2, -1)) ** 2
    U, V, values = np.broadcast_to(start, (8, 12, 3)), start, []
    for _ in range(1500):
        U, versions = gradient_step(rows, U, V, c, largest)
        V = retraction(V, versions.mean(axis=0) - V)
        values.append(objective(rows, U, V, noise=NOISE, spread=SPREAD).mean())
    assert values[-1] == pytest.approx(closed, abs=5e-3)
    assert (np.diff(values) < 1e-9).all()


def test_what_is_held_out_depends_on_the_rows_and_not_on_their_order():
    X = np.random.default_rng(4).standard_normal((53, 4))
    order = np.random.default_rng(5).permutation(53)
    assert held_out(X, 1).sum() == 10
    np.testing.assert_array_equal(held_out(X[order], 1), held_out(X, 1)[order])
    assert (held_out(X, 1) != held_out(X, 2)).any()
    counts = np.arange(24, dtype=np.uint8).reshape(8, 3)
    np.testing.assert_array_equal(held_out(counts, 1), held_out(counts.astype(float), 1))


def test_perpca_finds_what_is_shared_and_what_is_not_and_keeps_them_apart():
    rng = np.random.default_rng(6)
    basis, _ = np.linalg.qr(rng.standard_normal((10, 10)))
    truth = np.array([basis[:, [0, 1, 2 + i]] for i in range(4)])
    rows = (rng.standard_normal((4, 400, 3)) * [3, 2, 1.5]) @ np.swapaxes(truth, 1, 2)
    rows = rows + 0.05 * rng.standard_normal(rows.shape)
    _, _, vectors = np.linalg.svd(rows.reshape(-1, 10), full_matrices=False)
    found = perpca(rows, vectors[:3].T, 2)
    assert principal_angles(found[0][:, :2], basis[:, :2]).max() < 1
    assert max(principal_angles(one, true).max() for one, true in zip(found, truth, strict=True)) < 1
    parties = np.random.default_rng(0).standard_normal((3, 20, 6))
    start = np.linalg.svd(parties.reshape(-1, 6))[2][:3].T
    for U in perpca(parties, start, 1, iterations=2):
        np.testing.assert_allclose(U.T @ U, np.eye(3), atol=1e-12)
