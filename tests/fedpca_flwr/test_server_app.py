"""What the ServerApp does around a run: where the model goes, and what a simulation measures beside it."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr import server_app
from fedpca_flwr.data import load
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model import PCAModel
from simulations import run
from strategies import run_config_of


def context(**run_config):
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config)


@pytest.mark.parametrize("place", ["file/model", "file/deeper/model"])
def test_a_place_that_cannot_be_written_to_is_named_before_any_work(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(server_app, "run_on", lambda *_: pytest.fail("there was work"))
    with pytest.raises(ConfigError, match="cannot be used"):
        server_app.main(None, context(output=str(tmp_path / place)))
    assert "no model was written" in capsys.readouterr().out


def test_a_simulation_says_what_the_components_capture(tmp_path, monkeypatch, capsys):
    """The noise of dp-pca counts as explained variance; what the components hold of the rows' own is less."""
    bounds = {"release": "two-stage", "clip": 60.0, "centre-clip": 60.0}
    options = {"epsilon": 1.0, **bounds, "noise-seed": 1, "n-components": 3}
    rows = load("digits").all_rows()

    def without_flower(grid, strategy):
        strategy.quorum.simulated = True
        own = {key.replace("-", "_"): value for key, value in options.items()}
        return run("dp-pca", np.array_split(rows, 4), engine="loopback", **own)

    monkeypatch.setattr(server_app, "run_on", without_flower)
    values = {"method": "dp-pca", "output": str(tmp_path / "model"), **options}
    server_app.main(None, context(**run_config_of(values)))
    model = PCAModel.load(tmp_path / "model")
    captured = np.var(rows @ model.components_.T, axis=0).sum() / np.var(rows, axis=0).sum()
    assert captured < 0.9 * model.explained_variance_ratio_.sum()
    assert f"captured variance     {captured:.4%} of that of the pooled rows" in capsys.readouterr().out
