"""What the ServerApp does around a run: where the model goes, and what a simulation measures beside it."""

import errno
import logging
import os
import re
import tempfile

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr import server_app
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import load
from fedpca_flwr.errors import ConfigError, QuorumError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.output import Output
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.state import files
from simulations import run
from strategies import run_config_of
from tests.harness import finish, fit, proxy_of, server_of
from tests.refusals import refused, unnamed


def context(**run_config):
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config)


@pytest.mark.parametrize("place", ["file/model", "file/deeper/model"])
def test_a_place_that_cannot_be_written_to_is_named_before_any_work(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(server_app, "run_on", lambda *_: pytest.fail("there was work"))
    with refused(ConfigError, (tmp_path / place).parent):
        server_app.main(None, context(output=str(tmp_path / place)))
    assert "no model was written" in capsys.readouterr().out


def test_an_error_is_told_once_and_without_a_traceback(monkeypatch, capsys, caplog):
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "propagate", True)
    with pytest.raises(ConfigError) as caught:
        server_app.main(None, context(clients=-1))
    logger.error("ServerApp raised an exception", exc_info=caught.value)
    logger.error("Exit Code: 201\nAn unhandled exception occurred")
    logger.error("another", exc_info=ZeroDivisionError())
    assert capsys.readouterr().out.count("'clients'") == 1
    assert [record.message for record in caplog.records] == ["another"]


def test_a_simulation_says_what_the_components_capture(tmp_path, monkeypatch, capsys):
    """It knows the rows, and so what dp-pca's components hold of their variance where these are all noise."""
    bounds = {"release": "two-stage", "clip": 60.0, "centre-clip": 60.0}
    options = {"epsilon": 1.0, **bounds, "noise-seed": 1, "n-components": 3}
    rows = load("digits").all_rows()

    def without_flower(grid, strategy):
        strategy.quorum.simulated = True
        own = {key.replace("-", "_"): value for key, value in options.items()}
        return run("dp-pca", np.array_split(rows, 4), **own)

    monkeypatch.setattr(server_app, "run_on", without_flower)
    values = {"method": "dp-pca", "output": str(tmp_path / "model"), **options}
    server_app.main(None, context(**run_config_of(values)))
    model = PCAModel.load(tmp_path / "model")
    captured = np.var(rows @ model.components_.T, axis=0).sum() / np.var(rows, axis=0).sum()
    said = capsys.readouterr().out
    assert np.isnan(model.explained_variance_ratio_).all()
    assert "explained variance    unknown: no component stands out of the noise" in said
    assert f"captured variance     {captured:.4%} of that of the pooled rows" in said
    assert "nan" not in said


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Runs without Flower, with a home of their own."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    options = {"n_components": 3, "keep": "moments"}
    monkeypatch.setattr(server_app, "run_on", lambda *_: run("p-cov", [load("wine").all_rows()], **options))


def test_the_models_path_is_printed_first_and_last(quick, tmp_path, capsys):
    server_app.main(None, context(output=str(tmp_path / "model")))
    first, *_, last, moments = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line]
    assert str(tmp_path / "model.npz") in first
    assert last.split() == ["model", str(tmp_path / "model.npz")]
    assert moments.split() == ["moments", str(tmp_path / "model-moments.npz")]


def test_the_model_of_another_run_stays_unless_it_may_go(quick, tmp_path, monkeypatch):
    here = {"output": str(tmp_path / "model")}
    server_app.main(None, context(**here))
    before = (tmp_path / "model.npz").read_bytes()
    server_app.main(None, context(**here, overwrite=True))
    monkeypatch.setattr(server_app, "run_on", lambda *_: pytest.fail("there was work"))
    (tmp_path / "model.npz").write_bytes(before)
    with refused(ConfigError, "overwrite=true"):
        server_app.main(None, context(**here))
    (tmp_path / "model.npz").unlink()
    with refused(ConfigError, "model-moments.npz"):
        server_app.main(None, context(**here))


def test_the_faster_of_two_runs_at_the_same_time_keeps_its_model(quick, tmp_path, monkeypatch, capsys):
    model = run("p-cov", [load("wine").all_rows()], n_components=3)

    def other_was_faster(*_):
        (tmp_path / "model.npz").write_bytes(b"of another run")
        return model

    monkeypatch.setattr(server_app, "run_on", other_was_faster)
    server_app.main(None, context(output=str(tmp_path / "model")))
    assert (tmp_path / "model.npz").read_bytes() == b"of another run"
    assert PCAModel.load(tmp_path / "model-1.npz").n_components_ == 3
    assert f"model                 {tmp_path / 'model-1.npz'}\n" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["model", "results/wine"])
def test_a_relative_path_is_in_a_folder_of_the_run_wherever_the_server_was_started(
    quick, output, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    server_app.main(None, context(output=output))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert PCAModel.load(tmp_path / "home" / "fedpca-runs" / "1" / output).n_components_ == 3


def full(monkeypatch, folder):
    """Let nothing be written to a folder and those in it: its disk is full."""
    honest = files.written_whole

    def written(target, mode=0o666):
        if folder in target.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return honest(target, mode)

    monkeypatch.setattr(files, "written_whole", written)


@pytest.mark.parametrize("where", ["fedpca-runs", "fedpca-1-"])
def test_a_finished_run_is_saved_elsewhere_where_the_disk_is_full(quick, where, tmp_path, monkeypatch, capsys):
    """In the run's own folder, or where that is full too in a temporary one; path and cause are said."""
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    full(monkeypatch, tmp_path / "full")
    if where != "fedpca-runs":
        full(monkeypatch, tmp_path / "home")
    server_app.main(None, context(output=str(tmp_path / "full" / "model")))
    said = capsys.readouterr().out
    found = {name: path for name, path in re.findall(r"^  (model|moments) +(.*)$", said, re.M) if where in path}
    assert PCAModel.load(found["model"]).n_components_ == 3
    assert SecondMoments.load(found["moments"]).moments.count == 178
    assert not unnamed(said, tmp_path / "full" / "model.npz", os.strerror(errno.ENOSPC))


def test_a_result_that_no_folder_takes_is_named(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full(monkeypatch, tmp_path)
    with refused(ConfigError, tmp_path / "model.npz", os.strerror(errno.ENOSPC)):
        server_app.main(None, context(output=str(tmp_path / "model")))


def test_space_for_the_result_is_taken_before_the_first_question(tmp_path):
    server = server_of(
        "p-cov", [load("wine").all_rows()], n_components=3, keep="moments", output=str(tmp_path / "model")
    )
    strategy, given = server.strategy, []
    output = Output.of(strategy.config, 1)
    proxy_of(server, 0).fit = lambda *_, **__: given.append(os.fstat(output.reserved.fileno()).st_size)
    strategy.before_questions = lambda: output.reserve(strategy.model_bytes)
    with pytest.raises(QuorumError):
        finish(server)
    model = fit("p-cov", [load("wine").all_rows()], n_components=3, keep="moments")
    written, faults = output.save(model)
    assert not faults
    assert output.reserved.closed
    assert given[0] >= written.model.stat().st_size + written.moments.stat().st_size


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system takes no space beforehand")
def test_a_run_whose_result_has_no_place_is_refused(tmp_path):
    output = Output.of(RunConfig.parse(run_config_of({"method": "p-cov", "output": str(tmp_path / "model")})), 1)
    with refused(ConfigError, "'output'", tmp_path, f"{2**62:,}"):
        output.reserve(2**62)
