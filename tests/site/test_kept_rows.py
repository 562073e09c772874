"""A run reads a site's file once: what it keeps, for whom, how long, and what shows that rows are others."""

import os
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table
from scipy import sparse

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data import table
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.maths.rows import Blocks, to_array
from fedpca_flwr.site import journal, kept_rows, readers
from fedpca_flwr.site.local_table import load_run_table, local_table
from tests.families import rows
from tests.harness import at_sites, context_of, differences, finish, server_of, tamper

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 90, 8)) * np.arange(9.0, 1.0, -1.0)
GAPS = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
COUNTS = np.where(RNG.random(X.shape) < 0.05, np.round(np.abs(X)) + 1, 0.0)
PEOPLE = np.asarray(RNG.binomial(2, 0.3, X.shape), float)


def csv(path, rows):
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d,e,f,g,h", comments="", fmt="%.17g")


def h5ad(path, rows):
    anndata = pytest.importorskip("anndata", reason="needs the extra 'cells'")
    anndata.AnnData(X=sparse.csr_matrix(rows)).write_h5ad(path)


def bed(path, rows):
    bed_reader = pytest.importorskip("bed_reader", reason="needs the extra 'genotypes'")
    markers = {"chromosome": "7", "allele_1": "A", "allele_2": "G"}
    properties = {"bp_position": list(range(8)), **{key: [value] * 8 for key, value in markers.items()}}
    bed_reader.to_bed(path, rows, properties=properties)


WRITERS = {
    ".csv": csv,
    ".parquet": lambda path, rows: write_table(pa.table(dict(zip("abcdefgh", np.float32(rows.T), strict=True))), path),
    ".npz": lambda path, rows: np.savez_compressed(path, np.asfortranarray(rows)),
    ".sparse.npz": lambda path, rows: sparse.save_npz(path, sparse.csc_array(rows)),
    ".h5ad": h5ad,
    ".bed": bed,
}


@pytest.fixture
def passes(monkeypatch):
    """Count how often each file is read from its beginning."""
    counts: dict[Path, int] = {}

    def counted(file, read):
        counts[file] = counts.get(file, 0) + 1
        return read()

    def rows(kind, file, *args, **settings):
        read, names = kind.read_rows(file, *args, **settings)
        if isinstance(read, Blocks):
            return replace(read, read=partial(counted, file, read.read)), names
        return counted(file, lambda: (read, names))

    for suffix, kind in list(readers.FORMATS.items()):
        monkeypatch.setitem(readers.FORMATS, suffix, replace(kind, read_rows=partial(rows, kind)))
    return counts


def run_of(method, folder, suffix=".csv", data=X, *, journal=True):
    nodes, rules = [], {"rare-values": "allow", "repeat": "allow"}
    for party, keys in enumerate(data):
        file = folder / f"{party}{suffix}"
        if not file.exists():
            WRITERS[suffix](file, keys)
        nodes.append({"data": str(file), **rules} | ({"journal": str(folder / f"journal{party}")} if journal else {}))
    return at_sites(server_of(method, [np.nan_to_num(keys) for keys in data], n_components=2), nodes)


def kept_in(folder):
    return [file for file in folder.rglob("*") if file.name.startswith("rows.") or file.parent.name.startswith("rows.")]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "suffix", "data", "buffer_bytes"),
    [
        ("personalised mu=2.0", ".csv", X, table.HELD_BYTES),
        ("em", ".csv", GAPS, 0),
        ("sub-it", ".csv", X, 0),
        ("sub-it", ".parquet", X, 0),
        ("adaptive", ".npz", X, 0),
        ("sub-it", ".sparse.npz", COUNTS, table.HELD_BYTES),
        ("sub-it", ".sparse.npz", X, 0),  # with hardly a zero: decoded where they are multiplied
        ("sub-it", ".h5ad", COUNTS, 0),
        ("sub-it", ".bed", PEOPLE, 0),
    ],
)
def test_a_run_reads_a_file_once_and_finds_the_same_bits(
    method, suffix, data, buffer_bytes, passes, tmp_path, monkeypatch
):
    monkeypatch.setattr(table, "HELD_BYTES", buffer_bytes)
    model = finish(run_of(method, tmp_path, suffix, data))
    assert list(passes.values()) == [1, 1, 1]
    assert not kept_in(tmp_path)
    without = finish(run_of(method, tmp_path, suffix, data, journal=False))
    assert min(passes.values()) > 2
    assert not differences(model, without)


