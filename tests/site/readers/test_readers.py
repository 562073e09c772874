"""A site's file: every format gives the same rows, and no error's text holds a value or a path."""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

from fedpca_flwr.data.table import check_rows
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Blocks, sparse_rows, to_array
from fedpca_flwr.site.readers.file_format import FORMATS, FileFormat
from fedpca_flwr.site.readers.files import read, read_ids, read_texts
from tests.families import rows
from tests.harness import read_in_blocks
from tests.refusals import refused
from tests.site.readers.test_texts import written

X = rows(150, 4)
NAMES = ["age", "weight", "height", "pulse"]
WRITERS = {
    ".npy": lambda path: np.save(path, X),
    ".npz": lambda path: np.savez(path, X=X, y=np.zeros(len(X))),
    ".csv": lambda path: np.savetxt(path, X, delimiter=",", header=",".join(NAMES), comments="", fmt="%.17g"),
    ".parquet": lambda path: parquet.write_table(pa.table(dict(zip(NAMES, X.T, strict=True))), path),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_same_rows(suffix, tmp_path, monkeypatch):
    path, named = tmp_path / f"site{suffix}", suffix in {".csv", ".parquet"}
    WRITERS[suffix](path)
    loaded, label, expected = read(path), "height" if named else "2", np.delete(X, 2, axis=1)
    np.testing.assert_array_equal(loaded.rows, X)
    assert bool(loaded.names) == named
    pd.testing.assert_frame_equal(loaded.frame(), pd.DataFrame(X, columns=NAMES if named else range(4)))
    assert (loaded.shape, list(loaded.head(2).columns)) == ((150, 4), list(loaded.columns))
    assert isinstance(loaded.rows, np.memmap) == (suffix == ".npy")  # a large one stays on disk
    np.testing.assert_array_equal(read(path, label).rows, expected)
    for wrong in ("pulze", "4", "h*"):
        with refused(ConfigError, "'label'"):
            read(path, wrong)
    read_in_blocks(monkeypatch)
    in_blocks = read(path, label).rows
    assert isinstance(in_blocks, Blocks)
    assert max(len(block) for block in in_blocks.read()) <= 64
    for _ in range(2):
        np.testing.assert_array_equal(to_array(in_blocks), expected)
    np.testing.assert_array_equal(to_array(in_blocks[60:70]), expected[60:70])
    chosen = np.random.default_rng(0).random(150) < 0.4
    np.testing.assert_array_equal(to_array(in_blocks[chosen]), expected[chosen])


def test_the_index_of_pandas_is_no_feature_and_a_folder_of_parquet_files_is_a_table(tmp_path):
    wards = pd.MultiIndex.from_product([range(3), range(50)], names=["ward", None])
    numbers = pd.Index(np.arange(150) + 9000, name="patient")
    for index in (pd.Index([f"p{i}" for i in range(150)]), numbers, wards, pd.RangeIndex(150)):
        pd.DataFrame(X, columns=NAMES, index=index).to_parquet(path := tmp_path / "site.parquet")
        loaded = read(path, label="age")
        assert loaded.names == tuple(NAMES[1:])
        np.testing.assert_array_equal(loaded.rows, X[:, 1:])
        assert not index.name or read_ids(path, index.name, 150) == [str(value) for value in index]
    folder = tmp_path / "folder.parquet"
    (folder / "day=2").mkdir(parents=True)
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(150)], **dict(zip(NAMES, X.T, strict=True))})
    for name, part in {"part-0.parquet": frame[:70], "day=2/part-1.parquet": frame[70:]}.items():
        part.to_parquet(folder / name)
    (folder / "_metadata.parquet").write_text("of Spark")
    loaded = read(folder, leave_out="id")
    ids = [int(name[1:]) for name in read_ids(folder, "0", 150)]
    np.testing.assert_array_equal(loaded.rows, X[ids])
    assert sorted(ids) == list(range(150))
    frame.rename(columns={"age": "years"}).to_parquet(folder / "part-2.parquet")
    with pytest.raises(DataError, match="other columns") as caught:
        read(folder, leave_out="id")
    assert "part-2" in caught.value.local
    with refused(ConfigError, "'ids'"):
        read_ids(path, "p*", 150)
    (tmp_path / "site.csv").mkdir()
    with refused(DataError, "site.csv", match="folder"):
        read(tmp_path / "site.csv")


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_a_sparse_matrix_is_one_and_what_is_missing_is_counted(kind, tmp_path):
    path = tmp_path / "site.npz"
    matrix = sparse.random_array((30, 8), density=0.09, rng=np.random.default_rng(0), format=kind)
    sparse.save_npz(path, matrix)
    loaded = read(str(path), "2").rows
    assert loaded.sparse
    np.testing.assert_array_equal(to_array(loaded), np.delete(matrix.toarray(), 2, axis=1))
    matrix.data[7, ...] = np.nan
    sparse.save_npz(path, matrix)
    np.testing.assert_array_equal(read(str(path)).missing, np.isnan(matrix.toarray()).sum(axis=0))
    twice = sparse.csr_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 2))
    np.testing.assert_array_equal(to_array(sparse_rows(twice)), [[3.0, 0.0]])
    assert twice.nnz == 2


