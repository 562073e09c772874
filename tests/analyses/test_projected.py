"""New rows with gaps: their scores are those that all their values would give, up to the standard errors."""

import warnings

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.maths.incomplete_rows import MAX_CONDITION, least_squares_scores
from tests.refusals import refused

W = np.random.default_rng(0).standard_normal((40, 2)) * [3.0, 2.0]


def draw(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)) @ W.T + rng.standard_normal((n, 40)) + 5


def people(n, seed):
    shares = np.random.default_rng(9).beta(4, 4, (3, 600))
    return np.random.default_rng(seed).binomial(2, np.repeat(shares, n // 3, axis=0)).astype(float)


def fit(rows, method="p-cov", **options):
    return run(method, [rows[::2], rows[1::2]], n_components=2, **options)


@pytest.mark.parametrize(
    ("make", "share", "options"),
    [(draw, 0.5, {"scale": True}), (draw, 0.5, {"adjust_for": "0"}), (people, 0.8, {"genotypes": True})],
)
def test_scores_are_the_least_squares_on_what_is_there(make, share, options):
    """The fault: missing calls counted as the mean, so that people with a fifth of the calls lay at 0.21."""
    new, model = make(120, 2), fit(make(240, 1), "sub-it" if make is people else "p-cov", **options)
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
        scores = analyses.projected(fit(draw(100, 1)), few)
    assert np.isnan(scores).all(axis=1).tolist() == [False, True, False]
    assert ["1 of 3 rows" in str(warning.message) for warning in caught] == [True]


def test_a_missing_category_is_a_gap_unless_the_run_had_some():
    X = draw(400, 1)
    table = pd.DataFrame(X[:, :20]).rename(columns=str).assign(ward=np.where(X[:, 20] > 5, "a", "b"))
    holes = table.assign(ward=None)
    for rows in (table, pd.concat([table, holes[:40]])):
        model = fit(rows, scale=True, levels=["ward"])
        scores, errors = analyses.projected(model, holes, return_std=True)
        distances = np.abs(scores - analyses.projected(model, table)).mean(axis=0)
        assert (distances < 1.2 * errors.mean(axis=0)).all() == (rows is table)


def test_gaps_that_only_the_model_of_em_or_nobody_fills():
    X = draw(100, 1)
    gaps = np.where(np.random.default_rng(2).random(X.shape) < 0.2, np.nan, X)
    model, adjusted = fit(gaps, "em"), fit(X, adjust_for="0, 3")
    np.testing.assert_array_equal(analyses.projected(model, gaps), model.transform(gaps) / model.shrinkage_)
    with refused(ContractError, "'em'", "'return_std'"):
        analyses.projected(model, gaps, return_std=True)
    with refused(DataError, "X", "'adjust-for'"):
        analyses.projected(adjusted, gaps)
    with refused(DataError, "NaN", "analyses.projected"):
        adjusted.transform(gaps)
