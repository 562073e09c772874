"""Linkage: correlations of variants with their neighbours, and the variants that pruning leaves.

The correlation of variants i and j is that of the people who are called at both (pairwise complete). It follows from
six integers, which add up over parties: the number of these people, the sums of :math:`g_i, g_j, g_i^2, g_j^2`, and the
sum of :math:`g_i g_j`. If no call is missing the last sum is enough, since the others follow from the allele counts of
each variant. `prune_variants` is the rule of PLINK's ``--indep-pairwise``, in the order of PLINK 1.9 and 2.00a3 (newer
versions of PLINK 2 have that order as ``--indep-order 1``).
"""

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.genotypes import AlleleCounts
from fedpca_flwr.maths.rows import Rows, chunks

PLINK_MARGIN = 1 + 2.0**-44  # PLINK's margin for frequencies that are the same, and for a correlation at the limit
BLOCK_VARIANTS = 256  # variants whose products with their neighbours are formed at a time
BLOCK_ELEMENTS = 2**24  # calls of a block of people

PAIR_SUMS = 6
"""Numbers of a pair where calls are missing: the product, people called at both, and of these the two sums and the two
sums of squares."""


def band_sums(rows: Rows, start: int, width: int, window: int, numbers: int) -> Array:
    """Compute sums for the correlation of each variant with each of the next ``window - 1`` variants.

    Parameters
    ----------
    rows : rows of shape (n, d)
        Genotypes with NaN for missing calls.
    start, width : int
        Index of the first variant, and number of variants from there.
    window : int
        Number of variants in a window, the first variant of a pair included.
    numbers : int
        Number of sums of a pair: 1 (of the products) or `PAIR_SUMS` if calls are missing.

    Returns
    -------
    ndarray of shape (numbers, width, window - 1)
        Sums of the pair of variants ``start + i`` and ``start + i + 1 + j`` at ``[:, i, j]``; zeros for pairs beyond
        the last variant.
    """
    sums = np.zeros((numbers, width, window - 1))
    for chunk in chunks(rows, BLOCK_ELEMENTS):
        calls = np.full((len(chunk), width + window - 1), np.nan)
        columns = chunk[:, start : start + width + window - 1]
        calls[:, : columns.shape[1]] = columns
        for offset in range(0, width, BLOCK_VARIANTS):
            neighbours = calls[:, offset : offset + BLOCK_VARIANTS + window - 1]
            sums[:, offset : offset + BLOCK_VARIANTS] += _pair_sums(
                neighbours, window, min(BLOCK_VARIANTS, width - offset), numbers
            )
    return sums


def _pair_sums(calls: Array, window: int, width: int, numbers: int) -> Array:
    """Return sums (numbers, width, window - 1) of the first columns' pairs with the next ``window - 1`` columns."""
    called = (~np.isnan(calls)).astype(np.float64)
    genotypes = np.nan_to_num(calls)
    # sums of g_i g_j, of people called at both, and for these of g_i, g_j, g_i^2, g_j^2, where missing calls have g = 0
    pairs = [
        (genotypes, genotypes),
        (called, called),
        (genotypes, called),
        (called, genotypes),
        (genotypes**2, called),
        (called, genotypes**2),
    ]
    first = np.arange(width)[:, None]
    second = first + 1 + np.arange(window - 1)
    return np.stack([(a[:, :width].T @ b)[first, second] for a, b in pairs[:numbers]])


def correlated_pairs(sums: Array, start: int, counts: AlleleCounts, limit: float) -> NDArray[np.bool_]:
    """Find the pairs of neighbouring variants with a squared correlation above a limit.

    Parameters
    ----------
    sums : ndarray of shape (numbers, width, window - 1)
        Result of `band_sums` over all rows.
    start : int
        Index of the band's first variant.
    counts : AlleleCounts
        Allele counts over all rows.
    limit : float
        Limit on the squared correlation.

    Returns
    -------
    ndarray of shape (width, window - 1)
        Whether variants ``start + i`` and ``start + i + 1 + j`` are correlated above the limit, at ``[i, j]``.

    Raises
    ------
    ValueError
        If a squared correlation is above 1: no genotypes have such sums.
    """
    # n^2 times covariance and variances, in integers: the squared correlation is squared / variances
    if len(sums) == PAIR_SUMS:
        product, n, first_sum, second_sum, first_squares, second_squares = sums
    else:
        product, n = sums[0], np.asarray(float(counts.rows))
        first_sum, second_sum = _pair_values(counts.alleles, start, product.shape)
        first_squares, second_squares = _pair_values(counts.squares, start, product.shape)
    squared = (n * product - first_sum * second_sum) ** 2
    variances = (n * first_squares - first_sum**2) * (n * second_squares - second_sum**2)
    if (squared > variances * PLINK_MARGIN).any():
        raise ValueError
    return np.asarray(squared > limit * PLINK_MARGIN * variances)


def _pair_values(values: Array, start: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return a single value of the first and of the second variant of each pair in a band of neighbouring variants.

    The pair at (i, j) has variants ``start + i`` and ``start + i + 1 + j``; ``values`` (d,) is 0 beyond the last.
    """
    positions = start + np.arange(shape[0])[:, None]
    padded = np.pad(values, (0, sum(shape)))
    return padded[positions], padded[positions + 1 + np.arange(shape[1])]


def prune_variants(
    linked: NDArray[np.bool_], counts: AlleleCounts, chromosomes: NDArray[np.bool_], window: int, step: int
) -> NDArray[np.bool_]:
    """Find the variants that remain after pruning of correlated pairs by the rule of PLINK.

    A window of variants moves along each chromosome by a ``step``. Of a correlated pair in the window the variant with
    the rarer minor allele is removed, or the second one if the frequencies are equal. In a pass over the
    window at most one pair of each variant is resolved; passes are repeated until no pair is left.

    Parameters
    ----------
    linked : ndarray of shape (d, window - 1)
        Whether variant i is correlated with variant ``i + 1 + j``, at ``[i, j]``.
    counts : AlleleCounts
        Allele counts over all rows; variants that do not vary among the calls are pruned.
    chromosomes : ndarray of shape (d,)
        Whether the variant is the first of a chromosome.
    window, step : int
        Number of variants in a window, and number by which the window moves.

    Returns
    -------
    ndarray of shape (d,)
        Whether each variant remains.
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
    """Remove a variant of a correlated pair for each variant of a window in turn; return whether any was removed.

    Bit j of ``partners[i]``: i and i + 1 + j are correlated; ``next_partners[i]``: first partner of i not yet checked.
    """
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
