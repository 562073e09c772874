"""Analyses of a model: levels of a mixed table on its components, genes that vary most, and new rows with gaps."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.incomplete_rows import MAX_CONDITION, least_squares_scores
from tests.data.test_categories import LEVELS, parts, table
from tests.families import cut
from tests.harness import fit
from tests.refusals import refused

FRAME = table()


@pytest.mark.parametrize("numbers", [["mass", "bill", "ratio"], []], ids=["famd", "mca"])
@pytest.mark.filterwarnings("ignore:X has")
def test_levels_lie_at_the_mean_of_their_rows(numbers):
    frame = FRAME[[*numbers, *LEVELS]]
    model = fit("p-cov", parts(frame), n_components=3, scale=True, levels=LEVELS)
    found, scores = analyses.categories(model), model.transform(frame)
    for j, name in enumerate(found.levels):
        column, level = name.split("=")
        has = (cells_of(frame, column) == level).to_numpy()
        assert found.shares[j] == pytest.approx(has.mean(), abs=1e-12)
        np.testing.assert_allclose(found.coordinates[j], scores[has].mean(axis=0), atol=1e-8)
        told = [np.corrcoef(has, one)[0, 1] ** 2 for one in scores.T]
        np.testing.assert_allclose(found.squared_cosines[j], told, atol=1e-8)
    for j, name in enumerate(found.columns):
        if name in numbers:
            told = [np.corrcoef(frame[name], one)[0, 1] ** 2 for one in scores.T]
        else:
            between = pd.DataFrame(scores).groupby(cells_of(frame, name)).transform("mean").var().to_numpy()
            told = between / scores.var(axis=0, ddof=1)
        np.testing.assert_allclose(found.squared_correlations[j], told, atol=1e-8)
    whole = found.contributions.sum(axis=0) + (model.components_[:, : len(numbers)] ** 2).sum(axis=1)
    np.testing.assert_allclose(whole, 1, atol=1e-12)


def cells_of(frame, column):
    """Return a column with its levels, those that are not declared and those that are missing as two more."""
    own = frame[column]
    return own.where(own.isin(LEVELS[column]) | own.isna(), "other").fillna("missing")


def test_a_level_of_no_row_or_of_all_has_no_place():
    levels = {"sex": ["f", "m", "x"], "island": ["north"], "planet": ["earth"]}
    model = fit("p-cov", parts(FRAME.assign(planet="earth")), n_components=2, scale=True, levels=levels)
    found = analyses.categories(model)
    assert not {"sex=x", "planet=earth"} & set(found.levels)
    assert np.isfinite(found.coordinates).all()
    with refused(ContractError, "levels="):
        analyses.categories(fit("p-cov", parts(FRAME[["mass", "bill"]]), n_components=2))


def test_levels_may_be_those_that_enough_rows_of_a_party_have():
    """'far' and 'farther' have 5 % of 150 rows each: no party has 12 of either."""
    frame = FRAME[["mass", "island"]]
    model = fit("p-cov", parts(frame), n_components=2, scale=True, levels=["island"], min_rows=12)
    assert model.log["levels"] == {"island": ["north", "south", "west"]}
    with refused(DataError, "'sea'"):
        fit("p-cov", parts(frame), n_components=2, scale=True, levels=["sea"])


RNG = np.random.default_rng(0)
ACTIVITY = RNG.gamma(0.3, 0.5, 300) * np.where(RNG.random((3, 300)) < 0.1, 8.0, 1.0)
COUNTS = RNG.poisson(ACTIVITY[RNG.integers(3, size=240)]).astype(float)
COUNTS[:, 7] = 0.0
NORMALISED = COUNTS * (100 / COUNTS.sum(axis=1).clip(min=1))[:, None]


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


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 100.0}], ids=str)
def test_genes_are_those_of_scanpy(way):
    parties = [sparse.csr_array(part) for part in cut(NORMALISED, 120, 80, 40)]
    model = fit("sub-it", parties, n_components=1, scale=True, max_rounds=1, **way)
    for top in (1, 50):
        found = analyses.highly_variable(model, top)
        np.testing.assert_array_equal(found, as_scanpy(NORMALISED, top))
        assert 7 not in found


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 1e4}], ids=str)
def test_constant_genes_are_not_variable(way):
    cells = NORMALISED.copy()
    cells[:, 20:25] = [0.01, 0.1, 1 / 3, 3.0, 1e3]
    cells[:, 30:33] = [1.0, 2.0, 4.0]
    cells[::2, 30:33] += 2.0  # of mean 2, 3 and 5, and deviation 1
    cells[:120, 40:45] = 0.0  # a party without these genes
    cells[:, 50:60] = 0.0
    cells[np.arange(10), 50 + np.arange(10)] = 1.0  # each in one cell
    for method in ("p-cov", "sub-it max-rounds=1"):
        model = fit(method, cut(cells, 120, 80, 40), n_components=1, scale=True, **way)
        for top in (1, 50, 250):
            np.testing.assert_array_equal(analyses.highly_variable(model, top), as_scanpy(cells, top))


def test_what_are_no_counts_is_refused():
    for cells, scale, top, error, named in (
        (NORMALISED - 1, False, 5, ContractError, ["scale=True"]),
        (NORMALISED - 1, True, 5, ContractError, [0]),
        (NORMALISED, True, 301, ConfigError, ["top", 301]),
    ):
        with refused(error, *named):
            analyses.highly_variable(fit("p-cov", cut(cells, 120, 120), n_components=1, scale=scale), top)


W = np.random.default_rng(0).standard_normal((40, 2)) * [3.0, 2.0]


def draw(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)) @ W.T + rng.standard_normal((n, 40)) + 5


def people(n, seed):
    shares = np.random.default_rng(9).beta(4, 4, (3, 600))
    return np.random.default_rng(seed).binomial(2, np.repeat(shares, n // 3, axis=0)).astype(float)


def fit_halves(rows, method="p-cov", **options):
    return run(method, [rows[::2], rows[1::2]], n_components=2, **options)


@pytest.mark.parametrize(
    ("make", "share", "options"),
    [(draw, 0.5, {"scale": True}), (draw, 0.5, {"adjust_for": "0"}), (people, 0.8, {"genotypes": True})],
)
def test_scores_are_the_least_squares_on_what_is_there(make, share, options):
    """The fault: missing calls counted as the mean, so that people with a fifth of the calls lay at 0.21."""
    new, model = make(120, 2), fit_halves(make(240, 1), "sub-it" if make is people else "p-cov", **options)
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
    for rows in (table, pd.concat([table, holes[:40]])):
        model = fit_halves(rows, scale=True, levels=["ward"])
        scores, errors = analyses.projected(model, holes, return_std=True)
        distances = np.abs(scores - analyses.projected(model, table)).mean(axis=0)
        assert (distances < 1.2 * errors.mean(axis=0)).all() == (rows is table)


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
