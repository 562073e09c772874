"""Tables of people's own: what is a number in them is one, and what is none is named, all at once."""

import datetime
import decimal
import re
from unittest.mock import Mock

import numpy as np
import pandas as pd
import PIL.Image
import pyarrow as pa
import pytest
from scipy import sparse

from fedpca_flwr import FederatedPCA, run
from fedpca_flwr.data.frames import as_array, as_rows
from fedpca_flwr.data.table import check_rows, labels_text, names_digest
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Blocks, to_array
from fedpca_flwr.site.readers.files import read
from tests.families import cut, rows
from tests.harness import differences
from tests.refusals import refused, unnamed

NAMES = ["age", "bmi", "pulse", "weight"]
X = rows(90, 4)
COUNTS = np.random.default_rng(0).poisson(1, (90, 4)).astype(np.float64)
SECRET = "4711"


def frame(data=X, names=NAMES):
    return pd.DataFrame(data, columns=names)


def fit(parties, method="p-cov", **options):
    return run(method, parties, **{"n_components": 2, "min_rows": 1, **options})


NUMBERS = {
    "booleans": pd.Series([True, False, True]),
    "integers and none": pd.Series([1, 2, 3], dtype="Int64"),
    "integers": pd.Series([1, None, 3], dtype="Int64"),
    "nullable booleans": pd.Series([True, None, False], dtype="boolean"),
    "nullable floats": pd.Series([1.5, None, 2], dtype="Float32"),
    "of Arrow": pd.Series([1, None, 3], dtype="int64[pyarrow]"),
    "objects": pd.Series([1, None, 2.5], dtype=object),
    "decimals": pd.Series([decimal.Decimal("1.5"), None, 2], dtype=object),
    "nothing": pd.Series([None] * 3, dtype=object),
    "sparse": pd.Series(pd.arrays.SparseArray([0.0, 0.0, 2.0], fill_value=0.0)),
    "sparse beside ones": pd.Series(pd.arrays.SparseArray([1.0, 1.0, 2.0], fill_value=1.0)),
    "sparse with gaps": pd.Series(pd.arrays.SparseArray([np.nan, 1.0, 2.0])),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_column_of_numbers_is_one_whatever_holds_it(kind):
    series = NUMBERS[kind]
    found = as_array(pd.DataFrame({"a": series, "b": [1.0, 2.0, 3.0]}), "X")
    expected = [np.nan if value is None or value is pd.NA else float(value) for value in series.tolist()]
    np.testing.assert_array_equal(found, np.column_stack([expected, [1.0, 2.0, 3.0]]), strict=True)


@pytest.mark.parametrize("library", ["pyarrow.table", "polars.DataFrame"])
def test_other_libraries_give_the_same_numbers(library):
    module, _, make = library.partition(".")
    columns = {"a": [1, None, 3], "b": [True, None, False], "c": [1.5, 2.5, None], "d": [None] * 3}
    table = getattr(pytest.importorskip(module), make)(columns | {"e": [decimal.Decimal("0.5")] * 3})
    expected = [[1, 1, 1.5, None, 0.5], [None, None, 2.5, None, 0.5], [3, 0, None, None, 0.5]]
    np.testing.assert_array_equal(as_array(table, "X"), np.array(expected, dtype=float))


def test_plain_and_sparse_columns_keep_their_kind():
    assert as_array(pd.DataFrame({"a": [1, 2], "b": [True, False]}), "X").dtype == np.int64
    assert as_array(pa.table({"a": [True, False]}), "X").dtype == bool
    held = X.copy()
    assert np.shares_memory(as_array(pd.DataFrame(held, copy=False), "X"), held)
    matrix = sparse.random_array((40, 6), density=0.1, rng=np.random.default_rng(0), format="csc")
    found = as_rows(pd.DataFrame.sparse.from_spmatrix(sparse.csc_matrix(matrix)), "X")
    assert found.sparse
    np.testing.assert_array_equal(to_array(found), matrix.toarray())


@pytest.mark.parametrize("dtype", [np.float32, np.int16, bool])
def test_masked_values_are_missing_ones(dtype):
    held = np.ma.masked_array(np.ones((4, 2), dtype), mask=False)
    assert as_array(held, "X").dtype == dtype
    held[1, 0] = np.ma.masked
    found = as_array(held, "X")
    assert found.dtype == (np.float32 if dtype == np.float32 else np.float64)
    np.testing.assert_array_equal(np.isnan(found), held.mask)
    with refused(DataError, "X", match="2\\^53"):
        as_array(np.ma.masked_array(np.full((4, 2), 2**60 + 1), mask=held.mask), "X")


@pytest.mark.parametrize(("size", "what"), [(1.1e140, "too large"), (0.9e-140, "too small"), (np.inf, "infinite")])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["array", "sparse"])
def test_values_whose_squares_float64_cannot_hold_are_refused(size, what, kind):
    tables = [as_rows(kind([[0.0, value], [0.0, -value]]), "X") for value in (1e140, 1e-140, 0.0, np.nan, size)]
    for allowed in tables[:-1]:
        check_rows(allowed)
    with pytest.raises(DataError, match=what) as caught:
        check_rows(tables[-1], ["age", "bmi"])
    assert caught.value.local == "columns: 'bmi'"


