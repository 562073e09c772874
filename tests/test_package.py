"""What people install and import: the library, the methods, and what a person runs, and nothing else."""

import json
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import fedpca_flwr
import strategies
from strategies import METHODS
from tests.environment import wheel_of
from tests.refusals import refused

ROOT = Path(__file__).parents[1]
ENGINES = "fedpca_flwr/simulations"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names of the files in the wheel."""
    with ZipFile(wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_with_its_types_and_nothing_else(wheel):
    """Under one name: a user's own `strategies` and `simulations` meet none of ours."""
    others = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert others == {"fedpca_flwr"}
    engines = {name.removeprefix(f"{ENGINES}/") for name in wheel if name.startswith(f"{ENGINES}/")}
    assert {name.split("/")[0] for name in engines if "/" in name} == {"deployment", "notebooks"}
    assert "programs.py" not in engines  # of the benchmarks and papers, which are not there
    library = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fedpca_flwr").rglob("*.py")}
    methods = {f"fedpca_flwr/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "strategies").rglob("*.py")}
    engines = {f"{ENGINES}/{path.name}" for path in (ROOT / "simulations").glob("*.py")} - {f"{ENGINES}/programs.py"}
    modules = {name for name in wheel if name.endswith(".py")}
    assert modules == library | methods | engines
    assert "fedpca_flwr/py.typed" in wheel


def test_whoever_builds_a_commit_gets_the_same_bytes(tmp_path):
    """Whenever his files were written, and whoever may read them."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    built: dict[str, list[bytes]] = {".whl": [], ".gz": []}
    for name, day, mode in (("one", 1_700_000_000, 0o644), ("two", 1_750_000_000, 0o600)):
        home = tmp_path / name
        shutil.copytree(ROOT, home, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "dist"))
        for path in home.rglob("*"):
            os.utime(path, (day, day))
            if path.is_file():
                path.chmod(mode)
        for builder in (WheelBuilder, SdistBuilder):
            (file,) = builder(str(home)).build(directory=str(tmp_path / f"dist {name}"))
            built[Path(file).suffix].append(Path(file).read_bytes())
    for one, two in built.values():
        assert one == two


def test_all_that_is_shown_can_be_imported_by_its_name():
    for name in fedpca_flwr.__all__:
        assert getattr(fedpca_flwr, name) is not None
    assert set(fedpca_flwr.__all__) <= set(dir(fedpca_flwr))
    with refused(AttributeError, "'pca'"):
        fedpca_flwr.pca  # noqa: B018
    for method in METHODS.values():
        assert getattr(fedpca_flwr, method.strategy.__name__) is method.strategy
    with refused(AttributeError, "Missing"):
        fedpca_flwr.Missing  # noqa: B018
    # A module that is imported becomes an attribute of its package.
    modules = {module.name for module in pkgutil.iter_modules(fedpca_flwr.__path__)}
    assert not modules & {*fedpca_flwr.__all__}
    assert [method.strategy.card.name for method in METHODS.values()] == list(METHODS)
    assert "other" not in METHODS
    with pytest.raises(KeyError):
        METHODS["other"]


def test_importing_the_package_loads_no_framework():
    """What is imported with every command and notebook; each of these costs a second or more."""
    assert loaded_by("import fedpca_flwr", ["flwr", "ray", "sklearn", "matplotlib", "scipy"]) == []


def test_a_notebooks_first_cell_waits_for_no_framework_that_it_does_not_use():
    heavy = ["ray", "flwr.simulation", "sklearn", "pandas", "matplotlib", "scipy.stats"]
    first = (
        "import numpy as np; from fedpca_flwr import run; run('p-cov', [np.eye(20), 2 * np.eye(20)], n_components=2)"
    )
    assert loaded_by(first, heavy) == []


def loaded_by(code: str, modules: list[str]) -> list[str]:
    """Those of the modules that a fresh process has after ``code``."""
    code = f"{code}\nimport json, sys; print(json.dumps([name for name in {modules} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout.splitlines()[-1])


HEAVY = ["sklearn", "scipy.stats", "scipy.optimize", "scipy.spatial", "matplotlib", "pandas", "ray", "flwr.simulation"]
HEAVY += ["scipy.special", "scipy.sparse.linalg"]
"""What no message of a deployment needs at its start, and each costs a thirtieth of a second to a second to import."""

OTHERS = [module.name for module in pkgutil.iter_modules(strategies.__path__, "strategies.")]


@pytest.mark.parametrize("app", ["site", "server"])
def test_a_message_loads_its_own_method_and_nothing_heavy(app):
    """Every message to a site starts a process, in which the app is imported."""
    use = f"import fedpca_flwr.{app}_app; from strategies import METHODS; METHODS['p-cov']"
    assert loaded_by(use, HEAVY + OTHERS) == ["strategies.pooled_covariance"]


COMMANDS = ["compare", "report", "monitor", "hunt", "benchmarks", "papers"]


@pytest.mark.parametrize("command", [*(f"simulations.{name}" for name in COMMANDS), "fedpca_flwr.site", "strategies"])
def test_a_help_loads_nothing_heavy(command):
    """It takes a second of CPU time at most. All that is at home in `strategies` has Flower, its cards' words."""
    asked = f"import runpy, sys\nsys.argv[1:] = ['-h']\ntry:\n    runpy.run_module('{command}', run_name='__main__')\n"
    light = [] if command in {"strategies", "fedpca_flwr.site"} else ["flwr", "scipy", "pydantic"]
    assert loaded_by(f"{asked}except SystemExit: pass\n", [*HEAVY, *OTHERS, *light]) == []
