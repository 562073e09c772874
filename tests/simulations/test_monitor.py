"""A site monitors its own rows by one command, and what it writes is its own."""

import csv
import stat

import numpy as np
import pytest

from simulations import monitor, run
from tests.families import cut, rows
from tests.refusals import unnamed

X = rows(400, 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    found = run("p-cov", cut(X, 250, 150), n_components=2)
    return str(found.save(tmp_path_factory.mktemp("model") / "model"))


def told(model, data, folder, capsys, *more):
    np.save(folder / "rows.npy", data)
    code = monitor.main([model, str(folder / "rows.npy"), *more])
    return code, capsys.readouterr()


def test_the_same_rows_are_not_odd_and_a_shift_is_told(model, tmp_path, capsys):
    code, said = told(model, rows(200, 6, seed=3), tmp_path, capsys)
    assert code == 0
    assert "of 200 rows above" in said.out
    assert said.out.endswith("no drift, at 1.00% false alarms\n")
    _, said = told(model, X + 0.5, tmp_path, capsys)
    assert said.out.endswith("drifted\n")


def test_a_fault_is_a_line_with_the_feature_that_has_it(model, tmp_path, capsys):
    faulty = X.copy()
    faulty[17, 4] += 10
    code, _ = told(model, faulty, tmp_path, capsys, "--output", str(tmp_path / "odd.csv"))
    assert code == 0
    assert stat.S_IMODE((tmp_path / "odd.csv").stat().st_mode) == 0o600
    lines = list(csv.DictReader((tmp_path / "odd.csv").read_text().splitlines()))
    assert len(lines) == 400
    assert lines[17]["odd"] == "1"
    assert lines[17]["features"].split()[0] == "4"
    assert sum(line["odd"] == "1" for line in lines) < 20


def test_what_is_wrong_is_told_in_the_words_of_the_command_without_a_value(model, tmp_path, capsys):
    code, said = told(model, np.full((20, 3), 4711.0), tmp_path, capsys)
    assert code == 2
    assert not unnamed(said.err, "X", 3, 6)
    assert "4711" not in said.err
    assert monitor.main([model, str(tmp_path / "nowhere.npy")]) == 2
    assert not unnamed(capsys.readouterr().err, "DataError", "ROWS")
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",")
    assert monitor.main([model, str(tmp_path / "rows.csv"), "--label", "kind"]) == 2
    assert monitor.main([model, "rows.txt"]) == 2
    said = capsys.readouterr().err
    assert not unnamed(said, "--label", "ROWS", ".npy", ".csv")
    assert "node-config" not in said
