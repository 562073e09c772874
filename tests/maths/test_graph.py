"""Graphs of parties: their weights, what floods over them, Sanger's rule, and what the sizes of steps tell."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.graph import (
    MeanTable,
    diameter,
    graph_of,
    iterations_left,
    largest_eigenvalue,
    linear_rate,
    metropolis_weights,
    mixed,
    mixing_rate,
    orthonormalised,
    safe_step,
    sanger_direction,
    way_left,
)
from fedpca_flwr.maths.moments import Head, head_and_diagonal
from tests.families import cut, rows
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


def test_the_graphs_and_their_mixing_rates_are_the_known_ones():
    assert graph_of("ring", 5).sum() == 2 * 5
    assert graph_of("ring", 2).sum() == 2
    assert graph_of("star", 5)[0].tolist() == [False, True, True, True, True]
    assert graph_of("star", 5)[1:, 1:].sum() == 0
    assert graph_of("complete", 5).sum() == 5 * 4
    np.testing.assert_allclose(mixing_rate(metropolis_weights(graph_of("complete", 6))), 0, atol=1e-15)
    np.testing.assert_allclose(mixing_rate(metropolis_weights(graph_of("ring", 10))), (1 + 2 * np.cos(np.pi / 5)) / 3)
    assert mixing_rate(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(1.0)


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


def test_erdos_renyi_has_its_edges_by_seed_for_ever():
    one, same, other = (graph_of("erdos-renyi", 40, probability=0.3, seed=seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    assert abs(one.sum() / (40 * 39) - 0.3) < 0.06
    assert graph_of("erdos-renyi", 10, probability=1.0).sum() == 90
    # Parties with other versions of NumPy must draw the same.
    edges = np.flatnonzero(graph_of("erdos-renyi", 5, probability=0.5, seed=42))
    np.testing.assert_array_equal(edges, [1, 4, 5, 7, 8, 11, 16, 19, 20, 23])
    with refused(ValueError, 1000, 30):
        graph_of("erdos-renyi", 30, probability=0.001)


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.999])
def test_a_steady_rate_is_found_and_foretells_the_end(rate):
    errors = 7.0 * rate ** np.arange(60)
    steps = errors[:-1] - errors[1:]
    assert linear_rate(steps) == pytest.approx(rate, rel=1e-9)
    left = iterations_left(steps, 1e-30)
    assert errors[-1] * rate**left <= 1e-30 < errors[-1] * rate ** (left - 2)
    assert iterations_left(steps, 8.0) == 0


@pytest.mark.parametrize(
    "steps",
    [
        0.5 ** np.arange(8),
        np.ones(40),
        1.1 ** np.arange(40),
        np.append(0.5 ** np.arange(40), 0.0),
        0.5 ** np.minimum(np.arange(40), 30),
        np.abs(np.sin(np.arange(40.0))),
    ],
    ids=["few", "constant", "growing", "zero", "a floor", "to and fro"],
)
def test_no_rate_is_read_into_other_steps(steps):
    assert linear_rate(steps) is None
    assert iterations_left(steps, 1e-6) is None


def test_steps_and_ways_in_closed_form():
    assert way_left(0.5 ** np.arange(32)) == pytest.approx(0.5**31)
    assert safe_step(2.0, 0.0) == 0.25
    assert safe_step(2.0, 0.75) == 0.25
    assert safe_step(2.0, 0.99) == pytest.approx(0.05)


def parties(n=6, offset=1e8):
    X = rows(300) + offset
    X[:200] += 7
    return cut(X, 1, 20, 79, 100, 60, 40)[:n]


def own_table(i, parts):
    head, diagonal = head_and_diagonal(parts[i])
    scatter = np.cov(parts[i].T, bias=True) * len(parts[i]) if len(parts[i]) > 1 else np.zeros((diagonal.size,) * 2)
    return MeanTable.of(i, len(parts), head, float(diagonal.sum()), float(np.linalg.eigvalsh(scatter)[-1]))


def flooded(graph, tables, times):
    for _ in range(times):
        known = list(tables)
        for i in range(len(graph)):
            for j in np.flatnonzero(graph[i]):
                tables[i] = tables[i].filled_from(known[j])
    return tables


@pytest.mark.parametrize("kind", ["ring", "star", "complete", "erdos-renyi"])
def test_everyone_knows_everyone_after_as_many_rounds_as_the_diameter_and_not_before(kind):
    parts = parties()
    graph = graph_of(kind, 6, probability=0.3, seed=1)
    start = [own_table(i, parts) for i in range(6)]
    early = flooded(graph, list(start), diameter(graph) - 1)
    assert not all(table.counts.all() for table in early)
    for table in flooded(graph, list(start), diameter(graph)):
        for i in range(6):
            for mine, theirs in zip(table, start[i], strict=True):
                assert mine[i].tobytes() == theirs[i].tobytes()


def test_the_pooled_mean_and_trace_are_those_of_all_rows():
    """At an offset of 1e8 a mean without its remainder would be off by 1e-8."""
    parts = parties(offset=0.0)
    moved = parties(offset=2.0**27)
    for shift, data in ((0.0, parts), (2.0**27, moved)):
        table = flooded(graph_of("complete", 6), [own_table(i, data) for i in range(6)], 1)[0]
        pooled, total, traces, deviations = table.pooled()
        X = np.vstack(data) - shift  # exact
        mean = X.mean(axis=0)
        np.testing.assert_allclose((pooled.mean - shift) + pooled.remainder, mean, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(total, ((X - mean) ** 2).sum(), rtol=1e-12)
        for part, trace, deviation in zip(data, traces, deviations, strict=True):
            np.testing.assert_allclose(trace, ((part - shift - mean) ** 2).sum(), rtol=1e-12)
            np.testing.assert_allclose(deviation, (part - shift).mean(axis=0) - mean, rtol=1e-11, atol=1e-13)


def test_no_partys_eigenvalue_about_the_pooled_mean_exceeds_what_the_heads_say():
    """And by no more than a factor 2, since a party's scatter and what its mean adds to it are each below the sum."""
    parts = parties(offset=0.0)
    X = np.vstack(parts)
    centred = [part - X.mean(axis=0) for part in parts]
    total = sum((part**2).sum() for part in centred)
    largest = max(6 * np.linalg.norm(part, 2) ** 2 / total for part in centred)
    said = flooded(graph_of("complete", 6), [own_table(i, parts) for i in range(6)], 1)[0].steepest()
    assert largest <= said * (1 + 1e-12)
    assert said <= 2 * largest


