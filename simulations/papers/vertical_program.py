"""Distances and images of the authors' program of Cheung et al. 2022, in memory: no party, no message."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedpca_flwr.maths import columns
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import largest_eigenpair
from fedpca_flwr.maths.graph import make_graph


def distances(
    X: Array,
    parties: int,
    *,
    iterations: int = 10,
    periods: int = 10,
    warm: bool = False,
    scaled: bool = False,
    reset: bool = False,
    aligned: bool = False,
    seed: int = 0,
) -> Array:
    """Return the distances (periods + 1,) of the parties' merged leading vector to that of all columns of X (n, m).

    The first is that of the mean of the isolated vectors. With ``warm`` parties start from the merged vector, with
    ``scaled`` the sum is weighted by scaled eigenvalues, with ``reset`` it forgets earlier periods, and with
    ``aligned`` signs are aligned: the authors add vectors of arbitrary sign.
    """
    rng = np.random.default_rng(seed)
    X = X[:, : X.shape[1] // parties * parties]
    blocks = np.split(X, parties, axis=1)
    _, truth = columns.gram_power_iteration(columns.row_covariance_factor(X), rng.random(len(X)), iterations)
    values: list[float] = []
    vectors: list[Array] = []
    measured, u = [], np.empty(0)
    for period in range(periods + 1):
        if reset:
            values, vectors = [], []
        for block in blocks:
            start = u if warm and u.size else rng.random(len(X))
            value, vector = columns.gram_power_iteration(columns.row_covariance_factor(block), start, iterations)
            values.append(value)
            vectors.append(vector)
        if period == 0:
            u = columns.merge_vectors([1.0] * parties, vectors, aligned=aligned, scaled=False)
        else:
            u = columns.merge_vectors(values, vectors, aligned=aligned, scaled=scaled, faithful=not aligned)
            blocks = [columns.project_on_direction(block, u) for block in blocks]
        measured.append(float(np.linalg.norm(truth - (-u if aligned and truth @ u < 0 else u))))
    return np.array(measured)


def images(X: Array, parties: int, *, iterations: int = 100) -> dict[str, NDArray[Any]]:
    """Compute each method's ``X.T @ u`` (m,), and its clusters by k-means, for figures 10 and 11; X is (n, m)."""
    blocks = np.array_split(X, parties, axis=1)
    pictures: dict[str, Array] = {}
    for name, local in (("PCA", _rows_pca), ("AKPCA", _kernel_pca)):
        _, u = local(X, iterations)
        pairs = [local(block, iterations) for block in blocks]
        pictures[name] = X.T @ u
        pictures[f"VFed{name}"] = X.T @ _merge(pairs)
        pictures[f"VFedAvg{name}"] = X.T @ _merge([(1.0, a) for _, a in pairs])
        alone = [block.T @ a for block, (_, a) in zip(blocks, pairs, strict=True)]
        pictures[f"isolated {name}"] = np.concatenate(alone)
    return {**pictures, **{f"{name} cluster": _clusters(image) for name, image in pictures.items()}}


def kernel_images(X: Array, parties: int) -> dict[str, Array]:
    """Compute the images (m,) of figure 12 by two kernel PCAs, of rows (AKPCA) and of columns (KPCA), of X (n, m).

    The paper does not say how parties merge the components of columns; here each turns its image z into the direction
    of rows ``X_i z`` that it stands for, and these are merged as AKPCA's are.
    """
    blocks = np.array_split(X, parties, axis=1)
    _, pooled = _kernel_pca(X)
    local_pairs = [_kernel_pca(block) for block in blocks]
    pixels = [_columns_kernel_pca(block) for block in blocks]
    directions = [block @ z / (np.linalg.norm(block @ z) or 1.0) for block, (_, z) in zip(blocks, pixels, strict=True)]
    alone = [_bright(block.T @ a, block) for block, (_, a) in zip(blocks, local_pairs, strict=True)]
    alone_pixels = [_bright(z, block) for block, (_, z) in zip(blocks, pixels, strict=True)]
    return _align_signs(
        {
            "AKPCA, all columns": _bright(X.T @ pooled, X),
            "AKPCA, federated": X.T @ _merge(local_pairs),
            "AKPCA, isolated": np.concatenate(alone),
            "KPCA, all columns": _bright(_columns_kernel_pca(X)[1], X),
            "KPCA, federated": X.T @ _merge([(value, a) for (value, _), a in zip(pixels, directions, strict=True)]),
            "KPCA, isolated": np.concatenate(alone_pixels),
        }
    )


