"""The figures of Grammenos et al. 2019, and the methods that they compare."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.eigen import projector_distance
from fedpca_flwr.maths.rows import pieces
from simulations.papers import adaptive_rank, streams
from simulations.papers.__main__ import main
from simulations.papers.streams import FrequentDirections, Grouse, PowerMethod, Spirit
from tests.families import rows
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
def test_an_interrupted_run_goes_on(quick, tmp_path, monkeypatch):
    undrawn = replace(adaptive_rank.PAPER, figures=lambda *_: {})  # they are drawn already
    monkeypatch.setattr(adaptive_rank, "PAPER", undrawn)
    folder, given = tmp_path / "again", [*quick[1]]
    shutil.copytree(quick[0], folder)
    given[given.index("--output") + 1] = str(folder)
    kept, lost = folder / "steps/synthetic-2.csv", folder / "steps/memory.csv"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    assert main(given) == 0
    assert kept.stat().st_mtime_ns == before
    assert lost.exists()


def test_every_method_is_followed_to_the_last_block_and_sensors_are_named(tmp_path):
    with refused(DataError, tmp_path, "q8calibHumid.dat"):
        adaptive_rank.steps(str(tmp_path))
    X = streams.synthetic(1, seed=0, d=30, n=120)
    rows = list(streams.followed(X, streams.methods(30)))
    assert {row["method"] for row in rows if row["rows"] == 120} == streams.methods(30).keys()
    spca = next(row for row in rows if row["rows"] == 120 and row["method"] == "SPCA")
    assert streams.error(X, streams.offline(X, 10)) <= spca["error"] < np.vdot(X, X) / 120


def fed(method, X, block=50):
    for part in pieces(X, block):
        method.update(part)
    return method


def low_rank(n, *, noise=0.0, seed=0):
    """Rows in four directions of 30, and those directions."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((30, 4)))
    return rng.standard_normal((n, 4)) @ basis.T + noise * rng.standard_normal((n, 30)), basis


@pytest.mark.parametrize("ell", [4, 8])
def test_frequent_directions_lose_no_more_than_their_bound(ell):
    X = rows(500)
    sketch = fed(FrequentDirections(12, 3, ell=ell), X)
    lost = np.linalg.eigvalsh(X.T @ X - sketch.sketch.T @ sketch.sketch)
    assert lost.min() >= -1e-9 * np.vdot(X, X)
    assert 0 < lost.max() <= sketch.shrunk * (1 + 1e-12)
    assert ell * sketch.shrunk <= np.vdot(X, X)


def test_frequent_directions_and_one_power_step_keep_a_low_rank_whole():
    X, basis = low_rank(300)
    assert projector_distance(fed(FrequentDirections(30, 4), X).vectors, basis) < 1e-10
    X, basis = low_rank(60)
    assert projector_distance(fed(PowerMethod(30, 4, rng=np.random.default_rng(1)), X).vectors, basis) < 1e-10
    X, _ = low_rank(59, noise=0.1)
    one, other = (fed(PowerMethod(30, 4, rng=np.random.default_rng(1)), part) for part in (X, X[:30]))
    assert one.vectors.tobytes() == other.vectors.tobytes()


@pytest.mark.parametrize("block", [1, 7, 50])
def test_the_results_do_not_depend_on_how_the_rows_arrive(block):
    X = rows(200)
    for make in (
        lambda: PowerMethod(12, 3, rng=np.random.default_rng(0)),
        lambda: FrequentDirections(12, 3),
        lambda: Grouse(12, 3, rng=np.random.default_rng(0)),
        lambda: Spirit(12),
    ):
        np.testing.assert_allclose(fed(make(), X, block).vectors, fed(make(), X, 200).vectors, atol=1e-10)


def test_grouse_stays_orthonormal_and_turns_to_the_rows():
    X, basis = low_rank(4000)
    method = Grouse(30, 4, rng=np.random.default_rng(2))
    before = projector_distance(method.vectors, basis)
    fed(method, X)
    np.testing.assert_allclose(method.vectors.T @ method.vectors, np.eye(4), atol=1e-10)
    assert projector_distance(method.vectors, basis) < 0.1 < before


def test_spirit_follows_a_hidden_variable_and_adds_directions_for_the_energy():
    scores, (direction, *_) = np.random.default_rng(3).standard_normal((2000, 1)), np.linalg.qr(np.ones((30, 1)))[0].T
    method = fed(Spirit(30, forgetting=0.96), scores * direction)
    assert (method.rank, method.largest) == (1, 3)
    assert abs(method.vectors[:, 0] @ direction) > 1 - 1e-6
    X, _ = low_rank(100)
    assert fed(Spirit(30, 1), X).largest > 1
    assert fed(Spirit(30, 1, low=0.0, high=2.0), X).largest == 1
