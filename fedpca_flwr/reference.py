"""The PCA of the pooled rows, which no federation can compute: what simulations and tests measure against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import svd

from fedpca_flwr.column_labels import column_names
from fedpca_flwr.frames import as_array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.model import PCAModel


def pooled_pca(X: ArrayLike, n_components: int, *, center: bool = True, scale: bool = False) -> PCAModel:
    """``PCA(svd_solver="full")`` of all rows in float64, as a `PCAModel`.

    Features go in by descending size: in another order LAPACK loses digits of small features beside huge ones.

    Parameters
    ----------
    X : array-like of shape (n, d)
        The model keeps the names of a data frame's columns.
    n_components : int
    center, scale : bool
        As in the covariance methods; scaling divides by the standard deviation about the mean (divisor n).
    """
    from sklearn.decomposition import PCA  # a second to import, and a real federation has no pooled rows
    from sklearn.preprocessing import StandardScaler

    held = np.asarray(as_array(X, "X"), dtype=np.float64)
    n, d = held.shape
    scaler = StandardScaler(with_mean=center).fit(held) if scale else None
    rows = held if scaler is None else scaler.transform(held)
    order, mean = np.argsort(-rows.std(axis=0), kind="stable"), np.zeros(d)
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
        noise = float((values[n_components:] ** 2).mean() / (n - 1)) if n_components < len(values) else 0.0
    names = column_names(X)
    return PCAModel(
        components_=fix_signs(components[:, np.argsort(order)].T).T,
        mean_=mean,
        explained_variance_=singular**2 / (n - 1),
        explained_variance_ratio_=ratio,
        singular_values_=singular,
        noise_variance_=noise,
        n_samples_=n,
        scale_=None if scaler is None else scaler.scale_,
        feature_names_in_=np.array(names, dtype=object) if names else None,
    )
