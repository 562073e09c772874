"""A simulation on a Ray cluster of several nodes, which somebody else has started."""

import pytest
import ray
from ray.cluster_utils import Cluster

from fedpca_flwr import run
from fedpca_flwr.flower import PCAClientApp
from fedpca_flwr.simulations import ray_engine
from tests.families import cut, rows
from tests.harness import differences

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster(monkeypatch):
    """Return a head and a worker of one core each, which Ray finds by its environment."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.usefixtures("cluster")
def test_a_cluster_gives_the_bits_of_loopback(tmp_path, monkeypatch):
    def noted(make):
        def make_client(*contexts):
            (tmp_path / ray.get_runtime_context().get_node_id()).touch()
            return make(*contexts)

        return PCAClientApp(make_client)

    monkeypatch.setattr(ray_engine, "PCAClientApp", noted)
    parties = cut(rows(400), 100, 100, 100, 100)
    assert not differences(*(run("p-cov", parties, n_components=3, engine=engine) for engine in ("ray", "loopback")))
    assert len(list(tmp_path.iterdir())) == 2
