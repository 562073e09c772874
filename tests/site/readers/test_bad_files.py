"""Bad files of every kind at a site get one clear error, and never a number; its advice, applied, leads on."""

import datetime
import gzip
import io
import json
import logging
import re
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from flwr.app import Context, RecordDict
from pyarrow import parquet
from scipy import sparse

from fedpca_flwr.cli import main
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.node import doctor
from fedpca_flwr.site.readers import office_files, unpacking
from fedpca_flwr.site.readers.files import read, read_ids
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import rows
from tests.refusals import refused, unnamed
from tests.site.readers.test_texts import ABC, REFUSED, B, body

GOOD = "age,weight,height\n" + "".join(f"{i % 7}.5,{i % 5},{i * i % 11}\n" for i in range(30))


def lines(*changed, before=GOOD, separator=","):
    """Return a good file followed by the changed lines, the first of which is line 32."""
    return before.replace(",", separator) + "".join(f"{line}\n" for line in changed)


UNITS = "4711 kg", "4711%", "€ 4711", "<0.4711"
AGE, WEIGHT = r"line 32, column 1 \('age'\)", r"line 32, column 2 \('weight'\)"
HEADS = {"workbook": b"\xd0\xcf\x11\xe0", "parquet": b"PAR1", "array": b"\x93NUMPY", "PDF": b"%PDF-1.7\n"}
in_comma_style = partial(lines, before=GOOD.replace(",", ";").replace(".", ","))

CSV = {
    **{f"no cell in {text!r}": (text, "empty", "") for text in ("", "\n\n  \n")},
    **{f"no row in {text!r}": (text, "rows", "") for text in ("age,weight\n", "age,weight\n\n\n")},
    "a line that is too long": (lines("1,2,3,4711"), "length", "line 32 with 4 cells instead of 3"),
    "several lengths": (lines("1,2", "1,2,3", "1", "1,2"), "length", "32, 35 with 2 cells .* 3; line 34 with 1 cell "),
    "row numbers or decimal commas": ("a,b\n5,10,20\n2,30,40\n", "2 .*3 .*decimal commas", "lines 2, 3"),
    "more names than columns": ("a,b,c\n1,2\n3,4\n", "3 .*2 ", "lines 2, 3 with 2 cells"),
    "all lines end with a separator": ("a,b,\n1,2,\n", "name.*separator", "columns 3"),
    "an index without a name": (",a,b\n0,1,2\n", "name.*index", "columns 1"),
    "a name twice": ("a,b,a\n1,2,3\n", "same name", "'a' in columns 1, 3"),
    "names and numbers in the first line": ("a,2,3\n4,5,6\n", "names.*numbers.*leave-out", ""),
    "a first line that counts": ("0,1,2\n5.5,6,7\n", "counts", ""),
    "one word": (lines("1,lost,2"), "words among.*'missing'.*leave-out=", rf"{WEIGHT}: words among"),
    "words": (lines("male,2,3", "1,2,4711 Street"), "words", rf"{AGE}: words among numbers; line 33"),
    "a column of texts": ("sex,age\n" + "f,1\n" * 9, "texts", r"lines 2, 3, 4, 5, 6 and 4 more, column 1 \('sex'\)"),
    "marks of what is missing": (lines("1,?,3", "1,-,3", "1,.,3"), "marks.*missing=", "32, 33, 34, column 2 .*: marks"),
    "numbers of programs": (lines("1,4_711,3", "1,0x4711,3", "1,1+4711j,3"), "numbers", "lines 32, 33, 34, column 2"),
    "digits of another script": (lines("1,٤٧١١,3"), "numbers", "line 32, column 2"),
    "dates": (lines("1,2020-01-01,3", "1,4/7/11,3", "1,12:30,3"), "dates.*days", "32, 33, 34, column 2 .*: dates"),
    "units": (lines(*(f"1,{cell},3" for cell in UNITS)), "units", "32, 33, 34, 35, column 2 .*units"),
    "thousands": (lines('1,"4,711.5",3', "1,4'711,3"), "thousands", "lines 32, 33, column 2 .*: signs between"),
    "decimal commas in quotes": (lines('1,"47,11",3'), "commas.*points", "column 2"),
    "decimal commas between commas": ("weight\n47,11\n1,5\n", "1 .*2 .*decimal commas", "lines 2, 3"),
    "points among decimal commas": (in_comma_style("1;47.11;3"), "points.*commas", "line 32, column 2"),
    "points between thousands": (in_comma_style("1;4.711,5;3"), "thousands", "line 32, column 2"),
    "commas among decimal points": (lines("1;47,11;3", separator=";"), "commas.*points", "line 32"),
    "commas of two meanings": ("a;b\n1,234;5,678\n2,345;6,789\n", "commas.*thousands", ""),
    "spaces between cells": ("a b c\n1 2 3\n4 5 6\n", "several numbers", "lines 2, 3, column 1"),
    "infinity": (lines("1,inf,3", "1e400,1,3"), "infinite", "columns: 'age', 'weight'"),
    "numbers whose squares overflow": (lines("1,1e200,3"), "squared", "columns: 'weight'"),
    "empty cells": (lines("1,,3", ",,3"), "NaN.*method='em'", "columns: 'age', 'weight'"),
    "NA, null and blanks": (lines("1,NA,3", "null, ,3"), "NaN.*method='em'", "columns: 'age', 'weight'"),
    "UTF-16 without its mark": (GOOD.encode("utf-16-le"), "UTF-8.*UTF-16", ""),
    "UTF-16 that is cut off": (GOOD.encode("utf-16")[:-1], "encoding", ""),
    "UTF-8 with a mark, and other bytes": (b"\xef\xbb\xbf" + "größe\n1\n".encode("cp1252"), "encoding", ""),
    "bytes of no encoding": (b"a\x81,b\n1,2\n", "encoding.*UTF-8", ""),
    "a quote that is not closed": (lines('1,2,"3', *["1,2,3"] * 40_000), "131,072.*quote", ""),
    "a workbook": (b"PK\x03\x04" + bytes(90), "workbook.*CSV", ""),
    "a compressed file": (gzip.compress(GOOD.encode()), "compressed", ""),
    **{f"a {kind} by another name": (head + bytes(90), kind, "") for kind, head in HEADS.items()},
    "a web page": ("\n<!DOCTYPE html>\n<table>", "HTML", ""),
    "JSON": ('[{"a": 4711}]', "JSON", ""),
}


