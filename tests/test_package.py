"""What people import: by its name, and no command and no message of a deployment waits for what it does not use."""

import json
import pkgutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedpca_flwr
from fedpca_flwr import strategies
from fedpca_flwr.stages import STAGES
from fedpca_flwr.strategies import METHODS
from tests.refusals import refused


def test_all_that_is_shown_can_be_imported_by_its_name():
    assert None not in [getattr(fedpca_flwr, name) for name in fedpca_flwr.__all__]
    assert set(fedpca_flwr.__all__) <= set(dir(fedpca_flwr))
    for name, method in METHODS.items():
        assert getattr(fedpca_flwr, method.strategy.__name__) is method.strategy
        assert method.strategy.card.name == name
    for name in ("pca", "Missing"):
        with refused(AttributeError, name):
            getattr(fedpca_flwr, name)
    # A module that is imported becomes an attribute of its package.
    assert not {module.name for module in pkgutil.iter_modules(fedpca_flwr.__path__)} & {*fedpca_flwr.__all__}
    assert "other" not in METHODS
    with pytest.raises(KeyError):
        METHODS["other"]


HEAVY = ["sklearn", "scipy.stats", "scipy.optimize", "scipy.spatial", "matplotlib", "pandas", "ray", "flwr.simulation"]
HEAVY += ["scipy.special", "scipy.sparse.linalg", "torch"]
"""What no message of a deployment needs at its start, and each costs a thirtieth of a second to a second to import."""

NAMES = [module.name for module in pkgutil.iter_modules(strategies.__path__) if module.name != "factory"]
OTHERS = [f"fedpca_flwr.strategies.{name}" for name in NAMES]
RUN = "import numpy as np; from fedpca_flwr import run; run('p-cov', [np.eye(20), 2 * np.eye(20)], n_components=2)"
APPS = "from fedpca_flwr import server_app, site_app; from fedpca_flwr.strategies import METHODS; METHODS['p-cov']"
HELP = """import runpy, sys
sys.argv[1:] = ['-h']
for name in {}:
    try: runpy.run_module(name, run_name='__main__')
    except SystemExit: pass
"""
SITE = "from fedpca_flwr.cli import main; main(['site', '-h'])"
COMMANDS = [f"fedpca_flwr.simulations.{name}" for name in ("compare", "report", "benchmarks", "papers", "methods")]
NIGHT = pytest.mark.nightly


@cache
def modules_after(code):
    """Return the names of all modules that a new process has loaded after the code."""
    command = [sys.executable, "-c", f"{code}\nimport json, sys; print(json.dumps([*sys.modules]))"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.engine
@pytest.mark.parametrize(
    ("code", "modules", "loaded"),
    [
        pytest.param("import fedpca_flwr", ["flwr", "ray", "sklearn", "matplotlib", "scipy"], [], id="the package"),
        pytest.param(RUN, [name for name in HEAVY if name[:6] != "scipy."] + ["scipy.stats"], [], id="a first cell"),
        pytest.param(RUN, [stage.implementation.partition(":")[0] for stage in STAGES.values()], [], id="no stages"),
        # Every message to a site starts a process, in which the app is imported.
        pytest.param(APPS, HEAVY + OTHERS, ["fedpca_flwr.strategies.pooled_covariance"], id="a site, and the server"),
        # Whatever imports `strategies` has Flower, its cards' words.
        pytest.param(
            HELP.format(COMMANDS[:-1]), [*HEAVY, *OTHERS, "flwr", "scipy", "pydantic"], [], marks=NIGHT, id="help"
        ),
        pytest.param(HELP.format(COMMANDS[-1:]) + SITE, HEAVY + OTHERS, [], marks=NIGHT, id="that of other commands"),
    ],
)
def test_nobody_waits_for_a_module_that_is_not_used(code, modules, loaded):
    names = modules_after(code)
    assert [name for name in modules if name in names] == loaded


@pytest.mark.engine
def test_a_run_of_arrays_loads_no_more_modules_than_it_uses():
    assert len([name for name in modules_after(RUN) if name.split(".")[0] == "fedpca_flwr"]) <= 85
