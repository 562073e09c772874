"""Different columns of the same rows through loopback, Flower's simulation and a real deployment: the same bits."""

import numpy as np
import pytest

from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from simulations import run
from strategies import METHODS
from tests.deployment.lab import Lab, identified, told
from tests.families import rows

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

ARRAYS = ("scores_", "explained_variance_", "explained_variance_ratio_", "singular_values_")

DEPLOYED = ("vertical", {"solver": "gram", "scale": True})
"""A round takes seconds in a deployment."""

WAYS = [
    ("vertical", {"secure_aggregation": True, "bound": 1e3}),
    ("vfedpca", {"graph": "ring", "periods": 2}),
    pytest.param(DEPLOYED, marks=pytest.mark.nightly),
    pytest.param(("vertical-kernel", {"landmarks": 20}), marks=pytest.mark.nightly),
    pytest.param(("vfedakpca", {"periods": 2}), marks=pytest.mark.nightly),
]


def sites_columns():
    return np.split(rows(120) + np.arange(12), [6, 10], axis=1)


def same_bits(one, other):
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in ARRAYS)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    sites = []
    for i, columns in enumerate(sites_columns()):
        np.save(folder / f"site{i}.npy", columns)
        site = {"name": f"bank {i}", "partition-id": i, "num-partitions": 3, "split": "columns"}
        paths = {
            "data": folder / f"site{i}.npy",
            "scores": folder / f"scores{i}.npy",
            "loadings": folder / f"own{i}.npz",
        }
        sites.append({**site, **{key: str(path) for key, path in paths.items()}, "may-show": "inner products"})
    with Lab(folder / "flower", identified(folder, sites)) as running:
        yield running


def test_every_method_is_here():
    by_columns = {name for name, method in METHODS.items() if method.strategy.card.split == "columns"}
    assert {getattr(way, "values", [way])[0][0] for way in WAYS} | {"vertical-scores"} == by_columns


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_simulation_gives_the_bits_of_loopback(way):
    method, options = way
    one, other = (run(method, sites_columns(), n_components=3, engine=e, **options) for e in ("loopback", "ray"))
    assert same_bits(one, other)


def test_simulation_gives_the_bits_of_loopback_for_new_rows(tmp_path):
    own = [tmp_path / f"own{party}.npz" for party in range(3)]
    run("vertical", sites_columns(), n_components=3, engine="loopback", loadings=own)
    new, options = [columns[:40] for columns in sites_columns()], {"secure_aggregation": True, "bound": 1e3}
    one, other = (run("vertical-scores", new, engine=e, loadings=own, **options) for e in ("loopback", "ray"))
    assert same_bits(one, other)


def test_deployment_gives_the_bits_of_loopback_and_each_site_keeps_its_own(lab, tmp_path):
    method, options = DEPLOYED
    given = {**options, "n_components": 3, "output": str(tmp_path / "model")}
    status, log = lab.run(told(method, **given))
    assert status == "finished:completed", log
    deployed = PCAModel.load(tmp_path / "model")
    assert same_bits(deployed, run(method, sites_columns(), n_components=3, engine="loopback", **options))
    for site, columns in zip(lab.node_configs, sites_columns(), strict=True):
        np.testing.assert_allclose(np.load(site["scores"]), deployed.scores_, atol=1e-12)
        assert Loadings.load(site["loadings"]).components.shape == (3, columns.shape[1])
        np.save(site["scores"], np.empty(0))
    status, log = lab.run(f"method='vertical-scores' output='{tmp_path / 'again'}'")
    assert status == "finished:completed", log
    np.testing.assert_allclose(PCAModel.load(tmp_path / "again").scores_, deployed.scores_, atol=1e-10)
    np.testing.assert_allclose(np.load(lab.node_configs[1]["scores"]), deployed.scores_, atol=1e-10)
