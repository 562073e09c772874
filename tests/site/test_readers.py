"""A site's file: every format gives the same rows, and no error's text holds a value or a path."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

from fedpca_flwr.data import table
from fedpca_flwr.data.table import check
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths import rows as blocks
from fedpca_flwr.maths.rows import Blocks, sparse_rows, whole
from fedpca_flwr.site import csv_file, readers
from fedpca_flwr.site.readers import read, read_ids
from tests.families import rows
from tests.refusals import refused

X = rows(20, 4)
NAMES = ["age", "weight", "height", "pulse"]


def write(folder, suffix, X=X):
    path = folder / f"site{suffix}"
    if suffix == ".npy":
        np.save(path, X)
    elif suffix == ".npz":
        np.savez(path, X=X, y=np.zeros(len(X)))
    elif suffix == ".csv":
        np.savetxt(path, X, delimiter=",", header=",".join(NAMES), comments="", fmt="%.17g")
    else:
        parquet.write_table(pa.table({name: X[:, j] for j, name in enumerate(NAMES)}), path)
    return str(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_every_format_gives_the_same_rows(suffix, tmp_path):
    found = read(write(tmp_path, suffix))
    np.testing.assert_array_equal(found.rows, X)
    assert bool(found.columns) == (suffix in {".csv", ".parquet"})


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_a_label_column_is_left_out(suffix, tmp_path):
    label = "height" if suffix in {".csv", ".parquet"} else "2"
    np.testing.assert_array_equal(read(write(tmp_path, suffix), label).rows, np.delete(X, 2, axis=1))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet"])
def test_what_is_not_kept_is_read_in_blocks(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HELD_BYTES", 0)
    monkeypatch.setattr(csv_file, "CHARACTERS", 100)
    for module in (readers, blocks):
        monkeypatch.setattr(module, "CACHE_ELEMENTS", 0)  # blocks of 64 rows
    X = rows(150, 4)
    found = read(write(tmp_path, suffix, X), "" if suffix[:3] != ".np" else "2").rows
    expected = X if suffix[:3] != ".np" else np.delete(X, 2, axis=1)
    assert isinstance(found, Blocks)
    assert max(len(block) for block in found.read()) <= 64
    for _ in range(2):
        np.testing.assert_array_equal(whole(found), expected)
    np.testing.assert_array_equal(whole(found[60:70]), expected[60:70])
    chosen = np.random.default_rng(0).random(150) < 0.4
    np.testing.assert_array_equal(whole(found[chosen]), expected[chosen])


@pytest.mark.parametrize(
    ("line", "what", "place"),
    [
        ("1,x,3", "texts", "line 1001, column 2"),
        ("1,2", "length", "line 1001 with 2 cells"),
        ("1,2,3,4", "length", "line 1001 with 4 cells"),
    ],
)
def test_a_fault_in_a_later_block_is_told_with_its_row(line, what, place, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "CHARACTERS", 100)
    path = tmp_path / "site.csv"
    path.write_text("\n".join(["1,2,3"] * 1000 + [line] + ["1,2,3"] * 1000))
    with refused(DataError, ".csv", match=what) as caught:
        read(str(path))
    assert place in caught.value.local


def test_later_blocks_of_csv_hold_texts_booleans_and_faults_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "CHARACTERS", 100)
    path = tmp_path / "site.csv"
    path.write_text("\n".join(["1,2,3"] * 1000 + ["1,2"] * 600))
    with refused(DataError, ".csv"):
        read(str(path))
    monkeypatch.setattr(csv_file, "CHARACTERS", 100)
    path = tmp_path / "site.csv"
    path.write_text("a,kind\n" + "\n".join(f'{i},"one,\ntwo"' for i in range(900)) + "\n\n")
    np.testing.assert_array_equal(read(str(path), "kind").rows[:, 0], np.arange(900))
    monkeypatch.setattr(csv_file, "CHARACTERS", 100)
    path = tmp_path / "site.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000 + "True,\nfalse,3\n" + "1,2\n" * 1000)
    found = read(str(path))
    np.testing.assert_array_equal(found.rows[1000:1002], [[1, np.nan], [0, 3]])
    assert found.rows.shape == (2002, 2)
    assert found.missing.tolist() == [0, 1]
    monkeypatch.setattr(csv_file, "CHARACTERS", 100)
    text = "\na,note\n" + "".join(f'{i},"one,\ntwo"\n\n' for i in range(900)) + "x,y\n"
    path = tmp_path / "site.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read(str(path), "note")
    assert caught.value.local == f"line {text.splitlines().index('x,y') + 1}, column 1 ('a'): texts"


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_a_sparse_matrix_is_one_and_is_checked(kind, tmp_path):
    path = tmp_path / "site.npz"
    matrix = sparse.random_array((30, 8), density=0.09, rng=np.random.default_rng(0), format=kind)
    sparse.save_npz(path, matrix)
    found = read(str(path), "2").rows
    assert found.sparse
    np.testing.assert_array_equal(whole(found), np.delete(matrix.toarray(), 2, axis=1))
    matrix.data[7, ...] = np.nan
    sparse.save_npz(path, matrix)
    np.testing.assert_array_equal(read(str(path)).missing, np.isnan(matrix.toarray()).sum(axis=0))
    matrix.data[7, ...] = np.inf
    sparse.save_npz(path, matrix)
    with refused(DataError):
        read(str(path))
    matrix.data[7, ...] = 1.0
    held = dict(np.load(path))
    for spoilt in ({"indices": held["indices"] + 30}, {"indptr": held["indptr"][:-1]}, {"shape": np.array([30, 7])}):
        np.savez(path, **{**held, **spoilt})
        with refused(DataError, ".npz"):
            read(str(path))


def test_a_large_npy_stays_on_disk_and_entries_held_twice_add_up(tmp_path):
    assert isinstance(read(write(tmp_path, ".npy")).rows, np.memmap)
    twice = sparse.csr_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    np.testing.assert_array_equal(whole(sparse_rows(twice)), [[3.0, 0.0]])
    assert twice.nnz == 2  # the user's own is as it was


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path):
    with refused(DataError, "'data'"):
        read(str(tmp_path / "none.csv"))
    with refused(ConfigError, ".npy", ".npz", ".csv", ".parquet", ".h5ad"):
        read("site.xlsx")
    with refused(ConfigError, "'label'"):
        read(write(tmp_path, ".csv"), "pulze")


@pytest.mark.parametrize(
    ("cell", "whole"),
    [
        ("nan", [1.0, None, 3.0]),
        ("", [1, None, 3]),
        (" ", pa.array([1, None, 3], pa.int8())),
        ("NA", pa.array([1, None, 3]).cast(pa.decimal128(30, 2))),
        ("null", pa.array([1, None, 3], pa.float32())),
    ],
)
def test_missing_values_of_a_file_are_counted(cell, whole, tmp_path):
    holes = pa.table({"a": whole, "b": [1.0, 2.0, 3.0]})
    parquet.write_table(holes, tmp_path / "holes.parquet")
    (tmp_path / "holes.csv").write_text(f"a,b\n1,1\n{cell},2\n3,3\n")
    np.save(tmp_path / "holes.npy", np.array([[1.0, 1.0], [np.nan, 2.0], [3.0, 3.0]]))
    for kind in ("parquet", "csv", "npy"):
        table = read(str(tmp_path / f"holes.{kind}"))
        assert table.missing.tolist() == [1, 0]
        assert np.isnan(np.asarray(table.rows)).tolist() == [[False, False], [True, False], [False, False]]


HELD = np.array([[1.5, -2.25, 3.0], [0.001, 1e-5, 12345.678], [7.0, 8.0, -0.5]])


def written(separator=",", comma=False, header="größe,b,c", ending="\n"):
    body = [[f"{value:.17g}".replace(".", "," if comma else ".") for value in row] for row in HELD]
    first = [header.replace(",", separator)] if header else []
    return ending.join([*first, *(separator.join(row) for row in body), ""])


@pytest.mark.parametrize("header", ["größe,b,c", ""])
@pytest.mark.parametrize(
    ("separator", "comma"),
    [(",", False), (";", False), (";", True), ("\t", False), ("\t", True), ("|", False), ("|", True)],
)
def test_separators_and_decimal_commas_are_recognised(separator, comma, header, tmp_path):
    path = tmp_path / "site.csv"
    path.write_text(written(separator, comma, header), encoding="utf-8")
    found = read(str(path))
    np.testing.assert_array_equal(found.rows, HELD)
    assert found.names == (("größe", "b", "c") if header else ())


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-32"])
def test_encodings_and_ends_of_lines_are_recognised(encoding, ending, tmp_path):
    path = tmp_path / "site.csv"
    path.write_bytes(written(ending=ending).encode(encoding))
    found = read(str(path))
    np.testing.assert_array_equal(found.rows, HELD)
    assert found.names == ("größe", "b", "c")


@pytest.mark.parametrize("name", ["PAR1", "BZh", "[Na+]", "<40 years", "{a}", "PK"])
def test_names_may_begin_as_files_of_other_kinds_do(name, tmp_path):
    path = tmp_path / "site.csv"
    path.write_text(f"{name},b\n1,2\n3,4\n")
    assert read(str(path)).names == (name, "b")


def test_separators_decimals_and_single_lines_of_csv(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text("sep=;\n" + written(";", comma=True))
    assert read(str(path)).names == ("größe", "b", "c")
    path.write_text("sep=;\na;b\n1;2\nx;3\n")
    with pytest.raises(DataError) as caught:
        read(str(path))
    assert "line 4, column 1 ('a')" in caught.value.local
    path = tmp_path / "site.csv"
    path.write_text("a;b\n" + "1;2\n" * 500 + "1,5;2\n")
    assert read(str(path)).rows[-1].tolist() == [1.5, 2.0]
    path = tmp_path / "site.csv"
    path.write_text("code;a\n1,5;2\n1,6;2.5\n")
    assert read(str(path), "code").rows.tolist() == [[2.0], [2.5]]
    path.write_text("code;a\n1.5;2\n1.6;2,5\n")
    assert read(str(path), "code").rows.tolist() == [[2.0], [2.5]]
    path = tmp_path / "one.csv"
    path.write_text("1.5,2.5,3.5\n")
    assert read(str(path)).rows.shape == (1, 3)
    path = tmp_path / "site.CSV"
    path.write_text("nan,inf\n1,2\n3,4\n")
    assert read(str(path)).rows.shape == (2, 2)
    path = tmp_path / "sonar.csv"
    path.write_text("0.1,0.2,R\n0.3,0.4,M\n")
    found = read(str(path), "2")
    np.testing.assert_array_equal(found.rows, [[0.1, 0.2], [0.3, 0.4]])
    assert found.columns == ""


@pytest.mark.parametrize(
    ("text", "label", "first"), [("-0,97;male\n", "1", -0.97), ("12;13,5\n14;15,5\n", "0", 13.5), ("a;0,5\n", "0", 0.5)]
)
def test_a_file_that_two_separators_fit_is_refused_until_it_names_one(text, label, first, tmp_path):
    path = tmp_path / "site.csv"
    path.write_text(text)
    with refused(DataError, "','", "';'"):
        read(str(path), label)
    path.write_text("sep=;\n" + text)
    assert read(str(path), label).rows[0].tolist() == [first]


def test_cells_of_spaces_and_long_lines_are_read(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text('age\n1.5\n \n""\n2.5\n')
    np.testing.assert_array_equal(read(str(path)).rows, [[1.5], [np.nan], [np.nan], [2.5]])
    path = tmp_path / "site.csv"
    path.write_bytes("sep=;\nid;a\nmüller;1,5\n   \n\nmeier;2,5\n".encode("cp1252"))
    assert read_ids(str(path), "id", 2) == ["müller", "meier"]
    # By a separator that does not occur, a line of many columns is one cell, of too many characters.
    path, wide = tmp_path / "genes.csv", np.random.default_rng(0).standard_normal((3, 12_000))
    np.savetxt(path, wide, delimiter=",", fmt="%.17g")
    np.testing.assert_array_equal(read(str(path)).rows, wide)


def test_no_more_is_refused_than_what_cannot_be_squared():
    """Zeros, a tiny value beside others, and integers of any size are data."""
    good = np.zeros((70, 4))
    good[1] = 0.0, 1e-300, 1e140, -1e140
    good[69] = 0.0, 1e-140, 1e-300, 0.0
    assert check(good).rows is good
    check(np.full((2, 2), 2**64 - 1, dtype=np.uint64))
    for value in (1.1e140, -1.1e140, np.inf, -np.inf):
        bad = good.copy()
        bad[68, 2] = value
        with pytest.raises(DataError) as caught:
            check(bad)
        assert caught.value.local == "columns (from 0): [2]"


def test_a_kind_of_file_is_one_entry_of_the_table(tmp_path, monkeypatch):
    def columns_of(file, left_out, variants=""):
        return np.array([line.split("/") for line in file.read_text().splitlines()], float), [f"a{variants}", "b"]

    kind = readers.Format(columns_of, lambda file, column, rows, label: [column] * rows, settings=("variants",))
    monkeypatch.setitem(readers.FORMATS, ".slashes", kind)
    path = tmp_path / "own.SLASHES"
    path.write_text("1/2\n3/4\n")
    np.testing.assert_array_equal(read(str(path)).rows, [[1, 2], [3, 4]])
    assert read(str(path), variants="listed").names == ("alisted", "b")
    assert read_ids(str(path), "id", 2) == ["id", "id"]
    with refused(ConfigError, "'layer'", ".h5ad"):
        read(str(path), layer="counts")
    (tmp_path / "own.npy").touch()
    with refused(ConfigError, "'variants'", ".bed", ".slashes"):
        read(str(tmp_path / "own.npy"), variants="listed")
    with refused(ConfigError, "'ids'", ".csv", ".parquet", ".slashes"):
        read_ids(str(tmp_path / "own.npy"), "id", 2)
