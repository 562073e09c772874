"""Texts as people have them: each is read as its author means it, or refused with the key that decides."""

import gzip
import sys
from itertools import product

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import read, run
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.site.readers.files import read_ids, read_texts
from tests.families import rows
from tests.harness import at_sites, finish, server_of
from tests.refusals import refused

B = np.round(50 + 9 * rows(12, 3), 2)
NAN = np.nan


def body(separator=",", decimal=".", quote="", table=B):
    cell = f"{quote}{{:.2f}}{quote}"
    return "".join(separator.join(cell.format(v).replace(".", decimal) for v in row) + "\n" for row in table)


def numbered(text, first=""):
    return "".join(f"{first}{i},{line}\n" for i, line in enumerate(text.splitlines()))


def written(folder, content, name="site.csv"):
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


ABC, FEW = "a,b,c\n" + body(), "id,x_1,x_2,x_3\n"
RISING = "".join(",".join(f"{v:.3f}" for v in row) + "\n" for row in np.cumsum(np.abs(rows(9, 9)) + 0.01, axis=1))
POINTS, SPACES = ({"thousands": sign, "decimal": ","} for sign in (".", " "))
MARKED = {"encoding": "utf-8", "ids": "i, d"}
LEFT, LEAVE = 'id,a,"b, c",x_1,x_2\n', {"leave_out": 'id, "b, c", x_*'}
READ = {
    "semicolons and decimal commas behind a mark": ("\ufeffa;b;c\n" + body(";", ","), {}, B),
    "a mark, and ids by a name with a comma": ('\ufeff"i, d",a,b,c\n' + numbered(body(), "p"), MARKED, B),
    "UTF-16 without its mark": (ABC.encode("utf-16-le"), {"encoding": "utf-16-le"}, B),
    "all in quotes": ('"a","b","c"\n' + body(quote='"'), {}, B),
    "names that are numbers": ('"1100","1102","1104"\n' + body(), {"header": True}, B),
    "a row first": ("1,2,3\n" + body(), {"header": False}, np.vstack([[1, 2, 3], B])),
    "rows that all rise": (RISING, {}, [[float(v) for v in line.split(",")] for line in RISING.split()]),
    "an index without a name": (",a,b,c\n" + numbered(body()), {"leave_out": "0"}, B),
    "a comment that rows begin with": ("a,b,c\n-,kg,mm\n" + body(table=-B), {"comment": "-"}, -B),
    "several left out": (LEFT + numbered("\n".join(f"{v},u,2020-01-01,w" for v in B[:, 0]), "p"), LEAVE, B[:, :1]),
    "few are features": (FEW + numbered(body(), "p"), {"columns": "x_1, x_2*, 3", "leave_out": ["x_3"]}, B[:, :2]),
    "a row below two lines of names": ("a,a,c\nx,y,x\n5,,\n" + body(), {}, np.vstack([[5, NAN, NAN], B])),
    "three lines of names": (",a,a,c\n,x,y,x\nid,,,\n" + numbered(body(), "p"), {"leave_out": "id"}, B),
    "a column by its number": (numbered(body(), "p"), {"leave_out": 0}, B),
    "a name twice": (ABC.replace("b", "a"), {"leave_out": "1"}, B[:, [0, 2]]),
    "marks": (ABC + "1,?,#DIV/0!\n", {"missing": "?, #DIV/0!"}, np.vstack([B, [1, NAN, NAN]])),
    "codes by value": (ABC + "-999,-999.0,-9.99e2\n", {"missing": -999}, np.vstack([B, [NAN] * 3])),
    "a minus sign": (body() + "\u22121.5,+2, 3e\u22121\n", {}, np.vstack([B, [-1.5, 2, 0.3]])),
    "units below the names": ("a,b,c\ncm,kg,mmHg\n" + body(), {"comment": "cm"}, B),
    "totals": (ABC + "Total,600,700\n", {"comment": "Total"}, B),
    "a level of a category": ("a,type\n1,total\n2,partial\n3,total\n", {"leave_out": "type"}, [[1], [2], [3]]),
    "comments": ('# "1\na,b,c\n#\n' + body() + "# end", {"comment": "#"}, B),
    "a comment within quotes": ('"x\n# y",1\nz,2\n', {"comment": "#", "leave_out": "0"}, [[1], [2]]),
    "thousands": ('a,b\n"1,234.5",2\n"12,345",3\n', {"thousands": ","}, [[1234.5, 2], [12345, 3]]),
    "points between thousands": ("a;b\n1.234,5;2\n12.345;3\n", POINTS, [[1234.5, 2], [12345, 3]]),
    "spaces between thousands": ("a;b\n1\u202f234,5;2\n12\u00a0345,1;3\n", SPACES, [[1234.5, 2], [12345.1, 3]]),
    "decimals by threes": ("a;b\n1.234;2\n5.678;3\n", {}, [[1.234, 2], [5.678, 3]]),
    "decimal commas in quotes": ('a,b\n"1,5",2\n"2,5",3\n', {"decimal": ","}, [[1.5, 2], [2.5, 3]]),
    "separators at the ends": (ABC.replace("\n", ",\n"), {"leave_out": "3"}, B),
    "pipes": (ABC.replace(",", "|"), {"delimiter": "|"}, B),
    "rows that end with separators": ("a,b,c\n" + body().replace("\n", ",\n"), {}, B),
    "spaces that align": (body("   ").replace("\n", " \n  "), {"delimiter": "space", "header": False}, B),
    "skipped lines": ("x,1\n" + ABC.replace("c\n", "c\ncm,kg,2\n"), {"skip": "1, 3"}, B),
    "an exact whole number": ("a,b\n1152921504606846976,1\n3,2\n", {}, [[2**60, 1], [3, 2]]),
    "a whole number left out": ("a,b\n1152921504606846977,1\n3,2\n", {"leave_out": "a"}, [[1], [2]]),
}
REFUSED = {
    "names in quotes": ('"49","52","47"\n' + body(), {}, "header=True"),
    "ids above measurements": ("48211,39922,10417\n" + body(), {}, "header=True"),
    "wavelengths": (",".join(map(str, range(40, 49))) + "\n" + body(table=B.reshape(4, 9)), {}, "header=True"),
    "a name among numbers": ("id,1100,1102\n" + body(), {}, "header=True"),
    "the name of what is left out": ("id,45.5,52.25,48\n" + numbered(body()), {"leave_out": "0"}, "header=True"),
    "an index without a name": (",a,b,c\n" + numbered(body()), {}, "leave_out='0'"),
    "numbers of rows or decimal commas": ("a,b\n5,10,20\n2,30,40\n", {}, "leave_out='0'"),
    "a line that is too long": (ABC + "1,2,3,4\n", {}, "skip='14'"),
    "comments and a line that is too long": (ABC + "# a\n1,2,3,4\n", {}, "comment='#'"),
    "one mark": (ABC + "1,?,3\n", {}, "marks for missing values.*missing='"),
    "an error of a workbook": (ABC + "1,#DIV/0!,3\n", {}, "marks for missing values.*missing='"),
    "units below the names": ("a,b,c\ncm,kg,mmHg\n" + body(), {}, "line of units.*skip='2'"),
    "totals": (ABC + "Total,600,700\n", {}, "totals.*skip='14'"),
    "totals that a column beside tells": (ABC + "Total,600,700\n", {"leave_out": "a"}, "totals.*skip='14'"),
    "comments": ("# made, by\n" + ABC, {}, "comment='#'"),
    "thousands": ('a,b\n"1,234.5",2\n"12,345",3\n', {}, "thousands=','"),
    "points between thousands, or decimals": ("a;b\n1.234;2\n567;3\n", {}, "decimal='.'"),
    "decimal commas in quotes": ('a,b\n"1,5",2\n"2,5",3\n', {}, "decimal=','"),
    "a name twice": (ABC.replace("b", "a"), {}, "leave_out='1'"),
    "another separator than is said": (ABC, {"delimiter": ";"}, "not numbers.*delimiter=''"),
    "a quote that is not closed": ('a,note\n1,x\n2,"y\n3,z\n4,z\n5,"w"\n6,v\n', {"leave_out": "note"}, "quote"),
    "whole numbers that are rounded": ("a,b\n1152921504606846977,1\n3,2\n", {}, "2.53"),
    "everything left out": (ABC, {"leave_out": "*"}, "left out"),
}