ODD = {
    "categories": {"sex": pd.Categorical(["f", "m"]), "code": pd.Categorical([4711, 4712])},
    "texts": {"ward": [SECRET, "b"], "one": ["1"] * 2, "own": pd.array([SECRET] * 2, "string"), "last": [1.0, SECRET]},
    "dates": {
        "born": pd.to_datetime(["2020-01-01", "2021-01-01"]),
        "day": [datetime.date(2020, 1, 1)] * 2,
        "zone": pd.Timestamp("2020-01-01", tz="UTC"),
        "for": pd.Timedelta(days=3),
    },
    "complex": {"wave": [1 + 2j, 3], "odd": pd.Series([1j] * 2, dtype=object)},
    "objects": {"parts": [[1], [2]], "keys": [{"a": 1}] * 2, "huge": pd.Series([10**400] * 2, dtype=object)},
}


def test_columns_without_numbers_are_named_at_once():
    bad = frame(X[:2]).assign(**{name: column for columns in ODD.values() for name, column in columns.items()})
    with pytest.raises(DataError) as caught:
        fit({"north": bad, "south": frame(), "west": bad[["sex"]]})
    first, second = str(caught.value).split("\n")
    for kind, columns in ODD.items():
        assert re.search(f"{kind}.* {', '.join(map(repr, columns))}", first)
    assert not unnamed(first, "'north'", "'levels'", "pandas.get_dummies")
    assert SECRET not in first
    assert not unnamed(second, "'west'", "'sex'")


def test_parties_have_the_names_of_a_mapping():
    parts = {name: frame(part).astype("Float64") for name, part in zip(("north", "south"), cut(X, 60, 30), strict=True)}
    model = fit(parts)
    assert [party["name"] for party in model.log["parties"]] == ["north", "south"]
    np.testing.assert_array_equal(model.components_, fit(cut(X, 60, 30)).components_)
    parts["south"].iloc[3, 2] = pd.NA
    assert fit(parts, "em").feature_names_in_.tolist() == NAMES
    with refused(DataError, "party 'south'", "method='em'", "'pulse'", "NaN"):
        fit(parts)
    for key in ("", 3, "a/b", "x" * 65):
        with refused(ConfigError, "'parties'", repr(key)):
            fit({"north": X, key: X})


def of_xarray(rows, **labels):
    return pytest.importorskip("xarray").DataArray(rows, dims=("index", "columns"), **labels)


def of_polars(rows):
    polars = pytest.importorskip("polars")
    return polars.DataFrame(rows, schema=NAMES).cast({"age": polars.Int128, "bmi": polars.Decimal(9, 2)})


