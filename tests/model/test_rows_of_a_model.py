"""Rows that belong to a model have their columns matched by name wherever they are taken; what are none is refused."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.collections import PathCollection
from scipy import sparse
from sklearn.decomposition import PCA

from fedpca_flwr import FederatedPCA, Federation, analyses, run
from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.figures import plots
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.notes import SHRINKAGE_NOTE_LIMIT, shrinkage_notes
from fedpca_flwr.model.reference import captured_variance, knn_accuracy, pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.harness import at_sites, finish, reconstruction_error, server_of
from tests.refusals import refused, unnamed

NAMES = ["age", "bmi", "pulse", "weight", "height"]
ORDER = [3, 0, 4, 2, 1]
TURNED = [NAMES[place] for place in ORDER]
X = rows(90, 5) * [1, 2, 3, 5, 8] + [50, 25, 70, 80, 170]
PARTS = cut(X, 60, 30)
WITH_NAN = np.where(X.max() == X, np.nan, X)
SECRET = "4711-secret"
PAIRS = [("close", "x"), ("close", "y"), ("volume", "x"), ("volume", "y"), ("volume", "")]


def frame(data=X, names=NAMES):
    return pd.DataFrame(data, columns=names)


def cells(data=X, names=NAMES, make=np.asarray):
    anndata = pytest.importorskip("anndata", reason="needs the extra 'cells'")
    labels = {"var": pd.DataFrame(index=names), "obs": pd.DataFrame(index=map(str, range(len(data))))}
    return anndata.AnnData(make(data), **labels)


def turned(kind, data=X):
    """Return rows with their columns in another order, as each library holds columns."""
    columns = data[:, ORDER]
    if kind == "arrow":
        return pa.table(dict(zip(TURNED, columns.T, strict=True)))
    if kind == "polars":
        return pytest.importorskip("polars", reason="polars is not installed").DataFrame(columns, schema=TURNED)
    if kind.startswith("cells"):
        return cells(columns, TURNED, sparse.csr_matrix if kind == "cells, sparse" else np.asarray)
    return frame(columns, TURNED)


def fit(parties, **options):
    return run("p-cov", parties, n_components=2, min_rows=1, **options)


@pytest.fixture(scope="module")
def model():
    return fit([frame(PARTS[0]), turned("pandas", PARTS[1])])


@pytest.fixture(scope="module")
def bare():
    return fit(PARTS)


def refusal(call, given):
    with pytest.raises(DataError) as told:
        call(given)
    return str(told.value)


@pytest.mark.parametrize("kind", ["pandas", "cells, sparse"])
def test_figures_of_frames_take_every_order_of_columns(model, bare, kind):
    """The fault: a distance of 363 deviations in the place of 0.037."""

    def heights(figure):
        return [[bar.get_height() for bar in axes.patches] for axes in figure.axes]

    def points(figure):
        found = [one.get_offsets() for one in figure.axes[0].collections if isinstance(one, PathCollection)]
        return np.concatenate([one for one in found if len(one)])

    found = heights(plots.heterogeneity(model, [turned(kind, part) for part in PARTS]))
    np.testing.assert_allclose(found, heights(plots.heterogeneity(bare, PARTS)), rtol=1e-9)
    assert max(found[1]) < 1
    other, truth, of_arrays = turned(kind), pooled_pca(frame(), 2), pooled_pca(X, 2)
    expected = points(plots.projection_overlay(bare, X, reference=of_arrays))
    for of in (model, {"a": model}):
        np.testing.assert_allclose(points(plots.projection_overlay(of, other, reference=truth)), expected, atol=1e-9)
    labels = (X[:, 4] > 170).astype(int)
    assert reconstruction_error(model, other) == pytest.approx(reconstruction_error(bare, X), rel=1e-9)
    assert captured_variance(model, truth, other) == pytest.approx(captured_variance(bare, of_arrays, X), rel=1e-9)
    assert knn_accuracy(model, frame(), labels, other, labels) == knn_accuracy(bare, X, labels, X, labels)


@pytest.mark.parametrize("kind", ["pandas", "arrow", "polars", "cells", "cells, sparse"])
def test_models_and_analyses_take_every_order_of_columns(model, bare, kind):
    moments, other = SecondMoments.of(frame()), turned(kind)
    adjusted, factors = analyses.adjusted(moments, ["age"]), analyses.factor_analysis(moments, 1)
    truth, of_places = pooled_pca(other, 2), analyses.adjusted(SecondMoments.of(X), [0])
    np.testing.assert_allclose(model.transform(other), (X - bare.mean_) @ bare.components_.T, atol=1e-12)
    np.testing.assert_allclose(model.centred(other), X - bare.mean_, atol=1e-12)
    np.testing.assert_allclose(adjusted.apply(other), of_places.apply(X), atol=1e-9)
    np.testing.assert_allclose(factors.transform(other), factors.transform(frame()), atol=1e-9)
    found, expected = (analyses.outliers(analyses.pca(moments, 2), own).spe for own in (other, frame()))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert truth.feature_names_in_.tolist() == TURNED
    np.testing.assert_allclose(truth.transform(frame()), pooled_pca(X, 2).transform(X), atol=1e-9)
    fitted, given = analyses.least_squares(moments, ["age"]), frame()[NAMES[1:]]
    np.testing.assert_array_equal(fitted.predict(given[NAMES[:0:-1]]), fitted.predict(given))
    with refused(DataError, "BMI", "bmi"):
        fitted.predict(given.rename(columns={"bmi": "BMI"}))


def test_columns_without_names_mix_with_all_others(bare, tmp_path):
    told = "columns without names are taken by position, as those of party 1: party 0, party 2"
    mixed = fit([PARTS[0], frame(PARTS[1]), PARTS[1]])
    assert told in mixed.log["notes"]
    assert (mixed.feature_names_in_.tolist(), mixed.feature_names_in_.dtype) == (NAMES, object)
    assert bare.feature_names_in_ is None
    for parties in (PARTS, [frame(part) for part in PARTS]):
        assert not any("by position" in note for note in fit(parties).log["notes"])
    # pandas' numbers from 0 are no names, as in scikit-learn; where they stand in another order they are matched
    numbered = [frame(part, range(5)) for part in PARTS]
    np.testing.assert_array_equal(fit(numbered).components_, bare.components_)
    for reordered in (numbered[1][ORDER], numbered[1][ORDER].rename(columns=str)):
        np.testing.assert_array_equal(fit([numbered[0], reordered]).components_, bare.components_)
        np.testing.assert_array_equal(bare.transform(reordered), bare.transform(PARTS[1]))
        with refused(ConfigError):
            SecondMoments.of(PARTS[0]).merge(SecondMoments.of(reordered))
    federation = Federation.open(tmp_path / "numbered")
    federation.join("north", numbered[0])
    with refused(ConfigError, "'south'"):
        federation.join("south", numbered[1][ORDER])
    federation.join("south", PARTS[1])
    np.testing.assert_array_equal(federation.model(2).transform(X), federation.model(2).transform(frame(X, range(5))))
    federation = Federation.open(tmp_path / "named")
    federation.join("north", frame(PARTS[0]).astype("Float64"))
    with refused(ConfigError, "'south'"):
        federation.join("south", turned("pandas", PARTS[1]))
    with refused(DataError, "'south'", "'a'"):
        federation.join("south", pd.DataFrame({"a": ["x"]}))
    federation.join("south", frame(PARTS[1]))
    with refused(DataError):
        federation.model(2).transform(turned("cells"))
    # The fault: a frame with a column of this name was taken for an Arrow table.
    named = ["column_names", "var_names", "obs_names", "columns", "shape"]
    assert fit([frame(part, named) for part in PARTS]).feature_names_in_.tolist() == named


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("names", [[0.5, 1.5, 2.5, 3.5, 4.5], [7, 11, 19, 23, 0], PAIRS, [*"abcd", 4]], ids=str)
def test_names_that_are_no_texts_go_by_name_everywhere(names: Any, tmp_path):
    """The fault: names were forgotten after the fit, and a frame of another order was taken by position."""
    columns = pd.MultiIndex.from_tuples(names) if names is PAIRS else names
    texts = [", ".join(name) if names is PAIRS else str(name) for name in names]
    north, south = (pd.DataFrame(part, columns=columns) for part in PARTS)
    reordered = south[south.columns[ORDER]]
    model = fit({"north": north, "south": reordered})
    assert model.feature_names_in_.tolist() == pooled_pca(north, 2).feature_names_in_.tolist() == texts
    np.testing.assert_array_equal(model.components_, fit(PARTS).components_)
    np.testing.assert_array_equal(model.transform(reordered), model.transform(south))
    np.testing.assert_array_equal(model.transform(frame(PARTS[1], texts)), model.transform(south))
    np.testing.assert_array_equal(analyses.outliers(model, reordered).odd, analyses.outliers(model, south).odd)
    estimator = FederatedPCA(2).partial_fit([north]).partial_fit([reordered])
    assert estimator.feature_names_in_.tolist() == texts
    np.testing.assert_allclose(estimator.mean_, X.mean(axis=0))
    with refused(ValueError):
        FederatedPCA(2).fit(north).transform(reordered)  # as scikit-learn, which asks for the order of fit
    federation = Federation.open(tmp_path)
    federation.join("north", north)
    with refused(ConfigError, "'south'"):
        federation.join("south", reordered)
    with refused(DataError, f"'{texts[0]}'", "NaN"):
        model.transform(south.replace(south.iloc[3, 0], np.nan))
    with refused(DataError, "'1'"):
        fit([frame(X, [1, "1", *"abc"])])


@pytest.mark.parametrize("other", [[*NAMES[:4], "colour"], list("abcde"), list("abcdef"), [*NAMES[2:], *"ab"]], ids=str)
def test_columns_of_other_names_are_refused_as_scikit_learn_does(model, bare, other):
    given = frame(np.resize(X, (9, len(other))), other)
    with pytest.raises(ValueError) as theirs:  # noqa: PT011
        PCA(2).fit(frame()).transform(given)
    assert refusal(model.transform, given) == str(theirs.value)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(model.transform(X), model.transform(frame()))
    with pytest.warns(UserWarning, match="X has feature names, but PCA was fitted without feature names"):
        bare.transform(turned("pandas"))


@pytest.mark.parametrize("scale", [False, True])
def test_names_come_back_from_the_file_and_go_to_scikit_learn(scale, tmp_path):
    one = fit([frame(part) for part in PARTS], scale=scale)
    again = PCAModel.load(one.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.transform(frame()), one.transform(frame()))
    np.testing.assert_allclose(again.transform(turned("pandas")), one.transform(frame()), atol=1e-12)
    assert "unseen at fit time:\n- a\n" in refusal(again.transform, frame(names=list("abcde")))
    theirs = again.to_sklearn()
    assert again.feature_names_in_.tolist() == theirs.feature_names_in_.tolist() == NAMES
    with refused(ValueError):
        theirs.transform(turned("pandas"))
    np.testing.assert_allclose(theirs.transform(frame()), again.transform(frame()), atol=1e-12)


def test_the_columns_of_sites_are_checked_by_their_digest(tmp_path):
    """Of two sites' files with a header only the digest travels."""
    nodes = [{"data": str(tmp_path / f"{i}.csv"), "loadings": str(tmp_path / f"{i}.npz")} for i in range(2)]
    for part, node in zip(PARTS, nodes, strict=True):
        frame(part).to_csv(node["data"], index=False)
    found = finish(at_sites(server_of("p-cov", PARTS, n_components=2), nodes))
    model = PCAModel.load(found.save(tmp_path / "model"))
    assert (model.feature_names_in_, model.log["columns"]) == (None, names_digest(NAMES))
    expected = (X - model.mean_) @ model.components_.T
    np.testing.assert_array_equal(model.transform(frame()), expected)
    assert "feature names" in refusal(model.transform, turned("pandas"))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(model.transform(X), expected)
    for own in (Loadings.load(node["loadings"]) for node in nodes):
        for given in (X, frame(), cells()):  # many sites have arrays
            np.testing.assert_array_equal(own.part_of_scores(given), expected)
        for kind in ("pandas", "cells"):
            assert "feature names" in refusal(own.part_of_scores, turned(kind))
        assert "NaN" in refusal(own.part_of_scores, WITH_NAN)
        assert not unnamed(refusal(own.part_of_scores, X[:, :3]), 3, 5)


