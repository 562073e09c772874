"""What is built and installed runs where people work: from the wheel, beside files that have names of ours."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from flwr.cli.app import app as flwr
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]


def built(project: Path, folder: Path, kind: str, version: str = "standard") -> Path:
    """Return the ``wheel`` or the ``sdist`` of a project; the ``editable`` wheel only points to the project."""
    builder = {"wheel": WheelBuilder, "sdist": SdistBuilder}[kind]
    (file,) = builder(str(project)).build(directory=str(folder), versions=[version])
    return Path(file)


def fresh_environment(folder: Path, wheel: Path) -> str:
    """Return the Python of an environment with the wheel alone; what the wheel needs, it finds in this one."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    (packages,) = folder.rglob("site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return str(python)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a folder with the source, unpacked; Flower takes no folder with a version in its name."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(built(ROOT, folder, "sdist")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python has from 3.11.4 on
        archive.extractall(folder)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked.rename(folder / tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"])


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built(source, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return fresh_environment(tmp_path_factory.mktemp("installed") / "fresh", wheel)


@pytest.mark.engine
def test_the_wheel_holds_every_module_and_nothing_else_and_runs_from_where_it_is_unpacked(wheel, tmp_path):
    """Under one name, beside decoys, and with a run only: the night installs the wheel, and tries all of `USE`."""
    unpacked, work = tmp_path / "unpacked", tmp_path / "work"
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(unpacked)
    assert {name.split("/")[0] for name in names} == {"fedpca_flwr"}
    folders = {path.rpartition("/")[0] for path in names if path.startswith("fedpca_flwr/simulations/")}
    assert {folder.split("/")[2] for folder in folders if folder.count("/") > 1} == {"deployment", "notebooks"}
    library = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fedpca_flwr").rglob("*.py")}
    others = [*(ROOT / "strategies").rglob("*.py"), *(ROOT / "simulations").glob("*.py")]
    inside = {f"fedpca_flwr/{path.relative_to(ROOT).as_posix()}" for path in others}
    assert {name for name in names if name.endswith(".py")} == library | inside
    assert "fedpca_flwr/py.typed" in names
    work.mkdir()
    decoy(work, *DECOYS[0])
    output = said(sys.executable, f"{RUN}\nprint(run.__code__.co_filename)", work, paths=[unpacked])
    assert "PCAModel(p-cov: 2 components" in output
    assert Path(output.splitlines()[-1]).is_relative_to(unpacked)


@pytest.mark.engine
def test_whoever_builds_a_commit_gets_the_same_bytes(wheel, tmp_path):
    """Whenever his files were written, and whoever may read them; and the wheel of the source is that of the commit."""
    files = {"wheel": [wheel.read_bytes()], "sdist": []}
    for name, day, mode in (("one", 1_700_000_000, 0o644), ("two", 1_750_000_000, 0o600)):
        home = tmp_path / name
        shutil.copytree(ROOT, home, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "dist", "build"))
        for path in home.rglob("*"):
            os.utime(path, (day, day))
            if path.is_file():
                path.chmod(mode)
        for kind, found in files.items():
            found.append(built(home, tmp_path / f"dist {name}", kind).read_bytes())
    assert [len(set(found)) for found in files.values()] == [1, 1]


def fab_of(project, monkeypatch):
    """Names of the files in the app that Flower builds of a folder, which are unpacked in a folder `app` beside it."""
    monkeypatch.chdir(project.parent)
    told = CliRunner().invoke(flwr, ["build", "--app", project.name])
    assert told.exit_code == 0, told.output
    (fab,) = project.parent.glob("*.fab")
    with ZipFile(fab) as archive:
        archive.extractall(project.parent / "app")
        return set(archive.namelist())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_source_is_an_app_that_holds_what_servers_and_supernodes_run(source, monkeypatch):
    files = {name for name in fab_of(source, monkeypatch) if name.endswith(".py")}
    assert {name.split("/")[0] for name in files} == {"fedpca_flwr", "strategies"}
    assert len(files) < 240  # a launcher sends them to every site
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files]
    modules = [name if name.startswith("fedpca") else f"fedpca_flwr.{name}" for name in modules]
    app, names = source.parent / "app", "server_app, site_app, strategies"
    code = f"import importlib, sys\nfrom fedpca_flwr import {names}\nlist(strategies.METHODS.values())\n"
    code += "[*map(importlib.import_module, sys.argv[1:])]\nprint(server_app.__file__)"
    assert said(sys.executable, code, app, *modules, paths=[app]).startswith(str(app))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("example", [*ROOT.glob("simulations/examples/*")], ids=lambda path: path.name)
