"""`FederatedPCA` is an estimator as scikit-learn's are."""

import os
import re
import subprocess
import sys
from inspect import signature

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedpca_flwr import ConfigError, DataError, FederatedPCA, run
from fedpca_flwr.simulations.python_words import run_keywords
from fedpca_flwr.strategies import METHODS
from tests.families import rows
from tests.refusals import refused

NOISE = "its noise, which protects the rows, is drawn anew in every fit"
ANEW = ("fit_idempotent", "pipeline_consistency", "transformer_data_not_an_array", "transformer_general")
NOT_FOR = {"dp-pca": {f"check_{name}": NOISE for name in ANEW}}
"""Checks of scikit-learn's that a method cannot pass, with the reason. The others pass all; `streaming` is left out as
a whole: its federation outlasts a fit, and so do its features. Methods for columns are no estimators."""


ESTIMATORS = [
    FederatedPCA(method=card.name, **{"iterations": 3} if "iterations" in card.options.model_fields else {})
    for card in (method.strategy.card for method in METHODS.values())
    if card.split == "rows" and "state" not in card.examples[0]
]


@pytest.mark.nightly  # by day our own, below
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda one: NOT_FOR.get(one.method, {}))
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


X = rows(90)
SITES = np.array(["south", "north", "west"])[np.arange(90) % 3]
BY_SITE = {name: X[name == SITES] for name in ("north", "south", "west")}
FRAME = pd.DataFrame(X, index=[f"r{i}" for i in range(90)], columns=[f"f{j}" for j in range(X.shape[1])])


def same(one, other):
    np.testing.assert_array_equal(one.components_, other.components_)
    np.testing.assert_array_equal(one.explained_variance_, other.explained_variance_)


def names_of(fitted):
    return [party["name"] for party in fitted.model_.log["parties"]]


def test_groups_of_a_table_are_parties_and_one_table_is_one_which_it_says():
    parties = list(BY_SITE.values())
    by_list, by_groups = FederatedPCA(3).fit(parties), FederatedPCA(3).fit(X, groups=SITES)
    same(by_list, run("p-cov", parties, n_components=3))
    same(by_groups, by_list)
    assert len(by_list.model_.log["parties"]) == 3
    np.testing.assert_allclose(by_list.transform(parties), by_list.transform(np.vstack(parties)))
    same(FederatedPCA(3).fit(X, groups=np.where(SITES == "south", 7, SITES.astype(object))), by_groups)
    assert names_of(by_groups) == ["north", "south", "west"]
    numbered = FederatedPCA(2).fit(X, groups=np.repeat([10, 9], [40, 50]))  # 10 comes after 9, not before "9"
    assert [(party["name"], party["rows"]) for party in numbered.model_.log["parties"]] == [("", 50), ("", 40)]
    truth = PCA(3, svd_solver="full").fit(X)
    for table in (X, X.tolist(), sparse.csr_matrix(X)):
        found = FederatedPCA(3).fit(table)
        assert any("one party" in note and "'groups'" in note for note in found.model_.log["notes"])
        assert len(found.model_.log["parties"]) == 1
        np.testing.assert_allclose(np.abs(found.components_), np.abs(truth.components_), atol=1e-10)
        assert found.score(X) == pytest.approx(truth.score(X))
    assert FederatedPCA().fit([X[:3], X[3:6]]).n_components_ == min(6, X.shape[1])
    assert clone(FederatedPCA(0.5)).fit(X, groups=SITES).explained_variance_ratio_.sum() > 0.5


def test_names_index_and_types_are_those_of_frames_and_parties():
    parties = {"north": FRAME[:30], "south": FRAME[30:]}
    for given in ({"X": FRAME, "groups": SITES}, {"X": parties}):
        fitted = FederatedPCA(2).set_output(transform="pandas").fit(**given)
        assert list(fitted.feature_names_in_) == list(FRAME.columns)
        scores = fitted.transform(FRAME)
        assert list(scores.columns) == ["federatedpca0", "federatedpca1"]
        assert list(scores.index) == list(fitted.transform(list(parties.values())).index) == list(FRAME.index)
        pd.testing.assert_frame_equal(fitted.transform(parties), scores)
        with refused(ValueError):
            fitted.transform(FRAME[FRAME.columns[::-1]])
    assert isinstance(FederatedPCA(2).fit(parties).transform(parties), np.ndarray)
    assert not hasattr(fitted.fit(X), "feature_names_in_")
    tables = {name: pa.table({f"x{j}": column for j, column in enumerate(part.T)}) for name, part in BY_SITE.items()}
    fitted = FederatedPCA(2).fit(tables)
    assert names_of(fitted) == list(tables)
    same(fitted, FederatedPCA(2).fit(list(BY_SITE.values())))
    assert (fitted.transform(tables).shape, FederatedPCA().fit(tables).n_components_) == ((90, 2), X.shape[1])
    single = FederatedPCA(2).fit([FRAME[:30].astype("f4"), X[30:].astype("f4")])
    for name in ("components_", "mean_", "explained_variance_", "singular_values_"):
        assert getattr(single, name).dtype == np.float32
    assert single.transform(FRAME.astype("f4")).dtype == single.get_covariance().dtype == np.float32
    mixed = FederatedPCA(2).fit([X[:30].astype("f4"), X[30:]])
    assert single.transform(FRAME).dtype == mixed.components_.dtype == float


