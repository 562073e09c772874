"""What people import runs where they work: from the wheel, beside files of theirs that have names of ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedpca_flwr import PCAModel, pooled_pca, principal_angles
from fedpca_flwr.data import datasets
from tests.environment import fresh_environment, wheel_of

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "simulations" / "examples"
DECOYS = {
    "a folder strategies, a file simulations.py": ("strategies/__init__.py", "simulations.py"),
    "a file strategies.py, a folder simulations": ("strategies.py", "simulations/__init__.py"),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    return fresh_environment(folder / "fresh", wheel_of(ROOT, folder))


@pytest.fixture(params=[one if not i else pytest.param(one, marks=pytest.mark.engine) for i, one in enumerate(DECOYS)])
def folder(request, tmp_path):
    """Where a user works, with a folder and a file that have names of ours."""
    for name in DECOYS[request.param]:
        decoy(tmp_path / name)
    return tmp_path


def decoy(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("METHODS = {'mine': 1}\n")


def python(command, code, at, paths=()):
    """What a program says that stands in a file of the folder ``at``, and its errors."""
    (at / "program.py").write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment.pop("PYTHONPATH", None)
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return subprocess.run([command, "program.py"], cwd=at, env=environment, capture_output=True, text=True, check=False)


def said(*arguments, **keywords):
    done = python(*arguments, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


USE = """
import numpy as np
import simulations, strategies
import fedpca_flwr
from fedpca_flwr import METHODS, FederatedPCA, FedPCA, PooledCovariance, client_app, compare, run

parties = [np.random.default_rng(party).normal(size=(30, 5)) for party in range(3)]
model = run("sub-it", parties, n_components=2)
fitted = FederatedPCA(2).fit(np.vstack(parties), groups=np.repeat([0, 1, 2], 30)).model_
(record,) = compare(methods=["p-cov"], datasets=["wine"], partitions=["iid"], clients=[2], components=2)
FedPCA("p-cov", clients=3), PooledCovariance(clients=3), client_app(lambda context: parties[0])
assert "mine" not in METHODS and strategies.METHODS == simulations.METHODS == {"mine": 1}
print(fedpca_flwr.__file__, model.log["method"], fitted.log["method"], record["method"])
"""


def test_what_is_imported_from_the_wheel_works_beside_decoys(installed, folder):
    where, *methods = said(installed, USE, folder).splitlines()[-1].split()
    assert Path(where).is_relative_to(Path(installed).parents[1])
    assert methods == ["sub-it", "p-cov", "p-cov"]


@pytest.mark.engine
def test_the_wheel_runs_on_ray_beside_decoys(installed, tmp_path):
    for name in DECOYS["a folder strategies, a file simulations.py"]:
        decoy(tmp_path / name)
    code = (
        "import numpy as np; from fedpca_flwr import run\n"
        "print(run('p-cov', [np.eye(20), 2 * np.eye(20)], n_components=2, engine='ray'))"
    )
    assert "PCAModel(p-cov: 2 components" in said(installed, code, tmp_path)


COMPONENTS = {"server-app-components": 5, "message-api": 5, "components-then-model": 20}
"""By example, how many it asks for."""

SIMULATED = """
import {module} as app
from flwr.simulation import run_simulation

run_simulation(app.server, app.client, 3, backend_config={{"client_resources": {{"num_cpus": 1, "num_gpus": 0}}}})
"""


@pytest.mark.engine
@pytest.mark.parametrize(("example", "components"), COMPONENTS.items())
def test_the_example_apps_run_from_the_wheel_beside_decoys(installed, tmp_path, example, components):
    for name in DECOYS["a folder strategies, a file simulations.py"]:
        decoy(tmp_path / name)
    module = example.replace("-", "_")
    shutil.copy(EXAMPLES / example / f"{module}.py", tmp_path)
    told = said(installed, SIMULATED.format(module=module), tmp_path)
    model = PCAModel.load(tmp_path / "model")
    assert principal_angles(model, pooled_pca(datasets.load("digits").all_rows(), components)).max <= 1e-6
    if example == "components-then-model":
        assert float(told.split("accuracy")[1].split()[0]) > 0.95


@pytest.mark.parametrize("example", COMPONENTS)
def test_flower_builds_the_example_apps(tmp_path, example):
    shutil.copytree(EXAMPLES / example, tmp_path / example, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["-c", "from flwr.cli.app import app; app()", "build", "--app", example]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))


def test_all_examples_are_tried():
    assert {path.name for path in EXAMPLES.iterdir()} == {*COMPONENTS}


IN_PLACE = """
import numpy as np
from fedpca_flwr import run
print(run("p-cov", [np.eye(20), 2 * np.eye(20)], n_components=2))
"""


def test_the_repository_on_the_path_works_from_any_folder(tmp_path):
    assert "PCAModel(p-cov: 2 components" in said(sys.executable, IN_PLACE, tmp_path, paths=[ROOT])


def test_an_editable_installation_works_from_any_folder(tmp_path):
    """`pip install -e .`, as CONTRIBUTING begins."""
    editable = fresh_environment(tmp_path / "fresh", wheel_of(ROOT, tmp_path, "editable"))
    assert "PCAModel(p-cov: 2 components" in said(editable, IN_PLACE, tmp_path)


@pytest.mark.parametrize("name", [name for names in DECOYS.values() for name in names])
def test_beside_a_decoy_the_repository_names_its_path(tmp_path, name):
    decoy(tmp_path / name)
    done = python(sys.executable, IN_PLACE, tmp_path, paths=[ROOT])
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"ImportError: '{name.split('/')[0].removesuffix('.py')}' is {tmp_path / name}, but")
    assert "python -m pip install ." in error
