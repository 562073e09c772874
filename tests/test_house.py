"""Methods know nothing of each other, what several of them use is not in `strategies`, and files are short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from strategies import METHODS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "strategies"
MODULES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): path.read_text()
    for path in FOLDER.rglob("*.py")
    if path.parent != FOLDER or not path.stem.startswith("__")
}
NAMES = {method.strategy.__module__.split(".")[1] for method in METHODS.values()}


def imported(code: str, module: str = "some") -> set[str]:
    """What the code of a module of `strategies` imports of `strategies`, wherever it does: methods, and names of the
    registry."""
    folder = ["strategies", *module.split(".")[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update("strategies.METHODS" if alias.name == "strategies" else alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else []
            source = ".".join(filter(None, [*above, node.module]))
            names.add(source)
            names.update(f"{source}.{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("strategies.")}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_belongs_to_a_method_of_the_registry(module):
    assert module.split(".")[0] in NAMES, f"strategies/{module} is of no method; those are {sorted(NAMES)}"


@pytest.mark.parametrize("module", MODULES)
def test_methods_do_not_import_each_other(module):
    others = imported(MODULES[module], module) - {module.split(".")[0]}
    assert not others, f"strategies/{module} imports {others}; move what both need to fedpca_flwr/statistics"


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("other", "from strategies.vertical import Vertical"),
        ("other", "from strategies import vertical"),
        ("other", "import strategies.vertical as other"),
        ("other", "def later():\n    from .vertical import Vertical"),
        ("other", "from . import vertical"),
        ("vertical.method", "from .script import phases"),
        ("vertical.method", "from . import script"),
        ("other.method", "from ..vertical import script"),
        ("other.method", "from .. import vertical"),
    ],
)
def test_imports_of_methods_are_seen_in_every_form(module, code):
    assert imported(code, module) == {"vertical"}


@pytest.mark.parametrize("code", ["import strategies", "from strategies import METHODS", "from . import METHODS"])
def test_an_import_of_the_registry_would_be_a_circle_and_is_seen(code):
    assert imported(code) == {"METHODS"}
    assert "METHODS" not in NAMES


LONGEST = 500
"""Lines of a file."""


def lengths():
    """Lines by path, of every file of code that is not a test."""
    folders = ("fedpca_flwr", "strategies", "simulations")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in files}


def test_no_file_is_longer_than_a_reader_holds():
    found = lengths()
    assert len(found) > 100
    long = {path: lines for path, lines in found.items() if lines > LONGEST}
    assert not long, f"longer than {LONGEST} lines: {long}; split each where its purposes part"
