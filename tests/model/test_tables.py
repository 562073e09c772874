"""A model in scikit-learn's pipelines, in data frames, on pages, and in the table for a paper."""

import html

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.model import tables
from fedpca_flwr.model.notes import unit_notes
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.tables import DisplayTable, Share
from tests.families import cut, rows
from tests.refusals import refused

X = rows(120, 5) + np.arange(5)


@pytest.fixture(params=[False, True], ids=["plain", "scaled"])
def model(request):
    return run("p-cov", cut(X, 70, 50), n_components=2, scale=request.param)


# scikit-learn's own scaled pipelines warn likewise where set_output comes after fit
@pytest.mark.filterwarnings("ignore:X has feature names, but PCA was fitted without:UserWarning")
def test_a_fitted_model_works_in_a_pipeline(model):
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
    frame = make_pipeline(model.frozen()).set_output(transform="pandas").transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns.tolist() == ["pca0", "pca1"]


def test_a_model_shows_itself(model):
    text = f"PCAModel(p-cov: 2 components of 5 features, 120 rows, {model.explained_variance_ratio_.sum():.2%} of the"
    assert repr(model).startswith(text)
    assert "\n" not in repr(model)
    page = model._repr_html_()
    assert html.escape(repr(model)) in page
    assert page.count("<tr>") == 3
    assert f"width:{100 * model.explained_variance_ratio_.sum():.2f}%" in page
    assert all(html.escape(note) in page.split("<details>")[0] for note in model.log["notes"])  # seen without a click
    assert f"feature {np.abs(model.components_[0]).argmax()} +" in page
    assert html.escape(model.summary(full=True)) in page
    assert len(repr(pooled_pca(X, 2))) < 200
    assert "<table>" in pooled_pca(X, 2)._repr_html_()
    model = run("vertical", np.array_split(X, 2, axis=1), n_components=2)
    assert "2 components of 5 features" in repr(model)
    with refused(ContractError, "'vertical'", "scores_"):
        model.frozen()


def test_what_scikit_learn_and_a_page_get_is_their_own():
    model = run("p-cov", cut(X, 70, 50), n_components=2, scale=True)
    model.log["notes"].append("<script>alert(1)</script>")
    assert "<script>" not in model._repr_html_()
    scaler, pca = model.to_sklearn()
    theirs = make_pipeline(StandardScaler(), PCA(2, svd_solver="full")).fit(X)
    for own, other in zip((scaler, pca), theirs, strict=True):
        for name in [name for name in vars(own) if name.endswith("_")]:
            np.testing.assert_allclose(np.abs(getattr(own, name)), np.abs(getattr(other, name)), atol=1e-9)
    pca.components_[:] = 0.0
    assert model.components_.any()


def test_a_summary_tells_sizes_names_and_bytes_of_parties():
    """Names are told of up to six parties, if all have one; bytes up are those of the fit, bytes down are of all."""
    model = run("p-cov", cut(X, 70, 50), n_components=2)
    wards, north = [f"ward {i}" for i in range(7)], ["north"]
    for names, sizes, told in (
        (["north", "south"], [70, 50], "2 (north, south), with 50 to 70 rows"),
        (["north", ""], [60, 60], "2, with 60 rows each"),
        (north, [120], "1 (north), with 120 rows"),
        (["north", None], [70, None], "2, with 70 rows"),
        (wards[:6], [20] * 6, "6 (ward 0, ward 1, ward 2, ward 3, ward 4, ward 5), with 20 rows each"),
        (wards, [20] * 7, "7, with 20 rows each"),
    ):
        model.log["parties"] = [{"name": name, "rows": size} for name, size in zip(names, sizes, strict=True)]
        text = model.summary(full=True)
        assert f"  sites                 {told}" in text.splitlines()
        assert ("120 of 5 features, 70 of them at these sites" in text) == (sizes[-1] is None)
        assert f" in 120 rows of {len(sizes)} site{'s' * (names is not north)}, by p-cov" in model.summary()
    fit, last = {"phase": "moments", "up": [10, 2000], "down": [1, 2]}, {"phase": "project", "up": [5, 5]}
    model.log["rounds"] = [fit, {**last, "down": [30, 40]}]
    lines = [line.strip() for line in model.summary(full=True).splitlines() if "bytes" in line]
    assert [line.split("  ")[0] for line in lines] == ["bytes up", "bytes down"]
    assert [line.split("  ")[-1].strip() for line in lines] == ["2,000 at most per site, 2,010 in all", "73 in all"]


