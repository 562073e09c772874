from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.graph import (
    graph_of,
    largest_eigenvalue,
    metropolis_weights,
    mixed,
    orthonormalised,
    safe_step,
    sanger_direction,
)


def spectrum_in_a_random_basis(values):
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((len(values), len(values))))
    return (basis * values) @ basis.T, basis


def test_the_eigenvectors_and_no_other_basis_of_their_span_stand_still():
    A, basis = spectrum_in_a_random_basis([5.0, 3.0, 2.0, 1.0, 0.5])
    X = basis[:, :3]
    np.testing.assert_allclose(sanger_direction(A @ X, X), 0, atol=1e-14)
    turned = X @ np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    assert np.linalg.norm(sanger_direction(A @ turned, turned)) > 0.1
    swapped = X[:, [1, 0, 2]]  # stands still too, but not stably
    np.testing.assert_allclose(sanger_direction(A @ swapped, swapped), 0, atol=1e-14)


def test_its_column_is_ojas_rule_without_the_columns_before():
    A, _ = spectrum_in_a_random_basis([5.0, 3.0, 2.0, 1.0, 0.5])
    X = np.random.default_rng(2).standard_normal((5, 3))
    direction = sanger_direction(A @ X, X)
    for j in range(3):
        x = X[:, j]
        expected = A @ x - sum(X[:, i] * (X[:, i] @ A @ x) for i in range(j + 1))
        np.testing.assert_allclose(direction[:, j], expected, atol=1e-13)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_mixing_is_a_row_of_the_weights_and_knows_no_order(share):
    graph = graph_of("star", 5)
    W = np.eye(5) + share * (metropolis_weights(graph) - np.eye(5))
    blocks = np.random.default_rng(4).standard_normal((5, 6, 2))
    for i in range(5):
        others, weights = blocks[graph[i]], share * metropolis_weights(graph)[i, graph[i]]
        one = mixed(blocks[i], list(others), weights)
        np.testing.assert_allclose(one, np.einsum("j,jab->ab", W[i], blocks), atol=1e-15)
    leaf = np.random.default_rng(5).permutation(4)
    equal = np.full(4, 0.2)
    assert (
        mixed(blocks[0], list(blocks[1:]), equal).tobytes() == mixed(blocks[0], list(blocks[1:][leaf]), equal).tobytes()
    )


def test_orthonormal_columns_span_the_same_in_the_same_direction():
    X = np.random.default_rng(6).standard_normal((7, 3))
    Q = orthonormalised(X)
    np.testing.assert_allclose(Q.T @ Q, np.eye(3), atol=1e-14)
    assert (np.einsum("ij,ij->j", Q, X) > 0).all()
    for j in (1, 2, 3):
        assert principal_angles(Q[:, :j], X[:, :j]).max() < 1e-6


def test_the_largest_eigenvalue_is_found_by_a_few_products():
    for spread in (np.geomspace(1, 1e-6, 40), np.linspace(1, 0.9, 40), np.r_[5.0, np.zeros(39)], np.zeros(40)):
        A, _ = spectrum_in_a_random_basis(list(spread))
        found = largest_eigenvalue(lambda V, A=A: A @ V, 40)
        assert 0.95 * spread.max() <= found <= spread.max() * (1 + 1e-12)
    assert largest_eigenvalue(lambda V: 3 * V, 1) == 3.0


def test_a_step_is_half_of_what_is_stable_and_less_where_news_travel_slowly():
    assert safe_step(2.0, 0.0) == 0.25
    assert safe_step(2.0, 0.75) == 0.25
    assert safe_step(2.0, 0.99) == pytest.approx(0.05)
