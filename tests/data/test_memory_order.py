"""The same rows give the same bits, whatever their order in memory and whatever holds them."""

from functools import cache
from itertools import cycle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from fedpca_flwr import run
from fedpca_flwr.data.table import HELD_BYTES, check_rows
from fedpca_flwr.maths.rows import Blocks, to_array
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.harness import at_sites, finish, server_of, sites_of

X = rows(400, 37) * np.linspace(1, 9, 37) + np.linspace(-40, 70, 37)
PARTS = cut(X, 210, 150, 40)
METHODS = "p-cov scale=true", "sub-it", "qr-pca", "ap-stack", "em"
OF_COLUMNS = [("Fortran", "vertical"), ("slice", "vfedpca"), ("pandas, by columns", "vertical")]


def by_columns(data):
    return {f"c{j}": column for j, column in enumerate(data.T)}


HELD = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "slice": lambda data: np.repeat(np.repeat(data, 2, axis=0), 3, axis=1)[::2, 1::3],
    "backwards": lambda data: np.ascontiguousarray(data[::-1, ::-1])[::-1, ::-1],
    "masked": lambda data: np.ma.masked_array(np.asfortranarray(data)),
    "pandas of C": lambda data: pd.DataFrame(np.ascontiguousarray(data), copy=False),
    "pandas of Fortran": lambda data: pd.DataFrame(np.asfortranarray(data), copy=False),
    "pandas, by columns": lambda data: pd.DataFrame(by_columns(data)),
    "Arrow": lambda data: pa.table(by_columns(data)),
    "polars": lambda data: pytest.importorskip("polars").DataFrame(by_columns(data)),
    "blocks of Fortran": lambda data: Blocks(lambda: map(np.asfortranarray, np.split(data, [30])), 37, data.dtype),
}


def same(one, other):
    for name in ("components_", "scores_", "mean_", "explained_variance_", "noise_variance_", "scale_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@cache
def result(method, held="C"):
    parts = PARTS if method in METHODS else (X[:, :20], X[:, 20:])
    return run(method, list(map(HELD[held], parts)), n_components=3, min_rows=1)


@pytest.mark.parametrize(
    ("held", "method"),
    [*zip(HELD, cycle(METHODS), strict=False), *(("Fortran", method) for method in METHODS), *OF_COLUMNS],
)
def test_a_run_has_the_same_bits(method, held):
    same(result(method, held), result(method))


@pytest.mark.filterwarnings("ignore:X has feature names, but PCA was fitted without feature names")
@pytest.mark.parametrize("held", [name for name in HELD if not name.startswith("blocks")])
def test_new_rows_moments_and_the_reference_have_the_same_bits(held):
    model, moments, given = pooled_pca(X, 3), SecondMoments.of(X), HELD[held](X)
    np.testing.assert_array_equal(model.transform(given), model.transform(X))
    np.testing.assert_array_equal(SecondMoments.of(given).scatter, moments.scatter)
    np.testing.assert_array_equal(SecondMoments.of(given).mean, moments.mean)
    same(pooled_pca(given, 3), model)


@pytest.mark.parametrize(("method", "kind"), [("p-cov", "float32"), ("sub-it", "float64"), ("p-cov", "int16")])
def test_arrays_have_the_same_bits_in_both_orders(method, kind, tmp_path):
    models = []
    for order in "CF":
        parts = [part.astype(kind, order=order) for part in PARTS]
        of_files = finish(at_sites(server_of(method, PARTS, n_components=3), sites_of(tmp_path / order, parts)))
        models.append((of_files, run(method, parts, n_components=3)))
    for of_rows, of_columns in zip(*models, strict=True):
        same(of_rows, of_columns)


@pytest.mark.engine
def test_a_mapped_file_of_columns_is_not_read_whole(tmp_path):
    """A view of a map too. The file holds more than is kept of blocks, and nothing was written to its pages."""
    shape = HELD_BYTES // 64 + 64, 16
    large = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float64, shape, fortran_order=True)
    for given in (large, np.asarray(large)[:, ::2], large.T[:8].T):
        rows = check_rows(given).rows
        first = next(iter(rows.read()))
        assert rows.shape == given.shape
        assert first.flags.c_contiguous
        assert first.nbytes < 2**22
    np.testing.assert_array_equal(check_rows(large[:100]).rows, large[:100])


def test_rows_are_not_copied_without_need(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    for given in (X, X[7:90], np.load(tmp_path / "rows.npy", mmap_mode="r")):
        assert np.shares_memory(check_rows(given).rows, given)
    for of, kind in ((np.asfortranarray, False), (sparse.csr_array, True)):
        assert to_array(check_rows(Blocks(lambda of=of: [of(X)], 37, X.dtype, sparse=kind)).rows).flags.c_contiguous
