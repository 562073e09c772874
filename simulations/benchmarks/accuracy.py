"""How near results come to what they are held against: components, intervals, missing values."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.stats import norm, t
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale as standardised

from fedpca_flwr import analyses
from fedpca_flwr.analyses import HowSure
from fedpca_flwr.data import datasets
from fedpca_flwr.maths import eigen, sums
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import fourth_powers
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model import reference
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, DIGITS, PARTITIONS, Lines, benchmark, clients
from fedpca_flwr.simulations.engines import run


@benchmark(**DIGITS, clients=10, components=COMPONENTS, seed=42, no_knn=False)
def accuracy(args: Namespace) -> Lines:
    """P-COV and AP-COV against `PCA(svd_solver="full")` of the pooled rows: angles, eigenvalues, k-NN accuracy."""
    source = datasets.load(args.dataset, args.data_root)
    rows = source.all_rows()
    test = None if args.no_knn or source.test is None else source.test()

    def knn(model: PCAModel) -> str:
        return "-" if test is None else f"{reference.knn_accuracy(model, rows, source.labels, *test):.2%}"

    truth = reference.pooled_pca(rows, args.components)
    angles = "max angle (deg)", "mean"
    yield "partition", "method", *angles, "eigenvalues (rel.)", "ratio", "bytes up per client", "k-NN(5)"
    yield "pooled", "PCA full", 0, 0, 0, 0, "-", knn(truth)
    for name, how in PARTITIONS.items():
        parts = clients(args.dataset, args.data_root, args.clients, seed=args.seed, **how)
        for method in ("p-cov", "ap-cov"):
            model = run(method, parts, n_components=args.components, min_rows=1)
            values = np.abs(model.explained_variance_ / truth.explained_variance_ - 1).max()
            ratio = np.abs(model.explained_variance_ratio_ - truth.explained_variance_ratio_).max()
            errors = [f"{value:.1e}" for value in (*reference.principal_angles(model, truth), values, ratio)]
            yield name, method, *errors, f"{max(model.log['rounds'][0]['up']):,}", knn(model)


VARIANCES = 2.0 ** np.arange(4, -4, -1)
POPULATION = 3
"""Components of it."""

PARTIES = {
    "20 parties of 50 rows": [50] * 20,
    "16 parties of 5 to 400 rows": [400, 200, 100, 80, 60, 40, 30, 20, 20, 10, 10, 10, 5, 5, 5, 5],
    "13 parties, one of 300 rows and 12 of 25": [300] + [25] * 12,
}
FREEDOM = 9


@benchmark(trials=2000)
def coverage(args: Namespace) -> Lines:
    """How often intervals cover what they are for: variances and loadings of a population; parties hold samples of it.

    Eight features of known variances in a random basis, three components, intervals at 95 %. The parties are of equal
    and of very unequal size; rows are normal, or have the heavier tails of Student's distribution with 9 degrees of
    freedom.
    """
    basis = eigen.fix_signs(np.linalg.qr(np.random.default_rng(1).standard_normal((len(VARIANCES),) * 2))[0])
    yield "rows", "intervals", "parties", "variances covered (1, 2, 3)", "loadings covered (1, 2, 3)"
    for heavy in (False, True):
        for name, sizes in PARTIES.items():
            rng = np.random.default_rng(0)
            normal = norm.ppf(0.975)
            steps = {"asymptotic": normal, "fourth moments": normal, "by parties": t.ppf(0.975, len(sizes) - 1)}
            hits = {way: np.zeros((2, POPULATION)) for way in steps}
            for _ in range(args.trials):
                parties = sampled(sizes, basis, rng, heavy=heavy)
                own = {f"party {i}": Moments.from_rows(rows) for i, rows in enumerate(parties)}
                moments = SecondMoments(sums.pool(own.values()), parties=own)
                model, plain = analyses.pca(moments, POPULATION), analyses.how_sure(moments, POPULATION)
                robust = by_fourth_moments(parties, model, plain)
                ways = plain, robust, analyses.how_sure_by_parties(moments, POPULATION)
                for way, found in zip(steps, ways, strict=True):
                    hits[way] += covered(found, model.loadings()[0], basis, steps[way])
            for way, counts in hits.items():
                shares = [", ".join(f"{share:.1%}" for share in line / args.trials) for line in counts]
                yield "heavy tails" if heavy else "normal", way, name, *shares


def sampled(sizes: Sequence[int], basis: Array, rng: Generator, *, heavy: bool) -> list[Array]:
    """Parties of so many rows."""
    parties = []
    for rows in sizes:
        shape = rows, len(VARIANCES)
        noise = rng.standard_t(FREEDOM, shape) * np.sqrt(1 - 2 / FREEDOM) if heavy else rng.standard_normal(shape)
        parties.append(noise * np.sqrt(VARIANCES) @ basis.T)
    return parties


def by_fourth_moments(parties: Sequence[Array], model: PCAModel, plain: HowSure) -> HowSure:
    """Intervals by what the parties of a run with ``fourth_moments=True`` add up in its last round."""
    fourth = np.sum([fourth_powers(model.transform(rows), model.explained_variance_) for rows in parties], axis=0)
    known = replace(model, log={**model.log, "kurtosis": (fourth / model.n_samples_).tolist()})
    return replace(plain, variance_intervals=analyses.variance_intervals(known))


def covered(found: HowSure, components: Array, basis: Array, step: float) -> Array:
    """Which variances an interval covers, and of each component the share of its loadings: (2, k)."""
    low, high = found.variance_intervals.T
    truth, axes = VARIANCES[:POPULATION], basis[:, :POPULATION].T
    turned = components * np.sign(np.sum(components * axes, axis=1))[:, None]
    held = np.abs(turned - axes) <= step * found.loading_errors
    return np.array([(low <= truth) & (truth <= high), held.mean(axis=1)], dtype=np.float64)


PRIORS = (0.01, 1.0, 5.0, 10.0, 20.0, 40.0)


@benchmark(draws=10, shares=[0.05, 0.2, 0.4], datasets=["wine", "breast-cancer"], wide=False, data_root=".")
def missing(args: Namespace) -> Lines:
    """EM on rows with missing values: how near it comes to the components of the complete rows, and in how many rounds.

    Wine and breast-cancer, scaled, 3 parties, 3 components, values missing completely at random. Largest angle in
    degrees, mean of the draws; in brackets the mean number of rounds.

        python -m fedpca_flwr.simulations.benchmarks missing --wide --data-root DEST

    1,000 rows of MNIST (784 features, 10 components), and 300 simulated rows of 3,000 features and 5 factors, in the
    unit of the data, one draw: the covariance of all features, for 30 rounds at most, beside models of few factors,
    with what each party sent in MB. Of 3,000 features the covariance would take 36 MB a round; it is left out.
    """
    if args.wide:
        yield from on_wide_rows(args.shares, args.data_root)
        return
    yield "data", "missing", "filled by means", *(f"prior {prior:g}" for prior in PRIORS)
    for name in args.datasets:
        X = np.asarray(datasets.load(name).all_rows(), dtype=np.float64)
        truth = components_of(standardised(X), 3)
        for share in args.shares:
            draws = [with_holes(X, share, seed) for seed in range(args.draws)]
            means = np.mean([angle(components_of(standardised(filled(Y)), 3), truth) for Y in draws])
            yield name, f"{share:.0%}", f"{means:.1f}", *(by_em(draws, prior, truth) for prior in PRIORS)


def on_wide_rows(shares: Sequence[float], root: str) -> Lines:
    pixels = np.asarray(datasets.load("mnist", root).all_rows()[:1000], dtype=np.float64)
    yield "data", "missing", "filled by means", "k factors", "k + 5", "k + 10", "k + 20", "gaussian"
    for name, X, k in (("MNIST", pixels, 10), ("simulated", of_five_factors(), 5)):
        truth = components_of(X, k)
        for share in shares:
            Y = with_holes(X, share, 0)
            cells = [in_bytes(Y, k, truth, {"model": "factors", "factors": k + more}) for more in (0, 5, 10, 20)]
            whole = in_bytes(Y, k, truth, {"max_rounds": 28}) if X.shape[1] < 1000 else "-"
            yield name, f"{share:.0%}", f"{angle(components_of(filled(Y), k), truth):.1f}", *cells, whole


def of_five_factors(rows: int = 300, features: int = 3000) -> Array:
    """Rows whose features have noise of their own, in deviation between 0.5 and 1.5."""
    rng = np.random.default_rng(0)
    loadings = 0.3 * rng.standard_normal((5, features)) * np.array([[3.0], [2.5], [2.0], [1.5], [1.0]])
    noise = rng.standard_normal((rows, features)) * (0.5 + rng.random(features))
    return np.asarray(rng.standard_normal((rows, 5)) @ loadings + noise)


def with_holes(X: Array, share: float, seed: int) -> Array:
    """X (n, d) with that share missing completely at random; no row is without any value."""
    missing = np.random.default_rng(seed).random(X.shape) < share
    missing[missing.all(axis=1)] = False
    return np.where(missing, np.nan, X)


def filled(Y: Array) -> Array:
    """Rows whose missing values are the means of the others."""
    return np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)


def components_of(X: Array, k: int) -> Array:
    """Components (d, k) of complete rows."""
    return np.asarray(PCA(k, svd_solver="full").fit(X).components_.T)


def in_bytes(Y: Array, k: int, truth: Array, options: Mapping[str, Any]) -> str:
    model = run("em", np.array_split(Y, 3), n_components=k, min_rows=1, **options)
    megabytes = max(model.bytes_up_by_party) / 1e6
    return f"{angle(np.asarray(model.components_).T, truth):.1f} ({model.rounds}; {megabytes:.1f} MB)"


def by_em(draws: Sequence[Array], prior: float, truth: Array) -> str:
    options: dict[str, Any] = {"n_components": 3, "scale": True, "prior": prior, "min_rows": 1, "max_rounds": 1000}
    models = [run("em", np.array_split(Y, 3), **options) for Y in draws]
    angles = [angle(np.asarray(model.components_).T, truth) for model in models]
    return f"{np.mean(angles):.1f} ({np.mean([model.rounds for model in models]):.0f})"


def angle(vectors: Array, truth: Array) -> float:
    """Largest, in degrees."""
    return float(eigen.principal_angles(vectors, truth).max())
