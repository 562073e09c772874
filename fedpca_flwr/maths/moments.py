r"""Count, mean and scatter of rows of a party, ready to be pooled (`fedpca_flwr.maths.sums`) and for an eigensolver.

For rows :math:`x_i` of ``X`` (n x d) the moments are :math:`n`, the mean :math:`m` and the centred scatter
:math:`S = \sum_i (x_i - m)(x_i - m)^T`. Those of several parties pool exactly (Chan, Golub and LeVeque 1983)::

    N = sum n_k,   m = sum n_k m_k / N,   S = sum S_k + sum n_k (m_k - m)(m_k - m)^T

Two things make that exact in floating point as well as on paper:

* rows are centred before they are multiplied, never the one-pass ``X'X - n m m'``;
* a mean is kept as an unevaluated sum of two float64 vectors, ``mean + remainder``. Rounding the mean to one
  float64 costs ``eps * |m|`` in every difference of means, which at a feature offset of 1e8 and unit variance
  already turns the components by 5e-5 degrees.

Sparse rows stay sparse: their moments are :math:`X^TX - n m m^T` where that loses no digits, which holds for features
with zeros; other features are centred densely (`fedpca_flwr.maths.rows.CentredBlock`).

Symmetric matrices travel as a packed triangle: the upper triangle row by row, ``d (d + 1) / 2`` values, the order
of ``numpy.triu_indices`` (LAPACK's ``TP`` format with ``uplo='L'``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas, lapack

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.maths.rows import (
    Block,
    Blocks,
    CentredBlock,
    Rows,
    centred_chunks,
    chunks,
    in_order,
    native_chunks,
    pair_with_weights,
    row_weights,
    sparse_chunks,
)

CHUNK_ELEMENTS = 2**22  # elements of ``X`` that are held as float64 at once: 32 MiB. Smaller chunks make syrk slower.
MAX_EXACT_FLOAT32 = 2.0**24  # every integer below this is a float32, so sums of integers that stay below it are exact
STRIP_ENTRIES = 2**19  # number of entries of the scatter of sparse rows that are computed at once
STRIPE_COLUMNS = 800  # columns of a stripe of the scatter of dense rows
Stripe = tuple[Array, Array]  # of an upper triangle: the block (w, w) on the diagonal, and what is to its right (w, m)


def safe_deviation(diagonal: Array, n: float, mean: Array, indicators: int | Sequence[int] = 0) -> Array:
    """Compute each feature's standard deviation (divisor n, as scikit-learn's `StandardScaler`); 1 if constant.

    A constant feature has no more variance than the rounding of its own mean explains. The result is safe as a divisor,
    and another feature's deviation of 1 is the next number. ``indicators`` (the last features, so many, or positions)
    are of 0 and 1: they have the root of the share of ones (Pages 2004). ``diagonal`` (d,) is that of the scatter about
    the mean.
    """
    deviation, constant = np.sqrt(diagonal / n), constant_features(diagonal, n, mean)
    deviation = np.where(deviation == 1.0, np.nextafter(1.0, 2.0), deviation)
    places = list(range(mean.size - indicators, mean.size) if isinstance(indicators, int) else indicators)
    deviation[places] = np.sqrt(np.maximum(mean[places], 0.0))
    return np.where(constant, 1.0, deviation)


def constant_features(diagonal: Array, n: float | Array, mean: Array) -> NDArray[np.bool_]:
    """Find features whose variance is no more than the rounding of their own mean explains.

    ``diagonal`` (d,) is that of the scatter about the mean (d,) of n rows, a number that may differ by feature.
    """
    # the bound of scikit-learn's `_is_constant_feature`
    variance, eps = diagonal / n, np.finfo(np.float64).eps
    return variance <= n * eps * variance + (n * mean * eps) ** 2


def varying_features(diagonal: Array, mean: Array) -> NDArray[np.bool_]:
    """Find features whose squared deviations exceed all rounding, so that they are certainly not constant.

    ``diagonal`` (d,) sums the squared deviations from the mean (d,), where the mean is known in two floats.
    """
    # the least change of one value adds (eps mean)^2 / 8, a constant's mean in two floats (eps^2 mean)^2 for each row
    return np.asarray(diagonal > (np.finfo(np.float64).eps * mean) ** 2 / 16)


def scale_columns(V: Array) -> tuple[Array, NDArray[np.int32]]:
    """Divide columns V (d, b) by powers of two, so that the largest entry of each is between 1/2 and 1.

    Return the columns and exponents (b,), with ``V == scaled * 2**exponents``: no product overflows or vanishes.
    """
    exponents: NDArray[np.int32]
    _, exponents = np.frexp(np.abs(V).max(axis=0, initial=0.0))
    return np.ldexp(V, -exponents), exponents


def max_row_count(count: float) -> int:
    """Return ``count`` for a number of rows (int), or ``sys.maxsize`` for a sum of row weights (float)."""
    return count if isinstance(count, int) else sys.maxsize


@represent_by_shapes
class Head(NamedTuple):
    """Number and mean of rows; the mean (d,) is the unevaluated sum ``mean + remainder`` of two float64 vectors."""

    n: int | float  # number of rows; a float is the sum of their weights
    mean: Array
    remainder: Array


@represent_by_shapes
@dataclass(frozen=True)
class Moments:
    """Number, mean and scatter of rows; the mean is ``mean + remainder``, and the scatter is about that sum."""

    count: int | float  # number of rows; a float is the sum of their weights
    mean: Array  # (d,), rounded to float64
    remainder: Array  # (d,), what rounding the mean lost
    scatter: Array  # packed triangle (d (d + 1) / 2,), in squared units of the data

    @classmethod
    def from_rows(cls, data: Rows, threads: int = 1) -> Moments:
        """Compute the moments of rows (n, d) of finite real numbers, n >= 1, read in chunks.

        Memory is O(d^2 + chunk) for each thread, so the rows may be memory-mapped. Integers of one byte take an exact
        route at half the time (`_byte_stripes`), and sparse rows stay sparse, in one thread. The bits are the same for
        any number of threads.
        """
        d = data.shape[1]
        if isinstance(data, Blocks) and data.sparse:
            scatter = np.zeros((d, d), order="F")
            pooled, between = rows_between([_add_sparse(scatter, block) for block in sparse_chunks(data)])
        else:
            stripes_of = _byte_stripes if data.dtype == np.uint8 and row_weights(data) is None else _float_stripes
            heads, packed = [], np.zeros(packed_size(d))
            for head, stripes in in_order(stripes_of, pair_with_weights(data, chunks(data, CHUNK_ELEMENTS)), threads):
                heads.append(head)
                _add_stripes(packed, stripes)
                del stripes  # before the next ones are computed
            pooled, between = rows_between(heads)
            if len(heads) == 1:
                return cls(*pooled, scatter=packed)
            scatter = unpack(packed, d)
            del packed
        blas.dsyrk(1.0, np.ascontiguousarray(between).T, beta=1.0, c=scatter, overwrite_c=1, lower=1)
        return cls(*pooled, scatter=pack(scatter))

    @property
    def head(self) -> Head:
        """Number and mean of the rows, without their scatter."""
        return Head(self.count, self.mean, self.remainder)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.mean.size

    def about_zero(self) -> Moments:
        """Return the moments of the same rows about zero: mean zero, scatter :math:`X^T X`."""
        zero = np.zeros_like(self.mean)
        return Moments(self.count, zero, zero, self.scatter_about(zero))

    def scatter_about(self, centre: Array) -> Array:
        """Compute the packed scatter of the same n rows of mean m about a centre c (d,): S + n (m - c)(m - c)'."""
        deviation = (self.mean - centre) + self.remainder
        return np.asarray(blas.dspr(self.n_features, float(self.count), deviation, self.scatter, lower=1))

    def diagonal(self) -> Array:
        """Return the diagonal (d,) of the scatter: the sum of each feature's squared deviations."""
        return self.scatter[diagonal_positions(self.mean.size)]

    def times(self, V: Array) -> Array:
        """Multiply the scatter matrix (d, d) with a block of columns V (d, b)."""
        return np.asarray(blas.dsymm(1.0, unpack(self.scatter, self.mean.size), V, lower=1))