def in_parquet(columns):
    stream = io.BytesIO()
    parquet.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), stream)
    return stream.getvalue()


X = rows(30, 3)
ODD = {"sex": ["f"] * 30, "ward": ["4711"] * 30, "kind": pa.array(["a"] * 30).dictionary_encode()}
ODD |= {"born": [datetime.date(2020, 1, 1)] * 30, "at": pa.array([1] * 30, pa.time64("us"))}
ODD |= {"for": pa.array([1] * 30, pa.duration("s")), "list": [[1.0]] * 30, "struct": [{"a": 1}] * 30}
ODD_PLACES = (
    "texts in 'sex', 'ward'; categories.* in 'kind'; dates.* in 'born', 'at', 'for'; .*'list', 'struct', 'bytes'"
)
ODD |= {"age": X[:, 0], "bytes": [b"4711"] * 30}
MISSING = {"a": [1.0, None] * 15, "b": [1, None] * 15, "c": [True, None] * 15, "d": [None] * 30}
PARQUET = {
    "columns that are no numbers": (in_parquet(ODD), "texts .*categories .*dates.*objects.*'label'", ODD_PLACES),
    "an index": (in_parquet({"a": X[:, 0], "__index_level_0__": range(30)}), "index", ""),
    "no column": (in_parquet({}), "feature", ""),
    "no row": (in_parquet({"a": pa.array([], pa.float64())}), r"\(0, 1\)", ""),
    "a name twice": (in_parquet(pa.Table.from_arrays([pa.array(X[:, 0])] * 2, names=["a", "a"])), "same name", "'a'"),
    "missing values": (in_parquet(MISSING), "NaN.*method='em'", "columns: 'a', 'b', 'c', 'd'"),
    "infinity": (in_parquet({"a": [np.inf] * 30}), "infinite", "columns: 'a'"),
    "half a file": (in_parquet({"a": X[:, 0]})[:100], "damaged", ""),
    "another file": (b"4711,4711\n", "damaged", ""),
}