def node_of(file, **keys):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file), **keys})


def test_rows_in_id_order_are_stored_for_one_salt(passes, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["id,a,b", *(f"person {i},{i}.5,{i * i}" for i in range(20))]))
    node = node_of(file, ids="id", split="columns")
    first, then, other, _ = (load_run_table(node, RunConfig(seed=seed), tmp_path / "rows.0") for seed in (1, 1, 2, 2))
    assert passes == {file: 2}, "what was kept of others makes room"
    for name in ("rows", "ids", "row_positions", "missing"):
        np.testing.assert_array_equal(getattr(first, name), getattr(then, name))
    assert (first.names, first.split, first.digest) == (then.names, then.split, then.digest)
    assert not np.array_equal(first.ids, other.ids)


def test_stored_rows_are_for_one_party_of_one_run(tmp_path):
    csv(tmp_path / "a.csv", X[0])
    for label in ("a", "b", ""):
        node = node_of(tmp_path / "a.csv", label=label)
        assert load_run_table(node, RunConfig(), tmp_path / "rows.0").names == tuple(
            n for n in "abcdefgh" if n != label
        )
    assert len({kept_rows.copy_folder(tmp_path, key) for key in (("1", 0), ("1", 1), ("2", 0))}) == 3


def during(server, look):
    """Let ``look`` be called when the first site has answered its first question."""
    seen = []

    def change(reply):
        if not seen:
            seen.append(True)
            look()
        return reply

    tamper(server, 0, change)
    return server


@pytest.mark.engine
def test_stored_rows_are_for_the_owner(tmp_path):
    modes, file = [], tmp_path / "0.csv"
    server = run_of("sub-it", tmp_path)
    finish(during(server, lambda: modes.extend(stat.S_IMODE(path.stat().st_mode) for path in kept_in(tmp_path))))
    assert set(modes) == {0o600, 0o700}
    for spoil in (lambda: csv(file, X[0] + 1), file.unlink):
        with pytest.raises(FedPCAError):
            finish(during(run_of("sub-it", tmp_path), spoil))
        assert not kept_in(tmp_path / "journal0")
    refusing = run_of("sub-it", tmp_path)
    context_of(refusing, 0).node_config["min-rows"] = 100
    with pytest.raises(FedPCAError):
        finish(refusing)
    assert not kept_in(tmp_path / "journal0")
    remains = kept_rows.copy_folder(tmp_path / "journal0", ("1", 0))
    remains.with_name(f"{remains.name}.unfinished").mkdir()
    remains.mkdir()
    finish(run_of("p-cov", tmp_path))
    assert not kept_in(tmp_path / "journal0")


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_blocks_of_a_finished_pass_come_back(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "CHUNK_ENTRIES", 0)  # blocks of 64 rows, of others than were written
    values = np.where(rows(150, 3) > 0, rows(150, 3), 0.0)
    blocks = Blocks(lambda: map(kind, np.split(values, 3)), 3, values.dtype, sparse=kind is sparse.csr_array)
    with kept_rows.write_copy(tmp_path / "rows.0", "these") as copy:
        first = copy.record(blocks)
        next(iter(first.read()))
        copy.finish(table.check_rows(first))
    copied = kept_rows.read_copy(tmp_path / "rows.0", "these")
    assert copied
    np.testing.assert_array_equal(to_array(copied.rows), values)
    assert kept_rows.read_copy(tmp_path / "rows.0", "others") is None


