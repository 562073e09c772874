"""Methods beside recursions of dense matrices: notes 000 and 001, Gang, Grammenos 2019, Cheung 2022, Ozkara 2023."""

import hashlib
import math
from operator import matmul

import dp_accounting
import numpy as np
import pytest
from scipy.linalg import polar, sqrtm
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics.pairwise import rbf_kernel

from fedpca_flwr import run
from fedpca_flwr.data.partition import split
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS
from fedpca_flwr.strategies.dp_pca.party import DPOptions

DATA, LABELS = (array[:600] for array in load_digits(return_X_y=True))
ROWS = DATA[:, np.flatnonzero(DATA.std(axis=0) > 2)[:20]]
KINDS = ("iid", "dirichlet", "shards")
PARTITIONS = {kind: split(LABELS, 5, kind=kind, seed=27, shards_per_party=1) for kind in KINDS}
(N, D), K, MEAN, SEED, STEPS = ROWS.shape, 4, ROWS.mean(axis=0), 42, 6
LAWS: dict[str, dict] = {law: {"variant": "paper"} for law in ("p-cov", "ap-stack", "qr-pca", "compressed")}
LAWS |= {"ap-cov": {}, "ap-stack, scaled": {}, "ap-cov, simple": {"party_weights": "none"}}
LAWS["sub-it"] = {"variant": "paper", "max_rounds": STEPS}
CLIP, DELTA = 5.0, 1e-5
NOTE_SIGMA = math.sqrt(2 * math.log(1.25 / DELTA))  # with a sensitivity and an epsilon of 1
UNIT = 64  # the paper's scores have variance 1: its step sizes are stable for rows of about that size
SYMBOLS = {"alpha": 0.01, "beta": 0.02, "spread": 0.01, "noise": 0.36, "seed": 7, "half": 1.0}
OPTIONS = {"local_step": 0.01, "server_step": 0.02, "sigma_u": 0.1, "sigma_eps": 0.6, "seed": 7, "solver": "stiefel"}
COLUMNS = load_breast_cancer().data[:100]
COLUMNS = COLUMNS / COLUMNS.max(axis=0)
SPLITS = {"3, 5, 22": [3, 8], "1, 10, 12, 7": [1, 11, 23], "28, 2": [28]}
KERNELS = {
    "vfedpca": (lambda X: X @ X.T / X.shape[1], {}),
    "vfedpca scaled": (lambda X: X @ X.T / X.shape[1], {"weight_scaling": True, "warm_start": "previous"}),
    "vfedakpca rbf": (lambda X: rbf_kernel(X, gamma=0.4), {"gamma": 0.4}),  # equation 11
}
SIGMOID = {"kernel": "sigmoid", "gamma": 0.2, "coef0": 1.0}
KERNELS["vfedakpca sigmoid"] = (lambda X: np.tanh(1 - 0.2 * X @ X.T), SIGMOID)  # equation 12


def leading(C, k=K):
    values, vectors = np.linalg.eigh(C)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def random_start(k):
    """Return the block (D, k) that every party makes itself."""
    bits = np.frombuffer(hashlib.shake_256(f"{SEED}/{D}/{k}".encode()).digest(4 * D * k), "<u4") >> 9
    return ((2.0 * bits + 1) / 2**23 - 1).reshape(D, k)


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
    V, _ = np.linalg.qr(random_start(K))
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


@pytest.mark.parametrize(("name", "chosen"), [("iid", "ap-cov"), ("dirichlet", "ap-cov"), ("shards", "p-cov")])
def test_the_notes_variant_is_its_selection(name, chosen):
    parties = [ROWS[part] for part in PARTITIONS[name]]
    n, covariances = [len(X) for X in parties], [np.cov(X.T, bias=True) for X in parties]
    average, pooled, measures = np.average(covariances, axis=0, weights=n), np.cov(ROWS.T, bias=True), []
    total, p = np.trace(average), shares(average)
    for X, C in zip(parties, covariances, strict=True):
        between = np.linalg.norm(X.mean(axis=0) - MEAN) / np.sqrt(total)
        frobenius = np.linalg.norm(C - average) / np.linalg.norm(average)
        measures.append([between, frobenius, (shares(C) * np.log(shares(C) / p)).sum(), abs(np.trace(C) / total - 1)])
    four = np.minimum(measures, 1).mean(axis=0)
    values, components = leading(average if four.mean() <= 0.35 else pooled, 3)
    model = run("adaptive", parties, n_components=3, variant="paper")
    parts = ("means", "covariances", "spectra", "variances", "score")
    measured = [model.log["measured"][f"divergence_{part}"] for part in parts]
    np.testing.assert_allclose(measured, [*four, four.mean()], rtol=1e-9)
    assert (model.log["chosen"]["method"], model.log["exact"]) == (chosen, chosen == "p-cov")
    np.testing.assert_allclose(np.abs(model.components_ @ components), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, values * N / (N - 1), rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, values / np.trace(pooled), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, MEAN, rtol=1e-9)
    assert f"so {chosen}" in model.summary(full=True)
    assert [entry["phase"] for entry in model.log["rounds"]] == ["moments", "project"]


