"""Accuracy of results: components, intervals, missing values, and robust components."""

import itertools
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.stats import norm, t
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.preprocessing import scale as standardise

from fedpca_flwr import analyses
from fedpca_flwr.analyses import HowSure
from fedpca_flwr.data.datasets import load
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths import eigen, sums
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import variance_units
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model import reference
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.subspace_error import estimate_subspace_error


@harness.benchmark("docs/benchmarks.md")
def _accuracy(dataset: harness.Dataset = "digits", data_root: str = ".") -> Lines:
    """Compare P-COV and AP-COV of ten clients with scikit-learn's full-SVD PCA of the pooled rows."""
    truth = reference.pooled_pca(load(dataset, data_root).all_rows(), COMPONENTS)
    yield "partition", "method", "max angle (deg)", "mean", "eigenvalues (rel.)", "ratio"
    for name, partition in harness.PARTITIONS.items():
        for method in ("p-cov", "ap-cov"):
            parts = harness.clients(dataset, data_root, **partition)
            model = run(method, parts, n_components=COMPONENTS, min_rows=1)
            values = np.abs(model.explained_variance_ / truth.explained_variance_ - 1).max()
            ratio = np.abs(model.explained_variance_ratio_ - truth.explained_variance_ratio_).max()
            errors = (*reference.principal_angles(model, truth), values, ratio)
            yield name, method, *(f"{error:.1e}" for error in errors)


VARIANCES = 2.0 ** np.arange(4, -4, -1)
POPULATION_COMPONENTS = 3
PARTY_SIZES = {
    "20 parties of 50 rows": [50] * 20,
    "16 parties of 5 to 400 rows": [400, 200, 100, 80, 60, 40, 30, 20, 20, 10, 10, 10, 5, 5, 5, 5],
    "13 parties, one of 300 rows and 12 of 25": [300] + [25] * 12,
}


@harness.benchmark("docs/statistics.md", trials=10)
def _coverage(trials: int = 2000) -> Lines:
    """Count how often 95 % intervals cover the true variances and loadings of the parties' population.

    Eight features of known variances in a random basis, three components. Rows are normal, or have the heavier tails of
    Student's distribution: each value with 9 degrees of freedom, or each row with 5.
    """
    k, basis = POPULATION_COMPONENTS, np.random.default_rng(1).standard_normal((len(VARIANCES),) * 2)
    basis = eigen.fix_signs(np.linalg.qr(basis)[0])
    yield "rows", "intervals", "parties", "variances covered (1, 2, 3)", "loadings covered (1, 2, 3)"
    for law in ("normal", "t(9) of values", "t(5) of rows"):
        for name, sizes in PARTY_SIZES.items():
            rng, normal = np.random.default_rng(0), norm.ppf(0.975)
            steps = {"asymptotic": normal, "fourth moments": normal, "by parties": t.ppf(0.975, len(sizes) - 1)}
            hits = {estimate: np.zeros((2, k)) for estimate in steps}
            for _ in range(trials):
                parties = [_sample(rows, basis, rng, law) for rows in sizes]
                vaults = {f"party {i}": Moments.from_rows(rows) for i, rows in enumerate(parties)}
                moments = SecondMoments(sums.pool(vaults.values()), parties=vaults)
                model, plain = analyses.pca(moments, k), analyses.how_sure(moments, k)
                # What the parties of a run with fourth_moments=True add up in its last round.
                unit = variance_units(model.explained_variance_)
                powers = sum(((model.transform(rows) ** 2 / unit) ** 2).sum(axis=0) for rows in parties)
                model = replace(model, log={**model.log, "kurtosis": np.divide(powers, model.n_samples_).tolist()})
                fourth = replace(plain, variance_intervals=analyses.variance_intervals(model))
                estimates = plain, fourth, analyses.how_sure_by_parties(moments, k)
                for estimate, intervals in zip(steps, estimates, strict=True):
                    hits[estimate] += _covers(intervals, model.loadings()[0], basis, steps[estimate])
            for estimate, counts in hits.items():
                shares = [", ".join(f"{share:.1%}" for share in line / trials) for line in counts]
                yield law, estimate, name, *shares