def pack(matrix: Array) -> Array:
    """Pack the lower half of a symmetric matrix (d, d) as its upper triangle, row by row: (d (d + 1) / 2,)."""
    packed: Array
    packed, info = lapack.dtrttp(np.asfortranarray(matrix), uplo="L")
    assert info == 0, info
    return packed


def empty_packed(d: int) -> Array:
    """Return a packed triangle (d (d + 1) / 2,) without values, in memory (d * d,) where it can be unpacked."""
    return np.empty(d * d)[: packed_size(d)]


def unpack(packed: Array, d: int, *, overwrite: bool = False) -> Array:
    """Unpack a packed triangle (d (d + 1) / 2,) to the lower half of a matrix (d, d), whose upper half is 0.

    With ``overwrite``, a triangle of `empty_packed` is unpacked in its own memory, and so is lost.
    """
    matrix: Array
    if overwrite and packed.base is not None and packed.base.shape == (d * d,):
        matrix = packed.base.reshape(d, d, order="F")
        for column, start in zip(range(d - 1, -1, -1), diagonal_positions(d)[::-1].tolist(), strict=True):
            # the last column first: none is written where one before it is still to be read
            matrix[column:, column] = packed[start : start + d - column]
            matrix[:column, column] = 0.0
        return matrix
    matrix, info = lapack.dtpttr(d, packed, uplo="L")
    assert info == 0, info
    return matrix


