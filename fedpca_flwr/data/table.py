"""`Table`: a party's rows with the digest of their columns' names, checked without a value in any error."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.maths.rows import (
    Block,
    Blocks,
    Rows,
    block_to_array,
    chunks,
    join_blocks,
    row_major,
    sparse_rows,
    to_array,
    weight_rows,
)

MAX_MAGNITUDE = 1e140  # largest absolute value; sums of squares stay below the largest float64, 1.8e308
MIN_COLUMN_MAGNITUDE = 1e-140  # of a column's largest value, unless all are zero: squares of differences are not 0
INEXACT_INTEGERS = "whole numbers beyond 2^53 that float64 does not hold"  # in errors
HELD_BYTES = 2**26  # of blocks that are kept from the pass that checks them, so that what is small is read once
SAMPLE_ROWS = 250  # rows, and
SAMPLE_ELEMENTS = 2**21  # values at most, of the sample that a pass keeps
MAX_SPARSE_DENSITY = 0.1  # of entries that are not zero; denser rows are decoded before they are multiplied: faster
MAX_LISTED_COLUMNS = 20  # how many columns an error names at most


@represent_by_shapes
@dataclass
class ColumnSummary:
    """Extremes and missing values of the columns of rows, and every m-th row, from the pass that checks the rows."""

    low: Array  # (d,) least value of each column; NaN without values
    high: Array  # (d,) largest value
    missing: NDArray[np.int64]  # (d,) number of missing values (NaN)
    sample: list[NDArray[Any]] = field(default_factory=list)  # every `step`-th row
    count: int = 0  # rows
    step: int = 1
    sampled: bool = True  # whether rows are kept

    @classmethod
    def empty(cls, d: int, *, sampled: bool) -> Self:
        """Return the summary of no rows."""
        return cls(np.full(d, np.nan), np.full(d, np.nan), np.zeros(d, np.int64), sampled=sampled)

    def update(self, block: Block, names: Sequence[str]) -> None:
        """Add a block of rows (m, d), dense or CSR; raise DataError for integers that float64 does not hold."""
        m, d = block.shape
        is_sparse = sparse.issparse(block)
        values = block.data if is_sparse else block
        if block.dtype.kind != "f" and (lost := inexact_integers(values)).any():
            columns = np.zeros(d, dtype=bool)
            columns[block.indices[lost] if is_sparse else np.flatnonzero(lost.any(axis=0))] = True
            raise _columns_error(columns, f"{INEXACT_INTEGERS}: subtract a whole number near all of them first", names)
        if is_sparse:
            np.fmin.at(self.low, block.indices, values)
            np.fmax.at(self.high, block.indices, values)
            zeros = np.bincount(block.indices, minlength=d) < m
            self.low[zeros], self.high[zeros] = np.fmin(self.low[zeros], 0), np.fmax(self.high[zeros], 0)
            self.missing += np.bincount(block.indices[np.isnan(values)], minlength=d)
        elif m:
            np.fmax(self.high, np.fmax.reduce(block, axis=0), out=self.high)
            low = np.minimum.reduce(block, axis=0)  # NaN for a column that lacks values
            if np.isnan(low).any():
                low = np.fmin.reduce(block, axis=0)
                self.missing += np.isnan(block).sum(axis=0)
            np.fmin(self.low, low, out=self.low)
        if self.sampled:
            self._keep(block)
        self.count += m

    def _keep(self, block: Block) -> None:
        """Add rows of a block to the sample, of which half go where it would become too large."""
        m, d = block.shape
        while (self.count + m - 1) // self.step >= max(20, min(SAMPLE_ROWS, SAMPLE_ELEMENTS // max(1, d))):
            self.step *= 2
            self.sample = self.sample[::2]
        self.sample += list(np.array(block_to_array(block[-self.count % self.step :: self.step])))

    def require_squares(self, names: Sequence[str]) -> None:
        """Raise DataError for no rows or columns, infinite values, and columns whose squares overflow or vanish."""
        if 0 in (self.count, len(self.low)):
            shape = (self.count, len(self.low))
            raise DataError(f"the data have shape {shape}, expected at least one row and one feature")
        sizes = np.nan_to_num(np.fmax(-self.low, self.high), nan=0.0, posinf=np.inf)
        too_large = (
            f"values that are too large to be squared (beyond {MAX_MAGNITUDE:g} in size): fill or drop them if they "
            "mark what is missing, else change the unit"
        )
        too_small = (
            f"columns whose values are all too small to be squared (below {MIN_COLUMN_MAGNITUDE:g} in size): change "
            "their unit, or leave them out"
        )
        for columns, fault in (
            (~np.isfinite(sizes), "infinite values: fill or drop them first"),
            (sizes > MAX_MAGNITUDE, too_large),
            ((sizes > 0) & (sizes < MIN_COLUMN_MAGNITUDE), too_small),
        ):
            if columns.any():
                raise _columns_error(columns, fault, names)


@represent_by_shapes
class Table(NamedTuple):
    """Data of a party: n rows of d columns."""

    rows: Rows  # (n, d)
    missing: NDArray[np.int64]  # (d,) number of missing values (NaN) of each column
    names: tuple[str, ...] = ()  # of the columns; empty if unknown
    split: str = ""  # of all parties' data: "rows", "columns", or empty if unknown
    ids: NDArray[np.uint64] | None = None  # (n,) ascending digests of the rows' ids, if the file has ids
    row_positions: NDArray[np.int64] | None = None  # (n,) position in `rows`, sorted by ids, of each row of the file
    digest: str = ""  # of the rows, by which other rows in a later round are noticed; empty if nobody looks
    weights: Array | None = None  # (n,) numbers from 0, if the run has weights
    excluded: NDArray[np.bool_] | None = None  # (n,) rows that only get scores, if a site names any
    order: NDArray[np.int64] | None = None  # (d,) column of the file that each column is, if a run has an order
    notes: tuple[str, ...] = ()  # on how the rows were read, for their reader
    summary: ColumnSummary | None = None  # of the rows, for notes on columns; None for packed rows, and at a site

    @property
    def names_digest(self) -> str:
        """Digest of the names of the columns, which is sent with replies; empty without names."""
        return names_digest(self.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and of columns."""
        return self.rows.shape

    @property
    def columns(self) -> tuple[str | int, ...]:
        """Names of the columns, or without names their numbers from 0."""
        return self.names or tuple(range(len(self.missing)))

    def frame(self) -> Any:
        """Return all rows, read into memory, as a data frame of pandas."""
        return self.head(len(self.rows))

    def head(self, n: int = 5) -> Any:
        """Return the first ``n`` rows as a data frame of pandas."""
        import pandas

        return pandas.DataFrame(to_array(self.rows[:n]), columns=list(self.columns))


