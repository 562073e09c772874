"""Rows that all parties share and whose columns lie at different parties: products, kernels, and VFedPCA's steps.

*Products.* With X = [X_1, ..., X_p] (n, d) cut by columns, ``X X' = sum X_i X_i'`` and ``X V = sum X_i V_i``. Parties
add arrays of n rows, whoever holds which column, so results do not depend on how the columns are split. Means and
deviations of columns need no other party (`Columns`).

*Kernels.* The kernel matrix of a party's own columns follows from squared distances or inner products of its rows, and
is centred in feature space (`Kernel`).

*VFedPCA* (Cheung et al. 2022): local power iteration, weighted merging, and the update of local data.
``faithful`` is the rule of the authors' program: rows centred over a party's own columns, signs as they come, and all
vectors since the isolated start merged. Otherwise the caller centres columns or not, signs are aligned or not, and only
the newest vectors are merged. The result is an approximation: parties whose leading directions differ are averaged.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh, norm, svd

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs, project_out
from fedpca_flwr.maths.moments import head_and_diagonal, pack, safe_deviation, unpack_symmetric, varying_features
from fedpca_flwr.maths.rows import Rows, Transposed, centred_chunks, chunk_energy, dense_rows
from fedpca_flwr.maths.sums import slices

# where other directions leave a smaller share of a direction than this, what they leave is rounding
MIN_DIRECTION_SHARE = 1e-10
MAX_GRAM_COLUMNS = 8  # columns, for each step of the power method, up to which products with X' X cost less
KERNEL_ROWS = 128  # rows of a kernel matrix that are computed at once

KernelName = Literal["rbf", "sigmoid", "linear", "polynomial"]


@dataclass(frozen=True)
class Columns:
    """A party's columns X (n, f), centred and scaled by a pass over the rows in each product; sparse ones stay so."""

    data: Rows  # (n, f), before centring
    centre: Array  # (f,), means of the columns, rounded to float64
    remainder: Array  # (f,), the part of the means that rounding lost
    scale: Array  # (f,), divisors
    zero: NDArray[np.bool_]  # (f,), columns that are taken for zero

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.data.shape[0], self.data.shape[1]

    @cached_property
    def energy(self) -> float:
        """Sum of squares of all entries of X: the trace of ``X X'``."""
        rounded = len(self.data) * float(np.vdot(self._remaining_mean, self._remaining_mean))
        return max(0.0, math.fsum(map(chunk_energy, self._chunks())) - rounded)

    @cached_property
    def X(self) -> Array:  # noqa: N802  # the notes' name
        """All columns in an array (n, f), for computations that compare each row with each other row."""
        parts = (part for chunk in self._chunks() for part in dense_rows(chunk))
        columns: Array = np.concatenate([np.empty((0, self.shape[1])), *parts])
        columns -= self._remaining_mean
        return columns

    def __matmul__(self, V: Array) -> Array:
        product: Array = np.concatenate([np.empty((0, V.shape[1])), *(chunk @ V for chunk in self._chunks())])
        product -= self._remaining_mean @ V
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        """The transpose of X, for products ``X' Q``."""
        return Transposed(self)

    def transposed_times(self, Q: Array) -> Array:
        """Compute the product ``X' Q`` (f, b) with a matrix Q (n, b) chunk by chunk."""
        product: Array = -np.multiply.outer(self._remaining_mean, Q.sum(axis=0))
        start = 0
        for chunk in self._chunks():
            rows = len(chunk)
            product += chunk.T @ Q[start : start + rows]
            start += rows
        return product

    @property
    def _remaining_mean(self) -> Array:
        """Part (f,) of the columns' mean that is not yet subtracted from the chunks."""
        return self.remainder / self._divisor

    @property
    def _divisor(self) -> Array:
        """Divisors (f,) of the columns; infinite for columns that count as constant."""
        return np.where(self.zero, np.inf, self.scale)

    def _chunks(self) -> Iterator[Any]:
        """Yield centred and scaled chunks."""
        return centred_chunks(self.data, self.centre, self._divisor)


def prepare_columns(data: Rows, *, center: bool = True, scale: bool = False) -> Columns:
    """Centre and scale a party's columns (n, f).

    Scaling divides by the standard deviation about the mean (divisor n), with or without centring. A constant column
    becomes exactly zero once centred, as does one to be scaled whose deviation is no more than the last digit of its
    mean. The mean is known in two floats, so that its own rounding hides no variance.
    """
    head, diagonal = head_and_diagonal(data)
    none, constant = np.zeros_like(head.mean), ~varying_features(diagonal, head.mean)
    deviation = np.ones_like(none)
    if scale:
        constant |= diagonal <= head.n * (np.finfo(np.float64).eps * head.mean) ** 2
        deviation = safe_deviation(np.where(constant, 0.0, diagonal), head.n, none)
    if not center:
        return Columns(data, none, none, deviation, np.zeros(none.size, dtype=bool))
    return Columns(data, head.mean, head.remainder, deviation, constant)


