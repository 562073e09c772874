"""Rows that all parties share, whose columns lie at different parties: products, kernels, and VFedPCA's steps.

*Products.* With X = [X_1, ..., X_p] (n, d) cut by columns, ``X X' = sum X_i X_i'`` and ``X V = sum X_i V_i``: what the
parties have to add has n rows, whoever holds which column, so results do not depend on how the columns are split. Means
and deviations of columns need nobody else (`Columns`).

*Kernels.* Squared distances and inner products of rows are sums over the parties, so the kernel matrix of all columns
is exact. It is centred in feature space, and its leading eigenpairs are the components (`Kernel`).

*VFedPCA* (Cheung et al. 2022): local power iteration, weighted merging, and the update of local data.
``faithful`` is what the authors' program does: rows centred over a party's own columns, signs as they come, everything
merged that came since the isolated start. Otherwise columns are centred (by the caller), signs aligned, and only the
newest vectors merged. The result is an approximation in both: parties whose leading directions differ are averaged.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh, norm, svd
from scipy.spatial.distance import cdist, pdist, squareform

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs, frobenius_norm, project_out, rounding_bound
from fedpca_flwr.maths.moments import (
    constant_features,
    head_and_diagonal,
    pack,
    safe_deviation,
    unpack,
    unpack_symmetric,
)
from fedpca_flwr.maths.rows import Rows, Transposed, centred_chunks, chunk_energy, dense_rows

KERNEL_ROUNDING = 1e-12  # eigenvalues of a kernel matrix below this share of the largest are rounding
MIN_DIRECTION_SHARE = (
    1e-10  # where other directions leave a smaller share of a direction than this, what they leave is rounding
)

Name = Literal["rbf", "sigmoid", "linear", "polynomial"]


@dataclass(frozen=True)
class Columns:
    """A party's columns X (n, f), centred and scaled: a factor of matrix products, as an array is.

    Each product is one pass over the rows, chunk by chunk; sparse rows stay sparse.
    """

    data: Rows  # (n, f), before they are centred
    centre: Array  # (f,), the mean
    remainder: Array  # (f,), what rounding the mean lost
    scale: Array  # (f,), what each column is divided by
    zero: NDArray[np.bool_]  # (f,), which columns are taken for zero

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    @property
    def mean(self) -> Array:
        """The mean (f,) in one float."""
        return self.centre + self.remainder

    @cached_property
    def energy(self) -> float:
        """Trace of ``X X'``."""
        rounded = len(self.data) * float(np.vdot(self._remaining_mean, self._remaining_mean))
        return max(0.0, math.fsum(map(chunk_energy, self._chunks())) - rounded)

    @cached_property
    def X(self) -> Array:  # noqa: N802  # the notes' name
        """All of them in one array (n, f): for what compares each row with each other."""
        parts = (part - self._remaining_mean for chunk in self._chunks() for part in dense_rows(chunk))
        return np.concatenate([np.empty((0, self.shape[1])), *parts])

    def __matmul__(self, V: Array) -> Array:
        product: Array = np.concatenate([np.empty((0, V.shape[1])), *(chunk @ V for chunk in self._chunks())])
        product -= self._remaining_mean @ V
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        return Transposed(self)

    def transposed_times(self, Q: Array) -> Array:
        """``X' Q`` (f, b)."""
        product: Array = -np.multiply.outer(self._remaining_mean, Q.sum(axis=0))
        start = 0
        for chunk in self._chunks():
            rows = len(chunk)
            product += chunk.T @ Q[start : start + rows]
            start += rows
        return product

    @property
    def _remaining_mean(self) -> Array:
        """The part of the mean that is not yet subtracted from the chunks (f,)."""
        return self.remainder / self._divisor

    @property
    def _divisor(self) -> Array:
        return np.where(self.zero, np.inf, self.scale)

    def _chunks(self) -> Iterator[Any]:
        return centred_chunks(self.data, self.centre, self._divisor)