def test_missing_values_of_a_file_are_counted(tmp_path):
    for cell, column in (
        *((cell, [1, None, 3]) for cell in ("", "n/a", "#N/A", "<NA>", "None")),
        ("nan", [1.0, None, 3.0]),
        *((cell, pa.array([1, None, 3], kind)) for cell, kind in ((" ", pa.int8()), ("null", pa.float32()))),
        ("NA", pa.array([1, None, 3]).cast(pa.decimal128(30, 2))),
    ):
        parquet.write_table(pa.table({"a": column, "b": [1, 2, 3]}), tmp_path / "holes.parquet", row_group_size=1)
        (tmp_path / "holes.csv").write_text(f"a,b\n1,1\n{cell},2\n3,3\n")
        np.save(tmp_path / "holes.npy", np.array([[1.0, 1.0], [np.nan, 2.0], [3.0, 3.0]]))
        for kind in ("parquet", "csv", "npy"):
            loaded = read(str(tmp_path / f"holes.{kind}"))
            assert loaded.missing.tolist() == [1, 0]
            np.testing.assert_array_equal(loaded.rows, [[1, 1], [np.nan, 2], [3, 3]])


@pytest.mark.parametrize("neighbours", [[1, 2], [0.5, 1.5]])
def test_integers_that_float64_rounds_are_refused(neighbours, tmp_path):
    def read_table(number, **keys):
        parquet.write_table(pa.table({"a": [number, 1], "b": neighbours}), tmp_path / "site.parquet")
        return read(tmp_path / "site.parquet", **keys).rows

    for number in (2**60 + 1, -(2**53) - 1, 2**63 - 1):
        with refused(DataError, "2^53"):
            read_table(number)
        assert len(read_table(number, leave_out="a")) == 2
    assert read_table(1).dtype.kind == ("f" if 0.5 in neighbours else "i")
    np.testing.assert_array_equal(read_table(2**60), np.column_stack([[2.0**60, 1], neighbours]))
    good = np.zeros((70, 4))  # zeros, a tiny value beside others, and integers that float64 holds are data
    good[1], good[69] = (0.0, 1e-300, 1e140, -1e140), (0.0, 1e-140, 1e-300, 0.0)
    assert check_rows(good).rows is good
    check_rows(np.full((2, 2), 2**63, dtype=np.uint64))