RESEMBLING = {
    **{f"{kind}_array": getattr(sparse, f"{kind}_array") for kind in ("dok", "coo")},
    **{f"{kind}_matrix": getattr(sparse, f"{kind}_matrix") for kind in ("dok", "lil", "dia")},
    "bsr_array": sparse.bsr_array,
    "objects": lambda rows: np.vectorize(decimal.Decimal, otypes=[object])(rows.astype(int).astype(object)),
    "polars": of_polars,
    "lazy": lambda rows: of_polars(rows).lazy(),
    "batch": lambda rows: pa.RecordBatch.from_pandas(frame(rows)),
    "duckdb": lambda rows: pytest.importorskip("duckdb").from_df(frame(rows)),
    "huggingface": lambda rows: pytest.importorskip("datasets").Dataset.from_pandas(frame(rows)),
    "dask": lambda rows: pytest.importorskip("dask.dataframe").from_pandas(frame(rows), npartitions=2),
    "xarray": lambda rows: of_xarray(rows, coords={"columns": NAMES}),
    "bare xarray": of_xarray,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RESEMBLING)
def test_what_resembles_a_matrix_is_one(kind):
    parties = list(map(RESEMBLING[kind], cut(COUNTS, 40, 50)))
    model, expected = fit(parties), fit(cut(COUNTS, 40, 50))
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.transform(parties[1]), expected.transform(COUNTS[40:]), atol=1e-12)
    labelled = kind in {"polars", "lazy", "batch", "duckdb", "huggingface", "dask", "xarray"}
    assert np.array_equal(model.feature_names_in_, NAMES if labelled else None)
    if kind not in {"dok_array", "dok_matrix", "polars", "lazy"}:  # scikit-learn knows no integers of 128 bits
        estimator = FederatedPCA(2).fit(parties)
        np.testing.assert_allclose(estimator.transform(parties), expected.transform(COUNTS), atol=1e-12)
        assert FederatedPCA(2).fit(parties[0]).transform(parties[0]).shape == (40, 2)


class Tensor:
    """What torch gives: NumPy takes it without a gradient, on the processor, and in float32 or float64 only."""

    ndim, shape = 2, (90, 4)

    def __init__(self, layout="torch.strided", dtype="torch.float32"):
        self.layout, self.dtype = layout, dtype

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError(f"Can't call numpy() on Tensor that requires grad: {X[0, 0]}")

    def detach(self):
        return self


ODD_TABLES = {
    "a pair": ((X, X[:, 0]), "X"),
    "a pair of a frame": ([frame(), X[:, 0]], "X"),
    "records": (frame().to_records(index=False), "structured_to_unstructured"),
    "lists": (pd.DataFrame({"image": list(X)}), "numpy.stack"),
    "a gradient": (Tensor(), re.escape("X.detach().cpu().numpy()")),
    "sparse": (Tensor("torch.sparse_coo", "torch.bfloat16"), re.escape("X.to_dense().detach().cpu().float().numpy()")),
    "no rows": (frame().head(0), r"\(0, 4\)"),
    "no columns": (pd.DataFrame(index=range(30)), r"\(30, 0\)"),
    "NA": (frame().astype("Float64").mask(X > 1), "NaN.*'em'.*columns: '"),
    "infinity": (frame().where(X < 1, np.inf), "infinite.*columns: '"),
    "Arrow": (pa.table({"a": X[:, 0], "b": [SECRET] * 90, "c": [[1]] * 90}), "texts.*'b'.*objects.*'c'"),
    "one column": (frame()["age"], "1 axes"),
    "masked": (np.ma.masked_greater(X, 1), "NaN"),
    "masked texts": (np.ma.masked_array(X.astype(str), X > 1), "<U"),
    **{type(given).__name__: (given, type(given).__name__) for given in ({"a": [4711]}, {1, 2}, b"4711", None)},
    "a generator": (iter([[1, 2]]), "list_iterator"),
    "ragged rows": ([[1, 2], [4711]], "length"),
    "no list of rows": ([], "1 axes"),
    "empty rows": ([[], []], r"\(2, 0\)"),
    "whole numbers beyond 64 bits": ([[10**30] * 12] * 20, "float64"),
    "a scalar of NumPy": (np.float64(3.0), "0 axes"),
    "a number": (4711, "0 axes"),
    "three axes": (np.zeros((2, 3, 4)), "3 axes"),
    **{kind: (np.ones((20, 12), kind), kind) for kind in ("S4", "V8", "<U4", "complex128", "datetime64")},
    "an array of fields": (np.zeros((20, 12), dtype=[("a", float)]), "'a'"),
    "an array of objects": (np.array([[1, SECRET]] * 30, dtype=object), "texts in 1"),
    "sparse indices beyond the columns": (sparse.csr_array((np.ones(3), [2, 3, 4], range(4)), (3, 3)), "indices"),
    "sparse NaN": (sparse.csr_array(np.where(X > 1, np.nan, 0.0)), "NaN"),
    "unruly objects": (type("Unruly", (), {"__array__": Mock(side_effect=RuntimeError(SECRET))})(), "RuntimeError"),
}