def test_columns_in_another_order_get_no_scores(tmp_path):
    """Each party's part would be wrong without a word."""
    nodes = [{"data": f"{tmp_path}/{i}.csv", "loadings": f"{tmp_path}/{i}.npz", "split": "columns"} for i in range(2)]
    for node, names in zip(nodes, (NAMES[:2], NAMES[2:]), strict=True):
        frame()[names].to_csv(node["data"], index=False)

    def done(method, may_show="scores"):
        server = server_of(method, [X[:, :2], X[:, 2:]], n_components=2)
        return finish(at_sites(server, [{**node, "may-show": may_show} for node in nodes])).scores_

    fitted = done("vertical", "inner products")  # of two columns a product tells as much
    np.testing.assert_allclose(fitted, done("vertical-scores"), atol=1e-9)
    frame()[NAMES[:1:-1]].to_csv(nodes[1]["data"], index=False)
    with refused(DataError, "client 1", match="columns?"):
        done("vertical-scores")
    # Loadings that do not fit together are refused.
    own, file = {"components": np.ones((2, 5)), "mean": np.zeros(5), "scale": np.ones(5)}, tmp_path / "own.npz"
    Loadings(**own).save(file)
    assert Loadings.load(file).components.shape == (2, 5)
    spoilt = [{"mean": mean} for mean in (np.zeros(4), np.full(5, np.nan), np.zeros(5, complex))]
    spoilt += [{"scale": np.ones(1)}, {"scale": np.zeros(5)}, {"components": np.ones(5)}]
    for part in (*spoilt, {"remainder": np.full(5, np.nan)}):
        Loadings(**own | part).save(file)
        with refused(ContractError, file):
            Loadings.load(file)


