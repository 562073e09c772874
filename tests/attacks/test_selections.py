"""Every sum is over rows that the site has counted, examined and journaled; no number of the server rounds a row."""

from fractions import Fraction

import numpy as np
import pytest
from flwr.common import RecordDict

from fedpca_flwr.data.table import check_rows, participating_rows, participation
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.moments import pack, unpack_symmetric
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rows.vault import MAX_CENTRE_DISTANCE
from fedpca_flwr.site.rules.accounts import OpenedSum
from fedpca_flwr.site.scores import OddRows
from tests.attacks.test_repeats import events
from tests.hostile import HostileSession, Questions
from tests.protocol.scripts import SCRIPTS, Script
from tests.protocol.test_hostile_server import sessions

ROWS = np.random.default_rng(5).normal(20, 5, (60, 6))
RARE_GAPS = np.where((np.arange(60)[:, None] < 3) & (np.arange(6) == 2), np.nan, ROWS)
"""Three rows miss a value that no other row misses."""

OF_ROWS = [one for one in SCRIPTS if not (one.columns or one.card.differentially_private or one.way == "surviving")]


def opened(session: HostileSession) -> list[int]:
    return sorted(OpenedSum.parse(about).rows for about, _ in events(session.folder / "journal", OpenedSum.kind))


@pytest.mark.parametrize("script", OF_ROWS, ids=str)
def test_no_sum_leaves_before_its_rows_are_journaled(script: Script, tmp_path):
    if script.card.incomplete:
        session = HostileSession(tmp_path / "gaps", RARE_GAPS, {"bound": 1000.0, **script.run})
    else:
        (session,) = sessions(script, tmp_path, np.round(ROWS) if "genotypes" in script.run else ROWS)
    expected = [12, 48, 60] if ("held-out start" in script.times) else [57] if script.card.incomplete else [60]
    questions = Questions(1, {"d": 6, "n": 60})
    for phase in script.times:
        question = session.client.script[phase]
        said = session.ask(phase, questions.arrays(question, session, question.request_sizes(session.client.public)))[1]
        if "error" in said:
            break
        assert question.in_clear or phase not in session.client.questions or opened(session) == expected, phase
    assert opened(session) in ([], expected)


def test_rows_of_a_fold_are_searched_for_rare_values(tmp_path):
    """Three of 60 rows have another value, and one of these is held out: the difference of two sums shows that row."""
    rows = np.where(np.arange(6) == 3, np.arange(60)[:, None] % 2, ROWS)
    run = {"method": "personalised", "n-components": 2}
    sessions = (HostileSession(tmp_path, rows, {**run, **mu}, **{"min-rows": 8}) for mu in ({}, {"mu": 1.0}))
    chosen, given = (session.client.get_properties({}) for session in sessions)
    assert (chosen["error"], "rare-values" in chosen["message"]) == ("DisclosureError", True)
    assert "error" not in given


def test_no_rows_are_selected_after_the_site_has_examined_them_and_such_as_take_no_part_are_not_counted(tmp_path):
    client = HostileSession(tmp_path, ROWS, {"method": "p-cov", "n-components": 2}).client
    assert "error" not in client.get_properties({})
    with pytest.raises(ContractError):
        client.site.select("rows", ("rows",), "some", np.arange(60) < 30)
    with pytest.raises(ContractError):
        assert client.selection.rows.size
    # The first rows of a file were counted, where the file has rows that the site leaves out.
    rows = np.r_[np.full((3, 1), 9.0), np.zeros((5, 1))]
    table = check_rows(rows)._replace(excluded=np.arange(8) < 3)
    examiner = OddRows(np.eye(1), np.ones(1), np.array([4.0, 4.0]), participation(table, 2))
    examiner.add(rows)
    assert examiner.exceeding.tolist() == [0, 0]
    assert participation(table, 2).sum() == len(participating_rows(table, 2)) == 4


BEYOND = 2.0**53 - 20
MEAN = ROWS.mean(axis=0)
CENTRES = MEAN + 3.0, MEAN + 1e6, np.r_[-BEYOND, MEAN[1:]], np.array([-BEYOND, BEYOND, 0, 0, 0, 0])


