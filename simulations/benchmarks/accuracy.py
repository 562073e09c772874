"""Accuracy of results: components, intervals and missing values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.stats import norm, t
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale as standardise

from fedpca_flwr import analyses
from fedpca_flwr.analyses import HowSure
from fedpca_flwr.data.datasets import load
from fedpca_flwr.maths import eigen, sums
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import fourth_powers
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model import reference
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.simulations.engines import run


@harness.benchmark("docs/benchmarks.md", components=5, knn=False)
def _accuracy(
    dataset: harness.Dataset = "digits", data_root: str = ".", components: int = harness.COMPONENTS, knn: bool = True
) -> Lines:
    """Compare P-COV and AP-COV of ten harness.clients with `PCA(svd_solver="full")` of the pooled rows."""
    source = load(dataset, data_root)
    rows = source.all_rows()
    test = source.test() if knn and source.test is not None else None
    truth = reference.pooled_pca(rows, components)
    angles = "max angle (deg)", "mean"
    yield "partition", "method", *angles, "eigenvalues (rel.)", "ratio", "bytes up per client", "k-NN(5)"
    models: list[tuple[str, str, Any]] = [("pooled", "PCA full", truth)]
    for name, how in harness.PARTITIONS.items():
        parts = harness.clients(dataset, data_root, **how)
        models += [(name, way, run(way, parts, n_components=components, min_rows=1)) for way in ("p-cov", "ap-cov")]
    for name, way, model in models:
        values = np.abs(model.explained_variance_ / truth.explained_variance_ - 1).max()
        ratio = np.abs(model.explained_variance_ratio_ - truth.explained_variance_ratio_).max()
        errors = [f"{value:.1e}" for value in (*reference.principal_angles(model, truth), values, ratio)]
        nbytes = "-" if model is truth else f"{max(model.log['rounds'][0]['up']):,}"
        neighbours = f"{reference.knn_accuracy(model, rows, source.labels, *test):.2%}" if test else "-"
        yield name, way, *errors, nbytes, neighbours


VARIANCES = 2.0 ** np.arange(4, -4, -1)
POPULATION_COMPONENTS = 3
DEGREES_OF_FREEDOM = 9
PARTY_SIZES = {
    "20 parties of 50 rows": [50] * 20,
    "16 parties of 5 to 400 rows": [400, 200, 100, 80, 60, 40, 30, 20, 20, 10, 10, 10, 5, 5, 5, 5],
    "13 parties, one of 300 rows and 12 of 25": [300] + [25] * 12,
}


@harness.benchmark("docs/statistics.md", trials=10)
def _coverage(trials: int = 2000) -> Lines:
    """Count how often 95 % intervals cover the variances and the loadings of the population that parties sample.

    Eight features of known variances in a random basis, three components. The parties are of equal and of very unequal
    size; rows are normal, or have the heavier tails of Student's distribution with 9 degrees of freedom.
    """
    basis = eigen.fix_signs(np.linalg.qr(np.random.default_rng(1).standard_normal((len(VARIANCES),) * 2))[0])
    yield "rows", "intervals", "parties", "variances covered (1, 2, 3)", "loadings covered (1, 2, 3)"
    for heavy in (False, True):
        for name, sizes in PARTY_SIZES.items():
            rng, normal = np.random.default_rng(0), norm.ppf(0.975)
            steps = {"asymptotic": normal, "fourth moments": normal, "by parties": t.ppf(0.975, len(sizes) - 1)}
            hits = {way: np.zeros((2, POPULATION_COMPONENTS)) for way in steps}
            for _ in range(trials):
                parties = [_sample(rows, basis, rng, heavy=heavy) for rows in sizes]
                vaults = {f"party {i}": Moments.of(rows) for i, rows in enumerate(parties)}
                moments = SecondMoments(sums.pool(vaults.values()), parties=vaults)
                model = analyses.pca(moments, POPULATION_COMPONENTS)
                plain = analyses.how_sure(moments, POPULATION_COMPONENTS)
                by_parties = analyses.how_sure_by_parties(moments, POPULATION_COMPONENTS)
                ways = plain, _with_fourth_moments(parties, model, plain), by_parties
                for way, intervals in zip(steps, ways, strict=True):
                    hits[way] += _covers(intervals, model.loadings()[0], basis, steps[way])
            for way, counts in hits.items():
                shares = [", ".join(f"{share:.1%}" for share in line / trials) for line in counts]
                yield "heavy tails" if heavy else "normal", way, name, *shares


def _sample(rows: int, basis: Array, rng: Generator, *, heavy: bool) -> Array:
    """Draw rows (n, d) of the population."""
    shape, degrees = (rows, len(VARIANCES)), DEGREES_OF_FREEDOM
    noise = rng.standard_t(degrees, shape) * np.sqrt(1 - 2 / degrees) if heavy else rng.standard_normal(shape)
    return np.asarray(noise * np.sqrt(VARIANCES) @ basis.T)


def _with_fourth_moments(parties: Sequence[Array], model: PCAModel, plain: HowSure) -> HowSure:
    """Replace the intervals by those from what the parties of a run with ``fourth_moments=True`` add up."""
    fourth = np.sum([fourth_powers(model.transform(rows), model.explained_variance_) for rows in parties], axis=0)
    model = replace(model, log={**model.log, "kurtosis": (fourth / model.n_samples_).tolist()})
    return replace(plain, variance_intervals=analyses.variance_intervals(model))


def _covers(intervals: HowSure, components: Array, basis: Array, step: float) -> Array:
    """Return which variances are covered, and the share of each component's loadings: (2, k)."""
    low, high = intervals.variance_intervals.T
    truth, axes = VARIANCES[:POPULATION_COMPONENTS], basis[:, :POPULATION_COMPONENTS].T
    components = components * np.sign(np.sum(components * axes, axis=1))[:, None]
    loadings = np.abs(components - axes) <= step * intervals.loading_errors
    return np.array([(low <= truth) & (truth <= high), loadings.mean(axis=1)], dtype=np.float64)


