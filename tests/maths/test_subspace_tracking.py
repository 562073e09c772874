"""One pass, any blocks: an exact mean, the subspace of a batch PCA where nothing is truncated; merging is a sum."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import principal_angles, projector_distance
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.rows import row_chunks
from fedpca_flwr.strategies.sapca.streams import Band, Energy, Fixed, Subspace, Tracker, merge, track
from tests.families import rows
from tests.harness import peak_of


def offline(X, k):
    return np.linalg.eigh(X.T @ X)[1][:, : -k - 1 : -1]


def assert_orthonormal(subspace):
    assert np.abs(subspace.vectors.T @ subspace.vectors - np.eye(subspace.sigma.size)).max() < 1e-12


def scatter(subspace):
    return subspace.vectors * subspace.sigma**2 @ subspace.vectors.T


def singular_values(X):
    return np.linalg.svd(X, compute_uv=False)


@pytest.mark.parametrize("block", [1, 7, 50, 299, 1000])
def test_any_blocks_give_the_batch_pca_and_its_mean(block):
    X = rows(300) + 1e3 * np.arange(12)
    own, centred = track(X, 5, tracked=12, block=block), X - X.mean(axis=0)
    assert own.head.n == 300
    np.testing.assert_allclose(own.head.mean + own.head.remainder, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(own.sigma, singular_values(centred), rtol=1e-9)
    assert principal_angles(own.vectors[:, :5], offline(centred, 5)).max() <= 1e-6
    np.testing.assert_allclose(own.energy, np.vdot(centred, centred), rtol=1e-10)
    assert own.omitted <= 1e-9 * own.energy


@pytest.mark.parametrize("units", [np.ones(9), 10.0 ** -np.arange(9)])
def test_truncation_and_rounding_are_bounded(units):
    """The true scatter is that of the subspace and a positive semidefinite rest, whose norm and trace are known."""
    X = rows(600, 40) * np.linspace(1, 4, 40)
    own, centred = track(X, 5, tracked=8, block=20), X - X.mean(axis=0)
    rest = np.linalg.eigvalsh(centred.T @ centred - scatter(own))
    assert rest.min() >= -1e-8 * own.energy
    assert rest.max() <= own.omitted <= 100 * rest.max()
    assert track(X * 2.0**-30, 5, tracked=8, block=20).omitted == own.omitted * 2.0**-60
    np.testing.assert_allclose(rest.sum(), own.energy - own.sigma @ own.sigma, rtol=1e-9)
    # Nothing is truncated here; what forty blocks of one row round is more than what one product would.
    X = rows(40)[:, :9] * units
    own = track(X, 9, block=1)
    exact, held = X.astype(np.longdouble) - X.astype(np.longdouble).mean(axis=0), own.vectors.astype(np.longdouble)
    wrong = np.linalg.norm((exact.T @ exact - held * own.sigma**2 @ held.T).astype(np.float64), 2)
    assert 0 < wrong <= own.omitted <= 1e-9 * own.energy
    nearly = track(np.array([[1.0, 0.0], [1.0, 1e-13]]), 2, block=1, center=False)
    assert nearly.sigma.size == 1
    assert nearly.omitted >= 2e-13


def test_bases_stay_orthonormal_in_memory_linear_in_the_features():
    """The literal algorithm takes arbitrary directions of a QR of nothing here, and loses 74 % of a singular value."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((500, 8)) @ rng.standard_normal((8, 60))
    own = track(X, 15, center=False)
    assert own.sigma.size == 8
    assert_orthonormal(own)
    np.testing.assert_allclose(own.sigma, singular_values(X)[:8], rtol=1e-12)
    assert_orthonormal(track(rows(5000, 50), 10, block=10))
    subspace = Subspace(Head(2, np.zeros(3), np.zeros(3)), np.eye(3)[:, :2], np.array([3.0, 2.0]))
    np.testing.assert_array_equal(subspace.diagonal(), [9, 4, 0])
    pairs = [subspace.pairs(k) for k in (1, 2, 3)]
    assert [(*each.values, each.following) for each in pairs] == [(9.0, 4.0), (9.0, 4.0, 0.0), (9.0, 4.0, 0.0, 0.0)]
    wide = np.random.default_rng(0).standard_normal((200, 4000))
    few, many = (peak_of(lambda X=X: track(X, 10)) for X in (wide[:, :1000].copy(), wide))
    assert many < min(4.4 * few, 4000 * 4000 * 8 / 10)


def test_forgetting_shrinks_weights_and_what_was_omitted():
    X = rows(120) + 3.0
    X[60:] += np.arange(12)
    weights = np.repeat(0.8 ** np.arange(3, -1, -1.0), 30)
    for center in (True, False):
        tracker, mean = Tracker(12, Fixed(12), forgetting=0.8, center=center), np.average(X, 0, weights**2) * center
        for part in np.split(X, 4):
            tracker.update(part)
        own = tracker.subspace
        np.testing.assert_allclose(own.head.mean, mean, rtol=1e-12)
        np.testing.assert_allclose(own.sigma, singular_values(weights[:, None] * (X - mean)), rtol=1e-9)
        expected = [weights @ weights, own.sigma @ own.sigma]  # every direction is tracked
        np.testing.assert_allclose([own.head.n, own.energy], expected, rtol=1e-12)
    tracker = Tracker(2, Fixed(1), forgetting=0.5, center=False)
    tracker.update(np.array([[2.0, 0.0], [0.0, 1.0]]))
    assert tracker.subspace.omitted == pytest.approx(1.0)
    tracker.update(np.array([[2.0, 0.0]]))
    assert tracker.subspace.omitted == pytest.approx(0.25)


