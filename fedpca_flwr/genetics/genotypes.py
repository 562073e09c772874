r"""Genotypes: numbers of copies of an allele that a person has at a variant, standardised as geneticists do.

With p the share of the allele among all calls, two for each person who was called,
:math:`z = (g - 2p) / \sqrt{2p(1 - p)}` (Patterson, Price and Reich 2006), and 0, the mean, if a call is missing. The z
of a variant then sum to zero over all rows, so that no further mean is subtracted, and the sum of their squares follows
from three integers of each variant (`AlleleCounts`).
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.genetics.calls import StandardisedCalls, people_blocks, read_variants, variant_ranges
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Blocks, Rows, chunks

MIN_FREQUENCY = 2.0**-42  # lower bound on the shares of both alleles, where both occur


class AlleleCounts(NamedTuple):
    """Counts of calls and alleles in rows of genotypes, for each variant, which add up over parties."""

    rows: int  # their number
    called: Array  # (d,), rows with a genotype (0, 1 or 2), not a missing call
    alleles: Array  # (d,), copies of the counted allele in these rows
    squares: Array  # (d,), sum of the squared genotypes

    @property
    def frequencies(self) -> Array:
        """Share p of the counted allele among the calls of each variant; 0 without any call. Shape (d,)."""
        return self.alleles / np.where(self.called > 0, 2 * self.called, 1)

    @property
    def diagonal(self) -> Array:
        """Sum of the squared standardised genotypes of each variant, from the integer counts. Shape (d,)."""
        calls = np.where(self.called > 0, self.called, 1)
        return (self.squares - self.alleles**2 / calls).clip(min=0.0) / genotype_deviation(self.frequencies) ** 2

    @property
    def scatter(self) -> Array:
        """Sum of the squared deviations of each variant's genotypes (d,), where a missing call counts as 0 copies."""
        return self.squares - self.alleles**2 / self.rows

    @property
    def constant_count(self) -> int:
        """Number of variants that do not vary: with a single allele among all calls, or no call."""
        return int(((self.alleles == 0) | (self.alleles == 2 * self.called)).sum())

    @property
    def missing_share(self) -> float:
        """Share of missing calls among all pairs of a row and a variant."""
        return 1 - float(self.called.sum()) / (self.rows * self.called.size)


def genotype_deviation(frequencies: Array) -> Array:
    r"""Compute the divisor :math:`\sqrt{2p(1 - p)}` of genotypes with allele frequencies p (d,), 1 for p = 0 or 1."""
    variance = 2 * frequencies * (1 - frequencies)
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def count_alleles(rows: Rows) -> AlleleCounts:
    """Count the calls, the allele copies and the squared genotypes of each variant in rows (n, d), NaN if missing."""
    n, d = rows.shape
    called, alleles, squares = np.zeros((3, d))
    for block in people_blocks(rows):
        for variants in variant_ranges(block.shape):
            calls = read_variants(block, variants)
            missing = np.isnan(calls)
            np.copyto(calls, 0.0, where=missing)
            called[variants] += len(block) - missing.sum(axis=1)
            alleles[variants] += calls.sum(axis=1)
            squares[variants] += np.einsum("ij,ij->i", calls, calls)
    return AlleleCounts(n, called, alleles, squares)


def non_genotype_columns(rows: Rows) -> NDArray[np.int64]:
    """Find the columns of rows (n, d) with values other than 0, 1, 2 and NaN: their indices (m,), ascending."""
    unusual = np.zeros(rows.shape[1], dtype=bool)
    if isinstance(rows, Blocks) and rows.lazy:
        return np.flatnonzero(unusual)  # two bits say nothing else
    for chunk in chunks(rows):
        unusual |= ~((chunk == 0) | (chunk == 1) | (chunk == 2) | np.isnan(chunk)).all(axis=0)
    return np.flatnonzero(unusual)


def standardise(rows: Rows, frequencies: Array, excluded: Array | None = None) -> Blocks:
    """Standardise genotypes (n, d) lazily by frequencies p (d,); missing calls and `excluded` variants become 0."""
    mean, unit = 2 * frequencies, genotype_deviation(frequencies)
    if excluded is not None and excluded.size:
        unit = np.where(excluded != 0, np.inf, unit)  # division by infinity makes them zero
    blocks = partial(standardised_blocks, rows, mean, unit)
    return Blocks(blocks, mean.size, np.dtype(np.float64), count=len(rows), lazy=True)


def standardised_blocks(rows: Rows, mean: Array, unit: Array) -> Iterator[StandardisedCalls]:
    """Yield rows (n, d) less a mean (d,), divided by a unit (d,), in blocks of people; 0 for a missing call."""
    for block in people_blocks(rows):
        yield StandardisedCalls(block, mean, unit, np.zeros_like(mean))
