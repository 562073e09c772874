"""A site's rows, kept for one run in the folder of its journal, so that the run reads the site's file once.

Each message of a run may meet a new process. The first process writes the rows while it reads them. The others map
what it has written, which needs no memory for all rows. Only the site's owner may read the copy. It is removed with the
run's secrets; after a run that broke off, by a later one (`fedpca_flwr.site.journal`). Of more than three copies the
oldest goes, so that runs which never end fill no disk. Without a copy, each message of its run reads the file.
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
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, ENTRIES, Block, Blocks, Rows, as_blocks, chunks, is_mapped
from fedpca_flwr.state import files

MAX_COPIES = 3
"""Copies that the folder of a journal has at a time, of runs and of the parties in them."""

ABOUT = "table"  # the file that says what the others hold; it is written last
Key = tuple[str, int]  # a run, and a party in it

logger = logging.getLogger("fedpca_flwr.client")


def folder_of(journal: Path, key: Key) -> Path:
    """Where the rows of a party in a run are kept."""
    return journal / f"rows.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"


def remove(folder: Path) -> None:
    """Remove kept rows, and what processes that ended early have left of them."""
    for found in folder.parent.glob(f"{folder.name}*"):
        shutil.rmtree(found, ignore_errors=True)


def folders(journal: Path) -> set[str]:
    """The names of all folders of kept rows."""
    return set(_times(journal))


def _times(journal: Path) -> dict[str, int]:
    """Return when each folder of kept rows, or a copy that is in the making for it, was written last, by its name."""
    times: dict[str, int] = {}
    for found in journal.glob("rows.*"):
        name = found.name[: len("rows.") + 16]
        with suppress(OSError):  # another process may have removed it
            times[name] = max(times.get(name, 0), found.stat().st_mtime_ns)
    return times


def remove_others(journal: Path, alive: Iterable[Key]) -> None:
    """Remove the kept rows of all runs but of those that are ``alive``."""
    for folder in folders(journal) - {folder_of(journal, key).name for key in alive}:
        remove(journal / folder)


def read(folder: Path, what: str) -> Table | None:
    """The table that was kept; None where there is none, or it is of other data than ``what`` says."""
    try:
        arrays, about = files.read(folder / ABOUT, text="about.json", names=("missing", "ids", "places"))
        if about["what"] != what:
            return None
        rows = _mapped(folder, tuple(about["shape"]), np.dtype(about["dtype"]), in_csr=about["sparse"])
    except Exception:  # none is there, or it is damaged: the site's file is read again
        return None
    if about["decoded"]:
        rows = Blocks(partial(chunks, rows), rows.shape[1], rows.dtype, count=len(rows))
    names, split, digest = tuple(about["names"]), about["split"], about["digest"]
    return Table(rows, arrays["missing"], names, split, arrays.get("ids"), arrays.get("places"), digest)


@contextmanager
def writing(folder: Path, what: str) -> Iterator[Copy]:
    """A copy in the making, of which nothing is left unless it is finished."""
    times = _times(folder.parent)
    times.pop(folder.name, None)
    for name in sorted(times, key=lambda name: times[name])[: max(0, len(times) + 1 - MAX_COPIES)]:
        remove(folder.parent / name)  # the oldest copies of others: with this one there are at most so many
    partial_folder = None
    with suppress(OSError):  # the journal itself says what is wrong with its folder
        partial_folder = Path(mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        yield Copy(partial_folder, folder, what)
    finally:
        if partial_folder:
            shutil.rmtree(partial_folder, ignore_errors=True)


class Copy:
    """The copy of a site's rows that one process makes."""

    def __init__(self, partial_folder: Path | None, folder: Path, what: str) -> None:
        self._partial, self._folder, self._what = partial_folder, folder, what
        self._rows: Rows | None = None  # as they were written, in one whole pass

    def of(self, rows: Blocks) -> Blocks:
        """The same rows, which the first whole pass writes, and later passes read from there."""
        return replace(rows, read=partial(self._pass, rows))

    def finish(self, table: Table) -> None:
        """Keep a table, of whose rows a pass was written, or is written now. A mapped file is not copied."""
        if self._rows is None and not is_mapped(table.rows):
            for _ in self.of(as_blocks(table.rows, CACHE_ELEMENTS)).read():
                pass
        if self._partial is None or self._rows is None:
            return
        in_csr = isinstance(self._rows, Blocks)
        about = {
            "what": self._what,
            "names": table.names,
            "split": table.split,
            "digest": table.digest,
            "shape": self._rows.shape,
            "dtype": self._rows.dtype.str,
            "sparse": in_csr,
            "decoded": in_csr and not (isinstance(table.rows, Blocks) and table.rows.sparse),
        }
        arrays = {"missing": table.missing, "ids": table.ids, "places": table.places}
        there = {name: array for name, array in arrays.items() if array is not None}
        try:
            files.write(self._partial / ABOUT, there, about, text="about.json", mode=0o600)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._partial.rename(self._folder)
        except OSError as error:
            self._give_up(error)

    def _pass(self, rows: Blocks) -> Iterator[Block]:
        if self._rows is not None:
            yield from as_blocks(self._rows, CACHE_ELEMENTS).read()
            return
        for file in self._partial.iterdir() if self._partial else ():  # of a pass that was not finished
            file.unlink()
        count = entries = 0
        for block in rows.read():
            self._write(block, entries)
            count, entries = count + block.shape[0], entries + block.size
            yield block
        if self._partial:
            try:
                self._rows = _mapped(self._partial, (count, rows.width), rows.dtype, in_csr=rows.sparse)
            except (OSError, ValueError) as error:  # nothing can be mapped of a file without bytes
                self._give_up(error)

    def _write(self, block: Block, entries: int) -> None:
        """Write a block of rows, before whose first so many ``entries`` were written."""
        if self._partial is None:
            return
        parts: dict[str, Any] = {"values": block}
        if sparse.issparse(block):
            parts = {"values": block.data, "columns": block.indices.astype(np.int32)}
            parts["ends"] = block.indptr[1:].astype(np.int64) + entries
        try:
            for name, part in parts.items():
                with open(self._partial / name, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
                    stream.write(np.ascontiguousarray(part).data)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        logger.warning("the rows cannot be kept (%s): each question reads them anew", error)
        self._partial = None


def _mapped(folder: Path, shape: tuple[int, int], dtype: np.dtype[Any], *, in_csr: bool) -> Rows:
    """The rows that were written into a folder."""
    if not in_csr:
        return np.memmap(folder / "values", dtype, "r", shape=shape)
    values, columns = np.memmap(folder / "values", dtype, "r"), np.memmap(folder / "columns", np.int32, "r")
    ends = np.concatenate([[0], np.fromfile(folder / "ends", np.int64)])
    n, d = shape
    few = max(64, ENTRIES * n // len(values))

    def blocks() -> Iterator[Block]:
        for start in range(0, n, few):
            own = ends[start : start + few + 1]
            part = slice(own[0], own[-1])
            yield sparse.csr_array((values[part], columns[part], own - own[0]), shape=(own.size - 1, d))

    return Blocks(blocks, d, dtype, sparse=True, count=n)