def _sample(rows: int, basis: Array, rng: Generator, law: str) -> Array:
    """Draw rows (n, d) with the variances `VARIANCES` along a basis (d, d), by one of the laws of `coverage`."""
    shape = rows, len(VARIANCES)
    noise = rng.standard_t(9, shape) * np.sqrt(7 / 9) if law == "t(9) of values" else rng.standard_normal(shape)
    if law == "t(5) of rows":
        noise *= np.sqrt(3 / rng.chisquare(5, (rows, 1)))
    return np.asarray(noise * np.sqrt(VARIANCES) @ basis.T)


def _covers(intervals: HowSure, components: Array, basis: Array, step: float) -> Array:
    """Return whether each interval holds its variance (0, 1), and the share of loadings within ``step`` errors: (2, k).

    Shapes: components (k, d), basis (d, d).
    """
    low, high = intervals.variance_intervals.T
    truth, axes = VARIANCES[:POPULATION_COMPONENTS], basis[:, :POPULATION_COMPONENTS].T
    components = components * np.sign(np.sum(components * axes, axis=1))[:, None]
    loadings = np.abs(components - axes) <= step * intervals.loading_errors
    return np.array([(low <= truth) & (truth <= high), loadings.mean(axis=1)], dtype=np.float64)


NEW_ROWS = (10, 50, 500)
MODELS = {  # rows, features and components of models, by the population's variances (d,) for k components
    "equal after k": [(50, 5, 1), (50, 100, 10), (2000, 100, 20)],
    "all equal": [(50, 100, 10), (400, 100, 20)],
    "geometric": [(50, 20, 4)],
    "harmonic": [(50, 20, 4), (400, 100, 10)],
}


@harness.benchmark("docs/missing.md", models=2)
def _new_rows(models: int = 50) -> Lines:
    """Count how often new normal rows exceed the limits of outliers (1 %), and how often drift raises a false alarm.

    In percent, means of so many models, each with 2,000 new rows, and others for drift. Variances are equal but for k
    of 16 times the others', all equal, or fall geometrically, by 2^(-1/2), or as one over the rank.
    """
    yield "variances", "rows, features, components", "SPE", "T squared", "drift of 10, 50, 500 rows"
    for name, (n, d, k) in ((name, size) for name, sizes in MODELS.items() for size in sizes):
        rank, rng, hits = np.arange(d), np.random.default_rng([n, d, k]), np.zeros(2 + len(NEW_ROWS))
        flat = {"equal after k": np.where(rank < k, 4.0, 1.0), "all equal": np.ones(d)}
        deviations = {**flat, "geometric": 2.0 ** (-rank / 4), "harmonic": (rank + 1) ** -0.5}[name]
        for _ in range(models):
            sample, new, *others = (rng.standard_normal((m, d)) * deviations for m in (n, 2000, *NEW_ROWS))
            model = analyses.pca(SecondMoments.of(sample), k)
            found = analyses.outliers(model, new)
            hits[:2] += (found.spe > found.spe_limit).mean(), (found.t_squared > found.t_squared_limit).mean()
            hits[2:] += [analyses.drift(model, rows).drifted for rows in others]
        spe, t_squared, *drift = (f"{100 * share:.1f}" for share in hits / models)
        yield name, f"{n:,}, {d}, {k}", spe, t_squared, ", ".join(drift)


TAILS = {  # degrees of freedom of Student's t of each value, or of each row; or deviation of the logarithm of rates
    "normal": ("values", 1e9),
    **{f"t({freedom}) of {kind}": (kind, freedom) for kind in ("values", "rows") for freedom in (5, 3)},
    **{f"Poisson, log rates +- {deviation}": ("counts", deviation) for deviation in (0.5, 1)},
}


