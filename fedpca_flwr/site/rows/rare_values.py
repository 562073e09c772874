"""Columns by which a few rows could be read out of moments, found before a site's first answer.

With a single 1 among zeros in a column x, the covariance of x with any feature y is that row's value of y less the
mean, up to a known factor. The same holds nearly for a value so far from all others that its row alone makes up the
deviations of the column. Official statistics call these rules of frequency and of dominance. On the rows that take
part, a site looks for

- **rare values**: at least one row and fewer than `min-rows` rows differ from the column's commonest value, which more
  than one row has;
- **dominance**: one row has more than `DOMINANCE_SHARE` of the column's squared deviations from its mean, and more than
  `DOMINANCE_MULTIPLE`/n of them, where n rows take part. Of 30 normal values this happens twice in 100,000.

Missing values are no values. The rules are about one column at a time: two columns may have values together that one
row has. Where data are split by columns, a site shows each row's scores by `may-show`, and where answers have noise,
the noise hides single rows: there the site looks for nothing. EM's answers tell the moments of rows with the same gaps,
so there the site looks at each such group of rows, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.data.table import columns_text
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import rows_by_gaps
from fedpca_flwr.maths.rows import (
    Block,
    Blocks,
    Rows,
    block_to_array,
    chunks,
    pair_with_weights,
    row_weights,
    select_columns,
    to_array,
)
from fedpca_flwr.protocol.journal import Journal
from fedpca_flwr.site.rows.selection import Selection

DOMINANCE_SHARE = 0.2  # of a column's squared deviations, which the share of a dominating row exceeds
DOMINANCE_MULTIPLE = 25  # of the equal share 1/n, which a dominating row's share exceeds, too
PERMITTED_NAME = "rare values"  # of a run's settings in its journal, once its rows were examined
RARE_TEXT, DOMINATED_TEXT = "few rows differ from all others", "one row dominates the variance"
BLOCK_VALUES = 2**22  # values that are sorted at a time: 32 MiB

ColumnIndex = slice | NDArray[np.intp]


@dataclass(frozen=True)
class ConspicuousColumns:
    """Masks of the columns by which moments would reveal single rows."""

    rare: NDArray[np.bool_]  # (d,), columns with values of few rows
    dominated: NDArray[np.bool_]  # (d,), columns dominated by one row

    def text(self, names: Sequence[str]) -> str:
        """List the columns by kind of fault for the site's own log, by name or number; empty if there are none."""
        kinds = {RARE_TEXT: self.rare, DOMINATED_TEXT: self.dominated}
        return "; ".join(f"{kind}: {columns_text(columns, names)}" for kind, columns in kinds.items() if columns.any())


def permit_columns(
    journal: Journal, min_rows: int, selection: Selection, names: Sequence[str], *, settings: bytes
) -> None:
    """Raise DisclosureError for rows with rare or dominating values, from which moments would reveal rows.

    The journal stores the ``settings`` (the digest of the run's settings) that are permitted. The text of the error,
    which travels, has no name and no number of a column.
    """
    permitted = f"{PERMITTED_NAME} {selection.name}"
    if journal.load_secret(permitted) == settings:
        return
    if columns := conspicuous_text(selection, min_rows, names):
        name = f" ({selection.name})" if selection.name else ""
        part = " run without sums over some of the rows," if selection.name else ""
        raise DisclosureError(
            f"this site's rows{name} have columns in which {RARE_TEXT}, or {DOMINATED_TEXT}, so moments would show "
            f"these rows. Leave such columns out at all sites, correct typing errors,{part} or add rows; to accept "
            "that moments show such rows, set rare-values='allow' in this site's node-config",
            local=columns,
        )
    journal.store_secret(permitted, settings)


def conspicuous_text(selection: Selection, min_rows: int, names: Sequence[str]) -> str:
    """List the conspicuous columns of a selection, or else of its first rows with the same gaps that have any."""
    parts = rows_by_gaps(selection._rows) if selection.by_gaps else [(b"", selection._rows)]
    return next(filter(None, (conspicuous(rows, min_rows).text(names) for _, rows in parts)), "")


def conspicuous(rows: Rows, min_rows: int) -> ConspicuousColumns:
    """Find columns where fewer than `min_rows` rows differ from the commonest value, or one row dominates the variance.

    All rows are passed once, after a look at the first rows, and twice if they have weights.
    """
    modes = _majority_values(rows, 2 * min_rows - 1)
    sums = _ColumnSums(modes)
    for block, weights in _blocks(rows):
        sums.add_block(block, weights)
    rare = (sums.differing > 0) & (sums.differing < min_rows) & (sums.count - sums.differing > 1)
    mean = sums.total / np.where(sums.mass > 0, sums.mass, 1.0)  # of the deviations from the commonest value
    squares = sums.squares - sums.total * mean
    largest = np.maximum(sums.high - mean, mean - sums.low) ** 2
    if row_weights(rows) is not None:  # with weights, the largest weighted square may belong to another row
        largest = np.zeros_like(modes)
        for block, weights in _blocks(rows):
            assert weights is not None
            shares = weights[:, None] * (block - modes - mean) ** 2
            np.fmax(largest, np.fmax.reduce(shares, axis=0), out=largest)
    share = largest / np.where(squares > 0, squares, np.inf)
    return ConspicuousColumns(rare, (share > DOMINANCE_SHARE) & (share * sums.count > DOMINANCE_MULTIPLE))


