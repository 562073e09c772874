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
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.site import journal, kept_rows, readers
from fedpca_flwr.site.local_table import local_table, of_run
from tests.families import rows
from tests.harness import at_sites, finish, server_of, tamper

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 90, 8)) * np.arange(9.0, 1.0, -1.0)
GAPS = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
COUNTS = np.where(RNG.random(X.shape) < 0.05, np.round(np.abs(X)) + 1, 0.0)
PEOPLE = np.asarray(RNG.binomial(2, 0.3, X.shape), float)


def csv(path, rows):
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d,e,f,g,h", comments="", fmt="%.17g")


def parquet(path, rows):
    write_table(pa.table({name: rows[:, j].astype(np.float32) for j, name in enumerate("abcdefgh")}), path)


def npz(path, rows):
    np.savez_compressed(path, np.asfortranarray(rows))


def sparse_npz(path, rows):
    sparse.save_npz(path, sparse.csc_array(rows))


def h5ad(path, rows):
    anndata = pytest.importorskip("anndata", reason="needs the extra 'cells'")
    anndata.AnnData(X=sparse.csr_matrix(rows)).write_h5ad(path)


def bed(path, rows):
    bed_reader = pytest.importorskip("bed_reader", reason="needs the extra 'genotypes'")
    alleles = {"chromosome": ["7"] * 8, "bp_position": range(1, 9), "allele_1": ["A"] * 8, "allele_2": ["G"] * 8}
    bed_reader.to_bed(path, rows, properties={name: list(values) for name, values in alleles.items()})


@pytest.fixture
def passes(monkeypatch):
    """How often each file was read from its beginning."""
    found: dict[Path, int] = {}

    def counted(file, read):
        found[file] = found.get(file, 0) + 1
        return read()

    def rows(kind, file, *args, **settings):
        read, names = kind.rows(file, *args, **settings)
        if isinstance(read, Blocks):
            return replace(read, read=partial(counted, file, read.read)), names
        return counted(file, lambda: (read, names))

    for suffix, kind in list(readers.FORMATS.items()):
        monkeypatch.setitem(readers.FORMATS, suffix, replace(kind, rows=partial(rows, kind)))
    return found


def run_of(method, folder, write, suffix, data, *, journal=True, **options):
    nodes = []
    for party, own in enumerate(data):
        file = folder / f"{party}{suffix}"
        if not file.exists():
            write(file, own)
        kept = {"journal": str(folder / f"journal{party}")} if journal else {}
        nodes.append({"data": str(file), **kept})
    return at_sites(server_of(method, [np.nan_to_num(own) for own in data], n_components=2, **options), nodes)


def kept_in(folder):
    return [file for file in folder.rglob("*") if file.name.startswith("rows.") or file.parent.name.startswith("rows.")]


@pytest.mark.parametrize(
    ("method", "write", "suffix", "data", "held"),
    [
        ("personalised mu=2.0", csv, ".csv", X, table.HELD_BYTES),
        ("em", csv, ".csv", GAPS, 0),
        ("sub-it", csv, ".csv", X, 0),
        ("sub-it", parquet, ".parquet", X, 0),
        ("adaptive", npz, ".npz", X, 0),
        ("sub-it", sparse_npz, ".npz", COUNTS, table.HELD_BYTES),
        ("sub-it", sparse_npz, ".npz", X, 0),  # with hardly a zero: decoded where they are multiplied
        ("sub-it", h5ad, ".h5ad", COUNTS, 0),
        ("sub-it", bed, ".bed", PEOPLE, 0),
    ],
)
def test_a_run_reads_a_file_once_and_finds_the_same_bits(
    method, write, suffix, data, held, passes, tmp_path, monkeypatch
):
    monkeypatch.setattr(table, "HELD_BYTES", held)
    model = finish(run_of(method, tmp_path, write, suffix, data))
    assert list(passes.values()) == [1, 1, 1]
    assert not kept_in(tmp_path)
    without = finish(run_of(method, tmp_path, write, suffix, data, journal=False))
    assert min(passes.values()) > 2
    np.testing.assert_array_equal(model.components_, without.components_)
    np.testing.assert_array_equal(model.explained_variance_, without.explained_variance_)