@harness.benchmark("docs/which-method.md", draws=5)
def _worth(draws: int = 200, rows: int = 300) -> Lines:
    """Count how often `site worth` refuses rows, and how often intervals of 90 % hold otherwise, by the rows' tails.

    Rows have 15 features and three components, and others have five times as many. The intervals are for the site
    alone and joined, against the population, and for alone against joined.
    """
    loadings, deviations = np.random.default_rng(0).standard_normal((3, 15)) / np.sqrt(3), np.ones(15)
    deviations[:3] = 4.0, 3.2, 2.5
    yield "rows", "refused", "interval alone holds", "joined", "alone to joined"
    for law, (kind, tail) in TAILS.items():
        rng, answered, held = np.random.default_rng(1), 0, np.zeros(3, dtype=int)
        logarithms = tail**2 * loadings.T @ loadings if kind == "counts" else np.zeros((15, 15))
        means = np.exp(1 + np.diagonal(logarithms) / 2)
        covariance = np.outer(means, means) * np.expm1(logarithms) + np.diag(means)
        truth = np.linalg.eigh(covariance if kind == "counts" else np.diag(deviations**2))[1][:, -3:]
        for _ in range(draws):
            X = rng.standard_normal((6 * rows, 15)) * deviations
            if kind == "counts":
                X = rng.poisson(np.exp(1 + tail * rng.standard_normal((len(X), 3)) @ loadings)).astype(np.float64)
            else:
                X *= np.sqrt(tail / rng.chisquare(tail, X.shape if kind == "values" else (len(X), 1)))
            try:
                error = estimate_subspace_error(X[:rows], 3)
            except DataError:
                continue
            alone, joined = (_components(part, 3, scale=False) for part in (X[:rows], X))
            for i, (a, b, n) in enumerate(
                [(alone, truth, (rows,)), (joined, truth, (len(X),)), (alone, joined, (rows, len(X)))]
            ):
                distance, forecast = (
                    np.linalg.norm(np.sin(np.radians(eigen.principal_angles(a, b)))),
                    error.distance(*n),
                )
                held[i] += forecast.low <= distance <= forecast.high
            answered += 1
        yield law, f"{draws - answered} of {draws}", *(f"{count} of {answered}" for count in held)


PRIORS = (0.01, 1.0, 5.0, 10.0, 20.0, 40.0)


@harness.benchmark("docs/missing.md", draws=1)
def _missing(draws: int = 10, wide: bool = False, data_root: str = ".") -> Lines:
    """Compare EM on rows with missing values with the components of the complete rows; rounds are in brackets.

    Wine and breast-cancer, scaled, 3 parties, 3 components, values missing completely at random. Largest angle in
    degrees, mean of the draws. With --wide: 1,000 rows of MNIST (784 features, 10 components), and 300 simulated rows
    of 3,000 features and 5 factors, in the unit of the data, one draw: the covariance of all features (of 3,000 it
    would take 36 MB a round), for 30 rounds at most, beside models of few factors, with MB that each party sent.
    """
    if wide:
        cases = [("MNIST", load("mnist", data_root).all_rows()[:1000], 10), ("simulated", _five_factors(), 5)]
        yield "data", "missing", "filled by means", "k factors", "k + 5", "k + 10", "k + 20", "gaussian"
    else:
        cases = [(name, load(name).all_rows(), 3) for name in ("wine", "breast-cancer")]
        yield "data", "missing", "filled by means", *(f"prior {prior:g}" for prior in PRIORS)
    for name, rows, k in cases:
        X = np.asarray(rows, dtype=np.float64)
        truth = _components(X, k, scale=not wide)
        options: list[dict[str, Any]] = [{"scale": True, "prior": prior, "max_rounds": 1000} for prior in PRIORS]
        if wide:
            options = [{"model": "factors", "factors": k + further} for further in (0, 5, 10, 20)]
            options += [{"max_rounds": 28}] if X.shape[1] < 1000 else []
        for share in (0.05, 0.2, 0.4):
            tables = [_with_holes(X, share, seed) for seed in range(1 if wide else draws)]
            filled = [np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y) for Y in tables]
            mean = np.mean([_angle(_components(Y, k, scale=not wide), truth) for Y in filled])
            cells = [_em(tables, k, truth, keywords, sizes=wide) for keywords in options]
            yield name, f"{share:.0%}", f"{mean:.1f}", *cells, *["-"] * (wide and 5 - len(cells))