def test_a_kind_of_file_is_one_entry_of_the_table(tmp_path, monkeypatch):
    def columns_of(file, selection, variants=""):
        return np.array([line.split("/") for line in file.read_text().splitlines()], float), [f"a{variants}", "b"]

    kind = FileFormat(columns_of, lambda file, column, rows, label: [column] * rows, settings=("variants",))
    monkeypatch.setitem(FORMATS, ".slashes", kind)
    path, other = written(tmp_path, "1/2\n3/4\n", "own.SLASHES"), written(tmp_path, "", "own.npy")
    np.testing.assert_array_equal(read(path).rows, [[1, 2], [3, 4]])
    assert read(path, variants="listed").names == ("alisted", "b")
    assert read_ids(path, "id", 2) == ["id", "id"]
    with refused(ConfigError, "'layer'", ".h5ad"):
        read(path, layer="counts")
    with refused(ConfigError, "'variants'", ".bed", ".slashes"):
        read(other, variants="listed")
    with refused(ConfigError, "'ids'", ".csv", ".parquet", ".slashes"):
        read_ids(other, "id", 2)
    with refused(DataError, "none.csv"):
        read(str(tmp_path / "none.csv"))
    with refused(ConfigError, ".npy", ".npz", ".csv", ".parquet", ".h5ad", ".slashes"):
        read("site.ods")


VALUES = np.array([[1.5, -2.25, 3.0], [0.001, 1e-5, 12345.678], [7.0, 8.0, -0.5]])


def text_of(separator=",", comma=False, header="größe,b,c", ending="\n"):
    body = [[f"{value:.17g}".replace(".", "," if comma else ".") for value in row] for row in VALUES]
    first = [header.replace(",", separator)] if header else []
    return ending.join([*first, *(separator.join(row) for row in body), ""])


@pytest.mark.parametrize("header", ["größe,b,c", ""])
@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *((partial(text_of, *style), "utf-8") for style in [(",", False), *product(";\t|", (False, True))]),
        *product(
            [partial(text_of, ending=ending) for ending in ("\n", "\r\n", "\r")],
            ("utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-32"),
        ),
    ],
)
def test_separators_decimals_encodings_and_ends_of_lines_are_recognised(text, encoding, header, tmp_path):
    loaded = read(written(tmp_path, text(header=header).encode(encoding)))
    np.testing.assert_array_equal(loaded.rows, VALUES)
    assert loaded.names == (("größe", "b", "c") if header else ())


def test_decimals_names_single_lines_and_excels_line_are_recognised(tmp_path):
    for text, label, names, last in (
        ("a;b\n" + "1;2\n" * 500 + "1,5;2\n", "", ("a", "b"), [1.5, 2]),
        ("code;a\n1,5;2\n1,6;2.5\n", "code", ("a",), [2.5]),
        ("code;a\n1.5;2\n1.6;2,5\n", "code", ("a",), [2.5]),
        ("1.5,2.5,3.5\n", "", (), [1.5, 2.5, 3.5]),
        ("0\n1.5\n", "", (), [1.5]),
        ("a;b\n0,125;0,250\n", "", ("a", "b"), [0.125, 0.25]),
        ("a;b\n1,234;2\n5,5;3\n", "", ("a", "b"), [5.5, 3]),
        ("1,5;2,5\n3,5;4,5\n", "", (), [3.5, 4.5]),
        *(
            (f"{name},inf\n1,2\n3,4\n", "", (name, "inf"), [3, 4])  # also as files of other kinds begin
            for name in ("nan", "PAR1", "BZh", "[Na+]", "<40 years", "{a}", "PK")
        ),
        ("0.1,0.2,R\n0.3,0.4,M\n", "2", (), [0.3, 0.4]),
    ):
        loaded = read(written(tmp_path, text, "site.CSV"), label)
        assert (loaded.names, loaded.rows[-1].tolist()) == (names, last)
        assert len(loaded.rows) == text.count("\n") - bool(names)
    for text, label, first in (("-0,97;male\n", "1", -0.97), ("12;13,5\n14;15,5\n", "0", 13.5), ("a;0,5\n", "0", 0.5)):
        with refused(DataError, "','", "';'"):  # an ambiguous separator
            read(written(tmp_path, text), label)
        assert read(written(tmp_path, "sep=;\n" + text), label).rows[0].tolist() == [first]
    np.testing.assert_array_equal(read(written(tmp_path, "sep=;\n" + text_of(";", comma=True))).rows, VALUES)
    with pytest.raises(DataError) as caught:
        read(written(tmp_path, "sep=;\na;b\n1;2\nx;3\n"))
    assert "line 4, column 1 ('a')" in caught.value.local


