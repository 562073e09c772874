"""Analyses of a model: odd rows and drift, levels of a mixed table, genes that vary most, and new rows with gaps.

Limits of odd rows are those that the pooled rows would give, whoever holds them.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.stats import chi2, kstest
from sklearn.datasets import load_breast_cancer

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.maths.incomplete_rows import MAX_CONDITION, least_squares_scores
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests import genotypes
from tests.data.test_categories import LEVELS, fitted, table
from tests.families import cut, rows
from tests.harness import fit
from tests.refusals import refused, unnamed

X = rows(600, 12) + np.arange(12)
PARTIES = cut(X, 300, 200, 80, 20)
W = np.random.default_rng(0).standard_normal((40, 2)) * [3.0, 2.0]
FRAME = table()
CANCER = load_breast_cancer().data
POOLED = {"drawn": (X, False), "cancer": (CANCER, False), "cancer scaled": (CANCER, True)}
POOLED |= {"by Lanczos": (rows(600, 300), False)}
FLAT = [(50, 100, 10, "flat with gap"), (50, 100, 10, "flat"), (300, 10, 2, "flat")]


@pytest.fixture(scope="module")
def model():
    return run("p-cov", PARTIES, n_components=3)


@pytest.mark.parametrize(("data", "scale"), POOLED.values(), ids=POOLED)
def test_distances_are_those_of_the_pooled_rows(data, scale):
    n, k = len(data), 4
    model = run("p-cov", cut(data, n - n // 2 - n // 5, n // 2, n // 5), n_components=k, scale=scale)
    found, centred = analyses.outliers(model, data), (data - data.mean(axis=0)) / (data.std(axis=0) if scale else 1)
    values, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    values, scores = values[::-1], centred @ vectors[:, ::-1]
    spe = (scores[:, k:] ** 2).sum(axis=1)
    np.testing.assert_allclose(found.t_squared, (scores[:, :k] ** 2 / values[:k]).sum(axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.spe, spe, rtol=1e-6, atol=1e-7 * spe.max())


def drawn(n, d, k, spectrum, seed):
    """Draw a model with k components of n rows of d features, and return a function that draws new rows, too."""
    rng = np.random.default_rng([n, d, k, seed])
    deviations = {"flat": np.ones(d), "steep": 2.0 ** (-np.arange(d) / 4)}[spectrum.removesuffix(" with gap")]
    deviations[:k] *= 4 if "gap" in spectrum else 1
    model = analyses.pca(SecondMoments.of(rng.standard_normal((n, d)) * deviations), k)
    return model, lambda rows: rng.standard_normal((rows, d)) * deviations


@pytest.mark.parametrize("kind", [*FLAT, (100, 30, 6, "steep"), (60, 8, 6, "steep with gap")], ids=str)
def test_new_rows_exceed_each_limit_as_often_as_it_says(kind):
    """The fault: limits of fitted rows, in the first case with 30 % of new rows beyond SPE, none beyond T squared."""
    draws = (drawn(*kind, seed=seed) for seed in range(25))
    found = [analyses.outliers(model, draw(800)) for model, draw in draws]
    shares = [[np.mean(one.spe > one.spe_limit), np.mean(one.t_squared > one.t_squared_limit)] for one in found]
    assert (np.mean(shares, axis=0) > 0.004).all(), shares
    assert (np.mean(shares, axis=0) < 0.021).all(), shares


@pytest.mark.parametrize(("n", "d", "k", "rows"), [(50, 10, 3, 200), (100, 100, 10, 50), (400, 30, 3, 10)])
def test_drift_of_new_rows_is_as_rare_as_promised(n, d, k, rows):
    """The faults: limits of fitted rows, and an error of the model's own numbers that is not counted."""
    draws = (drawn(n, d, k, "flat with gap", seed) for seed in range(150))
    found = [analyses.drift(model, draw(rows)) for model, draw in draws]
    assert sum(one.drifted for one in found) <= 6
    shift, spread = np.array([[one.shift_probability, one.spread_probability] for one in found]).T
    assert kstest(shift, "uniform").pvalue > 1e-3
    assert 0.25 < (spread < 0.5).mean() < 0.65
    assert (spread < 0.1).mean() < 0.18


