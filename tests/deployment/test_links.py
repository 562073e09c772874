"""SuperLinks of their own: `flwr run` in Flower's simulation, and a blind run, of which a database holds nothing."""

import numpy as np
import pytest

from fedpca_flwr.data import datasets
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.site.node.deployment import make_site_configs, write_site_files
from tests.deployment.lab import Lab, SimulationLab, as_text, told
from tests.families import cut, rows

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


class RecordingLab(Lab):
    """A lab whose SuperLink keeps its messages in a file."""

    def spawn(self, name, command):
        if name == "superlink" and "--database" not in command:
            self.link_command = command = [*command, "--database", "state.db"]
        super().spawn(name, command)


def test_three_sites_have_a_model_that_a_restarted_link_does_not_have(tmp_path):
    hospitals, names = cut(rows(300, 8) + np.arange(8), 120, 100, 80), [f"marker_{j}" for j in range(8)]
    nodes = make_site_configs(tmp_path, "hospital", write_site_files(tmp_path, names, hospitals))
    folders = [tmp_path / f"models{i}" for i in range(3)]
    for node, folder in zip(nodes, folders, strict=True):
        node |= {"min-rows": 40, "secure-only": True, "blind": "only", "model": str(folder)}
    lab = RecordingLab(tmp_path / "flower", nodes)
    with lab:
        lab.processes["superlink"].terminate()
        lab.processes["superlink"].wait()
        lab.spawn("superlink", lab.link_command)  # it knows the sites' keys from its database
        lab.wait_until(lab.all_nodes_online, "the sites to be online again")
        secure = {"secure_aggregation": True, "bound": 100.0, "n_components": 3}
        status, log = lab.run(told("p-cov", **secure, blind=True, output=str(tmp_path / "server")))
        assert status == "finished:completed", log
        database = b"".join(file.read_bytes() for file in sorted(lab.folder.glob("state.db*")))  # with deleted messages
    models = [PCAModel.load(next(folder.iterdir())) for folder in folders]
    for model in models:
        assert principal_angles(model, models[0]).max <= 1e-12
        assert principal_angles(model, pooled_pca(np.vstack(hospitals), 3)).max <= 1e-8
        assert list(model.feature_names_in_) == names
    server = PCAModel.load(tmp_path / "server")
    assert server.components_.size == 0
    assert server.explained_variance_ratio_.tobytes() in database  # the bytes that are looked for would be found
    kept = np.concatenate([models[0].components_.ravel(), models[0].mean_, models[0].explained_variance_])
    assert not [number for number in (*kept, *-kept) if number.tobytes() in database]
