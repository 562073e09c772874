"""The same rows through loopback, Flower's simulation and a real deployment: the same bits, and faults by name."""

import json
import os
import re
from typing import Any

import numpy as np
import pytest

from fedpca_flwr.errors import QuorumError
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from simulations import ray_engine, run
from strategies import METHODS, transports_of
from tests.deployment.lab import Lab, identified, told
from tests.families import cut, rows
from tests.harness import own
from tests.refusals import refused

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

ARRAYS = ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_")


SIMULATED = [
    ("sub-it", {"warm_start": "svd", "wire": "float32"}),
    ("personalised", {"mu": 1.0, "solver": "stiefel"}),
    ("sapca", {"topology": "tree"}),
    *(
        pytest.param(way, marks=pytest.mark.nightly)
        for way in [
            ("p-cov", {"outliers": "counts", "fourth_moments": True}),
            ("p-cov", {"adjust_for": "1, 3", "harmonise": "variances"}),
            ("qr-pca", {"scale": True, "center": False}),
            ("ap-stack", {"party_weights": "rows"}),
            ("compressed", {"codec": "combined"}),
            ("adaptive", {"target": 1.0}),
            ("dsa", {}),
            ("fast-pca", {"iterations": 2}),
            ("em", {"model": "factors"}),
        ]
    ),
]
"""State at a party, messages of its own for each party, and from party to party; at night all methods, with options
that differ in their arithmetic. Those that can be summed meet it in secure sums."""


def hospitals():
    return cut(rows(400, 20) + np.arange(20), 250, 100, 50)


def write_csv(path, X):
    header = ",".join(f"marker {j}" for j in range(X.shape[1]))
    np.savetxt(path, X, delimiter=",", header=header, comments="", fmt="%.17g")


def sites_in(folder, **own):
    """The node-configs of sites whose files are made here."""
    sites = []
    for i, X in enumerate(hospitals()):
        write_csv(folder / f"site{i}.csv", X)
        sites.append(
            {
                "name": f"hospital {i}",
                "partition-id": i,
                "num-partitions": 3,
                "data": str(folder / f"site{i}.csv"),
                "scores": str(folder / f"scores{i}.csv"),
                "loadings": str(folder / f"own{i}.npz"),
                "journal": str(folder / f"journal{i}"),
                "min-rows": 40,
                **own,
            }
        )
    return sites


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    sites = sites_in(folder, **{"allowed-methods": " ".join(name for name in METHODS if name != "ap-cov")})
    with Lab(folder / "flower", identified(folder, sites)) as running:
        yield running


def same_bits(one, other):
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in ARRAYS)


SECURE = {"secure_aggregation": True, "bound": 100.0}
SUMMABLE = [
    name
    for name, method in METHODS.items()
    if "masked" in transports_of(method) and method.strategy.card.split == "rows"
]
NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in SUMMABLE if name not in {"p-cov", "streaming"}]


@pytest.mark.parametrize("method", ["p-cov", "streaming", *NIGHTLY])  # and state at the server
def test_simulation_gives_the_bits_of_loopback_with_secure_aggregation(method):
    options = own(method) or ({"tolerance": 1e-6} if method == "compressed" else {"scale": True})
    one = run(method, hospitals(), n_components=5, engine="loopback", **options, **SECURE)
    other = run(method, hospitals(), n_components=5, engine="ray", **options, **SECURE)
    assert same_bits(one, other)


def test_deployment_gives_the_bits_of_loopback_with_secure_aggregation(lab, tmp_path):
    output = json.dumps(str(tmp_path / "model"))
    status, log = lab.run(f"method='p-cov' n-components=5 secure-aggregation=true bound=100.0 output={output}")
    assert status == "finished:completed", log
    deployed = PCAModel.load(tmp_path / "model")
    local = run("p-cov", hospitals(), n_components=5, engine="loopback", **SECURE)
    assert same_bits(deployed, local)
    assert principal_angles(deployed, pooled_pca(np.vstack(hospitals()), 5)).max <= 1e-6
    assert "secure aggregation    pairwise masks, 3 parties" in log
    for site, X in zip(lab.node_configs, hospitals(), strict=True):
        scores = np.loadtxt(site["scores"], delimiter=",", skiprows=1)
        np.testing.assert_allclose(scores, deployed.transform(X), atol=1e-12)


@pytest.mark.parametrize("way", SIMULATED, ids=str)
def test_simulation_gives_the_bits_of_loopback(way):
    method, options = way
    one = run(method, hospitals(), n_components=5, engine="loopback", **{**own(method), **options})
    other = run(method, hospitals(), n_components=5, engine="ray", **{**own(method), **options})
    assert same_bits(one, other)


def test_every_method_meets_both_engines():
    by_rows = {name for name, method in METHODS.items() if method.strategy.card.split == "rows"}
    simulated = {getattr(way, "values", [way])[0][0] for way in SIMULATED}
    assert {*SUMMABLE, *simulated} == by_rows


def test_deployment_gives_the_bits_of_loopback_and_each_site_keeps_its_scores(lab, tmp_path):
    """Of a method with state at the parties, and messages of its own for each of them."""
    options = {"mu": 1.0, "iterations": 1, "n_components": 5}
    status, log = lab.run(told("personalised", **options, output=str(tmp_path / "model")))
    assert status == "finished:completed", log
    deployed = PCAModel.load(tmp_path / "model")
    assert same_bits(deployed, run("personalised", hospitals(), engine="loopback", **options))
    assert [party["name"] for party in deployed.log["parties"]] == ["hospital 0", "hospital 1", "hospital 2"]
    assert "Federated PCA" in log
    for site, X in zip(lab.node_configs, hospitals(), strict=True):
        scores = np.loadtxt(site["scores"], delimiter=",", skiprows=1)
        assert scores.shape == (len(X), 5)
        np.testing.assert_allclose(scores, Loadings.load(site["loadings"]).part_of_scores(X), atol=1e-12)


def test_a_site_that_refuses_is_named_on_both_sides(lab, tmp_path):
    status, log = lab.run(f"method='ap-cov' output={json.dumps(str(tmp_path / 'model'))}")
    assert status == "finished:failed"
    refusal = "this site does not allow the method 'ap-cov'"
    named = re.search(rf"DisclosureError: client (\d) \(hospital \1\): {refusal}", log)  # the first one that was asked
    assert named, log
    assert refusal in lab.log_of(f"node{named[1]}")
    assert not list(tmp_path.iterdir())


def test_a_site_that_is_offline_is_an_error_within_the_deadline(lab, tmp_path):
    node = lab.processes.pop("node2")
    node.terminate()
    status, log = lab.run(f"join-deadline=25.0 output={json.dumps(str(tmp_path / 'model'))}")
    lab.spawn("node2", node.args)
    assert status == "finished:failed"
    assert "QuorumError: 2 of 3 clients joined within join-deadline = 25 s" in log
    assert not list(tmp_path.iterdir())


def test_a_process_that_dies_in_the_simulation_is_named(monkeypatch):
    honest = ray_engine._client_fn

    def deadly(*arguments):
        make = honest(*arguments)

        def client_fn(context):
            client: Any = make(context)
            if context.node_config["partition-id"] == 1:
                client.fit = lambda instructions: os._exit(1)
            return client

        return client_fn

    monkeypatch.setattr(ray_engine, "_client_fn", deadly)
    with refused(QuorumError, 3, "client 1", match="process"):
        run("p-cov", hospitals(), n_components=2, engine="ray")
