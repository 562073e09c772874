r"""How many components foretell what was held out: rows and features at once (Owen and Perry 2009), from moments.

With the rows of a fold and a block of features held out, the data are ``[A B; C D]`` with A held out of both. A rank-k
approximation of D foretells :math:`A \approx B D_k^+ C`. Its error needs no row: with S the scatter of the rows that
are held in, :math:`D_k^+ C` is the regression on the first k components, :math:`W_k = V_k \Lambda_k^{-1} V_k^T S_{DC}`,
and with T the scatter of the rows held out, about the mean of those held in,

    |A - B W_k|^2 = tr T_AA - 2 tr W_k^T T_BA + tr W_k^T T_BB W_k
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, symmetric
from fedpca_flwr.maths.pooling import pool

FOLDS, BLOCKS = 5, 5
"""Of rows, at most, and of features."""

NEGLIGIBLE = 1e-12
"""Share of the first eigenvalue below which another is rounding: nothing is regressed on it."""


def bi_cross_validation(parts: Sequence[Moments]) -> int:
    """How many components have the least error, none included.

    Parameters
    ----------
    parts : sequence of Moments
        Of two parties' rows at least, of two features at least. Each row fold is the rows of some parties.
    """
    return int(np.argmin(held_out_errors(parts)))


def held_out_errors(parts: Sequence[Moments]) -> Array:
    """Sum of the squared errors (m,) of what is held out, for 0, 1, ... components, as many as all folds have."""
    groups, d = _folds([part.count for part in parts]), parts[0].n_features
    errors: list[Array] = []
    for group in groups:
        inside = pool(part for i, part in enumerate(parts) if i not in group)
        held_out = pool(parts[i] for i in group)
        S = symmetric(inside.scatter, d)
        T = symmetric(held_out.scatter_about(inside.mean + inside.remainder), d)
        errors += [_errors(S, T, block) for block in _blocks(d)]
    fewest = min(found.size for found in errors)
    total: Array = np.sum([found[:fewest] for found in errors], axis=0)
    return total


def _errors(S: Array, T: Array, block: NDArray[np.intp]) -> Array:
    """The same of one fold and one block of features."""
    others = np.setdiff1d(np.arange(len(S)), block)
    values, V = eigh(S[np.ix_(others, others)])
    values, V = values[::-1], V[:, ::-1]
    kept = int((values > NEGLIGIBLE * max(values[0], 0.0)).sum())
    V = V[:, :kept]
    W = (V.T @ S[np.ix_(others, block)]) / values[:kept, None]
    once = np.einsum("ij,ij->i", W, V.T @ T[np.ix_(others, block)])
    twice = (V.T @ T[np.ix_(others, others)] @ V) * (W @ W.T)
    squares = np.diagonal(np.cumsum(np.cumsum(twice, axis=0), axis=1))
    whole = float(np.diagonal(T)[block].sum())
    return np.concatenate([[whole], whole - 2 * np.cumsum(once) + squares])


def _folds(rows: Sequence[int]) -> list[list[int]]:
    """Parties in folds of nearly as many rows: the largest first, each into the smallest fold."""
    folds: list[list[int]] = [[] for _ in range(min(FOLDS, len(rows)))]
    for party in sorted(range(len(rows)), key=lambda i: (-rows[i], i)):
        min(folds, key=lambda fold: sum(rows[i] for i in fold)).append(party)
    return folds


def _blocks(d: int) -> list[NDArray[np.intp]]:
    """Features in blocks of nearly as many, neighbours in different ones."""
    blocks = min(BLOCKS, d)
    return [np.arange(first, d, blocks) for first in range(blocks)]
