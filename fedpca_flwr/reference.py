"""The PCA of the pooled rows, which no federation can compute: what simulations and tests measure against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import svd

from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.model import PCAModel


def pooled_pca(X: NDArray[Any], n_components: int, *, center: bool = True, scale: bool = False) -> PCAModel:
    """``PCA(svd_solver="full")`` of all rows in float64, as a `PCAModel`.

    Features go in by descending size: in another order LAPACK loses digits of small features beside huge ones.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    n_components : int
    center, scale : bool
        As in the covariance methods; scaling divides by the standard deviation about the mean (divisor n).
    """
    from sklearn.decomposition import PCA  # a second to import, and a real federation has no pooled rows
    from sklearn.preprocessing import StandardScaler

    X = np.asarray(X, dtype=np.float64)
    scaler = StandardScaler(with_mean=center).fit(X) if scale else None
    rows = X if scaler is None else scaler.transform(X)
    order, mean = np.argsort(-rows.std(axis=0), kind="stable"), np.zeros(X.shape[1])
    rows = rows[:, order]
    if center:
        with np.errstate(invalid="ignore"):  # shares of no variance are 0 / 0 there
            pca = PCA(n_components=n_components, svd_solver="full").fit(rows)
        components, singular, noise = pca.components_, pca.singular_values_, float(pca.noise_variance_)
        ratio = np.nan_to_num(pca.explained_variance_ratio_)
        mean[order] = pca.mean_ if scaler is None else scaler.mean_[order]
    else:
        _, values, vectors = svd(rows, full_matrices=False)
        components, singular = vectors[:n_components], values[:n_components]
        ratio = singular**2 / ((values**2).sum() or 1.0)
        noise = float((values[n_components:] ** 2).mean() / (len(X) - 1)) if n_components < len(values) else 0.0
    return PCAModel(
        components_=fix_signs(components[:, np.argsort(order)].T).T,
        mean_=mean,
        explained_variance_=singular**2 / (len(X) - 1),
        explained_variance_ratio_=ratio,
        singular_values_=singular,
        noise_variance_=noise,
        n_samples_=len(X),
        scale_=None if scaler is None else scaler.scale_,
    )
