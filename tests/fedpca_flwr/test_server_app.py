"""What the ServerApp does around a run: where the model goes, and what a simulation measures beside it."""

import errno
import logging
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr import LocalGrid, run, server_app, site_app
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.datasets import load
from fedpca_flwr.errors import ConfigError, QuorumError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.output import Output
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.state import files
from fedpca_flwr.strategies import METHODS
from tests.harness import finish, proxy_of, server_of
from tests.refusals import refused, unnamed

WINE = [load("wine").all_rows()]


def main(grid=None, **run_config):
    values = {key.replace("_", "-"): str(value) if key == "output" else value for key, value in run_config.items()}
    server_app.main(grid, Context(1, 0, {}, RecordDict(), values))


def no_work(monkeypatch):
    monkeypatch.setattr(server_app, "run_on", lambda *_: pytest.fail("there was work"))


def test_an_output_that_is_not_writable_is_named_first(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    no_work(monkeypatch)
    ports = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT"  # of a SuperLink of one's own
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with refused(ConfigError, folder, *ports):
            main(output=folder / "model")
        assert "no model was written" in capsys.readouterr().out


def test_an_error_is_told_once_and_without_a_traceback(monkeypatch, capsys, caplog):
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "propagate", True)
    with pytest.raises(ConfigError) as caught:
        main(clients=-1)
    logger.error("ServerApp raised an exception", exc_info=caught.value)
    logger.error("Exit Code: 201\nAn unhandled exception occurred")
    logger.error("another", exc_info=ZeroDivisionError())
    assert capsys.readouterr().out.count("'clients'") == 1
    assert [record.message for record in caplog.records] == ["another"]


def simulated(parties, folder, **values):
    """Return the model of a run with both apps on a grid of this process."""
    config = METHODS.run_config({**values, "output": str(folder / "model")})
    main(LocalGrid(site_app.app, parties, config), **config)
    return PCAModel.load(folder / "model")


def test_a_simulation_says_what_the_components_capture(tmp_path, capsys):
    """The share is that of dp-pca's components too, where these are all noise."""
    private = {"epsilon": 1.0, "release": "joint", "clip": 60.0, "noise-seed": 1}
    model = simulated(4, tmp_path, **{"method": "dp-pca", "n-components": 3, "partition": "iid"}, **private)
    rows, said = load("digits").all_rows(), capsys.readouterr().out
    captured = np.var(rows @ model.components_.T, axis=0).sum() / np.var(rows, axis=0).sum()
    assert np.isnan(model.explained_variance_ratio_).all()
    assert "explained variance    unknown: no component stands out of the noise" in said
    assert f"captured variance     {100 * captured:.3g}% of that of the pooled rows" in said
    assert "nan" not in said


def test_a_simulation_of_columns_says_so_of_their_scores(tmp_path, capsys):
    columns = {"partition": "columns", "columns": "4 4 5", "n-components": 3, "scale": True}
    model = simulated(3, tmp_path, method="vertical", dataset="wine", **columns)
    assert principal_angles(model.scores_, pooled_pca(WINE[0], 3, scale=True).transform(WINE[0])).max() <= 1e-5
    told = ["sites                 3, with 4 to 5 features of the same rows", "angle to pooled PCA", "certified angle"]
    told.append("captured variance     66.5% of that of the pooled rows")
    said = capsys.readouterr().out
    assert not [text for text in told if text not in said]


def test_a_simulation_compares_with_what_it_should_or_with_nothing(tmp_path, capsys):
    """About zero; and residuals of covariates, or a kernel of the rows, have no PCA of the rows."""
    wine = {"method": "p-cov", "dataset": "wine", "n-components": 2, "overwrite": True}
    simulated(2, tmp_path, **wine, center=False)
    captured = np.square(WINE[0] @ np.linalg.svd(WINE[0])[2][:2].T).sum() / np.square(WINE[0]).sum()
    assert f"captured variance     {captured:.4%}" in capsys.readouterr().out
    for options in ({"reference": False}, {"adjust-for": "0"}, {"method": "vfedakpca", "partition": "columns"}):
        simulated(2, tmp_path, **wine | options)
        assert "pooled" not in capsys.readouterr().out