@pytest.mark.parametrize("kind", ODD_TABLES)
def test_what_only_resembles_rows_is_refused_with_what_to_write_and_no_cell(kind):
    given, text = ODD_TABLES[kind]
    with refused(DataError, "party 1", match=text) as caught:
        fit([X, given])
    assert SECRET not in str(caught.value)


LARGE = np.random.default_rng(1).integers(-1000, 1000, (60, 3))
WHOLE = {
    "int64": np.asarray,
    "uint64": lambda rows: rows.astype(np.uint64),
    "frame": pd.DataFrame,
    "beside floats": lambda rows: pd.DataFrame(rows).assign(d=0.5 + np.arange(len(rows))),
    "nullable": lambda rows: pd.DataFrame(rows).astype("Int64"),
    "objects": lambda rows: rows.astype(object),
    "sparse": sparse.csr_array,
    "128 bits": lambda rows: (polars := pytest.importorskip("polars")).DataFrame(rows).cast(polars.Int128),
    "decimals": lambda rows: pa.table({"a": list(map(decimal.Decimal, rows[:, 0].tolist())), "b": rows[:, 1]}),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_numbers_are_exact_or_refused(kind):
    make, exact = WHOLE[kind], LARGE * 2**44 + 2**60  # multiples of a power of two
    found = fit([make(exact[:30]), make(exact[30:])])
    if kind != "beside floats":
        covariance = np.cov(exact[:, : 2 if kind == "decimals" else 3].T.astype(float))
        np.testing.assert_allclose(found.explained_variance_, np.linalg.eigvalsh(covariance)[::-1][:2], rtol=1e-9)
    with refused(DataError, match="2\\^53"):
        fit([make(LARGE[:30]), make(LARGE[30:] + 2**60)])
    with refused(DataError, match="2\\^53"):
        found.transform(make(LARGE + 2**60))


@pytest.mark.parametrize("kind", ["pandas", "arrow", "sparse", "xarray"])
def test_columns_of_the_same_names_are_put_into_the_first_order(kind):
    one, two = map(frame, cut(np.where(np.abs(X) < 0.1, 0.0, X), 60, 30))
    other = two[["pulse", "age", "weight", "bmi"]]
    other = {
        "pandas": lambda: other,
        "arrow": lambda: pa.Table.from_pandas(other),
        "sparse": lambda: other.astype(pd.SparseDtype(float, 0.0)),
        "xarray": lambda: of_xarray(other.to_numpy(), coords={"columns": list(other.columns)}),
    }[kind]()
    model, whole = fit({"north": one, "south": other}, keep="moments"), fit([one, two])
    assert model.moments_.features == tuple(NAMES)
    np.testing.assert_allclose(model.components_, whole.components_, atol=1e-12 if kind == "sparse" else 0)
    assert model.feature_names_in_.tolist() == NAMES
    of_order = [[note for note in own.log["notes"] if "in the order of" in note] for own in (model, whole)]
    assert of_order == [["columns are in the order of party 'north'; party 'south' had the same ones in another"], []]


def test_blocks_that_are_not_what_their_loader_says_are_refused():
    ones, odd = np.ones((3, 4)), [(np.full((3, 4), "1.0"), "<U3"), ([[1.0] * 4], "list"), (frame(), "DataFrame")]
    odd += [(ones.astype(kind), kind) for kind in ("int64", "float32")] + [(sparse.csr_array(ones), "csr_array")]
    for block, named in odd + [(np.ones(shape), str(shape)) for shape in ((3, 5), (4,))]:
        with refused(DataError, named, "float64", 4):
            check_rows(Blocks(lambda block=block: [ones, block], 4, np.dtype(float)))


def test_columns_are_named_once_and_known_by_their_digest():
    with refused(DataError, "'age'"):
        as_rows(pd.DataFrame(X[:, :2], columns=["age", "age"]), "the table")
    assert names_digest(("a", "bc")) != names_digest(("ab", "c"))
    assert names_digest((" a ", "bc")) == names_digest(("a", "bc"))
    texts = labels_text(range(20)), labels_text(range(22))[-15:]
    assert texts == (", ".join(map(str, range(20))), ", 19 and 2 more")
    with refused(ConfigError, "party 0", match="party 1 .*'bmi'.*'BMI'.*party 2 .*'height'"):
        fit([frame(), frame().rename(columns={"bmi": "BMI"}), frame().assign(height=1.0)])


def test_files_and_what_read_gives_are_parties_with_their_names(tmp_path):
    *files, west, east = (tmp_path / f"{name}.csv" for name in ("north", "south", "west", "east"))
    for file, part in zip(files, cut(X, 60, 30), strict=True):
        frame(part).to_csv(file, index=False)
    tables, whole = [read(file, leave_out=None) for file in files], fit(cut(X, 60, 30))
    values = dict(zip("ab", tables, strict=True)).values()
    forms = [files, list(map(str, files)), dict(zip("ab", files, strict=True)), [files[0], tables[1]]]
    for given in (*forms, tables, iter(tables), values):
        model = fit(given)
        assert [party["name"] for party in model.log["parties"]] in (["north", "south"], ["a", "b"], ["", ""])
        assert list(model.feature_names_in_) == NAMES
        np.testing.assert_allclose(model.components_, whole.components_, atol=1e-12)
    for parties in (files, tables, iter(tables), values):
        np.testing.assert_allclose(FederatedPCA(2).fit(parties).components_, whole.components_, atol=1e-12)
    alone = FederatedPCA(2).fit(tables[0], groups=np.repeat(["a", "b"], 30))
    assert alone.feature_names_in_.tolist() == NAMES
    np.testing.assert_array_equal(alone.transform(tables[0]), alone.transform([tables[0]]))
    with refused(ConfigError, "'parties'", "[X]"):
        fit(tables[0])
    with refused(ConfigError, west, east) as caught:
        fit([*files, west, east])
    assert "node-config" not in str(caught.value)


def test_a_partition_of_a_data_set_is_a_party_of_columns_or_of_images():
    """Flower Datasets gives such objects: `FederatedDataset.load_partition(i)`."""
    from datasets import Dataset, Features, Image, Value  # a second, of every worker

    def local_dataset(**columns):
        features = Features({name: Image() if name == "image" else Value("float64") for name in columns})
        return Dataset.from_dict(columns, features=features)

    pixels = np.random.default_rng(0).integers(0, 255, size=(40, 6, 5), dtype=np.uint8)
    images = list(map(PIL.Image.fromarray, pixels))
    dataset = local_dataset(image=images, label=np.arange(40) % 3.0)
    for table, expected in (
        (local_dataset(**dict(zip(NAMES, X.T, strict=True))), list(map(frame, np.split(X, 2)))),
        (dataset.select_columns("image"), np.split(pixels.reshape(40, -1), 2)),
    ):
        parts = [table.shard(2, party, contiguous=True) for party in range(2)]
        assert not differences(run("p-cov", parts, n_components=2), run("p-cov", expected, n_components=2))
    with refused(DataError, "'image'", "dataset.select_columns('image')"):
        run("p-cov", [dataset, dataset], n_components=2)
    uneven = local_dataset(image=[*images[:3], PIL.Image.fromarray(pixels[0, :4])])
    with refused(DataError, "'image'", "4 x 5", "6 x 5"):
        run("p-cov", [uneven, uneven], n_components=2)
