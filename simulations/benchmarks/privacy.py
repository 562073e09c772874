"""Differential privacy: captured variance of the releases, and coverage of the intervals."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from fedpca_flwr.data import datasets
from fedpca_flwr.maths.rows import row_lengths
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines, Rows
from fedpca_flwr.simulations.engines import run


@harness.benchmark("docs/private-by-noise.md", components=5, draws=1, epsilons=[1.0])
def _privacy(
    dataset: Literal["mnist", "digits", "elliptical"] = "digits",
    data_root: str = ".",
    parties: harness.Clients = 10,
    components: int = 50,
    draws: int = 3,
    replaced: float = 0.0,
    epsilons: list[float] = [0.5, 1.0, 2.0],  # noqa: B006
    clips: list[float] = [0.25, 1.0, 4.0],  # noqa: B006
    figure: str = "",
) -> Lines:
    """Compare DP-PCA by shells or directions, which need no clip, with DP-PCA of rows clipped to given lengths.

    Dirichlet 0.1 (drawn rows: split evenly), delta 1e-5, distributed trust; means of several draws of the noise.
    --clips are multiples of the rows' median length: the search for the best clip used the data, and epsilon does not
    count that search; a user guesses a clip. Captured variance is against the exact components'; claimed, what the
    model's own variances say. --replaced 0.05 has every twentieth row replaced by 1e6 in each feature; captured
    variance is that of the other rows.
    """
    rows, parts = _rows_and_parts(dataset, data_root, parties)
    dense = run("p-cov", [rows], n_components=rows.shape[1])
    truth = run("p-cov", [rows], n_components=components)
    private = [part.astype(np.float64) for part in parts]
    for part in private if replaced else []:
        part[:: round(1 / replaced)] = 1e6
    length = np.median(row_lengths(rows[:: max(1, len(rows) // 5000)].astype(np.float64)))
    releases: list[dict[str, Any]] = [{"release": "shells"}, {"release": "directions"}]
    releases += [{"release": "joint", "clip": float(clip * length)} for clip in clips]
    curves: dict[str, list[tuple[float, ...]]] = {}
    yield "release", "epsilon", "captured variance", "claimed", "mean angle (deg)", "max"
    for release in releases:
        name = " ".join(value if isinstance(value, str) else f"{value:.4g}" for value in release.values())
        for epsilon in epsilons:
            options: dict[str, Any] = {"epsilon": epsilon, "trust": "distributed", "honest_parties": parties, **release}
            numbers = []
            for _ in range(draws):
                model = run("dp-pca", private, n_components=components, **options)
                angles, claimed = principal_angles(model, truth), float(model.explained_variance_ratio_.sum())
                numbers.append((_captured(model, dense), claimed, angles.mean, angles.max))
            captured, claimed, mean, largest = np.mean(numbers, axis=0)
            of_draws = 100 * np.array(numbers)[:, 0]
            curves.setdefault(name, []).append((epsilon, 100 * captured, of_draws.min(), of_draws.max()))
            share = "unknown" if np.isnan(claimed) else f"{claimed:.2%}"
            yield name, f"{epsilon:g}", f"{captured:.2%}", share, f"{mean:.1f}", f"{largest:.0f}"
    colours = {name: "0.7" for name in curves if name.startswith("joint")}
    harness.plot(figure, {"": curves}, ("epsilon", "variance captured (%)"), colours=colours)


def _rows_and_parts(dataset: str, root: str, parties: int) -> tuple[Rows, list[Rows]]:
    """Read or draw a data set; return all rows (n, d), and each party's."""
    if dataset != "elliptical":
        return datasets.load(dataset, root).all_rows(), harness.clients(dataset, root, parties)
    rng = np.random.default_rng(7)  # deviations fall by 15 % from axis to axis
    axes = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    rows: Rows = rng.standard_normal((20_000, 40)) * 0.85 ** np.arange(40) @ axes + 2
    return rows, np.array_split(rows, parties)


def _captured(model: PCAModel, dense: PCAModel) -> float:
    """Return the variance captured by a model's components, over that by as many exact components.

    The second moment of the rows is taken from all components of the exact model, so no row is read.
    """
    loadings = model.loadings()[0] @ dense.loadings()[0].T
    best = dense.explained_variance_[: model.n_components_].sum()
    return float((loadings**2 @ dense.explained_variance_).sum() / best)


