"""Options of every method, of which a draw takes some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

Choices = dict[str, list[Any]]

FLAG = [True, False]
COVARIANCE: Choices = {"center": FLAG, "scale": FLAG, "n_components": [0.3, 0.9, 0.99]}
MOMENTS: Choices = {**COVARIANCE, "n_components": [0.3, 0.9, 0.99, "auto"]}
GRAPH: Choices = {
    "graph": ["ring", "star", "complete", "erdos-renyi"],
    "edge_probability": [0.5, 1.0],
    "step_size": ["auto", 0.05, 0.2, 1.0],
}
KERNEL: Choices = {
    "kernel": ["rbf", "sigmoid", "linear", "polynomial"],
    "gamma": [0.0, 0.01, 1.0],
    "coef0": [0.0, 1.0, -1.0],
    "degree": [1, 2, 3],
    "center": FLAG,
    "scale": FLAG,
}
MERGE: Choices = {
    "variant": ["corrected", "faithful"],
    "periods": [1, 2, 4],
    "weight_scaling": FLAG,
    "graph": ["server", "complete", "ring", "star"],
}

OPTION_VALUES: dict[str, Callable[[int, int, int], Choices]] = {
    "p-cov": lambda k, n, d: {
        **MOMENTS,
        "keep": ["moments", "parties"],
        "outliers": ["sites", "counts"],
        "fourth_moments": FLAG,
    },
    "ap-cov": lambda k, n, d: MOMENTS,
    "sub-it": lambda k, n, d: {
        "block_size": [1, 2, k, k + 1, d, 1000],
        "acceleration": ["krylov", "krylov", "none"],
        "warm_start": ["random", "svd"],
        "warm_rank": [k, 1, d],
        "wire": ["float64", "float32"],
        "tolerance": [1e-6, 1e-9, 1e-3, 1.0, 30.0],
        "certify": ["all", "signal"],
        "max_rounds": [1, 2, 3, 5, 100],
        "center": FLAG,
        "scale": FLAG,
    },
    "qr-pca": lambda k, n, d: {"rank": [k, 2 * k, 100], "filler": FLAG, "wire": ["float64", "float32"], **COVARIANCE},
    "ap-stack": lambda k, n, d: {"rank": [k, 2 * k, 100], "weights": ["none", "rows"]},
    "compressed": lambda k, n, d: {
        "codec": ["quantise", "shared-step", "low-rank", "combined", "top-k", "sketch"],
        "bits": [4, 8, 16, 32],
        "step": [1e-7, 1e-5, 1e-2, 1.0],
        "rank": [1, k, 2 * k, 100],
        "keep": [0.01, 0.1, 1.0],
        "corrections": [0, 1, 3],
        "tolerance": [1e-6, 1e-3, 1.0],
    },
    "adaptive": lambda k, n, d: {
        "target": [0.0, 0.01, 0.5, 2.0, 10.0],
        "download_weight": [0.0, 1.0, 10.0],
        "round_bytes": [0.0, 1e3, 1e6],
    },
    "em": lambda k, n, d: {
        "model": ["factors"],
        "scale": FLAG,
        "prior": [1e-3, 1.0, 100.0],
        "tolerance": [1e-6, 1.0, 30.0],
        "max_rounds": [1, 2, 3],
    },
    "dsa": lambda k, n, d: GRAPH,
    "fast-pca": lambda k, n, d: GRAPH,
    "streaming": lambda k, n, d: MOMENTS,
    "dp-pca": lambda k, n, d: {
        "epsilon": [0.1, 1.0, 100.0, "infinity"],
        "relation": ["add-remove", "replace-one"],
        "release": ["directions", "two-stage", "joint"],
        "count": ["public", "noised"],
    },
    "personalised": lambda k, n, d: {
        "mu": ["held-out", "infinity", "infinity", 0.0, 0.5, 1e6],
        "solver": ["closed-form", "stiefel"],
        "center": FLAG,
    },
    "sapca": lambda k, n, d: {
        "tracked": [k, 2 * k, d, 100],
        "block_size": [1, 7, 50],
        "forgetting": [1.0, 0.9],
        "topology": ["star", "tree"],
        "center": FLAG,
        "n_components": [0.3, 0.9],
        "rank_rule": ["energy", "energy", "paper"],
    },
    "vertical": lambda k, n, d: {
        "solver": ["krylov", "krylov", "gram", "merge"],
        "block_size": [1, 2, k, k + 1, 1000],
        "tolerance": [1e-6, 1e-9, 1e-3, 1.0, 30.0],
        "max_rounds": [1, 2, 3, 5, 100],
        "rank": [1, k, 100],
        "center": FLAG,
        "scale": FLAG,
    },
    "vertical-kernel": lambda k, n, d: {**KERNEL, "landmarks": [0, k + 1, n // 2, n]},
    "vertical-scores": lambda k, n, d: {},
    "vfedpca": lambda k, n, d: {
        **MERGE,
        "center": FLAG,
        "scale": FLAG,
        "local_iterations": [1, 10],
        "warm_start": ["random", "previous"],
    },
    "vfedakpca": lambda k, n, d: {**MERGE, **KERNEL},
}
"""For k components of n rows and d features: what each option may be besides its default."""

ALWAYS: dict[str, Choices] = {
    "dsa": {"iterations": [1, 5, 20]},
    "fast-pca": {"iterations": [1, 5, 20]},
    "personalised": {"iterations": [1, 5]},
    "dp-pca": {"noise_seed": [1, 2, 3]},
}
"""What a draw always sets: few rounds, and noise that is the same each time."""


def options(rng: Generator, method: str, k: int, n: int, d: int) -> dict[str, Any]:
    """Some options of the method, each set as often as not."""
    chosen: dict[str, Any] = {"n_components": k}
    for name, values in OPTION_VALUES[method](k, n, d).items():
        if rng.random() < (0.1 if name == "n_components" else 0.4):
            chosen[name] = values[int(rng.integers(len(values)))]
    for name, values in ALWAYS.get(method, {}).items():
        chosen[name] = values[int(rng.integers(len(values)))]
    if rng.random() < 0.2:
        chosen["seed"] = int(rng.integers(100))
    return chosen
