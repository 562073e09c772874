"""What the authors' program of paper 004 measures and draws, in memory: no party, no message."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedpca_flwr.maths.columns import packed_gram
from fedpca_flwr.maths.kernels import Kernel, centred, kernel_pairs
from fedpca_flwr.maths.power_merge import local_product, merged, overwritten, power_iteration

Array = NDArray[np.float64]

CLUSTERS = 3


def distances(
    X: Array,
    parties: int,
    *,
    iterations: int = 10,
    periods: int = 10,
    warm: bool = False,
    scaled: bool = False,
    reset: bool = False,
    seed: int = 0,
) -> Array:
    """Distance (periods + 1,) of the merged vector from that of all columns, as the authors compute both.

    Columns that do not divide evenly are dropped. The first entry is the plain mean of the isolated vectors, which
    stay in the weighted sum ever after, unless ``reset``.
    """
    rng = np.random.default_rng(seed)
    X = X[:, : X.shape[1] // parties * parties]
    blocks = np.split(X, parties, axis=1)
    _, truth = power_iteration(local_product(X, faithful=True), rng.random(len(X)), iterations)
    values: list[float] = []
    vectors: list[Array] = []
    measured, u = [], np.empty(0)
    for period in range(periods + 1):
        if reset:
            values, vectors = [], []
        for block in blocks:
            start = u if warm and u.size else rng.random(len(X))
            value, vector = power_iteration(local_product(block, faithful=True), start, iterations)
            values.append(value)
            vectors.append(vector)
        if period == 0:
            measured.append(float(np.linalg.norm(truth - np.mean(vectors, axis=0))))
            continue
        u = merged(values, vectors, faithful=True, scaled=scaled)
        measured.append(float(np.linalg.norm(truth - u)))
        blocks = [overwritten(block, u) for block in blocks]
    return np.array(measured)


def images(X: Array, parties: int, *, iterations: int = 100) -> dict[str, Array]:
    """``X' u`` (one value a column) above its cluster by k-means, (2, m), for each method of figures 10 to 12."""
    blocks = np.array_split(X, parties, axis=1)
    made: dict[str, Array] = {}
    for name, local in (("PCA", _rows_pca), ("AKPCA", _kernel_pca)):
        _, whole = local(X, iterations)
        values, vectors = map(list, zip(*(local(block, iterations) for block in blocks), strict=True))
        made[name] = X.T @ whole
        made[f"VFed{name}"] = X.T @ merged(values, vectors, faithful=False, scaled=False)
        made[f"VFedAvg{name}"] = X.T @ merged([1.0] * parties, vectors, faithful=False, scaled=False)
        made[f"isolated {name}"] = np.concatenate([block.T @ a for block, a in zip(blocks, vectors, strict=True)])
    return {name: np.stack([image, _clusters(image)]) for name, image in made.items()}


def _rows_pca(X: Array, iterations: int) -> tuple[float, Array]:
    return power_iteration(local_product(X, faithful=True), np.ones(len(X)), iterations)


def _kernel_pca(X: Array, iterations: int) -> tuple[float, Array]:
    K = Kernel("sigmoid", gamma=0.25, coef0=1.0).matrix(packed_gram(X), len(X))
    pairs, _, _ = kernel_pairs(centred(K), 1)
    return float(np.sqrt(max(0.0, pairs.values[0]))), pairs.vectors[:, 0]


def _clusters(image: Array) -> Array:
    """Clusters of pixels by value, numbered from dark to bright."""
    found = KMeans(CLUSTERS, n_init=5, random_state=0).fit(image[:, None])
    return np.argsort(np.argsort(found.cluster_centers_[:, 0]))[found.labels_].astype(np.float64)