def gram_product(X: Array | Columns | Transposed, Q: Array) -> Array:
    """Compute ``X X' Q`` (n, b) for X (n, f), columns or their transpose, without the matrix (n, n)."""
    return X @ (X.T @ Q)


def packed_gram(X: Array) -> Array:
    """Compute the packed triangle (n (n + 1) / 2,) of ``X X'`` for columns X (n, f)."""
    return pack(blas.dsyrk(1.0, X.T, trans=1, lower=1) if len(X) else np.empty((0, 0)))


def leading_directions(X: Array, rank: int) -> Array:
    """Compute ``U diag(s)`` (n, rank) with the leading left singular vectors U and singular values s of X (n, f).

    Columns are zero if X has fewer singular values. The largest entry of each column is positive: signs would disclose
    more than inner products do.
    """
    U, s, _ = svd(X, full_matrices=False, check_finite=False)
    count = min(rank, s.size)
    return np.hstack([fix_signs(U[:, :count]) * s[:count], np.zeros((len(X), rank - count))])


def merge_directions(blocks: Sequence[Array], k: int) -> tuple[Array, float]:
    """Compute the k leading left singular vectors of all parties' columns side by side from their `leading_directions`.

    Return the orthonormal vectors (n, k), and the squared singular value after them, 0 if there is none.
    """
    U, s, _ = svd(np.hstack(blocks), full_matrices=False, check_finite=False)
    return U[:, :k], float(s[k] ** 2) if s.size > k else 0.0


def projection_energies(X: Array | Columns, U: Array) -> Array:
    """Compute the squared lengths ``|X' u|^2`` (k,) of the projections on columns u of ``U`` (n, k)."""
    projected = X.T @ U
    return np.asarray(np.einsum("ij,ij->j", projected, projected))


def order_free_sum(arrays: Sequence[Array]) -> Array:
    """Add arrays of one shape so that the bits of the sum do not depend on their order."""
    return np.asarray(np.sort(np.stack(arrays), axis=0).sum(axis=0))


@dataclass(frozen=True)
class Kernel:
    """A kernel function of pairs of rows: linear, RBF, sigmoid or polynomial.

    ``rbf`` is exp(-gamma |x - y|^2), ``sigmoid`` tanh(gamma x'y + coef0), and ``polynomial`` (gamma x'y + coef0)^degree
    (Cheung et al. 2022, equations 11 and 12; the paper prints -gamma for the sigmoid, and their program has +gamma).
    """

    name: KernelName = "rbf"
    gamma: float = 1.0
    coef0: float = 1.0
    degree: int = 3

    def __call__(self, sums: Array) -> Array:
        """Apply the kernel to squared distances, or to inner products, of any shape."""
        with np.errstate(over="ignore"):
            if self.name == "rbf":
                return np.exp(-self.gamma * sums)
            if self.name == "sigmoid":
                return np.tanh(self.gamma * sums + self.coef0)
            return sums if self.name == "linear" else (self.gamma * sums + self.coef0) ** self.degree

    def matrix(self, X: Array) -> Array:
        """Compute the kernel matrix (n, n) of rows X (n, f)."""
        if self.name == "rbf":
            X, K = X - X.mean(axis=0), np.empty((len(X), len(X)))  # about the mean, where little cancels
            squares = np.einsum("ij,ij->i", X, X)
            for part in slices(len(X), KERNEL_ROWS):
                distances = np.add.outer(squares[part], squares[: part.stop]) - 2 * X[part] @ X[: part.stop].T
                K[part, : part.stop] = self(distances.clip(min=0.0))
                K[: part.stop, part] = K[part, : part.stop].T
            np.fill_diagonal(K, self(np.zeros(1)))
            return K
        return self(unpack_symmetric(packed_gram(X), len(X)))


def centre_kernel(K: Array) -> Array:
    """Centre a kernel matrix K (n, n) in feature space: ``H K H`` with ``H = I - 1 1' / n``."""
    means = K.mean(axis=0)
    K = K - means
    K -= (means - means.mean())[:, None]
    return K


def default_gamma(X: Array) -> float:
    """Compute scikit-learn's default of the parameter gamma, ``1 / (f var X)`` for X (n, f); 1 if nothing varies."""
    variance = float(X.shape[1] * X.var())
    return 1 / variance if variance > 0 else 1.0