def graph_images(X: Array, parties: int, *, iterations: int = 100) -> dict[str, Array]:
    """Compute the images (m,) of figure 14: vectors of all columns of X (n, m), merged at a server, or over graphs.

    Over a graph each party merges its vector and its neighbours', once, with the sign that is nearer to the server's.
    """
    blocks = np.array_split(X, parties, axis=1)
    pictures: dict[str, Array] = {}
    for name, local in (("VFedPCA", _rows_pca), ("VFedAKPCA", _kernel_pca)):
        local_pairs = [local(block, iterations) for block in blocks]
        central = _merge(local_pairs)
        pictures[f"{name}, all columns"] = _bright(X.T @ local(X, iterations)[1], X)
        pictures[f"{name}, server"] = X.T @ central
        for graph in ("complete", "ring", "star"):
            parts = []
            for party, (near, block) in enumerate(zip(make_graph(graph, parties), blocks, strict=True)):
                u = _merge([local_pairs[other] for other in sorted({party, *np.flatnonzero(near).tolist()})])
                parts.append(block.T @ (-u if u @ central < 0 else u))
            pictures[f"{name}, {graph}"] = np.concatenate(parts)
    return _align_signs(pictures)


def _merge(pairs: list[tuple[float, Array]]) -> Array:
    """Return the sum (n,) of the vectors in pairs of a weight and a vector (n,), weighted, with aligned signs."""
    return columns.merge_vectors([w for w, _ in pairs], [a for _, a in pairs], aligned=True, scaled=False)


def _bright(image: Array, X: Array) -> Array:
    """Return an image with the sign that correlates with the mean row of X."""
    return -image if image @ X.mean(axis=0) < 0 else image


def _align_signs(pictures: dict[str, Array]) -> dict[str, Array]:
    """Give images named 'method, variant' the sign that correlates with the method's first image, in place."""
    first: dict[str, Array] = {}
    for name, image in pictures.items():
        reference = first.setdefault(name.partition(", ")[0], image)
        pictures[name] = -image if np.corrcoef(reference, image)[0, 1] < 0 else image
    return pictures


def _rows_pca(X: Array, iterations: int) -> tuple[float, Array]:
    """Return the leading eigenvalue and vector (n,) of the rows' covariance over the columns, by power iteration."""
    return columns.gram_power_iteration(columns.row_covariance_factor(X), np.ones(len(X)), iterations)


def _kernel_pca(X: Array, iterations: int = 0, gamma: float = 0.25) -> tuple[float, Array]:
    """Return the root of the leading eigenvalue, and the eigenvector (n,), of the rows' centred sigmoid kernel."""
    K = columns.Kernel("sigmoid", gamma=gamma, coef0=1.0).matrix(X)
    value, vector = largest_eigenpair(columns.centre_kernel(K))
    return max(0.0, value) ** 0.5, vector


def _columns_kernel_pca(X: Array) -> tuple[float, Array]:
    """Return the root of the leading eigenvalue of the columns' sigmoid kernel, and that times its vector.

    The authors' gamma would saturate the sigmoid of sums over so many rows: of their mean it does not.
    """
    size, z = _kernel_pca(np.ascontiguousarray(X.T), gamma=1 / len(X))
    return size, size * z


def _clusters(image: Array) -> NDArray[np.int64]:
    """Return the k-means cluster of each pixel by its value, one of three, numbered from 0 (dark) to 2 (bright)."""
    clusters = KMeans(3, n_init=5, random_state=0).fit(image[:, None])
    return np.asarray(np.argsort(np.argsort(clusters.cluster_centers_[:, 0]))[clusters.labels_])