@pytest.mark.parametrize("mean", CENTRES, ids=["near", "far", "window", "cancelling"])
def test_fourth_moments_are_those_of_exact_arithmetic(mean, tmp_path):
    """A number near 2^53 rounds all values of a row that are below some threshold, if the number meets single rows."""
    session = HostileSession(tmp_path, ROWS, {"method": "p-cov", "n-components": 2, "fourth-moments": True})
    assert session.ask("moments", [])[0]
    variances = np.array([3.0, 1.0])
    V = np.array([[0.5, 0.5, 0.5, 0.5, 0, 0], [0.5, -0.5, 0.5, -0.5, 0, 0]])
    fourth = session.ask("project", [V, mean, np.empty(0), variances])[0][2]
    own = [sum(map(Fraction, column)) / len(ROWS) for column in ROWS.T]
    for j, axis in enumerate(V):
        weights = [Fraction(value) for value in axis]
        shift = sum(w * (m - Fraction(c)) for w, m, c in zip(weights, own, mean, strict=True))
        scores = [sum(w * (Fraction(x) - m) for w, x, m in zip(weights, row, own, strict=True)) for row in ROWS]
        exact = sum((score + shift) ** 4 for score in scores) / Fraction(variances[j]) ** 2
        size = sum((abs(score) + abs(shift)) ** 4 for score in scores) / Fraction(variances[j]) ** 2
        assert abs(Fraction(fourth[j]) - exact) <= Fraction(1e-12) * size


SELECTING = [
    *((f"p-cov clusters=2{clustering}", "cells") for clustering in ("", " clustering=mixture")),
    *(("p-cov clusters=2 clustering=harmony", "mixed"), ("p-cov outliers=counts", "project")),
    *(("em max-rounds=3 clusters=2", "cells"), ("robust max-rounds=3", "median")),
]


def answers(run: str, phase: str, centre, folder, rows) -> str:
    session = HostileSession(folder, rows, {"method": run, "n-components": 2})
    questions = Questions(2, {"d": 6, "n": len(rows)})
    for name, question in session.client.script.items():
        arrays = questions.arrays(question, session, question.request_sizes(session.client.public))
        known = {"mean": centre, "centre": centre, "scale": np.empty(0), "components": np.eye(2, 6)}
        known |= {"rows": np.asarray(len(rows)), "unit": np.asarray(1.0), "spread": np.ones(6)}
        known |= {"variances": np.array([2.0, 1.0]), "limits": np.full(2, 9.0), "covariance": pack(np.eye(6))}
        known |= {"centres": np.zeros((1, 2, 2)), "penalties": np.zeros((1, 2, 3)), "moves": np.empty((0, 2, 3, 2))}
        given = zip(question.request.fields, arrays, strict=True)
        replied, said = session.ask(name, [known.get(field.name, value) for field, value in given])
        if name == phase:
            assert bool(replied) == ("error" not in said)
            return said.get("message", "")
        if name in {"deviations", "expected"}:
            continue
        assert replied, (name, said)
    raise AssertionError(phase)


@pytest.mark.parametrize(("run", "phase"), SELECTING)
def test_no_row_is_selected_about_a_centre_that_rounds_rows(run, phase, tmp_path):
    """Whether the site answers follows from its moments: rows of the same moments are answered alike."""
    assert answers(run, phase, MEAN + 1.0, tmp_path / "near", ROWS) == ""
    worlds = enumerate((ROWS, 2 * MEAN - ROWS))
    far = [answers(run, phase, np.r_[-BEYOND, MEAN[1:]], tmp_path / f"far {i}", rows) for i, rows in worlds]
    assert far[0] == far[1] != ""
    constant = np.where(np.arange(6) == 5, 1.0, ROWS)
    assert answers(run, phase, np.r_[MEAN[:5], BEYOND], tmp_path / "constant", constant) != ""


