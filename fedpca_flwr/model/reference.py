"""Quality of a model: against the PCA of the pooled rows, which no federation can compute, and on rows.

The mean of 50 angles hides a lost direction (it was 3.3 degrees with a maximum of 57), so it is never printed alone.
"""

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import orth, svd

from fedpca_flwr.data.frames import as_array, column_names
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.model.model import PCAModel


def pooled_pca(X: ArrayLike, n_components: int, *, center: bool = True, scale: bool = False) -> PCAModel:
    """Compute the reference model: the PCA of all parties' pooled rows, by a full SVD in float64.

    The function sorts features by descending size, because in another order LAPACK loses digits of small features
    beside huge ones.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows. The model keeps the names of a data frame's columns.
    n_components : int
        Number of components, at most n and d.
    center : bool, default True
        Subtract the mean.
    scale : bool, default False
        Divide each feature by its standard deviation about the mean (divisor n).

    Returns
    -------
    PCAModel

    Raises
    ------
    ConfigError
        If the number of components is not possible.
    """
    from sklearn.decomposition import PCA  # a second to import, and a real federation has no pooled rows
    from sklearn.preprocessing import StandardScaler

    data = np.asarray(as_array(X, "X"), dtype=np.float64)
    n, d = data.shape
    is_whole = isinstance(n_components, Integral) and not isinstance(n_components, bool)
    if not is_whole or not 1 <= n_components <= min(n, d):
        expected = f"expected a whole number from 1 to {min(n, d)}, since the rows are of shape {data.shape}"
        raise ConfigError(f"'n_components' is {value_text(n_components)}, {expected}")
    scaler = StandardScaler(with_mean=center).fit(data) if scale else None
    rows = data if scaler is None else scaler.transform(data)
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


class Angles(NamedTuple):
    """Largest and mean principal angle between two models, in degrees."""

    max: float
    mean: float


def principal_angles(model: PCAModel, reference: PCAModel) -> Angles:
    """Compute the largest and mean principal angle, in degrees, between the components of two models.

    If the parties hold different columns, the angles are those between the directions of the scores.

    Parameters
    ----------
    model, reference : PCAModel
        Models with the same number of features and components.

    Returns
    -------
    Angles
        Largest and mean angle, in degrees.

    Raises
    ------
    ConfigError
        If one of the two is no model.
    """
    for name, value in (("model", model), ("reference", reference)):
        if not isinstance(value, PCAModel):
            raise ConfigError(
                f"'{name}' is of type {type(value).__name__}, expected PCAModel; pooled_pca(rows, k) makes the model "
                "of your rows; for an array V of components (k, d), take scipy.linalg.subspace_angles(V.T, "
                "model.components_.T), which is in radians"
            )
    degrees = eigen.principal_angles(_directions(model), _directions(reference))
    return Angles(float(degrees.max()), float(degrees.mean()))


def captured_variance(model: PCAModel, reference: PCAModel, X: ArrayLike) -> float:
    """Compute the share (0 to 1) of the variance of rows (n, d) in the span of a model's components.

    The reference is a model of these rows: its mean and scale define the variance. The share that the model itself
    states (``explained_variance_ratio_``) can be wrong: noise has variance too.
    """
    centred = reference.centred(X)
    directions = orth(_directions(model))
    scores = directions.T @ centred if model.components_ is None else centred @ directions
    total = float(np.vdot(centred, centred))
    return float(np.vdot(scores, scores)) / total if total > 0 else 0.0


def knn_accuracy(
    model: PCAModel, train: ArrayLike, labels: NDArray[Any], test: ArrayLike, truth: NDArray[Any], *, k: int = 5
) -> float:
    """Compute the accuracy (0 to 1) of a k-nearest-neighbour classifier on the projected rows.

    It hardly moves with the angle, so it says nothing about exactness. Shapes: train (n, d), labels (n,), test (m, d).
    """
    from sklearn.neighbors import KNeighborsClassifier  # it takes a second to import, and few ask for this

    classifier = KNeighborsClassifier(k, algorithm="brute").fit(model.transform(train), labels)
    return float(classifier.score(model.transform(test), truth))


def _directions(model: PCAModel) -> Array:
    """Return the columns whose span is compared: scores (n, k) if the model has these, else components (d, k)."""
    return model.loadings()[0].T if model.scores_ is None else model.scores_
