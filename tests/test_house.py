"""Methods know nothing of each other, what several of them use is not in `strategies`, and files are short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from strategies import METHODS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "strategies"
MODULES = {path.stem: path.read_text() for path in FOLDER.glob("*.py") if not path.stem.startswith("__")}
NAMES = {method.strategy.__module__.removeprefix("strategies.") for method in METHODS.values()}


def method_of(module: str) -> str | None:
    """The method that a module belongs to: the longest name of one that it begins with (`vertical_kernel` is none of
    `vertical`)."""
    own = [name for name in NAMES if module == name or module.startswith(f"{name}_")]
    return max(own, key=len, default=None)


def imported(code: str) -> set[str]:
    """What code imports of `strategies`, wherever it does: its modules, and names of the registry."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update("strategies.METHODS" if alias.name == "strategies" else alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = ".".join(filter(None, ["strategies" if node.level else "", node.module]))
            names.add(source)
            names.update(f"{source}.{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("strategies.")}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_belongs_to_a_method_of_the_registry(module):
    assert method_of(module), f"strategies/{module}.py begins with the name of no method; those are {sorted(NAMES)}"


@pytest.mark.parametrize("module", MODULES)
def test_methods_do_not_import_each_other(module):
    others = [name for name in imported(MODULES[module]) if method_of(name) != method_of(module)]
    assert not others, f"strategies/{module}.py imports {others}; move what both need to fedpca_flwr/statistics"


@pytest.mark.parametrize(
    "code",
    [
        "from strategies.vertical import Vertical",
        "from strategies import vertical",
        "import strategies.vertical as other",
        "def later():\n    from .vertical import Vertical",
        "from . import vertical",
    ],
)
def test_imports_of_methods_are_seen_in_every_form(code):
    assert imported(code) == {"vertical"}
    assert method_of("vertical_kernel") != method_of("vertical")


@pytest.mark.parametrize("code", ["import strategies", "from strategies import METHODS", "from . import METHODS"])
def test_an_import_of_the_registry_would_be_a_circle_and_is_seen(code):
    assert imported(code) == {"METHODS"}
    assert method_of("METHODS") is None


LONGEST = 250
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