def test_a_constant_feature_rounds_no_length_and_no_score():
    """The faults: directions or a scale were left out, or the scale multiplied."""
    rows, unit = np.where(np.arange(6) == 0, 1.0, ROWS), np.r_[2.0, np.ones(5)]
    selection, total = Selection("", ROWS, ("rows",)).with_rows(rows), rows.std(axis=0).sum()
    vault = selection.vault(State(RecordDict()), columns=0, parties=1, threads=1, always_form=False)
    one = 2 * rows[:, 1].std(), unit, np.eye(6)[:1] + np.eye(6)[1:2]  # scores of the constant and one other feature
    for limit, *given in ((total, None, None), (2 * total, unit), one):
        near, far = (np.r_[1 + part * limit * MAX_CENTRE_DISTANCE, MEAN[1:]] for part in (0.99, 1.01))
        found = np.vstack([*selection.about(vault, near, *given)])
        np.testing.assert_array_equal(found, (rows - near) / (1 if given[0] is None else unit))
        with pytest.raises(ContractError):
            selection.about(vault, far, *given)


@pytest.mark.parametrize("method", ["sub-it", "fast-pca", "personalised", "p-cov adjust-for=0"])
def test_rows_of_equal_moments_answer_alike_columns_that_round_a_row(method, tmp_path):
    """With h x0 + x1 - h x2 and equal columns x0 and x2 each row rounds its x1 by itself: counts of rows were read."""
    answers = []
    for i, values in enumerate(([5.0, -5.0, 5.0, -5.0], [7.0, -7.0, 1.0, -1.0])):
        rows = np.zeros((8, 60))
        rows[:, 0] = rows[:, 59] = np.repeat([1.0, -1.0], 4)
        rows[:, 1] = [*values, *values]
        run = {"method": method, "n-components": 1}
        vault = HostileSession(tmp_path / str(i), rows, run, **{"rare-values": "allow"}).client.vault
        block = np.zeros((60, 8))
        block[[0, 1, 59]] = np.outer([1.0, 0.0, -1.0], 2.0 ** np.arange(50, 58)) + np.array([[0.0], [1.0], [0.0]])
        answers.append([vault.times(block).tolist(), vault.squares(block.T, np.zeros(60))])
    assert answers[0] == answers[1]


def sums_of_gapped(session: HostileSession, rows: np.ndarray, column: int) -> np.ndarray | None:
    """Return sums of products with a column over the rows that lack the last value, by two models; None if refused."""
    zeros, sums = np.zeros(5), []
    questions = [("observed", []), ("deviations", [np.asarray(len(rows)), zeros])]
    for share in (0.0, 0.5):
        covariance = np.eye(5)
        covariance[4, column] = covariance[column, 4] = share
        questions += [("expected", [np.asarray(len(rows)), zeros, np.ones(5), zeros, pack(covariance)])]
    for phase, arrays in questions:
        if not (replied := session.ask(phase, arrays)[0]):
            return None
        if phase == "expected":
            sums.append(unpack_symmetric(replied[1], 5)[4, :4] / 0.5)
    return sums[1] - sums[0]


@pytest.mark.parametrize(("gaps", "few"), [("shared", True), ("shared", False), ("all", True)])
def test_sums_of_rows_with_the_same_gaps_show_no_row(gaps, few, tmp_path):
    """The fault: a value that 31 rows have was no rare one, though one row has it among those that EM adds up alone."""
    rows = np.random.default_rng(6).normal(50, 10, (180, 5))
    rows[(np.arange(180) < 40) | (few & (np.arange(180) == 150)), 4] = np.nan
    carriers = np.isin(np.arange(180), [*range(40, 70), 7 if few else 70])
    run, node = {"method": "em", "n-components": 2}, {"gaps": gaps, "min-rows": 20}
    rare = np.column_stack([rows[:, :3], carriers, rows[:, 4]])[:150]
    answers = [sums_of_gapped(HostileSession(tmp_path / "rare", rare, run, **node), rare, 3)]
    node["journal"] = str(tmp_path / "journal")
    for number, part in enumerate((rows[:150], rows), start=1):
        session = HostileSession(tmp_path / str(number), part, run, run_id=number, **node)
        answers.append(sums_of_gapped(session, part, 0))
    refused = few and gaps == "shared"
    assert [answer is None for answer in answers] == [refused, False, refused]
    if few and not refused:  # or this would attack nothing
        np.testing.assert_allclose(answers[0], rare[7, :4], atol=1e-8)
        np.testing.assert_allclose(answers[2] - answers[1], rows[150, 0] * rows[150, :4], atol=1e-6)