def unpack_symmetric(packed: Array, d: int) -> Array:
    """Unpack a packed triangle (d (d + 1) / 2,) to both halves of a symmetric matrix (d, d)."""
    lower = unpack(packed, d)
    diagonal = np.diagonal(lower).copy()
    np.fill_diagonal(lower, 0.0)
    matrix = np.asarray(lower + lower.T)
    np.fill_diagonal(matrix, diagonal)
    return matrix


def packed_size(d: int) -> int:
    """Count the entries of the packed triangle of a (d, d) matrix: d (d + 1) / 2."""
    return d * (d + 1) // 2


def diagonal_positions(d: int) -> NDArray[np.int64]:
    """Return the positions (d,) of the diagonal of a (d, d) matrix in its packed triangle."""
    # row i of the upper triangle follows rows of d, d - 1, ..., d - i + 1 entries
    i = np.arange(d)
    return i * d - i * (i - 1) // 2


def pool_heads(heads: Sequence[Head]) -> tuple[Head, list[Array]]:
    """Pool numbers and means of parts of rows; return the pooled head, and each part's mean (d,) less that of all."""
    first, total, deviations = heads[0], sum(map(attrgetter("n"), heads)), []
    centre = np.zeros_like(first.mean)  # of all rows, less the first part's mean
    for head in heads:
        offset = (head.mean - first.mean) + (head.remainder - first.remainder)
        centre += (head.n / total) * offset
        deviations.append(offset)
    for deviation in deviations:
        deviation -= centre
    return Head(total, *two_sum(first.mean, first.remainder + centre)), deviations


def centre_rows(chunk: NDArray[Any], weights: Array | None = None) -> tuple[Head, Array]:
    """Subtract the (weighted) mean from rows (n, d), and multiply each row by the root of its weight; return both.

    The rounding of the mean is subtracted too, so a constant feature has no scatter, and no variance is negative.
    """
    if weights is None:
        mean = chunk.mean(axis=0, dtype=np.float64)
        centred = np.subtract(chunk, mean, dtype=np.float64)
        remainder = centred.mean(axis=0)
        centred -= remainder
        return Head(len(chunk), mean, remainder), centred
    total = float(weights.sum())
    mean = weights @ chunk / total
    centred = np.subtract(chunk, mean, dtype=np.float64)
    remainder = weights @ centred / total
    centred -= remainder
    centred *= np.sqrt(weights)[:, None]
    return Head(total, mean, remainder), centred


def rows_between(heads: Sequence[Head]) -> tuple[Head, Array]:
    """Compute rows ``sqrt(n_k) (m_k - m)`` of K parts with n_k rows of mean m_k, about the pooled mean m.

    Their products sum to the scatter between the parts: the pooled scatter less the scatters within the parts.
    Shapes: K heads -> pooled head, rows (K, d).
    """
    pooled, deviations = pool_heads(heads)
    return pooled, np.array([np.sqrt(head.n) * deviation for head, deviation in zip(heads, deviations, strict=True)])


