"""Linkage: correlations of variants with their neighbours, and the variants that pruning leaves.

The correlation of variants i and j is that of the people who are called at both (pairwise complete). It follows from
six integers, which add up over parties: the number of these people, the sums of :math:`g_i, g_j, g_i^2, g_j^2`, and the
sum of :math:`g_i g_j`. If no call is missing the last sum is enough, since the others follow from the allele counts of
each variant. Where calls are missing, the others are the allele counts less sums over the people who miss a call, which
are small numbers (`GapSums`). `prune_variants` is the rule of PLINK's ``--indep-pairwise``, in the order of PLINK 1.9
and 2.00a3 (newer versions of PLINK 2 have that order as ``--indep-order 1``).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.genetics.genotypes import AlleleCounts
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, chunks, select_columns

PLINK_MARGIN = 1 + 2.0**-44  # PLINK's margin for frequencies that are the same, and for a correlation at the limit
BLOCK_VARIANTS = 256  # variants whose products with their neighbours are formed at a time
BLOCK_ELEMENTS = 2**24  # calls of a block of people
GAP_SUMS = 5  # number of sums of `gap_sums` for each variant and neighbour


def product_sums(rows: Rows, start: int, width: int, window: int) -> Array:
    """Compute the sums of products of ``width`` variants from ``start`` with each of the ``window - 1`` that follow.

    Sums beyond the last variant are 0. Missing calls are NaN and add nothing. Shapes: rows (n, d) -> (width, window -
    1).
    """
    sums = np.zeros((width, window - 1))
    for calls in _band(rows, start, width + window - 1):
        genotypes = np.nan_to_num(calls)
        for offset in range(0, width, BLOCK_VARIANTS):
            first = genotypes[:, offset : min(offset + BLOCK_VARIANTS, width)]
            following = genotypes[:, offset : offset + BLOCK_VARIANTS + window - 1]
            products = np.zeros((first.shape[1], first.shape[1] + window - 1))
            products[:, : following.shape[1]] = first.T @ following[:, : products.shape[1]]
            places = np.arange(first.shape[1])[:, None]
            sums[offset : offset + first.shape[1]] += products[places, places + 1 + np.arange(window - 1)]
    return sums


def gap_sums(rows: Rows, start: int, width: int, window: int, gapped: NDArray[np.int64]) -> Array:
    """Compute sums over the people who miss the call of a variant, for each of its neighbours in a band.

    The band has ``width`` variants from ``start`` and the ``window - 1`` after them. At ``[:, i, j]`` are, for the
    people who miss ``gapped[i]``, the sums of the genotypes and of their squares of the variant ``1 + j`` places after
    it, the same of the one before it, and the number who miss the one after it too; 0 for neighbours outside the band.
    Shapes: rows (n, d), gapped (m,) -> (GAP_SUMS, m, window - 1).
    """
    span, reach = width + window - 1, window - 1
    sums = np.zeros((GAP_SUMS, gapped.size, reach))
    distances = 1 + np.arange(reach)
    for calls in _band(rows, start, span):
        # with columns of nothing on both sides, where a variant has no neighbours
        padded = np.full((len(calls), span + 2 * reach), 0.0)
        padded[:, reach : reach + calls.shape[1]] = calls
        genotypes, missed = np.nan_to_num(padded), np.isnan(padded).astype(np.float64)
        for block in _runs(gapped - start):
            low, high = int(gapped[block].min()) - start, int(gapped[block].max()) - start + 2 * reach + 1
            places = gapped[block] - start + reach - low
            own = missed[:, places + low]
            near = genotypes[:, low:high]
            of_genotypes, of_squares, of_missing = (own.T @ values for values in (near, near**2, missed[:, low:high]))
            each = np.arange(places.size)[:, None]
            following, preceding = places[:, None] + distances, places[:, None] - distances
            sums[:, block] += [
                of_genotypes[each, following],
                of_squares[each, following],
                of_genotypes[each, preceding],
                of_squares[each, preceding],
                of_missing[each, following],
            ]
    return sums


def _band(rows: Rows, start: int, span: int) -> Iterator[Array]:
    """Yield the calls (m, at most span) of blocks of people at consecutive variants; no other variants are decoded."""
    stop = min(start + span, rows.shape[1])
    for chunk in chunks(select_columns(rows, np.arange(start, stop)), BLOCK_ELEMENTS):
        yield np.asarray(chunk, dtype=np.float64)


def _runs(places: NDArray[np.int64]) -> Iterator[slice]:
    """Yield slices of at most `BLOCK_VARIANTS` consecutive entries, which lie less than `BLOCK_VARIANTS` apart."""
    begin = 0
    for end in range(1, places.size + 1):
        if end == places.size or not 0 <= places[end] - places[begin] < BLOCK_VARIANTS or end - begin == BLOCK_VARIANTS:
            yield slice(begin, end)
            begin = end


def correlated_pairs(
    products: Array, gaps: Array, gapped: NDArray[np.int64], start: int, counts: AlleleCounts, limit: float
) -> NDArray[np.bool_]:
    """Find the pairs ``start + i`` and ``start + i + 1 + j`` with a squared correlation above a limit, at ``[i, j]``.

    ``products`` and ``gaps`` are `product_sums` and `gap_sums` over all rows. Raise ValueError for a correlation above
    1. Shapes: products (width, window - 1), gaps (GAP_SUMS, m, window - 1), gapped (m,) -> (width, window - 1).
    """
    shape = products.shape
    dense = np.zeros((GAP_SUMS, sum(shape), shape[1]))
    dense[:, gapped - start] = gaps
    second, distance = np.arange(shape[0])[:, None] + 1 + np.arange(shape[1]), np.arange(shape[1])
    next_sums, next_squares, _, _, both_missing = dense[:, : shape[0]]
    previous_sums, previous_squares = dense[2, second, distance], dense[3, second, distance]
    first_called, second_called = _pair_values(counts.called, start, shape)
    first_sum, second_sum = _pair_values(counts.alleles, start, shape)
    first_squares, second_squares = _pair_values(counts.squares, start, shape)
    # of the people who are called at both: their number, sums and sums of squares
    n = first_called + second_called - counts.rows + both_missing
    first_sum, second_sum = first_sum - previous_sums, second_sum - next_sums
    first_squares, second_squares = first_squares - previous_squares, second_squares - next_squares
    # n^2 times covariance and variances, in integers: the squared correlation is squared / variances
    squared = (n * products - first_sum * second_sum) ** 2
    variances = (n * first_squares - first_sum**2) * (n * second_squares - second_sum**2)
    if (squared > variances * PLINK_MARGIN).any():
        raise ValueError
    return np.asarray(squared > limit * PLINK_MARGIN * variances)


def unrelated_products(counts: AlleleCounts, start: int, shape: tuple[int, int]) -> Array:
    """Return the sums of products of neighbouring variants as they would be without correlation, as whole numbers.

    By Cauchy and Schwarz the true sums differ by at most the largest `AlleleCounts.scatter`.
    """
    first, second = _pair_values(counts.alleles, start, shape)
    return np.rint(first * second / counts.rows)


def _pair_values(values: Array, start: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return values (d,), 0 beyond the last, of both variants of pairs, ``start + i`` and ``start + i + 1 + j``."""
    positions = start + np.arange(shape[0])[:, None]
    padded = np.pad(values, (0, sum(shape)))
    return padded[positions], padded[positions + 1 + np.arange(shape[1])]


