"""Ray that is missing or does not start: one error, at once, which says why and what to do."""

from __future__ import annotations

import sys

import pytest
import ray
from flwr import simulation

from fedpca_flwr.errors import FedPCAError
from simulations import ray_engine, run
from tests.families import cut, rows
from tests.refusals import refused


@pytest.fixture
def nothing_begins(monkeypatch):
    monkeypatch.setattr(simulation, "run_simulation", lambda *_, **__: pytest.fail("the simulation has begun"))
    assert vars(ray_engine)["simulation"] is simulation


def go():
    return run("p-cov", cut(rows(60), 30, 30), n_components=2, engine="ray")


def test_ray_that_is_missing(nothing_begins, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused(FedPCAError, "'flwr[simulation]'", 'engine="loopback"'):
        go()


def test_ray_that_does_not_start(nothing_begins, monkeypatch):
    def fail(**_):
        raise RuntimeError("the object store has 64 MB")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test of this process may have started it
    monkeypatch.setattr(ray, "init", fail)
    with refused(FedPCAError, "RuntimeError", 64, "/dev/shm", 'engine="loopback"'):
        go()
