"""The figures of Grammenos et al. 2019 are made, whole, and go on where they stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.errors import DataError
from simulations.papers import adaptive_rank, streams
from simulations.papers.__main__ import main
from tests.refusals import refused


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A quick look."""
    folder, motes = tmp_path_factory.mktemp("figures"), tmp_path_factory.mktemp("motes")
    readings = np.random.default_rng(0).standard_normal((120, 12)) * np.arange(1, 13) + 100
    np.savetxt(motes / "q8calibLight.dat", readings)
    given = ["adaptive-rank", "--output", str(folder), "--shrink", "40", "--motes", str(motes)]
    assert main(given) == 0
    return folder, given


@pytest.mark.engine
def test_every_figure_is_there_and_in_the_report(quick):
    folder, _ = quick
    report = (folder / "report.md").read_text()
    for name in (*(f"figure{number}.png" for number in range(1, 9)), "table1.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG"), name
        assert f"]({name})" in report
    assert "Light" in report


@pytest.mark.engine
def test_an_interrupted_run_goes_on(quick, monkeypatch):
    undrawn = replace(adaptive_rank.PAPER, figures=lambda *_: {})  # they are drawn already
    monkeypatch.setattr(adaptive_rank, "PAPER", undrawn)
    folder, given = quick
    kept, lost = folder / "steps/synthetic-2.csv", folder / "steps/memory.csv"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    assert main(given) == 0
    assert kept.stat().st_mtime_ns == before
    assert lost.exists()


def test_missing_sensors_are_named(tmp_path):
    with refused(DataError, tmp_path, "q8calibHumid.dat"):
        adaptive_rank.steps(str(tmp_path))


def test_every_method_is_followed_to_the_last_partial_block():
    X = streams.synthetic(1, seed=0, d=30, n=120)
    rows = list(streams.followed(X, streams.methods(30)))
    assert {row["method"] for row in rows if row["rows"] == 120} == streams.methods(30).keys()
    spca = next(row for row in rows if row["rows"] == 120 and row["method"] == "SPCA")
    assert streams.error(X, streams.offline(X, 10)) <= spca["error"] < np.vdot(X, X) / 120


def test_a_change_of_regime_is_lost_on_a_fixed_rank_and_found_with_twice_as_many_directions():
    excess = {row["method"]: row["excess error"] for row in adaptive_rank.regimes("sorted", 10_000)}
    assert excess["SPCA, 10 tracked"] > 1.5
    assert excess["SPCA, 20 tracked"] < 1e-3
    assert excess["FD, ell = 20"] < 1e-3