def parts(sizes=(80, 50, 7), center=True):
    rng = np.random.default_rng(8)
    own = [rows(n, seed=i) + 10.0 * rng.standard_normal(12) for i, n in enumerate(sizes)]
    return own, [track(part, 12, center=center) for part in own]


def test_merges_give_the_pca_of_the_union():
    _, subspaces = parts(sizes=(30, 20, 40, 10, 25))
    tree, star = merge(subspaces, 12, batch=2), merge(subspaces, 12)
    np.testing.assert_allclose(tree.sigma, star.sigma, rtol=1e-11)
    assert principal_angles(tree.vectors[:, :5], star.vectors[:, :5]).max() <= 1e-6
    assert merge(subspaces[:3], 6).vectors.tobytes() == merge(subspaces[2::-1], 6).vectors.tobytes()
    # Both parts leave out the same direction: the sum lacks what both left out.
    X = np.array([[3.0, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]])
    merged = merge([track(X, 1), track(X, 1)], 1)
    missing = np.linalg.norm(2 * X.T @ X - scatter(merged), 2)
    assert missing == pytest.approx(4)
    assert missing <= merged.omitted <= 4 * (1 + 1e-9)
    assert merge([track(X[:2], 1), track(X[2:], 1)], 1).omitted == pytest.approx(2)  # by the merge itself
    # And the PCA of the union.
    for center in (True, False):
        own, subspaces = parts(center=center)
        merged, whole = merge(subspaces, 12), np.vstack(own)
        centred = whole - whole.mean(axis=0) * center
        np.testing.assert_allclose(merged.sigma, singular_values(centred), rtol=1e-12)
        assert principal_angles(merged.vectors[:, :5], offline(centred, 5)).max() <= 1e-6
        np.testing.assert_allclose(merged.head.mean, whole.mean(axis=0) * center, atol=1e-12)
        np.testing.assert_allclose(merged.energy, np.vdot(centred, centred), rtol=1e-12)


@pytest.mark.parametrize(("ranks", "inside"), [((5, 5), False), ((3, 8), False), ((6, 4), True), ((4, 0), False)])
def test_forgetting_factors_weigh_the_parts(ranks, inside):
    """Compare with the SVD of the concatenation; the printed algorithm 2 omits lambda_2 from a block."""
    rng = np.random.default_rng(6)
    bases = [np.linalg.qr(rng.standard_normal((30, rank)))[0] for rank in ranks]
    if inside:
        bases[1] = np.linalg.qr(bases[0] @ rng.standard_normal((ranks[0], ranks[1])))[0]
    spectra, head = [np.sort(rng.uniform(1, 5, rank))[::-1] for rank in ranks], Head(10, np.zeros(30), np.zeros(30))
    a, b = (Subspace(head, basis, sigma, sigma @ sigma) for basis, sigma in zip(bases, spectra, strict=True))
    merged = merge([a, b], 30, (0.5, 2.0))
    left, expected, _ = np.linalg.svd(np.hstack([0.5 * a.vectors * a.sigma, 2.0 * b.vectors * b.sigma]))
    rank = ranks[0] if inside else sum(ranks)
    np.testing.assert_allclose(merged.sigma, expected[:rank], rtol=1e-12)
    assert_orthonormal(merged)
    assert projector_distance(merged.vectors, left[:, :rank]) < 1e-12
    assert merged.head.n == 0.25 * 10 + 4 * 10


def test_the_papers_rules_of_the_rank_find_flat_spectra():
    X = np.random.default_rng(7).standard_normal((4000, 80)) * np.repeat([1.0, 0.05], [8, 72])
    tracker, path = Tracker(80, Band(2, 0.01, 0.10), center=False, tracked=24), []
    for part in row_chunks(X, 50):
        tracker.update(part)
        path.append(tracker.rank)
    assert path == [3, 4, 5, 6, 7, *[8] * 75]
    lost = [np.square(X).sum() - np.square(X @ V).sum() for V in (tracker.subspace.vectors[:, :8], offline(X, 8))]
    assert lost[0] / lost[1] - 1 < 1e-7
    rule, sigma = Band(5, 0.1, 0.9), np.array([100.0, 1, 1, 1, 1])
    assert [rule.step(sigma, 0.0) for _ in range(6)] == [5, 5, 4, 4, 4, 3]
    assert Band(5, 0.1, 0.9).stationary_rank(sigma) == 1
    # The next direction would have 1/11, or 1/9.
    assert [Band(2, 0.1, 0.3).step(np.array([1.0, 1.0, last]), 0.0) for last in (0.2, 0.25)] == [2, 3]
    # The rule of energy finds no energy that is not tracked.
    assert [Energy(0.9).step(np.array([2.0, 1.0]), energy=energy) for energy in (5.0, 10.0)] == [2, 3]
    assert Energy(0.5).step(np.array([1.0, 1.0]), 2.0) == 1
