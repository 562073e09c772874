"""The data of Cheung et al. 2022: structured, synthetic, images."""

from __future__ import annotations

import numpy as np
from sklearn.preprocessing import minmax_scale

from fedpca_flwr.data import datasets
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import whole
from fedpca_flwr.site.readers import read

DIGIT = 3
"""The images of a study are those of one person; here of one digit."""


def matrix(name: str, path: str = "") -> Array:
    """Rows (n, m).

    Parameters
    ----------
    name : {"sonar", "breast-cancer", "digits", "mnist", "single", "mixture"}
    path : str
        Of sonar's file, or MNIST's folder; for synthetic data ``"columns rows"``.
    """
    if name in {"single", "mixture"}:
        columns, rows = map(int, path.split())
        return densities(name, columns, rows)
    if name == "sonar":
        X: Array = whole(read(path, label="60").rows)
        if X.shape != (208, 60):
            raise ConfigError(
                f"--sonar has {X.shape[0]} rows and {X.shape[1]} columns besides the label, expected 208, 60"
            )
        return X
    source = datasets.load(name, path or ".")
    if name == "breast-cancer":
        scaled: Array = minmax_scale(source.all_rows())
        return scaled
    chosen = np.flatnonzero(source.labels == DIGIT)[:180]
    X = np.asarray(source.rows(chosen), dtype=np.float64)
    shares: Array = X / X.max()
    return shares


def densities(pattern: str, columns: int, rows: int) -> Array:
    """The authors' Gaussian data: each column holds the density of its Gaussian at points drawn evenly within 3 sigma.

    ``single``: mean 0 and sigma 1 for all; ``mixture``: both drawn evenly from (0, columns) for each.
    """
    rng = np.random.default_rng(0)
    mean, sigma = np.zeros(columns), np.ones(columns)
    if pattern == "mixture":
        mean, sigma = rng.uniform(0, columns, columns), rng.uniform(0, columns, columns)
    x = rng.uniform(mean - 3 * sigma, mean + 3 * sigma, (rows, columns))
    values: Array = np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (np.sqrt(2 * np.pi) * sigma)
    return values