def test_a_wrong_value_is_named_and_nothing_is_written(tmp_path):
    with refused(ConfigError, "client 0", "'dataset'", "'digit'", "digits"):
        simulated(2, tmp_path, method="p-cov", dataset="digit")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Run without Flower, with a home of their own."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_app, "run_on", lambda *_: run("p-cov", WINE, n_components=3, keep="moments"))


def test_a_models_path_is_printed_first_and_last_and_stays_unless_it_may_go(quick, tmp_path, monkeypatch, capsys):
    main(output=tmp_path / "model")
    first, *_, last, moments = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line]
    assert str(tmp_path / "model.npz") in first
    assert last.split() == ["model", str(tmp_path / "model.npz")]
    assert moments.split() == ["moments", str(tmp_path / "model-moments.npz")]
    output, file = tmp_path / "model", tmp_path / "model.npz"
    before = file.read_bytes()
    main(output=output, overwrite=True)
    no_work(monkeypatch)
    file.write_bytes(before)
    with refused(ConfigError, "overwrite=true"):
        main(output=output)
    file.unlink()
    with refused(ConfigError, "model-moments.npz"):
        main(output=output)


def test_the_faster_of_two_runs_at_the_same_time_keeps_its_model(quick, tmp_path, monkeypatch, capsys):
    model = run("p-cov", WINE, n_components=3)
    monkeypatch.setattr(server_app, "run_on", lambda *_: (tmp_path / "model.npz").write_bytes(b"faster") and model)
    main(output=tmp_path / "model")
    assert (tmp_path / "model.npz").read_bytes() == b"faster"
    assert PCAModel.load(tmp_path / "model-1.npz").n_components_ == 3
    assert f"model                 {tmp_path / 'model-1.npz'}\n" in capsys.readouterr().out


def test_a_relative_path_is_in_the_folder_of_the_run(quick, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for output in ("model", "results/wine"):
        main(output=output)
        assert PCAModel.load(tmp_path / "home" / "fedpca-runs" / "1" / output).n_components_ == 3
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("where", ["fedpca-runs", "fedpca-1-", "nowhere"])
def test_a_full_disk_saves_the_model_elsewhere(quick, where, tmp_path, monkeypatch, capsys):
    """The run's own folder takes the files, or if that is full a temporary folder; the run prints path and cause."""
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    full = {"fedpca-runs": {"full"}, "fedpca-1-": {"full", "home"}, "nowhere": {"full", "home", "system"}}[where]
    output, cause = tmp_path / "full" / "model", os.strerror(errno.ENOSPC)
    honest = files.atomic_file

    def written(target, mode=0o666):
        if target.relative_to(tmp_path).parts[0] in full:
            raise OSError(errno.ENOSPC, cause)
        return honest(target, mode)

    monkeypatch.setattr(files, "atomic_file", written)
    if where == "nowhere":
        with refused(ConfigError, output.with_suffix(".npz"), cause):
            main(output=output)
        return
    main(output=output)
    said = capsys.readouterr().out
    found = {name: path for name, path in re.findall(r"^  (model|moments) +(.*)$", said, re.M) if where in path}
    assert PCAModel.load(found["model"]).n_components_ == 3
    assert SecondMoments.load(found["moments"]).moments.count == 178
    assert not unnamed(said, output.with_suffix(".npz"), cause)


def test_space_for_the_result_is_taken_before_the_first_question(tmp_path):
    server = server_of("p-cov", WINE, n_components=3, keep="moments", output=str(tmp_path / "model"))
    config = RunConfig.parse(METHODS.run_config({"method": "p-cov", "output": str(tmp_path / "model")}))
    strategy, given, output = server.strategy, [], Output.of(config, 1)
    if hasattr(os, "posix_fallocate"):  # else this system takes no space beforehand
        with refused(ConfigError, "'output'", tmp_path, f"{2**62:,}"):
            output.reserve(2**62)
    proxy_of(server, 0).fit = lambda *_, **__: given.append(os.fstat(output.reserved_file.fileno()).st_size)
    strategy.before_questions = lambda: output.reserve(strategy.model_bytes)
    with pytest.raises(QuorumError):
        finish(server)
    written, faults = output.save(run("p-cov", WINE, n_components=3, keep="moments"))
    assert not faults
    assert output.reserved_file.closed
    assert given[0] >= written.model.stat().st_size + written.moments.stat().st_size
