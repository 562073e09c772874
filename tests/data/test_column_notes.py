"""Columns that are not what they seem are noted by name, and ordinary ones are not."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn import datasets

from fedpca_flwr import read, run
from fedpca_flwr.data.column_notes import column_fault_notes, find_faults, one_column_notes
from fedpca_flwr.data.table import check_rows
from tests.refusals import unnamed

RNG = np.random.default_rng(0)
N = 120
USUAL = RNG.normal(50, 9, (N, 4)).round(1)
LIKERT = RNG.integers(1, 6, (N, 4))


def notes(**parties):
    return "\n".join(column_fault_notes(tables(**parties), dict.fromkeys(parties, tuple("abcd"))))


def tables(**parties):
    return {name: check_rows(rows, sampled=True) for name, rows in parties.items()}


def changed(table, *changes):
    table = table.copy()
    for column, value, places in changes:
        table[places, column] = value
    return table


CODES = {
    "a few": changed(USUAL, (1, -99, slice(3))),
    "two thirds": changed(USUAL, (1, -999, slice(80))),
    "a whole column": changed(USUAL, (1, -999, slice(None))),
    "two codes at both ends": changed(USUAL, (1, -99, slice(4)), (1, -98, slice(4, 7)), (1, 999, slice(9, 12))),
    "beside answers": changed(LIKERT, (1, 9, slice(5))),
    "of bytes": changed(LIKERT.astype("i1"), (1, -9, slice(5))),
    "beside what is missing": changed(USUAL, (1, np.nan, slice(9)), (1, 1e30, slice(9, 12))),
}


@pytest.mark.parametrize("kind", CODES)
def test_codes_for_missing_values_are_noted_in_their_column(kind):
    text = notes(x=CODES[kind])
    assert ("repeated" in text, "'b' (x)" in text) == (True, True)
    assert not re.search("'[acd]'", text)


def test_a_code_a_running_number_and_identifiers_are_noted_in_all_columns_that_have_them():
    for count in (3, 1):  # which lie within the reach of a wide column
        table = changed(USUAL * [1, 1, 100, -100], *((c, -999, slice(count)) for c in range(4)))
        assert f"{count * 3} values of 'a', 'b', 'c' (x) are repeated" in notes(x=table)
    assert "running number is in 'a' (x)" in notes(x=np.column_stack([RNG.permutation(N), USUAL[:, 1:]]))
    patients = RNG.choice(10**6, N, replace=False) + 10**6
    assert "of its own in 'd' (x)" in notes(x=np.column_stack([USUAL[:, :3], patients]))


def test_a_column_that_one_party_has_not_measured_is_noted():
    everywhere, high = slice(None), USUAL / 100 + 4
    north = changed(USUAL, (2, -1, everywhere))
    assert "'c' (north)" in notes(north=north, south=USUAL)
    assert not notes(north=USUAL[:40], south=changed(USUAL, (2, 50, everywhere)))
    assert not column_fault_notes(tables(x=north, y=USUAL), {"x": (), "y": ()}, same_columns=False)
    assert "'c' (south)" in notes(north=high, south=changed(high, (2, 0, everywhere)))
    for n in (5, 4):
        assert bool(notes(north=north[:n], south=USUAL)) == (n == 5)


GENOTYPES = np.where(RNG.random((N, 60)) < 0.1, np.nan, RNG.binomial(2, RNG.uniform(0.005, 0.5, 60), (N, 60)))
GENOTYPES[:, :4] = 0, 1, 2, np.nan  # nothing of 0, 1 and 2 is noted, so a .bed file needs no pass for notes
ORDINARY = {
    "counts": RNG.poisson(RNG.gamma(0.5, 3, 60), (N, 60)),
    "large counts": RNG.negative_binomial(0.3, 0.001, (N, 60)),
    "zeros": RNG.binomial(1, 0.2, (N, 60)) * RNG.poisson(40, (N, 60)),
    "zeros beside what is narrow": RNG.binomial(1, 0.5, (N, 60)) * RNG.normal(100, 3, (N, 60)).round(1),
    "answers": RNG.integers(1, 8, (N, 60)),
    "0 and 1": RNG.binomial(1, 0.1, (N, 60)),
    "signs": RNG.integers(-1, 2, (N, 60)),
    "genotypes": GENOTYPES,
    "heavy tails": RNG.standard_cauchy((N, 60)).round(1),
    "sizes": np.exp(RNG.normal(0, 2, (N, 60))).round(2),
    "ages": RNG.integers(0, 100, (25, 3)),
    **{name: getattr(datasets, f"load_{name}")().data for name in ("iris", "wine", "digits")},
    **{name: getattr(datasets, f"load_{name}")().data for name in ("breast_cancer", "diabetes")},
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_columns_are_not_noted(kind):
    parties = {"north": ORDINARY[kind][::2], "south": ORDINARY[kind][1::2]}
    found = column_fault_notes(tables(**parties), dict.fromkeys(parties, ()))
    assert not any("missing=" in note or "leave it out" in note for note in found)


def test_a_note_needs_so_many_rows_columns_or_codes():
    marked = changed(USUAL, (1, -97, slice(2)), (1, -98, slice(2, 4)), (1, -99, slice(4, 6)))
    assert notes(x=marked).startswith("6 values ")
    for enough, too_few in (
        (np.column_stack([np.arange(n), USUAL[:n, 1:]]) for n in (20, 19)),
        (np.column_stack([np.arange(40)] * m) for m in (3, 4)),
        (changed(USUAL[:n], (1, -999, slice(None))) for n in (5, 4)),
        (changed(USUAL[:n], (1, -99, slice(3))) for n in (20, 19)),
        (marked, changed(marked, (1, -96, slice(6, 8)))),
    ):
        assert [bool(notes(x=rows)) for rows in (enough, too_few)] == [True, False]


CONTAINERS = {
    "frame": lambda frame, _: frame,
    "another order": lambda frame, _: frame[list("dbcea")],
    "polars": lambda frame, _: pl.from_pandas(frame),
    "CSR": lambda frame, _: pd.DataFrame.sparse.from_spmatrix(sparse.csr_array(frame), columns=frame.columns),
    ".csv": lambda frame, file: frame.to_csv(file, index=False) or read(file),
}


def fault_notes(party):
    first = pd.DataFrame(np.random.default_rng(1).normal(50, 9, (80, 5)), columns=list("abcde"))
    notes = run("p-cov", {"north": first, "x": party}, n_components=1).log["notes"]
    return [note for note in notes if re.search("missing=|errors|running", note)]


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("n", [90, 3000])
def test_rows_have_the_same_notes_in_any_container(kind, n, tmp_path, monkeypatch):
    """A sample, of every fourth row, misses most codes of 3,000 rows, which are not kept in memory."""
    monkeypatch.setattr("fedpca_flwr.data.table.HELD_BYTES", 1000 if n > 90 else 2**26)
    rng = np.random.default_rng(0)
    table = rng.normal(50, 9, (n, 5)).round(1)
    table[[1, 3, 6], 1], table[7, 2], table[:, 3], table[:9, 0] = -999, 1e6, rng.permutation(n), 9999
    table[:, 4] = 99 * (np.arange(n) < 9)  # no code in a column of zeros
    frame = pd.DataFrame(table, columns=list("abcde"))
    isolated, codes, running, *_ = notes = fault_notes(frame)
    assert "1 value of 'c' (party 'x')" in isolated
    assert not unnamed(codes, "12 values of 'a', 'b' (party 'x')", "missing='-999, 9999'")
    assert "'d' (party 'x')" in running
    assert fault_notes(CONTAINERS[kind](frame, tmp_path / "x.csv")) == notes


def test_components_that_are_one_column_are_noted():
    (note,) = one_column_notes(np.sqrt([[0.989, 0.011, 0], [0, 0.009, 0.991]]), "abc")  # of three: 99 %
    assert "99 %: 2 ('c')." in note
    assert one_column_notes(np.eye(2), ()) == []
    for scale in (False, True):
        notes = "".join(run("p-cov", np.split(USUAL * [1, 1, 500, 1], 2), n_components=2, scale=scale).log["notes"])
        assert ("1 (column 2)" in notes, "one column" in notes) == (not scale, not scale)


@pytest.mark.parametrize("names", ["", "abcd"])
@pytest.mark.parametrize("method", ["p-cov", "qr-pca", "robust", "vertical"])
def test_what_scaling_leaves_undivided_is_named(method, names):
    """Nobody can tell whether a deviation of 1e-14 means is rounding. A median absolute deviation of 1 is not."""
    table = np.tile(changed(USUAL, (1, 7, slice(None))), (9, 1))
    table[:, 2], table[:, 3] = 1e13 + 0.1 * RNG.normal(size=9 * N), RNG.permutation(np.tile([-1, 1, 0], 3 * N))
    frame = pd.DataFrame(table, columns=list(names) or None)
    halves = (np.s_[:, :2], np.s_[:, 2:]) if method == "vertical" else (np.s_[: 5 * N], np.s_[5 * N :])
    parties = [frame.iloc[half] if names else table[half] for half in halves]
    (note,) = (note for note in run(method, parties, n_components=1, scale=True).log["notes"] if "undivided" in note)
    named = [name for i, name in enumerate("abcd") if repr(name if names else f"feature {i + 1}") in note]
    assert named == (["b", "c"] if method in {"p-cov", "qr-pca"} else ["b"])
    assert not any("undivided" in note for note in run(method, parties, n_components=1).log["notes"])


def test_one_party_and_parties_with_one_table_are_noted():
    first, second = USUAL[:60], USUAL[60:]
    for method, parties, named in (
        ("p-cov", {"x": first, "y": second, "z": first.copy()}, ["'x'", "'z'"]),
        ("p-cov", dict.fromkeys("xz", sparse.csr_array(first)), ["'x'", "'z'"]),
        ("vertical", [first, first], ["party 0", "party 1"]),
    ):
        found = run(method, parties, n_components=1).log["notes"]
        assert [note for note in found if "same table" in note and not unnamed(note, *named) and "'y'" not in note]
        assert any("equal means" in note and "(z)" in note for note in found) == (method == "p-cov")
    assert any("one party" in note for note in run("p-cov", [first], n_components=1).log["notes"])
    assert not [n for n in run("p-cov", [first, second], n_components=1).log["notes"] if "party" in n]


def drawn(*changes):
    """Return 200 rows with heavy tails, rare ones and counts, in which no value is isolated, with these changes."""
    rng, n = np.random.default_rng(0), 200
    columns = [rng.integers(18, 90, n), rng.normal(1, 0.3, n), rng.lognormal(0, 1, n), rng.random(n) < 0.05]
    columns += [rng.poisson(0.5, n), rng.standard_t(3, n)]
    return changed(np.column_stack(columns).astype(np.float64), *changes)


FAR = drawn((1, -999, slice(7)), (0, [40_000, 61_000], [3, 4]), (0, -9999, 5), (slice(2), np.nan, slice(20, 40)))
ISOLATED = [
    *((table, {}) for table in (drawn(), np.ones((200, 2)), np.arange(18.0)[:, None] ** 9)),
    (drawn((1, 1e139, 4)), {1: 1}),
    (np.uint8(drawn((1, 1e139, 4)) > 1) * 255, {}),
    (FAR, {0: 3, 1: 7}),
    (FAR.astype(np.float32), {0: 3, 1: 7}),
    # a tenth of the rows at most: what more rows have is a part of the data
    (drawn((1, -999, slice(20))), {1: 20}),
    (drawn((1, -999, slice(20)), (1, 40_000, 0)), {1: 20}),
    (drawn((1, -999, slice(21)), (1, 40_000, 0)), {}),
    *(
        (sign * np.append(np.linspace(0, 1, n - 1), 1 + ranges)[:, None], isolated)
        for sign in (1, -1)
        for n, ranges, isolated in ((20, 10.5, {0: 1}), (20, 9.5, {}), (19, 10.5, {}))
    ),
]


@pytest.mark.parametrize(("table", "isolated"), ISOLATED)
def test_isolated_values_are_those_of_few_rows_ten_ranges_from_all_others(table, isolated):
    assert find_faults(check_rows(table, sampled=True)).isolated == isolated
