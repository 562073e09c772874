"""A copy of a site's rows for a single run, in the folder of its journal, so that the run reads the site's file once.

Each message of a run may meet a new process. The first process writes the rows while it reads them. The other processes
map the copy, which needs no memory for all rows. Only the site's owner may read the copy. The copy is removed with the
run's secrets; after a run that broke off, a later run removes the copy (`fedpca_flwr.site.journal`). Of more than three
copies the oldest is removed, so that runs which never end fill no disk. Without a copy, each message of its run reads
the file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from scipy import sparse

from fedpca_flwr.data.table import Table
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, CHUNK_ENTRIES, Block, Blocks, Rows, as_blocks, chunks, is_mapped
from fedpca_flwr.state import files

MAX_COPIES = 3
"""Copies that the folder of a journal has at a time, of runs and of the parties in them."""

TABLE_FILE = "table"  # describes the other files, and is written last
RunKey = tuple[str, int]  # a run, and a party in it

logger = logging.getLogger("fedpca_flwr.client")


def copy_folder(journal: Path, key: RunKey) -> Path:
    """Return the folder for the copied rows of a party (run, partition), inside the journal's folder.

    Parameters
    ----------
    journal : Path
        Folder of the journal.
    key : tuple of str and int
        Run and party.

    Returns
    -------
    Path
        The folder, which need not exist.
    """
    return journal / f"rows.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"


def remove_copy(folder: Path) -> None:
    """Delete a folder of copied rows, and unfinished copies.

    Parameters
    ----------
    folder : Path
        Folder of the copy.
    """
    for path in folder.parent.glob(f"{folder.name}*"):
        shutil.rmtree(path, ignore_errors=True)


def copy_folders(journal: Path) -> dict[str, int]:
    """Return the time of last change in nanoseconds of each folder of copied rows, by name.

    Parameters
    ----------
    journal : Path
        Folder of the journal.

    Returns
    -------
    dict of str to int
        Times in nanoseconds by the name of the folder.
    """
    times: dict[str, int] = {}
    for path in journal.glob("rows.*"):
        name = path.name[: len("rows.") + 16]
        with suppress(OSError):  # another process may have removed it
            times[name] = max(times.get(name, 0), path.stat().st_mtime_ns)
    return times


def remove_stale_copies(journal: Path, live_runs: Iterable[RunKey]) -> None:
    """Delete the copied rows of all runs that are not among the live runs.

    Parameters
    ----------
    journal : Path
        Folder of the journal.
    live_runs : iterable of tuple of str and int
        Runs and parties whose copies stay.
    """
    for folder in copy_folders(journal).keys() - {copy_folder(journal, key).name for key in live_runs}:
        remove_copy(journal / folder)


def read_copy(folder: Path, source: str) -> Table | None:
    """Return the table copied into a folder, with memory-mapped rows; None if missing, damaged or of another source.

    Parameters
    ----------
    folder : Path
        Folder of the copy.
    source : str
        Text that identifies the data and how the site reads the data.

    Returns
    -------
    Table or None
        The table, with mapped rows; None if there is no copy, the copy is damaged, or its source differs.
    """
    try:
        arrays, info = files.read(folder / TABLE_FILE, text="about.json", names=("missing", "ids", "places"))
        if info["what"] != source:
            return None
        rows = _map_rows(folder, tuple(info["shape"]), np.dtype(info["dtype"]), in_csr=info["sparse"])
    except Exception:  # the copy is missing or damaged: read the site's file again
        return None
    if info["decoded"]:
        rows = Blocks(partial(chunks, rows), rows.shape[1], rows.dtype, count=len(rows))
    names, ids, places = tuple(info["names"]), arrays.get("ids"), arrays.get("places")
    return Table(rows, arrays["missing"], names, info["split"], ids, places, info["digest"])


@contextmanager
def write_copy(folder: Path, source: str) -> Iterator[RowCopy]:
    """Yield a `RowCopy` to fill inside a with statement; an unfinished copy is deleted at the end.

    Parameters
    ----------
    folder : Path
        Folder of the copy.
    source : str
        Text that identifies the data and how the site reads the data.

    Yields
    ------
    RowCopy
        The copy in the making.
    """
    times = copy_folders(folder.parent)
    times.pop(folder.name, None)
    for name in sorted(times, key=lambda name: times[name])[: max(0, len(times) + 1 - MAX_COPIES)]:
        remove_copy(folder.parent / name)  # the oldest copies of other runs
    partial_folder = None
    with suppress(OSError):  # if the folder is unusable, the journal raises an error about it
        partial_folder = Path(mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        yield RowCopy(partial_folder, folder, source)
    finally:
        if partial_folder:
            shutil.rmtree(partial_folder, ignore_errors=True)


class RowCopy:
    """Copy of a site's rows in files, made during the first pass over the rows.

    Parameters
    ----------
    partial_folder : Path, optional
        Folder of the unfinished copy; None if the folder could not be made: nothing is copied.
    folder : Path
        Folder of the finished copy.
    source : str
        Text that identifies the data and how the site reads the data.
    """

    def __init__(self, partial_folder: Path | None, folder: Path, source: str) -> None:
        """Set the temporary folder of the copy, its final folder, and the text that identifies the source."""
        self._temporary, self._folder, self._source = partial_folder, folder, source
        self._rows: Rows | None = None  # mapped, once a complete pass has written the rows

    def record(self, rows: Blocks) -> Blocks:
        """Return the same rows, which the first complete pass copies and later passes read from the copy.

        Parameters
        ----------
        rows : Blocks
            Rows as the site's file has them.

        Returns
        -------
        Blocks
            The same rows.
        """
        return replace(rows, read=partial(self._record_pass, rows))

    def finish(self, table: Table) -> None:
        """Complete the copy with the table's other arrays, and move the copy to its final folder.

        A mapped file is not copied.

        Parameters
        ----------
        table : Table
            The table whose rows were recorded.
        """
        if self._rows is None and not is_mapped(table.rows):
            for _ in self.record(as_blocks(table.rows, CACHE_ELEMENTS)).read():
                pass
        if self._temporary is None or self._rows is None:
            return
        in_csr = isinstance(self._rows, Blocks)
        info = {
            "what": self._source,
            "names": table.names,
            "split": table.split,
            "digest": table.digest,
            "shape": self._rows.shape,
            "dtype": self._rows.dtype.str,
            "sparse": in_csr,
            "decoded": in_csr and not (isinstance(table.rows, Blocks) and table.rows.sparse),
        }
        arrays = {"missing": table.missing, "ids": table.ids, "places": table.row_positions}
        present = {name: array for name, array in arrays.items() if array is not None}
        try:
            files.write(self._temporary / TABLE_FILE, present, info, text="about.json", mode=0o600)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._temporary.rename(self._folder)
        except OSError as error:
            self._stop_copying(error)

    def _record_pass(self, rows: Blocks) -> Iterator[Block]:
        """Yield all rows: the first complete pass also writes the copy, later passes read the copy."""
        if self._rows is not None:
            yield from as_blocks(self._rows, CACHE_ELEMENTS).read()
            return
        for file in self._temporary.iterdir() if self._temporary else ():  # remove files of an unfinished pass
            file.unlink()
        count = entries = 0
        for block in rows.read():
            if self._temporary is not None:
                try:
                    _append_block(self._temporary, block, entries)
                except OSError as error:
                    self._stop_copying(error)
            count, entries = count + block.shape[0], entries + block.size
            yield block
        if self._temporary is not None:
            try:
                self._rows = _map_rows(self._temporary, (count, rows.width), rows.dtype, in_csr=rows.sparse)
            except (OSError, ValueError) as error:  # nothing can be mapped of a file without bytes
                self._stop_copying(error)

    def _stop_copying(self, error: Exception) -> None:
        """Log why no copy can be made, and copy no more; the rows are then read anew each time."""
        logger.warning("the rows cannot be kept (%s): each question reads them anew", error)
        self._temporary = None


def _append_block(folder: Path, block: Block, entries: int) -> None:
    """Append a block of rows to the copy's files; CSR blocks as values, columns and row ends."""
    parts: dict[str, Any] = {"values": block}
    if sparse.issparse(block):
        ends = block.indptr[1:].astype(np.int64) + entries
        parts = {"values": block.data, "columns": block.indices.astype(np.int32), "ends": ends}
    for name, part in parts.items():
        with open(folder / name, "ab", opener=partial(os.open, mode=0o600)) as stream:
            stream.write(np.ascontiguousarray(part).data)


def _map_rows(folder: Path, shape: tuple[int, int], dtype: np.dtype[Any], *, in_csr: bool) -> Rows:
    """Memory-map the copied rows (n, d): an array, or blocks in CSR format."""
    if not in_csr:
        return np.memmap(folder / "values", dtype, "r", shape=shape)
    values, columns = np.memmap(folder / "values", dtype, "r"), np.memmap(folder / "columns", np.int32, "r")
    ends = np.concatenate([[0], np.fromfile(folder / "ends", np.int64)])
    n, d = shape
    step = max(64, CHUNK_ENTRIES * n // len(values))

    def blocks() -> Iterator[Block]:
        """Yield the copied rows as blocks in CSR format."""
        for start in range(0, n, step):
            bounds = ends[start : start + step + 1]
            part = slice(bounds[0], bounds[-1])
            yield sparse.csr_array((values[part], columns[part], bounds - bounds[0]), shape=(bounds.size - 1, d))

    return Blocks(blocks, d, dtype, sparse=True, count=n)