def test_where_no_limit_is_known_the_objects_say_so():
    for n, d, k in ((49, 10, 2), (50, 100, 11), (60, 8, 7), (60, 4, 3)):
        model, draw = drawn(n, d, k, "flat with gap", 0)
        found, drift = analyses.outliers(model, draw(20)), analyses.drift(model, draw(20))
        assert np.isnan([found.spe_limit, found.t_squared_limit, drift.shift_probability, drift.odd_share]).all()
        assert not found.odd.any()
        assert not [one for one in (found, drift) if unnamed(str(one), "no limit of new rows", k, n, d)]
    for size in ((50, 100, 10), (60, 8, 6), (55, 5, 3), (150, 4, 2)):
        assert not analyses.outliers(drawn(*size, "flat", 0)[0], np.zeros((1, size[1]))).note


@pytest.mark.parametrize("unit", [2.0**-400, 2.0**400])
def test_no_unit_of_the_data_overflows(unit, model):
    """The faults: a raw OverflowError, of fourth powers of the unit; or 0 / 0, as of the single rows of AP-COV."""
    nothing = np.zeros((3, 3), order="F")
    assert Eigenpairs(np.zeros(1), np.eye(3)[:, :1], 0.0).residual_directions(nothing) is None
    other = run("p-cov", [part * unit for part in PARTIES], n_components=3)
    there, here = analyses.outliers(other, X * unit), analyses.outliers(model, X)
    np.testing.assert_allclose(there.spe_limit / unit**2, here.spe_limit, rtol=1e-9)
    np.testing.assert_allclose(there.t_squared, here.t_squared, rtol=1e-9, atol=1e-9)


def test_limits_do_not_depend_on_the_source_of_moments(model, tmp_path):
    expected = analyses.outliers(model, X[:2])
    federation = Federation.open(tmp_path)
    for i, party in enumerate(PARTIES):
        federation.join(f"{i}", party)
    kept = run("p-cov", PARTIES, n_components=1, keep="moments").moments_
    others = [analyses.pca(kept, 3), federation.model(3), PCAModel.load(model.save(tmp_path / "model"))]
    secured = {"n_components": 3, "secure_aggregation": True, "bound": 30.0}
    others += [run("p-cov", PARTIES, survivors=survivors, **secured) for survivors in (0, 3)]
    for number, other in enumerate(others):
        found = analyses.outliers(other, X[:2])
        np.testing.assert_allclose(found.spe_limit, expected.spe_limit, rtol=1e-8 if number > 2 else 1e-10)
        np.testing.assert_allclose(found.t_squared, expected.t_squared, rtol=1e-6)


def off(model):
    return np.linalg.svd(model.components_)[2][-1]


def test_odd_rows_are_named_and_contributions_add_up(model):
    table = pd.DataFrame(X[:20].copy(), index=[f"patient {i}" for i in range(20)])
    table.iloc[7, 7] += 100
    table.iloc[3] = model.mean_ + 8 * np.sqrt(model.explained_variance_[0]) * model.components_[0]
    table.iloc[5] = model.mean_ + 9 * off(model)
    found = analyses.outliers(model, table)
    np.testing.assert_allclose([found.t_squared[3], found.spe[3], found.t_squared[5]], [64, 0, 0], atol=1e-9)
    assert found.odd[[3, 5, 7]].all()
    np.testing.assert_array_equal(found.odd, (found.t_squared > found.t_squared_limit) | (found.spe > found.spe_limit))
    assert analyses.drift(model, table).odd_share == found.odd.mean() < 0.5
    assert found.labels[7] == "patient 7"
    title, _, *lines = str(found).splitlines()
    excess = np.maximum(found.t_squared / found.t_squared_limit, found.spe / found.spe_limit)
    farthest = np.argsort(-excess)[: found.odd.sum()]
    assert [line.split("  ")[1].strip() for line in lines] == [f"patient {i}" for i in farthest]
    assert f"T squared {found.t_squared_limit:.4g}, SPE {found.spe_limit:.4g}" in title
    np.testing.assert_allclose(found.t_squared_contributions.sum(axis=1), found.t_squared, rtol=1e-10, atol=1e-20)
    np.testing.assert_allclose(found.spe_contributions.sum(axis=1), found.spe, rtol=1e-10, atol=1e-20)
    assert found.spe_contributions[7].argmax() == 7


