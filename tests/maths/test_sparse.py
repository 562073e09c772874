"""Statistics of sparse rows are those of the rows, to the last digits, wherever the features are."""

import numpy as np
import pytest
from flwr.app import RecordDict
from scipy import sparse

from fedpca_flwr.maths import rows as module
from fedpca_flwr.maths.moments import Moments, head_and_diagonal, scatter_product, unpack_symmetric
from fedpca_flwr.maths.rows import Blocks, centred_chunks, max_magnitude, sparse_chunks, sparse_rows, to_array
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.site.rows.vault import Vault

N, D = 300, 40


def matrix(offset=1e6):
    """Make sparse columns: empty, of small integers, full and far from zero, constant, and two with few entries."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.05)
    X[20:30] = 0.0
    X[:, 3] = offset + rng.standard_normal(N)
    X[:, 5], X[:, 6] = 0.1, 0.0
    X[:, 7] = rng.poisson(0.1, N)
    X[:, [9, 11]] = (offset + rng.standard_normal((N, 2))) * (rng.random((N, 2)) < 0.95)
    X[:, 12] = rng.random(N) * (rng.random(N) < 0.85) * 1e-9
    return X


X = matrix()
EXACT = X.astype(np.longdouble)  # in 80 bits
MEAN = EXACT.mean(axis=0)
SCATTER = (EXACT - MEAN).T @ (EXACT - MEAN)
SIZES = np.sqrt(np.diag(SCATTER))
UNITS = np.where(SIZES > 0, SIZES, 1.0).astype(float)


@pytest.fixture(params=[2**20, 300], ids=["in one chunk", "in many"])
def rows(request, monkeypatch):
    monkeypatch.setattr(sparse_chunks, "__defaults__", (request.param,))
    return sparse_rows(sparse.csr_array(X))


def test_moments_of_sparse_rows_lose_no_digits(rows):
    """Each error in the unit of its features."""
    found = Moments.from_rows(rows)
    assert np.abs((unpack_symmetric(found.scatter, D) - SCATTER) / np.outer(UNITS, UNITS)).max() < 2e-14
    assert np.abs((found.mean - MEAN + found.remainder) / UNITS).max() < 1e-15
    head, diagonal = head_and_diagonal(rows)
    assert (found.count, *found.diagonal()[5:7], *diagonal[5:7]) == (N, 0.0, 0.0, 0.0, 0.0)
    assert np.abs((diagonal - np.diag(SCATTER)) / UNITS**2).max() < 2e-14
    V = np.random.default_rng(1).standard_normal((D, 7)) / UNITS[:, None]
    product = scatter_product(rows, head, V)
    assert np.abs((product - SCATTER @ V) / UNITS[:, None]).max() < 2e-14
    # Pieces of seven rows give the same bits.
    held = sparse.csr_array(X)
    pieces = Blocks(lambda: (held[i : i + 7] for i in range(0, N, 7)), D, X.dtype, sparse=True, count=N)
    same = Moments.from_rows(pieces).scatter, head_and_diagonal(pieces)[1], scatter_product(pieces, head, V)
    assert [array.tobytes() for array in same] == [array.tobytes() for array in (found.scatter, diagonal, product)]


def test_projections_and_energies_are_those_of_dense_rows(rows):
    mean, own = X.mean(axis=0), Vault(rows, State(RecordDict()), columns=0, parties=1)
    components = np.linalg.qr(np.random.default_rng(3).standard_normal((D, 4)))[0].T
    for scale in (None, 1 + np.random.default_rng(2).random(D)):
        exact = (EXACT - mean) / (1 if scale is None else scale)
        scores = exact @ components.T
        found = np.vstack([part @ components.T for part in centred_chunks(rows, mean, scale)])
        np.testing.assert_allclose(found, scores.astype(float), rtol=0, atol=1e-9)
        left, divided = float((exact**2).sum() - (scores**2).sum()), np.empty(0) if scale is None else scale
        np.testing.assert_allclose(own.squared_error(mean, divided, components), left, rtol=1e-12)
    energy = sum(map(module.chunk_energy, centred_chunks(rows, np.full(D, 0.25))))
    assert energy == pytest.approx(float(((EXACT - 0.25) ** 2).sum()), rel=1e-13)


def test_sums_sizes_chunks_and_duplicates_are_those_of_dense_rows():
    held = sparse.csr_array(X * (np.arange(N) % 5 > 0)[:, None])  # some rows are empty
    parts = list(sparse_chunks(sparse_rows(held), 300))
    np.testing.assert_array_equal(np.vstack([part.toarray() for part in parts]), held.toarray())
    assert max(part.nnz for part in parts) <= 300 + int(np.diff(held.indptr).max()) + module.ROW_OVERHEAD
    assert len(parts) > 5
    negative = sparse_rows(sparse.csr_array(-matrix(1.0)))
    np.testing.assert_allclose(module.column_sums(negative), to_array(negative).sum(axis=0), rtol=1e-12)
    assert max_magnitude(negative) == np.abs(to_array(negative)).max()
    assert max_magnitude(sparse_rows(sparse.csr_array((3, 4)))) == 0.0
    # A sum of float32 stands still at 2^24, and ends at 3e38.
    single = np.array([[2.0**24, 3e38], [1, 3e38], [1, 0], [1, 3e38]], np.float32)
    sums = module.column_sums(sparse_rows(sparse.csr_array(single)))
    np.testing.assert_array_equal(sums, single.sum(axis=0, dtype=np.float64))
    missing = np.array([[1.0, -5.0], [np.nan, 2.0]])
    assert max_magnitude(missing) == max_magnitude(sparse_rows(sparse.csr_array(missing))) == 5.0
    twice = sparse.csr_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    assert (module.to_csr(twice).data.tolist(), twice.data.tolist()) == ([3.0], [1.0, 2.0])
    (block,) = module.select_columns(sparse_rows(sparse.csr_array(np.array([[1.0, 2.0, 3.0]]))), [2, 0]).read()
    assert (block.indices.tolist(), block.data.tolist()) == ([0, 1], [3.0, 1.0])
    # It would be written beyond an array.
    beyond = sparse.csr_array(np.eye(3))
    beyond.indices[1] = 3
    with pytest.raises(ValueError, match="indices"):  # in SciPy's words
        module.to_csr(beyond)
    assert [int(module.first_fifth([bytes([i]) for i in range(n)]).sum()) for n in (4, 5, 14, 24)] == [0, 1, 2, 4]
