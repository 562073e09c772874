"""Graphs of parties: their weights, what floods over them, Sanger's rule, and what the sizes of steps tell."""

import numpy as np
import pytest

from fedpca_flwr.maths import graph as module
from fedpca_flwr.maths.graph import MeanTable, diameter, make_graph, metropolis_weights, mixing_rate
from fedpca_flwr.maths.moments import Head, head_and_diagonal
from tests.families import cut, rows, with_spectrum
from tests.refusals import refused


@pytest.mark.parametrize("kind", ["ring", "grid", "star", "complete", "erdos-renyi"])
def test_weights_are_doubly_stochastic_and_average_in_the_end(kind):
    """A graph that falls apart, or weights that favour someone, would not tend to the mean."""
    for parties in (1, 2, 3, 4, 9, 20):
        graph = make_graph(kind, parties, probability=0.3, seed=7)
        assert (graph == graph.T).all()
        assert not graph.diagonal().any()
        weights, others = metropolis_weights(graph), ~np.eye(parties, dtype=bool)
        assert (weights == weights.T).all()
        assert (weights >= 0).all()
        np.testing.assert_array_equal(weights[others] > 0, graph[others])
        np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-15)
        rate = mixing_rate(weights)
        assert 0 <= rate < 1
        assert np.linalg.norm(np.linalg.matrix_power(weights, 50) - 1 / parties, 2) <= rate**50 + 1e-13


@pytest.mark.engine
def test_graphs_have_their_known_rates_and_diameters():
    kinds = [("ring", 5), ("ring", 2), ("complete", 5)]
    assert [make_graph(kind, parties).sum() for kind, parties in kinds] == [2 * 5, 2, 5 * 4]
    np.testing.assert_array_equal(np.argwhere(make_graph("star", 5)[0]), [[1], [2], [3], [4]])
    assert make_graph("star", 5)[1:, 1:].sum() == 0
    weights = [metropolis_weights(make_graph(kind, parties)) for kind, parties in (("complete", 6), ("ring", 10))]
    rates = [mixing_rate(matrix) for matrix in (*weights, np.array([[0.0, 1.0], [1.0, 0.0]]))]
    np.testing.assert_allclose(rates, [0, (1 + 2 * np.cos(np.pi / 5)) / 3, 1], atol=1e-15)
    known = {("ring", 7): 3, ("ring", 8): 4, ("ring", 2): 1, ("ring", 1): 0, ("star", 8): 2, ("complete", 8): 1}
    known |= {("grid", 9): 4, ("grid", 10): 5, ("grid", 2): 1}
    assert {shape: diameter(make_graph(*shape)) for shape in known} == known
    # Random ones have their edges by seed for ever.
    one, other = (make_graph("erdos-renyi", 40, probability=0.3, seed=seed) for seed in (1, 2))
    assert (one != other).any()
    assert abs(one.sum() / (40 * 39) - 0.3) < 0.06
    assert make_graph("erdos-renyi", 10, probability=1.0).sum() == 90
    # Parties with other versions of NumPy must draw the same.
    edges = np.flatnonzero(make_graph("erdos-renyi", 5, probability=0.5, seed=42))
    np.testing.assert_array_equal(edges, [1, 4, 5, 7, 8, 11, 16, 19, 20, 23])
    with refused(ValueError, 1000, 12):
        make_graph("erdos-renyi", 12, probability=0.001)


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.999])
def test_a_steady_rate_is_found_and_foretells_the_end(rate):
    errors = 7.0 * rate ** np.arange(60)
    steps = errors[:-1] - errors[1:]
    assert module.linear_rate(steps) == pytest.approx(rate, rel=1e-9)
    left = module.remaining_iterations(steps, 1e-30)
    assert errors[-1] * rate**left <= 1e-30 < errors[-1] * rate ** (left - 2)
    assert module.remaining_iterations(steps, 8.0) == 0
    assert module.remaining_distance(0.5 ** np.arange(16)) == pytest.approx(0.5**15)
    assert [module.safe_step(2.0, rate) for rate in (0.0, 0.75, 0.99)] == [0.25, 0.25, pytest.approx(0.05)]


@pytest.mark.parametrize(
    "steps",
    [
        *(0.5 ** np.arange(15), np.ones(40), 1.1 ** np.arange(40)),  # few, constant, growing
        *(np.append(0.5 ** np.arange(40), 0.0), 0.5 ** np.minimum(np.arange(40), 30)),  # that end, or have a floor
        *(np.abs(np.sin(np.arange(40.0))), np.tile([0.4, 0.39], 100)),  # to and fro, a cycle of two
        0.4 - 1e-12 * np.arange(200),  # of one size up to rounding
    ],
)
def test_no_rate_is_read_into_other_steps(steps):
    assert (module.linear_rate(steps), module.remaining_iterations(steps, 1e-6)) == (None, None)


def parties(offset=1e8):
    return cut(rows(300) + offset + 7 * (np.arange(300) < 200)[:, None], 1, 20, 79, 100, 60, 40)


