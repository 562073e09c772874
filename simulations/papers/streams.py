"""The streams of Grammenos et al. 2019, and the methods that the paper compares on these, each as its own paper has it.

No method centres rows: the caller may.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, svd

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import row_chunks
from fedpca_flwr.simulations.papers.experiment import Row
from fedpca_flwr.strategies.sapca.streams import Band, Fixed, Tracker

BLOCK = 50
RANK = 10
LOW, HIGH = 0.01, 0.10  # the paper's alpha and beta
SENSORS = {"Humidity": "q8calibHumid.dat", "Light": "q8calibLight.dat"}
SENSORS |= {"Volt": "q8calibVolt.dat", "Temperature": "q8calibHumTemp.dat"}


class Method(Protocol):
    """Streaming method: takes blocks of rows, and has orthonormal directions (d, rank)."""

    @property
    def vectors(self) -> Array:
        """Orthonormal directions (d, rank)."""

    def update(self, rows: Array) -> None:
        """Update the directions by a block of rows (n, d)."""


class PowerMethod:
    """Streaming PCA with a power step for each block of d rows alone (Mitliagkas et al. 2013, algorithm 1)."""

    def __init__(self, d: int, rank: int, *, rng: np.random.Generator) -> None:
        """Start from random orthonormal directions."""
        self.vectors: Array = qr(rng.standard_normal((d, rank)), mode="economic")[0]
        self._block = d
        self._product = np.zeros((d, rank))
        self._seen = 0

    def update(self, rows: NDArray[Any]) -> None:
        """Add rows to the block's product ``X.T @ X @ V``, and take its Q factor as V when the block is full."""
        while len(rows):
            now, rows = np.split(rows, [self._block - self._seen])
            self._product += now.T @ (now @ self.vectors)
            self._seen += len(now)
            if self._seen == self._block:
                self.vectors, _ = qr(self._product, mode="economic")
                self._product[:], self._seen = 0.0, 0


class FrequentDirections:
    """Frequent Directions (Liberty 2013): a sketch B of 4 rank rows of A, with A'A - B'B <= |A|^2 / (2 rank)."""

    def __init__(self, d: int, rank: int) -> None:
        """Start with a sketch of zero rows."""
        self.rank = rank
        self.ell = 2 * rank
        self.sketch = np.zeros((2 * self.ell, d))
        self._used = 0

    def update(self, rows: NDArray[Any]) -> None:
        """Append rows to the sketch, and shrink the sketch whenever full."""
        while len(rows):
            now, rows = np.split(rows, [len(self.sketch) - self._used])
            self.sketch[self._used : self._used + len(now)] = now
            self._used += len(now)
            if self._used == len(self.sketch):
                self._shrink()

    @property
    def vectors(self) -> Array:
        """Leading right singular vectors (d, rank) of the sketch."""
        return np.asarray(svd(self.sketch, full_matrices=False)[2][: self.rank].T)

    def _shrink(self) -> None:
        """Subtract the ell-th squared singular value from all squares, and keep the rows that remain."""
        _, sigma, right = svd(self.sketch, full_matrices=False)
        delta = float(sigma[self.ell - 1] ** 2) if sigma.size >= self.ell else 0.0
        shorter = np.sqrt(sigma[: self.ell - 1] ** 2 - delta)
        self.sketch[:] = 0.0
        self.sketch[: shorter.size] = shorter[:, None] * right[: shorter.size]
        self._used = shorter.size


class Grouse:
    """GROUSE (Balzano, Nowak and Recht 2010) on whole rows: for row t a geodesic step of 2 / t below a right angle."""

    def __init__(self, d: int, rank: int, *, rng: np.random.Generator) -> None:
        """Start from random orthonormal directions."""
        self.vectors: Array = qr(rng.standard_normal((d, rank)), mode="economic")[0]
        self._seen = 0

    def update(self, rows: NDArray[Any]) -> None:
        """Rotate the subspace towards each row, by an angle of 2 / t times the norms of scores and residual."""
        for row in rows:
            self._seen += 1
            weights = row @ self.vectors
            residual = row - self.vectors @ weights
            size, extent = float(np.linalg.norm(weights)), float(np.linalg.norm(residual))
            angle = 2.0 * size * extent / self._seen
            if 0 < angle < np.pi / 2:
                towards = np.sin(angle) * residual / extent
                turn = (np.cos(angle) - 1) * (self.vectors @ weights) / size + towards
                self.vectors = self.vectors + np.outer(turn, weights / size)


class Spirit:
    """SPIRIT (Papadimitriou et al. 2005): PAST, with a rank that keeps 95 to 98 % of the energy.

    A new direction starts from the next canonical one. At each row all energies are multiplied by ``forgetting``.
    """

    def __init__(self, d: int, rank: int = 3, *, forgetting: float = 1.0) -> None:
        """Start with the first canonical vectors as directions, and small energies."""
        self.forgetting, self.rank = forgetting, rank
        self._directions = np.eye(d, rank)  # columns; those beyond the rank are not used
        self._energies = np.full(d, 0.01)
        self._captured = self._all = 0.0
        self._seen, self._changed = 0, 1

    def update(self, rows: NDArray[Any]) -> None:
        """Turn the directions towards each row, and adapt the rank to the captured energy."""
        for row in rows:
            self._seen += 1
            self._follow(row)
            scores = row @ self._directions[:, : self.rank]
            self._captured = self.forgetting * self._captured + float(scores @ scores)
            self._all = self.forgetting * self._all + float(row @ row)
            if self._seen > self._changed + 1 and self.rank < len(self._directions):
                self._adapt()

    @property
    def vectors(self) -> Array:
        """Orthonormal directions (d, rank), by a QR decomposition."""
        return np.asarray(qr(self._directions[:, : self.rank], mode="economic")[0])

    def _follow(self, row: Array) -> None:
        """Turn each direction towards the residual row (d,), and subtract the direction's part from the residual."""
        residual = row
        for j in range(self.rank):
            direction = self._directions[:, j]
            score = float(direction @ residual)
            self._energies[j] = self.forgetting * self._energies[j] + score**2
            direction = direction + (residual - score * direction) * (score / self._energies[j])
            residual = residual - score * direction
            self._directions[:, j] = direction / np.linalg.norm(direction)

    def _adapt(self) -> None:
        """Raise the rank if the captured share of the energy is below 95 %, lower the rank if above 98 %."""
        if self._captured < 0.95 * self._all:
            self.rank += 1
            fresh = np.arange(len(self._directions)) == self.rank - 1
            self._directions = np.column_stack([self._directions[:, : self.rank - 1], fresh.astype(np.float64)])
            self._directions = self.vectors
        elif self._captured > 0.98 * self._all and self.rank > 1:
            self.rank -= 1
        else:
            return
        self._changed = self._seen


