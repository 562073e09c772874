"""Benchmarks run on small data, and what they quote is what the notes print."""

from __future__ import annotations

import json

import pytest

from simulations import compare
from simulations.benchmarks import published
from simulations.benchmarks import published_numbers as note

DIGITS = ["--dataset", "digits"]


def cells(out: str) -> list[list[str]]:
    """The rows of the last Markdown table, without its heads."""
    table = out.rstrip().split("\n\n")[-1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_published_numbers_are_those_of_the_notes():
    assert note.ANGLES["mnist"]["Dirichlet 0.1"]["ap-stack"] == 39.72
    assert note.ANGLES["mnist"]["shards"]["ap-cov"] == 1.04
    assert note.ANGLES["images"]["Dirichlet 0.5"]["qr-pca"] == 1.77
    assert note.ACCURACY["mnist"]["Dirichlet 0.1"]["ap-stack"] == 0.9469
    assert note.ACCURACY["images"]["IID"]["pooled"] == 0.3954
    assert note.PRIVACY["mnist"][5.0] == (60.0, 0.9487)
    assert note.COMPRESSION["mnist"][2] == ("codec=low-rank rank=100", 8, 1.5, 0.9569)
    assert note.ADAPTIVE["mnist"]["shards"] == (0.74, "p-cov", 0.01)
    assert note.STREAMING_REAL == {"mnist": 0.002}


def test_every_published_cell_has_a_run_beside_it():
    for known in note.ANGLES.values():
        assert set(known) == set(published.PARTITIONS)
        assert all(set(line) == set(note.METHODS) for line in known.values())
    assert published.PUBLISHED["mnist"] == list(published.TABLES)


def test_published_angles_have_three_lines_a_partition(tmp_path, capsys):
    assert published.main([*DIGITS, "--output", str(tmp_path), "--table", "angles"]) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[1] for row in rows] == ["ours, mean", "ours, max", "published, mean"] * 4
    ours = [[float(cell) for cell in row[2:]] for row in rows if row[1] == "ours, max"]
    assert all(max(line[0], line[1], line[3]) < 1e-6 < min(line[2], line[4]) for line in ours)


def test_published_tables_are_made_of_runs_that_are_kept(tmp_path, capsys, monkeypatch):
    wanted = [*DIGITS, "--output", str(tmp_path), "--table", "compression", "streaming"]
    assert published.main(wanted) == 0
    first = capsys.readouterr().out
    assert len([json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]) == 5
    monkeypatch.setattr(compare, "run", None)
    monkeypatch.setattr(published, "run", None)
    assert published.main(wanted) == 0
    assert capsys.readouterr().out == first


def test_streaming_is_that_of_the_rows_that_are_there(tmp_path, capsys):
    assert published.main([*DIGITS, "--output", str(tmp_path), "--table", "streaming"]) == 0
    rows = cells(capsys.readouterr().out)
    assert [row[0] for row in rows] == list(note.STREAMING)
    assert max(float(row[2]) for row in rows) < 1e-9


def test_a_table_without_its_setting_is_named(tmp_path, capsys):
    assert published.main(["--dataset", "images", "--output", str(tmp_path), "--table", "privacy"]) == 2
    assert "'privacy' has no clips for images" in capsys.readouterr().err


@pytest.mark.parametrize("table", sorted(published.TABLES.keys() - {"angles", "compression", "streaming"}))
def test_every_table_prints_on_data_that_the_notes_do_not_have(table, tmp_path, capsys):
    assert published.main([*DIGITS, "--output", str(tmp_path), "--table", table]) == 0
    assert len(cells(capsys.readouterr().out)) >= 4