def test_options_of_method_and_run_are_parameters_as_scikit_learn_has_them():
    options = {"secure_aggregation": True, "bound": 1e3}
    hidden = FederatedPCA(2, method="p-cov scale=true", **options).fit(X, groups=SITES)
    assert hidden.scale_ is not None
    assert hidden.model_.log["parties"][0]["rows"] is None
    holes = X.copy()
    holes[::7, 1] = np.nan
    assert FederatedPCA(2, method="em").fit(holes, groups=SITES).transform(holes).shape == (90, 2)
    with refused(ValueError, "NaN"):
        FederatedPCA(2).fit(holes)
    estimator = FederatedPCA(2, method="sub-it", scale=True, block_size=3)
    twin = clone(estimator)
    assert (twin.get_params(), twin.get_params()["block_size"]) == (estimator.get_params(), 3)
    same(twin.fit(X, groups=SITES), run("sub-it", BY_SITE, n_components=2, scale=True, block_size=3, min_rows=1))
    assert clone(twin.set_params(scale=False, n_components=1)).fit(X).scale_ is None
    assert (estimator.get_params()["scale"], twin.n_components) == (True, 1)
    search = GridSearchCV(FederatedPCA(2), {"scale": [True, False], "whiten": [True]}, cv=2).fit(X)
    assert search.best_params_["scale"] in (True, False)
    with refused(ValueError, "'scael'", "'whiten'", match="options of its method"):
        twin.set_params(scael=True)
    with refused(ConfigError, "'run_options'", "scale=True"):
        FederatedPCA(2, run_options={"scale": True}).fit(X)
    with refused(ConfigError, "'scael'", "'scale'", "'secure_aggregation'", "harmonise"):
        FederatedPCA(2, scael=True).fit(X)


def test_signatures_have_the_options_of_methods_and_keys_of_a_run():
    for function, own in ((run, "parties"), (FederatedPCA, "whiten")):
        parameters = signature(function).parameters
        assert list(parameters)[-1] == "options"
        assert {own, "n_components", "min_rows", "scores"} <= parameters.keys()
        assert (parameters["scale"].annotation, parameters["scale"].default) == (bool, False)
        assert parameters["secure_aggregation"].default is False
        for method in METHODS.values():
            assert method.strategy.card.options.model_fields.keys() <= parameters.keys()
    assert run_keywords()["block_size"].default is ...  # that of the method


def test_likelihoods_are_those_of_scikit_learn():
    parties = [X[:30], X[30:]]
    for whiten in (False, True):
        truth, ours = PCA(3, svd_solver="full", whiten=whiten).fit(X), FederatedPCA(3, whiten=whiten).fit(parties)
        np.testing.assert_allclose(np.abs(ours.transform(parties)), np.abs(truth.transform(X)), atol=1e-9)
        back, expected = (one.inverse_transform(one.transform(X)) for one in (ours, truth))
        np.testing.assert_allclose(back, expected)
        np.testing.assert_allclose(ours.get_covariance(), truth.get_covariance(), atol=1e-9)
        np.testing.assert_allclose(ours.get_precision(), truth.get_precision(), atol=1e-9)
        np.testing.assert_allclose(ours.score_samples(parties), truth.score_samples(X))
        assert ours.score(parties) == ours.score(X) == pytest.approx(truth.score(X))
    scaled = FederatedPCA(3, method="p-cov scale=true").fit(parties)
    pipeline = make_pipeline(StandardScaler(), PCA(3, svd_solver="full")).fit(X)
    assert scaled.score(X) == pytest.approx(pipeline.score(X), rel=0.02)  # of which the divisors are n and n - 1
    np.testing.assert_allclose(scaled.get_covariance() @ scaled.get_precision(), np.eye(X.shape[1]), atol=1e-9)
    whole = FederatedPCA(12, method="p-cov scale=true").fit(X)
    np.testing.assert_allclose(np.diag(whole.get_covariance()), X.var(0, ddof=1))


@pytest.mark.parametrize("scale", [False, True])
def test_whitened_scores_are_those_of_the_conversion(scale):
    """The fault: the model's conversion, which knows no `whiten`, gave other scores without a word."""
    for whiten in (False, True):
        fitted = FederatedPCA(3, whiten=whiten, scale=scale).fit(FRAME, groups=SITES)
        np.testing.assert_allclose(fitted.to_sklearn().transform(FRAME), fitted.transform(FRAME), rtol=0, atol=1e-12)


