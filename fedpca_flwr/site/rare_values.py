"""Columns by which a few rows could be read out of moments, known before a site's first answer.

A column x in which one row alone has another value than all others puts that row into the covariance: with a single 1
among zeros, the covariance of x with any feature y is that row's value of y less the mean, up to a known factor. The
same holds nearly for a value that is so far from all others that its row alone makes up the deviations of the column.
Official statistics call these rules of frequency and of dominance. On the rows that take part, a site looks for

- **rare values**: at least one row and fewer than `min-rows` rows differ from the column's commonest value, which more
  than one row has;
- **dominance**: one row has more than `SHARE` of the column's squared deviations from its mean, and more than `EQUAL`/n
  of them, where n rows take part. Of 30 normal values this happens twice in 100,000.

Missing values are no values. The rules are about one column at a time: two columns may have values together that one
row has. Where data are split by columns, a site shows each row's scores by `may-show`, and where answers have noise,
the noise hides single rows: there nothing is looked for.
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
from fedpca_flwr.maths.rows import Block, Blocks, Rows, chunks, dense, of_columns, weights_of, whole, with_weights
from fedpca_flwr.protocol.journal import Journal

SHARE = 0.2  # of a column's squared deviations, above which one row dominates the column ...
EQUAL = 25  # ... if the share is more than so many times 1/n, too
PERMITTED = "rare values"  # what a journal keeps of a run: the digest of its settings, once its rows were looked at
AT_ONCE = 2**22  # values that are sorted at a time: 32 MiB

Columns = slice | NDArray[np.intp]


@dataclass(frozen=True)
class Conspicuous:
    """Which columns (d,) of some rows have rare values, and which ones one row dominates."""

    rare: NDArray[np.bool_]
    dominated: NDArray[np.bool_]

    def text(self, names: Sequence[str]) -> str:
        """Return the columns, by ``names`` where they have some, for their own site; empty where there are none."""
        kinds = {"values of few rows": self.rare, "dominated by one row": self.dominated}
        return "; ".join(f"{kind}: {columns_text(which, names)}" for kind, which in kinds.items() if which.any())


def permit(journal: Journal, least: int, rows: Rows, names: Sequence[str], *, settings: bytes) -> None:
    """Refuse a run over rows of which few could be read from moments; look once for the settings of a run.

    Parameters
    ----------
    journal : Journal
    least : int
        The site's own `min-rows`.
    rows : Rows
        The rows (n, d) that take part, with NaN for a missing value.
    names : sequence of str
        Names of the columns, for the site's own log; empty where they have none.
    settings : bytes
        Digest of the run's settings.

    Raises
    ------
    DisclosureError
        Where a column has rare values, or one row dominates it. The text that travels has no name and no number.
    """
    if journal.recall(PERMITTED) == settings:
        return
    columns = conspicuous(rows, least).text(names)
    if columns:
        raise DisclosureError(
            "this site has columns in which few of its rows differ from all others, so that moments would tell these "
            "rows. Leave such columns out at all sites, correct what is mistyped, or bring more rows; if this site is "
            "content with what moments tell of such rows, set rare-values='allow' in its node-config",
            local=columns,
        )
    journal.keep(PERMITTED, settings)


def conspicuous(rows: Rows, least: int) -> Conspicuous:
    """Find the columns with values that few rows have, and those that one row dominates.

    All rows are passed once, after a look at the first ones, and twice where they have weights.

    Parameters
    ----------
    rows : Rows
        The rows (n, d), with NaN for a missing value.
    least : int
        The smallest number of rows whose values are not rare.

    Returns
    -------
    Conspicuous
    """
    usual = _commonest(rows, 2 * least - 1)
    sums = _Sums(usual)
    for block, weights in _blocks(rows):
        sums.take_in(block, weights)
    rare = (sums.differing > 0) & (sums.differing < least) & (sums.count - sums.differing > 1)
    mean = np.divide(sums.total, sums.mass, out=np.zeros_like(usual), where=sums.mass > 0)  # less what is usual
    squares = sums.squares - sums.total * mean
    largest = np.maximum(sums.high - mean, mean - sums.low) ** 2
    if weights_of(rows) is not None:  # the largest share need not be that of the largest deviation
        largest = np.zeros_like(usual)
        for block, weights in _blocks(rows):
            assert weights is not None
            shares = weights[:, None] * (np.subtract(block, usual, dtype=np.float64) - mean) ** 2
            np.fmax(largest, np.fmax.reduce(shares, axis=0), out=largest)
    share = np.divide(largest, squares, out=np.zeros_like(usual), where=(squares > 0) & (sums.count > 0))
    return Conspicuous(rare, (share > SHARE) & (share * sums.count > EQUAL))


def _blocks(rows: Rows) -> Iterator[tuple[Block, Array | None]]:
    """The rows block by block with their weights: in CSR format where they are sparse, else as arrays."""
    is_sparse = isinstance(rows, Blocks) and rows.sparse
    return with_weights(rows, rows.read() if is_sparse else chunks(rows))  # type: ignore[union-attr]


class _Sums:
    """By column (d,), sums over values that are not missing, of which the commonest is subtracted."""

    def __init__(self, usual: Array) -> None:
        self.usual = usual
        self.count = np.zeros(usual.size, np.int64)  # of values
        self.differing = np.zeros(usual.size, np.int64)  # of values that are not the commonest
        self.mass = np.zeros(usual.size)  # sum of weights
        self.total = np.zeros(usual.size)
        self.squares = np.zeros(usual.size)
        self.low = np.full(usual.size, np.inf)
        self.high = np.full(usual.size, -np.inf)

    def take_in(self, block: Block, weights: Array | None) -> None:
        """Add the values of a block of rows (m, d)."""
        if not sparse.issparse(block):
            self._add(slice(None), block, weights)
        elif np.isnan(block.data).any():
            for start in range(0, block.shape[0], step := max(1, AT_ONCE // block.shape[1])):
                self._add(slice(None), dense(block[start : start + step]), None)
        else:
            full = np.flatnonzero(self.usual)
            for start in range(0, block.shape[0], step := max(1, AT_ONCE // max(1, full.size))) if full.size else ():
                self._add(full, dense(block[start : start + step][:, full]), None)
            self._add_sparse(block)

    def _add(self, columns: Columns, block: NDArray[np.generic], weights: Array | None) -> None:
        deviations = np.subtract(block, self.usual[columns], dtype=np.float64)
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
        """The columns whose commonest value is 0, which the block does not hold."""
        zero, d = self.usual == 0, self.usual.size
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
        self.low[zero] = np.minimum(self.low, low)[zero]
        self.high[zero] = np.maximum(self.high, high)[zero]


def _commonest(rows: Rows, few: int) -> Array:
    """By column (d,) the value that all rows but at most ``few`` // 2 have, if there is such a value; else any.

    That value has the majority among the first ``few`` values of its column, which votes find that are counted up and
    down (Boyer and Moore 1981). A column with fewer values is sorted.
    """
    width = rows.shape[1]
    usual, votes, seen = np.zeros(width), np.zeros(width, np.int64), np.zeros(width, np.int64)
    for chunk in chunks(rows):
        for row in chunk:
            there = row == row  # not missing
            free = there & (votes == 0)
            usual[free] = row[free]
            votes += there * np.where(row == usual, 1, -1)
            seen += there
            if seen.min() >= few:
                return usual
    columns = np.flatnonzero(seen < few)
    for some in np.array_split(columns, -(-columns.size * len(rows) // AT_ONCE)):
        usual[some] = _modes(whole(of_columns(rows, some)).astype(np.float64))
    return usual


def _modes(values: Array) -> Array:
    """The commonest value of each column of ``values`` (n, d) that is not missing; 0 where all are missing."""
    ordered = np.sort(values, axis=0)
    length, longest = np.zeros(values.shape[1], np.int64), np.zeros(values.shape[1], np.int64)
    modes, before = np.zeros(values.shape[1]), np.full(values.shape[1], np.nan)
    for row in ordered:
        length = np.where(row == before, length + 1, 1)
        new = (length > longest) & (row == row)
        modes[new], longest[new], before = row[new], length[new], row
    return modes