def saved(array, **arrays):
    stream = io.BytesIO()
    np.savez(stream, array, **arrays) if arrays else np.save(stream, array)
    return stream.getvalue()


NPY = {
    "one axis": (saved(X[:, 0]), "1 axes", ""),
    "no row": (saved(X[:0]), r"\(0, 3\)", ""),
    "fields": (saved(np.zeros(30, [("a", float)])), "axes|dtype", ""),
    "objects": (saved(np.array([[1, None]] * 30, dtype=object)), "plain", ""),
    "NaN": (saved(np.where(X > 1, np.nan, X)), "NaN.*method='em'", r"columns \(from 0\): \["),
    "infinity": (saved(np.where(X > 1, -np.inf, X)), "infinite", r"columns \(from 0\): \["),
    "half a file": (saved(X)[:300], "plain", ""),
    "an archive": (saved(X, y=X), "plain", "patients.npy"),
    "a text": (b"4711", "plain", ""),
}


def sparse_file(**changes):
    stream, changed = io.BytesIO(), io.BytesIO()
    sparse.save_npz(stream, sparse.random_array((30, 8), density=0.3, rng=np.random.default_rng(0), format="csr"))
    arrays = dict(np.load(io.BytesIO(stream.getvalue())))
    np.savez(changed, **{**arrays, **{key: change(arrays[key]) for key, change in changes.items()}})
    return changed.getvalue()


NPZ = {
    "several arrays": (saved(X, y=X), "2 .*'X'", "patients.npz"),
    "objects, whose bytes may be a program": (saved(X, X=np.array([[1, None]], dtype=object)), "plain", "patients.npz"),
    "indices beyond the columns": (sparse_file(indices=lambda part: part + 8), "damaged", ""),
    "rows beyond the entries": (sparse_file(indptr=lambda part: part + 1000), "damaged", ""),
    "a row too few": (sparse_file(indptr=lambda part: part[:-1]), "damaged", ""),
    "a column too few": (sparse_file(shape=lambda part: part - [0, 1]), "damaged", ""),
    "sparse texts": (sparse_file(data=lambda part: part.astype(str)), "damaged|dtype", ""),
    "sparse NaN": (sparse_file(data=lambda part: part * np.nan), "NaN", "columns"),
    "sparse infinity": (sparse_file(data=lambda part: part * np.inf), "infinite", "columns"),
    "a text": (b"4711", "damaged", ""),
}
BROKEN = b"", b"\xff\xfe\x00broken", b"PK\x03\x04 not a zip", b"\x93NUMPY\x01\x00v\x00((("
FILES = {
    f"{suffix} {kind}": (suffix, *case)
    for suffix, cases in ((".csv", CSV), (".parquet", PARQUET), (".npy", NPY), (".npz", NPZ))
    for kind, case in (cases | {repr(content): (content, "", "") for content in BROKEN}).items()
}
FILES |= {".h5ad another file": (".h5ad", b"4711", "damaged", ""), ".ods": (".ods", b"4711", ".npy", "patients.ods")}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_gets_one_clear_error_and_never_a_number(kind, tmp_path, caplog):
    suffix, content, text, place = FILES[kind]
    file = tmp_path / f"patients{suffix}"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    node = {"partition-id": 0, "num-partitions": 1, "min-rows": 1, "data": str(file)}
    values = METHODS.run_config({"method": "p-cov", "n-components": 1})
    context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=values)
    with caplog.at_level(logging.ERROR, "fedpca_flwr.client"):
        arrays, _, reply = FACTORY.client(context).fit([], {"phase": "statistics"})
        of_app = FACTORY.client(context, local_table).fit([], {"phase": "statistics"})  # which reads the site's file
    assert arrays == []
    assert of_app == ([], 0, reply)
    assert reply["error"] == ("ConfigError" if suffix == ".ods" else "DataError")
    assert re.search(text, reply["message"]), reply["message"]
    assert re.search(place, caplog.text), caplog.text
    for private in ("4711", "patients", str(tmp_path), "weight", "'a'", "'ward'"):  # cells, paths, names of columns
        assert private not in reply["message"]
    assert "4711" not in caplog.text
    assert not place or reply["message"].endswith("see this site's own log")