def test_the_score_and_its_threshold():
    """Of alike parties the score is 0, where only the means differ one of four parts is not, and none exceeds 1."""

    def score(*parties, **options):
        log = run("adaptive", parties, n_components=2, min_rows=1, rule="divergences", **options).log
        return log["measured"]["divergence_score"], log["chosen"]["method"]

    X = np.random.default_rng(0).standard_normal((60, 4))
    assert score(X, X) == (pytest.approx(0, abs=1e-12), "ap-cov")
    assert score(X, X + 50) == (pytest.approx(0.25), "ap-cov")
    assert score(X, X + 50, threshold=0.2)[1] == "p-cov"
    assert 0.5 < score(X, X * [1e3, 1, 1, 1])[0] < 1
    assert score(*X[:5, None]) == (pytest.approx(0.25), "p-cov")  # a row each: averaged covariances are zero
    assert score(*[part * 1e100 for part in (X, X + 50)])[0] == pytest.approx(0.25)


@pytest.mark.parametrize(("epsilon", "holds"), [(0.5, True), (1.0, True), (10.0, False)])
def test_the_multiplier_is_the_notes_where_it_is_private(epsilon, holds):
    parties = [ROWS[part] for part in PARTITIONS["iid"]]
    model = run("dp-pca", parties, n_components=3, variant="paper", epsilon=epsilon, noise_seed=1)
    multiplier, formula = model.log["measured"]["noise_multiplier_joint"], NOTE_SIGMA / epsilon
    assert (dp_accounting.get_epsilon_gaussian(formula, DELTA) <= epsilon) == holds
    assert multiplier == pytest.approx(formula, rel=1e-12) if holds else multiplier > formula
    assert dp_accounting.get_epsilon_gaussian(multiplier, DELTA) <= epsilon * (1 + 1e-9)
    assert model.log["measured"]["clipping_norm_joint"] == CLIP


def test_the_noise_is_the_notes_formula_with_sensitivities_that_hold():
    """A replaced row moves the sum by 2 c, the products by sqrt(2) c^2, and both not at once: by 1.25, not 1.41."""
    t = np.linspace(-1, 1, 200_001)  # the cosine of the two rows: squares are (2 - 2 t) c^2 and (2 - 2 t^2) c^4
    together = np.sqrt(((2 - 2 * t) / 4 + (2 - 2 * t**2) / 2).max())
    assert together == pytest.approx(1.25)
    noise, unit = DPOptions(variant="paper").noise("joint").deviations, CLIP / GRID_STEPS
    expected = together * NOTE_SIGMA * np.array([2 * CLIP, 2**0.5 * CLIP**2])  # deviations are whole steps, rounded up
    np.testing.assert_allclose([noise["sum"] * unit, noise["products"] * unit**2], expected, rtol=1e-3)


def sanger(A, X):
    """Return each party's direction of Sanger's rule, of scatters (parties, d, d) and iterates (parties, d, k)."""
    return A @ X - X @ np.triu(X.mT @ A @ X)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("method", ["dsa", "fast-pca"])
def test_a_run_is_the_published_iteration(method, partition):
    """One random start, 40 steps of 0.1 on a ring, and the mean of the parties' iterates."""
    parts, tracked = [ROWS[part] for part in PARTITIONS[partition]], method == "fast-pca"
    A = np.array([(part - MEAN).T @ (part - MEAN) for part in parts])
    pooled = A.sum(axis=0)
    A *= len(parts) / np.trace(pooled)
    W = np.array([np.roll([1, 1, 0, 0, 1], i) for i in range(5)]) / 3
    W = (W + np.eye(5)) / 2 if tracked else W
    Q, R = np.linalg.qr(random_start(K))
    X = np.array([Q * np.sign(np.diagonal(R))] * len(parts))
    H = T = sanger(A, X)
    for _ in range(40):
        X = np.einsum("ij,jab->iab", W, X) + 0.1 * (T if tracked else H)
        before, H = H, sanger(A, X)
        T = np.einsum("ij,jab->iab", W, T) + H - before
    V = np.linalg.qr(sum(Q * np.sign(np.diagonal(R)) for Q, R in map(np.linalg.qr, X))).Q
    energies = np.einsum("ij,ij->j", V, pooled @ V) / (N - 1)
    order = np.argsort(-energies)
    model = run(method, parts, n_components=K, variant="paper", iterations=40, seed=SEED)
    np.testing.assert_allclose(np.abs(np.einsum("ij,ji->i", model.components_, V[:, order])), 1, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, energies[order], rtol=1e-9)