def prepare_columns(data: Rows, *, center: bool = True, scale: bool = False) -> Columns:
    """A party's columns ``data`` (n, f) as a run has them.

    Scaling divides by the standard deviation about the mean (divisor n), with or without centring. A column that is
    constant up to rounding becomes exactly zero when it is centred, as does one that varies too little to be scaled.
    """
    head, diagonal = head_and_diagonal(data)
    n, mean = head.n, head.mean
    deviation = safe_deviation(diagonal, n, mean) if scale else np.ones_like(mean)
    if not center:
        none = np.zeros_like(mean)
        return Columns(data, none, none, deviation, np.zeros(mean.size, dtype=bool))
    constant = diagonal <= n * (np.finfo(np.float64).eps * mean) ** 2
    return Columns(data, mean, head.remainder, deviation, constant | (scale & constant_features(diagonal, n, mean)))


def gram_product(X: Array | Columns | Transposed, Q: Array) -> Array:
    """``X X' Q`` (n, b) without the matrix (n, n); ``X`` is (n, f), ``Q`` (n, b)."""
    return X @ (X.T @ Q)


def packed_gram(X: Array) -> Array:
    """Packed triangle (n (n + 1) / 2,) of ``X X'``."""
    return pack(blas.dsyrk(1.0, X.T, trans=1, lower=1) if len(X) else np.empty((0, 0)))


def leading_directions(X: Array, rank: int) -> Array:
    """``U diag(s)`` (n, rank) for the leading singular triplets of ``X`` (n, f); zeros where there are fewer.

    The largest entry of each is positive: signs would tell what inner products do not.
    """
    U, s, _ = svd(X, full_matrices=False, check_finite=False)
    count = min(rank, s.size)
    return np.hstack([fix_signs(U[:, :count]) * s[:count], np.zeros((len(X), rank - count))])


def merge_directions(blocks: Sequence[Array], k: int) -> tuple[Array, float]:
    """An orthonormal basis (n, k) of the leading directions of all parties' `leading_directions` together.

    The number is the squared singular value after them. Exact where no party left a singular value out.
    """
    U, s, _ = svd(np.hstack(blocks), full_matrices=False, check_finite=False)
    return U[:, :k], float(s[k] ** 2) if s.size > k else 0.0


def projection_energies(X: Array | Columns, U: Array) -> Array:
    """``|X' u|^2`` (k,) of the columns u of ``U`` (n, k)."""
    projected = X.T @ U
    squares: Array = np.einsum("ij,ij->j", projected, projected)
    return squares


def order_free_sum(arrays: Sequence[Array]) -> Array:
    """The sum of arrays of one shape, whose bits do not depend on their order."""
    total: Array = np.sort(np.stack(arrays), axis=0).sum(axis=0)
    return total


