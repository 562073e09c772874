"""A party's own scatter: the same products however they are had, formed once in a run, forgotten at its end."""

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy import sparse

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.rows import sparse_rows
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.questions.own_scatter import OwnScatter, worth_forming
from tests.families import cut, rows
from tests.harness import context_of, finish, fit, server_of


def own(X, *, columns, state=None, parties=3):
    return OwnScatter(X, state or State(RecordDict()), columns=columns, parties=parties)


@pytest.mark.parametrize("columns", [0, 500])
def test_products_are_those_of_the_scatter_formed_or_not(columns):
    """A part of the rows asked about first is not taken for all: `personalised` asks about rows not held out."""
    whole, V, state = rows(200, 12) + 1e6, rows(12, 5, seed=1), State(RecordDict())
    for X in (whole[:150], whole, whole):
        scatter, centred, about = own(X, columns=columns, state=state), X - X.mean(axis=0), X - 3.0
        assert scatter.formed == (columns > 0)
        np.testing.assert_allclose(scatter.times(V), centred.T @ (centred @ V), rtol=1e-9)
        np.testing.assert_allclose(scatter.times_about(np.full(12, 3.0), V), about.T @ (about @ V), rtol=1e-9)
        head, diagonal = scatter.head_and_diagonal()
        np.testing.assert_allclose(diagonal, (centred**2).sum(axis=0), rtol=1e-9)
        assert head.n == len(X)


@pytest.mark.parametrize("options", [{}, {"scale": True}, {"secure_aggregation": True, "bound": 100.0}], ids=str)
def test_a_scatter_is_formed_once_a_party_and_run_and_moves_nothing_beyond_rounding(options, monkeypatch):
    formed, of = [], Moments.of
    monkeypatch.setattr(Moments, "of", lambda data, threads: formed.append(len(data)) or of(data, threads))
    parts = cut(rows(900, 60), 500, 380, 20)
    kept = fit("sub-it", parts, n_components=4, **options)
    assert kept.rounds > 2
    assert sorted(formed) == [380, 500]  # 20 rows of 60 features are multiplied as they are
    monkeypatch.setattr("fedpca_flwr.questions.own_scatter.MOST_KEPT", 0)
    anew = fit("sub-it", parts, n_components=4, **options)
    assert (anew.rounds, len(formed)) == (kept.rounds, 2)
    np.testing.assert_allclose(kept.components_, anew.components_, atol=1e-10)
    np.testing.assert_allclose(kept.explained_variance_, anew.explained_variance_, rtol=1e-12)


def test_what_is_kept_is_forgotten_at_the_end():
    state = State(RecordDict())
    scatter = own(rows(200, 12), columns=500, state=state)
    scatter.moments()
    assert list(state.records.array_records)
    scatter.drop()
    assert not list(state.records.array_records)
    # There the parties share a memory, and other runs follow.
    server = server_of("sub-it", cut(rows(900, 60), 500, 400), n_components=4)
    finish(server)
    assert [list(context_of(server, party).state.array_records) for party in range(2)] == [[], []]


def test_a_scatter_is_formed_of_dense_rows_within_memory_where_that_takes_fewer_operations():
    X = sparse.random_array((400, 10), density=0.05, rng=0, format="csr")
    assert own(X.toarray(), columns=400).formed
    assert not own(sparse_rows(X), columns=400).formed
    X = np.zeros((3000, 1000))
    assert own(X, columns=10**6, parties=100).formed
    assert not own(X, columns=10**6, parties=1000).formed
    assert worth_forming(7000, 784, 600)
    assert not worth_forming(500, 784, 600)
    assert not worth_forming(10**6, 3072, 600)