@pytest.mark.parametrize(("content", "keys", "expected"), READ.values(), ids=READ)
def test_a_text_is_read_as_its_author_means_it(content, keys, expected, tmp_path):
    np.testing.assert_array_equal(to_array(read(written(tmp_path, content), **keys).rows), np.asarray(expected, float))


@pytest.mark.parametrize(("content", "keys", "text"), REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_text_is_refused_with_advice(content, keys, text, tmp_path):
    with pytest.raises(DataError, match=text):
        read(written(tmp_path, content), **keys)


NAMED = {
    "a title": ("Measured in May,,\n" + ABC, "1 line"),
    "two titles": ("# made in May\nby hand\n" + ABC, "2 lines"),
    "two lines of names": ("a,a,c\nx,y,x\n" + body(), "2 lines"),
    "merged cells": ("a,,c\nx,y,x\n" + body(), "2 lines"),
    "names of rows": ("a,b,c\n" + numbered(body(), "r"), "left out"),
    "numbers of rows": ("a,b,c\n" + numbered(body()), "left out"),
    "comments": ("a,b,c\n" + body() + "# a\n# b\n", "2 lines skipped, the first is line 14"),
}


@pytest.mark.parametrize(("content", "text"), NAMED.values(), ids=NAMED)
def test_what_is_no_row_has_a_note(content, text, tmp_path):
    table = read(written(tmp_path, content), comment="#" if "# b" in content else "")
    assert table.names == (("a, x", "a, y", "c, x") if "x,y,x" in content else ("a", "b", "c"))
    np.testing.assert_array_equal(table.rows, B)
    (note,) = table.notes
    assert text in note


def test_endings_say_how_a_text_is_packed_and_keys_hold_for_ids_texts_and_every_kind_of_file(tmp_path):
    packed, tabs = gzip.compress(ABC.encode()), ABC.replace(",", "\t")
    for path in (written(tmp_path, packed, "site.CSV.gz"), written(tmp_path, tabs, "site.tsv")):
        np.testing.assert_array_equal(read(path).rows, B)
    for sign in ",;":
        with refused(DataError, f"delimiter='{sign}'"):
            read(written(tmp_path, ABC.replace(",", sign), "site.tsv"))
    with refused(DataError, ".csv.gz"):
        read(written(tmp_path, gzip.compress(ABC.encode() * 99)[:-9], "half.csv.gz"))
    text = "# x\n1;p1;male;1,5\n# y\n2;p2;?;2,5\n\nTotal;;;4\n"
    keys = {"ids": "1", "texts": ["2"], "comment": "#, Total", "header": False, "missing": "?", "leave_out": "0"}
    path = str(written(tmp_path, text))
    assert read(path, **keys).rows.tolist() == [[1.5], [2.5]]
    assert read_ids(path, "1", 2, **keys) == ["p1", "p2"]
    assert read_texts(path, "2", 2, **keys) == ["male", None]
    file = tmp_path / "site.npy"
    np.save(file, [[1, -999, 3], [4, 5, 2**40]])
    loaded = read(file, missing="?, -999", leave_out=[2])
    np.testing.assert_array_equal(to_array(loaded.rows), [[1, NAN], [4, 5]])
    assert loaded.missing.tolist() == [0, 1]
    np.save(file, [[2**60 + 1, -999, 3], [4, 5, 2**40]])
    for marks in ({}, {"missing": "-999"}):
        with refused(DataError, "2^53"):
            read(file, **marks)
    with refused(ConfigError, "'header'"):
        read(file, header=True)


def test_what_no_text_no_column_and_no_database_can_have_is_refused_by_its_key(tmp_path):
    wrong = [("delimiter", "xy"), ("decimal", ";"), ("encoding", "utf-99"), ("encoding", "base64")]
    wrong += [(key, name) for key in ("columns", "leave_out") for name in ("d", "3", "d*")]
    for key, value in [*wrong, ("thousands", "x"), ("thousands", ".")]:
        with refused(ConfigError, f"'{key}'", *["decimal=','"] * (value == ".")):
            read(written(tmp_path, ABC), **{key: value})
    node = {"partition-id": 0, "num-partitions": 1, "data": "site.csv"}
    keys = NodeConfig.parse({**node, "leave-out": 31, "missing": -9.5, "header": False}).file_keys
    assert (keys["leave_out"], keys["missing"], keys["header"], keys["columns"]) == ("31", "-9.5", False, "")
    for own in ({"leave-out": "id"}, {"header": False}, {"missing": "-9"}):
        with refused(ConfigError, *map("'{}'".format, own), "'data'"):
            NodeConfig.parse({**node, "data": "duckdb:///a", "query": "SELECT 1", **own})


def save_sheets(file, **rows_of_sheets):
    pytest.importorskip("openpyxl", reason="needs the extra 'tables'")
    with pd.ExcelWriter(file) as book:
        for name, rows_of_sheet in rows_of_sheets.items():
            pd.DataFrame(rows_of_sheet).to_excel(book, sheet_name=name, header=False, index=False)


def test_a_sheet_is_read_as_a_text_is(tmp_path):
    file, head = tmp_path / "site.xlsx", [["id", 1100, 1102], ["p1", 1.5, True], [], ["p2", None, 0.1]]
    head += [["p3", "#N/A", 1e3]]
    keys = {"leave_out": "id", "header": True, "comment": "Total"}
    save_sheets(file, first=[*head, ["Total", 3, "4"]], other=[])
    with refused(DataError, "header=True"):
        read(file)
    loaded = read(file, **keys)
    assert loaded.names == ("1100", "1102")
    np.testing.assert_array_equal(loaded.rows, [[1.5, 1], [NAN, 0.1], [NAN, 1000]])
    assert "sheet='2'" in loaded.notes[0]
    save_sheets(file, first=[*head, ["Total", 3, "4"], ["p4", "?", 2]])
    with pytest.raises(DataError, match="marks") as caught:
        read(file, **keys)
    assert caught.value.local.startswith("line 7, column 2")
    with refused(ConfigError, "'delimiter'"):
        read(file, delimiter=";")
    save_sheets(file, first=[*head, ["p4", 1e16, 1]])
    with refused(DataError, 15):
        read(file, **keys)
    save_sheets(file, first=[], may=[["a", "b"], [1.5, "2,5"], ["3,5", 4]])
    with refused(DataError, "site.xlsx", "sheet='2'"):
        read(file)
    with refused(DataError, "decimal=','"):
        read(file, sheet=2)
    for sheet in ("2", "may"):
        np.testing.assert_array_equal(read(file, sheet=sheet, decimal=",").rows, [[1.5, 2.5], [3.5, 4]])
    for path, sheet in ((file, "June"), (file, "0"), (written(tmp_path, ABC), "2")):
        with refused(ConfigError, "'sheet'", *[1] * (path == file)):
            read(path, sheet=sheet)


@pytest.mark.parametrize("suffix", [".sav", ".dta", ".xpt", "8.xpt"])
def test_statistics_files_have_codes_for_labels(suffix, tmp_path, monkeypatch):
    pyreadstat = pytest.importorskip("pyreadstat", reason="needs the extra 'tables'")
    frame = pd.DataFrame({"A": [0.1, np.nan, 3.0], "SEX": [1.0, 2.0, 1.0], "W": ["x", "y", ""]})
    path = str(tmp_path / f"s{suffix}")
    labels = {} if ".xpt" in suffix else {"variable_value_labels": {"SEX": {1.0: "m", 2.0: "f"}}}
    write = {".sav": pyreadstat.write_sav, ".dta": pyreadstat.write_dta}.get(suffix, pyreadstat.write_xport)
    write(frame, path, **(labels or {"file_format_version": 8 if suffix == "8.xpt" else 5}))
    with refused(DataError, "texts"):
        read(path)
    loaded = read(path, leave_out="W", missing="3", header=True)
    assert loaded.names == ("A", "SEX")
    np.testing.assert_array_equal(loaded.rows, [[0.1, 1], [NAN, 2], [NAN, 1]])
    assert len(loaded.notes) == bool(labels)
    assert read_texts(path, "SEX", 3) == ["1", "2", "1"]
    if suffix == ".sav":  # labels that say what is missing are noted
        meant = {"A": {8.0: "Refused", 9.0: "not asked"}, "B": {1.0: "don't know", 3.0: "often"}}
        write(pd.DataFrame({"A": [1.0, 8, 9], "B": [3.0, 4, 3]}), path, variable_value_labels=meant)
        assert "missing='8, 9'" in read(path).notes[0]
    monkeypatch.setitem(sys.modules, "pyreadstat", None)
    with refused(ConfigError, "pyreadstat", ".[tables]", f".{suffix.rpartition('.')[2]}"):
        read(path)


def tables(rng, n, d):
    """Rows of many kinds, also such as rise or fall, by columns or by rows."""
    steps, factor = rng.exponential(1, (n, d)), np.exp(rng.normal(0, 1.5, (n, 1)))
    yield rng.normal(50, 9, (n, d)).round(1)
    yield -rng.gamma(2, 3, (n, d)) * 1e-12
    yield rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4, d) + np.arange(d)
    yield rng.poisson(rng.gamma(1, 5, d), (n, d))
    yield rng.integers(1, 6, (n, d))
    yield rng.binomial(2, 0.3, (n, d))
    yield np.exp(rng.normal(0, 2, (n, d)))
    yield factor * np.exp(rng.normal(0, 0.3, (n, d)))
    yield -np.sort(-factor * np.exp(rng.normal(0, 0.3, (n, d))), axis=0)
    yield np.cumsum(steps, axis=1).round(3)
    yield np.cumsum(rng.normal(0.7, 1, (n, d)), axis=1)
    yield np.cumsum(steps, axis=0)
    yield np.exp(-np.arange(n)[:, None] * rng.uniform(0.1, 2, d))
    yield np.column_stack([20240101 + rng.integers(0, 28, n), rng.normal(5, 1, (n, d))])
    yield np.column_stack([np.arange(1, n + 1), rng.normal(size=(n, d))])
    yield np.where(rng.random((n, d)) < 0.2, np.nan, rng.normal(size=(n, d)))


