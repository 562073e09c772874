"""Block Krylov: what it finds, and a certificate that is never below the truth."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.krylov import KnownProducts, random_block
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.refine import RefinedSketch
from fedpca_flwr.maths.subspace import principal_angles


def matrix(d=120, seed=0):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    return (basis / np.arange(1, d + 1) ** 2.0) @ basis.T, basis


@pytest.mark.parametrize("size", [4, 15])
@pytest.mark.parametrize("seed", range(5))
def test_the_certificate_is_never_below_the_angle(size, seed):
    A, basis = matrix(seed=seed)
    known, V = KnownProducts(120), random_block(120, size, seed)
    k, certified = 5, 90.0
    while certified > 1e-6:
        known.add(V, A @ V)
        ritz = known.ritz()
        certified = ritz.certificate(k)
        if ritz.values.size >= k:
            assert principal_angles(ritz.vectors[:, :k], basis[:, :k]).max() <= certified + 1e-9
        V = known.next_block(ritz, size, k).astype(np.float32).astype(np.float64)
    assert known.Q.shape[1] < 120


def test_products_wrong_by_the_stated_error_are_covered_by_the_certificate():
    A, basis = matrix()
    known, V = KnownProducts(120), random_block(120, 15, 0)
    rng = np.random.default_rng(1)
    for _ in range(7):
        noise = rng.standard_normal(V.shape) * 1e-9
        known.add(V, A @ V + noise, error=float(np.linalg.norm(noise)))
        ritz = known.ritz()
        assert principal_angles(ritz.vectors[:, :5], basis[:, :5]).max() <= ritz.certificate(5)
        V = known.next_block(ritz, 15, 5)


def test_an_invariant_span_asks_for_nothing_more():
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 60)))
    A = (basis[:, :3] * [3.0, 2.0, 1.0]) @ basis[:, :3].T
    known, V = KnownProducts(60), random_block(60, 8, 0)
    while V.shape[1]:
        known.add(V, A @ V)
        V = known.next_block(known.ritz(), 8, 3)
    assert principal_angles(known.ritz().vectors[:, :3], basis[:, :3]).max() < 1e-9


def test_the_shared_block_is_the_same_everywhere():
    """Bits from SHAKE-256, so a party with another NumPy makes the same block: these must never change."""
    block = random_block(50, 7, 1)
    np.testing.assert_array_equal(block.astype(np.float32), block)
    assert 0.9 < np.abs(block).max() < 1
    assert abs(block.mean()) < 0.15
    assert block[0, 0] == -0.40750110149383545


def test_a_refined_sketch_agrees_with_all_products_asked():
    A, basis = matrix()
    values, vectors = np.linalg.eigh(A)
    rows = (vectors[:, -20:] * np.sqrt(values[-20:])).T
    omitted = values[-21]
    sketch = Factor(Head(10, np.zeros(120), np.zeros(120)), rows, 1.0, omitted).filled()
    refined = RefinedSketch.of_factor(sketch)
    angles = []
    for _ in range(3):
        block = refined.next_block(15)
        refined.known.add(block, A @ block)
        M = np.column_stack([refined._apply(column) for column in refined.known.Q.T])
        np.testing.assert_allclose(M, A @ refined.known.Q, atol=1e-12)
        angle = principal_angles(refined.leading(5).vectors, basis[:, :5]).max()
        angles.append(angle)
        assert angle <= refined.certificate(refined.known.ritz(), 5) + 1e-9
    assert angles[-1] < 1e-6