def test_rows_in_the_order_of_their_ids_are_kept_in_it_for_the_same_salt(passes, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["id,a,b", *(f"person {i},{i}.5,{i * i}" for i in range(20))]))
    node = NodeConfig.parse(
        {"partition-id": 0, "num-partitions": 3, "data": str(file), "ids": "id", "split": "columns"}
    )
    first, then, other = (of_run(node, RunConfig(seed=seed), tmp_path / "rows.0") for seed in (1, 1, 2))
    assert passes == {file: 2}
    for name in ("rows", "ids", "places", "missing"):
        np.testing.assert_array_equal(getattr(first, name), getattr(then, name))
    assert (first.names, first.split, first.digest) == (then.names, then.split, then.digest)
    assert not np.array_equal(first.ids, other.ids)


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


def test_what_is_kept_is_for_the_owner_and_goes_with_the_next_run(tmp_path):
    modes = []
    server = run_of("sub-it", tmp_path, csv, ".csv", X)
    finish(during(server, lambda: modes.extend(stat.S_IMODE(file.stat().st_mode) for file in kept_in(tmp_path))))
    assert set(modes) == {0o600, 0o700}
    with pytest.raises(FedPCAError):
        finish(during(run_of("sub-it", tmp_path, csv, ".csv", X), lambda: (tmp_path / "0.csv").unlink()))
    left = kept_rows.folder_of(tmp_path / "journal0", ("1", 0))
    left.with_name(f"{left.name}.unfinished").mkdir()
    left.mkdir()
    finish(run_of("p-cov", tmp_path, csv, ".csv", X))
    assert not kept_in(tmp_path / "journal0")


def test_a_file_that_changes_during_a_run_is_refused_though_its_rows_are_kept(tmp_path):
    server = run_of("sub-it", tmp_path, csv, ".csv", X)
    with pytest.raises(FedPCAError):
        finish(during(server, lambda: csv(tmp_path / "0.csv", X[0] + 1)))
    assert not kept_in(tmp_path / "journal0")


@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_copy_is_not_used(size, passes, tmp_path):
    def damage():
        for file in kept_in(tmp_path / "journal0"):
            if file.is_file():
                with open(file, "r+b") as stream:
                    stream.truncate(size)

    finish(during(run_of("sub-it", tmp_path, csv, ".csv", X), damage))
    assert passes[tmp_path / "0.csv"] == 2


def test_where_rows_cannot_be_kept_each_question_reads_them(passes, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "_mapped", lambda *args, **known: (_ for _ in ()).throw(OSError(28, "No space")))
    model = finish(run_of("sub-it", tmp_path, csv, ".csv", X))
    assert min(passes.values()) > 1
    assert not kept_in(tmp_path)
    assert model.components_.shape == (2, 8)


@pytest.mark.parametrize(("minutes", "there"), [(9, True), (11, False)])
def test_the_rows_of_a_run_that_fell_silent_go_when_another_begins(minutes, there, tmp_path, monkeypatch):
    left, other = (journal.FileJournal(str(tmp_path), run, 0) for run in ("1", "2"))
    left.begin("mean", "", b"", lambda answered: None)
    left.rows.mkdir()

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=minutes)

    monkeypatch.setattr(journal, "datetime", Later)
    other.begin("mean", "", b"", lambda answered: None)
    assert left.rows.exists() is there


def test_a_file_that_is_rewritten_in_place_shows_though_its_size_stays(tmp_path):
    """What a run began with and goes on with must be the same rows: a nanosecond later they may be others."""
    file = tmp_path / "rows.npy"
    np.save(file, rows(20, 3))
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file)})
    before, first = file.stat(), local_table(node, RunConfig())
    assert local_table(node, RunConfig()).digest == first.digest
    with open(file, "r+b") as stream:
        stream.seek(-8, os.SEEK_END)
        stream.write(np.float64(7.0).tobytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    then = local_table(node, RunConfig())
    assert (file.stat().st_ino, file.stat().st_size) == (before.st_ino, before.st_size)
    assert then.rows[-1, -1] == 7.0
    assert then.digest != first.digest


def test_a_file_in_the_place_of_another_shows_though_its_time_and_size_are_the_same(tmp_path):
    file, other = tmp_path / "rows.npy", tmp_path / "other.npy"
    node = NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file)})
    np.save(file, rows(20, 3))
    before, first = file.stat(), local_table(node, RunConfig())
    np.save(other, rows(20, 3, seed=1))
    other.replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert local_table(node, RunConfig()).digest != first.digest