@harness.benchmark("docs/private-by-noise.md", runs=2)
def _intervals(runs: int = 200, epsilon: float = 2.0) -> Lines:
    """Count how often dp-pca's intervals hold the variances of rows shortened to its reach, and of all rows.

    4,000 rows of six features, three components and three parties, unless the name of the shape says otherwise; each
    party adds all noise. The counts are of the component that is held least often; an interval is unknown for a
    component that the noise hides. The 300 rows have five times the epsilon: else all are hidden.
    """
    yield "shape", "epsilon", "held within reach", "held of all rows", "unknown", "median width"
    for number, (shape, (draw, k, parties)) in enumerate(SHAPES.items()):
        budget = epsilon * (5 if "300" in shape else 1)
        within, of_all, widths = np.zeros(k, dtype=int), np.zeros(k, dtype=int), []
        for seed in range(runs):
            X = draw(np.random.default_rng([number, seed]))
            model = run("dp-pca", np.array_split(X, parties), n_components=k, epsilon=budget, noise_seed=1 + seed)
            reach = model.log["variance_intervals_within_reach"]
            variances = _variances(X - X.mean(axis=0), np.inf)
            shortened = _variances(X - model.loadings()[1], reach["reach"])
            for i, ends in enumerate(reach["intervals"]):
                low, high = ends or (0.0, np.inf)
                within[i] += low <= shortened[i] <= high
                of_all[i] += low <= variances[i] <= high
                widths.append((high - low) / shortened[i])
        unknown = f"{np.mean(np.isinf(widths)):.0%}"
        yield shape, f"{budget:g}", f"{within.min()} of {runs}", of_all.min(), unknown, f"{np.median(widths):.2f}"


def _variances(centred: Rows, reach: float) -> Rows:
    """Return the variances of centred rows (n, d) along their principal axes; longer rows are cut to ``reach``."""
    near = centred * np.minimum(1.0, reach / row_lengths(centred))[:, None]
    return np.linalg.svd(near, compute_uv=False) ** 2 / (len(near) - 1)


def _normal(rng: Generator, n: int = 4000, d: int = 6) -> Rows:
    """Draw normal rows (n, d) with standard deviations that decrease by feature."""
    axes = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 1.0]) if d == 6 else 5 * 0.85 ** np.arange(d)
    return np.asarray(rng.standard_normal((n, d)) * axes)


def _student(degrees: float) -> Callable[[Generator], Rows]:
    """Return a function that draws 4,000 rows of a multivariate Student distribution."""
    return lambda rng: _normal(rng) * np.sqrt(degrees / rng.chisquare(degrees, (4000, 1)))


def _mixture(share: float, factor: float) -> Callable[[Generator], Rows]:
    """Return a function that draws 4,000 normal rows, a share of which is multiplied by a factor."""
    return lambda rng: np.where(rng.permutation(4000) < share * 4000, factor, 1.0)[:, None] * _normal(rng)


# how rows are drawn, and how many components and parties there are
SHAPES: dict[str, tuple[Callable[[Generator], Rows], int, int]] = {
    "normal": (_normal, 3, 3),
    "t of 2.1 degrees": (_student(2.1), 3, 3),
    "t of 5 degrees": (_student(5.0), 3, 3),
    "0.2 % 1,000 times as long": (_mixture(0.002, 1000.0), 3, 3),
    "1 % 10 times as long": (_mixture(0.01, 10.0), 3, 3),
    "5 % 100 times as long": (_mixture(0.05, 100.0), 3, 3),
    "lognormal lengths": (lambda rng: _normal(rng) * np.exp(1.5 * rng.standard_normal((4000, 1))), 3, 3),
    "two clusters": (lambda rng: _normal(rng) + np.outer(rng.random(4000) < 0.3, [0, 0, 20, 0, 0, 0]), 3, 3),
    "300 rows": (partial(_normal, n=300), 3, 3),
    "50 features, 5 components": (partial(_normal, d=50), 5, 3),
    "one party": (_normal, 3, 1),
    "twenty parties": (_normal, 3, 20),
}
