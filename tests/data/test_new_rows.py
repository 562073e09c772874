"""What a model does with new rows: those that it should refuse it refuses, in scikit-learn's words."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from scipy import sparse
from sklearn.decomposition import PCA

from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import DataError
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from simulations import run
from tests.families import cut, rows
from tests.harness import at_sites, finish, server_of
from tests.refusals import refused, unnamed

X = rows(90, 4) + np.arange(4)
NAMES = ["age", "height", "weight", "pulse"]
TURNED = [NAMES[j] for j in (1, 0, 2, 3)]
SECRET = "4711-secret"


def frame(data, names=NAMES):
    return pa.table(dict(zip(names, np.asarray(data, dtype=np.float64).T, strict=True)))


def fit(parties, **options):
    return run("p-cov", parties, n_components=2, **options)


def refusal(call, given):
    with pytest.raises(DataError) as told:
        call(given)
    return str(told.value)


@pytest.fixture(params=[{}, {"scale": True}], ids=["plain", "scaled"])
def of_frames(request):
    return fit([frame(part) for part in cut(X, 60, 30)], **request.param)


@pytest.fixture(scope="module")
def of_arrays():
    return fit(cut(X, 60, 30))


@pytest.fixture(scope="module")
def of_sites(tmp_path_factory):
    """A model of two sites' files with a header: names do not travel, only their digest does; and the loadings."""
    folder = tmp_path_factory.mktemp("sites")
    nodes = []
    for i, part in enumerate(cut(X, 60, 30)):
        csv.write_csv(frame(part), folder / f"{i}.csv")
        nodes.append({"data": str(folder / f"{i}.csv"), "loadings": str(folder / f"{i}.npz")})
    model = finish(at_sites(server_of("p-cov", cut(X, 60, 30), n_components=2), nodes))
    return model, [Loadings.load(node["loadings"]) for node in nodes]


# Names that are known


def test_a_model_has_the_names_of_the_parties_that_have_some(of_frames):
    assert of_frames.feature_names_in_.tolist() == NAMES
    assert of_frames.feature_names_in_.dtype == object
    np.testing.assert_array_equal(of_frames.transform(frame(X)), fit_like(of_frames).transform(X))
    first, second = cut(X, 60, 30)
    assert fit([first, frame(second)]).feature_names_in_.tolist() == NAMES
    assert fit([first, second]).feature_names_in_ is None


def fit_like(model):
    """The same model without names."""
    return dataclasses.replace(model, feature_names_in_=None, log={**model.log, "columns": ""})


@pytest.mark.parametrize("other", [[*NAMES[:3], "colour"], list("abcd"), [*NAMES[2:], *"ab"]], ids=str)
def test_columns_of_other_names_are_refused_as_scikit_learn_does(of_frames, other):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011
        PCA(2).fit(frame(X)).transform(frame(X, other))
    assert refusal(of_frames.transform, frame(X, other)) == str(theirs.value)


def test_rows_without_the_names_of_the_model_are_warned_of(of_frames, of_arrays):
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        scores = of_frames.transform(X)
    np.testing.assert_array_equal(scores, of_frames.transform(frame(X)))
    with pytest.warns(UserWarning, match="X has feature names, but PCA was fitted without feature names"):
        of_arrays.transform(frame(X, TURNED))


def test_names_come_back_from_the_file_and_go_to_scikit_learn(of_frames, tmp_path):
    again = PCAModel.load(of_frames.save(tmp_path / "model"))
    assert again.feature_names_in_.tolist() == NAMES
    np.testing.assert_array_equal(again.transform(frame(X)), of_frames.transform(frame(X)))
    assert "unseen at fit time:\n- a\n" in refusal(again.transform, frame(X, list("abcd")))
    theirs = again.to_sklearn()
    assert theirs.feature_names_in_.tolist() == NAMES
    with refused(ValueError):
        theirs.transform(frame(X, TURNED))
    np.testing.assert_allclose(theirs.transform(frame(X)), again.transform(frame(X)), atol=1e-12)


# Names of which only the digest is known


def test_the_columns_of_sites_are_checked_by_their_digest(of_sites, tmp_path):
    model = PCAModel.load(of_sites[0].save(tmp_path / "model"))
    assert model.feature_names_in_ is None
    assert model.log["columns"] == names_digest(NAMES)
    expected = (X - model.mean_) @ model.components_.T
    np.testing.assert_array_equal(model.transform(frame(X)), expected)
    assert "feature names" in refusal(model.transform, frame(X, TURNED))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(model.transform(X), expected)


