"""A federation of four months on real processes, as the guide says: hospitals join, change, leave and return."""

import re
import subprocess

import pytest

from fedpca_flwr import PCAModel, run
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.site.node.deployment import make_site_configs, write_site_files
from tests.deployment.lab import ROOT, Lab
from tests.families import cut, rows

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

GUIDE = (ROOT / "simulations" / "deployment" / "README.md").read_text(encoding="utf-8")
SECTION = GUIDE.split("### Every month")[1].split("\n### ")[0]
DEFINITION, JANUARY, FEBRUARY, MARCH, APRIL = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
PARTS = cut(rows(460, 8), 150, 120, 100, 90)
CHANGED = PARTS[1] * 2 + 1


def month(lab, block, online):
    """Run a block of the guide in the deployment's folder, once so many sites are online."""

    def ready():
        nodes = lab.flwr.list_json("supernode", "list", "lab")["nodes"]
        return sum(node["status"] == "online" for node in nodes) == online

    lab.wait_until(ready, f"{online} sites to be online")
    script = f"set -e\n{DEFINITION}{block}".replace(" .. lab", f" {ROOT} lab").replace("site0/journal", "data/journal0")
    where = {"env": lab.environment, "cwd": lab.folder}
    done = subprocess.run(["bash", "-c", script], **where, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_that_of(file, parties):
    model = PCAModel.load(file)
    assert principal_angles(model, run("p-cov", parties, n_components=5)).max < 1e-9
    return [note for note in model.log["notes"] if "put back" in note]


def test_the_guides_months_run_on_a_superlink(tmp_path):
    (tmp_path / "data").mkdir()
    files = write_site_files(tmp_path / "data", [f"marker_{j}" for j in range(8)], PARTS)
    configs = make_site_configs(tmp_path / "data", "hospital", files)
    for party, config in enumerate(configs):
        config |= {"journal": str(tmp_path / "lab" / "data" / f"journal{party}"), "repeat": "refuse-same"}
    with Lab(tmp_path / "lab", configs[:3]) as lab:
        (lab.folder / "data").mkdir()
        month(lab, JANUARY, 3)
        assert is_that_of(lab.folder / "january.npz", PARTS[:3]) == []

        (other,) = write_site_files(tmp_path, [f"marker_{j}" for j in range(8)], [CHANGED])
        other.replace(files[1])
        lab.node_configs = configs
        lab.start_node(3)
        month(lab, FEBRUARY, 4)
        assert is_that_of(lab.folder / "february.npz", [PARTS[0], CHANGED, *PARTS[2:]]) == []

        lab.processes["node1"].terminate()
        lab.processes.pop("node1").wait(60)
        month(lab, MARCH, 3)
        assert is_that_of(lab.folder / "march.npz", [PARTS[0], *PARTS[2:]]) == []

        lab.spawn_site(1)
        page = month(lab, APRIL, 4)
        (note,) = is_that_of(lab.folder / "april.npz", [PARTS[0], CHANGED, *PARTS[2:]])
        assert "hospital 0, hospital 2, hospital 3 took part in a later one" in note
        assert "Nothing else was compared" in page
        assert "an older state was put back" in lab.read_log("node0")
        operations = [event["operation"] for event in Federation.open(lab.folder / "federation").journal]
        assert operations == ["join"] * 3 + ["run", "replace", "join", "run", "run"]