def left_triplets(*parts):
    """Algorithm 2 without forgetting, and the step of algorithm 3: the SVD of all columns, of several as U * s."""
    return np.linalg.svd(np.hstack(parts), full_matrices=False)[:2]


def local_update(Y, r, adaptive, alpha):
    """Algorithm 3; a rank that grows keeps the next triplet of the small SVD, where the document has e_r."""
    U, s = np.empty((len(Y), 0)), np.empty(0)
    for start in range(0, Y.shape[1], 50):
        U, s = left_triplets(U * s, Y[:, start : start + 50])
        share = s[r - 1] / s[:r].sum()
        r += int(adaptive and share > 0.10) - int(adaptive and share < alpha)
        U, s = U[:, :r], s[:r]
    return U, s


def merge_all(level, keep):
    """Phase II of algorithm 1: neighbours are merged in pairs, then the results; ``keep`` gives the rank."""
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        merged = [(left_triplets(*(U * s for U, s in pair)), keep(pair)) for pair in pairs]
        level = [(U[:, :r], s[:r]) for (U, s), r in merged]
    return level[0]


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(("method", "r", "alpha"), [("spca", 4, 0.01), ("sapca", 2, 0.01), ("sapca", 12, 0.03)])
def test_the_variant_is_the_documents_recursion(method, r, alpha, partition):
    """Faults that this catches: directions beyond the rank, centred rows, hysteresis, and another order of merges."""
    parties, options = [ROWS[rows] for rows in PARTITIONS[partition]], {"variant": "paper", "n_components": r}
    options |= {"share_low": alpha} if method == "sapca" else {}
    leaves = [local_update(rows.T, r, method == "sapca", alpha) for rows in parties]
    ranks = [len(s) for _, s in leaves]
    assert np.sign(np.subtract(ranks, r)).tolist() == [0 if method == "spca" else 1 if r == 2 else -1] * 5
    for topology in ("tree", "star"):  # a node of a tree knows the ranks of its own, the server those of all
        every = [leaves] if topology == "star" else []
        U, s = merge_all(leaves, lambda pair, every=every: max(len(s) for _, s in (*every, pair)[0]))
        model = run(method, parties, topology=topology, **options)
        assert model.n_components_ == len(s)
        signs = np.sign((model.components_ * U.T).sum(axis=1))
        np.testing.assert_allclose(model.components_, (U * signs).T, rtol=0, atol=1e-9)
        np.testing.assert_allclose(model.explained_variance_, s**2 / (len(ROWS) - 1), rtol=1e-9)
        assert not model.mean_.any()


def projected(U, X):
    return X - U @ (U.T @ X + X.T @ U) / 2


def retracted(U, X):
    # the formula's result is orthonormal up to rounding, which the next gradient would multiply
    return polar((U + X) @ np.linalg.inv(sqrtm(np.eye(U.shape[1]) + X.T @ X)))[0]


def algorithm_1(parties, k, *, alpha=0.04, beta=0.04, spread=0.2, noise=0.5, seed=42, half=0.5, iterations=8):
    """Return each party's components U and the shared V, (d, k), after so many iterations."""
    V, _ = polar(np.random.default_rng(seed).standard_normal((D, k)))  # uniform on the Stiefel manifold
    own = [V] * len(parties)
    for _ in range(iterations):
        versions = []
        for i, Y in enumerate(parties):
            U, n = own[i], len(Y)
            S, inverse = Y.T @ Y / n, np.linalg.inv(U @ U.T + noise * np.eye(D))
            slope = -n * half * (inverse @ S @ inverse @ U - inverse @ U) + projected(V, U) / spread  # fact 1
            own[i] = U = retracted(U, -alpha * projected(U, slope))
            versions.append(V - beta * projected(V, -projected(V, U) @ (U.T @ V + V.T @ U) / (2 * spread)))
        V = retracted(V, np.mean(versions, axis=0) - V)
    return own, V


