"""The methods of the design notes 000 and 001: as dense matrices, the selection by divergences, and private noise."""

import hashlib
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from fedpca_flwr import run
from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS, integer_products, integer_sum
from fedpca_flwr.strategies.dp_pca.party import DPOptions
from tests.papers.partitions import PARTITIONS, ROWS

(N, D), K, MEAN, SEED, STEPS = ROWS.shape, 4, ROWS.mean(axis=0), 42, 6
LAWS = {
    "p-cov": {"variant": "paper"},
    "ap-cov": {},
    "ap-cov, simple": {"party_weights": "none"},
    "ap-stack": {"variant": "paper"},
    "ap-stack, scaled": {},
    "qr-pca": {"variant": "paper"},
    "sub-it": {"variant": "paper", "max_rounds": STEPS},
    "compressed": {"variant": "paper"},
}


def leading(C, k=K):
    values, vectors = np.linalg.eigh(C)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def low_rank(C, k):
    values, V = leading(C, k)
    return V * values @ V.T


def published(law, parts):
    """Return the variances with the divisor N, and the components (D, K), by the formulas of the notes."""
    n, C = [len(X) for X in parts], [np.cov(X, rowvar=False, ddof=0) for X in parts]  # 000, 4.1
    means = np.array([np.sqrt(len(X) / N) * (X.mean(axis=0) - MEAN) for X in parts])
    match law:
        case "p-cov":
            return leading(np.average(C, axis=0, weights=n) + means.T @ means)
        case "ap-cov":  # 000, 5.2: without the correction
            return leading(np.average(C, axis=0, weights=n))
        case "ap-cov, simple":
            return leading(np.mean(C, axis=0))
        case "ap-stack":  # the note states no variances: those of the low-rank mean, by which components are in order
            _, _, Vt = np.linalg.svd(np.hstack([leading(part)[1] for part in C]).T)
            values = np.diag(Vt[:K] @ np.mean([low_rank(part, K) for part in C], axis=0) @ Vt[:K].T)
            return np.sort(values)[::-1], Vt[:K].T[:, np.argsort(-values)]
        case "ap-stack, scaled":
            return leading(np.mean([low_rank(part, K) for part in C], axis=0))
        case "qr-pca":
            svds = [np.linalg.svd(X - X.mean(axis=0), full_matrices=False) for X in parts]
            R = np.linalg.qr(np.vstack([np.sqrt(N) * means, *(s[:K, None] * Vt[:K] for _, s, Vt in svds)]))[1]
            _, s, Vt = np.linalg.svd(R)
            return s[:K] ** 2 / N, Vt[:K].T
        case "compressed":
            return leading(np.average([low_rank(part, 2 * K) for part in C], axis=0, weights=n) + means.T @ means)
    bits = np.frombuffer(hashlib.shake_256(f"{SEED}/{D}/{K}".encode()).digest(4 * D * K), "<u4") >> 9  # our start
    V, _ = np.linalg.qr((2.0 * bits + 1).reshape(D, K) / 2**23 - 1)
    for _ in range(STEPS - 1):
        V, _ = np.linalg.qr(sum((X - MEAN).T @ ((X - MEAN) @ V) for X in parts))
    values, rotation = leading(sum(V.T @ (X - MEAN).T @ (X - MEAN) @ V for X in parts) / N)
    return values, V @ rotation


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("law", LAWS)
def test_a_run_as_in_the_notes_is_their_formula(law, partition):
    """Faults: other weights or divisors, a filler, rounded numbers, a Krylov space, a mean that is left out or in."""
    parts, method = [ROWS[rows] for rows in PARTITIONS[partition]], law.partition(",")[0]
    values, vectors = published(law, parts)
    model = run(method, parts, n_components=K, seed=SEED, **LAWS[law])
    signs = np.sign(np.sum(model.components_.T * vectors, axis=0))
    np.testing.assert_allclose(model.components_, (vectors * signs).T, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, values * N / (N if method == "p-cov" else N - 1), rtol=1e-9)
    np.testing.assert_allclose(model.singular_values_, np.sqrt(values * N), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, MEAN, rtol=1e-12)


