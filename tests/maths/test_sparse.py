"""Statistics of sparse rows are those of the rows, to the last digits, wherever the features are."""

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy import sparse

from fedpca_flwr.maths import rows as centred
from fedpca_flwr.maths.moments import Moments, head_and_diagonal, scatter_product, unpack
from fedpca_flwr.maths.rows import (
    Blocks,
    centred_chunks,
    column_sums,
    csr,
    energy,
    fifth,
    largest_size,
    of_columns,
    sparse_chunks,
    sparse_rows,
    whole,
)
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.questions.own_scatter import OwnScatter

N, D = 300, 40
ALMOST = [9, 11]
"""Columns with zeros in so few rows that they are centred densely."""


def matrix(offset=1e6):
    """Sparse columns, an empty one, one of small integers, full ones far from zero, a constant one."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.05)
    X[20:30] = 0.0
    X[:, 3] = offset + rng.standard_normal(N)
    X[:, 5], X[:, 6] = 0.1, 0.0
    X[:, 7] = rng.poisson(0.1, N)
    X[:, ALMOST] = (offset + rng.standard_normal((N, 2))) * (rng.random((N, 2)) < 0.95)
    X[:, 12] = rng.random(N) * (rng.random(N) < 0.85) * 1e-9
    return X


@pytest.fixture(params=[2**20, 300], ids=["in one chunk", "in many"])
def rows(request, monkeypatch):
    monkeypatch.setattr(sparse_chunks, "__defaults__", (request.param,))
    return sparse_rows(sparse.csr_array(matrix()))


def truth(X):
    """Scatter and mean in 80 bits."""
    exact = X.astype(np.longdouble)
    mean = exact.mean(axis=0)
    return (exact - mean).T @ (exact - mean), mean


def relative(error, sizes):
    """The largest error, each in the unit of its features."""
    units = np.where(sizes > 0, sizes, 1.0).astype(float)
    return float(np.abs(error / (np.outer(units, units) if error.ndim == 2 else units)).max())


def test_moments_lose_no_digits_to_the_mean(rows):
    scatter, mean = truth(matrix())
    sizes = np.sqrt(np.diag(scatter))
    found = Moments.of(rows)
    lower = np.tril(unpack(found.scatter, D))
    assert relative((lower - np.tril(scatter)).astype(float), sizes) < 2e-14
    assert relative((found.mean - mean + found.remainder).astype(float), sizes) < 1e-15
    assert (found.count, found.diagonal()[5], found.diagonal()[6]) == (N, 0.0, 0.0)


def test_diagonals_and_products_lose_none_either(rows):
    scatter, _ = truth(matrix())
    sizes = np.sqrt(np.diag(scatter))
    head, diagonal = head_and_diagonal(rows)
    assert relative((diagonal - np.diag(scatter)).astype(float), sizes**2) < 2e-14
    assert diagonal[5] == diagonal[6] == 0.0
    units = np.where(sizes > 0, sizes, 1.0).astype(float)[:, None]
    V = np.random.default_rng(1).standard_normal((D, 7)) / units
    error = (scatter_product(rows, head, V) - scatter @ V) / units
    assert np.abs(error).max() < 2e-14


def test_projections_are_those_of_dense_rows(rows):
    X = matrix()
    mean, scale = X.mean(axis=0), 1 + np.random.default_rng(2).random(D)
    components = np.linalg.qr(np.random.default_rng(3).standard_normal((D, 4)))[0].T
    for divided in (np.empty(0), scale):
        exact = (X.astype(np.longdouble) - mean) / (divided if divided.size else 1)
        parts = centred_chunks(rows, mean, divided if divided.size else None)
        scores = exact @ components.T
        np.testing.assert_allclose(
            np.vstack([part @ components.T for part in parts]), scores.astype(float), rtol=0, atol=1e-9
        )
        left = float((exact**2).sum() - (scores**2).sum())
        own = OwnScatter(rows, State(RecordDict()), columns=0, parties=1)
        np.testing.assert_allclose(own.squared_error(mean, divided, components), left, rtol=1e-12)


def test_energies_are_sums_of_squares_about_any_centre(rows):
    centre = np.full(D, 0.25)
    expected = ((matrix().astype(np.longdouble) - centre) ** 2).sum()
    assert sum(map(energy, centred_chunks(rows, centre))) == pytest.approx(float(expected), rel=1e-13)


def test_how_rows_are_read_changes_no_bit(rows):
    X = sparse.csr_array(matrix())
    pieces = Blocks(lambda: (X[i : i + 7] for i in range(0, N, 7)), D, X.dtype, sparse=True, count=N)
    assert Moments.of(pieces).scatter.tobytes() == Moments.of(rows).scatter.tobytes()
    head, diagonal = head_and_diagonal(rows)
    assert head_and_diagonal(pieces)[1].tobytes() == diagonal.tobytes()
    V = np.random.default_rng(4).standard_normal((D, 3))
    assert scatter_product(pieces, head, V).tobytes() == scatter_product(rows, head, V).tobytes()


def test_sums_sizes_and_chunks_are_those_of_dense_rows():
    X = sparse.csr_array(matrix() * (np.arange(N) % 5 > 0)[:, None])  # some rows are empty
    parts = list(sparse_chunks(sparse_rows(X), 300))
    np.testing.assert_array_equal(np.vstack([part.toarray() for part in parts]), X.toarray())
    most = int(np.diff(X.indptr).max()) + centred.EMPTY_ROW
    assert max(part.nnz for part in parts) <= 300 + most
    assert len(parts) > 5
    X = sparse_rows(sparse.csr_array(-matrix(1.0)))
    np.testing.assert_allclose(column_sums(X), whole(X).sum(axis=0), rtol=1e-12)
    assert largest_size(X) == np.abs(whole(X)).max()
    assert largest_size(sparse_rows(sparse.csr_array((3, 4)))) == 0.0
    # A sum of float32 stands still at 2^24, and ends at 3e38.
    X = np.array([[2.0**24, 3e38], [1, 3e38], [1, 0], [1, 3e38]], np.float32)
    np.testing.assert_array_equal(column_sums(sparse_rows(sparse.csr_array(X))), X.sum(axis=0, dtype=np.float64))
    X = np.array([[1.0, -5.0], [np.nan, 2.0]])
    assert largest_size(X) == largest_size(sparse_rows(sparse.csr_array(X))) == 5.0


def test_entries_held_twice_or_chosen_are_those_of_a_copy_and_none_is_beyond_the_shape():
    matrix = sparse.csr_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    assert csr(matrix).data.tolist() == [3.0]
    assert matrix.data.tolist() == [1.0, 2.0]
    (block,) = of_columns(sparse_rows(sparse.csr_array(np.array([[1.0, 2.0, 3.0]]))), [2, 0]).read()
    assert (block.indices.tolist(), block.data.tolist()) == ([0, 1], [3.0, 1.0])
    # It would be written beyond an array.
    rows = sparse.csr_array(np.eye(3))
    rows.indices[1] = 3
    with pytest.raises(ValueError):  # noqa: PT011  # in SciPy's words
        centred.csr(rows)
    assert [int(fifth([bytes([i]) for i in range(n)]).sum()) for n in (4, 5, 14, 24)] == [0, 1, 2, 4]