def prune_variants(
    linked: NDArray[np.bool_], counts: AlleleCounts, chromosomes: NDArray[np.bool_], window: int, step: int
) -> NDArray[np.bool_]:
    """Find the variants that remain after pruning of correlated pairs by the rule of PLINK.

    A window of variants moves along each chromosome by a ``step``. Of a correlated pair in it the variant with the
    rarer minor allele is removed, or else the second one. In a pass over the window at most one pair of each variant is
    resolved; passes are repeated until no pair is left. Variants that do not vary are removed too. ``linked[i, j]``: i
    and ``i + 1 + j`` are correlated; ``chromosomes``: the first variant of each. Shapes: linked (d, window - 1) ->
    (d,).
    """
    # a variant varies if called * sum of squares > (sum)^2; bit j of partners[i] says that i and i + 1 + j are linked
    retained = counts.called * counts.squares > counts.alleles**2
    major = np.maximum(counts.frequencies, 1 - counts.frequencies).tolist()
    partners = [int.from_bytes(row.tobytes(), "little") for row in np.packbits(linked, axis=1, bitorder="little")]
    next_partners = list(range(1, len(retained) + 1))
    begins = np.flatnonzero(chromosomes).tolist()
    for begin, last in zip(begins, [*begins[1:], chromosomes.size], strict=True):
        # windows begin every `step` variants until one reaches the chromosome's end
        for start in range(begin, max(last - window + step, begin + 1), step):
            while _prune_window(retained, partners, next_partners, major, start, min(start + window, last)):
                pass
    return retained


def _prune_window(
    retained: NDArray[np.bool_], partners: list[int], next_partners: list[int], major: list[float], start: int, end: int
) -> bool:
    """Remove a variant of a correlated pair for each variant of a window in turn; return whether any was removed."""
    changed = False
    present = int.from_bytes(np.packbits(retained[start:end], bitorder="little").tobytes(), "little")
    for first in range(start, end):
        if not present >> (first - start) & 1:
            continue
        checked = next_partners[first] - first - 1
        # bits of the present, correlated partners after `first`, without those checked before
        pairs = (partners[first] & present >> (first - start + 1)) >> checked << checked
        if not pairs:
            next_partners[first] = max(next_partners[first], end)
            continue
        changed, second = True, first + (pairs & -pairs).bit_length()  # the lowest set bit
        removed = first if major[first] > major[second] * PLINK_MARGIN else second
        next_partners[first] = second + 1
        present &= ~(1 << (removed - start))
        retained[removed] = False
    return changed
