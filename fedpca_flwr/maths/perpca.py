r"""PerPCA (Shi and Kontar 2022, arXiv 2207.08041): components that all parties share, and others of each party alone.

::

    maximise  sum_i  tr(U' S_i U) + tr(V_i' S_i V_i),    (U, V_i) orthonormal

Each party takes a gradient step with ``(U, V_i)`` and makes it orthonormal, the server averages the U, and each party
makes its V_i orthogonal to the average. This is what Ozkara et al. 2023 compares its model with.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.stiefel import polar, transposed


def perpca(rows: Array, start: Array, shared: int, *, iterations: int = 100) -> Array:
    """The components (m, d, r) of each party, the shared ones first.

    Parameters
    ----------
    rows : ndarray of shape (m, n, d)
        Those of m parties, of one length.
    start : ndarray of shape (d, r)
        The PCA of all rows.
    shared : int
        How many components are shared, from 1 to r - 1.
    iterations : int
    """
    U, own = start[:, :shared], np.broadcast_to(start[:, shared:], (len(rows), *start[:, shared:].shape))
    step = 1 / np.linalg.norm(rows, 2, axis=(-2, -1))[:, None, None] ** 2
    for _ in range(iterations):
        joint = np.concatenate([np.broadcast_to(U, (len(rows), *U.shape)), own], axis=-1)
        joint = polar(joint + step * (transposed(rows) @ (rows @ joint)))
        U = polar(joint[..., :shared].mean(axis=0))
        own = joint[..., shared:]
        own = polar(own - U @ (U.T @ own))
    return np.concatenate([np.broadcast_to(U, (len(rows), *U.shape)), own], axis=-1)