def head_order(head: Head) -> tuple[float, bytes, bytes]:
    """Return a sort key that depends only on the number and mean of rows, not on the order of arrival."""
    return head.n, head.mean.tobytes(), head.remainder.tobytes()


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Add two arrays exactly: ``s + e == a + b``, with ``s`` the rounded sum (Knuth, TAOCP 2, 4.2.2)."""
    s = a + b
    b_seen = s - a
    return s, (a - (s - b_seen)) + (b - b_seen)


def _stripes(rows: NDArray[Any]) -> list[Stripe]:
    """Return the upper triangle of ``rows.T @ rows`` in stripes: squares on the diagonal, and the entries to the right.

    NumPy's product lets other threads run meanwhile, unlike SciPy's syrk, and uses syrk for ``columns @ columns.T``.
    """
    stripes = []
    for start in range(0, rows.shape[1], STRIPE_COLUMNS):
        columns = rows[:, start : start + STRIPE_COLUMNS].T
        stripes.append((columns @ columns.T, columns @ rows[:, start + STRIPE_COLUMNS :]))
    return stripes


def _add_stripes(packed: Array, stripes: Sequence[Stripe]) -> None:
    """Add the stripes of an upper triangle to a packed triangle (d (d + 1) / 2,) in place."""
    start = 0
    for block, right in stripes:
        if not right.size:
            packed[start:] += pack(block.T)
            return
        for i, (above, beside) in enumerate(zip(block, right, strict=True)):
            middle = start + len(block) - i
            end = middle + beside.size
            packed[start:middle] += above[i:]
            packed[middle:end] += beside
            start = end


def _float_stripes(weighted_chunk: tuple[NDArray[Any], Array | None]) -> tuple[Head, list[Stripe]]:
    """Return the number and mean of rows, given with weights or None, and their scatter's upper triangle in stripes."""
    head, centred = centre_rows(*weighted_chunk)
    return head, _stripes(centred)


def _byte_stripes(weighted_chunk: tuple[NDArray[np.uint8], Array | None]) -> tuple[Head, list[Stripe]]:
    """Return the number and mean of rows of uint8 integers, and their scatter's upper triangle in stripes.

    The products are exact, though computed in float32: bytes minus an integer are small integers, and sums of their
    products over few enough rows are integers below 2^24. The largest diagonal entry bounds all others (Cauchy-Schwarz)
    and tells whether the rows were few enough. The blocks are added in float64, which holds integers up to 2^53.
    """
    chunk, _ = weighted_chunk
    mean = np.rint(chunk.mean(axis=0, dtype=np.float64))
    centred = chunk.astype(np.float32)
    centred -= mean.astype(np.float32)
    remainder = centred.mean(axis=0, dtype=np.float64)
    # scatter about the true mean = scatter about the rounded mean - n r r', with the remainder r
    total = [(-block, -right) for block, right in _stripes(np.sqrt(len(chunk)) * remainder[None])]
    start, rows = 0, 1024  # enough for the largest variance there is, unless rows are sorted
    while start < len(centred):
        stripes = _stripes(centred[start : start + rows])
        if rows > 1 and max(block.diagonal().max() for block, _ in stripes) >= MAX_EXACT_FLOAT32:
            rows //= 2  # sums of fewer products
            continue
        for (block, right), (new_block, new_right) in zip(total, stripes, strict=True):
            block += new_block
            right += new_right
        start += rows
    return Head(len(chunk), mean, remainder), total


def dense_scatter(moments: Moments) -> Array:
    """Return the scatter of moments as a full symmetric matrix (d, d)."""
    return unpack_symmetric(moments.scatter, moments.n_features)


def select_features(moments: Moments, columns: NDArray[np.intp]) -> Moments:
    """Return the moments of the features with the given column indices (m,), in this order."""
    part = dense_scatter(moments)[np.ix_(columns, columns)]
    return Moments(moments.count, moments.mean[columns], moments.remainder[columns], pack(part))


def rescale_features(moments: Moments, unit: Array) -> Moments:
    """Return the moments of the same rows after division of each feature by its entry of ``unit`` (d,)."""
    mean, remainder = two_sum(moments.mean / unit, moments.remainder / unit)
    return Moments(moments.count, mean, remainder, pack(dense_scatter(moments) / unit / unit[:, None]))


