"""SuperLinks of their own: `flwr run` in Flower's simulation, a blind run, the guide's blocks, and a rehearsal."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedpca_flwr import run
from fedpca_flwr.data import datasets
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.site.node.deployment import make_site_configs, write_site_files
from fedpca_flwr.site.node.flower_command import local_path
from tests.deployment.lab import ROOT, Lab, SimulationLab, as_text, impatient, told
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


GUIDE = (ROOT / "simulations" / "deployment" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
FEBRUARY = """
python - <<'EOF'
import numpy as np, pyarrow.parquet as pq, pyarrow as pa
second = pq.read_table("site1/rows.parquet").to_pandas()
pq.write_table(pa.Table.from_pandas(second * 2 + 1, preserve_index=False), "site1/rows.parquet")
EOF
mkdir -m 700 site3 && cp link/ca.crt site3/ && head -251 site0/rows.csv > site3/rows.csv
python -m fedpca_flwr site node-key site3/node-key
sed -e 's/^num-partitions.*/num-partitions = 4/; s/^partition-id.*/partition-id = 3/; s/hospital 0/hospital 3/' \\
  site0/site.toml > site3/site.toml
flwr supernode register site3/node-key.pub lab
start_node 3
online 4
"""
STEPS = {
    "monthly february": FEBRUARY,
    "monthly march": 'kill "${nodes[1]}"; wait "${nodes[1]}"; online 3\n',
    "mv federation": "start_node 1\nonline 4\n",
}
"""What hospitals do before a block, as the guide's text says: each by the begin of the block."""


@pytest.mark.nightly
def test_the_guide_runs(tmp_path):
    project, lab = tmp_path / "project", tmp_path / "project" / "lab"
    junk = shutil.ignore_patterns(".git", "tests", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, project, symlinks=True, ignore=junk)
    script = "set -eo pipefail\n"
    for number, block in enumerate(BLOCKS, start=1):
        step = next((step for begin, step in STEPS.items() if block.startswith(begin)), "")
        script += f"echo '# block {number} of {len(BLOCKS)}'\n{step}{block}"
    environment = {**os.environ, "PATH": local_path(), "PYTHONPATH": impatient(tmp_path, str(project))}
    where = {"cwd": project, "env": environment, "start_new_session": True}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(["bash", "-c", script], **where, **streams, text=True) as guide:
        try:
            output, _ = guide.communicate(timeout=1800)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guide.pid, signal.SIGKILL)
    assert guide.returncode == 0, output[-5000:]
    first, second, third = np.split(np.delete(load_breast_cancer().data, range(10, 20), axis=1), [300, 480])
    fourth = np.loadtxt(lab / "site3" / "rows.csv", delimiter=",", skiprows=1)
    assert (
        principal_angles(PCAModel.load(lab / "measured"), pooled_pca(np.vstack([first, second, third]), 5)).max < 1e-6
    )
    notes = {}
    changed = [first, second * 2 + 1, third, fourth]
    months = {"january": [first, second, third], "february": changed, "march": [first, third, fourth], "april": changed}
    for month, parties in months.items():
        model = PCAModel.load(lab / month)
        assert principal_angles(model, run("p-cov", parties, n_components=5)).max < 1e-9, month
        notes[month] = [note for note in model.log["notes"] if "put back" in note]
    (note,) = notes.pop("april")
    assert not any(notes.values())
    assert "hospital 0, hospital 2, hospital 3 took part in a later one" in note
    assert "Nothing else was compared" in output
    assert "an older state was put back" in (lab / "site0" / "node.log").read_text()
    operations = [event["operation"] for event in Federation.open(lab / "federation").journal]
    assert operations == ["join"] * 3 + ["run", "replace", "join", "run", "run"]


@pytest.mark.nightly
def test_a_rehearsal_goes_on_without_the_site_that_it_kills(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", impatient(tmp_path))
    folder = tmp_path / "rehearsal"
    command = [sys.executable, "-m", "fedpca_flwr", "site", "rehearse", str(folder), "--dropout"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "secure aggregation    double masks, 3 of 4 sites" in done.stdout
    model = PCAModel.load(folder / "model")
    survivors = [np.loadtxt(folder / f"site{i}.csv", delimiter=",", skiprows=1) for i in range(3)]
    assert principal_angles(model, pooled_pca(np.vstack(survivors), 5)).max <= 1e-6
    assert [party["party"] for party in model.log["parties"]] == [0, 1, 2]
    assert len(list(folder.glob("scores?.csv"))) == 3