def test_more_rows_are_added_by_their_moments():
    for options in ({}, {"secure_aggregation": True, "bound": 1e3}, {"method": "p-cov scale=true"}):
        whole = FederatedPCA(3, **options).fit(X, groups=SITES)
        added = FederatedPCA(3, **options).partial_fit([X[:20], X[20:30], X[30:40]])
        added.partial_fit(X[40:], groups=SITES[40:])
        np.testing.assert_allclose(added.explained_variance_, whole.explained_variance_, rtol=1e-9)
        np.testing.assert_allclose(added.components_, whole.components_, atol=1e-8)
        assert (added.n_samples_, len(added.model_.log["parties"])) == (90, 6)
        assert added.fit(X[:30], groups=SITES[:30]).n_samples_ == 30
        again = added.partial_fit(X[30:], groups=SITES[30:])
        assert again.n_samples_ == 60
        assert any("'fit'" in note for note in again.model_.log["notes"])
    assert not hasattr(FederatedPCA(method="qr-pca"), "partial_fit")
    with refused(ValueError, "'clusters'", match="partial_fit"):
        FederatedPCA(3, method="p-cov clusters=2").partial_fit(X)


@pytest.mark.nightly
def test_scikit_learns_tests_of_its_pca():
    """The rest ask for a solver's name or its refusals, for 'mle', for no component at all, or scikit-learn's words."""
    code = (
        "import pytest\nfrom fedpca_flwr import FederatedPCA\nfrom sklearn.decomposition.tests import test_pca\n"
        "test_pca.PCA = lambda n_components=None, whiten=False, **solver: FederatedPCA(n_components, whiten=whiten)\n"
        f"pytest.main(['-q', '-p', 'no:cacheprovider', '-c', {os.devnull!r}, '--pyargs', test_pca.__name__])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert int(passed[1]) >= 350


UNKNOWN = np.isin(np.arange(90), [3, 50])


@pytest.mark.parametrize(
    ("options", "given", "named"),
    [
        ({}, {"X": X, "groups": SITES[:5]}, ["'groups'", 5, 90]),
        ({}, {"X": [X], "groups": SITES}, ["'groups'", "'X'"]),
        ({}, {"X": X, "groups": np.where(UNKNOWN, None, SITES.astype(object))}, [2, 90, 3]),
        ({}, {"X": X, "groups": np.where(UNKNOWN, np.nan, SITES.astype(object))}, [2, 90, 3]),
        ({}, {"X": X, "groups": np.where(UNKNOWN, np.nan, 1.0)}, [2, 90]),
        ({}, {"X": X, "groups": pd.array(np.where(UNKNOWN, pd.NA, SITES.astype(object)))}, [2, 90]),
        *(({}, {"X": {1: X[:40], 2: X[40:]}}, ["keys", 1, 2]), ({"bond": 1e3}, {"X": X}, ["'bound'"])),
        ({"engine": "spark"}, {"X": X}, ["engine", "'spark'", "loopback", "ray"]),
        ({"method": "vertical"}, {"X": [X[:, :3], X[:, 3:]]}, ["'vertical'", "scores_"]),
    ],
)
def test_what_does_not_fit_is_named(options, given, named):
    with refused(ConfigError, *named):
        FederatedPCA(2, **options).fit(**given)


def test_other_numbers_of_features_are_told():
    for wanted in (None, 2, 5):
        with refused(DataError, "party 1", 4, "party 0", 5):
            FederatedPCA(wanted).fit([X[:40, :5], X[40:, :4]])
    fitted = FederatedPCA(2).fit(X)
    noise = FederatedPCA(2, method="dp-pca", epsilon=0.01, noise_seed=1).fit(X)  # where no likelihood is known
    assert np.isnan([*noise.explained_variance_, noise.score(X)]).all()
    for refuses in (fitted.transform, noise.score):
        with refused(ValueError, 3, "FederatedPCA", 12):
            refuses(X[:, :3])
    with refused(DataError, "(2, 3)", 2, 1):
        fitted.inverse_transform(np.ones((2, 3)))


@pytest.mark.engine
def test_groups_are_routed_in_pipelines_and_searches():
    few = {"federatedpca__n_components": [1, 2]}
    search = GridSearchCV(make_pipeline(StandardScaler(), FederatedPCA()), few, cv=3)
    search.fit(X, federatedpca__groups=SITES)
    assert len(search.best_estimator_[-1].model_.log["parties"]) == 3
    assert search.best_estimator_.transform(X).shape == (90, search.best_params_["federatedpca__n_components"])
    with sklearn.config_context(enable_metadata_routing=True):
        model = make_pipeline(FederatedPCA().set_fit_request(groups=True), LogisticRegression())
        search = GridSearchCV(model, few, cv=GroupKFold(3)).fit(X, (X[:, 0] > 0).astype(int), groups=SITES)
    assert len(search.best_estimator_[0].model_.log["parties"]) == 3
