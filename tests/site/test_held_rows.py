"""A site's own process reads a file once: what it holds, of which rows, and what shows that rows are others."""

import os
from contextlib import nullcontext
from dataclasses import replace
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
from fedpca_flwr.site import held_rows
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.readers.file_format import FORMATS
from fedpca_flwr.strategies import FACTORY
from tests.families import rows
from tests.harness import at_sites, context_of, differences, finish, proxy_of, read_in_blocks, server_of, tamper

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 90, 8)) * np.arange(9.0, 1.0, -1.0)
GAPS = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
COUNTS = np.where(RNG.random(X.shape) < 0.05, np.round(np.abs(X)) + 1, 0.0)


def csv(path, rows):
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d,e,f,g,h", comments="", fmt="%.17g")


WRITERS = {
    ".csv": csv,
    ".parquet": lambda path, rows: write_table(pa.table(dict(zip("abcdefgh", np.float32(rows.T), strict=True))), path),
    ".npz": lambda path, rows: np.savez_compressed(path, np.asfortranarray(rows)),
    ".sparse.npz": lambda path, rows: sparse.save_npz(path, sparse.csc_array(rows)),
    ".h5ad": lambda path, rows: pytest.importorskip("anndata").AnnData(X=sparse.csr_matrix(rows)).write_h5ad(path),
}


@pytest.fixture
def passes(monkeypatch):
    counts: dict[Path, int] = {}

    def counted(file, read):
        counts[file] = counts.get(file, 0) + 1
        return read()

    def rows(kind, file, *args, **settings):
        read, names = kind.read_rows(file, *args, **settings)
        if isinstance(read, Blocks):
            return replace(read, read=partial(counted, file, read.read)), names
        return counted(file, lambda: (read, names))

    for suffix, kind in list(FORMATS.items()):
        monkeypatch.setitem(FORMATS, suffix, replace(kind, read_rows=partial(rows, kind)))
    return counts


def run_of(method, folder, monkeypatch, suffix=".csv", data=X, *, resident=True):
    """Let each site have a process of its own, which holds rows, or a new process for each message."""
    nodes = []
    for party, part in enumerate(data):
        WRITERS[suffix](file := folder / f"{party}{suffix}", part)
        nodes.append({"data": str(file), "journal": str(folder / f"journal{party}")})
        nodes[-1] |= {"rare-values": "allow", "repeat": "allow"}
    server = at_sites(server_of(method, list(np.nan_to_num(data)), n_components=2), nodes)
    for party in range(len(data)):
        store = held_rows.RowStore() if resident else None
        make = partial(FACTORY.client, context_of(server, party))
        proxy_of(server, party).make = partial(in_process, monkeypatch, store, lambda make=make: make().to_client())
    return server


def in_process(monkeypatch, store, work):
    """Let a process that holds the store's rows, or none, do the work of its next message."""
    if store:
        store.receive()
    monkeypatch.setattr(held_rows, "resident", store)
    return work()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "suffix", "data", "buffer_bytes"),
    [
        *(("personalised mu=2.0", ".csv", X, table.HELD_BYTES), ("em max-rounds=4", ".csv", GAPS, 0)),
        *(("sub-it", ".csv", X, 0), ("sub-it", ".parquet", X, 0), ("adaptive", ".npz", X, 0)),
        *(("sub-it", ".sparse.npz", COUNTS, table.HELD_BYTES), ("sub-it", ".h5ad", COUNTS, 0)),
        ("sub-it", ".sparse.npz", X, 0),  # with hardly a zero: decoded where they are multiplied
    ],
)
def test_a_run_reads_a_file_once_and_finds_the_same_bits(
    method, suffix, data, buffer_bytes, passes, tmp_path, monkeypatch
):
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(table, "HELD_BYTES", buffer_bytes)
    model = finish(run_of(method, tmp_path, monkeypatch, suffix, data))
    assert list(passes.values()) == [1, 1, 1]
    passes.clear()
    without = finish(run_of(method, tmp_path / "other", monkeypatch, suffix, data, resident=False))
    assert min(passes.values()) > 2
    assert not differences(model, without)


def node_of(file, **keys):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "data": str(file), **keys})


