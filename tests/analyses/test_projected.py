"""New rows with gaps: their scores are those that all values would give, up to standard errors that are told."""

import warnings

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.maths.incomplete_rows import MAX_CONDITION, least_squares_scores
from tests.refusals import refused

K = 2
W = np.random.default_rng(0).standard_normal((40, K)) * [3.0, 2.0]


def draw(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, K)) @ W.T + rng.standard_normal((n, 40)) + 5


def people(n, seed):
    shares = np.random.default_rng(9).beta(4, 4, (3, 600))
    return np.random.default_rng(seed).binomial(2, np.repeat(shares, n // 3, axis=0)).astype(float)


KINDS = {
    "plain": (draw, "p-cov", {}),
    "scaled": (draw, "sub-it", {"scale": True}),
    "adjusted": (draw, "p-cov", {"adjust_for": "0"}),
    "genotypes": (people, "qr-pca", {"genotypes": True, "prune": 0.5, "prune_window": 20, "prune_step": 5}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_least_squares_on_what_is_there(kind):
    """The fault: missing calls counted as the mean, so that people with a fifth of the calls lay at 0.21."""
    make, method, options = KINDS[kind]
    known, new = make(240, 1), make(120, 2)
    model = run(method, [known[::2], known[1::2]], n_components=K, **options)
    hidden = np.random.default_rng(3).random(new.shape) < (0.8 if kind == "genotypes" else 0.5)
    hidden[:, 0] = False  # the covariate
    hidden[:9] = hidden[0]  # rows of one pattern
    gaps, components = np.where(hidden, np.nan, new), model.components_
    scores, errors = analyses.projected(model, gaps, return_std=True)
    unit = 1.0 if model.scale_ is None else model.scale_
    centred = model.centred(new) if kind == "adjusted" else (new - model.mean_) / unit
    fits = [np.linalg.lstsq(components.T[~u], x[~u], rcond=None)[0] for x, u in zip(centred, hidden, strict=True)]
    np.testing.assert_allclose(scores, np.array(fits) / model.shrinkage_, atol=1e-9)
    full, certain = analyses.projected(model, new, return_std=True)
    np.testing.assert_allclose(full, model.transform(new) / model.shrinkage_)
    assert not certain.any()
    assert 0.6 < np.mean(((scores - full) / errors) ** 2) < 1.6
    np.testing.assert_array_equal(scores, analyses.projected(model, gaps))


@pytest.mark.parametrize(("share", "known"), [(0.99, True), (1.01, False)])
def test_rows_that_tell_no_scores_have_none(share, known):
    """One sees too few features, one only features that do not tell the components apart; both are counted."""
    t = 1 / (MAX_CONDITION * share)
    L = np.eye(8, 2)
    L[4:] = [[1.0, t], [1.0, -t], [1.0, t], [1.0, -t]]
    rows = np.tile(np.r_[np.full(4, np.nan), np.ones(4)], (3, 1))
    rows[1, 4], rows[2, 2:] = np.nan, [0.0, 0.0, 1.0, 1.0, np.nan, np.nan]  # two features have no loadings
    found = least_squares_scores(rows, L.T)[0]
    assert np.isnan(found).any(axis=1).tolist() == [not known, True, True]
    X = draw(100, 1)
    model, few = run("p-cov", [X[:50], X[50:]], n_components=K), X[:3].copy()
    few[0, 4:], few[1, 3:] = np.nan, np.nan
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert np.isnan(analyses.projected(model, few)).all(axis=1).tolist() == [False, True, False]
    assert ["1 of 3 rows" in str(warning.message) for warning in caught] == [True]


def test_a_missing_category_is_a_gap_unless_the_run_had_some():
    X = draw(400, 1)
    table = pd.DataFrame(X[:, :20]).rename(columns=str).assign(ward=np.where(X[:, 20] > 5, "a", "b"))
    holes = table.assign(ward=None)
    for known in (table, pd.concat([table, holes[:40]])):
        model = run("p-cov", [known[::2], known[1::2]], n_components=K, scale=True, levels=["ward"])
        scores, errors = analyses.projected(model, holes, return_std=True)
        distances = np.abs(scores - analyses.projected(model, table)).mean(axis=0)
        assert (distances < 1.2 * errors.mean(axis=0)).all() == (known is table)


def test_gaps_that_only_the_model_of_em_or_nobody_fills():
    X = draw(100, 1)
    gaps = np.where(np.random.default_rng(2).random(X.shape) < 0.2, np.nan, X)
    model = run("em", [gaps[:50], gaps[50:]], n_components=K)
    with warnings.catch_warnings(action="error"):
        np.testing.assert_array_equal(analyses.projected(model, gaps), model.transform(gaps) / model.shrinkage_)
    with refused(ContractError, "'em'", "'return_std'"):
        analyses.projected(model, gaps, return_std=True)
    adjusted = run("p-cov", [X[:50], X[50:]], n_components=K, adjust_for="0, 3")
    with refused(DataError, "X", "'adjust-for'"):
        analyses.projected(adjusted, gaps)
    with refused(DataError, "NaN", "analyses.projected"):
        adjusted.transform(gaps)
