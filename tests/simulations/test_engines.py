"""Engines of `run`, what it says of what a person gives wrongly, and its number of Python calls on any machine."""

import logging
import sys
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import ray
from flwr import simulation
from pyarrow import table
from sklearn.datasets import load_digits

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, DisclosureError, FedPCAError, value_text
from fedpca_flwr.simulations import ray_engine
from fedpca_flwr.simulations.loopback import LoopbackProxy
from fedpca_flwr.simulations.python_words import python_words
from tests.families import cut, rows
from tests.refusals import refused


def test_a_late_answer_is_not_taken_for_the_next():
    """One thread works for all messages of a caller, until its caller ends."""

    def within(seconds, work):
        return LoopbackProxy("1", lambda: Mock(fit=lambda ins: work())).fit(None, seconds, None)

    go_on, finished, seen = threading.Event(), threading.Event(), []
    with refused(TimeoutError, "0.01"):
        within(0.01, lambda: (go_on.wait(), finished.set()))
    assert within(60, lambda: "next") == "next"
    go_on.set()
    assert finished.wait(60)
    assert within(60, lambda: "after") == "after"
    # Nor is a client that exits the end.
    with refused(RuntimeError, "SystemExit"):
        within(None, lambda: sys.exit(1))
    assert within(None, lambda: 2) == 2
    waiter = threading.Thread(target=lambda: seen.extend(within(60, threading.current_thread) for _ in "12345"))
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


X = rows(40, 3) + 4711.0
FRAME = table({name: X[:, j] for j, name in enumerate("abc")})
PARTIES = cut(rows(60, 5), 30, 30)

GIVEN = [
    (([X, X], "p-cov"), {}, ["method", "list", "'p-cov'"]),
    (("p-cov", [X, X]), {"n_components": X}, ["n_components", "ndarray"]),
    (("p-cov", [X, X]), {"engine": X}, ["engine", "ndarray", "loopback", "ray"]),
    (("p-cov", [X, X]), {"engine": b"ray"}, ["engine", "bytes", "loopback", "ray"]),
    (("p-cov", [X, X]), {"scale": X.tolist()}, ["'scale'", "list", "True", "False"]),
    (("sub-it", [X, X]), {"tolerance": FRAME}, ["'tolerance'", "Table", 0]),
    (("p-cov", [X, X]), {"clients": X}, ["'clients'", "ndarray", 2]),
    (("p-cov", [X, X]), {"scores": X}, ["'scores'", "ndarray", 2]),
    (("p-cov", [X, X]), {"output": "model"}, ["'output'", "run(...).save(path)"]),
    *((([], [X, X]), {}, ["method", "[]"]), (("pca", [X, X]), {}, ["'method'", "'pca'", "'p-cov'"])),
    (("vertical-kernel", [X, X]), {}, ["'method'", "'vertical-kernel'", "'vfedakpca'", "'vertical'"]),
    (("p-cov", PARTIES), {"n_components": 0}, ["'n_components'", 0, 1]),
    (("p-cov", PARTIES), {"scale": "x"}, ["'scale'", "'x'", "True", "False"]),
    (("sub-it", PARTIES), {"block_size": -1}, ["block_size", -1, 0]),
]


@pytest.mark.parametrize(("given", "options", "named"), GIVEN)
def test_errors_in_python_show_no_row(given, options, named):
    with refused(ConfigError, *named) as caught:
        run(*given, **{"n_components": 2, **options})
    assert not [word for word in ("471", "run-config", "node-config", "client ", "site") if word in str(caught.value)]


def test_words_numbers_and_keys_that_stand_alone_are_told():
    assert value_text(np.nan) == "nan"
    kept = "dp-pca in /home/block-size/client/site.csv and min-rows-x; outliers=sites, client_app, 'clients', 'my site'"
    assert python_words(kept) == kept
    sea = python_words("client 3 (at sea): this site's node-config 'data' is not that of the other clients")
    assert sea == "party 'at sea': this party's 'data' is not that of the other parties"
    key = python_words("client 0: run-config: 'step' is 1: secure-aggregation=true, 'may-show'")
    assert key == "party 0: 'step' is 1: secure_aggregation=True, 'may_show'"
    assert python_words("agree (run-config 'features')") == "agree ('features')"


def test_what_a_party_refuses_is_told_once_in_what_is_raised(capfd, monkeypatch):
    """A party's own log says it too: where nobody has set logging up, on the screen, in red in a notebook."""
    monkeypatch.setattr(logging.root, "handlers", [])
    with refused(DisclosureError, "'min_rows'", 10, 1, "party 'north'"):
        run("p-cov", {"north": rows(5), "south": rows(5)}, n_components=1)
    assert capfd.readouterr() == ("", "")


DIGITS = np.array_split(load_digits().data, 10)


def count_calls(parties, **options) -> int:
    """Count the calls of Python functions in all threads of a run that has run once before."""
    calls, options = [], {"method": "p-cov", "n_components": 10, "progress": False, **options}
    logging.disable(logging.INFO)  # whose lines other tests ask for
    run(parties=parties, **options)
    for of in (threading, sys):
        of.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        run(parties=parties, **options)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        logging.disable(logging.NOTSET)
    return len(calls)


MASKED = {"secure_aggregation": True, "bound": 20.0}


@pytest.mark.parametrize(("options", "most"), [({}, 13_700), (MASKED, 37_000), ({"method": "qr-pca"}, 13_800)])
def test_run_of_ten_parties_takes_few_calls(options, most):
    """A loop over rows, a parse of each message twice, or a check in each round would multiply them."""
    assert count_calls(DIGITS, **options) <= most


def test_one_more_party_and_notes_on_columns_take_few_calls():
    assert count_calls(DIGITS[:6]) - count_calls(DIGITS[:5]) <= 1_300
    # Columns with far values are looked at one by one: each costs hundreds of calls.
    rng = np.random.default_rng(0)
    parties = np.array_split(np.where(rng.random((2000, 400)) < 0.7, 0.0, rng.integers(1, 256, (2000, 400))), 5)
    assert count_calls(parties, n_components=5) <= 8_600
