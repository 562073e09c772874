"""Comparisons: every combination once, resumable, failures shown."""

from __future__ import annotations

import json

import pytest

from simulations import compare as module
from simulations.compare import compare, main, table


def test_every_combination_is_one_record():
    records = compare(
        ["p-cov", "sub-it block-size=4"], partitions=["iid", "dirichlet"], alphas=[0.1, 0.5], clients=[3, 5]
    )
    assert len(records) == 2 * 3 * 2
    assert {record["alpha"] for record in records if record["partition"] == "iid"} == {None}
    assert max(record["max angle"] for record in records) < 1e-6
    assert records[1]["options"] == {"block-size": 4}


def test_a_comparison_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    target = tmp_path / "runs.jsonl"
    first = compare(["p-cov", "ap-cov"], clients=[4], output=tmp_path)
    lines = target.read_text().splitlines()
    target.write_text(lines[0] + "\n" + lines[1][:50])
    called = []
    honest = module.run
    monkeypatch.setattr(
        module, "run", lambda method, *rest, **more: called.append(method) or honest(method, *rest, **more)
    )
    second = compare(["p-cov", "ap-cov"], clients=[4], output=tmp_path)
    assert called == ["ap-cov"]
    assert [r["max angle"] for r in first] == [r["max angle"] for r in second]
    assert len([json.loads(line) for line in target.read_text().splitlines()]) == 2


def test_another_file_is_not_overwritten(tmp_path):
    other = tmp_path / "runs.jsonl"
    other.write_text("dear diary\n")
    assert main(["--methods", "p-cov", "--output", str(tmp_path)]) == 2
    assert other.read_text() == "dear diary\n"


def test_a_method_that_fails_is_a_row_and_a_status(capsys):
    assert main(["--methods", "p-cov", "qr-pca rank=2", "--clients", "3"]) == 1
    out = capsys.readouterr().out
    assert "| p-cov |" in out
    assert "ConfigError: run-config: 'rank' is 2" in out


@pytest.mark.parametrize("word", ["block-size", "=3", "block-size="])
def test_a_word_that_is_no_option_is_named(word, capsys):
    assert main(["--methods", f"sub-it {word}"]) == 2
    assert f"'{word}' is not an option, expected key=value" in capsys.readouterr().err


def test_the_table_shows_options_and_accuracy():
    records = compare(["compressed codec=quantise bits=12"], clients=[3], engine="loopback")
    assert "compressed codec=quantise bits=12" in table(records)