@dataclass(frozen=True)
class Kernel:
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree.

    Cheung et al. 2022, equations 11 and 12; there the sigmoid has -gamma, in the authors' program +gamma, which is
    meant.
    """

    name: Name = "rbf"
    gamma: float = 1.0
    coef0: float = 1.0
    degree: int = 3

    @property
    def uses_distances(self) -> bool:
        """Whether it is a function of squared distances, not of inner products."""
        return self.name == "rbf"

    @property
    def is_semidefinite(self) -> bool:
        """Whether all eigenvalues are from 0, for any rows."""
        return self.name in {"rbf", "linear"} or (self.name == "polynomial" and self.coef0 >= 0)

    def __call__(self, sums: Array) -> Array:
        """The kernel of squared distances, or of inner products, of any shape."""
        with np.errstate(over="ignore"):
            if self.name == "rbf":
                return np.exp(-self.gamma * sums)
            if self.name == "sigmoid":
                return np.tanh(self.gamma * sums + self.coef0)
            return sums if self.name == "linear" else (self.gamma * sums + self.coef0) ** self.degree

    def error_bound(self, packed: Array, n: int, input_error: float) -> float:
        """Bound on the spectral norm of what is wrong with `matrix`, centred, of the same ``packed`` sums.

        Besides the rounding of float64, an entry of these may be off by ``missed``.
        """
        eps = float(np.finfo(np.float64).eps)
        if self.uses_distances:
            entry_error = (
                4 * eps * np.sqrt(packed) * np.sqrt(packed.max(initial=0.0)) + rounding_bound(n) * packed + input_error
            )
            below = np.maximum(packed - entry_error, 0.0)
        else:
            lengths = np.sqrt(np.diagonal(unpack(packed, n)).clip(min=0.0))
            entry_error = rounding_bound(n) * pack(np.outer(lengths, lengths)) + input_error
            below = packed - entry_error
        exact = self(packed)
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.maximum(np.abs(self(packed + entry_error) - exact), np.abs(self(below) - exact))
        largest = 1.0 if self.uses_distances else float(np.abs(exact).max())
        return 2**0.5 * frobenius_norm(wrong) + 4 * eps * n * largest

    def matrix(self, packed: Array, n: int) -> Array:
        """The matrix (n, n) from what `packed_distances` or `packed_gram` of all parties add up to."""
        if self.uses_distances:
            return self(squareform(packed))
        return self(unpack_symmetric(packed, n))


def packed_distances(X: Array) -> Array:
    """Squared distances (n (n - 1) / 2,) of the rows of ``X`` (n, f), from differences: nothing cancels."""
    distances: Array = pdist(X, "sqeuclidean")
    return distances


def landmark_sums(X: Array, landmarks: NDArray[np.int64], *, distances: bool) -> Array:
    """Squared distances, or inner products, (n, c) of the rows of ``X`` (n, f) with its rows ``landmarks`` (c,)."""
    return cdist(X, X[landmarks], "sqeuclidean") if distances else X @ X[landmarks].T


def centre_kernel(K: Array) -> Array:
    """``H K H`` (n, n) with ``H = I - 1 1' / n``: the kernel of features without their mean."""
    K = K - K.mean(axis=0)
    K -= K.mean(axis=1)[:, None]
    return (K + K.T) / 2


def kernel_pairs(K: Array, k: int) -> tuple[Eigenpairs, float, int]:
    """Leading eigenpairs of a centred kernel matrix (n, n), the sum of its positive eigenvalues, and their number."""
    values, vectors = eigh(K, check_finite=False)
    positive = values > KERNEL_ROUNDING * max(values[-1], 0.0)
    pairs = Eigenpairs(values[::-1][:k].copy(), fix_signs(vectors[:, ::-1][:, :k]), float(values[-k - 1 : -k].sum()))
    return pairs, float(values[positive].sum()), int(positive.sum())


def nystrom_pairs(C: Array, landmarks: NDArray[np.int64], k: int) -> tuple[Eigenpairs, float, int]:
    """As `kernel_pairs`, of ``C W^+ C'`` centred, with ``C`` (n, c) the kernel's columns at the landmarks.

    Williams and Seeger (2001). ``W = C[landmarks]`` must be positive semidefinite.
    """
    values, vectors = eigh(C[landmarks], check_finite=False)
    if not values[-1] > 0:
        return Eigenpairs(np.zeros(k), np.zeros((len(C), k)), 0.0), 0.0, 0
    positive_values = values > KERNEL_ROUNDING * values[-1]
    features = C @ (vectors[:, positive_values] / np.sqrt(values[positive_values]))
    U, s, _ = svd(features - features.mean(axis=0), full_matrices=False, check_finite=False)
    following = float(s[k] ** 2) if s.size > k else 0.0
    positive = int((s > np.sqrt(KERNEL_ROUNDING) * s[0]).sum())
    return Eigenpairs(s[:k] ** 2, fix_signs(U[:, :k]), following), float(np.vdot(s, s)), positive


