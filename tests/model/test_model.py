"""A model survives the disk whole, says what it is, and is one in scikit-learn, in data frames and in papers."""

import dataclasses
import html
import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.adjustment import Adjustment
from fedpca_flwr.model import model_file, tables
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.notes import unit_notes
from fedpca_flwr.model.reference import captured_variance, knn_accuracy, pooled_pca, principal_angles
from fedpca_flwr.model.tables import DisplayTable, Share
from fedpca_flwr.state import files
from tests.families import cut, rows
from tests.harness import reconstruction_error
from tests.refusals import refused

X = rows(300) + np.arange(12)
Y = rows(120, 5) + np.arange(5)
NAMES = [f"f{j}" for j in range(6)]
MEASURES = ["age_years", "weight", "height", "pulse", "pressure"]
PATIENTS = pd.DataFrame(Y, columns=MEASURES, index=[f"patient {i}" for i in range(120)])
SITES = {"north": PATIENTS[:70], "south": PATIENTS[70:]}
GAPS = [part.mask(np.random.default_rng(0).random(part.shape) < 0.1) for part in SITES.values()]


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
    assert (last["phase"], model.rounds, model.bytes_up_by_party) == ("project", 1, first["up"])
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


def test_metrics_of_the_truth_itself_of_a_span_and_of_scores():
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
    # A model that is wrong about mean, variances and the length of its components captures what their span holds.
    truth = pooled_pca(X, 12)
    long_and_short = truth.components_[[0, 3]] * [[2.0], [0.5]]
    wrong = dataclasses.replace(pooled_pca(X, 2), components_=long_and_short, mean_=truth.mean_ + 100)
    share = truth.explained_variance_ratio_[[0, 3]].sum()
    np.testing.assert_allclose(captured_variance(wrong, truth, X), share, rtol=1e-12)
    truth = pooled_pca(X, 3, scale=True)
    scores = run("vertical", np.array_split(X, 3, axis=1), n_components=3, scale=True)
    np.testing.assert_allclose(captured_variance(scores, truth, X), truth.explained_variance_ratio_.sum(), rtol=1e-9)


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