NAMED_KEY = re.compile(r"\b([a-z_]+)=(?=['\"]|True|False)")
MORE = {
    "a line of units": ("ratio,mass,width\n-,kg,mm\n" + body(table=-B), {}),
    "units and totals": ("a,b,c\ncm,kg,mm\n" + body() + "Total,1,2\n", {}),
    "two marks": (ABC + "1,?,3\n1,2,n/d\n", {"missing": "x"}),
    "blocks above the names": ("Instrument,X\nDate,today\nMode,7\n" + ABC, {}),
    "a footer": (ABC + "measured in May\n", {}),
    "text aligned by spaces": ("a    b  c\n" + body("   "), {}),
    "names with commas": ('"a, b",c\nx,1\ny,2\n', {}),
    "apostrophes between thousands": ("a;b\n1\u2019234;2\n5;3\n", {}),
    "tabs named commas": (ABC.replace(",", ";"), {"delimiter": ","}),
}
CASES = {
    **{kind: (suffix, content, {}) for kind, (suffix, content, *_) in FILES.items()},
    **{f"text: {kind}": (".csv", *case[:2]) for kind, case in (REFUSED | MORE).items()},
    "a .tsv of commas": (".tsv", ABC, {}),
}
READ_RIGHT = {"text: a line of units": -B, "text: text aligned by spaces": B, "text: units below the names": B}


def follow(path, keys, seen=()):
    """Yield the errors and rows that advice leads to; fail if it leads back, or if a text names another key."""
    try:
        yield to_array(read(path, **keys).rows)
        return
    except FedPCAError as refusal:
        error = refusal
    yield error
    text = str(error), error.local
    assert text not in seen, f"{seen} leads back to {text}"
    assert {*NAMED_KEY.findall(text[0])} == {key for advice in error.advice for key in advice.keys}
    for advice in error.advice:
        yield from follow(path, {**keys, **advice.keys}, (*seen, text))


def test_no_advice_leads_back_to_an_error_and_a_site_sends_no_value_of_one(tmp_path):
    refusals, ends = 0, 0
    for kind, (suffix, content, keys) in CASES.items():
        path = tmp_path / f"site{suffix}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        first, *later = follow(path, keys)
        if not isinstance(first, FedPCAError):  # with values that are missing, which a run refuses
            continue
        refusals += 1
        assert path.name in str(first)
        assert not any(isinstance(result, ConfigError) for result in later), kind  # a value that no key takes
        assert "node-config" not in str(first)
        rows = [result for result in later if not isinstance(result, FedPCAError)]
        assert rows or not later or suffix == ".csv", kind
        ends += bool(rows)
        if kind in READ_RIGHT:
            np.testing.assert_array_equal(rows[0], READ_RIGHT[kind])
    assert refusals >= 60
    assert ends >= 40
    (tmp_path / "site.csv").write_text(ABC.replace("a,", "'weight',") + "1,?,3\n1,2,male\n")
    with pytest.raises(FedPCAError) as caught:
        read(tmp_path / "site.csv", site=True)
    assert "leave-out='...'" in str(caught.value)
    assert "missing='?'" in caught.value.local
    assert not re.search(r"\?|site.csv|leave_out|'c'", str(caught.value))


MEBIBYTE = 2**20
ZEROS = np.zeros((150_000, 8))


@pytest.fixture
def small_limit(monkeypatch):
    """Lower the limit up to which every file is read, so that a bomb is written in no time."""
    monkeypatch.setattr(unpacking, "SMALL_BYTES", MEBIBYTE)
    monkeypatch.setattr(office_files, "MIN_CELL_LIMIT", MEBIBYTE)