PRIORS = (0.01, 1.0, 5.0, 10.0, 20.0, 40.0)


@harness.benchmark("docs/missing.md", draws=1, shares=[0.05], datasets=["wine"])
def _missing(
    draws: int = 10,
    shares: list[float] = [0.05, 0.2, 0.4],  # noqa: B006  # not changed
    datasets: list[str] = ["wine", "breast-cancer"],  # noqa: B006
    wide: bool = False,
    data_root: str = ".",
) -> Lines:
    """Compare EM on rows with missing values with the components of the complete rows; in brackets the rounds.

    Wine and breast-cancer, scaled, 3 parties, 3 components, values missing completely at random. Largest angle in
    degrees, mean of the draws. With --wide: 1,000 rows of MNIST (784 features, 10 components), and 300 simulated rows
    of 3,000 features and 5 factors, in the unit of the data, one draw: the covariance of all features, for 30 rounds at
    most, beside models of few factors, with MB that each party sent. Of 3,000 features the covariance would take 36 MB
    a round; it is left out.
    """
    cases: list[tuple[str, Array, int]] = []
    if wide:
        pixels = np.asarray(load("mnist", data_root).all_rows()[:1000], dtype=np.float64)
        cases = [("MNIST", pixels, 10), ("simulated", _five_factors(), 5)]
        yield "data", "missing", "filled by means", "k factors", "k + 5", "k + 10", "k + 20", "gaussian"
    else:
        cases = [(name, np.asarray(load(name).all_rows(), dtype=np.float64), 3) for name in datasets]
        yield "data", "missing", "filled by means", *(f"prior {prior:g}" for prior in PRIORS)
    for name, X, k in cases:
        truth = _components(X, k, scale=not wide)
        options: list[dict[str, Any]] = [{"scale": True, "prior": prior, "max_rounds": 1000} for prior in PRIORS]
        if wide:
            options = [{"model": "factors", "factors": k + further} for further in (0, 5, 10, 20)]
            options += [{"max_rounds": 28}] if X.shape[1] < 1000 else []
        for share in shares:
            holed = [_with_holes(X, share, seed) for seed in range(1 if wide else draws)]
            means = np.mean([_angle(_components(_fill(Y), k, scale=not wide), truth) for Y in holed])
            cells = [_em(holed, k, truth, keywords, sizes=wide) for keywords in options]
            yield name, f"{share:.0%}", f"{means:.1f}", *cells, *["-"] * (wide and 5 - len(cells))


def _five_factors(rows: int = 300, features: int = 3000) -> Array:
    """Draw rows of five factors; the noise of each feature has a deviation between 0.5 and 1.5."""
    rng = np.random.default_rng(0)
    loadings = 0.3 * rng.standard_normal((5, features)) * np.array([[3.0], [2.5], [2.0], [1.5], [1.0]])
    noise = rng.standard_normal((rows, features)) * (0.5 + rng.random(features))
    return np.asarray(rng.standard_normal((rows, 5)) @ loadings + noise)


def _with_holes(X: Array, share: float, seed: int) -> Array:
    """Return X (n, d) with a share missing completely at random; no row loses all values."""
    missing = np.random.default_rng(seed).random(X.shape) < share
    missing[missing.all(axis=1)] = False
    return np.where(missing, np.nan, X)


def _fill(Y: Array) -> Array:
    return np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)


def _components(X: Array, k: int, *, scale: bool) -> Array:
    """Return the components (d, k) of complete rows."""
    return np.asarray(PCA(k, svd_solver="full").fit(standardise(X) if scale else X).components_.T)


def _em(holed: Sequence[Array], k: int, truth: Array, options: Mapping[str, Any], *, sizes: bool) -> str:
    models = [run("em", np.array_split(Y, 3), n_components=k, min_rows=1, **options) for Y in holed]
    angle = np.mean([_angle(np.asarray(model.components_).T, truth) for model in models])
    megabytes = f"; {max(models[0].bytes_up_by_party) / 1e6:.1f} MB" if sizes else ""
    return f"{angle:.1f} ({np.mean([model.rounds for model in models]):.0f}{megabytes})"


def _angle(vectors: Array, truth: Array) -> float:
    return float(eigen.principal_angles(vectors, truth).max())
