"""Engines: the deadline of a party in loopback, and Ray that is missing or does not start."""

import sys
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import ray
from flwr import simulation

from fedpca_flwr import run
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations import ray_engine
from fedpca_flwr.simulations.loopback import _with_deadline
from tests.families import cut, rows
from tests.refusals import refused


def test_a_late_answer_is_not_taken_for_the_next():
    go_on, finished = threading.Event(), threading.Event()

    def late():
        go_on.wait()
        finished.set()
        return "late"

    with refused(TimeoutError, "0.01"):
        _with_deadline(0.01, late)
    assert _with_deadline(60, lambda: "next") == "next"
    go_on.set()
    assert finished.wait(60)
    assert _with_deadline(60, lambda: "after") == "after"
    # Nor is a client that exits the end.
    with refused(RuntimeError, "SystemExit"):
        _with_deadline(None, lambda: sys.exit(1))
    assert _with_deadline(None, lambda: 2) == 2


def test_one_thread_works_for_all_messages():
    seen = []

    def waiting():
        seen.extend(_with_deadline(60, threading.current_thread) for _ in range(5))

    waiter = threading.Thread(target=waiting)
    waiter.start()
    waiter.join(60)
    assert len(set(seen)) == 1
    seen[0].join(60)
    assert not seen[0].is_alive()


def test_files_of_the_parties_may_be_at_home(tmp_path, monkeypatch):
    for name in ("HOME", "USERPROFILE"):  # of POSIX, and of Windows
        monkeypatch.setenv(name, str(tmp_path))
    run("vertical", np.split(rows(40, 6), 2, axis=1), n_components=2, scores=["~/a.npy", "~/b.npy"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy"]


@pytest.mark.parametrize("missing", [True, False])
def test_ray_that_is_missing_or_does_not_start(missing, monkeypatch):
    monkeypatch.setattr(simulation, "run_simulation", lambda *_, **__: pytest.fail("the simulation has begun"))
    assert vars(ray_engine)["simulation"] is simulation
    if missing:
        monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test of this process may have started it
    monkeypatch.setattr(ray, "init", Mock(side_effect=RuntimeError("the object store has 64 MB")))
    named = ["'flwr[simulation]'"] if missing else ["RuntimeError", 64, "/dev/shm"]
    with refused(FedPCAError, *named, 'engine="loopback"'):
        run("p-cov", cut(rows(60), 30, 30), n_components=2, engine="ray")