def test_pooled_tables_do_not_depend_on_the_order_of_the_parties():
    parts = parties()
    order = [4, 2, 0, 5, 1, 3]
    graph = graph_of("complete", 6)
    results = []
    for data in (parts, [parts[i] for i in order]):
        table = flooded(graph, [own_table(i, data) for i in range(6)], 1)[0]
        pooled, total, *_ = table.pooled()
        results.append((pooled.n, pooled.mean.tobytes(), pooled.remainder.tobytes(), total))
    assert results[0] == results[1]
    tables = [MeanTable.of(0, 2, Head(3, np.array([mean]), np.zeros(1)), 1.0, 1.0) for mean in (5.0, 7.0)]
    assert tables[0].filled_from(tables[1]).means[0] == 5.0


def spectrum_in_a_random_basis(values):
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((len(values), len(values))))
    return (basis * values) @ basis.T, basis


def test_sangers_direction_is_ojas_rule_and_stands_still_at_the_eigenvectors():
    A, basis = spectrum_in_a_random_basis([5.0, 3.0, 2.0, 1.0, 0.5])
    X = basis[:, :3]
    np.testing.assert_allclose(sanger_direction(A @ X, X), 0, atol=1e-14)
    turned = X @ np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    assert np.linalg.norm(sanger_direction(A @ turned, turned)) > 0.1
    swapped = X[:, [1, 0, 2]]  # stands still too, but not stably
    np.testing.assert_allclose(sanger_direction(A @ swapped, swapped), 0, atol=1e-14)
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