def _five_factors(rows: int = 300, features: int = 3000) -> Array:
    """Draw rows (n, d) of a five-factor model; the noise of a feature has a deviation between 0.5 and 1.5."""
    rng = np.random.default_rng(0)
    loadings = 0.3 * rng.standard_normal((5, features)) * np.array([[3.0], [2.5], [2.0], [1.5], [1.0]])
    noise = rng.standard_normal((rows, features)) * (0.5 + rng.random(features))
    return np.asarray(rng.standard_normal((rows, 5)) @ loadings + noise)


def _with_holes(X: Array, share: float, seed: int) -> Array:
    """Return X (n, d) with a share of the values set to NaN at random; rows that would lose all keep all."""
    missing = np.random.default_rng(seed).random(X.shape) < share
    missing[missing.all(axis=1)] = False
    return np.where(missing, np.nan, X)


def _components(X: Array, k: int, *, scale: bool) -> Array:
    """Return the components (d, k) of complete rows (n, d), standardised first if ``scale``, by scikit-learn's PCA."""
    return np.asarray(PCA(k, svd_solver="full").fit(standardise(X) if scale else X).components_.T)


def _em(tables: Sequence[Array], k: int, truth: Array, options: Mapping[str, Any], *, sizes: bool) -> str:
    """Run the method `em` on tables (n, d) with missing values at 3 parties; write means of angle and rounds.

    The angle, in degrees, is the largest to the components ``truth`` (d, k). With ``sizes`` MB of the largest sender
    follow.
    """
    models = [run("em", np.array_split(Y, 3), n_components=k, min_rows=1, **options) for Y in tables]
    angle = np.mean([_angle(model.loadings()[0].T, truth) for model in models])
    megabytes = f"; {max(models[0].bytes_up_by_party) / 1e6:.1f} MB" if sizes else ""
    return f"{angle:.1f} ({np.mean([model.rounds for model in models]):.0f}{megabytes})"


def _angle(vectors: Array, truth: Array) -> float:
    """Return the largest principal angle between two bases (d, k), in degrees."""
    return float(eigen.principal_angles(vectors, truth).max())


ROUNDS, STEPS = 200, 5  # of FedAvg, and gradient steps of a party in each round


@harness.benchmark("README.md")
def _alternatives(dataset: harness.Dataset = "digits", data_root: str = ".", components: int = 10) -> Lines:
    """Measure what people do instead of p-cov: the largest angle to the PCA of all rows, in degrees, at 10 parties.

    Averaging is ap-stack as published. scikit-learn's IncrementalPCA goes from party to party. FedAvg trains a linear
    autoencoder in 200 rounds of five full gradient steps, and even knows the mean of all rows, as it could not.
    """
    parts = [np.asarray(rows, dtype=np.float64) for rows in harness.clients(dataset, data_root)]
    truth, incremental = _components(np.vstack(parts), components, scale=False), IncrementalPCA(components)
    methods = "p-cov", "ap-stack variant=paper"
    ours, averaged = (run(method, parts, n_components=components, min_rows=1) for method in methods)
    for rows in sorted(parts, key=len, reverse=True):
        incremental.partial_fit(rows)
    yield "way", "rounds", "degrees off"
    yield "`p-cov`", ours.rounds, f"{_angle(ours.loadings()[0].T, truth):.0e}"
    yield "average the sites' components", averaged.rounds, f"{_angle(averaged.loadings()[0].T, truth):.2g}"
    yield "hand `IncrementalPCA` from site to site", len(parts), f"{_angle(incremental.components_.T, truth):.2g}"
    yield "train an autoencoder by FedAvg", ROUNDS, f"{_angle(_federated_average(parts, components), truth):.2g}"


