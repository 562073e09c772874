"""The design notes and the graphs on digits: what the steps find is what they say, and the figures are drawn of it."""

import pytest

from simulations.papers import decentralised, notes
from simulations.papers.experiment import run_steps

DIGITS = {"dataset": "digits", "data_root": "."}
SKEWED = {**DIGITS, "partition": "Dirichlet 0.1"}


def test_streaming_and_five_clients_are_exact_and_the_rule_takes_the_average_for_parties_that_are_alike():
    rows = list(notes.streamed(**DIGITS))
    assert [row["operation"] for row in rows] == ["initial fit", "add a client", "remove a client", "update a client"]
    assert max(row["max"] for row in rows) < 1e-9
    exact, average = notes.compared(**SKEWED, methods=["p-cov", "ap-cov"], clients=[5])
    assert (exact["clients"], exact["rounds"]) == (5, 1)
    assert exact["max"] < 1e-9 < 0.01 < average["mean"] < average["max"]
    chosen = {part: next(iter(notes.rule(**{**SKEWED, "partition": part})))["chosen"] for part in ("IID", "shards")}
    assert chosen == {"IID": "ap-cov", "shards": "p-cov"}


def test_crosses_of_an_exact_method_stand_in_their_circles_and_are_drawn(tmp_path):
    steps = [step for step in notes.steps() if step.name == "overlay-digits-Dirichlet-0.1"]
    results = run_steps(steps, tmp_path / "steps")
    apart = dict.fromkeys(notes.DRAWN, 0.0)
    for row in results[steps[0].name]:
        far = max(abs(row["x"] - row["pooled x"]), abs(row["y"] - row["pooled y"]))
        apart[row["method"]] = max(apart[row["method"]], far)
    assert apart["p-cov"] < 1e-9 < 0.01 < apart["ap-cov"]
    sections = notes.figures(results, tmp_path)
    assert "| digits-Dirichlet-0.1 |" in next(iter(sections.values()))
    for kind in ("overlay", "grid"):
        assert (tmp_path / f"{kind}-digits-Dirichlet-0.1.png").read_bytes().startswith(b"\x89PNG")


def test_graphs_are_drawn_by_rounds_and_bytes_beside_one_round(tmp_path, monkeypatch):
    monkeypatch.setattr(decentralised, "GRAPHS", ("complete",))
    results = run_steps([step for step in decentralised.steps([2, 4]) if step.name.endswith("IID")], tmp_path / "steps")
    few, more = results["fast-pca-complete-IID"]
    assert more["MB up"] > few["MB up"] > results["dsa-complete-IID"][0]["MB up"]
    assert (more["rounds"] - few["rounds"], results["p-cov-IID"][0]["angle"]) == (2, pytest.approx(0, abs=1e-9))
    assert "decentralised.png" in decentralised.figures(results, tmp_path)["Error by rounds and by bytes"]
    assert (tmp_path / "decentralised.png").read_bytes().startswith(b"\x89PNG")