def test_the_divisor_changes_variances_and_nothing_else():
    """Faults: a noise variance with the other divisor, or a squared error that does not fit the variances."""
    parts = [ROWS[rows] for rows in PARTITIONS["dirichlet"]]
    ours, paper = (run("p-cov", parts, n_components=K, variant=variant) for variant in ("ours", "paper"))
    for name in ("explained_variance_", "noise_variance_", "total_variance"):
        np.testing.assert_allclose(getattr(paper, name), (N - 1) / N * getattr(ours, name), rtol=1e-14)
    for name in ("components_", "mean_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_array_equal(getattr(paper, name), getattr(ours, name))
    np.testing.assert_allclose(paper.squared_error, ours.squared_error, rtol=1e-12)


def shares(C):
    values = np.linalg.eigvalsh(C) + 1e-12 * np.trace(C)
    return values / values.sum()


def selection(parties, k, border=0.35):
    """Return the means of the four divergences, and components, variances and ratios of the method that is chosen."""
    n, N = [len(X) for X in parties], sum(map(len, parties))
    means, covariances = [X.mean(axis=0) for X in parties], [np.cov(X.T, bias=True) for X in parties]
    mean = sum(n_k * m for n_k, m in zip(n, means, strict=True)) / N
    average = sum(n_k * C for n_k, C in zip(n, covariances, strict=True)) / N
    total, p = np.trace(average), shares(average)
    measures = []
    for m, C in zip(means, covariances, strict=True):
        between = np.linalg.norm(m - mean) / np.sqrt(total)
        frobenius = np.linalg.norm(C - average) / np.linalg.norm(average)
        measures.append([between, frobenius, (shares(C) * np.log(shares(C) / p)).sum(), abs(np.trace(C) / total - 1)])
    four = np.minimum(measures, 1).mean(axis=0)
    pooled = np.cov(np.vstack(parties).T, bias=True)
    values, vectors = np.linalg.eigh(average if four.mean() <= border else pooled)
    variances = values[::-1][:k]
    return four, vectors[:, ::-1][:, :k], variances * N / (N - 1), variances / np.trace(pooled), mean


@pytest.mark.parametrize(("name", "chosen"), [("iid", "ap-cov"), ("dirichlet", "p-cov"), ("shards", "p-cov")])
def test_the_notes_variant_is_its_selection(name, chosen):
    parties = [ROWS[part] for part in PARTITIONS[name]]
    four, components, variances, ratios, mean = selection(parties, 3)
    model = run("adaptive", parties, n_components=3, variant="paper")
    measured = model.log["measured"]
    names = ("means", "covariances", "spectra", "variances")
    np.testing.assert_allclose([measured[f"divergence_{which}"] for which in names], four, rtol=1e-9)
    assert measured["divergence_score"] == pytest.approx(four.mean(), rel=1e-9)
    assert (model.log["chosen"]["method"], model.log["exact"]) == (chosen, chosen == "p-cov")
    np.testing.assert_allclose(np.abs(model.components_ @ components), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, ratios, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-9)
    assert f"so {chosen}" in model.summary(full=True)
    assert [entry["phase"] for entry in model.log["rounds"]] == ["moments", "project"]


def score(*parties, **options):
    log = run("adaptive", parties, n_components=2, min_rows=1, rule="divergences", **options).log
    return log["measured"]["divergence_score"], log["chosen"]["method"]


def test_the_score_and_its_threshold():
    """Of alike parties the score is 0, where only the means differ one of four parts is not, and none exceeds 1."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    assert score(X, X) == (pytest.approx(0, abs=1e-12), "ap-cov")
    assert score(X, X + 50) == (pytest.approx(0.25), "ap-cov")
    assert score(X, X + 50, threshold=0.2)[1] == "p-cov"
    assert 0.5 < score(X, X * [1e3, 1, 1, 1])[0] < 1
    assert score(*X[:5, None]) == (pytest.approx(0.25), "p-cov")  # a row each: averaged covariances are zero
    assert score(*[part * 1e100 for part in (X, X + 50)])[0] == pytest.approx(0.25)


CLIP, DELTA = 5.0, 1e-5
UNITS = {"sum": CLIP / GRID_STEPS, "products": (CLIP / GRID_STEPS) ** 2}


def note_sigma(sensitivity, epsilon):
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def delta_of(multiplier, epsilon):
    """Return the exact delta of Gaussian noise, from the two tails of the privacy loss."""
    shift, loss = 1 / (2 * multiplier), epsilon * multiplier
    return norm.cdf(shift - loss) - math.exp(epsilon) * norm.cdf(-shift - loss)


def deviations(**options):
    """Return the deviations of the noise in the sum of rows and in that of their products, in units of the data."""
    noise = DPOptions(variant="paper", **options).noise("joint").deviations
    return {name: noise[name] * unit for name, unit in UNITS.items()}


@pytest.mark.parametrize(("epsilon", "holds"), [(0.5, True), (1.0, True), (10.0, False)])
def test_the_multiplier_is_the_notes_where_it_is_private(epsilon, holds):
    parties = [ROWS[part] for part in PARTITIONS["iid"]]
    model = run("dp-pca", parties, n_components=3, variant="paper", epsilon=epsilon, noise_seed=1)
    multiplier, formula = model.log["measured"]["noise_multiplier_joint"], note_sigma(1, epsilon)
    assert (delta_of(formula, epsilon) <= DELTA) == holds
    assert multiplier == pytest.approx(formula, rel=1e-12) if holds else multiplier > formula
    assert delta_of(multiplier, epsilon) <= DELTA * (1 + 1e-9)
    assert model.log["measured"]["clipping_norm_joint"] == CLIP


def test_the_noise_is_the_notes_formula_with_sensitivities_that_hold():
    """A replaced row moves the sum by 2 c, the products by sqrt(2) c^2, and both not at once: by 1.25 instead of 1.41.

    With t the cosine of the two rows the squares are (2 - 2 t) c^2 and (2 - 2 t^2) c^4.
    """
    t = np.linspace(-1, 1, 200_001)
    together = np.sqrt(((2 - 2 * t) / 4 + (2 - 2 * t**2) / 2).max())
    assert together == pytest.approx(1.25)
    expected = {"sum": together * note_sigma(2 * CLIP, 1), "products": together * note_sigma(2**0.5 * CLIP**2, 1)}
    assert deviations() == pytest.approx(expected, rel=1e-3)  # deviations are whole steps, rounded up


def test_no_neighbour_exceeds_what_the_noise_is_made_for():
    noise, others = deviations(), np.random.default_rng(0).standard_normal((5, 3))
    twice = (2 - np.eye(3)[np.triu_indices(3)]) ** 0.5  # two halves of a symmetric matrix, at half the variance each

    def change(flat):
        """Return the distance of neighbours' sums, on the grid, in deviations of the noise."""
        first, second = (np.vstack([others, row]) for row in flat.reshape(2, 1, 3))
        sums, products = (
            unit * (statistic(first, np.zeros(3), CLIP) - statistic(second, np.zeros(3), CLIP))
            for statistic, unit in zip((integer_sum, integer_products), UNITS.values(), strict=True)
        )
        return math.hypot(np.linalg.norm(sums) / noise["sum"], np.linalg.norm(products * twice) / noise["products"])

    starts = np.random.default_rng(1).standard_normal((2, 6)) * 9
    largest = max(-minimize(lambda x: -change(x), start, method="Powell").fun for start in starts)
    assert 0.99 < largest * note_sigma(1, 1) <= 1
