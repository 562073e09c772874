"""The streams of Grammenos et al. 2019, and the methods that it lets run beside each other on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import pieces
from fedpca_flwr.maths.streams import Band, Fixed, Tracker
from simulations.papers.tracking_baselines import FrequentDirections, Grouse, PowerMethod, Spirit

from .experiment import Row

BLOCK = 50
RANK = 10
LOW, HIGH = 0.01, 0.10
"""The paper's alpha and beta."""

SENSORS = {"Humidity": "q8calibHumid.dat", "Light": "q8calibLight.dat"}
SENSORS |= {"Volt": "q8calibVolt.dat", "Temperature": "q8calibHumTemp.dat"}


class Method(Protocol):
    """What takes blocks of rows and has directions (d, rank)."""

    @property
    def vectors(self) -> Array: ...

    def update(self, rows: Array) -> None: ...


def synthetic(alpha: float, *, seed: int, d: int = 400, n: int = 4000, code: bool = False) -> Array:
    """Gaussian rows (n, d) in a random basis, mean zero.

    The covariance has eigenvalues i^-alpha, as in the paper's text, or i^-2alpha, as in its code (there also divided by
    the root of n - 1).
    """
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
    deviations = np.arange(1, d + 1.0) ** (-alpha if code else -alpha / 2)
    return ((basis * deviations) @ rng.standard_normal((d, n))).T


def two_regimes(order: str, n: int) -> Array:
    """One row in twenty in ten strong directions, then the others in ten weak ones; or shuffled, or reversed."""
    rng = np.random.default_rng(2)
    basis, _ = np.linalg.qr(rng.standard_normal((100, 20)))
    strong = 2.5 * rng.standard_normal((n // 20, 10)) @ basis[:, :10].T
    weak = rng.standard_normal((n - n // 20, 10)) @ basis[:, 10:].T
    X = np.vstack([strong, weak]) + 0.05 * rng.standard_normal((n, 100))
    return {"sorted": X, "reversed": X[::-1], "shuffled": rng.permutation(X)}[order]


def sensors(folder: str) -> dict[str, Path]:
    """Files of the sensor network that are there, by what they measure.

    Raises
    ------
    DataError
        If there is none.
    """
    found = {name: Path(folder) / file for name, file in SENSORS.items() if (Path(folder) / file).is_file()}
    if not found:
        raise DataError(f"{folder} has none of the sensors' files ({', '.join(SENSORS.values())}); name their folder")
    return found


def readings(path: str, *, centre: bool, rows: int = 0) -> Array:
    """The first so many rows of a sensor file, all for 0; centred with their own mean, as the authors do, or not."""
    X = np.loadtxt(path)[: rows or None]
    return X - X.mean(axis=0) if centre else X


def error(X: Array, vectors: Array) -> float:
    """Mean squared error of projection (equation 15)."""
    return float(np.vdot(X, X) - np.linalg.norm(X @ vectors) ** 2) / len(X)


def offline(X: Array, k: int) -> Array:
    """The best k directions, by an SVD of everything."""
    return np.linalg.svd(X, full_matrices=False)[2][:k].T


def printed(d: int) -> Tracker:
    """SAPCA with the rule as the paper prints it."""
    return Tracker(d, Band(RANK, LOW, HIGH, hysteresis=False), center=False)


def methods(d: int) -> dict[str, Method]:
    """Everything that the figures compare."""
    return {
        "SPCA": Tracker(d, Fixed(RANK), center=False),
        "SPCA, 2r": Tracker(d, Fixed(RANK), tracked=2 * RANK, center=False),
        "SAPCA": printed(d),
        "SAPCA, 2r": Tracker(d, Band(RANK, LOW, HIGH), tracked=2 * RANK, center=False),
        "PM": PowerMethod(d, RANK, rng=np.random.default_rng(1)),
        "FD": FrequentDirections(d, RANK, ell=2 * RANK),
        "GROUSE": Grouse(d, RANK, rng=np.random.default_rng(1)),
        "SPIRIT": Spirit(d),
        "SPIRIT .9": Spirit(d, forgetting=0.9),
    }


def fed(method: Method, X: Array, block: int = BLOCK) -> Method:
    """A method that has seen all rows."""
    for part in pieces(X, block):
        method.update(part)
    return method


def bounds(X: Array) -> dict[str, Method]:
    """SPCA and the power method with the lowest and highest rank that SAPCA had on the way (figures 1e, 1f)."""
    tracker, d, ranks = printed(X.shape[1]), X.shape[1], []
    for part in pieces(X, BLOCK):
        tracker.update(part)
        ranks.append(tracker.rank)
    low, high = min(ranks), max(ranks)
    return {
        "SPCA lo": Tracker(d, Fixed(low), center=False),
        "SPCA hi": Tracker(d, Fixed(high), center=False),
        "PM lo": PowerMethod(d, low, rng=np.random.default_rng(1)),
    }


def followed(X: Array, running: Mapping[str, Method], points: int = 20) -> Iterator[Row]:
    """Error on the rows so far, and rank, of each method at so many times, evenly."""
    parts = list(pieces(X, BLOCK))
    times = set(np.linspace(1, len(parts), min(points, len(parts))).round().astype(int).tolist())
    for i, part in enumerate(parts, start=1):
        for method in running.values():
            method.update(part)
        if i in times:
            so_far = X[: i * BLOCK]
            for name, method in running.items():
                vectors = method.vectors
                yield {"rows": len(so_far), "method": name, "rank": vectors.shape[1], "error": error(so_far, vectors)}