def _federated_average(parts: Sequence[Array], k: int) -> Array:
    """Return the weights (d, k) of a linear autoencoder, encoder and decoder in one, after FedAvg over the parties."""
    pooled = np.vstack(parts)
    centred = [rows - pooled.mean(axis=0) for rows in parts]
    rate = 0.25 / np.linalg.eigvalsh(np.cov(pooled.T))[-1]
    W = np.linalg.qr(np.random.default_rng(0).standard_normal((pooled.shape[1], k)))[0]
    for _ in range(ROUNDS):
        total = np.zeros_like(W)
        for X in centred:
            V, C = W, X.T @ X / len(X)
            for _ in range(STEPS):
                V = V + rate * (2 * C @ V - V @ (V.T @ C @ V) - C @ V @ (V.T @ V))
            total += len(X) / len(pooled) * V
        W = total
    return W


ROWS, MAP_ROWS, PARTIES = 1500, 600, 3
# deviations of the features, and number of components
SPREADS: dict[str, tuple[list[float], int]] = {
    "moderate": ([4.0, 3.0, 2.2, 1.5, 1.2, 1.0, 1.0, 1.0], 3),
    "one that dominates": ([10.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2),
    "nearly flat": ([*np.linspace(3, 2, 5), *[1.0] * 15], 5),
}


def _with_far_rows(rng: Generator, rows: Array, share: float) -> Array:
    """Set a random share of the `ROWS` rows (n, d) to 1e6 in each feature, in place, and return the rows."""
    rows[rng.choice(ROWS, round(share * ROWS), replace=False)] = 1e6
    return rows


# changes to normal rows
KINDS: dict[str, Callable[[Generator, Array], Array]] = {
    "normal": lambda rng, rows: rows,
    "Student's t, 3 degrees": lambda rng, rows: rows / np.sqrt(rng.chisquare(3, ROWS) / 3)[:, None],
    "5 % of rows at 1e6": lambda rng, rows: _with_far_rows(rng, rows, 0.05),
    "20 % of rows at 1e6": lambda rng, rows: _with_far_rows(rng, rows, 0.2),
}


@harness.benchmark("docs/missing.md", draws=1)
def _robust(draws: int = 20) -> Lines:
    """Compare `robust` with `p-cov`: angles to the true components, and efficiency on normal rows.

    Means over the draws of the largest angle, in degrees. The efficiency is the mean squared sine of the largest angle
    of `p-cov` over that of `robust`, for 900 normal rows of d features.
    """
    rng = np.random.default_rng(1)
    yield "deviations", "rows", "p-cov (deg)", "robust (deg)"
    for name, (spread, k) in SPREADS.items():
        for kind, change in KINDS.items():
            samples = [change(rng, rng.standard_normal((ROWS, len(spread))) * spread) for _ in range(draws)]
            yield name, kind, *(f"{np.mean(_robust_angles(method, samples, k)):.2f}" for method in ("p-cov", "robust"))
    yield ""
    yield "d", "k", "efficiency"
    for d, k in ((3, 1), (10, 2), (40, 3)):
        samples = [_contaminate(rng, Cell(d, k, "two sides", 0, 0), 900) for _ in range(3 * draws)]
        sines = [np.sin(np.radians(_robust_angles(method, samples, k))) for method in ("p-cov", "robust")]
        yield d, k, f"{np.mean(sines[0] ** 2) / np.mean(sines[1] ** 2):.2f}"


def _robust_angles(method: str, samples: Sequence[Array], k: int, parties: int = PARTIES) -> list[float]:
    """Run a method on each sample; return the largest angles, in degrees, to the first k coordinate axes."""
    models = (run(method, np.array_split(rows, parties), n_components=k, progress=False) for rows in samples)
    return [_angle(model.loadings()[0].T, np.eye(samples[0].shape[1], k)) for model in models]


class Cell(NamedTuple):
    """Case of the map of outliers: features, components, direction, share, and distance of outlying rows."""

    d: int
    k: int
    direction: str
    share: float
    distance: float


# to both sides of the last feature or to one; or of the diagonal of all features without components
DIRECTIONS = ("two sides", "one side", "diagonal")
CASES = itertools.product(((8, 2), (20, 5)), (0.1, 0.2), DIRECTIONS, (4, 6, 8, 12, 1e6))
CELLS = [Cell(*sizes, direction, share, distance) for sizes, share, direction, distance in CASES]
R_PROGRAM = """
suppressMessages(library(rrcov))
sizes <- as.integer(commandArgs(TRUE)[2:5])
file <- file(commandArgs(TRUE)[1], "rb")
for (draw in seq_len(sizes[4])) {
  X <- matrix(readBin(file, "double", sizes[1] * sizes[2]), sizes[1], byrow = TRUE)
  for (method in list(PcaHubert, PcaLocantore)) {
    cat(as.vector(getLoadings(method(X, k = sizes[3]))[, seq_len(sizes[3])]), "\\n")
  }
}
"""
MAP_METHODS = ("p-cov", "robust", "ROBPCA", "PcaLocantore")  # the last two are those of R's rrcov


@harness.benchmark("docs/missing.md", draws=1)
def _robust_map(draws: int = 40, figure: str = "") -> Lines:
    """Compare robust methods by the share, distance and direction of outlying rows that lie together.

    The median and the worst of the draws' largest angles, in degrees, to the components that 600 rows of one party were
    drawn by. ROBPCA and PcaLocantore are those of R's rrcov, where it is installed. The figure has the worst angles.
    """
    panels: dict[str, dict[str, harness.Points]] = {}
    yield "d", "share", "direction", "distance", *MAP_METHODS
    for cell in CELLS:
        samples = [_contaminate(np.random.default_rng([0, i]), cell, MAP_ROWS) for i in range(draws)]
        angles = {method: _robust_angles(method, samples, cell.k, parties=1) for method in ("p-cov", "robust")}
        angles |= _angles_of_rrcov(samples, cell)
        panel = panels.setdefault(f"d = {cell.d}, {cell.share:.0%} of the rows, {cell.direction}", {})
        for method, degrees in angles.items():
            panel.setdefault(method, []).append((cell.distance, max(degrees)))
        lists = (angles.get(method, []) for method in MAP_METHODS)
        cells = (f"{np.median(degrees):.0f}, {max(degrees):.0f}" if degrees else "-" for degrees in lists)
        yield cell.d, f"{cell.share:.0%}", cell.direction, f"{cell.distance:g}", *cells
    labels = "distance in deviations", "worst of the largest angles (degrees)"
    look = {"colours": {"p-cov": "0.6"}, "equal_steps": True, "ticks": (0, 45, 90)}
    harness.plot(figure, panels, labels, rows=4, **look)


def _contaminate(rng: Generator, cell: Cell, n: int) -> Array:
    """Draw normal rows (n, d) with the first k axes as components, a share moved away, as the cell says."""
    rows = rng.standard_normal((n, cell.d)) * np.sqrt(np.append(np.linspace(9, 4, cell.k), np.ones(cell.d - cell.k)))
    chosen = rng.choice(n, int(cell.share * n), replace=False)
    axis = np.where(np.arange(cell.d) >= cell.k, 1.0, 0.0) if cell.direction == "diagonal" else np.eye(cell.d)[-1]
    side = 1.0 if cell.direction == "one side" else rng.choice([-1.0, 1.0], (len(chosen), 1))
    rows[chosen] = 0.3 * rng.standard_normal((len(chosen), cell.d)) + side * cell.distance * axis / np.linalg.norm(axis)
    return rows


def _angles_of_rrcov(samples: Sequence[Array], cell: Cell) -> dict[str, list[float]]:
    """Return each sample's angle, in degrees, of ROBPCA and PcaLocantore in R's rrcov; {} without R or rrcov."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.write_bytes(np.concatenate(samples).tobytes())
        command = ["Rscript", "-e", R_PROGRAM, str(file), *map(str, (MAP_ROWS, cell.d, cell.k, len(samples)))]
        try:
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        except (FileNotFoundError, subprocess.CalledProcessError):
            return {}
    bases = [np.array(line.split(), dtype=float).reshape(cell.k, cell.d).T for line in lines]
    angles = [_angle(V, np.eye(cell.d, cell.k)) for V in bases]
    return {"ROBPCA": angles[::2], "PcaLocantore": angles[1::2]}