def test_files_within_their_limits_are_read_without_control_characters(model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SMALL_ARCHIVE_BYTES", 2**10)
    told = dataclasses.replace(model, log={**model.log, "notes": ["0" * 10**5]})
    path = rewritten(told, tmp_path / "model", compression=zipfile.ZIP_DEFLATED)
    with refused(ContractError, match="most_bytes=1[0-9]{5}"):
        PCAModel.load(path)
    assert PCAModel.load(path, most_bytes=10**6).log["notes"] == told.log["notes"]
    # Its texts have no control characters.
    evil = "a\x1b[2J\u202eb\nc"
    other = dataclasses.replace(model, log={**model.log, "notes": [evil], "method": evil})
    again = PCAModel.load(other.save(tmp_path / "model"))
    for text in (again.summary(full=True), repr(again), again._repr_html_()):
        assert all(one.isprintable() or one == "\n" for one in text)
        assert "a?[2J?b?c" in text


@pytest.fixture(params=[False, True], ids=["plain", "scaled"])
def fitted(request):
    return run("p-cov", cut(Y, 70, 50), n_components=2, scale=request.param)


# scikit-learn's own scaled pipelines warn likewise where set_output comes after fit
@pytest.mark.filterwarnings("ignore:X has feature names, but PCA was fitted without:UserWarning")
def test_a_fitted_model_works_in_a_pipeline(fitted):
    frozen, labels = fitted.frozen(), (fitted.transform(Y)[:, 0] > 0).astype(int)
    pipeline = make_pipeline(fitted.frozen(), LogisticRegression()).fit(Y, labels)
    assert pipeline.score(Y, labels) > 0.95
    for own in (frozen.fit(rows(50, 5, seed=4) * 10, None), clone(frozen), pipeline[:-1]):
        np.testing.assert_allclose(own.transform(Y), fitted.transform(Y), atol=1e-12)
    for named in (fitted, frozen, make_pipeline(frozen)[:]):
        assert named.get_feature_names_out().tolist() == ["pca0", "pca1"]
    frame = make_pipeline(frozen).set_output(transform="pandas").transform(Y)
    assert frame.columns.tolist() == ["pca0", "pca1"]
    scaled = fitted.scale_ is not None
    theirs = make_pipeline(*[StandardScaler()] * scaled, PCA(2, svd_solver="full")).fit(Y)
    steps = [step for _, step in fitted.to_sklearn().steps] if scaled else [fitted.to_sklearn()]
    for own, (_, other) in zip(steps, theirs.steps, strict=True):
        for name in [name for name in vars(own) if name.endswith("_")]:
            np.testing.assert_allclose(np.abs(getattr(own, name)), np.abs(getattr(other, name)), atol=1e-9)
    steps[-1].components_[:] = 0.0
    assert fitted.components_.any()  # what scikit-learn gets is its own


def test_a_model_shows_itself(fitted):
    share = fitted.explained_variance_ratio_.sum()
    assert repr(fitted).startswith(f"PCAModel(p-cov: 2 components of 5 features, 120 rows, {share:.2%} of the")
    assert "\n" not in repr(fitted)
    page = fitted._repr_html_()
    assert page.count("<tr>") == 3
    assert all(html.escape(note) in page.split("<details>")[0] for note in fitted.log["notes"])  # seen without a click
    largest, summary = f"feature {np.abs(fitted.components_[0]).argmax()} +", fitted.summary(full=True)
    for part in (html.escape(repr(fitted)), f"width:{100 * share:.2f}%", largest, html.escape(summary)):
        assert part in page
    fitted.log["notes"].append("<script>alert(1)</script>")
    assert "<script>" not in fitted._repr_html_()
    assert len(repr(pooled_pca(Y, 2))) < 200
    assert "<table>" in pooled_pca(Y, 2)._repr_html_()
    scores = run("vertical", np.array_split(Y, 2, axis=1), n_components=2)
    assert "2 components of 5 features" in repr(scores)
    for ask, named in ((scores.frozen, ["'vertical'", "scores_"]), (scores.table, ["vertical"])):
        with refused(ContractError, *named):
            ask()


def test_a_summary_tells_sizes_names_and_bytes_of_parties():
    """Names are told of up to six parties, if all have one; bytes up are those of the fit, bytes down are of all."""
    model, wards = run("p-cov", cut(Y, 70, 50), n_components=2), [f"ward {i}" for i in range(7)]
    for names, sizes, told in (
        (["north", "south"], [70, 50], "2 (north, south), with 50 to 70 rows"),
        (["north", ""], [60, 60], "2, with 60 rows each"),
        (["north"], [120], "1 (north), with 120 rows"),
        (["north", None], [70, None], "2, with 70 rows"),
        (wards[:6], [20] * 6, "6 (ward 0, ward 1, ward 2, ward 3, ward 4, ward 5), with 20 rows each"),
        (wards, [20] * 7, "7, with 20 rows each"),
    ):
        model.log["parties"] = [{"name": name, "rows": size} for name, size in zip(names, sizes, strict=True)]
        text = model.summary(full=True)
        assert f"  sites                 {told}" in text.splitlines()
        assert ("120 of 5 features, 70 of them at these sites" in text) == (sizes[-1] is None)
        assert f" in 120 rows of {len(sizes)} site{'s' * (len(sizes) > 1)}, by p-cov" in model.summary()
    last = {"phase": "project", "up": [5, 5], "down": [30, 40]}
    model.log["rounds"] = [{"phase": "moments", "up": [10, 2000], "down": [1, 2]}, last]
    lines = [line.split("  ") for line in model.summary(full=True).splitlines() if "bytes" in line]
    expected = [("bytes up", "2,000 at most per site, 2,010 in all"), ("bytes down", "73 in all")]
    assert [(line[1], line[-1].strip()) for line in lines] == expected


@pytest.mark.parametrize(("names", "first"), [(list("abcde"), "b"), ([], "feature 2")])
def test_a_note_tells_of_three_features_in_another_unit(names, first):
    units = [{"party": "north", "feature": j, "mean": 5.0 * j, "mean_elsewhere": 500.0} for j in (1, 0, 2, 3, 4)]
    north, south = unit_notes([*units, {**units[1], "party": "south"}], names)
    assert north.count("elsewhere)") == 3
    assert f"{first} (mean 5 there, 500 elsewhere)" in north
    assert "and 2 more features" in north
    assert "more feature" not in south


def test_tables_are_title_head_and_lines_short_and_no_markup():
    lines = [["a", 1234.5678, Share(0.25), "x"], ["bc", 2, 1, "yy"]]
    shown = DisplayTable("some", ["feature", "mean", "share", "why"], lines)
    expected = "some\n  feature  mean   share  why\n  a        1235  25.00%  x\n  bc          2       1  yy"
    assert tables.table_to_text(shown).rstrip("\n") == expected
    page = tables.table_to_html(shown)
    assert page.count("<tr>") == 3
    assert "width:25.00%" in page
    for further in (1, 7):
        shown = DisplayTable("", ["row"], [[i] for i in range(tables.MAX_TABLE_ROWS + further)])
        assert len(tables.table_to_text(shown).splitlines()) == tables.MAX_TABLE_ROWS + 3
        for text in (tables.table_to_text(shown), tables.table_to_html(shown)):
            assert f"and {further} more" in text
    shown = DisplayTable("<b>\x1b[2J", ["<i>"], [["<script>\x1b[2J"]])
    assert "\x1b" not in tables.table_to_text(shown) + tables.table_to_html(shown)
    assert not any(tag in tables.table_to_html(shown) for tag in ("<b>", "<i>", "<script>"))
    for d, order in ((50, range(49, -1, -1)), (21, range(20, -1, -1)), (20, range(20)), (6, NAMES)):
        names, values = NAMES * (d == 6), np.arange(float(d))
        assert [line[0] for line in tables.feature_rows(names, values, weight=values)] == list(order)
    assert tables.largest_features(np.array([0.1, -3.0, 0.0, 2.0, -1.0]), NAMES) == "f1 -3, f3 +2, f4 -1"


def test_loadings_and_scores_are_frames_with_names():
    model = run("p-cov", SITES, n_components=2)
    frame = model.loadings_frame()
    assert (list(frame.index), list(frame.columns)) == (MEASURES, ["PC1", "PC2"])
    np.testing.assert_array_equal(frame.to_numpy(), model.components_.T)
    frame = run("p-cov", cut(Y, 70, 50), n_components=2).scores_frame(cut(Y, 70, 50))
    assert frame["party"].tolist() == ["party 0"] * 70 + ["party 1"] * 50
    assert model.scores_frame([PATIENTS])["party"].tolist() == ["party 0"] * 120  # of two parties, which one it is?
    assert list(tables.tables_by_name([1, 2], {"parties": [{"name": "a"}, {}]})) == ["party 0", "party 1"]
    for parties in (SITES, list(SITES.values())):
        frame = model.scores_frame(parties)
        assert list(frame.index) == list(PATIENTS.index)
        assert frame.pop("party").tolist() == ["north"] * 70 + ["south"] * 50
        np.testing.assert_allclose(frame.to_numpy(), model.transform(PATIENTS))


def test_a_table_of_scaled_features_is_that_of_their_correlations():
    values, vectors = (part[..., ::-1][..., :3] for part in np.linalg.eigh(np.corrcoef(PATIENTS.to_numpy().T)))
    model = run("p-cov", SITES, n_components=3, scale=True)
    table, short = model.table(), model.table(sort=True, blank=0.4, divisor="n")
    assert list(table.columns) == ["PC1", "PC2", "PC3", "communality"]
    assert list(table.index) == [*MEASURES, "variance", "share of variance", "cumulative share"]
    correlations = np.abs(vectors) * np.sqrt(values)
    np.testing.assert_allclose(np.abs(table.loc[MEASURES].iloc[:, :3]), correlations, atol=1e-9)
    np.testing.assert_allclose(table.loc["variance"][:3], values, rtol=1e-9)
    np.testing.assert_allclose(table.loc[MEASURES, "communality"], vectors**2 @ values, rtol=1e-9)
    np.testing.assert_allclose(table.loc["cumulative share"][:3], np.cumsum(values) / 5, rtol=1e-9)
    np.testing.assert_allclose(short.loc["variance"][:3], model.explained_variance_, rtol=1e-12)
    whole = table.loc[short.index[:5]]
    pd.testing.assert_frame_equal(short[:5], whole.where((whole.abs() >= 0.4) | (whole.columns == "communality")))
    leading = whole.iloc[:, :3].abs().to_numpy()
    assert (np.diff(leading.argmax(axis=1) - leading.max(axis=1) / 2) > 0).all()
    with refused(ConfigError, "'divisor'", "n-1"):
        model.table(divisor="n-2")
    pytest.importorskip("jinja2")  # with which pandas writes the table for a paper
    assert r"age\_years & " in table.to_latex(float_format="%.2f", na_rep="", escape=True)
    assert table.to_html().count("<tr") == 9


@pytest.mark.parametrize("fourth_moments", [False, True])
def test_kept_moments_add_communalities_and_intervals(fourth_moments):
    """Intervals by fourth moments come before those of normal rows."""
    model = run("p-cov", SITES, n_components=3, keep="moments", fourth_moments=fourth_moments)
    table, sure = model.table(), analyses.how_sure(model.moments_, 3).variance_intervals
    expected = analyses.variance_intervals(model) if fourth_moments else sure
    communalities = analyses.read(model.moments_, 3).communalities
    np.testing.assert_allclose(table.loc[MEASURES, "communality"], communalities, rtol=1e-9)
    np.testing.assert_allclose(table.filter(like="interval", axis=0).iloc[:, :3].T, expected, rtol=1e-12)


def test_a_table_has_no_number_that_the_model_does_not_know():
    parties = {name: 2.0**-40 * table for name, table in SITES.items()}
    for change in ({}, {"scale": True}, {"adjust_for": "pulse"}, {"harmonise": "means"}):
        table = run("p-cov", parties, n_components=2, keep="moments", **change).table()
        assert any("interval" in name for name in table.index) == (change.keys() <= {"scale"})
        assert ("communality" in table) == (change.keys() <= {"scale"})
    for options in ({}, {"keep": "moments", "center": False}, {"scale": True, "adjust_for": "pulse"}):
        table = run("p-cov", SITES, n_components=2, **options).table()
        assert list(table.columns) == ["PC1", "PC2"]
        assert not table.isna().any(axis=None)
        assert len(table) == 8
    table = run("em", GAPS, n_components=2, keep="moments").table()
    assert "communality" in table
    assert not [name for name in table.index if "interval" in name]  # missing values are not taken for known


def test_a_summary_says_what_how_much_and_how_sure():
    model = run("p-cov", SITES, n_components=2, keep="moments")
    lines = model.summary().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["what", "how much", "how sure"]
    assert "2 components of 5 features in 120 rows of 2 sites, by p-cov (exact); scaled: no" in lines[0]
    low, high = analyses.how_sure(model.moments_, 2).variance_intervals[0]
    assert f"first variance {model.explained_variance_[0]:.3g}, 95 % interval {low:.3g} to {high:.3g}" in lines[2]
    shares = 100 * model.explained_variance_ratio_.cumsum()
    assert f"{shares[1]:.3g}% of the variance, cumulative {shares[0]:.3g}%, {shares[1]:.3g}%" in lines[1]
    halves = [PATIENTS.iloc[:, :3], PATIENTS.iloc[:, 3:]]
    for method, parties, scale in (("p-cov", SITES, True), ("vertical", halves, True), ("vertical", halves, False)):
        assert f"scaled: {'yes' if scale else 'no'}" in run(method, parties, n_components=2, scale=scale).summary()
    assert "1 note" in lines[2]
    assert "without a bound" in run("ap-cov", SITES, n_components=2).summary()
    assert "no bound" in run("em", GAPS, n_components=2).summary().splitlines()[2]