def _blocks(rows: Rows) -> Iterator[tuple[Block, Array | None]]:
    """Yield blocks (m, d) of rows with their weights (m,) or None: CSR if the rows are sparse, else arrays."""
    is_sparse = isinstance(rows, Blocks) and rows.sparse
    return pair_with_weights(rows, rows.read() if is_sparse else chunks(rows))  # type: ignore[union-attr]


class _ColumnSums:
    """Counts, sums, squares and extremes by column of the values minus the column's commonest value."""

    def __init__(self, modes: Array) -> None:
        """Set all sums to zero; `modes` (d,) holds each column's commonest value."""
        self.modes = modes
        # numbers of values, and of those that are not the commonest
        self.count, self.differing = np.zeros((2, modes.size), np.int64)
        self.mass, self.total, self.squares = np.zeros((3, modes.size))  # the first is the sum of weights
        self.low, self.high = np.full((2, modes.size), np.nan)

    def add_block(self, block: Block, weights: Array | None) -> None:
        """Add a block of rows (m, d), dense or in CSR format, with the rows' weights (m,) if any."""
        if not sparse.issparse(block):
            self._add(slice(None), block, weights)
        elif np.isnan(block.data).any():
            for start in range(0, block.shape[0], step := max(1, BLOCK_VALUES // block.shape[1])):
                self._add(slice(None), block_to_array(block[start : start + step]), None)
        else:
            # only columns with another commonest value than 0 need their zeros, so only these are made dense
            nonzero_modes = np.flatnonzero(self.modes)
            step = max(1, BLOCK_VALUES // max(1, nonzero_modes.size))
            for start in range(0, block.shape[0] if nonzero_modes.size else 0, step):
                self._add(nonzero_modes, block_to_array(block[start : start + step][:, nonzero_modes]), None)
            self._add_sparse(block)

    def _add(self, columns: ColumnIndex, block: NDArray[np.generic], weights: Array | None) -> None:
        """Add a dense block (m, columns) to the sums of the columns, ignoring NaN."""
        deviations = np.subtract(block, self.modes[columns], dtype=np.float64)
        self.low[columns] = np.fmin(self.low[columns], np.fmin.reduce(deviations, axis=0))
        self.high[columns] = np.fmax(self.high[columns], np.fmax.reduce(deviations, axis=0))
        missing = np.isnan(deviations)
        count = len(block) - missing.sum(axis=0) if missing.any() else len(block)
        deviations[missing] = 0.0
        self.count[columns] += count
        self.differing[columns] += np.count_nonzero(deviations, axis=0)
        if weights is None:
            self.mass[columns] += count
            self.total[columns] += deviations.sum(axis=0)
            self.squares[columns] += np.einsum("ij,ij->j", deviations, deviations)
        else:
            self.mass[columns] += weights @ ~missing
            self.total[columns] += weights @ deviations
            self.squares[columns] += weights @ deviations**2

    def _add_sparse(self, block: Block) -> None:
        """Add a CSR block to the sums of all columns whose commonest value is 0."""
        zero, d = self.modes == 0, self.modes.size
        values = block.data.astype(np.float64)
        for sums, new in (
            (self.count, np.full(d, block.shape[0])),
            (self.mass, np.full(d, block.shape[0])),
            (self.differing, np.bincount(block.indices[values != 0], minlength=d)),
            (self.total, np.bincount(block.indices, weights=values, minlength=d)),
            (self.squares, np.bincount(block.indices, weights=values**2, minlength=d)),
        ):
            sums[zero] += new[zero]
        low, high = (end.toarray().ravel().astype(np.float64) for end in (block.min(axis=0), block.max(axis=0)))
        self.low[zero] = np.fmin(self.low, low)[zero]
        self.high[zero] = np.fmax(self.high, high)[zero]


def _majority_values(rows: Rows, sample: int) -> Array:
    """Return each column's value (d,) that all rows but at most ``sample // 2`` share, or if there is none any value.

    Such a value has the majority among the first ``sample`` values of its column, which votes find that are counted up
    and down (Boyer and Moore 1981). A column with fewer values is sorted.
    """
    width = rows.shape[1]
    modes, votes, counts = np.zeros(width), np.zeros(width, np.int64), np.zeros(width, np.int64)
    for chunk in chunks(rows):
        for row in chunk:
            present = row == row  # not missing
            unset = present & (votes == 0)
            modes[unset] = row[unset]
            votes += present * np.where(row == modes, 1, -1)
            counts += present
            if counts.min() >= sample:
                return modes
    columns = np.flatnonzero(counts < sample)
    for block in np.array_split(columns, -(-columns.size * len(rows) // BLOCK_VALUES)):
        modes[block] = _modes(to_array(select_columns(rows, block)).astype(np.float64))
    return modes


def _modes(values: Array) -> Array:
    """Return each column's commonest value in `values` (n, d), ignoring NaN; 0 if all are NaN."""
    length, longest = np.zeros(values.shape[1], np.int64), np.zeros(values.shape[1], np.int64)
    modes, previous = np.zeros(values.shape[1]), np.full(values.shape[1], np.nan)
    for row in np.sort(values, axis=0):
        length = np.where(row == previous, length + 1, 1)
        new = (length > longest) & (row == row)
        modes[new], longest[new], previous = row[new], length[new], row
    return modes