@pytest.mark.parametrize(("names", "first"), [(list("abcde"), "b"), ([], "feature 2")])
def test_a_note_tells_of_three_features_in_another_unit(names, first):
    units = [{"party": "north", "feature": j, "mean": 5.0 * j, "mean_elsewhere": 500.0} for j in (1, 0, 2, 3, 4)]
    north, south = unit_notes([*units, {**units[1], "party": "south"}], names)
    assert north.count("elsewhere)") == 3
    assert f"{first} (mean 5 there, 500 elsewhere)" in north
    assert "and 2 more features" in north
    assert "more feature" not in south


NAMES = [f"f{j}" for j in range(6)]
FRAME = pd.DataFrame(rows(60, 6), columns=NAMES, index=[f"row {i}" for i in range(60)])
PARTIES = {"north": FRAME[:40], "south": FRAME[40:]}
MODEL = run("p-cov", PARTIES, n_components=2)


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
    frame = MODEL.loadings_frame()
    assert (list(frame.index), list(frame.columns)) == (NAMES, ["PC1", "PC2"])
    np.testing.assert_array_equal(frame.to_numpy(), MODEL.components_.T)
    frame = run("p-cov", cut(rows(60), 40, 20), n_components=2).scores_frame(cut(rows(60), 40, 20))
    assert frame["party"].tolist() == ["party 0"] * 40 + ["party 1"] * 20
    assert MODEL.scores_frame([FRAME])["party"].tolist() == ["party 0"] * 60  # of two parties, which one it is?
    assert list(tables.tables_by_name([1, 2], {"parties": [{"name": "a"}, {}]})) == ["party 0", "party 1"]
    for parties in (PARTIES, list(PARTIES.values())):
        frame = MODEL.scores_frame(parties)
        assert list(frame.index) == list(FRAME.index)
        assert frame.pop("party").tolist() == ["north"] * 40 + ["south"] * 20
        np.testing.assert_allclose(frame.to_numpy(), MODEL.transform(FRAME))


MEASURES = ["age_years", "weight", "height", "pulse", "pressure"]
PATIENTS = pd.DataFrame(rows(120, 5) + np.arange(5), columns=MEASURES)
SITES = {"north": PATIENTS[:70], "south": PATIENTS[70:]}
GAPS = [part.mask(np.random.default_rng(0).random(part.shape) < 0.1) for part in SITES.values()]
OF_COLUMNS = [PATIENTS.iloc[:, :3], PATIENTS.iloc[:, 3:]]


def test_a_table_of_scaled_features_is_that_of_their_correlations():
    values, vectors = (part[..., ::-1][..., :3] for part in np.linalg.eigh(np.corrcoef(PATIENTS.to_numpy().T)))
    table = run("p-cov", SITES, n_components=3, scale=True).table()
    assert list(table.columns) == ["PC1", "PC2", "PC3", "communality"]
    assert list(table.index) == [*MEASURES, "variance", "share of variance", "cumulative share"]
    correlations = np.abs(vectors) * np.sqrt(values)
    np.testing.assert_allclose(np.abs(table.loc[MEASURES].iloc[:, :3]), correlations, atol=1e-9)
    np.testing.assert_allclose(table.loc["variance"][:3], values, rtol=1e-9)
    np.testing.assert_allclose(table.loc[MEASURES, "communality"], vectors**2 @ values, rtol=1e-9)
    np.testing.assert_allclose(table.loc["cumulative share"][:3], np.cumsum(values) / 5, rtol=1e-9)


