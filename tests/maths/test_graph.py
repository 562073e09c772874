from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.graph import diameter, graph_of, metropolis_weights, mixing_rate
from tests.refusals import refused

KINDS = ["ring", "grid", "star", "complete", "erdos-renyi"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parties", [1, 2, 3, 4, 9, 20])
def test_weights_are_doubly_stochastic_and_average_in_the_end(kind, parties):
    """A graph that falls apart, or weights that favour someone, would not tend to the mean."""
    graph = graph_of(kind, parties, probability=0.3, seed=7)
    assert (graph == graph.T).all()
    assert not graph.diagonal().any()
    weights = metropolis_weights(graph)
    assert (weights == weights.T).all()
    assert (weights >= 0).all()
    np.testing.assert_array_equal(weights[~np.eye(parties, dtype=bool)] > 0, graph[~np.eye(parties, dtype=bool)])
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-15)
    rate = mixing_rate(weights)
    assert 0 <= rate < 1
    far = np.linalg.matrix_power(weights, 50) - 1 / parties
    assert np.linalg.norm(far, 2) <= rate**50 + 1e-13


def test_the_graphs_are_the_known_ones():
    assert graph_of("ring", 5).sum() == 2 * 5
    assert graph_of("ring", 2).sum() == 2
    assert graph_of("star", 5)[0].tolist() == [False, True, True, True, True]
    assert graph_of("star", 5)[1:, 1:].sum() == 0
    assert graph_of("complete", 5).sum() == 5 * 4


@pytest.mark.parametrize(
    ("kind", "parties", "expected"),
    [
        ("ring", 7, 3),
        ("ring", 8, 4),
        ("grid", 9, 4),
        ("grid", 10, 5),
        ("grid", 2, 1),
        ("star", 8, 2),
        ("complete", 8, 1),
        ("ring", 2, 1),
        ("ring", 1, 0),
    ],
)
def test_the_diameter_is_known(kind, parties, expected):
    assert diameter(graph_of(kind, parties)) == expected


def test_the_mixing_rate_is_known():
    np.testing.assert_allclose(mixing_rate(metropolis_weights(graph_of("complete", 6))), 0, atol=1e-15)
    np.testing.assert_allclose(mixing_rate(metropolis_weights(graph_of("ring", 10))), (1 + 2 * np.cos(np.pi / 5)) / 3)


def test_erdos_renyi_has_its_edges_by_seed_and_with_its_probability():
    one, same, other = (graph_of("erdos-renyi", 40, probability=0.3, seed=seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    assert abs(one.sum() / (40 * 39) - 0.3) < 0.06
    assert graph_of("erdos-renyi", 10, probability=1.0).sum() == 90


def test_erdos_renyi_is_the_same_graph_for_ever():
    """Parties with other versions of NumPy must draw the same."""
    edges = np.flatnonzero(graph_of("erdos-renyi", 5, probability=0.5, seed=42))
    np.testing.assert_array_equal(edges, [1, 4, 5, 7, 8, 11, 16, 19, 20, 23])


def test_a_probability_that_connects_nobody_is_an_error():
    with refused(ValueError, 1000, 30):
        graph_of("erdos-renyi", 30, probability=0.001)


def test_disagreement_that_changes_its_sign_stays():
    assert mixing_rate(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(1.0)