def default_gamma(counts: Array, levels: Array, spreads: Array) -> float:
    """``1 / (m var X)``, scikit-learn's default for gamma, with var over all entries of X (n, m) of all parties.

    Of each party (p,), ``counts`` has the columns, ``levels`` the mean of its entries, and ``spreads`` their mean
    squared deviation from it.
    """
    level = np.sum(counts * levels) / counts.sum()
    variance = np.sum(np.sort(counts * (spreads + (levels - level) ** 2)))
    return float(1 / variance) if variance > 0 else 1.0


def power_iteration(product: Callable[[Array], Array], start: Array, steps: int) -> tuple[float, Array]:
    """Rayleigh quotient and unit vector (n,) after ``steps`` products from ``start`` (equations 5 and 6, put right)."""
    a = start
    for _ in range(steps):
        following = product(a)
        size = float(norm(following))  # SciPy's squares nothing that could not be squared
        if size == 0.0:
            return 0.0, np.zeros_like(a)
        a = following / size
    return float(a @ product(a)), a


def local_product(X: Array, *, faithful: bool) -> Callable[[Array], Array]:
    """Products with a party's matrix (n, n): ``X X'``, or the covariance of its rows over its own columns."""
    if not faithful:
        return lambda a: X @ (X.T @ a)
    centred = X - X.mean(axis=1)[:, None]
    return lambda a: centred @ (centred.T @ a) / max(1, X.shape[1] - 1)


def merge_vectors(values: Sequence[float], vectors: Sequence[Array], *, faithful: bool, scaled: bool) -> Array:
    """``sum w_i a_i`` (n,) of p vectors (n,), with weights in proportion to the eigenvalues (equation 13).

    Where it is ``faithful``, signs are taken as they come, and p // 2 vectors are boosted; else all are turned towards
    the leading direction of ``sum w_i a_i a_i'``, and ceil(p / 2) are boosted. Where it is ``scaled``, the larger
    weights are boosted by 1 + eta and the others by 1 - eta, with eta the mean weight (equation 15).
    """
    total = math.fsum(values)
    weights = np.asarray(values) / total if total > 0 else np.full(len(values), 1 / len(values))
    if scaled:
        boosted = len(weights) // 2 if faithful else -(-len(weights) // 2)
        order, eta = np.argsort(-weights, kind="stable"), weights.mean()
        weights[order[:boosted]] *= 1 + eta
        weights[order[boosted:]] *= 1 - eta
    stacked = np.asarray(vectors)
    if not faithful:
        U, _, _ = np.linalg.svd((stacked * np.sqrt(weights.clip(min=0.0))[:, None]).T, full_matrices=False)
        leading = fix_signs(U[:, :1])[:, 0]
        weights = np.where(stacked @ leading < 0, -weights, weights)
    return order_free_sum(list(weights[:, None] * stacked))


def project_on_direction(X: Array, u: Array) -> Array:
    """``X m m'`` with ``m`` the direction of ``X' u`` (equation 14): of rank one ever after."""
    m = X.T @ u
    size = float(norm(m))
    return np.outer(X @ (m / size), m / size) if size > 0 else X


def orthogonal_direction(u: Array, basis: Array) -> Array:
    """``u`` (n,) orthogonalised against the orthonormal columns of ``found`` (n, j < n), and normalised.

    Where only rounding is left of it, or it is zero (a component without variance), any direction does: it is made from
    the axis that ``found`` holds least of.
    """
    remainder = project_out(u, basis)
    if norm(remainder) <= MIN_DIRECTION_SHARE * norm(u):
        remainder = project_out(np.eye(1, len(u), int(np.square(basis).sum(axis=1).argmin()))[0], basis)
    unit: Array = remainder / norm(remainder)
    return unit


def deflate(X: Array, basis: Array) -> Array:
    """What the directions ``found`` (n, j) leave of ``X`` (n, f)."""
    return X - basis @ (basis.T @ X)