def test_a_table_is_sorted_without_small_entries_and_by_another_divisor():
    model = run("p-cov", SITES, n_components=3, scale=True)
    plain, table = model.table(), model.table(sort=True, blank=0.4, divisor="n")
    np.testing.assert_allclose(table.loc["variance"][:3], model.explained_variance_, rtol=1e-12)
    whole = plain.loc[table.index[:5]]
    pd.testing.assert_frame_equal(table[:5], whole.where((whole.abs() >= 0.4) | (whole.columns == "communality")))
    leading = whole.iloc[:, :3].abs().to_numpy()
    assert (np.diff(leading.argmax(axis=1) - leading.max(axis=1) / 2) > 0).all()
    with refused(ConfigError, "'divisor'", "n-1"):
        model.table(divisor="n-2")


@pytest.mark.parametrize("fourth_moments", [False, True])
def test_kept_moments_add_communalities_and_intervals(fourth_moments):
    """Intervals by fourth moments come before those of normal rows."""
    model = run("p-cov", SITES, n_components=3, keep="moments", fourth_moments=fourth_moments)
    table, sure = model.table(), analyses.how_sure(model.moments_, 3).variance_intervals
    expected = analyses.variance_intervals(model) if fourth_moments else sure
    communalities = analyses.read(model.moments_, 3).communalities
    np.testing.assert_allclose(table.loc[MEASURES, "communality"], communalities, rtol=1e-9)
    np.testing.assert_allclose(table.filter(like="interval", axis=0).iloc[:, :3].T, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"keep": "moments", "center": False}, {"scale": True, "adjust_for": "pulse"}],
    ids=["variances unknown", "about zero", "adjusted"],
)
def test_a_table_has_no_number_that_the_model_does_not_know(options):
    table = run("p-cov", SITES, n_components=2, **options).table()
    assert list(table.columns) == ["PC1", "PC2"]
    assert not table.isna().any(axis=None)
    assert len(table) == 8


@pytest.mark.parametrize("change", ["", "scale", "adjust_for", "harmonise"])
def test_kept_moments_tell_what_a_change_of_the_rows_leaves_true(change):
    parties = {name: 2.0**-40 * table for name, table in SITES.items()}
    options = {"scale": {"scale": True}, "adjust_for": {"adjust_for": "pulse"}, "harmonise": {"harmonise": "means"}}
    table = run("p-cov", parties, n_components=2, keep="moments", **options.get(change, {})).table()
    assert any("interval" in name for name in table.index) == (change in ("", "scale"))
    assert ("communality" in table) == (change in ("", "scale"))


def test_missing_values_are_not_taken_for_known_in_intervals():
    table = run("em", GAPS, n_components=2, keep="moments").table()
    assert "communality" in table
    assert not [name for name in table.index if "interval" in name]


def test_pandas_writes_a_table_for_a_paper():
    pytest.importorskip("jinja2")
    table = run("p-cov", SITES, n_components=2, scale=True).table()
    assert r"age\_years & " in table.to_latex(float_format="%.2f", na_rep="", escape=True)
    assert table.to_html().count("<tr") == 9
    with refused(ContractError, "vertical"):
        run("vertical", OF_COLUMNS, n_components=2).table()


def test_a_summary_says_what_how_much_and_how_sure():
    model = run("p-cov", SITES, n_components=2, keep="moments")
    lines = model.summary().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["what", "how much", "how sure"]
    assert "2 components of 5 features in 120 rows of 2 sites, by p-cov (exact); scaled: no" in lines[0]
    low, high = analyses.how_sure(model.moments_, 2).variance_intervals[0]
    assert f"first variance {model.explained_variance_[0]:.3g}, 95 % interval {low:.3g} to {high:.3g}" in lines[2]
    shares = 100 * model.explained_variance_ratio_.cumsum()
    assert f"{shares[1]:.3g}% of the variance, cumulative {shares[0]:.3g}%, {shares[1]:.3g}%" in lines[1]
    for method, scale in (("p-cov", True), ("vertical", True), ("vertical", False)):
        parties = SITES if method == "p-cov" else OF_COLUMNS
        assert f"scaled: {'yes' if scale else 'no'}" in run(method, parties, n_components=2, scale=scale).summary()
    assert "1 note" in lines[2]
    assert "without a bound" in run("ap-cov", SITES, n_components=2).summary()
    assert "no bound" in run("em", GAPS, n_components=2).summary().splitlines()[2]