def test_two_looks_share_the_false_alarms_of_a_drift(model):
    """One of two probabilities is p: a drift where more than 2 p of false alarms are accepted, none where fewer are.

    The mean of twelve rows, which vary off the model, is so far from its mean in standard errors that p is 0.0075.
    """
    distance = chi2.isf(0.0075, 3) * (1 / 12 + 1 / model.n_samples_) * model.explained_variance_[0]
    new = model.mean_ + np.sqrt(distance) * model.components_[0]
    new = new + np.outer(np.linspace(-1, 1, 12) * np.sqrt(model.noise_variance_), off(model))
    p = analyses.drift(model, new).shift_probability
    assert 0.0075 < p < 0.009  # the model's variances are uncertain, too
    assert [analyses.drift(model, new, false_alarms=times * p).drifted for times in (1.9, 2.1)] == [False, True]


def test_a_shifted_party_is_flagged(model):
    new, mean = rows(80, 12, seed=7), np.arange(12)
    shifted = (new + 0.8 * model.components_[0], new + 0.3 * off(model), new * 1.5, new)
    found = [analyses.drift(model, own + mean) for own in shifted]
    assert [one.drifted for one in found] == [True, True, True, False]
    assert ["no longer" in str(one) for one in found] == [True, True, True, False]
    assert analyses.drift(model, new[:10] + mean).spread_probability > 0  # so many rows are enough
    assert [one.shift_probability < 0.005 for one in found[:3]] == [True, False, False]


def test_what_cannot_be_judged_is_refused(model):
    few = run("p-cov", cut(X[:12], 6, 6), n_components=11, min_rows=1)
    for judge, own, data, options, error, named in [
        (analyses.outliers, run("sub-it", PARTIES, n_components=3), X, {}, ContractError, ["sub-it"]),
        (analyses.outliers, pooled_pca(X, 3), X, {}, ContractError, ["'pooled'"]),
        (analyses.outliers, run("p-cov", PARTIES, n_components=12), X, {}, ContractError, ["p-cov"]),
        (analyses.outliers, few, X, {}, ContractError, ["p-cov"]),
        (analyses.outliers, model, np.full((2, 12), np.nan), {}, DataError, ["NaN"]),
        (analyses.outliers, model, X, {"level": 99}, ConfigError, ["'level'", 99]),
        (analyses.drift, model, X[:9], {}, DataError, [9, 10]),
        (analyses.drift, model, X, {"false_alarms": 0.0}, ConfigError, ["false_alarms", 0.0]),
    ]:
        with refused(error, *named):
            judge(own, data, **options)
    assert not analyses.drift(model, X[:10]).drifted


@pytest.mark.parametrize("numbers", [["mass", "bill", "ratio"], []], ids=["famd", "mca"])
@pytest.mark.filterwarnings("ignore:X has")
def test_levels_lie_at_the_mean_of_their_rows(numbers):
    frame = FRAME[[*numbers, *LEVELS]]
    model = fitted(frame, n_components=3)
    found, scores = analyses.categories(model), model.transform(frame)
    own = frame[[*LEVELS]]  # levels that are not declared, and those that are missing, are two more
    cells = own.where(own.isin(LEVELS) | own.isna(), "other").fillna("missing")
    for j, (column, level) in enumerate(name.split("=") for name in found.levels):
        has = (cells[column] == level).to_numpy()
        assert found.shares[j] == pytest.approx(has.mean(), abs=1e-12)
        np.testing.assert_allclose(found.coordinates[j], scores[has].mean(axis=0), atol=1e-8)
        np.testing.assert_allclose(found.squared_cosines[j], np.corrcoef(has, scores.T)[0, 1:] ** 2, atol=1e-8)
    for j, name in enumerate(found.columns):
        if name in numbers:
            told = np.corrcoef(frame[name], scores.T)[0, 1:] ** 2
        else:
            between = pd.DataFrame(scores).groupby(cells[name]).transform("mean").var().to_numpy()
            told = between / scores.var(axis=0, ddof=1)
        np.testing.assert_allclose(found.squared_correlations[j], told, atol=1e-8)
    whole = found.contributions.sum(axis=0) + (model.components_[:, : len(numbers)] ** 2).sum(axis=1)
    np.testing.assert_allclose(whole, 1, atol=1e-12)


