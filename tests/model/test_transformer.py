"""A model in scikit-learn's pipelines: it stays what it is, has names, and passes the checks of fitted transformers."""

import html

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from fedpca_flwr.errors import ContractError
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

X = rows(120, 5) + np.arange(5)


@pytest.fixture(params=[False, True], ids=["plain", "scaled"])
def model(request):
    return run("p-cov", cut(X, 70, 50), n_components=2, scale=request.param)


def test_it_works_in_a_pipeline_and_fitting_again_changes_nothing(model):
    other = rows(50, 5, seed=4) * 10
    frozen = model.frozen()
    np.testing.assert_allclose(frozen.fit(other, None).transform(X), model.transform(X), atol=1e-12)
    np.testing.assert_allclose(clone(frozen).transform(X), model.transform(X), atol=1e-12)
    labels = (model.transform(X)[:, 0] > 0).astype(int)
    pipeline = make_pipeline(model.frozen(), LogisticRegression()).fit(X, labels)
    assert pipeline.score(X, labels) > 0.95
    np.testing.assert_allclose(pipeline[:-1].transform(X), model.transform(X), atol=1e-12)
    for named in (model, model.frozen(), make_pipeline(model.frozen())[:]):
        assert named.get_feature_names_out().tolist() == ["pca0", "pca1"]


# scikit-learn's own scaled pipelines warn likewise where set_output comes after fit
@pytest.mark.filterwarnings("ignore:X has feature names, but PCA was fitted without:UserWarning")
def test_scores_can_be_a_data_frame(model):
    frame = make_pipeline(model.frozen()).set_output(transform="pandas").transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns.tolist() == ["pca0", "pca1"]


CHECKS = (
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_n_features_in_after_fitting",
    "check_set_output_transform",
    "check_readonly_memmap_input",
)
"""Those that neither learn in `fit` nor ask for `fit_transform`, which scikit-learn's frozen estimators do not have."""


@pytest.mark.parametrize("name", CHECKS)
def test_it_passes_the_checks_of_a_fitted_transformer(name):
    """Each check draws rows of its own; the model is fitted to as many features as it asks for."""
    for d in range(2, 31):
        data, _ = make_blobs(60, n_features=d, random_state=0)
        frozen = run("p-cov", cut(data, 30, 30), n_components=2).frozen()
        try:
            getattr(estimator_checks, name)("FrozenEstimator", frozen)
            break
        except (ValueError, AssertionError) as error:
            if "features" not in str(error):
                raise
    else:
        pytest.fail("the check passes with no number of features")


def test_a_model_shows_itself_and_scores_of_columns_are_no_transformer(model):
    text = f"PCAModel(p-cov: 2 components of 5 features, 120 rows, {model.explained_variance_ratio_.sum():.2%} of the"
    assert repr(model).startswith(text)
    assert "\n" not in repr(model)
    page = model._repr_html_()
    assert html.escape(repr(model)) in page
    assert page.count("<tr>") == 3
    assert all(html.escape(note) in page.split("<details>")[0] for note in model.log["notes"])  # seen without a click
    assert f"feature {np.abs(model.components_[0]).argmax()} +" in page
    assert html.escape(model.summary()) in page
    assert len(repr(pooled_pca(X, 2))) < 200
    assert "<table>" in pooled_pca(X, 2)._repr_html_()
    model = run("vertical", np.array_split(X, 2, axis=1), n_components=2)
    assert "2 components of 5 features" in repr(model)
    with refused(ContractError, "'vertical'", "scores_"):
        model.frozen()


def test_what_scikit_learn_and_a_page_get_is_their_own():
    model = run("p-cov", cut(X, 70, 50), n_components=2)
    model.log["notes"].append("<script>alert(1)</script>")
    assert "<script>" not in model._repr_html_()
    model = run("p-cov", cut(X, 70, 50), n_components=2, scale=True)
    scaler, pca = model.to_sklearn()
    np.testing.assert_array_equal(scaler.var_, model.scale_**2)
    pca.components_[:] = 0.0
    assert model.components_.any()
    model = run("p-cov", dict(zip(["north", "south"], cut(X, 70, 50), strict=True)), n_components=2)
    assert "2 (north, south), with 50 to 70 rows" in model.summary()
