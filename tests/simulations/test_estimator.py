"""`FederatedPCA` is an estimator as scikit-learn's are."""

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
from strategies import METHODS
from tests.families import rows
from tests.refusals import refused

NOISE = "its noise, which protects the rows, is drawn anew in every fit"
NOT_FOR = {
    "dp-pca": dict.fromkeys(
        [
            "check_fit_idempotent",
            "check_pipeline_consistency",
            "check_transformer_data_not_an_array",
            "check_transformer_general",
        ],
        NOISE,
    )
}
"""Checks of scikit-learn's that a method cannot pass, with the reason. The others pass all; `streaming` is left out as
a whole: its federation outlasts a fit, and so do its features. Methods for columns are no estimators."""


FEW = {"iterations": 3}
"""Options without which methods that have them would take minutes here."""


def estimators():
    cards = [method.strategy.card for method in METHODS.values()]
    forgetful = [card for card in cards if card.split == "rows" and "state" not in card.examples[0]]
    return [
        FederatedPCA(method=card.name, run_options=FEW if FEW.keys() <= card.options.model_fields.keys() else None)
        for card in forgetful
    ]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(estimators()[:1])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(estimators()[1:], expected_failed_checks=lambda one: NOT_FOR.get(one.method, {}))
def test_scikit_learns_own_checks_with_every_other_method(estimator, check):
    """Half a minute: most of the checks are of the one class that all methods share."""
    check(estimator)


X = rows(90)
SITES = np.array(["south", "north", "west"])[np.arange(90) % 3]


def unknown(labels, nobody):
    """The labels, without those of rows 3 and 50."""
    labels = np.array(labels, dtype=object)
    labels[[3, 50]] = nobody
    return labels


def same(one, other):
    np.testing.assert_array_equal(one.components_, other.components_)
    np.testing.assert_array_equal(one.explained_variance_, other.explained_variance_)


def test_parties_are_a_list_or_the_groups_of_a_table_of_any_labels():
    parties = [X[name == SITES] for name in ("north", "south", "west")]
    model = run("p-cov", parties, n_components=3)
    by_list = FederatedPCA(3).fit(parties)
    same(by_list, model)
    same(FederatedPCA(3).fit(X, groups=SITES), model)
    assert len(by_list.model_.log["parties"]) == 3
    np.testing.assert_allclose(by_list.transform(parties), by_list.transform(np.vstack(parties)))
    mixed = np.where(SITES == "south", 7, SITES.astype(object))
    same(FederatedPCA(2).fit(X, groups=mixed), FederatedPCA(2).fit(X, groups=SITES))


def test_one_table_is_one_party_and_says_so():
    note = "one party holds all rows: 'groups' of fit says which party holds each"
    alone = FederatedPCA(n_components=2).fit(X)
    assert note in alone.model_.log["notes"]
    assert note not in FederatedPCA(n_components=2).fit([X]).model_.log["notes"]
    truth = PCA(3, svd_solver="full").fit(X)
    for table in (X, X.tolist(), sparse.csr_matrix(X)):
        found = FederatedPCA(3).fit(table)
        assert len(found.model_.log["parties"]) == 1
        np.testing.assert_allclose(np.abs(found.components_), np.abs(truth.components_), atol=1e-10)
        assert found.score(X) == pytest.approx(truth.score(X))
    assert FederatedPCA().fit([X[:3], X[3:6]]).n_components_ == min(6, X.shape[1])
    assert clone(FederatedPCA(0.5)).fit(X, groups=SITES).explained_variance_ratio_.sum() > 0.5


def test_names_are_kept_and_checked_of_frames_and_parties():
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    for given in ({"X": frame, "groups": SITES}, {"X": [frame[:40], frame[40:]]}):
        fitted = FederatedPCA(2).set_output(transform="pandas").fit(**given)
        assert list(fitted.feature_names_in_) == list(frame.columns)
        assert list(fitted.transform(frame).columns) == ["federatedpca0", "federatedpca1"]
        with refused(ValueError):
            fitted.transform(frame[frame.columns[::-1]])
    assert not hasattr(fitted.fit(X), "feature_names_in_")
    parties = {name: pa.table({f"x{j}": part[:, j] for j in range(X.shape[1])}) for name, part in by_site().items()}
    fitted = FederatedPCA(2).fit(parties)
    assert [party["name"] for party in fitted.model_.log["parties"]] == list(parties)
    np.testing.assert_array_equal(fitted.components_, FederatedPCA(2).fit(list(by_site().values())).components_)
    assert fitted.transform(parties).shape == (90, 2)
    assert FederatedPCA().fit(parties).n_components_ == X.shape[1]