@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_copy_is_not_used(size, passes, tmp_path):
    def damage():
        for file in filter(Path.is_file, kept_in(tmp_path / "journal0")):
            os.truncate(file, size)

    finish(during(run_of("sub-it block-size=3", tmp_path), damage))
    assert passes[tmp_path / "0.csv"] == 2


def test_where_rows_cannot_be_kept_each_question_reads_them(passes, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "_map_rows", lambda *args, **options: (_ for _ in ()).throw(OSError(28, "No space")))
    assert finish(run_of("sub-it", tmp_path)).components_.shape == (2, 8)
    assert min(passes.values()) > 1
    assert not kept_in(tmp_path)


@pytest.mark.parametrize(("minutes", "stays"), [(9, True), (11, False)])
def test_stored_rows_of_a_silent_run_go_with_the_next(minutes, stays, tmp_path, monkeypatch):
    silent, other = (journal.FileJournal(str(tmp_path), run, 0) for run in ("1", "2"))
    silent.begin("mean", "", b"", lambda answered: None)
    silent.rows_folder.mkdir()

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=minutes)

    monkeypatch.setattr(journal, "datetime", Later)
    other.begin("mean", "", b"", lambda answered: None)
    assert silent.rows_folder.exists() is stays


def test_a_folder_has_three_copies_at_most_and_the_oldest_goes(tmp_path, passes):
    """A server that begins runs and ends none filled the disk."""
    csv(tmp_path / "0.csv", X[0])
    node = node_of(tmp_path / "0.csv", journal=str(tmp_path / "journal"))
    (tmp_path / "journal").mkdir()
    folders = [kept_rows.copy_folder(tmp_path / "journal", (str(run), 0)) for run in range(7)]
    for run, folder in enumerate(folders):
        np.testing.assert_array_equal(to_array(load_run_table(node, RunConfig(), folder).rows), X[0])
        os.utime(folder, ns=(run, run))
        folder.with_name(f"{folder.name}.unfinished").mkdir()  # of a process that was killed
        os.utime(folder.with_name(f"{folder.name}.unfinished"), ns=(run, run))
        assert len(kept_rows.copy_folders(tmp_path / "journal")) <= 3
    assert [folder.exists() for folder in folders] == [False] * 4 + [True] * 3
    assert passes[tmp_path / "0.csv"] == 7
    for folder in (folders[-1], folders[0]):  # a run whose copy went reads the file
        np.testing.assert_array_equal(to_array(load_run_table(node, RunConfig(), folder).rows), X[0])
    assert passes[tmp_path / "0.csv"] == 8


def in_place(file):
    """Other rows in the same file, a nanosecond later."""
    before = file.stat()
    with open(file, "r+b") as stream:
        np.save(stream, rows(20, 3, seed=1))
    return before.st_ino, 1


def in_its_place(file):
    """Other rows in another file, written at the same time."""
    other = file.with_name("other.npy")
    np.save(other, rows(20, 3, seed=1))
    other.replace(file)
    return file.stat().st_ino, 0


@pytest.mark.parametrize("change", [in_place, in_its_place])
def test_other_rows_show_though_the_size_of_the_file_stays(change, tmp_path):
    """A run must go on with the rows with which the run began."""
    file = tmp_path / "rows.npy"
    np.save(file, rows(20, 3))
    before, first = file.stat(), local_table(node_of(file), RunConfig())
    assert local_table(node_of(file), RunConfig()).digest == first.digest
    inode, later = change(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + later))
    then, now = file.stat(), local_table(node_of(file), RunConfig())
    assert (then.st_ino, then.st_size, then.st_mtime_ns) == (inode, before.st_size, before.st_mtime_ns + later)
    np.testing.assert_array_equal(now.rows, rows(20, 3, seed=1))
    assert now.digest != first.digest
