"""Benchmarks run on small data, and what they quote is what the notes print."""

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from flwr.server import SimpleClientManager

from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.site.flower_command import COMPLETED_STATUS
from fedpca_flwr.site.journal import FileJournal

pytest.importorskip("resource", reason="benchmarks measure by what POSIX counts")

from fedpca_flwr import run
from fedpca_flwr.simulations.benchmarks import (
    as_written,
    databases,
    empty_app,
    engines,
    genotypes,
    growth,
    influence,
    memory,
    messages,
    postgresql_server,
    soak,
    speed,
)
from fedpca_flwr.simulations.benchmarks.__main__ import NAMED, main
from fedpca_flwr.simulations.benchmarks.harness import BENCHMARKS
from fedpca_flwr.simulations.loopback import LoopbackProxy
from tests.families import cut, rows
from tests.harness import fit
from tests.needed import need
from tests.refusals import refused, unnamed

DIGITS = ["--dataset", "digits"]


def cells(out: str) -> list[list[str]]:
    """The rows of the last Markdown table, without its heads."""
    table = out.rstrip().split("\n\n")[-1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def told(capsys, *arguments):
    """What a benchmark prints."""
    assert main(arguments) in (0, None)
    return capsys.readouterr().out


def test_what_is_as_written_differs_as_the_notes_say():
    """Of alike parties it is 0, where only the means differ one of its four parts is not, and none exceeds 1."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    assert as_written.heterogeneity([X, X]) == pytest.approx(0, abs=1e-12)
    assert as_written.heterogeneity([X, X + 50]) == pytest.approx(0.25)
    assert 0.5 < as_written.heterogeneity([X, X * [1e3, 1, 1, 1]]) < 1
    shifted = [X[:30], X[30:] + 50]
    assert as_written.ap_cov(shifted, 1).variances[0] < 5 < as_written.p_cov(shifted, 1).variances[0]
    right = as_written.p_cov([X[:10], X[10:]], 2)
    np.testing.assert_allclose(as_written.sub_it([X[:10], X[10:]], 2).variances, 60 * right.variances**2)
    unlike = [X[:10] * [1, 9, 1, 1], X[10:]]
    counted_twice, pooled = (program(unlike, 1).components.T for program in (as_written.qr_pca, as_written.p_cov))
    assert principal_angles(counted_twice, pooled)[0] > 1


@pytest.mark.engine
def test_growth_has_a_line_a_point_and_an_exponent_a_method(monkeypatch, tmp_path, capsys):
    few = {"rows": [growth.Point(200, 12, 2, 4), growth.Point(400, 12, 2, 4)]}
    monkeypatch.setattr(growth, "GROWN", {**few, "sparse features": [growth.Point(40, 30, 2, 4, share=0.2)]})
    dense, thin = told(capsys, "growth", "--figure", str(tmp_path / "growth.svg")).split("sparse features:")
    lines = cells(dense)
    assert [line[0] for line in lines] == ["200", "400", "exponent"]
    assert all(cell.split("; ")[1] == "1" for cell in (lines[0][1], lines[0][3]))  # rounds of p-cov and qr-pca
    assert [line[0] for line in cells(thin)] == ["30", "exponent"]
    assert cells(thin)[1][1:] == ["-"] * 3  # of one point there is none
    drawn = (tmp_path / "growth.svg").read_text()
    assert "CPU seconds" in drawn
    assert "sparse features" in drawn
    assert growth.exponent([(10, 1.0), (100, 2.0), (1000, 200.0)]) == "2.00"  # between the two largest


@pytest.mark.engine
def test_rivals_are_held_against_the_exact_components(monkeypatch, tmp_path, capsys):
    def missing(rows, k):
        raise ImportError

    few = {name: growth.RIVALS[name] for name in ("`p-cov`, 10 parties", "scikit-learn, `IncrementalPCA`")}
    monkeypatch.setattr(growth, "RIVALS", {**few, "missing": missing})
    said = told(capsys, "rivals", "--components", "5", "--figure", str(tmp_path / "rivals.svg"))
    ours, theirs, none = cells(said)
    assert float(ours[2]) < 1e-6 < float(theirs[2])
    assert none == ["missing", "not installed", "-"]
    assert "missing" not in (tmp_path / "rivals.svg").read_text()


@pytest.mark.engine
def test_benchmarks_of_messages_servers_and_partitions_have_a_line_each(capsys):
    assert [row[0] for row in cells(told(capsys, "truncation", *DIGITS, "--seeds", "42", "1"))] == ["42", "1"]
    # On replies that no party sent, after a question that it did ask.
    said = told(capsys, "memory", "--clients", "3", "--features", "60", "--ways", *memory.WAYS)
    assert said.count("| 60 |") == len(memory.WAYS)
    parts = [Moments.from_rows(part) for part in cut(rows(300, 60), 100, 100, 100)]
    assert len(speed.server_speed(parts, repeats=1)) == 3
    assert [line[0] for line in cells(told(capsys, "parties", "--few", "4", "--many", "8"))] == ["4", "8"]
    assert [row[0] for row in cells(told(capsys, "influence", "--cost", "--repeats", "1"))] == ["10", "50"]


def test_sparse_rows_give_what_scikit_learn_gives(tmp_path):
    memory.write(str(tmp_path), 2, 300, 40, 0.05)
    theirs, ours = memory.scikit_learn(str(tmp_path), 2), memory.whole_run(str(tmp_path), 2)
    assert principal_angles(ours.components.T, theirs.components.T).max() <= 1e-6
    assert ours.data == pytest.approx(theirs.data, rel=0.1)
    party = memory.one_party(str(tmp_path), 2)
    assert party.components is None
    assert party.data < ours.data


@pytest.mark.engine
def test_every_way_to_read_a_database_gives_the_same_rows(monkeypatch):
    need(postgresql_server.programs(), "postgresql")
    pytest.importorskip("psycopg")
    pytest.importorskip("duckdb")
    monkeypatch.setattr(databases, "alone", lambda program, *arguments: program(*arguments))  # a process each is slow
    with TemporaryDirectory() as folder, postgresql_server.running() as server:
        found = databases.compare(server, folder, 300, 3)
    ways = [one.total for name, one in found.items() if "site" not in name]
    assert len(ways) >= 4
    np.testing.assert_allclose(ways, ways[0], rtol=1e-12)


def test_every_benchmark_says_what_it_measures_and_an_unknown_one_is_answered_by_all_names(capsys):
    assert main(["side-by-sight"]) == 2
    said = capsys.readouterr().err
    assert not unnamed(said, "side-by-sight")
    assert said.splitlines()[-1] == f"Benchmarks: {', '.join(sorted(NAMED))}"
    assert {"accuracy", "missing"} < NAMED.keys()
    for name in NAMED:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0
        assert f"python -m fedpca_flwr.simulations.benchmarks {name}" in capsys.readouterr().out
    assert BENCHMARKS.keys() == NAMED.keys()
    assert set(json.loads(speed.RELEASED.read_text())["ratios"]) == set(speed.RATIOS)


@pytest.mark.engine
def test_liars_are_named_and_nobody_else(capsys):
    (none, *lies) = cells(told(capsys, "influence", "--seeds", "1"))
    assert none[1:4] == ["0 of 0", "0 of 0", "0 of 10"]
    assert [line[2:4] for line in lies] == [["2 of 2", "0 of 8"]] * 4
    assert all(float(line[5]) == float(line[6]) < float(line[4]) / 1.5 for line in lies)


def test_a_median_is_where_most_groups_are_and_takes_a_part_of_a_lie_away(capsys, monkeypatch):
    A, B = np.diag([3.0, 2.0, 1.0]), np.diag([1.0, 2.0, 900.0])
    np.testing.assert_allclose(influence.geometric_median([A, A, A, B]), A, atol=1e-6)
    np.testing.assert_allclose(influence.geometric_median([A, B]), (A + B) / 2)
    monkeypatch.setattr(influence, "CASES", [("IID", 30, 2)])
    (line,) = cells(told(capsys, "groups", "--seeds", "1"))
    hit, lied, honest, quiet, known = map(float, line[2:7])
    assert 1 <= hit <= 2
    assert max(honest, quiet) < known < lied


@pytest.mark.engine
def test_drawn_genotypes_give_the_components_of_all_people(tmp_path):
    pytest.importorskip("bed_reader", reason="needs the extra 'genotypes'")
    genotypes.draw(str(tmp_path), 3, 300, 400, 3)
    files = [str(tmp_path / f"{party}.bed") for party in range(3)]
    reference = genotypes.pooled(files, 3, 2, 20)
    found = genotypes.federated(files, 3, "sub-it", {"n_components": 2, "tolerance": 1e-3})
    assert genotypes.angles(found.scores, reference.scores).max() <= 2e-3
    assert reference.scores.shape == (300, 2)
    assert found.rounds >= 4


def test_ratios_stand_beside_those_of_the_release_and_fail_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speed, "RELEASED", tmp_path / "released.json")
    monkeypatch.setattr(speed, "RATIOS", {"one": lambda repeats: 2.0, "other": lambda repeats: float(repeats)})
    assert [row[1:3] for row in cells(told(capsys, "all", "--quick", "--keep"))] == [["2.00", "-"], ["3.00", "-"]]
    # Three times the repetitions, three times the ratio of one of the two.
    assert [row[3] for row in cells(told(capsys, "all"))] == ["", "slower: 3.00 times the release's"]


def test_an_empty_run_has_the_rounds_and_the_bytes_of_another():
    model = run("p-cov", cut(rows(60, 6), 30, 20, 10), n_components=2)
    messages = engines.sizes(model)
    strategy, server = empty_app.Empty(messages), SimpleClientManager()
    for i in range(3):
        server.register(LoopbackProxy(str(i), empty_app.EmptyClient))
    for number, (up, down) in enumerate(messages, 1):
        asked = strategy.configure_fit(number, None, server)
        assert [len(ins.parameters.tensors[0]) for _, ins in asked] == down
        replies = [(client, client.fit(ins, None, None)) for client, ins in asked]
        assert [len(reply.parameters.tensors[0]) for _, reply in replies] == up
        strategy.aggregate_fit(number, replies, [])
    assert len(messages) == len(model.log["rounds"]) == 2
    with refused(RuntimeError, 1):
        strategy.aggregate_fit(1, [], [OSError()])


def test_lines_are_on_the_front_and_squares_of_rows_refused():
    lines = [
        messages.Line("one round", 1, 9.0, 0.0, 0.0, "exact", reached=True),
        messages.Line("few bytes up", 4, 2.0, 9.0, 0.0, "1e-07", reached=True),
        messages.Line("dearer up, cheaper in all", 4, 3.0, 1.0, 0.0, "1e-07", reached=True),
        messages.Line("one more round than that", 5, 3.0, 1.0, 0.0, "1e-07", reached=True),
        messages.Line("not exact, for nothing", 1, 0.0, 0.0, 5.0, "-", reached=False),
    ]
    assert messages.fronts(lines) == ["up, up + down", "up", "up + down", "-", "-"]
    own = speed.of_columns(30_000)
    assert [rows.shape for rows in own] == [(30_000, 20)] * 3
    assert "rounds" in speed.outcome("vertical", speed.of_columns(500))
    assert all(speed.outcome(method, own).endswith("refused") for method in speed.COLUMNS[1:])


def test_the_front_of_bytes_has_ours_and_the_published_methods(capsys, monkeypatch):
    monkeypatch.setattr(messages, "OURS", [("p-cov", {}), ("sub-it", {"tolerance": 1.0})])
    monkeypatch.setattr(messages, "PUBLISHED", {"P-COV": as_written.p_cov, "AP-COV": as_written.ap_cov})
    on = {line[0]: line[-1] for line in cells(told(capsys, "front", *DIGITS))}
    published = dict.fromkeys(["P-COV, published", "AP-COV, published"], "-")
    assert on == {"p-cov": "up, up + down", "sub-it tolerance=1.0": "-", **published}


# What the soak finds wrong after a run

PARTIES = cut(rows(180, soak.FEATURES), 60, 60, 60)


class Pretended:
    """A deployment whose run ends as it is told."""

    def __init__(self, status=COMPLETED_STATUS, log="", parties=PARTIES):
        self.status, self.log, self.parties = status, log, parties
        self.processes, self.all_online = {}, None

    def run(self, config):
        if self.parties:
            output = json.loads(re.search(r"output=(\S+)", config)[1])
            fit("p-cov", self.parties, n_components=soak.COMPONENTS).save(Path(output).with_suffix(".npz"))
        return self.status, self.log

    def until(self, condition, what):
        pass


def found_by(folder, deployment, fault="none", *, lost=0, old_copy=False):
    for site in range(3):
        journal = FileJournal(str(folder / f"journal{site}"), "1", site)
        journal.begin("mean", "", b"", lambda answered: None)
    if old_copy:
        journal.rows_folder.mkdir()
        os.utime(journal.rows_folder, (0, 0))
    soaking = soak.Soak(deployment, folder, PARTIES, 0)
    soaking.questions = [1 + lost, 1, 1]
    soaking.faults = dict.fromkeys(soaking.faults, soaking.faults["none"])
    soaking.apps = lambda site=None: []
    return " ".join(soaking.one(0, fault, "p-cov", 0).findings)


FAILED = "finished:failed"
STILL = "a SuperNode stands still"
WRONG = [part + np.eye(60, 12) * 40 for part in PARTIES]


@pytest.mark.parametrize(
    ("deployment", "fault", "also", "word"),
    [
        (Pretended(), "none", {}, None),
        (Pretended(FAILED, "The run failed: ", None), STILL, {}, None),  # by a fault, with a sentence of ours
        (Pretended(parties=WRONG), "none", {}, "degrees"),
        (Pretended(FAILED, "The run failed: ", None), "none", {}, "nothing stops"),
        (Pretended(FAILED, "Traceback", None), STILL, {}, "no sentence"),
        (Pretended(FAILED, "The run failed: "), STILL, {}, "wrote a model"),
        (Pretended(), "none", {"lost": 1}, "lost lines"),
        (Pretended(), "none", {"old_copy": True}, "old copies"),
    ],
)
def test_what_is_wrong_after_a_run_is_a_finding(deployment, fault, also, word, tmp_path):
    found = found_by(tmp_path, deployment, fault, **also)
    assert found == "" if word is None else word in found