def test_rows_are_held_for_one_salt_config_and_file(passes, tmp_path, monkeypatch):
    file, store = tmp_path / "a.csv", held_rows.RowStore()

    def table_of(seed=0, **keys):
        return in_process(monkeypatch, store, lambda: local_table(node_of(file, **keys), RunConfig(seed=seed)))

    file.write_text("\n".join(["id,a,b", *(f"person {i},{i}.5,{i * i}" for i in range(20))]))
    first, then, other, _ = (table_of(seed, ids="id", split="columns") for seed in (1, 1, 2, 2))
    assert passes == {file: 2}
    for name in ("rows", "ids", "row_positions", "missing"):
        np.testing.assert_array_equal(getattr(first, name), getattr(then, name))
    assert (first.names, first.split, first.digest) == (then.names, then.split, then.digest)
    assert not np.array_equal(first.ids, other.ids)
    csv(file, X[0])
    store = held_rows.RowStore()
    for label in ("a", "b", ""):
        assert table_of(label=label).names == tuple(name for name in "abcdefgh" if name != label)
    csv(file, X[1])
    np.testing.assert_array_equal(to_array(table_of().rows), X[1])


@pytest.mark.parametrize(("change", "resident"), [(1, True), (1, False), (0, True), (0, False)])
def test_a_file_with_other_bytes_ends_a_run_and_one_with_the_same_does_not(change, resident, tmp_path, monkeypatch):
    file, server = tmp_path / "0.csv", run_of("sub-it block-size=3", tmp_path, monkeypatch, resident=resident)

    def replace_file(reply):
        csv(tmp_path / "copy.csv", X[0] + change)
        (tmp_path / "copy.csv").replace(file)
        return reply

    tamper(server, 0, replace_file)
    with pytest.raises(FedPCAError) if change else nullcontext():
        assert finish(server).rounds > 1


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_blocks_of_a_finished_pass_come_back(kind, monkeypatch):
    read_in_blocks(monkeypatch)  # of other rows than were written
    values, store = np.where(rows(150, 3) > 0, rows(150, 3), 0.0), held_rows.RowStore()
    blocks = Blocks(lambda: map(kind, np.split(values, 3)), 3, values.dtype, sparse=kind is sparse.csr_array)
    copy = store.copy("these")
    first = copy.record(blocks)
    next(iter(first.read()))
    copy.finish(table.check_rows(first))
    store.receive()
    np.testing.assert_array_equal(to_array(store.load("these").rows), values)
    assert store.load("others") is None


@pytest.mark.parametrize("share", [held_rows.MEMORY_SHARE, 0.0], ids=["held", "too large for memory"])
def test_rows_are_held_in_memory_or_read_each_time_and_not_written_to_a_disk(share, passes, tmp_path, monkeypatch):
    """What versions before 0.3 have left in the journal's folder goes, too."""
    monkeypatch.setattr(held_rows, "MEMORY_SHARE", share)
    remains = tmp_path / "journal0" / "rows.0123456789abcdef"
    for own in ("rows.csv", "rows.parquet/part-0.parquet"):  # of the site, which stay
        (remains.parent / own).parent.mkdir(parents=True, exist_ok=True)
        (remains.parent / own).touch()
    remains.mkdir()
    (remains / "values").write_bytes(b"12345678")
    finish(run_of("sub-it", tmp_path, monkeypatch))
    assert (min(passes.values()) > 1) == (share == 0)
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    files = {name for party in range(3) for name in (f"{party}.csv", f"journal{party}/site.sqlite")}
    assert written == files | {"journal0/rows.csv", "journal0/rows.parquet/part-0.parquet"}
    assert not remains.exists()


@pytest.mark.parametrize("later", [0, 1], ids=["another file at the same time", "the same file a nanosecond later"])
def test_other_rows_show_though_the_size_of_the_file_stays(later, tmp_path):
    file, other = tmp_path / "rows.npy", tmp_path / "other.npy"
    np.save(file, rows(20, 3))
    np.save(other, rows(20, 3, seed=1))
    before, first = file.stat(), local_table(node_of(file), RunConfig())
    assert local_table(node_of(file), RunConfig()).digest == first.digest
    file.write_bytes(other.read_bytes()) if later else other.replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + later))
    then, now = file.stat(), local_table(node_of(file), RunConfig())
    assert (then.st_size, then.st_mtime_ns) == (before.st_size, before.st_mtime_ns + later)
    assert (then.st_ino == before.st_ino) == bool(later)
    np.testing.assert_array_equal(now.rows, rows(20, 3, seed=1))
    assert now.digest != first.digest