def test_cells_of_spaces_and_long_lines_are_read(tmp_path):
    loaded = read(written(tmp_path, 'age\n1.5\n \n""\n2.5\n'))
    np.testing.assert_array_equal(loaded.rows, [[1.5], [np.nan], [np.nan], [2.5]])
    path = written(tmp_path, "sep=;\nid;a\nmüller;1,5\n   \n\nmeier;2,5\n".encode("cp1252"))
    assert read_ids(path, "id", 2) == ["müller", "meier"]
    for comment in ("", "#"):
        path = written(
            tmp_path, ("# all\n" * len(comment) + "id,a\n" + "x,1\n" * 270_000 + "müller,2\n").encode("cp1252")
        )
        assert read_ids(path, "id", 1, comment=comment) == ["müller"]
    assert read_texts(written(tmp_path, "a,b\nx,1\n,\nNULL,2\nn/a,\n"), "a", 4) == ["x", None, None, None]
    # By a separator that does not occur, a line of many columns is one cell, of too many characters.
    path, wide = tmp_path / "genes.csv", np.random.default_rng(0).standard_normal((3, 12_000))
    np.savetxt(path, wide, delimiter=",", fmt="%.17g")
    np.testing.assert_array_equal(read(path).rows, wide)


def test_later_blocks_and_long_rows_of_csv_have_faults_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpca_flwr.site.readers.csv_file.BLOCK_CHARACTERS", 100)
    loaded = read(written(tmp_path, "a,b\n" + "1,2\n" * 1000 + "True,\nfalse,3\n" + "1,2\n" * 1000))
    np.testing.assert_array_equal(loaded.rows[1000:1002], [[1, np.nan], [0, 3]])
    assert loaded.rows.shape == (2002, 2)
    assert loaded.missing.tolist() == [0, 1]
    path = written(tmp_path, "a,b\n" + "1,x\n" * 1000 + f"2,{'y' * 50_000}\n" + "True,z\n" * 1000)
    np.testing.assert_array_equal(read(path, leave_out="b").rows[998:1003, 0], [1, 1, 2, 1, 1])
    assert [len(cell) for cell in read_ids(path, "b", 2001)[998:1003]] == [1, 1, 50_000, 1, 1]
    text = "\na,note\n" + "".join(f'{i},"one,\nand\ntwo"\n\n' for i in range(900))
    np.testing.assert_array_equal(read(written(tmp_path, text), "note").rows[:, 0], np.arange(900))
    with pytest.raises(DataError) as caught:
        read(written(tmp_path, text + "x,y\n"), "note")
    assert caught.value.local == f"line {len(text.splitlines()) + 1}, column 1 ('a'): words among numbers"
    read_in_blocks(monkeypatch)
    for lines, what, place in (
        (["1,x,3"], "words among numbers", "line 1001, column 2: words among numbers"),
        (["1,2,3,4"], "length", "line 1001 with 4 cells"),
        (["1,2"] * 600, "length", "lines 1001, 1002, 1003, 1004, 1005 and 595 more with 2 cells"),
    ):
        with refused(DataError, ".csv", match=what) as caught:
            read(written(tmp_path, "\n".join(["1,2,3"] * 1000 + lines + ["1,2,3"] * 1000)))
        assert place in caught.value.local
