"""`flwr run` in Flower's simulation: the README's first command, and what a mistake in it says."""

import pytest

from fedpca_flwr.data import datasets
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from tests.deployment.lab import SimulationLab, as_text

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def flwr_run(tmp_path_factory):
    federation = "num-supernodes={} client-resources-num-cpus=1 init-args-num-cpus=1"
    with SimulationLab(tmp_path_factory.mktemp("link") / "flower", []) as link:
        yield lambda n, **config: link.run(as_text(config), "--federation-config", federation.format(n))


def test_digits_on_ten_clients(flwr_run, tmp_path):
    status, log = flwr_run(10, output=str(tmp_path / "model"))
    assert status == "finished:completed", log
    model, rows = PCAModel.load(tmp_path / "model"), datasets.load("digits").all_rows()
    assert principal_angles(model, pooled_pca(rows, 10)).max <= 1e-6
    assert len(model.log["parties"]) == 10
    for begins in ("sites                 10", "rows                  1797", "bytes up", "angle to pooled PCA"):
        assert begins in log
    assert "captured variance     73.8% of that of the pooled rows" in log
    assert str(tmp_path / "model.npz") in log
    assert model.to_sklearn().transform(rows).shape == (1797, 10)


def test_an_option_beside_the_method_is_refused_first(flwr_run):
    with pytest.raises(FedPCAError, match="Invalid run configuration"):
        flwr_run(2, **{"method": "sub-it", "block-size": 10})
