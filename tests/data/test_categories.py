"""Mixed tables: FAMD of numbers and categories, MCA of categories alone, against the definition of Pages (2004)."""

import decimal
import json
from contextlib import nullcontext

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr import ConfigError, DataError, DisclosureError, PCAModel
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import encoded, frequent_levels, level_of
from fedpca_flwr.maths.rows import row_chunks
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.rules import policy
from fedpca_flwr.site.rules.policy import permit_levels
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import rows
from tests.harness import fit
from tests.refusals import refused, unnamed

SECURE = {"secure_aggregation": True, "bound": 1e5}
NUMBERS = ["mass", "bill", "ratio"]
LEVELS = {"sex": ["f", "m"], "island": ["north", "south", "west"]}
CODES = np.random.default_rng(0).integers(0, 2, 60)
NODE = {"partition-id": 0, "num-partitions": 3}


def table(n=150, seed=0):
    """Drawn animals: two categories that go with the numbers, and some cells that are missing."""
    rng = np.random.default_rng(seed)
    numbers = rows(n, 3, seed=seed) * [40, 2, 0.1] + [200, 15, 3]
    sex = np.where(numbers[:, 0] + 5 * rng.standard_normal(n) > 200, "m", "f").astype(object)
    sex[rng.choice(n, n // 10, replace=False)] = None
    island = rng.choice(["north", "south", "west", "far", "farther"], n, p=[0.4, 0.3, 0.2, 0.05, 0.05])
    return pd.DataFrame(numbers, columns=NUMBERS).assign(sex=sex, island=island)


def fitted(parties, method="p-cov", **options):
    """Return the model of three sites with these animals, or of parties."""
    parties = [parties[:70], parties[70:115], parties[115:]] if isinstance(parties, pd.DataFrame) else parties
    return fit(method, parties, **{"n_components": 2, "scale": True, "levels": LEVELS, **options})


def pages(frame, columns, k):
    """Variances (k,) (divisor n - 1) and standard scores (n, k), from the table of Pages and its singular values."""
    standard = [(own - own.mean()) / own.std(ddof=0) for _, own in frame[columns].items()]
    for column, levels in LEVELS.items():
        own = frame[column]
        indicators = pd.get_dummies(own.where(own.isin(levels) | own.isna(), "other").fillna("missing"), dtype=float)
        standard += [(own - own.mean()) / np.sqrt(own.mean()) for _, own in indicators.items()]
    U, s, _ = np.linalg.svd(np.column_stack(standard), full_matrices=False)
    return s[:k] ** 2 / (len(frame) - 1), U[:, :k]


@pytest.mark.parametrize(
    ("method", "travel", "numbers"),
    [
        *((method, {}, NUMBERS) for method in ("p-cov", "streaming", "em")),
        *(("p-cov", {**SECURE, "survivors": 3}, NUMBERS), ("sub-it", SECURE, NUMBERS)),
        *(("p-cov", SECURE, []), ("sub-it", {}, []), ("em", SECURE, [])),
    ],
)
def test_a_run_is_the_famd_of_all_rows(method, travel, numbers):
    frame = table()[[*numbers, *LEVELS]]
    model = fitted(frame, method, n_components=3, **travel)
    variances, scores = pages(frame, numbers, 3)
    assert model.explained_variance_ == pytest.approx(variances, rel=1e-8)
    with pytest.warns(UserWarning, match="other"):
        own = model.transform(frame)
    assert np.abs(np.sum(own / np.linalg.norm(own, axis=0) * scores, axis=0)) == pytest.approx(np.ones(3), abs=1e-8)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_weighted_rows_are_repeated_ones(seed):
    frame = table(seed=seed)
    times = np.random.default_rng(seed).integers(0, 4, len(frame))
    weighed = fitted(frame.assign(w=times), n_components=3, weights="w")
    variances, _ = pages(frame.loc[frame.index.repeat(times)].reset_index(drop=True), NUMBERS, 3)
    assert weighed.explained_variance_ == pytest.approx(variances, rel=1e-8)
    assert weighed.feature_names_in_[:4].tolist() == [*NUMBERS, "sex=f"]


def test_few_rows_of_a_level_are_others_and_others_are_not_few():
    cells = ["f"] * 12 + ["m"] * 5 + [None] * 2 + ["x"]
    for dtype in (object, "string", "category"):
        found = encoded(pd.DataFrame({"sex": pd.Series(cells, dtype=dtype)}), {"sex": ["f", "m"]}, "X", min_rows=4)
        assert np.asarray(found.rows).sum(axis=0).tolist() == [12, 0, 8, 0]  # m joins the three others
        assert found.names == ("sex=f", "sex=m", "sex=other", "sex=missing")
    four_others = encoded(pd.DataFrame({"sex": [*cells, "x"]}), {"sex": ["f", "m"]}, "X", min_rows=4)
    assert np.asarray(four_others.rows).sum(axis=0).tolist() == [12, 5, 4, 0]
    assert frequent_levels([*cells, "x", *["other", ""] * 9], min_rows=2) == ["f", "m", "x"]


def ward_file(folder, ward, **cells):
    """Write rows with a column of categories; return them, and the node-config of a site that has this file."""
    numbers = np.random.default_rng(3).standard_normal((len(ward), 3))
    frame = pd.DataFrame(numbers, columns=["x", "y", "z"]).assign(ward=ward, **cells)
    frame.to_csv(folder / "rows.csv", index=False)
    return frame, {**NODE, "min-rows": 10, "data": str(folder / "rows.csv"), "categories": "ward"}


def run_config(method, *levels):
    options = {"n-components": 2, "scale": True, "levels": json.dumps({"ward": levels})}
    return METHODS.run_config({"method": method, **options})


@pytest.mark.parametrize("round_rows", [1, 10, 25])
def test_levels_are_counted_among_the_rows_that_take_part(round_rows, tmp_path):
    """The fault: a level of 10 rows, of which the site leaves out 9, was told of the single row that is left."""
    n = 209
    ward = np.random.default_rng(3).choice(["a", "b"], n)
    ward[[37, *range(n - 9, n)]] = "c"
    frame, node = ward_file(tmp_path, ward)
    run, node = run_config("p-cov", "a", "b", "c"), {**node, "round-rows": round_rows}
    rules = {key: node[key] for key in node if key not in {"data", "categories"}}
    of_rows = FACTORY.client_of_rows(Context(1, 1, rules, RecordDict(), {}), lambda: frame, run)
    for client in (FACTORY.client(Context(1, 1, node, RecordDict(), run)), of_rows):
        fields, rows_told, said = client.fit([], {"phase": "moments"})
        counts = np.rint(rows_told * fields[1][3:])
        assert "error" not in said
        assert counts.sum() == rows_told == n - n % round_rows
        assert not ((counts > 0) & (counts < 10)).any()


def test_a_level_of_few_rows_with_the_same_gaps_is_refused(tmp_path):
    """EM adds up rows with the same gaps by themselves, and of these a single one may have a level."""
    gap = np.where((np.arange(90) > 38) & (np.arange(90) < 61), np.nan, rows(90, 1)[:, 0])
    _, node = ward_file(tmp_path, ["a"] * 40 + ["b"] * 50, x=gap)
    for gaps in ("shared", "all"):
        context = Context(1, 1, {**node, "gaps": gaps}, RecordDict(), run_config("em", "a", "b"))
        _, _, reply = FACTORY.client(context).fit([], {"phase": "observed"})
        assert ("gaps='all'" in reply.get("message", "")) == (gaps == "shared")


@pytest.mark.parametrize("before", [30, 3 * 64], ids=["first piece", "last piece"])
def test_a_level_of_few_rows_is_refused_by_the_site(before, monkeypatch):
    """If weights or rounded numbers of rows leave few, the sums would be nearly those of a single row."""
    monkeypatch.setattr(policy, "chunks", lambda rows: row_chunks(rows, 64))
    n = before + 10
    frame = pd.DataFrame({"x": np.arange(float(n)), "sex": ["f"] * before + ["m"] * 10})
    table = encoded(frame, {"sex": ["f", "m"]}, "X")  # indicators may have been made elsewhere
    heavy = [[1.0] * before + last for last in ([1.0] + [0.0] * 9, [3.0] + [1.0] * 9)]
    for min_rows, round_rows, weights, permitted in (
        *((10, 1, None, True), (10, 1, np.ones(n), True), (11, 1, None, False)),
        *((7, n - 3, None, True), (8, n - 3, None, False)),  # of the last ten rows seven are left
        *((10, 1, np.array(weights), False) for weights in heavy),
    ):
        node = NodeConfig.parse({**NODE, "min-rows": min_rows, "round-rows": round_rows})
        with nullcontext() if permitted else refused(DisclosureError, min_rows):
            permit_levels(node, table._replace(weights=weights), table.names[1:])


def test_what_levels_do_not_go_with_is_named():
    for method, options, named in (
        *(("robust", {}, "p-cov, sub-it"), ("em", {"model": "factors"}, "model='gaussian'")),
        *(("p-cov", {"levels": {"sex": levels}}, "'levels'") for levels in (["f", "f"], ["other"])),
        ("p-cov", {"scale": False}, "scale=True"),
    ):
        with refused(ConfigError, "'levels'", match=named):
            fitted(table(), method, **options)


def codes_of(cells, **options):
    return pd.DataFrame({"code": cells}, **options)


HELD = {
    **{kind: lambda codes, kind=kind: codes_of(codes.astype(kind)) for kind in ("float", "float32", "bool")},
    "nullable": lambda codes: codes_of(pd.array(codes, "Int8")),
    "categories of floats": lambda codes: codes_of(pd.Categorical(codes.astype(float))),
    "objects": lambda codes: codes_of(list(map(decimal.Decimal, codes.tolist())), dtype=object),
    "texts": lambda codes: codes_of([f"{code}.0 " for code in codes]),
    "logical texts": lambda codes: codes_of([["FALSE", "True"][code] for code in codes]),
    "Arrow": lambda codes: pa.table({"code": pa.array(codes.astype(str)).dictionary_encode()}),
    "polars": lambda codes: pl.DataFrame({"code": codes.astype(float)}),
    "polars categories": lambda codes: pl.DataFrame({"code": codes.astype(str)}).cast(pl.Categorical),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_level_is_a_value_whatever_holds_it(kind):
    """In pandas whole numbers become floats at the first gap: '0' and '0.0' were two levels."""
    parties = {"north": codes_of(CODES[:30]), "south": HELD[kind](CODES[30:])}
    expected, found = (fitted(own, n_components=1, levels=["code"]) for own in ([codes_of(CODES)], parties))
    assert found.log["levels"] == {"code": ["0", "1"]}
    assert found.explained_variance_ == pytest.approx(expected.explained_variance_, rel=1e-12)
    assert not any("'code'" in note for note in found.log["notes"])


def test_texts_and_days_are_levels_in_one_form():
    kinds = ["caf\u00e9", "cafe\u0301 ", " caf\u00e9", "01", "1", pd.Timestamp("2020-01-02"), "2020-01-02", 1.5, "1.5"]
    assert [level_of(cell) for cell in kinds] == ["caf\u00e9"] * 3 + ["01", "1", *["2020-01-02"] * 2, "1.5", "1.5"]
    for nothing in (None, np.nan, pd.NA, pd.NaT, "", " ", "NA", "nan", "None", "#N/A"):
        assert level_of(nothing) is None
    with refused(DataError, "'1.0'"):
        encoded(codes_of(CODES), {"code": ["1", "1.0"]}, "X")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_and_frames_miss_the_same_and_hold_the_same_levels(suffix, tmp_path):
    cells = ["NA", "", "none", "1.0", "1", "True", "e\u0301", "\u00e9 ", "b"]
    frame, path = pd.DataFrame({"x": np.arange(90.0), "c": cells * 10}), tmp_path / f"rows{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path, index=False)
    node = NodeConfig.parse({**NODE, "data": str(path), "categories": "c", "min-rows": 1})
    declared = {"c": ["1", "\u00e9", "b"]}
    of_file = np.asarray(local_table(node, RunConfig(levels=json.dumps(declared))).rows)
    np.testing.assert_array_equal(of_file, encoded(frame, declared, "X").rows)
    assert of_file[:, 1:].sum(axis=0).tolist() == [30, 20, 10, 0, 30]


def test_parties_with_levels_of_other_names_have_a_note():
    one = pd.DataFrame({"x": np.arange(40.0), "sex": ["F", "M"] * 20})
    two = one.assign(sex=["female", "male"] * 20)
    for levels, named in (
        (["sex"], ["'sex'", "'F', 'M'", "'female', 'male'", "party 'a'", "party 'b'"]),
        ({"sex": ["F", "M"]}, ["all values of 'sex'", "party 'b'"]),
    ):
        (note,) = [note for note in fitted({"a": one, "b": two}, levels=levels).log["notes"] if "sex" in note]
        assert not unnamed(note, *named)
    assert not any("sex" in note for note in fitted([one, one.assign(sex="F")], levels=["sex"]).log["notes"])


def test_a_saved_model_takes_rows_with_categories_and_names_a_lacking_column(tmp_path):
    frame = table()
    model, lacking, new = fitted(frame), frame.drop(columns="island"), frame[:5].assign(island="nowhere")
    with pytest.warns(UserWarning, match="5 cells"):
        found = PCAModel.load(model.save(tmp_path / "model")).transform(new[new.columns[::-1]])
    assert found == pytest.approx(model.transform(encoded(new, LEVELS, "X")))
    with refused(DataError, "'island'") as caught:
        model.transform(lacking[:3])
    assert not any(word in str(caught.value) for word in ("'sex'", "="))
    with refused(DataError, "'island'"):
        fitted(lacking)
    with refused(DataError, "party 'b'", "'island'") as caught:
        fitted({"a": frame, "b": lacking}, levels=list(LEVELS))
    assert "party 'a'" not in str(caught.value)


def test_a_site_names_columns_that_may_have_levels(tmp_path):
    """A run that chose the columns could have sums over rows with a value; a run without levels omits the columns."""
    path = tmp_path / "rows.csv"
    table().to_csv(path, index=False)
    node = NodeConfig.parse({**NODE, "data": str(path), "categories": "sex, island"})
    assert local_table(node, RunConfig()).names == ("mass", "bill", "ratio")
    with refused(DisclosureError, "'mass'", "'levels'", "'categories'"):
        local_table(node, RunConfig(levels='{"mass": ["200.0"]}'))