def power_iteration(product: Callable[[Array], Array], start: Array, steps: int) -> tuple[float, Array]:
    """Run some steps of the power method from a vector (n,) (Cheung et al. 2022, equations 5 and 6, corrected).

    Return the Rayleigh quotient and the unit vector (n,); zeros if a product is zero.
    """
    a = start
    for _ in range(steps):
        following = product(a)
        size = float(norm(following))  # SciPy's squares nothing that could not be squared
        if size == 0.0:
            return 0.0, np.zeros_like(a)
        a = following / size
    return float(a @ product(a)), a


def gram_power_iteration(X: Array, start: Array, steps: int) -> tuple[float, Array]:
    """Run `power_iteration` on ``X X'`` for X (n, f); of few columns by ``X' X`` (f, f), formed once."""
    if X.shape[1] > MAX_GRAM_COLUMNS * steps:
        return power_iteration(partial(gram_product, X), start, steps)
    gram, product = X.T @ X, X.T @ start
    for _ in range(steps if X.shape[1] > 1 else min(steps, 1)):  # of one column the first step is exact
        weights = product / (norm(product) or 1.0)
        product = gram @ weights
        size = math.sqrt(max(0.0, float(weights @ product)))  # |X weights|
        if size == 0.0:
            return 0.0, np.zeros_like(start)
        product /= size
    return float(product @ product), X @ (weights / size)


def row_covariance_factor(X: Array) -> Array:
    """Return a matrix Y (n, f) for which ``Y Y'`` is the covariance of the rows of X (n, f) over its columns."""
    return np.asarray((X - X.mean(axis=1)[:, None]) / math.sqrt(max(1, X.shape[1] - 1)))


def merge_vectors(
    values: Sequence[float], vectors: Sequence[Array], *, aligned: bool, scaled: bool, faithful: bool = False
) -> Array:
    """Merge p vectors a_i (n,) to ``sum w_i a_i``, weighted by their eigenvalues (Cheung et al. 2022, equation 13).

    If ``aligned``, all vectors are turned towards the leading direction of ``sum w_i a_i a_i'``; else signs are taken
    as they come. If ``scaled``, the largest weights (p // 2 of them if ``faithful``, else ceil(p / 2)) are boosted by
    1 + eta and the others by 1 - eta, with the mean weight eta (equation 15).
    """
    total = math.fsum(values)
    weights = np.asarray(values) / total if total else np.full(len(values), 1 / len(values))
    if scaled:
        boosted = len(weights) // 2 if faithful else -(-len(weights) // 2)
        order, eta = np.argsort(-weights, kind="stable"), weights.mean()
        weights[order[:boosted]] *= 1 + eta
        weights[order[boosted:]] *= 1 - eta
    stacked = np.asarray(vectors)
    if aligned:
        scaled_vectors = stacked * np.sqrt(weights.clip(min=0.0))[:, None]
        leading = fix_signs(scaled_vectors.T @ eigh(scaled_vectors @ scaled_vectors.T)[1][:, -1:])[:, 0]
        weights = np.where(stacked @ leading < 0, -weights, weights)
    return order_free_sum(list(weights[:, None] * stacked))


def project_on_direction(X: Array, u: Array) -> Array:
    """Project rows of X (n, f) on the direction ``X' u`` (Cheung et al. 2022, equation 14); X itself if that is 0."""
    m = X.T @ u
    size = float(norm(m))
    return np.outer(X @ (m / size), m / size) if size > 0 else X


def scores_on_direction(X: Array, u: Array) -> Array:
    """Return scores (n, 1) of the rows of X (n, f) on the direction ``X' u``; X itself if that is 0.

    The products of rows of this column are those of `project_on_direction`, which has as many columns as X.
    """
    m = X.T @ u
    size = float(norm(m))
    return np.asarray((X @ (m / size))[:, None]) if size > 0 else X


def orthogonal_direction(u: Array, basis: Array) -> Array:
    """Return the unit vector (n,) along the part of a vector u (n,) orthogonal to an orthonormal basis (n, j < n).

    If only rounding is left of the vector, or the vector is zero (a component without variance), any direction serves:
    the result is made from the axis with the smallest part in the basis.
    """
    remainder = project_out(u, basis)
    if norm(remainder) <= MIN_DIRECTION_SHARE * norm(u):
        remainder = project_out(np.eye(1, len(u), int(np.square(basis).sum(axis=1).argmin()))[0], basis)
    return np.asarray(remainder / norm(remainder))


def deflate(X: Array, basis: Array) -> Array:
    """Project a party's columns X (n, f) on the complement of an orthonormal basis (n, j)."""
    projected = basis @ (basis.T @ X)
    return np.subtract(X, projected, out=projected)