def test_cells_are_parties_stay_sparse_and_have_moments(model, bare, tmp_path):
    for make in (np.asarray, sparse.csr_matrix, sparse.csc_matrix):
        of_cells = fit({"north": cells(PARTS[0], make=make), "south": turned("cells", PARTS[1])})
        assert of_cells.feature_names_in_.tolist() == NAMES
        assert "columns are in the order of party 'north'; party 'south'" in "\n".join(of_cells.log["notes"])
        np.testing.assert_allclose(of_cells.components_, bare.components_, atol=1e-9)
    sites = np.repeat(["north", "south"], [60, 30])
    of_frame = FederatedPCA(2).fit(frame(), groups=sites)
    for found in (FederatedPCA(2).fit(cells(), groups=sites), FederatedPCA(2).fit(list(map(cells, PARTS)))):
        np.testing.assert_array_equal(found.components_, of_frame.components_)
        assert found.feature_names_in_.tolist() == NAMES
        np.testing.assert_array_equal(found.transform(turned("cells")), of_frame.transform(frame()))
    assert as_rows(cells(make=sparse.csr_matrix), "X").sparse
    np.testing.assert_array_equal(as_rows(cells()[10:20], "X"), X[10:20])
    assert SecondMoments.of(cells()).features == tuple(NAMES)
    np.testing.assert_array_equal(SecondMoments.of(cells()).mean, SecondMoments.of(X).mean)
    cells().write_h5ad(tmp_path / "cells.h5ad")
    anndata = pytest.importorskip("anndata")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    np.testing.assert_array_equal(model.transform(backed), model.transform(frame()))
    backed.file.close()
    with refused(DataError, "party 0", "'counts'"):
        fit([anndata.AnnData(obs=pd.DataFrame(index=["a"]), var=pd.DataFrame(index=NAMES))])
    with refused(ConfigError, "'parties'", "AnnData"):
        fit(cells())


