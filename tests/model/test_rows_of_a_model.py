"""Rows that belong to a model have their columns matched by name, wherever they are taken."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.collections import PathCollection
from scipy import sparse

from fedpca_flwr import FederatedPCA, Federation, analyses
from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.figures import plots
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import captured_variance, knn_accuracy, pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.model.summary import TOLD, shrinkage_notes
from simulations import run
from tests.families import cut, rows
from tests.harness import reconstruction_error
from tests.refusals import refused

NAMES = ["age", "bmi", "pulse", "weight", "height"]
ORDER = [3, 0, 4, 2, 1]
TURNED = [NAMES[place] for place in ORDER]
X = rows(90, 5) * [1, 2, 3, 5, 8] + [50, 25, 70, 80, 170]
PARTS = cut(X, 60, 30)


def frame(data=X, names=NAMES):
    return pd.DataFrame(data, columns=names)


def anndata():
    return pytest.importorskip("anndata", reason="needs the extra 'cells'")


def cells(data=X, names=NAMES, make=np.asarray):
    return anndata().AnnData(
        make(data), var=pd.DataFrame(index=names), obs=pd.DataFrame(index=map(str, range(len(data))))
    )


def turned(kind, data=X):
    """The same rows with their columns in another order, as each library holds them."""
    columns = data[:, ORDER]
    if kind == "arrow":
        return pa.table(dict(zip(TURNED, columns.T, strict=True)))
    if kind == "polars":
        return pytest.importorskip("polars", reason="polars is not installed").DataFrame(columns, schema=TURNED)
    if kind.startswith("cells"):
        return cells(columns, TURNED, sparse.csr_matrix if kind == "cells, sparse" else np.asarray)
    return frame(columns, TURNED)


KINDS = ["pandas", "arrow", "polars", "cells", "cells, sparse"]


def fit(parties, **options):
    return run("p-cov", parties, n_components=2, min_rows=1, **options)


@pytest.fixture(scope="module")
def model():
    """Of two frames, of which the run turned the second."""
    return fit([frame(PARTS[0]), turned("pandas", PARTS[1])])


@pytest.fixture(scope="module")
def bare():
    """The same of arrays, without names."""
    return fit(PARTS)


def heights(figure):
    return [[bar.get_height() for bar in axes.patches] for axes in figure.axes]


def points(figure):
    found = [one.get_offsets() for one in figure.axes[0].collections if isinstance(one, PathCollection)]
    return np.concatenate([one for one in found if len(one)])


# Every place where rows are taken


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_frames_takes_every_order_of_their_columns(model, bare, kind, tmp_path):
    expected = (X - bare.mean_) @ bare.components_.T
    for one in (model, PCAModel.load(model.save(tmp_path / "model"))):
        np.testing.assert_allclose(one.transform(turned(kind)), expected, atol=1e-12)
        np.testing.assert_allclose(one.centred(turned(kind)), X - bare.mean_, atol=1e-12)


@pytest.mark.parametrize("kind", ["pandas", "cells, sparse"])
def test_figures_and_metrics_of_frames_take_every_order_of_their_columns(model, bare, kind):
    """The fault: a distance of 363 deviations in the place of 0.037."""
    found = plots.heterogeneity([turned(kind, part) for part in PARTS], model)
    np.testing.assert_allclose(heights(found), heights(plots.heterogeneity(PARTS, bare)), rtol=1e-9)
    assert max(heights(found)[1]) < 1
    truth = pooled_pca(frame(), 2)
    of_arrays = points(plots.projection_overlay(pooled_pca(X, 2), bare, X))
    np.testing.assert_allclose(points(plots.projection_overlay(truth, model, turned(kind))), of_arrays, atol=1e-9)
    np.testing.assert_allclose(
        points(plots.projection_grid(truth, {"p-cov": model}, turned(kind))), of_arrays, atol=1e-9
    )
    other, truth, of_arrays = turned(kind), pooled_pca(frame(), 2), pooled_pca(X, 2)
    labels = (X[:, 4] > 170).astype(int)
    assert reconstruction_error(model, other) == pytest.approx(reconstruction_error(bare, X), rel=1e-9)
    assert captured_variance(model, truth, other) == pytest.approx(captured_variance(bare, of_arrays, X), rel=1e-9)
    assert knn_accuracy(model, frame(), labels, other, labels) == knn_accuracy(bare, X, labels, X, labels)


@pytest.mark.parametrize("scale", [False, True])
def test_the_distance_of_a_mean_is_in_deviations_of_all_rows(scale):
    model = fit(PARTS, scale=scale)
    unit = X.std(axis=0) if scale else np.ones(5)
    spread = np.sqrt(np.sum(((X - X.mean(axis=0)) / unit) ** 2) / (len(X) - 1))
    expected = [np.linalg.norm((part.mean(axis=0) - X.mean(axis=0)) / unit) / spread for part in PARTS]
    np.testing.assert_allclose(heights(plots.heterogeneity(PARTS, model))[1], expected, rtol=1e-9)


@pytest.mark.parametrize("kind", [sparse.coo_array, sparse.csc_matrix, np.ndarray.tolist])
def test_overlays_take_whatever_a_model_takes(bare, kind):
    many = np.tile(X, (8, 1))
    found = points(plots.projection_overlay(bare, bare, kind(many)))
    np.testing.assert_allclose(found, points(plots.projection_overlay(bare, bare, many)), atol=1e-9)
    assert len(found) == 2 * 240


@pytest.mark.parametrize("kind", KINDS)
def test_analyses_and_the_reference_take_every_order_of_the_columns(kind):
    moments, other = SecondMoments.of(frame()), turned(kind)
    adjusted, of_places = analyses.adjusted(moments, ["age"]), analyses.adjusted(SecondMoments.of(X), [0])
    np.testing.assert_allclose(adjusted.apply(other), of_places.apply(X), atol=1e-9)
    factors = analyses.factor_analysis(moments, 1)
    np.testing.assert_allclose(factors.transform(other), factors.transform(frame()), atol=1e-9)
    model = analyses.pca(moments, 2)
    np.testing.assert_allclose(analyses.outliers(model, other).spe, analyses.outliers(model, frame()).spe, atol=1e-9)
    truth = pooled_pca(turned(kind), 2)
    assert truth.feature_names_in_.tolist() == TURNED
    np.testing.assert_allclose(truth.transform(frame()), pooled_pca(X, 2).transform(X), atol=1e-9)


def test_regressions_take_every_order_of_their_features():
    fitted = analyses.least_squares(SecondMoments.of(frame()), ["age"])
    given = frame()[NAMES[1:]]
    np.testing.assert_array_equal(fitted.predict(given[NAMES[:0:-1]]), fitted.predict(given))
    with refused(DataError, "BMI", "bmi"):
        fitted.predict(given.rename(columns={"bmi": "BMI"}))


def test_a_federation_refuses_another_order(tmp_path):
    """It knows no names, but their digest."""
    federation = Federation.open(tmp_path)
    federation.join("north", frame(PARTS[0]))
    with refused(ConfigError, "'south'"):
        federation.join("south", turned("pandas", PARTS[1]))
    federation.join("south", frame(PARTS[1]))
    with refused(DataError):
        federation.model(2).transform(turned("cells"))


# What a run says of them


def test_names_of_columns_count_where_they_are_texts_whatever_they_are():
    told = "columns without names are taken by position, as those of party 1: party 0, party 2"
    assert told in fit([PARTS[0], frame(PARTS[1]), PARTS[1]]).log["notes"]
    for parties in (PARTS, [frame(part) for part in PARTS]):
        assert not any("by position" in note for note in fit(parties).log["notes"])
    # Of integers for names scikit-learn, and so a model, keeps none: new rows would be taken by position.
    numbered = [frame(part, range(5)) for part in PARTS]
    np.testing.assert_array_equal(fit(numbered).components_, fit(PARTS).components_)
    with refused(ConfigError, "party 1", "party 0"):
        fit([numbered[0], numbered[1][ORDER]])
    # The fault: a frame with a column of this name was taken for an Arrow table.
    named = ["column_names", "var_names", "obs_names", "columns", "shape"]
    assert fit([frame(part, named) for part in PARTS]).feature_names_in_.tolist() == named


# AnnData


def test_cells_are_parties_of_an_estimator_too(bare):
    for make in (np.asarray, sparse.csr_matrix, sparse.csc_matrix):
        model = fit({"north": cells(PARTS[0], make=make), "south": turned("cells", PARTS[1])})
        assert model.feature_names_in_.tolist() == NAMES
        assert (
            "columns are in the order of party 'north'; party 'south' had the same ones in another"
            in model.log["notes"]
        )
        np.testing.assert_allclose(model.components_, bare.components_, atol=1e-9)
    sites = np.repeat(["north", "south"], [60, 30])
    of_cells = FederatedPCA(2).fit(cells(), groups=sites)
    of_list = FederatedPCA(2).fit([cells(part) for part in PARTS])
    of_frame = FederatedPCA(2).fit(frame(), groups=sites)
    for found in (of_cells, of_list):
        np.testing.assert_array_equal(found.components_, of_frame.components_)
        assert found.feature_names_in_.tolist() == NAMES
        np.testing.assert_array_equal(found.transform(turned("cells")), of_frame.transform(frame()))


def test_cells_stay_sparse_and_have_moments_and_scores(bare):
    held = cells(make=sparse.csr_matrix)
    found = as_rows(held, "X")
    assert isinstance(found, Blocks)
    assert found.sparse
    np.testing.assert_array_equal(as_rows(cells()[10:20], "X"), X[10:20])
    moments = SecondMoments.of(cells())
    assert moments.features == tuple(NAMES)
    np.testing.assert_array_equal(moments.mean, SecondMoments.of(X).mean)
    own = Loadings(bare.components_, bare.mean_, np.ones(5), columns=names_digest(NAMES))
    np.testing.assert_allclose(own.part_of_scores(cells()), bare.transform(X), atol=1e-12)
    with refused(DataError):
        own.part_of_scores(turned("cells"))
    nothing = anndata().AnnData(obs=pd.DataFrame(index=["a"]), var=pd.DataFrame(index=NAMES))
    with refused(DataError, "party 0", "'counts'"):
        fit([nothing])
    with refused(ConfigError, "'parties'", "AnnData"):
        fit(cells())


def test_cells_in_a_file_are_read(tmp_path, model):
    cells().write_h5ad(tmp_path / "cells.h5ad")
    held = anndata().read_h5ad(tmp_path / "cells.h5ad", backed="r")
    np.testing.assert_array_equal(model.transform(held), model.transform(frame()))
    held.file.close()


def test_what_does_not_vary_shrinks_no_score_and_many_rows_none():
    wide = rows(20, 40)
    with_constants = np.column_stack([wide, np.ones((20, 30))])
    models = [run("p-cov", cut(X, 12, 8), n_components=2, min_rows=1) for X in (wide, with_constants)]
    np.testing.assert_allclose(models[0].shrinkage_, models[1].shrinkage_, rtol=1e-9)
    model = run(
        "p-cov",
        cut(np.random.default_rng(0).standard_normal((14, 12)) * np.r_[3.0, np.ones(11)], 8, 6),
        n_components=1,
        min_rows=1,
    )
    assert model.shrinkage_.min() < TOLD
    assert shrinkage_notes(model) == []