def participating_rows(table: Table, round_rows: int) -> Rows:
    """Return the rows (n, d) that take part in a run: with weights, or without the rest beyond ``round_rows``."""
    included = slice(None) if table.excluded is None else ~table.excluded
    rows = table.rows if table.excluded is None else table.rows[included]
    if table.weights is not None:
        return weight_rows(rows, table.weights[included])
    return rows[: len(rows) - len(rows) % round_rows]


def participation(table: Table, round_rows: int) -> NDArray[np.bool_]:
    """Return the mask (n,) of the rows of `participating_rows`, but those of weight 0."""
    mask = np.ones(len(table.rows), dtype=bool) if table.excluded is None else ~table.excluded
    if table.weights is not None:
        return np.asarray(mask & (table.weights > 0))
    included = np.flatnonzero(mask)
    mask[included[included.size - included.size % round_rows :]] = False
    return mask


def names_digest(names: Sequence[str]) -> str:
    """Compute 16 hexadecimal digits of SHA-256 of stripped column names in their order; empty without names."""
    return hashlib.sha256("\0".join(name.strip() for name in names).encode()).hexdigest()[:16] if names else ""


def labels_text(labels: Sequence[object]) -> str:
    """Write labels, separated by commas, and of more than `MAX_LISTED_COLUMNS` how many more there are."""
    overflow = f" and {len(labels) - MAX_LISTED_COLUMNS} more" if len(labels) > MAX_LISTED_COLUMNS else ""
    return ", ".join(map(repr, labels[:MAX_LISTED_COLUMNS])) + overflow


def columns_text(columns: NDArray[np.bool_], names: Sequence[str]) -> str:
    """Write the columns in a mask (d,), by name or without names by position, as `labels_text` does."""
    positions = np.flatnonzero(columns).tolist()
    if names:
        return f"columns: {labels_text([names[position] for position in positions])}"
    return f"columns (from 0): [{labels_text(positions)}]"


def check_rows(rows: Rows, names: Sequence[str] = (), *, sampled: bool = False) -> Table:
    """Check that rows (n, d) are numbers that can be squared, or NaN; if ``sampled``, the table has its summary."""
    if rows.ndim != 2:
        advice = "X.reshape(len(X), -1) makes each item a row"
        if rows.ndim < 2:
            advice = "one table is one party: [X], and of a data frame's columns one is df[['name']]"
        raise DataError(f"the data have {rows.ndim} axes, expected 2 (rows, features); {advice}")
    if rows.dtype.kind not in "fiub":
        raise DataError(f"the data have dtype {rows.dtype}, expected real numbers")
    rows = rows if isinstance(rows, Blocks) or 0 in rows.shape else row_major(rows)
    if isinstance(rows, Blocks):
        return _check_blocks(rows, tuple(names), sampled)
    summary = ColumnSummary.empty(rows.shape[1], sampled=sampled)
    for chunk in chunks(rows):
        summary.update(chunk, names)
    summary.require_squares(names)
    return Table(rows, summary.missing, tuple(names), summary=summary if sampled else None)