def test_a_level_of_no_row_or_of_all_has_no_place(model):
    levels = {"sex": ["f", "m", "x"], "island": ["north"], "planet": ["earth"]}
    found = analyses.categories(fitted(FRAME.assign(planet="earth"), levels=levels))
    assert not {"sex=x", "planet=earth"} & set(found.levels)
    assert np.isfinite(found.coordinates).all()
    with refused(ContractError, "levels="):
        analyses.categories(model)
    # Levels may be those that enough rows of a party have: 'far' and 'farther' have 5 % of 150 rows each.
    frequent = fitted(FRAME[["mass", "island"]], levels=["island"], min_rows=12)
    assert frequent.log["levels"] == {"island": ["north", "south", "west"]}
    with refused(DataError, "'sea'"):
        fitted(FRAME[["mass", "island"]], levels=["sea"])


RNG = np.random.default_rng(0)
ACTIVITY = RNG.gamma(0.3, 0.5, 300) * np.where(RNG.random((3, 300)) < 0.1, 8.0, 1.0)
COUNTS = RNG.poisson(ACTIVITY[RNG.integers(3, size=240)]).astype(float)
COUNTS[:, 7] = 0.0
NORMALISED = COUNTS * (100 / COUNTS.sum(axis=1).clip(min=1))[:, None]
CONSTANT = NORMALISED.copy()
CONSTANT[:, 20:25] = [0.01, 0.1, 1 / 3, 3.0, 1e3]
CONSTANT[:, 30:33] = [1.0, 2.0, 4.0]
CONSTANT[::2, 30:33] += 2.0  # of mean 2, 3 and 5, and deviation 1
CONSTANT[:120, 40:45] = 0.0  # a party without these genes
CONSTANT[:, 50:60] = 0.0
CONSTANT[np.arange(10), 50 + np.arange(10)] = 1.0  # each in one cell


def as_scanpy(X, top):
    """Return the steps of scanpy's flavour seurat (its _highly_variable_genes.py), with pandas."""
    mean, variance = X.mean(axis=0), np.where(np.ptp(X, axis=0) > 0, X.var(axis=0, ddof=1), 0.0)
    mean[mean == 0] = 1e-12
    dispersion = variance / mean
    dispersion[dispersion == 0] = np.nan
    table = pd.DataFrame({"mean": np.log1p(mean), "dispersion": np.log(dispersion)})
    table["bin"] = pd.cut(table["mean"], bins=20)
    grouped = table.groupby("bin", observed=True)["dispersion"]
    middle, deviation = grouped.transform("mean"), grouped.transform("std")
    alone = deviation.isna()
    middle, deviation = middle.where(~alone, 0.0), deviation.where(~alone, middle)
    standing_out = ((table["dispersion"] - middle) / deviation).to_numpy()
    least = np.sort(standing_out[~np.isnan(standing_out)])[::-1][:top][-1]
    return np.flatnonzero(np.nan_to_num(standing_out, nan=-np.inf) >= least)


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 1e4}], ids=str)
@pytest.mark.parametrize("method", ["p-cov", "sub-it max-rounds=1"])
@pytest.mark.parametrize("cells", [sparse.csr_array(NORMALISED), CONSTANT], ids=["variable", "constant"])
def test_genes_are_those_of_scanpy(cells, method, way):
    model = fit(method, [cells[:120], cells[120:200], cells[200:]], n_components=1, scale=True, **way)
    for top in (1, 50, 250):
        found = analyses.highly_variable(model, top)
        np.testing.assert_array_equal(found, as_scanpy(cells if cells is CONSTANT else NORMALISED, top))
        assert 7 not in found


def test_what_are_no_counts_is_refused():
    for cells, scale, top, error, named in (
        *((NORMALISED - 1, scale, 5, ContractError, [named]) for scale, named in ((False, "scale=True"), (True, 0))),
        (NORMALISED, True, 301, ConfigError, ["top", 301]),
    ):
        with refused(error, *named):
            analyses.highly_variable(fit("p-cov", cut(cells, 120, 120), n_components=1, scale=scale), top)


