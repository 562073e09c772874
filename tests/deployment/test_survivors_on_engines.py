"""A secure sum that goes on with the survivors, on Flower's simulation and on a deployment whose site is killed."""

import subprocess
import sys

import numpy as np
import pytest

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from simulations import ray_engine, run
from tests.deployment.lab import ROOT, impatient
from tests.families import cut, rows

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

OPTIONS = {"n_components": 5, "secure_aggregation": True, "bound": 100.0, "survivors": 3}


def hospitals():
    return cut(rows(400, 20) + np.arange(20), 180, 100, 70, 50)


def is_of_the_first_three(model):
    assert principal_angles(model, pooled_pca(np.vstack(hospitals()[:3]), 5)).max <= 1e-6
    assert model.n_samples_ == 350
    assert [party["party"] for party in model.log["parties"]] == [0, 1, 2]
    assert any(note.startswith("the PCA of 3 of 4 parties: client 3") for note in model.log["notes"])


def test_a_party_that_fails_in_the_simulation_is_dropped(monkeypatch):
    honest = ray_engine._client_fn

    def failing(*arguments):
        make = honest(*arguments)

        def client_fn(context):
            client = make(context)
            if context.node_config["partition-id"] == 3:
                fit = client.fit

                def until_the_sum(instructions):
                    if instructions.config["phase"] == "uncentred":
                        raise RuntimeError
                    return fit(instructions)

                client.fit = until_the_sum
            return client

        return client_fn

    monkeypatch.setattr(ray_engine, "_client_fn", failing)
    is_of_the_first_three(run("p-cov", hospitals(), engine="ray", **OPTIONS))


def test_a_rehearsal_goes_on_without_the_site_that_it_kills(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", impatient(tmp_path))
    command = [sys.executable, "-m", "fedpca_flwr.site", "rehearse", str(tmp_path / "rehearsal"), "--dropout"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "secure aggregation    double masks, 3 of 4 parties" in done.stdout
    model = PCAModel.load(tmp_path / "rehearsal" / "model")
    survivors = [np.loadtxt(tmp_path / "rehearsal" / f"site{i}.csv", delimiter=",", skiprows=1) for i in range(3)]
    assert principal_angles(model, pooled_pca(np.vstack(survivors), 5)).max <= 1e-6
    assert [party["party"] for party in model.log["parties"]] == [0, 1, 2]
    assert len(list((tmp_path / "rehearsal").glob("scores?.csv"))) == 3