def test_loadings_at_a_site_check_the_columns_of_new_rows(of_sites):
    model, kept = of_sites
    for own in kept:
        np.testing.assert_array_equal(own.part_of_scores(frame(X)), model.transform(frame(X)))
        np.testing.assert_array_equal(own.part_of_scores(X), model.transform(frame(X)))  # many sites have arrays
        assert "feature names" in refusal(own.part_of_scores, frame(X, TURNED))
        assert "NaN" in refusal(own.part_of_scores, np.where(X.max() == X, np.nan, X))
        assert not unnamed(refusal(own.part_of_scores, X[:, :3]), 3, 4)


def test_a_site_with_its_columns_in_another_order_gets_no_scores_of_new_rows(tmp_path):
    """Each party's part would be wrong without a word."""
    parts = {"left": (X[:, :2], NAMES[:2]), "right": (X[:, 2:], NAMES[2:])}
    nodes = []
    for side, (part, names) in parts.items():
        csv.write_csv(frame(part, names), tmp_path / f"{side}.csv")
        own = {"data": str(tmp_path / f"{side}.csv"), "loadings": str(tmp_path / f"{side}.npz")}
        nodes.append({**own, "split": "columns"})

    def done(method, may_show="scores"):
        server = server_of(method, [part for part, _ in parts.values()], n_components=2)
        return finish(at_sites(server, [{**node, "may-show": may_show} for node in nodes])).scores_

    fitted = done("vertical", "inner products")  # of two columns a product tells as much
    np.testing.assert_allclose(fitted, done("vertical-scores"), atol=1e-9)
    csv.write_csv(frame(X[:, [3, 2]], [NAMES[3], NAMES[2]]), tmp_path / "right.csv")
    with refused(DataError, "client 1", match="columns?"):
        done("vertical-scores")


# What is no row


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.where(X.max() == X, np.nan, X), "X contains NaN or infinity"),
        (np.where(X.max() == X, -np.inf, X), "X contains NaN or infinity"),
        (X[:, :3], "X has 3 features, but PCA is expecting 4 features as input"),
        (X[0], "X"),
        (X[:0], "X has shape (0, 4)"),
        (X.astype(complex), "X has dtype complex128, expected real numbers"),
        (np.full((2, 4), SECRET), "expected real numbers"),
        (np.array([[1.0, 2.0, 3.0, SECRET]], dtype=object), "X has cells that are not numbers"),
        (np.array([["1", "2", "3", "4"]], dtype=object), "X has cells that are not numbers"),
        (np.array([[1.0, 2.0, 3.0, None]], dtype=object), "X contains NaN"),
        (np.ma.masked_greater(X, 2), "X contains NaN"),
        ([[1, 2, 3, 4], [SECRET]], "X is not an array"),
        (SECRET, "X"),
    ],
    ids=range(13),
)
def test_what_is_no_row_is_refused_without_a_value(of_arrays, given, text):
    told = refusal(of_arrays.transform, given)
    assert text in told
    assert SECRET not in told


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32, bool])
def test_numbers_of_any_kind_are_rows(of_arrays, kind):
    given = (X > 1).astype(kind)
    np.testing.assert_array_equal(of_arrays.transform(given), (given - of_arrays.mean_) @ of_arrays.components_.T)
    np.testing.assert_array_equal(of_arrays.transform(given.tolist()), of_arrays.transform(given))
    np.testing.assert_array_equal(of_arrays.transform(given.astype(object)), of_arrays.transform(given))


@pytest.mark.parametrize("given", [np.full((3, 2), np.nan), np.zeros((3, 3)), np.full((3, 2), SECRET), np.zeros(2)])
def test_what_are_no_scores_is_refused_without_a_value(of_arrays, given):
    told = refusal(of_arrays.inverse_transform, given)
    assert "scores" in told
    assert SECRET not in told


def test_sparse_rows_have_the_scores_of_the_rows():
    model = fit(cut(X, 50, 40))
    new = np.where(np.arange(360).reshape(90, 4) % 3 == 0, X, 0.0)
    for kind in (sparse.csr_array, sparse.csc_matrix):
        np.testing.assert_array_equal(model.transform(kind(new)), model.transform(new))
        np.testing.assert_array_equal(model.centred(kind(new)), model.centred(new))
    holes = sparse.csr_array(new)
    holes.data[3] = np.nan
    assert not unnamed(refusal(model.transform, holes), "X", "NaN")
    assert not unnamed(refusal(model.transform, sparse.csr_array(new[:, :3])), "X", 3)
    assert not unnamed(refusal(model.transform, sparse.csr_array(new * 1j)), "complex128")
    assert not unnamed(refusal(model.transform, sparse.csr_array((0, 4))), "(0, 4)")


@pytest.mark.parametrize("several", [[X, X], (frame(X), frame(X)), {"north": X}], ids=["list", "frames", "mapping"])
def test_the_tables_of_parties_are_not_one_table(several):
    model = fit([X])
    assert "[model.transform(rows) for rows in parties]" in refusal(model.transform, several)
    assert model.transform(X.tolist()).shape == (90, 2)
