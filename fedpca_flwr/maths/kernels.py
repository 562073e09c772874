"""Kernels of rows whose columns lie at different parties, centred in feature space, and their leading eigenpairs.

Squared distances and inner products of rows are sums over the parties, so the kernel matrix of all columns is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, svd
from scipy.spatial.distance import cdist, pdist, squareform

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import frobenius, rounding
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.moments import pack, unpack

Name = Literal["rbf", "sigmoid", "linear", "polynomial"]

NEGLIGIBLE = 1e-12
"""Eigenvalues of the landmarks' kernel below this part of the largest are rounding."""


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
    def of_distances(self) -> bool:
        """Whether it is a function of squared distances, not of inner products."""
        return self.name == "rbf"

    @property
    def semidefinite(self) -> bool:
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

    def error(self, packed: Array, n: int, missed: float) -> float:
        """Bound on the spectral norm of what is wrong with `matrix`, centred.

        Parameters
        ----------
        packed : ndarray
            As in `matrix`.
        n : int
        missed : float
            By how much an entry of ``packed`` may be off, besides the rounding of float64.
        """
        eps = float(np.finfo(np.float64).eps)
        if self.of_distances:
            off = 4 * eps * np.sqrt(packed) * np.sqrt(packed.max(initial=0.0)) + rounding(n) * packed + missed
            below = np.maximum(packed - off, 0.0)
        else:
            lengths = np.sqrt(np.diagonal(unpack(packed, n)).clip(min=0.0))
            off = rounding(n) * pack(np.outer(lengths, lengths)) + missed
            below = packed - off
        around = self(packed)
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.maximum(np.abs(self(packed + off) - around), np.abs(self(below) - around))
        largest = 1.0 if self.of_distances else float(np.abs(around).max())
        return 2**0.5 * frobenius(wrong) + 4 * eps * n * largest

    def matrix(self, packed: Array, n: int) -> Array:
        """The matrix (n, n) from what `packed_distances` or `columns.packed_gram` of all parties add up to."""
        if self.of_distances:
            return self(squareform(packed))
        lower = unpack(packed, n)
        return self(np.tril(lower) + np.tril(lower, -1).T)


def packed_distances(X: Array) -> Array:
    """Squared distances (n (n - 1) / 2,) of the rows of ``X`` (n, f), from differences: nothing cancels."""
    distances: Array = pdist(X, "sqeuclidean")
    return distances


def to_landmarks(X: Array, landmarks: NDArray[np.int64], *, distances: bool) -> Array:
    """Squared distances, or inner products, (n, c) of the rows of ``X`` (n, f) with its rows ``landmarks`` (c,)."""
    return cdist(X, X[landmarks], "sqeuclidean") if distances else X @ X[landmarks].T


def centred(K: Array) -> Array:
    """``H K H`` (n, n) with ``H = I - 1 1' / n``: the kernel of features without their mean."""
    K = K - K.mean(axis=0)
    K -= K.mean(axis=1)[:, None]
    return (K + K.T) / 2


def kernel_pairs(K: Array, k: int) -> tuple[Eigenpairs, float, int]:
    """Leading eigenpairs of a centred kernel matrix (n, n), the sum of its positive eigenvalues, and their number."""
    values, vectors = eigh(K, check_finite=False)
    positive = values > NEGLIGIBLE * max(values[-1], 0.0)
    pairs = Eigenpairs(values[::-1][:k].copy(), fix_signs(vectors[:, ::-1][:, :k]), float(values[-k - 1 : -k].sum()))
    return pairs, float(values[positive].sum()), int(positive.sum())


def nystrom_pairs(C: Array, landmarks: NDArray[np.int64], k: int) -> tuple[Eigenpairs, float, int]:
    """As `kernel_pairs`, of ``C W^+ C'`` centred, with ``C`` (n, c) the kernel's columns at the landmarks.

    Williams and Seeger (2001). ``W = C[landmarks]`` must be positive semidefinite.
    """
    values, vectors = eigh(C[landmarks], check_finite=False)
    if not values[-1] > 0:
        return Eigenpairs(np.zeros(k), np.zeros((len(C), k)), 0.0), 0.0, 0
    kept = values > NEGLIGIBLE * values[-1]
    features = C @ (vectors[:, kept] / np.sqrt(values[kept]))
    U, s, _ = svd(features - features.mean(axis=0), full_matrices=False, check_finite=False)
    following = float(s[k] ** 2) if s.size > k else 0.0
    positive = int((s > np.sqrt(NEGLIGIBLE) * s[0]).sum())
    return Eigenpairs(s[:k] ** 2, fix_signs(U[:, :k]), following), float(np.vdot(s, s)), positive


def default_gamma(counts: Array, levels: Array, spreads: Array) -> float:
    """``1 / (m var X)``, scikit-learn's default for gamma, with var over all entries of X (n, m) of all parties.

    Parameters
    ----------
    counts : ndarray of shape (p,)
        Columns of each party.
    levels, spreads : ndarray of shape (p,)
        Mean of a party's entries, and mean squared deviation from it.
    """
    level = np.sum(counts * levels) / counts.sum()
    variance = np.sum(np.sort(counts * (spreads + (levels - level) ** 2)))
    return float(1 / variance) if variance > 0 else 1.0