def own_tables(parts):
    heads, sums = zip(*map(head_and_diagonal, parts), strict=True)
    largest = [float(np.linalg.norm(part - part.mean(axis=0), 2) ** 2) for part in parts]
    return [MeanTable.for_party(i, 6, heads[i], float(sums[i].sum()), largest[i]) for i in range(6)]


def flooded(graph, tables, times):
    for _ in range(times):
        known = list(tables)
        for i, j in np.argwhere(graph):
            tables[i] = tables[i].filled_from(known[j])
    return tables


def known_to_all(parts):
    return flooded(make_graph("complete", 6), own_tables(parts), 1)[0]


@pytest.mark.parametrize("kind", ["ring", "star", "complete", "erdos-renyi"])
def test_relays_take_as_many_rounds_as_the_diameter(kind):
    graph, start = make_graph(kind, 6, probability=0.3, seed=1), own_tables(parties())
    assert not all(table.counts.all() for table in flooded(graph, list(start), diameter(graph) - 1))
    for table in flooded(graph, list(start), diameter(graph)):
        for i in range(6):
            assert [mine[i].tobytes() for mine in table] == [theirs[i].tobytes() for theirs in start[i]]


@pytest.mark.parametrize("shift", [0.0, 2.0**27])
def test_the_pooled_mean_and_trace_are_those_of_all_rows(shift):
    """At an offset of 1e8 a mean without its remainder would be off by 1e-8."""
    parts = parties(shift)
    pooled, total, traces, deviations = known_to_all(parts).pooled()
    near = [part - shift for part in parts]  # exact
    mean = np.vstack(near).mean(axis=0)
    expected = [((part - mean) ** 2).sum() for part in near]
    np.testing.assert_allclose((pooled.mean - shift) + pooled.remainder, mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose([total, *traces], [sum(expected), *expected], rtol=1e-12)
    np.testing.assert_allclose(deviations, [part.mean(axis=0) - mean for part in near], rtol=1e-11, atol=1e-13)


def test_pooled_tables_do_not_depend_on_order():
    parts = parties()
    one, other = (known_to_all([parts[i] for i in order]).pooled() for order in (range(6), [4, 2, 0, 5, 1, 3]))
    assert (one[0].n, one[1]) == (other[0].n, other[1])
    np.testing.assert_array_equal([one[0].mean, one[0].remainder], [other[0].mean, other[0].remainder])
    first, other = (MeanTable.for_party(0, 2, Head(3, np.array([mean]), np.zeros(1)), 1.0, 1.0) for mean in (5.0, 7.0))
    assert first.filled_from(other).means[0] == 5.0
    # A party's scatter and what its mean adds to it are each below the sum, so the bound is at most twice as large.
    for parts, most in ((parties(offset=0.0), 2), ([part - part.mean(axis=0) for part in parties(offset=0.0)], 1)):
        centred = np.vstack(parts) - np.vstack(parts).mean(axis=0)
        largest = 6 * max(np.linalg.norm(part, 2) for part in cut(centred, *map(len, parts))) ** 2 / (centred**2).sum()
        assert 1 - 1e-12 <= known_to_all(parts).max_eigenvalue_share() / largest <= most + 1e-12


def test_sangers_rule_rests_at_the_eigenvectors():
    A, basis = with_spectrum([5.0, 3.0, 2.0, 1.0, 0.5])
    np.testing.assert_allclose(module.sanger_direction(A @ basis[:, :3], basis[:, :3]), 0, atol=1e-14)
    X = np.random.default_rng(2).standard_normal((5, 3))
    direction = module.sanger_direction(A @ X, X)
    for j, x in enumerate(X.T):
        np.testing.assert_allclose(direction[:, j], A @ x - X[:, : j + 1] @ X[:, : j + 1].T @ A @ x, atol=1e-13)
    Q = module.orthonormalise(X)
    R = Q.T @ X  # of the QR decomposition with a positive diagonal
    np.testing.assert_allclose(Q @ R, X, atol=1e-14)
    np.testing.assert_allclose([Q.T @ Q, np.tril(R)], [np.eye(3), np.diag(np.abs(R.diagonal()))], atol=1e-14)
    for spread in (np.geomspace(1, 1e-6, 40), np.linspace(1, 0.9, 40), np.r_[5.0, np.zeros(39)], np.zeros(40)):
        found = module.largest_eigenvalue(with_spectrum(spread)[0].__matmul__, 40)
        assert 0.95 * spread.max() <= found <= spread.max() * (1 + 1e-12)
    assert module.largest_eigenvalue(lambda V: 3 * V, 1) == 3.0


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_mixing_is_a_row_of_the_weights_and_knows_no_order(share):
    graph, blocks = make_graph("star", 5), np.random.default_rng(4).standard_normal((5, 6, 2))
    weights = metropolis_weights(graph)
    W = np.eye(5) + share * (weights - np.eye(5))
    for i in range(5):
        own, others = blocks[i], list(blocks[graph[i]])
        one, other = (module.mix(own, order, share * weights[i, graph[i]]) for order in (others, others[::-1]))
        np.testing.assert_allclose(one, np.einsum("j,jab->ab", W[i], blocks), atol=1e-15)
        assert one.tobytes() == other.tobytes()
