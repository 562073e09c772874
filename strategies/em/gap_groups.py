"""Rows with missing values by their pattern of gaps: count, mean and scatter of each group of rows with the same gaps.

A model's expectation of a row is linear in the row, with the same function for all rows that miss the same features. So
the sums over a group of rows follow from the group's count, mean and scatter, and no number of a server has to meet a
single row. If it did, rounding and overflow of each row would be answers about that row, however many rows are added.

Rows are taken less a reference, the mean of their observed values, so that means and scatters lose no digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import MAX_ELEMENTS, Patterns
from fedpca_flwr.maths.rows import Rows, chunks


@dataclass(frozen=True)
class Groups:
    """Moments of g groups of rows that have the same missing features.

    `residuals` yields the rows of a group, by its number, less the group's mean, piece by piece, with 0 for missing
    values.
    """

    missing: NDArray[np.bool_]  # (g, d)
    counts: Array  # (g,), as float64
    means: Array  # (g, d), less the reference; 0 for features that a group misses
    residuals: Callable[[int], Iterator[Array]]

    @property
    def has_scatter(self) -> NDArray[np.bool_]:
        """Mask of the groups (g,) of more than a single row; a single row has no scatter."""
        return self.counts > 1

    def select(self, columns: slice | NDArray[np.int64]) -> Groups:
        """Return the moments of the same groups of rows for some of the features."""
        means, missing = self.means[:, columns], self.missing[:, columns]
        return Groups(missing, self.counts, means, lambda group: (rows[:, columns] for rows in self.residuals(group)))

    def scatter(self, group: int) -> Array:
        """Compute the scatter (d, d) of the rows of a group, by its number, about their mean."""
        return sum((piece.T @ piece for piece in self.residuals(group)), start=np.zeros(()))

    def scatter_products(self, block: Array) -> Iterator[tuple[NDArray[np.int64], Array]]:
        """Yield products (m, b, d), transposed, of scatters and a block (d, b), for some groups at a time.

        Each result has the numbers (m,) of the groups, which have a scatter, and their products. No scatter is formed.
        """
        _, exponents = np.frexp(np.abs(block).max(axis=0))  # rows meet columns of length 1: no number here is too large
        scaled, numbers = np.ldexp(block, -exponents), np.flatnonzero(self.has_scatter)
        for indices in np.array_split(numbers, -(-numbers.size * block.size // MAX_ELEMENTS)) if numbers.size else ():
            products = np.zeros((indices.size, *scaled.T.shape))
            for i, group in enumerate(indices):
                for piece in self.residuals(int(group)):
                    products[i] += (piece @ scaled).T @ piece
            yield indices, np.ldexp(products, exponents[:, None])

    def squares(self) -> Array:
        """Compute the diagonal (d,) of the sum of the scatters of all groups."""
        diagonal = np.zeros(self.means.shape[1])
        for group in np.flatnonzero(self.has_scatter):
            for piece in self.residuals(int(group)):
                diagonal += np.einsum("ij,ij->j", piece, piece)
        return diagonal


class ObservedMoments(NamedTuple):
    """Counts, means and squares of the observed values of each feature, each (d,)."""

    counts: Array
    mean: Array
    remainder: Array  # the mean is ``mean + remainder``
    squares: Array  # sum of squares about the mean


class GappedRows:
    """Rows (n, d) with NaN for missing values, read in groups of rows that have the same missing features."""

    def __init__(self, rows: Rows, patterns: Patterns) -> None:
        self.rows, self.patterns = rows, patterns

    @cached_property
    def totals(self) -> Array:
        """Sum of the observed values of each feature (d,)."""
        total = np.zeros(self.rows.shape[1])
        for chunk in chunks(self.rows, MAX_ELEMENTS):
            total += np.nansum(chunk, axis=0, dtype=np.float64)
        return total

    @property
    def counts(self) -> Array:
        """Number of observed values of each feature (d,)."""
        return np.asarray(self.patterns.counts.astype(np.float64) @ ~self.patterns.missing, dtype=np.float64)

    @cached_property
    def reference(self) -> Array:
        """Mean of the observed values (d,), rounded; 0 if there are none."""
        return self.totals / np.maximum(self.counts, 1)

    @cached_property
    def observed_moments(self) -> ObservedMoments:
        """Moments of each feature about its own mean: a constant feature has no squares, however large its value."""
        counts, shifts, squares = [], [], np.zeros(self.reference.size)
        for chunk in chunks(self.rows):
            missing = np.isnan(chunk)
            deviations = self._subtract_reference(chunk)
            counts.append(len(chunk) - missing.sum(axis=0))
            shifts.append(deviations.sum(axis=0) / np.maximum(counts[-1], 1))
            deviations -= shifts[-1]
            deviations[missing] = 0.0
            squares += np.einsum("ij,ij->j", deviations, deviations)
        number, shift = np.array(counts, dtype=np.float64), np.array(shifts)
        remainder = (number * shift).sum(axis=0) / np.maximum(self.counts, 1)
        squares += (number * (shift - remainder) ** 2).sum(axis=0)
        return ObservedMoments(self.counts, self.reference, remainder, squares)

    def groups(self) -> Iterator[Groups]:
        """Yield all groups of rows that have values: small groups together, a large group alone."""
        counts, max_rows = self.patterns.counts, max(64, MAX_ELEMENTS // self.reference.size)
        used = (counts > 0) & ~self.patterns.without_values
        small = np.flatnonzero(used & (counts <= max_rows))
        batches = np.cumsum(counts[small]) // max_rows
        for indices in np.split(small, np.flatnonzero(np.diff(batches)) + 1):
            if indices.size:
                yield self._load_groups(indices)
        for large in np.flatnonzero(used & (counts > max_rows)):
            yield self._stream_group(int(large))

    def _load_groups(self, indices: NDArray[np.int64]) -> Groups:
        """Return the moments of small groups, whose rows are loaded together."""
        selected = np.zeros(len(self.patterns.missing), dtype=bool)
        selected[indices] = True
        parts = list(self._rows_of_patterns(selected))
        rows, of = parts[0] if len(parts) == 1 else (np.concatenate(several) for several in zip(*parts, strict=True))
        if len(parts) > 1:
            rows = rows[np.argsort(of, kind="stable")]
        counts = self.patterns.counts[indices]
        ends = np.cumsum(counts)
        means = rows  # of groups of one row each, which have no scatter
        if counts.max() > 1:
            means = np.asarray(np.add.reduceat(rows, ends - counts, axis=0) / counts[:, None], dtype=np.float64)
            rows -= np.repeat(means, counts, axis=0)

        def residuals(group: int) -> Iterator[Array]:
            yield rows[ends[group] - counts[group] : ends[group]]

        return Groups(self.patterns.missing[indices], counts.astype(np.float64), means, residuals)

    def _stream_group(self, large: int) -> Groups:
        """Return a large group whose rows are read piece by piece."""
        selected = np.arange(len(self.patterns.missing)) == large
        count = self.patterns.counts[large]
        pieces = self._rows_of_patterns(selected)
        mean: Array = sum((deviations.sum(axis=0) for deviations, _ in pieces), start=np.zeros(())) / count

        def residuals(group: int) -> Iterator[Array]:
            return (deviations - mean for deviations, _ in self._rows_of_patterns(selected))

        return Groups(self.patterns.missing[[large]], np.array([float(count)]), mean[None], residuals)

    def _rows_of_patterns(self, selected: NDArray[np.bool_]) -> Iterator[tuple[Array, NDArray[np.int64]]]:
        """Yield rows of selected patterns (p,) less the reference, 0 for gaps, in pieces, and each row's pattern."""
        start = 0
        for chunk in chunks(self.rows, MAX_ELEMENTS):
            of = self.patterns.of[start : start + len(chunk)]
            start += len(chunk)
            indices = np.flatnonzero(selected[of])
            indices = indices[np.argsort(of[indices], kind="stable")]
            if indices.size:
                yield self._subtract_reference(chunk[indices]), of[indices]

    def _subtract_reference(self, rows: Array) -> Array:
        """Return rows less the reference, 0 for missing values."""
        deviations = np.subtract(rows, self.reference, dtype=np.float64)
        deviations[np.isnan(deviations)] = 0.0
        return deviations