NO_ROWS = {
    "X contains NaN or infinity": [WITH_NAN, np.where(X.max() == X, -np.inf, X)],
    "X contains NaN": [np.array([[*X[0, :4], None]], object), np.ma.masked_greater(X, 2), sparse.csr_array(WITH_NAN)],
    "X has 3 features, but PCA is expecting 5 features as input": [X[:, :3], sparse.csr_array(X[:, :3])],
    "X has shape (0, 5)": [X[:0], sparse.csr_array((0, 5))],
    "X has dtype complex128": [X.astype(complex), sparse.csr_array(X * 1j)],
    "expected real numbers": [X.astype(complex), np.full((2, 5), SECRET)],
    "X has columns that cannot be taken as numbers": [np.array([[*"1234", last]], object) for last in ("5", SECRET)],
    "X is not an array": [[[1, 2, 3, 4, 5], [SECRET]]],
    "X": [X[0], SECRET],
    "[model.transform(rows) for rows in parties]": [[X, X], (frame(),), {"north": X}],
}


def test_what_is_no_row_and_what_no_scores_is_refused_without_a_value(bare):
    no_scores = {"scores": [np.full((3, 2), np.nan), np.zeros((3, 3)), np.full((3, 2), SECRET), np.zeros(2)]}
    for ask, kinds in ((bare.transform, NO_ROWS), (bare.inverse_transform, no_scores)):
        for text, given in ((text, given) for text, those in kinds.items() for given in those):
            told = refusal(ask, given)
            assert text in told
            assert SECRET not in told
    for given in ((X > 70).astype(kind) for kind in (np.uint8, np.int64, np.float32, bool)):  # numbers of any kind
        for held in (given, given.tolist(), given.astype(object), sparse.csc_matrix(given.astype(float))):
            np.testing.assert_array_equal(bare.transform(held), (given - bare.mean_) @ bare.components_.T)


def test_what_does_not_vary_shrinks_no_score_and_many_rows_none():
    wide = rows(20, 40)
    one, other = (fit(cut(data, 12, 8)) for data in (wide, np.column_stack([wide, np.ones((20, 30))])))
    np.testing.assert_allclose(one.shrinkage_, other.shrinkage_, rtol=1e-9)
    many = np.random.default_rng(0).standard_normal((14, 12)) * np.r_[3.0, np.ones(11)]
    model = run("p-cov", cut(many, 8, 6), n_components=1, min_rows=1)
    assert model.shrinkage_.min() < SHRINKAGE_NOTE_LIMIT
    assert shrinkage_notes(model) == []
    few = SimpleNamespace(n_samples_=9, n_features_in_=9, shrinkage_=np.array([0.96]))
    assert shrinkage_notes(few) == []
    few.shrinkage_ = np.array([0.97, 0.94])
    (note,) = shrinkage_notes(few)
    assert "0.94 to 0.97" in note
