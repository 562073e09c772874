"""Covariates, and what differs between parties, are taken out in a run as a regression of the pooled rows does."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.adjustment import Adjustment, fitted
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut
from tests.harness import finish, fit, say, server_of, tamper_arrays
from tests.refusals import refused

SIZES = (300, 200, 100)
SITE = np.repeat([0, 1, 2], SIZES)
NAMES = ["a", "age", "b", "c", "sex", "d", "e", "f"]
AGE, SEX = 1, 4
SECURE = {"secure_aggregation": True, "bound": 1000.0}
WAYS = {"clear": {}, "masked": SECURE, "surviving": {**SECURE, "survivors": 3}}


def patients():
    """Features that depend on age, sex and site, in mean and deviation."""
    rng = np.random.default_rng(0)
    Z = np.column_stack([rng.normal(50, 10, 600), rng.integers(0, 2, 600)])
    X = rng.standard_normal((600, 6)) * [6, 5, 4, 3, 2, 1] + Z @ rng.standard_normal((2, 6))
    return np.insert(X * (1 + SITE[:, None] / 2) + 2 * SITE[:, None], [1, 3], Z, axis=1)


ROWS = patients()
PARTIES = cut(ROWS, *SIZES)


def residuals(rows, covariates, harmonise, sites=SITE):
    """The same from the rows themselves: means of sites, one regression, deviations of sites."""
    left = rows - rows.mean(axis=0)
    each = [sites == site for site in np.unique(sites)]
    if harmonise != "nothing":
        for own in each:
            left[own] -= left[own].mean(axis=0)
    others = np.setdiff1d(np.arange(rows.shape[1]), covariates)
    if covariates:
        left = left - left[:, covariates] @ np.linalg.lstsq(left[:, covariates], left, rcond=None)[0]
    left = left[:, others]
    deviation = left.std(axis=0)
    if harmonise == "variances":
        for own in each:
            left[own] *= deviation / left[own].std(axis=0)
    return left, others


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(
    ("adjust_for", "harmonise"),
    [("", "means"), ("", "variances"), ("1, 4", "nothing"), ("1, 4", "means"), ("1, 4", "variances")],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_equals_the_pca_of_what_a_regression_of_the_pooled_rows_leaves(
    way, adjust_for, harmonise, scale, tmp_path
):
    scores, loadings = ([tmp_path / f"{what}{i}.{what}" for i in range(3)] for what in ("npy", "npz"))
    options = {"adjust_for": adjust_for, "harmonise": harmonise, "scale": scale, "n_components": 3}
    if (way, harmonise) == ("surviving", "variances"):
        with refused(ConfigError, "uncentred", "harmonised"):
            fit("p-cov", PARTIES, **options, **WAYS[way])
        return
    model = fit("p-cov", PARTIES, scores=scores, loadings=loadings, **options, **WAYS[way])
    left, others = residuals(ROWS, [AGE, SEX] if adjust_for else [], harmonise)
    left = left / left.std(axis=0) if scale else left
    truth = PCA(3, svd_solver="full").fit(left)
    turned = truth.components_ * np.sign(np.sum(truth.components_ * model.components_[:, others], axis=1))[:, None]
    np.testing.assert_allclose(model.components_[:, others], turned, atol=1e-12)
    assert not np.delete(model.components_, others, axis=1).any()
    for name in ("explained_variance_", "explained_variance_ratio_", "noise_variance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(truth, name), rtol=1e-11)
    written = np.vstack([np.load(path) for path in scores])
    np.testing.assert_allclose(written, left @ turned.T, atol=1e-10)
    own = [Loadings.load(path).part_of_scores(part) for path, part in zip(loadings, PARTIES, strict=True)]
    np.testing.assert_allclose(np.vstack(own), written, atol=1e-10)
    rounds = {"clear": 1, "masked": 4 + (harmonise == "variances"), "surviving": 5}[way]
    assert model.rounds == rounds
    if harmonise == "nothing":
        np.testing.assert_allclose(PCAModel.load(model.save(tmp_path / "model")).transform(ROWS), written, atol=1e-10)
    else:
        with refused(ContractError, f"harmonise='{harmonise}'", "'loadings'"):
            model.transform(ROWS)


def test_names_are_found_at_the_sites():
    frames = [pd.DataFrame(part, columns=NAMES) for part in PARTIES]
    named = fit("p-cov", frames, n_components=2, adjust_for="age, sex")
    numbered = fit("p-cov", PARTIES, n_components=2, adjust_for="1, 4")
    np.testing.assert_array_equal(named.components_, numbered.components_)
    np.testing.assert_array_equal(named.adjustment_.places, [AGE, SEX])
    assert "adjusted for age, sex" in named.summary()
    np.testing.assert_array_equal(named.transform(frames[0]), numbered.transform(PARTIES[0]))


@pytest.mark.parametrize("harmonise", ["nothing", "means", "variances"])
def test_a_note_says_where_what_is_left_may_correlate_with_covariates_again(harmonise):
    model = fit("p-cov", PARTIES, n_components=2, adjust_for="1, 4", harmonise=harmonise)
    again = any("may correlate with the covariates again" in note for note in model.log["notes"])
    assert again == (harmonise == "variances")
    without = fit("p-cov", PARTIES, n_components=2, harmonise=harmonise)
    assert not any("correlate" in note for note in without.log["notes"])


def test_what_covariates_explain_wholly_or_but_for_rounding_is_nothing():
    S = np.array([[1.0, 1.0], [1.0, 1 + 2.0**-50]])
    left = Adjustment(np.array([0]), np.array([[0.0, 1.0]])).of_scatter(S)
    assert not left.any()
    # Its rounding must not be scaled up.
    rows = np.column_stack([ROWS, 3 * ROWS[:, AGE] - ROWS[:, SEX]])
    model = fit("p-cov", cut(rows, *SIZES), n_components=6, adjust_for="1,4", scale=True)
    assert not model.components_[:, 8].any()
    with refused(DataError):
        fit("p-cov", cut(rows[:, [AGE, SEX, 8]], *SIZES), n_components=1, adjust_for="0,1")


def test_what_is_wrong_with_names_is_said_by_all_parties():
    frames = [pd.DataFrame(part, columns=NAMES) for part in PARTIES]
    with refused(ConfigError, "adjust_for", "'weight'", "'batch'", 8) as told:
        fit("p-cov", frames, n_components=2, adjust_for="weight, age, batch")
    assert all(f"client {party}" in str(told.value) for party in range(3))
    for options, named in (
        ({"adjust_for": "1, 1"}, ["adjust_for"]),
        ({"adjust_for": "0,1,2,3,4,5,6,7"}, ["adjust_for", 8]),
        ({"adjust_for": "1", "center": False}, ["adjust_for", "center=True"]),
        ({"harmonise": "means", "keep": "moments", **SECURE}, ["'keep'", "'moments'", "'harmonise'"]),
        ({"adjust_for": "1", "n_components": 8}, ["n_components", 8, 7]),
    ):
        with refused(ConfigError, *named):
            fit("p-cov", PARTIES, **{"n_components": 2, **options})


@pytest.mark.parametrize("method", ["ap-cov", "sub-it", "qr-pca", "streaming", "dp-pca"])
def test_other_methods_say_why_they_have_no_covariates(method):
    with refused(ConfigError, "adjust_for", "p-cov"):
        fit(method, PARTIES, n_components=2, adjust_for="1")


def test_other_places_and_false_scatters_are_told():
    server = server_of("p-cov", PARTIES, n_components=2, adjust_for="1,4")
    say(server, 1, covariates="1 5")
    with refused(ConfigError, "client 1", "adjust-for", "client 0"):
        finish(server)
    server = server_of("p-cov", PARTIES, n_components=2, adjust_for="1,4", harmonise="means")
    tamper_arrays(server, 1, lambda arrays: [*arrays[:3], arrays[3] * 1.01] if len(arrays) == 4 else arrays)
    with refused(ContractError, match="fit"):
        finish(server)


@pytest.mark.parametrize("wanted", ["auto", 0.8])
def test_how_many_is_asked_of_what_is_left(wanted):
    model = fit("p-cov", PARTIES, n_components=wanted, adjust_for="1,4")
    left, _ = residuals(ROWS, [AGE, SEX], "nothing")
    plain = fit("p-cov", cut(left, *SIZES), n_components=wanted)
    assert model.n_components_ == plain.n_components_
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-10)


def test_covariates_that_do_not_vary_and_sites_of_one_sex_are_no_fault():
    rows = np.column_stack([ROWS, ROWS[:, AGE] * 12, np.ones(600)])
    model = fit("p-cov", cut(rows, *SIZES), n_components=3, adjust_for=f"{AGE},{SEX},8,9")
    plain = fit("p-cov", PARTIES, n_components=3, adjust_for=f"{AGE},{SEX}")
    np.testing.assert_allclose(model.components_[:, :8], plain.components_, atol=1e-10)
    assert any("at 1, 8, 9 (from 0) some combination does not vary" in note for note in model.log["notes"])
    rows = ROWS.copy()
    rows[:300, SEX] = 1
    model = fit("p-cov", cut(rows, *SIZES), n_components=2, adjust_for="1,4", harmonise="variances")
    left, _ = residuals(rows, [AGE, SEX], "variances")
    np.testing.assert_allclose(model.explained_variance_, PCA(2).fit(left).explained_variance_, rtol=1e-10)
    parties = [*cut(ROWS[:598], 300, 298), ROWS[598:599], ROWS[599:]]
    model = fit("p-cov", parties, n_components=2, harmonise="variances", min_rows=1)
    sites = np.repeat([0, 1], [300, 298])
    left, _ = residuals(ROWS[:598], [], "means", sites)
    spread = np.sqrt((left**2).sum(axis=0) / 600)
    left = np.vstack([left[sites == site] * spread / left[sites == site].std(axis=0) for site in (0, 1)])
    values = np.linalg.eigvalsh(left.T @ left)[::-1] / 599
    np.testing.assert_allclose(model.explained_variance_, values[:2], rtol=1e-10)


@pytest.mark.parametrize("harmonise", ["nothing", "means", "variances"])
def test_units_and_offsets_cost_no_digits(harmonise):
    """Each feature in a unit of its own, far from zero."""
    unit, offset = 10.0 ** np.arange(-4, 4), 1e5 * 10.0 ** np.arange(-4, 4)
    there = fit(
        "p-cov", cut(ROWS * unit + offset, *SIZES), n_components=2, adjust_for="1,4", harmonise=harmonise, scale=True
    )
    here = fit("p-cov", PARTIES, n_components=2, adjust_for="1,4", harmonise=harmonise, scale=True)
    np.testing.assert_allclose(np.abs(there.components_), np.abs(here.components_), atol=1e-8)


def test_kept_moments_are_those_of_covariates_and_features():
    model = fit("p-cov", PARTIES, n_components=3, adjust_for="1,4", keep="moments")
    np.testing.assert_allclose(model.moments_.scatter, SecondMoments.of(ROWS).scatter, rtol=1e-9, atol=1e-6)
    later = analyses.pca(analyses.adjusted(model.moments_, [AGE, SEX]).moments, 3)
    np.testing.assert_allclose(later.explained_variance_, model.explained_variance_, rtol=1e-12)


def test_odd_rows_and_influence_are_of_what_is_left(tmp_path):
    options = {"n_components": 3, "adjust_for": "1,4", "outliers": "counts"}
    model = fit("p-cov", PARTIES, scores=[tmp_path / f"{i}.csv" for i in range(3)], **options)
    found = analyses.outliers(model, ROWS)
    told = np.vstack(
        [np.genfromtxt(tmp_path / f"{i}-outliers.csv", delimiter=",", skip_header=1, usecols=(0, 2)) for i in range(3)]
    )
    np.testing.assert_allclose(told, np.column_stack([found.t_squared, found.spe]), rtol=1e-6)
    shares = np.array([one["component_shares"] for one in model.log["influence"]])
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    with refused(ContractError, "scikit-learn's"):
        model.to_sklearn()


def test_the_slopes_are_those_of_a_regression():
    centred = ROWS - ROWS.mean(axis=0)
    found, dropped = fitted(centred.T @ centred, np.array([AGE, SEX]))
    expected = np.linalg.lstsq(centred[:, [AGE, SEX]], centred, rcond=None)[0]
    expected[:, [AGE, SEX]] = 0
    np.testing.assert_allclose(found.slopes, expected, atol=1e-12)
    assert not dropped.size
    np.testing.assert_allclose(
        found.of_scatter(centred.T @ centred), found.residuals(centred).T @ found.residuals(centred), atol=1e-7
    )
