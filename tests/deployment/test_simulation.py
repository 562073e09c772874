"""Flower's simulation, in one Ray of this process: the bits of loopback in every way, and faults by name."""

import os
import sys

import numpy as np
import pytest
import ray

from fedpca_flwr import run
from fedpca_flwr.errors import QuorumError
from fedpca_flwr.flower import PCAClientApp
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations import ray_engine
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import cut, rows
from tests.harness import differences, own
from tests.refusals import refused

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
SECURE = {"secure_aggregation": True, "bound": 100.0}
WAYS = [("personalised", {"mu": 1.0, "solver": "stiefel"}), ("vfedpca", {"graph": "ring", "periods": 2})]
"""State at a party, messages of its own for each party, and from party to party; new rows have masks, below."""

SPLIT = {name: method.strategy.card.split for name, method in METHODS.items()}
SUMMED = [name for name, method in METHODS.items() if SPLIT[name] == "rows" and "masked" in transports_of(method)]
NIGHTLY = [
    *((name, {**SECURE, **({"tolerance": 1e-6} if name == "compressed" else {})}) for name in SUMMED),
    *(("p-cov", {"scale": True, **SECURE}), ("p-cov", {"outliers": "counts", "fourth_moments": True})),
    *(("p-cov", {"adjust_for": "1, 3", "harmonise": "variances"}), ("spca", {}), ("sapca", {"topology": "tree"})),
    *(("sub-it", {"warm_start": "svd", "wire": "float32"}), ("qr-pca", {"scale": True, "center": False})),
    *(("ap-stack", {"party_weights": "rows"}), ("compressed", {"codec": "low-rank"}), ("adaptive", {"target": 1.0})),
    *(("dsa", {}), ("fast-pca", {"iterations": 2}), ("em", {"model": "factors"}), ("vfedakpca", {"periods": 2})),
    *(("vertical", {**SECURE, "bound": 1e3}), ("vertical", {"solver": "gram", "scale": True})),
]
"""All methods, with options that differ in their arithmetic."""


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """One Ray for all simulations of this file, with one worker: every start of either takes seconds. It stays."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ray.init(num_cpus=1, runtime_env={"env_vars": path}, **ray_engine.BACKEND["init_args"])
    yield ray.get_runtime_context().get_job_id()
    ray.shutdown()


def hospitals(*sizes):
    return cut(rows(400, 20) + np.arange(20), *sizes)


def banks():
    return np.split(rows(120) + np.arange(12), [6, 10], axis=1)


def both(method, parties, **options):
    return [run(method, parties, engine=engine, **own(method) | options) for engine in ("loopback", "ray")]


@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(way, marks=pytest.mark.nightly) for way in NIGHTLY)], ids=str)
def test_simulation_gives_the_bits_of_loopback_and_leaves_ray(way, one_ray):
    method, options = way
    parties, k = (hospitals(250, 100, 50), 5) if SPLIT[method] == "rows" else (banks(), 3)
    assert not differences(*both(method, parties, n_components=k, **options))
    assert ray.is_initialized()
    assert ray.get_runtime_context().get_job_id() == one_ray


def test_simulation_gives_the_bits_of_loopback_for_new_rows(tmp_path):
    kept = [tmp_path / f"own{party}.npz" for party in range(3)]
    run("vertical", banks(), n_components=3, loadings=kept)
    new = [columns[:40] for columns in banks()]
    assert not differences(*both("vertical-scores", new, loadings=kept, **SECURE | {"bound": 1e3}))


@pytest.mark.nightly  # by day a blind run on a SuperLink: test_links.py
def test_the_workers_of_a_blind_simulation_have_the_model():
    """A worker has the stages of methods, too: without these it would send sums that open."""
    parties = hospitals(250, 100, 50)
    blind = run("p-cov", parties, engine="ray", n_components=3, blind=True, **SECURE)
    assert principal_angles(blind, run("p-cov", parties, n_components=3)).max <= 1e-8


def test_every_method_is_simulated():
    assert {method for method, _ in WAYS + NIGHTLY} | {"vertical-scores"} == set(METHODS)


def instead_of(monkeypatch, party, fit):
    """Let a simulated party answer ``fit(its own fit, arrays, config)``."""

    def broken(make):
        def make_client(pca_context, context):
            client = make(pca_context, context)
            if context.node_config["partition-id"] == party:
                answers = client.fit
                client.fit = lambda *question: fit(answers, *question)
            return client

        return PCAClientApp(make_client)

    monkeypatch.setattr(ray_engine, "PCAClientApp", broken)


def test_a_party_that_fails_is_dropped_by_survivors(monkeypatch):
    def until_the_sum(answers, arrays, config):
        if config["phase"] == "moments":
            raise RuntimeError
        return answers(arrays, config)

    instead_of(monkeypatch, 3, until_the_sum)
    parties = hospitals(180, 100, 70, 50)
    model = run("p-cov", parties, engine="ray", n_components=5, survivors=3, **SECURE)
    assert principal_angles(model, pooled_pca(np.vstack(parties[:3]), 5)).max <= 1e-6
    assert (model.n_samples_, [party["party"] for party in model.log["parties"]]) == (350, [0, 1, 2])
    assert any(note.startswith("the PCA of 3 of 4 parties: client 3") for note in model.log["notes"])


def test_a_process_that_dies_in_the_simulation_is_named(monkeypatch):
    instead_of(monkeypatch, 1, lambda answers, *question: os._exit(1))
    with refused(QuorumError, 3, "party 1", match="process"):
        run("p-cov", hospitals(250, 100, 50), n_components=2, engine="ray")
