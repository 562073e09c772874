"""Rows of a site's file in the memory of the site's own process, so that the file is read once for all messages.

The process (`fedpca_flwr.site.node.process`) forks one for each message. The first that needs the rows copies them into
files that exist in memory only (memfd), and hands these over a socket. All later ones inherit and map them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedpca_flwr.data.table import Table
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, CHUNK_ENTRIES, Block, Blocks, Rows, as_blocks, chunks, is_mapped
from fedpca_flwr.protocol.memory import available_memory
from fedpca_flwr.protocol.site_log import site_logger

MEMORY_SHARE = 0.25  # of the machine's memory that is held at most: beyond it, each message reads the file
MAX_MESSAGE_BYTES = 4096  # over the socket: a digest and the names of the memory files
NAMES = ("table", "values", "columns", "ends")
MemoryFiles = Mapping[str, int]  # descriptors by name: the table's description, and rows as an array or in CSR format


class RowStore:
    """Rows of a single table, which the site's process holds and the processes of its messages map.

    A source is a digest of the data's identity and keys. Raise OSError without files in memory: not on Linux.
    """

    def __init__(self) -> None:
        self._resident_end, self._message_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._resident_end.setblocking(False)
        self._digest = ""
        self._files: dict[str, int] = {}

    def receive(self) -> None:
        """Take over the rows that processes of messages have sent, if any, in place of earlier ones."""
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._resident_end, MAX_MESSAGE_BYTES, len(NAMES))
            except BlockingIOError:
                return
            for descriptor in self._files.values():
                os.close(descriptor)
            self._digest, names = json.loads(message)
            self._files = dict(zip(names, descriptors, strict=True))

    def load(self, source: str) -> Table | None:
        """Return the table, with mapped rows, that the site's process holds of a source, or None if it holds none."""
        return _load_table(self._files) if self._digest == source else None

    def copy(self, source: str) -> RowCopy:
        """Return an empty copy for the rows of a source (in the process of a message)."""
        return RowCopy(partial(self._send, source))

    def _send(self, digest: str, files: MemoryFiles) -> None:
        """Hand files in memory to the site's process; raise OSError if the socket takes none."""
        message = json.dumps([digest, list(files)]).encode()
        socket.send_fds(self._message_end, [message], list(files.values()))


resident: RowStore | None = None  # of a site's process, or of a message's; None if no rows are in memory


