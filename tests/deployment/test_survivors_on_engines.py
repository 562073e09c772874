"""A secure sum that goes on with the survivors, on Flower's simulation and on a deployment whose site is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedpca_flwr.metrics import principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.reference import pooled_pca
from simulations import ray_engine, run
from tests.deployment.lab import Lab, identified
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


def was_asked(journal):
    """Whether a site has noted a question."""
    file = journal / "site.sqlite"
    if not file.exists():
        return False
    with contextlib.closing(sqlite3.connect(file)) as database, contextlib.suppress(sqlite3.Error):
        return bool(database.execute("SELECT 1 FROM event WHERE kind = 'question'").fetchone())
    return False


def test_a_site_that_is_killed_is_dropped_and_everyone_else_goes_on(tmp_path):
    sites = []
    for i, X in enumerate(hospitals()):
        np.save(tmp_path / f"site{i}.npy", X)
        site = {"name": f"hospital {i}", "partition-id": i, "num-partitions": 4}
        paths = {"data": f"site{i}.npy", "journal": f"journal{i}"}
        sites.append({**site, **{key: str(tmp_path / path) for key, path in paths.items()}})
    config = "n-components=5 secure-aggregation=true bound=100.0 survivors=3"
    with Lab(tmp_path / "flower", identified(tmp_path, sites)) as lab, ThreadPoolExecutor(1) as pool:
        running = pool.submit(lab.run, f"{config} output={json.dumps(str(tmp_path / 'model'))}")
        while not running.done() and not was_asked(tmp_path / "journal3"):
            time.sleep(0.1)
        os.killpg(lab.processes.pop("node3").pid, signal.SIGKILL)  # still registered: its silence costs a minute
        status, log = running.result()
    assert status == "finished:completed", log
    is_of_the_first_three(PCAModel.load(tmp_path / "model"))
    assert "secure aggregation    double masks, 3 of 4 parties" in log