@pytest.mark.parametrize(
    ("name", "symbols", "options"), [*((name, {}, {}) for name in KINDS), ("shards", SYMBOLS, OPTIONS)]
)
def test_the_papers_variant_is_algorithm_1(name, symbols, options):
    parties = [ROWS[part] / UNIT for part in PARTITIONS[name]]
    own, V = algorithm_1(parties, 3, **symbols)
    model = run("personalised", parties, n_components=3, variant="paper", iterations=8, **options)
    projectors = [U.T @ U for U in model.own_components_.values()]  # the model orders components by their variance
    np.testing.assert_allclose(projectors, [U @ U.T for U in own], atol=1e-9)
    values, components = leading(V.T @ np.vstack(parties).T @ np.vstack(parties) @ V, 3)
    np.testing.assert_allclose(np.abs(model.components_ @ V @ components), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, values / (N - 1), rtol=1e-9)
    assert not model.mean_.any()


def directions_by_columns(parts, k, near, matrix, *, warm, scaled):
    """Return each party's directions (n, k): algorithms 2 to 5, and deflation for the components after the first."""
    parties, found = range(len(parts)), [np.empty((len(COLUMNS), 0)) for _ in parts]
    for component in range(k):
        blocks = [block - U @ (U.T @ block) for block, U in zip(parts, found, strict=True)]
        draws = [np.random.default_rng((SEED, component, party)).standard_normal(len(COLUMNS)) for party in parties]
        starts = draws
        for _ in range(10):
            A, a = [matrix(block) for block in blocks], starts
            for _ in range(10):
                a = [v / np.linalg.norm(v) for v in map(matmul, A, a)]  # equation 5
            alpha = np.array([v @ A_i @ v / (v @ v) for A_i, v in zip(A, a, strict=True)])  # equation 6
            u = [weights(alpha[j], scaled) @ np.array(a)[j] for j in near]  # equation 13
            M = [np.outer(m, m) for m in (block.T @ v for block, v in zip(blocks, u, strict=True))]
            blocks = [block @ m / np.linalg.norm(m) for block, m in zip(blocks, M, strict=True)]  # equation 14
            starts = u if warm else draws
        u = [v - U @ (U.T @ v) for v, U in zip(u, found, strict=True)]
        found = [np.column_stack([U, v / np.linalg.norm(v)]) for v, U in zip(u, found, strict=True)]
    return found


def weights(alpha, scaled):
    omega = alpha / alpha.sum()
    larger = np.argsort(np.argsort(-omega)) < np.ceil(len(omega) / 2)
    return omega * (np.where(larger, 1 + omega.mean(), 1 - omega.mean()) if scaled else 1)  # equation 15


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.parametrize("cuts", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize(("graph", "k"), [("server", 2), ("ring", 1)])
def test_a_run_as_in_the_paper_is_its_recursion(way, cuts, graph, k):
    """Faults: weights of other sizes, turned signs, centred columns or kernels, another start, weights by roots."""
    (matrix, options), method = KERNELS[way], way.split()[0]
    parts, p = np.split(COLUMNS, cuts, axis=1), len(cuts) + 1
    near = [list(range(p)) if graph == "server" else sorted({i, (i + 1) % p, (i - 1) % p}) for i in range(p)]
    warm = method == "vfedakpca" or "warm_start" in options
    directions = directions_by_columns(parts, k, near, matrix, warm=warm, scaled="weight_scaling" in options)
    aligned = [U * np.sign((U * directions[0]).sum(axis=0)) for U in directions]  # the model is the parties' mean
    U = np.linalg.qr(np.mean(aligned, axis=0)).Q
    U = U[:, np.argsort(-np.square(COLUMNS.T @ U).sum(axis=0))]
    energies = np.square(COLUMNS.T @ U).sum(axis=0)
    model = run(method, parts, n_components=k, variant="paper", graph=graph, seed=SEED, **options)
    expected = U * np.sqrt(energies) * np.sign((U * model.scores_).sum(axis=0))
    np.testing.assert_allclose(model.scores_, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(model.explained_variance_, energies / (len(COLUMNS) - 1), rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, energies / np.square(COLUMNS).sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "option"),
    [(name, option) for name in ("vfedpca", "vfedakpca") for option in METHODS[name].strategy.card.options.published],
)
def test_each_choice_of_the_paper_can_be_left_out(method, option):
    """A fault: the preset hid an option, or an option did nothing."""
    default = METHODS[method].strategy.card.options.model_fields[option].default
    options = {"n_components": 1, "variant": "paper", "seed": SEED}
    options |= {"kernel": "sigmoid"} if option == "sigmoid_sign" else {}
    parts = np.split(COLUMNS, [3, 8], axis=1)
    paper, other = (np.abs(run(method, parts, **options, **more).scores_) for more in ({}, {option: default}))
    assert not np.allclose(paper, other, rtol=0, atol=1e-7)
