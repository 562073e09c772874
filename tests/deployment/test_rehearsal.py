"""A rehearsal by its command, which goes on without the site that it kills."""

import subprocess
import sys

import numpy as np
import pytest

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from tests.deployment.lab import ROOT, impatient

pytestmark = [pytest.mark.engine, pytest.mark.nightly]  # its steps by themselves: tests/site/node/test_rehearsal.py


def test_a_rehearsal_goes_on_without_the_site_that_it_kills(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", impatient(tmp_path))
    folder = tmp_path / "rehearsal"
    command = [sys.executable, "-m", "fedpca_flwr", "site", "rehearse", str(folder), "--dropout"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "secure aggregation    double masks, 3 of 4 parties" in done.stdout
    model = PCAModel.load(folder / "model")
    survivors = [np.loadtxt(folder / f"site{i}.csv", delimiter=",", skiprows=1) for i in range(3)]
    assert principal_angles(model, pooled_pca(np.vstack(survivors), 5)).max <= 1e-6
    assert [party["party"] for party in model.log["parties"]] == [0, 1, 2]
    assert len(list(folder.glob("scores?.csv"))) == 3
