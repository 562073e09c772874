"""Families of data that every method meets, each as parties of rows and a number of components."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Family(NamedTuple):
    """Parties (n_i, d) and the number of components that are well separated from the next."""

    parties: list[NDArray]
    k: int

    @property
    def pooled(self) -> NDArray:
        return np.vstack(self.parties)


def rows(n: int, d: int = 12, *, seed: int = 0) -> NDArray:
    """Gaussian rows with spectrum 1, 1/2, 1/3, ... in a random basis."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))
    return (rng.standard_normal((n, d)) / np.arange(1, d + 1)) @ basis.T


def cut(X: NDArray, *sizes: int) -> list[NDArray]:
    assert sum(sizes) == len(X)
    return np.split(X, np.cumsum(sizes)[:-1])


def _shifted(step: float) -> list[NDArray]:
    rng = np.random.default_rng(5)
    return [part + step * rng.standard_normal(12) for part in cut(rows(400), 150, 120, 80, 50)]


def _repeated() -> NDArray:
    """Eigenvalues 4, 4, 4, 1, 1, 1, ... exactly equal: two groups of orthogonal columns."""
    basis, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((240, 12)))
    basis, _ = np.linalg.qr(basis - basis.mean(axis=0))
    return basis * np.repeat([2.0, 1.0], [3, 9])


def _constant_columns() -> NDArray:
    X = rows(300)
    X[:, [2, 7]] = 0.1, -3.0
    return X


FAMILIES: dict[str, Family] = {
    "unequal sizes": Family(cut(rows(1280), 1000, 200, 50, 30), 5),
    "one large, three single rows": Family(cut(rows(1000), 1, 1, 1, 997), 5),
    "means shifted by ten deviations": Family(_shifted(10.0), 5),
    "fewer rows than components at a client": Family(cut(rows(90), 3, 2, 85), 6),
    "fewer rows than components at every client": Family(cut(rows(24), 3, 3, 3, 3, 3, 3, 3, 3), 6),
    "wide": Family(cut(rows(30, 80), 12, 10, 8), 5),
    "rank-deficient": Family(cut(rows(200, 4) @ np.random.default_rng(2).standard_normal((4, 12)), 120, 80), 4),
    "constant columns": Family(cut(_constant_columns(), 200, 100), 5),
    "constant and duplicate columns, fewer rows than features": Family(
        cut(np.hstack([np.zeros((40, 3)), rows(40, 30), rows(40, 30), np.full((40, 1), 0.1)]), 25, 10, 5), 5
    ),
    "duplicate columns": Family(cut(np.hstack([rows(200, 6), rows(200, 6)]), 130, 70), 5),
    "offset 1e6": Family(cut(rows(300) + 1e6, 180, 100, 20), 5),
    "offset 1e8": Family(cut(np.round(rows(300) * 2**10) + 1e8, 180, 100, 20), 5),
    "scale 1e-12": Family(cut(rows(300) * 1e-12, 180, 120), 5),
    "scale 1e12": Family(cut(rows(300) * 1e12, 180, 120), 5),
    "repeated eigenvalues": Family(cut(_repeated(), 100, 90, 50), 3),
    "one client": Family([rows(200)], 5),
    "five clients": Family(cut(rows(300), 100, 80, 60, 40, 20), 5),
    "twenty clients": Family(cut(rows(200), *[10] * 20), 5),
}


def with_spectrum(values: ArrayLike, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Return a symmetric matrix with these eigenvalues in a random basis, and that basis."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((np.size(values), np.size(values))))
    return (basis * values) @ basis.T, basis


def unlike_parties(d: int = 40) -> list[NDArray]:
    """Three of 400, 150 and 50 rows; the last two have another mean."""
    X = rows(600, d)
    X[400:] += rows(1, d, seed=9)
    return cut(X, 400, 150, 50)
