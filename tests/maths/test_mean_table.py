from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.graph import MeanTable, diameter, graph_of
from fedpca_flwr.maths.moments import Head, head_and_diagonal
from tests.families import cut, rows


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


def test_the_order_of_the_parties_changes_no_bit():
    parts = parties()
    order = [4, 2, 0, 5, 1, 3]
    graph = graph_of("complete", 6)
    results = []
    for data in (parts, [parts[i] for i in order]):
        table = flooded(graph, [own_table(i, data) for i in range(6)], 1)[0]
        pooled, total, *_ = table.pooled()
        results.append((pooled.n, pooled.mean.tobytes(), pooled.remainder.tobytes(), total))
    assert results[0] == results[1]


def test_of_a_party_that_both_know_one_keeps_its_own_row():
    tables = [MeanTable.of(0, 2, Head(3, np.array([mean]), np.zeros(1)), 1.0, 1.0) for mean in (5.0, 7.0)]
    assert tables[0].filled_from(tables[1]).means[0] == 5.0