def test_options_of_method_and_run():
    hidden = FederatedPCA(2, method="p-cov scale=true", run_options={"secure_aggregation": True, "bound": 1e3})
    fitted = hidden.fit(X, groups=SITES)
    assert fitted.scale_ is not None
    assert fitted.model_.log["parties"][0]["rows"] is None
    with refused(ConfigError, "'bound'"):
        FederatedPCA(2, run_options={"bond": 1e3}).fit(X)


def test_methods_that_are_not_for_all_data_are_refused():
    holes = X.copy()
    holes[::7, 1] = np.nan
    assert FederatedPCA(2, method="em").fit(holes, groups=SITES).transform(holes).shape == (90, 2)
    with refused(ValueError, "NaN"):
        FederatedPCA(2).fit(holes)
    with refused(ConfigError, "'vertical'", "scores_"):
        FederatedPCA(2, method="vertical").fit([X[:, :3], X[:, 3:]])
    fitted = FederatedPCA(2).fit(X)
    with refused(ValueError, 3, "FederatedPCA", 12):
        fitted.transform(X[:, :3])
    with refused(DataError, "(2, 3)", 2, 1):
        fitted.inverse_transform(np.ones((2, 3)))
    fitted = FederatedPCA(2, method="dp-pca", run_options={"epsilon": 0.01, "noise_seed": 1}).fit(X)
    assert np.isnan(fitted.explained_variance_).all()
    assert np.isnan(fitted.score(X))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"X": X, "groups": SITES[:5]}, ["'groups'", 5, 90]),
        ({"X": [X], "groups": SITES}, ["'groups'", "'X'"]),
        ({"X": X, "groups": unknown(SITES, None)}, [2, 90, 3]),
        ({"X": X, "groups": unknown(SITES, np.nan)}, [2, 90, 3]),
        ({"X": X, "groups": unknown(np.repeat([1.0, 2.0], 45), np.nan)}, [2, 90]),
        ({"X": X, "groups": pd.array(unknown(SITES, pd.NA))}, [2, 90]),
        ({"X": {1: X[:40], 2: X[40:]}}, ["keys", 1, 2]),
    ],
)
def test_groups_that_do_not_fit_are_named(given, named):
    with refused(ConfigError, *named):
        FederatedPCA(2).fit(**given)


@pytest.mark.parametrize("wanted", [None, 2, 5])
def test_parties_of_five_and_four_columns_are_told_by_their_numbers_of_features(wanted):
    with refused(DataError, "client 1", 4, "client 0", 5):
        FederatedPCA(wanted).fit([X[:40, :5], X[40:, :4]])


@pytest.mark.parametrize(("labels", "names"), [(["south", "north"], ["north", "south"]), ([2, 1], ["", ""])])
def test_labels_of_groups_that_are_names_are_the_parties_names(labels, names):
    fitted = FederatedPCA(2).fit(X, groups=np.repeat(labels, [40, len(X) - 40]))
    assert [party["name"] for party in fitted.model_.log["parties"]] == names


def by_site():
    return {str(site): X[np.asarray(SITES) == site] for site in np.unique(SITES)}


def test_in_pipelines_and_searches_groups_are_a_parameter_of_fit_or_routed():
    pipeline = make_pipeline(StandardScaler(), FederatedPCA(2)).fit(X, federatedpca__groups=SITES)
    assert len(pipeline[-1].model_.log["parties"]) == 3
    assert pipeline.transform(X).shape == (90, 2)
    search = GridSearchCV(make_pipeline(StandardScaler(), FederatedPCA()), {"federatedpca__n_components": [1, 2]}, cv=3)
    search.fit(X, federatedpca__groups=SITES)
    assert len(search.best_estimator_[-1].model_.log["parties"]) == 3
    with sklearn.config_context(enable_metadata_routing=True):
        pca = FederatedPCA().set_fit_request(groups=True)
        model = make_pipeline(pca, LogisticRegression())
        search = GridSearchCV(model, {"federatedpca__n_components": [1, 2]}, cv=GroupKFold(3))
        search.fit(X, (X[:, 0] > 0).astype(int), groups=SITES)
    assert len(search.best_estimator_[0].model_.log["parties"]) == 3
