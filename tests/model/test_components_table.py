"""The table for a paper, and the summary of three lines, beside NumPy and the analyses of kept moments."""

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError
from tests.families import rows
from tests.refusals import refused

NAMES = ["age_years", "weight", "height", "pulse", "pressure"]
FRAME = pd.DataFrame(rows(120, 5) + np.arange(5), columns=NAMES)
PARTIES = {"north": FRAME[:70], "south": FRAME[70:]}
GAPS = [part.mask(np.random.default_rng(0).random(part.shape) < 0.1) for part in PARTIES.values()]
COLUMNS = [FRAME.iloc[:, :3], FRAME.iloc[:, 3:]]


def test_a_table_of_scaled_features_is_that_of_their_correlations():
    R = np.corrcoef(FRAME.to_numpy().T)
    values, vectors = (part[..., ::-1][..., :3] for part in np.linalg.eigh(R))
    table = run("p-cov", PARTIES, n_components=3, scale=True).table()
    assert list(table.columns) == ["PC1", "PC2", "PC3", "communality"]
    assert list(table.index) == [*NAMES, "variance", "share of variance", "cumulative share"]
    correlations = np.abs(vectors) * np.sqrt(values)
    np.testing.assert_allclose(np.abs(table.loc[NAMES].iloc[:, :3]), correlations, atol=1e-9)
    np.testing.assert_allclose(table.loc["variance"][:3], values, rtol=1e-9)
    np.testing.assert_allclose(table.loc[NAMES, "communality"], vectors**2 @ values, rtol=1e-9)
    np.testing.assert_allclose(table.loc["cumulative share"][:3], np.cumsum(values) / 5, rtol=1e-9)


def test_a_table_is_sorted_without_small_entries_and_by_another_divisor():
    model = run("p-cov", PARTIES, n_components=3, scale=True)
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
    model = run("p-cov", PARTIES, n_components=3, keep="moments", fourth_moments=fourth_moments)
    table, sure = model.table(), analyses.how_sure(model.moments_, 3).variance_intervals
    expected = analyses.variance_intervals(model) if fourth_moments else sure
    communalities = analyses.read(model.moments_, 3).communalities
    np.testing.assert_allclose(table.loc[NAMES, "communality"], communalities, rtol=1e-9)
    np.testing.assert_allclose(table.filter(like="interval", axis=0).iloc[:, :3].T, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"keep": "moments", "center": False}, {"scale": True, "adjust_for": "pulse"}],
    ids=["variances unknown", "about zero", "adjusted"],
)
def test_a_table_has_no_number_that_the_model_does_not_know(options):
    table = run("p-cov", PARTIES, n_components=2, **options).table()
    assert list(table.columns) == ["PC1", "PC2"]
    assert not table.isna().any(axis=None)
    assert len(table) == 8


@pytest.mark.parametrize("change", ["", "scale", "adjust_for", "harmonise"])
def test_kept_moments_tell_what_a_change_of_the_rows_leaves_true(change):
    parties = {name: 2.0**-40 * table for name, table in PARTIES.items()}
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
    table = run("p-cov", PARTIES, n_components=2, scale=True).table()
    assert r"age\_years & " in table.to_latex(float_format="%.2f", na_rep="", escape=True)
    assert table.to_html().count("<tr") == 9
    with refused(ContractError, "vertical"):
        run("vertical", COLUMNS, n_components=2).table()


def test_a_summary_says_what_how_much_and_how_sure():
    model = run("p-cov", PARTIES, n_components=2, keep="moments")
    lines = model.summary().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["what", "how much", "how sure"]
    assert "2 components of 5 features in 120 rows of 2 parties, by p-cov (exact); scaled: no" in lines[0]
    low, high = analyses.how_sure(model.moments_, 2).variance_intervals[0]
    assert f"first variance {model.explained_variance_[0]:.3g}, 95 % interval {low:.3g} to {high:.3g}" in lines[2]
    shares = 100 * model.explained_variance_ratio_.cumsum()
    assert f"{shares[1]:.3g}% of the variance, cumulative {shares[0]:.3g}%, {shares[1]:.3g}%" in lines[1]
    for method, scale in (("p-cov", True), ("vertical", True), ("vertical", False)):
        parties = PARTIES if method == "p-cov" else COLUMNS
        assert f"scaled: {'yes' if scale else 'no'}" in run(method, parties, n_components=2, scale=scale).summary()
    assert "1 note" in lines[2]
    assert "without a bound" in run("ap-cov", PARTIES, n_components=2).summary()
    assert "no bound" in run("em", GAPS, n_components=2).summary().splitlines()[2]