def synthetic(alpha: float, *, seed: int, d: int, n: int, code: bool = False) -> Array:
    """Draw rows (n, d) of mean 0 with eigenvalues i^-alpha in a random basis; with ``code`` i^-2alpha, as theirs."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
    deviations = np.arange(1, d + 1.0) ** (-alpha if code else -alpha / 2)
    return ((basis * deviations) @ rng.standard_normal((d, n))).T


def sensors(folder: str) -> dict[str, Path]:
    """Return the paths of the sensor network's files in a folder, by measured quantity; DataError if there are none."""
    files = {name: Path(folder) / file for name, file in SENSORS.items() if (Path(folder) / file).is_file()}
    if not files:
        raise DataError(f"{folder} has none of the sensors' files ({', '.join(SENSORS.values())}); name their folder")
    return files


def readings(path: str, *, rows: int = 0) -> Array:
    """Read the first ``rows`` (0: all) of a sensor file, and return them (n, d) less their mean, as the authors do."""
    X = np.loadtxt(path)[: rows or None]
    return np.asarray(X - X.mean(axis=0))


def error(X: Array, vectors: Array) -> float:
    """Return the mean squared error per row of X (n, d) projected on orthonormal directions (d, r) (equation 15)."""
    return float(np.vdot(X, X) - np.linalg.norm(X @ vectors) ** 2) / len(X)


def offline(X: Array, k: int) -> Array:
    """Return the k leading right singular vectors (d, k) of all rows X (n, d), the best directions."""
    return np.linalg.svd(X, full_matrices=False)[2][:k].T


def sapca_as_printed(d: int) -> Tracker:
    """Return the adaptive-rank tracker SAPCA with the paper's rule for the rank, without hysteresis."""
    return Tracker(d, Band(RANK, LOW, HIGH, hysteresis=False), center=False)


def methods_of_rank(d: int, rank: int) -> dict[str, Callable[[], Method]]:
    """Return functions that make the streaming methods of constant rank for rows of d features, by name."""
    return {
        "SPCA": lambda: Tracker(d, Fixed(rank), center=False),
        "SPCA, 2r": lambda: Tracker(d, Fixed(rank), tracked=min(d, 2 * rank), center=False),
        "PM": lambda: PowerMethod(d, rank, rng=np.random.default_rng(1)),
        "FD": lambda: FrequentDirections(d, rank),
        "GROUSE": lambda: Grouse(d, rank, rng=np.random.default_rng(1)),
    }


def methods(d: int) -> dict[str, Method]:
    """Return new instances of all streaming methods that the figures compare, for rows of d features, by name."""
    return {
        **{name: make() for name, make in methods_of_rank(d, RANK).items()},
        "SAPCA": sapca_as_printed(d),
        "SAPCA, 2r": Tracker(d, Band(RANK, LOW, HIGH), tracked=2 * RANK, center=False),
        "SPIRIT": Spirit(d),
        "SPIRIT .9": Spirit(d, forgetting=0.9),
    }


def feed(method: Method, X: Array) -> Method:
    """Update a method with all rows X (n, d), in blocks of `BLOCK` rows, and return the method."""
    for part in row_chunks(X, BLOCK):
        method.update(part)
    return method


def bounds(X: Array) -> dict[str, Method]:
    """Return SPCA of SAPCA's lowest and highest rank on X (n, d), and the power method of the lowest (figs. 1e, 1f)."""
    tracker, d, ranks = sapca_as_printed(X.shape[1]), X.shape[1], []
    for part in row_chunks(X, BLOCK):
        tracker.update(part)
        ranks.append(tracker.rank)
    low, high = (Tracker(d, Fixed(rank), center=False) for rank in (min(ranks), max(ranks)))
    return {"SPCA lo": low, "SPCA hi": high, "PM lo": PowerMethod(d, min(ranks), rng=np.random.default_rng(1))}


def follow(X: Array, running: Mapping[str, Method]) -> Iterator[Row]:
    """Update all methods block by block, and yield each one's rank, and error on the rows X (n, d) so far, 20 times."""
    parts = list(row_chunks(X, BLOCK))
    times = set(np.linspace(1, len(parts), min(20, len(parts))).round().astype(int).tolist())
    for i, part in enumerate(parts, start=1):
        for method in running.values():
            method.update(part)
        if i in times:
            so_far = X[: i * BLOCK]
            for name, method in running.items():
                vectors = method.vectors
                yield {"rows": len(so_far), "method": name, "rank": vectors.shape[1], "error": error(so_far, vectors)}