def subtract_part(total: Moments, part: Moments) -> Moments:
    r"""Return the moments of all rows except the rows of a part, which must be fewer than all.

    With n rows of mean m and scatter S in all, p rows of scatter S_p in the part, and :math:`\delta` the part's mean
    less m, the mean and the scatter of the others are::

        m - p / (n - p) delta,    S - S_p - n p / (n - p) delta delta^T

    The subtraction loses the leading digits that both scatters share.
    """
    remaining = total.count - part.count
    delta = (part.mean - total.mean) + (part.remainder - total.remainder)
    mean, remainder = two_sum(total.mean, total.remainder - part.count / remaining * delta)
    factor, scatter = -total.count * part.count / remaining, total.scatter - part.scatter
    scatter = blas.dspr(total.n_features, factor, delta, scatter, lower=1, overwrite_ap=1)
    return Moments(remaining, mean, remainder, scatter)


def head_and_diagonal(data: Rows, threads: int = 1) -> tuple[Head, Array]:
    """Compute the number and mean of rows (n, d), and the sums (d,) of squared deviations from the mean."""
    heads, squares = [], np.zeros(data.shape[1])
    parts = pair_with_weights(data, native_chunks(data))
    for head, part_squares in in_order(_head_and_squares, parts, threads):
        heads.append(head)
        squares += part_squares
    pooled, deviations = pool_heads(heads)
    for head, deviation in zip(heads, deviations, strict=True):
        squares += head.n * deviation**2
    return pooled, squares


def _head_and_squares(weighted_chunk: tuple[Block, Array | None]) -> tuple[Head, Array]:
    """Return number and mean of a chunk of rows, and each feature's sum of squared deviations from the mean."""
    chunk, weights = weighted_chunk
    if sparse.issparse(chunk):
        head, block = _centre_block(chunk)
        return head, block.squares()
    if not isinstance(chunk, np.ndarray):
        mean, remainder, squares = chunk.mean_and_squares()
        return Head(len(chunk), mean, remainder), squares
    head, centred = centre_rows(chunk, weights)
    return head, np.einsum("ij,ij->j", centred, centred)


def scatter_product(data: Rows, head: Head, V: Array, threads: int = 1) -> Array:
    """Compute the product S V of a block V (d, b) and the scatter S of rows (n, d) about their mean, without S."""
    # the chunks are about `head.mean`, which lacks the remainder r: subtract n r r' V
    product = -head.n * np.outer(head.remainder, head.remainder @ V)
    for part in in_order(lambda centred: centred.T @ (centred @ V), centred_chunks(data, head.mean), threads):
        product += part
    return product


def _centre_block(block: Block) -> tuple[Head, CentredBlock]:
    """Return number and mean of the rows of a sparse CSR block (m, d), and the block less this mean.

    The rounding of the mean is subtracted from the dense columns too, so that a constant one has no scatter.
    """
    m, d = block.shape
    values = block.data.astype(np.float64)
    mean: Array = np.bincount(block.indices, weights=values, minlength=d) / m
    values -= mean[block.indices]
    # mean of the deviations from the rounded mean; a zero entry deviates by -mean
    zeros = m - np.bincount(block.indices, minlength=d)
    remainder: Array = (np.bincount(block.indices, weights=values, minlength=d) - zeros * mean) / m
    centred = CentredBlock(block, mean)
    centred.dense -= remainder[centred.dense_columns]
    return Head(m, mean, remainder), centred


def _add_sparse(scatter: Array, block: Block) -> Head:
    """Add a CSR block's scatter about its mean to the lower triangle of ``scatter`` (d, d); return count and mean."""
    m, d = block.shape
    head, centred = _centre_block(block)
    # sparse columns R with the mean c have R'R - m c c'; the densely centred columns are added after it
    rest = centred.rest.tocsc()
    width = max(16, STRIP_ENTRIES // d)
    for start in range(0, d, width):
        strip = rest[:, start : start + width].tocsr()
        scatter[start:, start : start + width] += (rest[:, start:].T @ strip).toarray()
    blas.dsyr(-float(m), centred.centre, lower=1, a=scatter, overwrite_a=1)
    with_rest: Array = centred.rest.T @ centred.dense
    among = centred.dense.T @ centred.dense
    for i, j in enumerate(centred.dense_columns):
        scatter[j, :j] += with_rest[:j, i]
        with_rest[centred.dense_columns, i] = among[:, i]
        scatter[j:, j] += with_rest[j:, i]
    return head
