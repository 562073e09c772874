"""A compressed file that unpacks to a thousand times its size is refused in a sentence, and an honest one is read."""

import gzip
import json
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

from fedpca_flwr.cli import main
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.site.node import doctor
from fedpca_flwr.site.readers import office_files, unpacking
from fedpca_flwr.site.readers.files import read, read_ids
from tests.refusals import refused, unnamed

MEBIBYTE = 2**20
BOMB_MEBIBYTES = 8
ZEROS = np.zeros((150_000, 8))


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    """Lower the limit up to which every file is read, so that a bomb is written in no time."""
    monkeypatch.setattr(unpacking, "SMALL_BYTES", MEBIBYTE)
    monkeypatch.setattr(office_files, "MIN_CELL_LIMIT", MEBIBYTE)


def gzip_bomb(file, head=b"a,b\n", block=b"0,0\n"):
    """Write mebibytes of the same bytes: members of gzip one after another are a file of gzip."""
    member = gzip.compress(block * (MEBIBYTE // len(block)))
    file.write_bytes(gzip.compress(head) + member * BOMB_MEBIBYTES)


def write_zip(file, members):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def zip_bomb(file, name, head):
    write_zip(file, {name: head + bytes(BOMB_MEBIBYTES * MEBIBYTE)})


def sparse_bomb(file):
    sparse.save_npz(file, sparse.coo_matrix(([1.0], ([0], [0])), shape=(2**40, 2**40)))


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


def parquet_bomb(file):
    parquet.write_table(pa.table({f"x{j}": np.zeros(2**20) for j in range(8)}), file)


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
    "array.npz": (partial(zip_bomb, name="X.npy", head=b""), LIMITS),
    "sparse.npz": (sparse_bomb, LIMITS),
    "sheet.xlsx": (partial(zip_bomb, name="xl/worksheets/sheet1.xml", head=b"<worksheet/>"), LIMITS),
    "far.xlsx": (far_cell, ["9,999", "16,384"]),
    "table.parquet": (parquet_bomb, ["1,048,576", "1,000"]),
    "cells.h5ad": (h5ad_bomb, LIMITS),
    "table.sav": (sav_bomb, LIMITS),
}
"""How each is written, and the limits that its refusal names."""


@pytest.fixture(params=BOMBS)
def bomb(request, tmp_path):
    write, named = BOMBS[request.param]
    file = tmp_path / f"patients.{request.param}"
    write(file)
    return file, named


def test_a_file_that_unpacks_to_far_too_much_is_refused_and_site_doctor_says_so_in_a_line(bomb, capsys, monkeypatch):
    file, named = bomb
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


def test_files_that_compress_well_are_small_or_are_not_compressed_are_read(tmp_path):
    """Rare events, as those of diagnoses are, compress to a fiftieth."""
    rare = (np.random.default_rng(0).random((22_000, 50)) < 0.02).astype(np.int64)
    lines = [",".join(f"x{j}" for j in range(50)), *(",".join(map(str, row)) for row in rare.tolist())]
    (tmp_path / "rare.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert rare.size * 2 > 2 * unpacking.SMALL_BYTES
    np.testing.assert_array_equal(to_array(read(tmp_path / "rare.csv.gz").rows), rare)
    file = tmp_path / "zeros.npz"
    np.savez(file, X=ZEROS)
    assert read(file).rows.shape == ZEROS.shape
    np.savez_compressed(file, X=ZEROS[:15_000])
    assert file.stat().st_size < 8 * 8 * 15_000 / 200
    assert not to_array(read(file).rows).any()
