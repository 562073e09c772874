"""Images, compose file, systemd units, Kubernetes: what they start exists, and nothing in them has rights to spare."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from fedpca_flwr.config.site_file import read_site_file
from tests.needed import need

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "containers"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
KUBERNETES = yaml.safe_load_all((FOLDER / "kubernetes" / "site.yaml").read_text())
(POD,) = [one["spec"]["template"]["spec"] for one in KUBERNETES if one["kind"] == "Deployment"]


@pytest.mark.nightly  # a program takes seconds to say its options
def test_superlinks_are_started_with_options_that_they_take():
    unit = (FOLDER / "systemd" / "fedpca-superlink.service").read_text()
    (words,) = re.findall(r"^ExecStart=(.*)$", unit.replace("\\\n", " "), re.MULTILINE)
    program = shutil.which(Path(shlex.split(words)[0]).name, path=Path(sys.executable).parent)
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    for given in (shlex.split(words), COMPOSE["superlink"]["command"]):
        asked = {word.split("=")[0] for word in given if word.startswith("--")}
        assert len(asked) > 4
        assert asked <= set(re.findall(r"--[a-z][\w-]+", said))


def test_every_site_is_started_by_its_file_in_its_own_folder_without_rights():
    unit = (FOLDER / "systemd" / "fedpca-supernode.service").read_text()
    assert re.search(r"^ExecStart=/opt/fedpca/bin/fedpca site node --config /etc/fedpca/site.toml$", unit, re.MULTILINE)
    image = (FOLDER / "Containerfile").read_text()
    assert image.endswith('AS supernode\nENTRYPOINT ["python", "-m", "fedpca_flwr", "site", "node"]\n')
    given = [POD["containers"][0]["args"], *(COMPOSE[f"site{i}"]["command"] for i in range(3))]
    assert given == [["--config=/site/site.toml"]] * 4
    for name, service in COMPOSE.items():
        at = "link:/link:ro" if name == "superlink" else f"{name}:/site"
        assert service["volumes"] == [f"../lab/{at}", f"{name}:/state"]
        rights = service["cap_drop"], service["security_opt"], service["read_only"]
        assert rights == (["ALL"], ["no-new-privileges:true"], True)
        assert {"healthcheck", "restart", "mem_limit", "pids_limit"} <= set(service)


def test_sites_of_the_guide_reach_the_superlink_of_the_compose_file(tmp_path):
    """What step 1 of the guide writes, after the command of its page on containers."""
    guide = (ROOT / "simulations" / "deployment" / "README.md").read_text()
    (text,) = re.findall(r"site\$i/site.toml <<EOF\n(.*?)EOF\n", guide, re.DOTALL)
    (command,) = re.findall(r"^sed .* lab/site\?/site.toml$", guide, re.MULTILINE)
    (hosts,) = re.findall(r"site certificates link .* --host (.*)$", guide, re.MULTILINE)
    folder = tmp_path / "lab/site0"
    folder.mkdir(parents=True)
    (folder / "site.toml").write_text(text.replace("$i", "0").replace("${formats[0]}", "csv"))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    site = read_site_file(folder / "site.toml")
    host, port = site.supernode.superlink.split(":")
    assert host in hosts.split()
    assert f"--port={port}" in COMPOSE[host]["command"]
    assert f":{site.supernode.port}/" in COMPOSE["site0"]["healthcheck"]["test"][-1]
    paths = [site.node_config[key] for key in ("data", "journal", "identity", "identities")]
    assert not any(Path(path).is_absolute() for path in [*paths, site.supernode.node_key])


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is of Linux")
@pytest.mark.parametrize("unit", [unit.name for unit in (FOLDER / "systemd").glob("*.service")])
def test_systemd_takes_the_units_and_finds_them_confined(unit, tmp_path):
    need(shutil.which("systemd-analyze"), "systemd")
    shutil.copytree(FOLDER / "systemd", tmp_path / "etc/systemd/system")
    known = next(path for path in ("/usr/lib/systemd/system", "/lib/systemd/system") if Path(path).is_dir())
    shutil.copytree(known, tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "opt/fedpca/bin").mkdir(parents=True)
    for program in ("flower-superlink", "fedpca"):
        (tmp_path / "opt/fedpca/bin" / program).touch(0o755)
    checks = {f"/etc/systemd/system/{unit}": ["verify"], unit: ["security", "--offline=yes", "--threshold=20"]}
    for at, check in checks.items():
        command = ["systemd-analyze", *check, f"--root={tmp_path}", at]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "verify" not in check or unit.split(".")[0] not in done.stderr, done.stderr


def test_an_image_has_every_package_by_version_and_hash_and_what_the_containerfile_copies():
    """A folder `lab` with keys and rows beside it never reaches the builder."""
    lock = (FOLDER / "requirements.lock").read_text().replace("\\\n", "")
    pinned = {line.split("==")[0]: line for line in lock.splitlines() if "==" in line}
    assert all("--hash=sha256:" in line for line in pinned.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for name in ("sql", "metrics") for one in project["optional-dependencies"][name]]
    assert {re.split(r"[\[><=]", one)[0] for one in [*project["dependencies"], *extras]} <= set(pinned)
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    file = (FOLDER / "Containerfile").read_text()
    copied = [word for line in file.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert lines[1] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied)
    assert all((ROOT / name).exists() for name in copied)
    targets = set(re.findall(r"AS (\w+)$", file, re.MULTILINE))
    assert {service["build"]["target"] for service in COMPOSE.values()} <= targets
