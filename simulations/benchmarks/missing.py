"""EM on rows with missing values: how near it comes to the components of the complete rows, and in how many rounds.

    python -m simulations.benchmarks missing --draws 10

Wine and breast-cancer, scaled, 3 parties, 3 components, values missing completely at random. Largest angle in degrees,
mean of the draws; in brackets the mean number of rounds.

    python -m simulations.benchmarks missing --wide --data-root DEST

1,000 rows of MNIST (784 features, 10 components), and 300 simulated rows of 3,000 features and 5 factors, in the unit
of the data, one draw: the covariance of all features, for 30 rounds at most, beside models of few factors, with what
each party sent in MB. Of 3,000 features the covariance would take 36 MB a round; it is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale

from fedpca_flwr.data.datasets import load
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles

from .. import run

COMPONENTS = 3
PRIORS = (0.01, 1.0, 5.0, 10.0, 20.0, 40.0)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.2, 0.4])
    parser.add_argument("--datasets", nargs="+", default=["wine", "breast-cancer"])
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--data-root", default=".")
    args = parser.parse_args(arguments)
    if args.wide:
        wide(args.shares, args.data_root)
        return
    print(head(["data", "missing", "filled by means", *(f"prior {prior:g}" for prior in PRIORS)]))
    for name in args.datasets:
        X = np.asarray(load(name).all_rows(), dtype=np.float64)
        truth = PCA(COMPONENTS, svd_solver="full").fit(scale(X)).components_.T
        for share in args.shares:
            draws = [with_holes(X, share, seed) for seed in range(args.draws)]
            means = [angle(filled_by_means(Y), truth) for Y in draws]
            cells = [by_em(draws, prior, truth) for prior in PRIORS]
            print(row([name, f"{share:.0%}", f"{np.mean(means):.1f}", *cells]), flush=True)


def wide(shares: Sequence[float], root: str) -> None:
    """The table of wide rows."""
    pixels = np.asarray(load("mnist", root).all_rows()[:1000], dtype=np.float64)
    print(head(["data", "missing", "filled by means", "k factors", "k + 5", "k + 10", "k + 20", "gaussian"]))
    for name, X, k in (("MNIST", pixels, 10), ("simulated", of_five_factors(), 5)):
        truth = PCA(k, svd_solver="full").fit(X).components_.T
        for share in shares:
            Y = with_holes(X, share, 0)
            means = PCA(k, svd_solver="full").fit(np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)).components_.T
            cells = [in_bytes(Y, k, truth, {"model": "factors", "factors": k + more}) for more in (0, 5, 10, 20)]
            whole = in_bytes(Y, k, truth, {"max_rounds": 28}) if X.shape[1] < 1000 else "-"
            print(row([name, f"{share:.0%}", f"{angle(means, truth):.1f}", *cells, whole]), flush=True)


def of_five_factors(rows: int = 300, features: int = 3000) -> Array:
    """Rows whose features have noise of their own, in deviation between 0.5 and 1.5."""
    rng = np.random.default_rng(0)
    loadings = 0.3 * rng.standard_normal((5, features)) * np.array([[3.0], [2.5], [2.0], [1.5], [1.0]])
    noise = rng.standard_normal((rows, features)) * (0.5 + rng.random(features))
    simulated: Array = rng.standard_normal((rows, 5)) @ loadings + noise
    return simulated


def in_bytes(Y: Array, k: int, truth: Array, options: Mapping[str, Any]) -> str:
    model = run("em", np.array_split(Y, 3), n_components=k, min_rows=1, engine="loopback", **options)
    megabytes = max(model.bytes_up_by_party) / 1e6
    return f"{angle(np.asarray(model.components_).T, truth):.1f} ({model.rounds}; {megabytes:.1f} MB)"


def with_holes(X: Array, share: float, seed: int) -> Array:
    """X (n, d) with that share missing completely at random; no row is without any value."""
    missing = np.random.default_rng(seed).random(X.shape) < share
    missing[missing.all(axis=1)] = False
    return np.where(missing, np.nan, X)


def filled_by_means(Y: Array) -> Array:
    """Components (d, k) of rows whose missing values are the means of the others."""
    filled = np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)
    components: Array = PCA(COMPONENTS, svd_solver="full").fit(scale(filled)).components_.T
    return components


def by_em(draws: Sequence[Array], prior: float, truth: Array) -> str:
    models = [
        run(
            "em",
            np.array_split(Y, 3),
            n_components=COMPONENTS,
            scale=True,
            prior=prior,
            min_rows=1,
            max_rounds=1000,
            engine="loopback",
        )
        for Y in draws
    ]
    angles = [angle(np.asarray(model.components_).T, truth) for model in models]
    return f"{np.mean(angles):.1f} ({np.mean([model.rounds for model in models]):.0f})"


def angle(vectors: Array, truth: Array) -> float:
    """Largest, in degrees."""
    return float(principal_angles(vectors, truth).max())
