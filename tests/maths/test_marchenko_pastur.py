"""Which eigenvalues stand out of noise: its edge, gaps in what is correlated, and that nothing is told too early."""

import numpy as np
import pytest

from fedpca_flwr.maths.angle_bounds import parts_text
from fedpca_flwr.maths.block_iteration import BlockIteration, measured
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.marchenko_pastur import MarchenkoPastur, largest_gap


def scatter(n, d, strengths=(), *, seed, correlated=False):
    """Of rows of noise, in which so many directions are so many times as large."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if correlated:  # blocks of features that go together, as neighbouring genotypes
        shared = np.repeat(rng.standard_normal((n, d // 10)), 10, axis=1)
        X = 0.6 * X + 0.8 * shared
    if strengths:
        directions = np.linalg.qr(rng.standard_normal((d, len(strengths))))[0]
        X += rng.standard_normal((n, len(strengths))) * strengths @ directions.T
    X -= X.mean(axis=0)
    return X.T @ X


def counted(A, n, most):
    """Its eigenvalues, and how many of so many stand out."""
    values = np.linalg.eigvalsh(A)[::-1]
    return values, MarchenkoPastur(n - 1, len(A)).count_above(values, float(np.trace(A)), most)


@pytest.mark.parametrize(("n", "d"), [(60, 200), (200, 60), (100, 100)])
def test_noise_exceeds_its_edge_one_time_in_twenty_and_what_is_larger_stands_out(n, d):
    assert sum(counted(scatter(n, d, seed=seed), n, 5)[1] > 0 for seed in range(60)) <= 8
    assert [counted(scatter(n, d, (40.0, 20.0, 10.0), seed=seed), n, 8)[1] for seed in range(5)] == [3] * 5


def test_the_edge_of_noise_is_johnstones_in_the_unit_of_the_scatter():
    noise = MarchenkoPastur(99, 50)
    assert noise.edge(7e10, 3) == pytest.approx(1e10 * noise.edge(7.0, 3))
    assert noise.edge(1.0, 50) == np.inf
    # 0.9793 (Johnstone 2001; Bejan 2005); of 4 degrees of freedom and 4 features centre and spread are 16 and 4.
    assert MarchenkoPastur(4, 4).edge(16.0, 0) == pytest.approx(16 + 4 * 0.9793)
    # With 16 degrees of freedom and 16 features that are left: centre (4 + 4)^2, and 8 (1/4 + 1/4)^(1/3) about it.
    for j in (0, 2):
        edge = MarchenkoPastur(16 + j, 16 + j).edge(256.0, j)
        assert edge == pytest.approx(64 + 0.9793 * 8 * 0.5 ** (1 / 3), rel=1e-12)


def test_the_largest_gap_is_beyond_the_spacing_of_noise_and_of_features_that_go_together():
    for seed in range(2):
        values, above = counted(scatter(80, 800, (30.0, 20.0), seed=seed, correlated=True), 80, 8)
        assert (above, largest_gap(values, 8)[0]) == (8, 2)
    # Eigenvalues of 379 rows of 54,051 genotypes, as plink2 gives them.
    text = "500.3 285.6 255.8 249.5 221.9 217.0 213.2 210.6 208.7 207.9 206.5 204.4 203.8 202.3 201.1 200.8"
    found, spacing = largest_gap(np.array(text.split(), float), 10)
    assert found == 4
    assert 221.9 - 217.0 < spacing < 249.5 - 221.9
    # Eigenvalues that fall as i^(2/3) from the second on, behind one that is far above.
    values = np.r_[100.0, 50 - 3 * np.arange(1, 9) ** (2 / 3)]
    assert largest_gap(values, 2) == (1, pytest.approx(6.0, rel=1e-12))


def ended(A, k, width, noise, *, tolerance=1e-3, seed=0):
    block = random_block(len(A), width, seed)
    found = BlockIteration(block, k, trace=float(np.trace(A)), tolerance=tolerance, noise=noise)
    while not found.add(found.block, A @ found.block) and found.asked < 60:
        pass
    return found


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_told_is_what_the_whole_spectrum_says(correlated, seed):
    """The fault that this would find: eigenvalues that have not converged look like noise."""
    n, d, k = 100, 300, 6
    strengths = np.random.default_rng(seed).uniform(2.0, 12.0, 3)
    A = scatter(n, d, tuple(strengths), seed=seed, correlated=correlated)
    values, above = counted(A, n, k)
    found = ended(A, k, k + 10, MarchenkoPastur(n - 1, d), seed=seed)
    first = measured(found)["certified_components"]
    if found.above_edge:
        assert found.above_edge == first == min(above, largest_gap(values, k)[0]) < k
    vectors = np.linalg.eigh(A)[1][:, ::-1]
    angle = principal_angles(found.pairs.vectors[:, :first], vectors[:, :first]).max(initial=0.0)
    assert angle <= measured(found)["certified_angle_degrees"] <= 1e-3


def test_the_iteration_goes_on_to_all_without_noise_and_with_blocks_too_narrow_to_miss_nothing():
    A = scatter(300, 600, (12.0, 9.0), seed=3)
    early, whole = (ended(A, 6, 16, noise, tolerance=1e-6) for noise in (MarchenkoPastur(299, 600), None))
    assert early.asked < whole.asked
    assert (early.above_edge, whole.above_edge) == (2, 0)
    assert early.certificate == 90.0 > whole.certificate
    for width in (1, 2):
        found = ended(scatter(60, 300, (20.0, 15.0, 12.0), seed=1), 6, width, MarchenkoPastur(59, 300))
        assert found.above_edge == 0  # what hides could stand out too, and before that is settled all are certified
        assert found.certificate <= 1e-3
        assert found.known.Q.shape[1] > 30  # of 59 directions that rows have


def test_what_lies_between_two_cuts_turns_by_both():
    assert parts_text([(1, 1e-7), (2, 2e-7), (3, 1e-8)]) == "1 to 3 each, to 3e-07 degrees"
    cuts = [(1, 1e-7), (4, 1e-7), (5, 1e-7), (7, 3e-7)]
    assert parts_text(cuts) == "1, 5 each, 2 to 4 and 6 to 7 as subspaces, to 4e-07 degrees"
    assert parts_text([(3, 0.5)]) == "1 to 3 as a subspace, to 0.5 degrees"
    assert parts_text([(1, 0.25), (2, 0.25), (4, 0.125)]) == "1 to 2 each, 3 to 4 as a subspace, to 0.5 degrees"