def gzip_bomb(file, head=b"a,b\n", block=b"0,0\n", count=8, end=b""):
    """Write mebibytes of the same bytes: members of gzip one after another are a file of gzip."""
    file.write_bytes(gzip.compress(head) + gzip.compress(block * (MEBIBYTE // len(block))) * count + end)


def write_zip(file, members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def far_cell(file):
    """Write a sheet of three cells, of which one is in the last column of a sheet, and one far below."""
    book = pytest.importorskip("openpyxl", reason="needs the extra 'tables'").Workbook(write_only=True)
    book.create_sheet().append([1, 2])
    book.save(file)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    row = '<row r="1"><c r="A1"><v>1</v></c><c r="XFD1"><v>1</v></c></row><row r="9999"><c r="A9999"><v>1</v></c></row>'
    sheet = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    text = f"<worksheet {sheet}><sheetData>{row}</sheetData></worksheet>"
    write_zip(file, members | {"xl/worksheets/sheet1.xml": text.encode()})


def h5ad_bomb(file):
    h5py = pytest.importorskip("h5py", reason="needs the extra 'cells'")
    pytest.importorskip("anndata").AnnData(X=np.zeros((2, 8))).write_h5ad(file)
    with h5py.File(file, "a") as target:
        del target["X"]
        target.create_dataset("X", shape=(10**9, 8), dtype="f8", chunks=(10**4, 8), compression="gzip")


def sav_bomb(file):
    pyreadstat = pytest.importorskip("pyreadstat", reason="needs the extra 'tables'")
    pyreadstat.write_sav(pd.DataFrame(ZEROS).add_prefix("x"), file, compress=True)


LIMITS = ["1,048,576", 200]
BOMBS = {
    "rows.csv.gz": (gzip_bomb, LIMITS),
    "line.csv.gz": (partial(gzip_bomb, head=b"a,b\n" + b"1,2\n3,4\n" * 30_000, block=b"0"), LIMITS),
    "end.csv.gz": (partial(gzip_bomb, block=b"0," + b"0" * 1021 + b"\n", count=40, end=bytes(MEBIBYTE)), LIMITS),
    "array.npz": (partial(write_zip, members={"X.npy": ZEROS.tobytes()}), LIMITS),
    "sparse.npz": (partial(sparse.save_npz, matrix=sparse.coo_matrix(([1.0], ([0], [0])), shape=(2**40,) * 2)), LIMITS),
    "sheet.xlsx": (partial(write_zip, members={"xl/worksheets/sheet1.xml": b"<worksheet/>" + ZEROS.tobytes()}), LIMITS),
    "far.xlsx": (far_cell, ["9,999", "16,384"]),
    "table.parquet": (lambda file: file.write_bytes(in_parquet({"x": np.zeros(2**23)})), ["1,048,576", "1,000"]),
    "cells.h5ad": (h5ad_bomb, LIMITS),
    "table.sav": (sav_bomb, LIMITS),
}
"""How each is written, and the limits that its refusal names."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_unpacks_to_far_too_much_is_refused_and_site_doctor_says_so_in_a_line(
    name, tmp_path, small_limit, capsys, monkeypatch
):
    (write, named), file = BOMBS[name], tmp_path / f"patients.{name}"
    write(file)
    with refused(DataError, *named) as caught:
        to_array(read(file, site=True).rows)
    assert "patients" not in str(caught.value)
    if file.name == "patients.rows.csv.gz":
        with refused(DataError, *named):
            read_ids(str(file), "a", 10)
    monkeypatch.setattr(doctor, "START_PROGRAM", "pass")
    config = f"partition-id=0 num-partitions=3 data={json.dumps(str(file))}"
    assert main(["site", "doctor", "--node-config", config]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rows and run" in line]
    assert line.startswith("TO DO")
    assert not unnamed(line, *named)


def test_files_that_compress_well_are_small_or_are_not_compressed_are_read(tmp_path, small_limit):
    """Rare events, as those of diagnoses are, compress to a fiftieth."""
    rare = (np.random.default_rng(0).random((22_000, 50)) < 0.02).astype(np.int64)
    pd.DataFrame(rare).to_csv(tmp_path / "rare.csv.gz", header=[f"x{j}" for j in range(50)], index=False)
    assert rare.size * 2 > 2 * unpacking.SMALL_BYTES
    np.testing.assert_array_equal(to_array(read(tmp_path / "rare.csv.gz").rows), rare)
    file = tmp_path / "zeros.npz"
    np.savez(file, ZEROS)
    assert read(file).rows.shape == ZEROS.shape
    np.savez_compressed(file, X=ZEROS[:15_000])
    assert file.stat().st_size < 8 * 8 * 15_000 / 200
    assert not to_array(read(file).rows).any()