class RowCopy:
    """Copy of a table's rows in memory, made during the first complete pass over the rows; ``send`` hands it on."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._files: dict[str, int] | None = {}
        self._limit = (available_memory() or 0) * MEMORY_SHARE
        self._rows: Rows | None = None  # mapped, once a complete pass has written the rows

    def record(self, rows: Blocks) -> Blocks:
        """Return the same rows, which the first complete pass copies and later passes read from the copy."""
        if rows.lazy:  # the rows stay in the file, which each message maps
            self._files = None
            return rows
        return replace(rows, read=partial(self._record_pass, rows))

    def finish(self, table: Table) -> None:
        """Complete the copy with other arrays, and send it, or log why not; a mapped file is not copied."""
        if self._files is not None and self._rows is None and not is_mapped(table.rows):
            for _ in self.record(as_blocks(table.rows, CACHE_ELEMENTS)).read():
                pass
        if self._files is None or self._rows is None:
            return
        in_csr = isinstance(self._rows, Blocks)
        info = {
            "names": table.names,
            "split": table.split,
            "digest": table.digest,
            "shape": self._rows.shape,
            "dtype": self._rows.dtype.str,
            "sparse": in_csr,
            "decoded": in_csr and not (isinstance(table.rows, Blocks) and table.rows.sparse),
        }
        arrays = {"missing": table.missing, "ids": table.ids, "places": table.row_positions}
        present: dict[str, Any] = {name: array for name, array in arrays.items() if array is not None}
        self._files["table"] = os.memfd_create("table")
        try:
            with open(path_of(self._files["table"]), "wb") as stream:
                np.savez(stream, allow_pickle=False, info=np.frombuffer(json.dumps(info).encode(), np.uint8), **present)
            self._send(self._files)
        except OSError as error:
            self._stop(str(error))

    def _record_pass(self, rows: Blocks) -> Iterator[Block]:
        """Yield all rows: the first complete pass also writes the copy, later passes read the copy."""
        if self._rows is not None:
            yield from as_blocks(self._rows, CACHE_ELEMENTS).read()
            return
        if self._files is not None:
            self._close()  # of an unfinished pass
            parts = ("values", "columns", "ends") if rows.sparse else ("values",)
            self._files = {name: os.memfd_create(name) for name in parts}
        count = entries = 0
        for block in rows.read():
            self._append(block, entries)
            count, entries = count + block.shape[0], entries + block.size
            yield block
        if self._files is not None and entries:
            self._rows = _map_rows(self._files, (count, rows.width), rows.dtype, in_csr=rows.sparse)

    def _append(self, block: Block, entries: int) -> None:
        """Append a block after `entries` (CSR: values, columns, row ends); stop, and log why, without memory for it."""
        parts: dict[str, Any] = {"values": block}
        if sparse.issparse(block):
            ends = block.indptr[1:].astype(np.int64) + entries
            parts = {"values": block.data, "columns": block.indices.astype(np.int32), "ends": ends}
        for name, part in parts.items():
            if self._files is None:
                return
            try:
                with open(path_of(self._files[name]), "ab") as stream:
                    stream.write(np.ascontiguousarray(part).data)
                    size = stream.tell()
            except OSError as error:
                self._stop(str(error))
            else:
                if size > self._limit:
                    self._stop(f"more than {MEMORY_SHARE:.0%} of this machine's memory")

    def _stop(self, why: str) -> None:
        """Log why the rows are not held, and copy no more."""
        site_logger.warning("the rows are not in memory (%s): every message reads the file", why)
        self._close()
        self._files = None

    def _close(self) -> None:
        """Give back the memory of the files."""
        for descriptor in (self._files or {}).values():
            os.close(descriptor)


def path_of(descriptor: int) -> Path:
    """Return a path in Linux' /proc by which this process can open a file in memory anew, with another position."""
    return Path(f"/proc/self/fd/{descriptor}")


def _load_table(files: MemoryFiles) -> Table:
    """Return the table of files in memory, with mapped rows."""
    with np.load(path_of(files["table"]), allow_pickle=False) as archive:
        arrays = dict(archive)
    info = json.loads(arrays.pop("info").tobytes())
    rows = _map_rows(files, tuple(info["shape"]), np.dtype(info["dtype"]), in_csr=info["sparse"])
    if info["decoded"]:
        rows = Blocks(partial(chunks, rows), rows.shape[1], rows.dtype, count=len(rows))
    names = tuple(info["names"])
    return Table(rows, arrays["missing"], names, info["split"], arrays.get("ids"), arrays.get("places"), info["digest"])


def _map_rows(files: MemoryFiles, shape: tuple[int, int], dtype: np.dtype[Any], *, in_csr: bool) -> Rows:
    """Map rows (n, d) in memory: an array, or with `in_csr` blocks in CSR format."""
    values = np.memmap(path_of(files["values"]), dtype, "r", shape=None if in_csr else shape)
    if not in_csr:
        return values
    columns = np.memmap(path_of(files["columns"]), np.int32, "r")
    ends = np.concatenate([[0], np.memmap(path_of(files["ends"]), np.int64, "r")])
    n, d = shape
    step = max(64, CHUNK_ENTRIES * n // len(values))

    def blocks() -> Iterator[Block]:
        """Yield the rows as blocks in CSR format."""
        for start in range(0, n, step):
            bounds = ends[start : start + step + 1]
            part = slice(bounds[0], bounds[-1])
            yield sparse.csr_array((values[part], columns[part], bounds - bounds[0]), shape=(bounds.size - 1, d))

    return Blocks(blocks, d, dtype, sparse=True, count=n)