def headers(rng, n, d):
    wavelengths = np.sort(rng.uniform(400, 2500, d)).round(2)
    yield 1100 + 2 * np.arange(d), rng.normal(1, 0.2, (n, d))
    yield wavelengths, 1 + np.sin(wavelengths / 200) + rng.normal(0, 0.02, (n, d))
    yield np.sort(rng.uniform(50, 1200, d)).round(4), rng.lognormal(5, 2, (n, d)).round(2)
    yield np.arange(d) + 2024 - d, rng.normal(2000, 30, (n, d)).round()
    yield rng.choice(99_999, d, replace=False), rng.normal(size=(n, d))
    yield 5 * np.arange(d) - 20, rng.normal(0, 20, (n, d)).round(1)


def file_of(folder, table, first=None):
    header = False if first is None else [f"{value:.8g}" for value in first]
    pd.DataFrame(table).to_csv(folder / "site.csv", header=header, index=False, float_format="%.8g")
    return folder / "site.csv"


@pytest.mark.engine
def test_headers_and_rows_are_told_apart(tmp_path):
    """The reader may refuse 1 % of 384 tables, and must refuse or note each of 144 lines of names."""

    def outcome(*content):
        try:
            return read(file_of(tmp_path, *content))
        except DataError as error:
            return error

    refusals, total, rows_of_many = 0, 0, 0
    for (seed, n), d in product(enumerate((5, 6, 12, 50)), (2, 3, 5, 6, 8, 30)):
        rng = np.random.default_rng([seed, d])
        for table in tables(rng, n, d):
            loaded, total = outcome(table), total + 1
            refusals += isinstance(loaded, DataError)
            assert isinstance(loaded, DataError) or len(loaded.rows) == n
        for first, table in headers(rng, n, d):
            loaded = outcome(table, first)
            texts = [str(loaded)] if isinstance(loaded, DataError) else loaded.notes
            assert any("header=True" in text for text in texts)
            rows_of_many += d >= 5 and not isinstance(loaded, DataError)
    assert total == 384
    assert refusals <= 0.01 * total
    assert rows_of_many <= 2


def test_what_was_taken_for_a_row_is_in_a_note_and_sites_with_names_and_without_are_refused(tmp_path):
    path = file_of(tmp_path, np.random.default_rng(0).normal(50, 9, (40, 3)))
    for keys in ({}, {"header": False}):
        notes = run("p-cov", {"north": read(path, **keys)}, n_components=1).log["notes"]
        assert any("north" in note and "header=True" in note for note in notes) == (not keys)
        assert any("header" in note for note in notes) == (not keys)
    parties = np.split(np.random.default_rng(0).normal(50, 9, (60, 3)), 2)
    for name, first, table in zip("01", ("a,b,c\n", ""), parties, strict=True):
        written(tmp_path, first + file_of(tmp_path, table).read_text(), f"{name}.csv")
    nodes = [{"data": f"{tmp_path}/{name}.csv"} for name in "01"]
    with refused(ConfigError, "header=true", "client 1", "client 0"):
        finish(at_sites(server_of("p-cov", parties, n_components=1), nodes))
