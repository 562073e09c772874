"""A blind run on a real SuperLink: three sites write the model, and the SuperLink's database holds nothing of it."""

from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.site.node.deployment import make_site_configs, write_site_files
from tests.deployment.lab import Lab, told
from tests.families import cut, rows

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
HOSPITALS = cut(rows(300, 8) + np.arange(8), 120, 100, 80)
NAMES = [f"marker_{j}" for j in range(8)]


class RecordingLab(Lab):
    def spawn(self, name, command):
        if name == "superlink" and "--database" not in command:
            self.link_command = command = [*command, "--database", "state.db"]
        super().spawn(name, command)

    def restart_link(self):
        """End the SuperLink and start it with the same database, from which it knows the sites' keys."""
        self.processes["superlink"].terminate()
        self.processes["superlink"].wait()
        self.spawn("superlink", self.link_command)
        self.wait_until(self.all_nodes_online, "the sites to be online again")


def written(folder: Path) -> bytes:
    """Return all bytes of the database, with those of deleted messages."""
    return b"".join(file.read_bytes() for file in sorted(folder.glob("state.db*")))


def test_three_sites_have_a_model_that_a_restarted_link_does_not_have(tmp_path):
    nodes = make_site_configs(tmp_path, "hospital", write_site_files(tmp_path, NAMES, HOSPITALS))
    folders = [tmp_path / f"models{i}" for i in range(3)]
    for node, folder in zip(nodes, folders, strict=True):
        node |= {"min-rows": 40, "secure-only": True, "blind": "only", "model": str(folder)}
    lab = RecordingLab(tmp_path / "flower", nodes)
    with lab:
        lab.restart_link()
        secure = {"secure_aggregation": True, "bound": 100.0, "n_components": 3}
        status, log = lab.run(told("p-cov", **secure, blind=True, output=str(tmp_path / "server")))
        assert status == "finished:completed", log
        database = written(lab.folder)
    models = [PCAModel.load(next(folder.iterdir())) for folder in folders]
    for model in models:
        assert principal_angles(model, models[0]).max <= 1e-12
        assert principal_angles(model, pooled_pca(np.vstack(HOSPITALS), 3)).max <= 1e-8
        assert list(model.feature_names_in_) == NAMES
    server = PCAModel.load(tmp_path / "server")
    assert server.components_.size == 0
    assert server.explained_variance_ratio_.tobytes() in database  # the bytes that are looked for would be found
    for number in np.concatenate([models[0].components_.ravel(), models[0].mean_, models[0].explained_variance_]):
        assert np.float64(number).tobytes() not in database
        assert np.float64(-number).tobytes() not in database