def require_complete(table: Table, advice: str = "") -> Rows:
    """Return the rows (n, d) of a table; raise DataError, which ends with ``advice``, for missing values."""
    if table.missing.any():
        fault = f"missing values (NaN): fill or drop them first{advice}"
        raise _columns_error(table.missing > 0, fault, table.names)
    return table.rows


def _check_blocks(rows: Blocks, names: tuple[str, ...], sampled: bool) -> Table:
    """Check rows that are read in blocks as `check_rows` does, and keep the blocks in memory if they are small.

    Of packed (`lazy`) blocks, never kept, missing values are counted; sparse rows with many entries become dense.
    """
    summary = ColumnSummary.empty(rows.width, sampled=sampled)
    if rows.lazy:  # a few bits are numbers that float64 holds, whatever they are
        missing = sum((block.count_missing() for block in rows.read()), summary.missing)
        replace(summary, count=len(rows)).require_squares(names)
        return Table(rows, missing, names)
    entries, cached, free_bytes = 0, list[Block](), HELD_BYTES
    for block in rows.read():
        _check_block(block, rows)
        entries += block.size
        summary.update(block, names)
        arrays = (block.data, block.indices, block.indptr) if sparse.issparse(block) else (block,)
        free_bytes -= sum(array.nbytes for array in arrays)
        cached = [*cached, block] if free_bytes >= 0 else []
    summary.require_squares(names)
    count = summary.count
    if cached:
        only = join_blocks(cached)
        checked = sparse_rows(only) if rows.sparse else block_to_array(only)
    else:
        checked = replace(rows, read=partial(_reread_blocks, rows, count), count=count)
    if rows.sparse and entries > MAX_SPARSE_DENSITY * count * rows.width:
        checked = Blocks(partial(chunks, checked), rows.width, rows.dtype, count=count)
    return Table(checked, summary.missing, names, summary=summary if sampled else None)


def _check_block(block: Any, rows: Blocks) -> None:
    """Raise DataError for a block whose type, dtype or width differs from what its loader declares."""
    is_valid = sparse.issparse(block) and block.format == "csr" if rows.sparse else isinstance(block, np.ndarray)
    if not is_valid or block.ndim != 2 or block.shape[1] != rows.width or block.dtype != rows.dtype:
        kind = type(block).__name__
        dtype, shape = getattr(block, "dtype", "none"), getattr(block, "shape", "none")
        raise DataError(
            f"a block of rows is {kind} of dtype {dtype} and shape {shape}, but its loader says "
            f"{'CSR' if rows.sparse else 'arrays'} of dtype {rows.dtype} and {rows.width} columns; let it yield these"
        )


def _reread_blocks(rows: Blocks, count: int) -> Iterator[Block]:
    """Yield the blocks for another pass; raise DataError if their form or number of rows has changed."""
    rows_read = 0
    for block in rows.read():
        _check_block(block, rows)
        rows_read += block.shape[0]
        if rows_read <= count:
            yield block
    if rows_read != count:
        raise DataError("the data changed while they were read: they have more or fewer rows than before")


def inexact_integers(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of the integers that float64 cannot represent exactly; all False for other dtypes."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8:
        return np.zeros(array.shape, dtype=bool)
    floats, end = array.astype(np.float64), 2.0 ** (63 if array.dtype.kind == "i" else 64)
    rounded_up = floats >= end  # the largest integers, which are converted back to none
    lost: NDArray[np.bool_] = rounded_up | (np.where(rounded_up, 0.0, floats).astype(array.dtype) != array)
    return lost


def _columns_error(columns: NDArray[np.bool_], fault: str, names: Sequence[str]) -> DataError:
    """Return the error for a fault in a mask of columns (d,), which only the site's own log names."""
    return DataError(f"the data hold {fault}", local=columns_text(columns, names))


def require_same_rows(earlier: str, now: str) -> None:
    """Raise DataError if a digest of rows differs from that of an earlier pass."""
    if earlier != now:
        raise DataError(
            "the data are other rows, or the same in another order, than before in this run. A file must not be "
            "written while a run lasts; order a query by a key that no two rows share (ORDER BY), and ask for a "
            "table that stands still, such as a materialised view or a copy"
        )
