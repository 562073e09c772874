"""A model survives the disk whole, and says what it is."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest
from sklearn.pipeline import Pipeline

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.adjustment import Adjustment
from fedpca_flwr.model import model_file
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import captured_variance, knn_accuracy, pooled_pca, principal_angles
from fedpca_flwr.state import files
from tests.families import cut, rows
from tests.harness import reconstruction_error
from tests.refusals import refused

X = rows(300) + np.arange(12)


@pytest.fixture(scope="module")
def model():
    return run("p-cov", cut(X, 180, 100, 20), n_components=5, scale=True)


@pytest.mark.parametrize("name", ["model", "model.npz", "deep/er/model", "v1.2"])
def test_saved_and_loaded_is_the_same(model, name, tmp_path):
    written = model.save(tmp_path / name)
    assert written == tmp_path / f"{name.removesuffix('.npz')}.npz"
    again = PCAModel.load(tmp_path / name)
    for field in dataclasses.fields(model):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(model, field.name), err_msg=field.name)
    assert again.noise_variance_ > 0
    assert again.n_samples_ == 300
    assert isinstance(again.to_sklearn(), Pipeline)
    with np.load(written, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["components_"], model.components_)


def test_a_model_counts_rounds_and_bytes(model):
    text = model.summary(full=True)
    for part in ("p-cov (exact)", "3, with 20 to 180 rows", "300 of 12 features", "bytes up", "explained variance"):
        assert part in text
    first, last = model.log["rounds"]
    assert last["phase"] == "project"
    assert model.rounds == 1
    assert model.bytes_up_by_party == first["up"]
    assert model.bytes_up == sum(first["up"]) >= 3 * 8 * (78 + 12 + 1)
    assert model.bytes_down == sum(last["down"]) >= 3 * 8 * (5 * 12 + 12)
    assert "of them" not in text
    none = pooled_pca(X, 5)
    assert (none.rounds, none.bytes_up, none.bytes_down) == (0, 0, 0)


def test_torn_foreign_and_missing_files_are_named(model, tmp_path):
    whole = model.save(tmp_path / "model").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "foreign.npz", a=np.zeros(3))
    for name, error in (("torn", ContractError), ("foreign", ContractError), ("nowhere", DataError)):
        with refused(error, tmp_path / f"{name}.npz"):
            PCAModel.load(tmp_path / name)
    with refused(ConfigError, tmp_path):
        model.save(tmp_path)


HISTORIES = {"'parties'": {"parties": 3}, "'parties.0'": {"parties": [{"rows": "all"}]}, "'rounds.0'": {"rounds": [{}]}}
HISTORIES |= {"'method'": {"method": 3}, "'notes.0'": {"notes": [1]}, "'exact'": {"exact": "no"}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(({"mean_": mean}, ["mean_", "(12,)"]) for mean in (np.zeros(1), np.full(12, np.nan))),
        ({"components_": np.zeros(12)}, ["model.npz"]),
        ({"explained_variance_": np.zeros(4)}, ["explained_variance_ratio_", "(4,)"]),
        ({"singular_values_": np.array(["x"] * 5)}, ["singular_values_", "(5,)"]),
        ({"scale_": np.ones(11)}, ["scale_", "(12,)"]),
        ({"covariance_": np.eye(12, 11)}, ["covariance_", "(12, 12)"]),
        ({"factors_": np.ones((3, 11))}, ["factors_", "(3, 12)"]),
        ({"adjustment_": Adjustment(np.array([0]), np.ones((1, 11)))}, ["adjustment_slopes", "(1, 12)"]),
        *(({"adjustment_": Adjustment(np.array([place]), np.ones((1, 12)))}, ["model.npz"]) for place in (-1, 12)),
        *(({"feature_names_in_": np.array(names, object)}, ["feature_names_in_"]) for names in (["a", "b"], [1] * 12)),
        *(({"log": history}, ["model.npz", entry]) for entry, history in HISTORIES.items()),
        *(({"log": {key: None}}, [key]) for key in ("method", "exact", "parties", "rounds")),  # None: without it
    ],
    ids=" ".join,
)
def test_a_model_that_does_not_fit_together_is_refused(model, change, named, tmp_path):
    log = {key: value for key, value in {**model.log, **change.get("log", {})}.items() if value is not None}
    written = dataclasses.replace(model, **{**change, "log": log}).save(tmp_path / "model")
    with refused(ContractError, *named):
        PCAModel.load(written).summary(full=True)


def test_metrics_of_the_truth_itself():
    truth = pooled_pca(X, 5)
    assert principal_angles(truth, truth).max < 1e-12
    np.testing.assert_allclose(reconstruction_error(truth, X), truth.squared_error, rtol=1e-9)
    np.testing.assert_allclose(captured_variance(truth, truth, X), truth.explained_variance_ratio_.sum(), rtol=1e-12)
    about_zero = pooled_pca(X, 5, center=False)
    np.testing.assert_allclose(about_zero.total_variance, np.sum(X**2) / 299)
    np.testing.assert_allclose(about_zero.noise_variance_, np.sum(np.linalg.svd(X)[1][5:] ** 2) / 299 / 7)
    with refused(ConfigError, "'reference'", "ndarray", "PCAModel"):
        principal_angles(truth, truth.components_)
    labels = (truth.transform(X)[:, 0] > 0).astype(int)
    for told, least, most in ((labels, 0.9, 1), (1 - labels, 0, 0.1)):
        assert least <= knn_accuracy(truth, X[::2], labels[::2], X[1::2], told[1::2]) <= most
    full = run("p-cov", cut(X, 180, 120), n_components=12, scale=True)
    np.testing.assert_allclose(full.inverse_transform(full.transform(X)), X, atol=1e-9)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_shares_of_no_variance_are_none(center, scale):
    """The fault: 0 / 0, with a warning. DP-PCA makes models of such rows."""
    nothing = np.full((5, 3), 7.0 if center else 0.0)
    truth = pooled_pca(nothing, 2, center=center, scale=scale)
    np.testing.assert_array_equal(truth.explained_variance_ratio_, 0)
    assert truth.total_variance == truth.squared_error == captured_variance(truth, truth, nothing) == 0


def test_totals_and_mean_angles_hang_on_all_components():
    """The first scores of new rows may all be zero, and so may the first variance of noise."""
    truth = pooled_pca(np.diag([0.0, 3.0, -3.0, 1.0, -1.0])[:, 1:], 3)
    variances = truth.explained_variance_ * [0, 1, 1]
    none = dataclasses.replace(truth, explained_variance_=variances, explained_variance_ratio_=variances / 9)
    np.testing.assert_allclose(none.total_variance, variances.sum() + truth.noise_variance_)
    # Two directions are shared, the third is turned by 30 degrees.
    turned = np.eye(3, 4)
    turned[2, 2:] = np.cos(np.pi / 6), np.sin(np.pi / 6)
    truth = dataclasses.replace(pooled_pca(rows(50, 4), 3), components_=np.eye(3, 4))
    np.testing.assert_allclose(principal_angles(dataclasses.replace(truth, components_=turned), truth), (30, 10))


def test_captured_variance_is_that_of_a_span_or_of_scores():
    """A model that is wrong about mean, variances and the length of its components captures what their span holds."""
    truth = pooled_pca(X, 12)
    long_and_short = truth.components_[[0, 3]] * [[2.0], [0.5]]
    wrong = dataclasses.replace(pooled_pca(X, 2), components_=long_and_short, mean_=truth.mean_ + 100)
    share = truth.explained_variance_ratio_[[0, 3]].sum()
    np.testing.assert_allclose(captured_variance(wrong, truth, X), share, rtol=1e-12)
    truth = pooled_pca(X, 3, scale=True)
    scores = run("vertical", np.array_split(X, 3, axis=1), n_components=3, scale=True)
    np.testing.assert_allclose(captured_variance(scores, truth, X), truth.explained_variance_ratio_.sum(), rtol=1e-9)


def rewritten(model, path, *, compression=zipfile.ZIP_STORED, without="", **about):
    """Write the file of a model as somebody else writes it, with entries of ``model.json`` changed or left out."""
    held, told, _ = model_file.read(model.save(path))
    told = {"format": 2, **told, **about}
    with zipfile.ZipFile(path.with_suffix(".npz"), "w", compression) as archive:
        for name, array in held.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.save(stream, array)
        archive.writestr("model.json", json.dumps({key: value for key, value in told.items() if key != without}))
    return path


def test_what_a_file_of_format_1_measured_is_read_as_notes(model, tmp_path):
    """Files of format 1 held texts, from which no number is read; some had no digest of the columns."""
    log = {**model.log, "measured": {"certified angle": "3e-08 degrees at most"}, "notes": ["a note"]}
    del log["columns"]
    again = PCAModel.load(rewritten(model, tmp_path / "model", format=1, log=log))
    assert again.log["measured"] == {}
    assert again.log["notes"] == ["a note", "certified angle: 3e-08 degrees at most"]
    assert again.summary(full=True).endswith("certified angle: 3e-08 degrees at most")
    assert (again.rounds, again.bytes_up) == (model.rounds, model.bytes_up)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *[({"format": 1, "log": log}, []) for log in (None, [], {"measured": 3}, {"measured": {}, "notes": 3})],
        *[({"format": version}, [version, 1, 2]) for version in (0, 3, "2")],
        *[({"without": key}, [key]) for key in ("format", "log", "n_samples_")],
        ({"without": "noise_variance_"}, []),
    ],
    ids=str,
)
def test_a_file_of_no_known_format_or_that_is_not_whole_is_named(model, change, named, tmp_path):
    path = rewritten(model, tmp_path / "model", **change).with_suffix(".npz")
    with refused(ContractError, *(named if "format" in change and named else [path, *named])):
        PCAModel.load(path)


def test_an_infinite_number_is_json_and_comes_back(tmp_path):
    """JSON has no infinity: other readers refuse the word that Python writes."""
    model = run("personalised mu=infinity", cut(X, 150, 150), n_components=2)
    with zipfile.ZipFile(model.save(tmp_path / "model")) as archive:
        text = json.loads(archive.read("model.json"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert text["log"]["measured"]["mu"] == "infinity"
    again = PCAModel.load(tmp_path / "model")
    assert again.log["measured"] == model.log["measured"] == {**model.log["measured"], "mu": np.inf}
    assert again.summary(full=True) == model.summary(full=True)


def test_files_within_their_limits_are_read(model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL_ARCHIVE_BYTES", 2**10)
    told = dataclasses.replace(model, log={**model.log, "notes": ["0" * 10**5]})
    path = rewritten(told, tmp_path / "model", compression=zipfile.ZIP_DEFLATED)
    with refused(ContractError, match="most_bytes=1[0-9]{5}"):
        PCAModel.load(path)
    assert PCAModel.load(path, most_bytes=10**6).log["notes"] == told.log["notes"]


def test_texts_of_a_file_have_no_control_characters(model, tmp_path):
    evil = "a\x1b[2J\u202eb\nc"
    other = dataclasses.replace(model, log={**model.log, "notes": [evil], "method": evil})
    again = PCAModel.load(other.save(tmp_path / "model"))
    for text in (again.summary(full=True), repr(again), again._repr_html_()):
        assert all(one.isprintable() or one == "\n" for one in text)
        assert "a?[2J?b?c" in text