def test_flower_builds_the_example_apps_as_they_are_published(tmp_path, monkeypatch, example):
    folder = shutil.copytree(example, tmp_path / example.name, ignore=shutil.ignore_patterns("__pycache__"))
    assert {f"{example.name.replace('-', '_')}.py", "LICENSE", "README.md"} <= fab_of(folder, monkeypatch)
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert (folder / settings["project"]["license"]["file"]).read_text() == (ROOT / "LICENSE").read_text()
    assert (folder / "README.md").read_text().startswith("---\n")


DECOYS = [("strategies/__init__.py", "simulations.py"), ("strategies.py", "simulations/__init__.py")]


def decoy(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("METHODS = {'mine': 1}\n")


def said(command, code, at, *arguments, paths=()):
    """By a program that stands in a file of the folder, and ends well."""
    (at / "program.py").write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = subprocess.run([command, "program.py", *arguments], cwd=at, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


RUN = "import numpy as np\nfrom fedpca_flwr import run\nprint(run('p-cov', [np.eye(20), np.eye(20)], n_components=2))"
USE = """
import runpy, sys
import numpy as np
import simulations, strategies
import fedpca_flwr
from fedpca_flwr import METHODS, FederatedPCA, FedPCA, PooledCovariance, client_app, compare, run

parties = [np.random.default_rng(party).normal(size=(30, 5)) for party in range(3)]
model = run("sub-it", parties, n_components=2)
fitted = FederatedPCA(2).fit(np.vstack(parties), groups=np.repeat([0, 1, 2], 30)).model_
(record,) = compare(methods=["p-cov"], datasets=["wine"], partitions=["iid"], clients=[2], n_components=2)
FedPCA("p-cov", clients=3), PooledCovariance(clients=3), client_app(lambda context: parties[0])
assert "mine" not in METHODS and strategies.METHODS == simulations.METHODS == {"mine": 1}
print("used", fedpca_flwr.__file__, model.log["method"], fitted.log["method"], record["method"])
sys.argv[1:] = "compare --methods p-cov --datasets wine --n-components 2 --output runs".split()
runpy.run_module("fedpca_flwr", run_name="__main__")  # as `python -m fedpca_flwr` does
"""


@pytest.mark.engine
@pytest.mark.nightly
@pytest.mark.parametrize("decoys", DECOYS, ids=str)
def test_the_wheels_commands_work_beside_decoys(installed, tmp_path, decoys):
    decoy(tmp_path, *decoys)
    output = said(installed, USE, tmp_path)
    where, *methods = re.search(r"^used (.+)$", output, re.M)[1].split()
    assert Path(where).is_relative_to(Path(installed).parents[1])
    assert methods == ["sub-it", "p-cov", "p-cov"]
    assert "| p-cov |" in output
    assert (tmp_path / "runs" / "report.html").read_text().count("<figure>") == 1


@pytest.mark.engine
@pytest.mark.nightly  # by day from the wheel, above
def test_editable_installations_work_from_any_folder(tmp_path):
    """The latter by `pip install -e .`, as CONTRIBUTING begins; files with names of our folders are in nobody's way."""
    decoy(tmp_path, *DECOYS[0])
    assert "PCAModel(p-cov: 2 components" in said(sys.executable, RUN, tmp_path, paths=[ROOT])
    editable = fresh_environment(tmp_path / "fresh", built(ROOT, tmp_path, "wheel", "editable"))
    assert "PCAModel(p-cov: 2 components" in said(editable, RUN, tmp_path)