def draw(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)) @ W.T + rng.standard_normal((n, 40)) + 5


def fit_halves(rows, method="p-cov", **options):
    return run(method, [rows[::2], rows[1::2]], n_components=2, **options)


WAYS = [(draw(360, 1), "p-cov", 0.5, options) for options in ({"scale": True}, {"adjust_for": "0"})]
WAYS += [(genotypes.people(360, 600), "sub-it", 0.8, {"genotypes": True})]


@pytest.mark.parametrize(("data", "method", "share", "options"), WAYS)
def test_scores_are_the_least_squares_on_what_is_there(data, method, share, options):
    """The fault: missing calls counted as the mean, so that people with a fifth of the calls lay at 0.21."""
    new, model = data[::3], fit_halves(np.delete(data, np.s_[::3], axis=0), method, **options)
    hidden = np.random.default_rng(3).random(new.shape) < share
    hidden[:, 0], hidden[:9] = False, hidden[0]  # the covariate, and rows of one pattern
    gaps = np.where(hidden, np.nan, new)
    scores, errors = analyses.projected(model, gaps, return_std=True)
    triples = zip(model.centred(new), hidden, strict=True)
    fits = [np.linalg.lstsq(model.components_.T[~gap], row[~gap], rcond=None)[0] for row, gap in triples]
    np.testing.assert_allclose(scores, np.array(fits) / model.shrinkage_, atol=1e-9)
    np.testing.assert_array_equal(scores, analyses.projected(model, gaps))
    full, none = analyses.projected(model, new, return_std=True)
    np.testing.assert_allclose(full, model.transform(new) / model.shrinkage_)
    assert not none.any()
    assert 0.6 < np.mean(((scores - full) / errors) ** 2) < 1.6


@pytest.mark.parametrize(("share", "known"), [(0.99, True), (1.01, False)])
def test_rows_that_tell_no_scores_have_none(share, known):
    L, t = np.eye(8, 2), 1 / (MAX_CONDITION * share)
    L[4:] = [[1.0, t], [1.0, -t], [1.0, t], [1.0, -t]]
    rows = np.tile(np.r_[np.full(4, np.nan), np.ones(4)], (3, 1))
    rows[1, 4], rows[2, 2:] = np.nan, [0.0, 0.0, 1.0, 1.0, np.nan, np.nan]  # two features have no loadings
    assert np.isnan(least_squares_scores(rows, L.T)[0]).any(axis=1).tolist() == [not known, True, True]
    few = draw(3, 2)
    few[0, 4:], few[1, 3:] = np.nan, np.nan
    with warnings.catch_warnings(record=True, action="always") as caught:
        scores = analyses.projected(fit_halves(draw(100, 1)), few)
    assert np.isnan(scores).all(axis=1).tolist() == [False, True, False]
    assert ["1 of 3 rows" in str(warning.message) for warning in caught] == [True]


def test_a_missing_category_is_a_gap_unless_the_run_had_some():
    X = draw(400, 1)
    table = pd.DataFrame(X[:, :20]).rename(columns=str).assign(ward=np.where(X[:, 20] > 5, "a", "b"))
    holes = table.assign(ward=None)
    for known in (table, pd.concat([table, holes[:40]])):
        model = fit_halves(known, scale=True, levels=["ward"])
        scores, errors = analyses.projected(model, holes, return_std=True)
        distances = np.abs(scores - analyses.projected(model, table)).mean(axis=0)
        assert (distances < 1.2 * errors.mean(axis=0)).all() == (known is table)


def test_gaps_that_only_the_model_of_em_or_nobody_fills():
    X = draw(100, 1)
    gaps = np.where(np.random.default_rng(2).random(X.shape) < 0.2, np.nan, X)
    model, adjusted = fit_halves(gaps, "em"), fit_halves(X, adjust_for="0, 3")
    np.testing.assert_array_equal(analyses.projected(model, gaps), model.transform(gaps) / model.shrinkage_)
    with refused(ContractError, "'em'", "'return_std'"):
        analyses.projected(model, gaps, return_std=True)
    with refused(DataError, "X", "'adjust-for'"):
        analyses.projected(adjusted, gaps)
    with refused(DataError, "NaN", "analyses.projected"):
        adjusted.transform(gaps)
