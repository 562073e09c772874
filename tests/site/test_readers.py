"""A site's file: every format gives the same rows, and no error's text holds a value or a path."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.readers import read
from fedpca_flwr.table import check
from tests.families import rows

X = rows(20, 4)
NAMES = ["age", "weight", "height", "pulse"]


def write(folder, suffix):
    path = folder / f"site{suffix}"
    if suffix == ".npy":
        np.save(path, X)
    elif suffix == ".npz":
        np.savez(path, X=X, y=np.zeros(20))
    elif suffix == ".csv":
        np.savetxt(path, X, delimiter=",", header=",".join(NAMES), comments="", fmt="%.17g")
    else:
        parquet.write_table(pa.table({name: X[:, j] for j, name in enumerate(NAMES)}), path)
    return str(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_every_format_gives_the_same_rows(suffix, tmp_path):
    table = read(write(tmp_path, suffix))
    np.testing.assert_array_equal(table.rows, X)
    assert bool(table.columns) == (suffix in {".csv", ".parquet"})


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_a_label_column_is_left_out(suffix, tmp_path):
    label = "height" if suffix in {".csv", ".parquet"} else "2"
    np.testing.assert_array_equal(read(write(tmp_path, suffix), label).rows, np.delete(X, 2, axis=1))


def test_a_large_npy_stays_on_disk(tmp_path):
    assert isinstance(read(write(tmp_path, ".npy")).rows, np.memmap)


def test_a_text_label_and_no_header(tmp_path):
    path = tmp_path / "sonar.csv"
    path.write_text("0.1,0.2,R\n0.3,0.4,M\n")
    table = read(str(path), "2")
    np.testing.assert_array_equal(table.rows, [[0.1, 0.2], [0.3, 0.4]])
    assert table.columns == ""


def test_column_names_and_their_order_are_told_apart(tmp_path):
    digests = set()
    for i, header in enumerate(["a,b", "b,a", "a,b"]):
        path = tmp_path / f"{i}.csv"
        path.write_text(f"{header}\n1,2\n3,4\n")
        digests.add(read(str(path)).columns)
    assert len(digests) == 2


def test_one_line_is_one_row(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("1.5,2.5,3.5\n")
    assert read(str(path)).rows.shape == (1, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,\n", "empty or not numbers"),
        ("a,b\n1,4711x\n", "empty or not numbers"),
        ("a,b\n1,2\n3\n", "different length"),
        ("a,b\n1,2\n3,4,5\n", "different length"),
        ("", "is empty"),
    ],
)
def test_a_broken_csv_is_named_without_its_cells(text, message, tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read(str(path))
    for secret in ("4711", "patients", str(tmp_path)):
        assert secret not in str(caught.value)
    assert "4711" not in caught.value.local


def test_pickled_arrays_are_not_opened(tmp_path):
    path = tmp_path / "site.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a plain array"):
        read(str(path))


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read(str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match="file of unknown kind, expected one of: .npy, .npz, .csv, .parquet"):
        read("site.xlsx")
    with pytest.raises(ConfigError, match="'label' names no column"):
        read(write(tmp_path, ".csv"), "pulze")
    parquet.write_table(pa.table({"a": [1.0, None]}), tmp_path / "holes.parquet")
    with pytest.raises(DataError, match="missing values"):
        read(str(tmp_path / "holes.parquet"))


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ('"a","b"\n1,10,20\n2,30,40\n', "b", "2 column names but 3 columns"),
        ("a,b,c\n1,2\n3,4\n", "", "3 column names but 2 columns"),
        ("0,1,2\n5.5,6,7\n", "", "counts its columns"),
        (",a,b\n0,1,2\n", "", "a column without a name"),
        ("a,2,3\n4,5,6\n", "", "neither all names nor all numbers"),
    ],
)
def test_a_csv_that_could_be_misread_is_refused(text, label, message, tmp_path):
    path = tmp_path / "site.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(str(path), label)


def test_names_that_look_like_numbers_to_python_are_names(tmp_path):
    path = tmp_path / "site.CSV"
    path.write_text("nan,inf\n1,2\n3,4\n")
    assert read(str(path)).rows.shape == (2, 2)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00broken", b"PK\x03\x04 not a zip", b"\x93NUMPY\x01\x00v\x00((("])
def test_a_damaged_file_is_named_without_its_path(suffix, content, tmp_path):
    path = tmp_path / f"patients{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(str(path))
    assert "patients" not in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": [1.0], "__index_level_0__": [0]}),
        pa.table({"a": [1.0], "b": ["x"]}),
    ],
    ids=["index", "text"],
)
def test_parquet_columns_that_are_no_features_are_refused(table, tmp_path):
    path = tmp_path / "site.parquet"
    parquet.write_table(table, path)
    with pytest.raises(DataError, match=r"index column|not numbers"):
        read(str(path))


def test_no_more_is_refused_than_what_cannot_be_squared():
    """Zeros, a tiny value beside others, and integers of any size are data."""
    good = np.zeros((70, 4))
    good[1] = 0.0, 1e-300, 1e140, -1e140
    good[69] = 0.0, 1e-140, 1e-300, 0.0
    assert check(good) is good
    check(np.full((2, 2), 2**64 - 1, dtype=np.uint64))
    for value in (1.1e140, -1.1e140, np.nan, -np.inf):
        bad = good.copy()
        bad[68, 2] = value
        with pytest.raises(DataError) as caught:
            check(bad)
        assert caught.value.local == "columns (from 0): [2]"


def test_which_column_is_missing_stays_here():
    bad = X.copy()
    bad[3, 2] = np.nan
    with pytest.raises(DataError, match="NaN") as caught:
        check(bad)
    assert caught.value.local == "columns (from 0): [2]"
    assert "2" not in str(caught.value)
