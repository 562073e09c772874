"""Every room of the house can be deleted: but for the entries of the tables that list it, nothing names it.

A room is what a table of text names (a stage, a method, a kind of file, a command), or a subject of the import
contracts. In a copy of the tree a room is deleted with the modules that import it and its entries in tables. What is
left must import nothing that is gone, which is tried of one room by day; by night, of all, and it passes core's tests.
"""

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fedpca_flwr import METHODS
from tests.test_core import FOLDERS, missing_imports, module_name

ROOT = Path(__file__).parents[1]
# What tables and contracts name, and every run or test needs.
NEEDED = ("site.readers", "site.readers.numpy_files", "site_app", "stages", "stages.declarations", "strategies")
CORE = {"", *(f"fedpca_flwr.{name}" for name in NEEDED)}
# Each of their entries is a room.
TABLES = {"fedpca_flwr/stages/__init__.py", "strategies/__init__.py", "fedpca_flwr/site/readers/file_format.py"}
CODE = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "examples" not in path.parts
}
FILES = {module_name(file): file for file in CODE}


def lies_in(module: str, rooms: set[str]) -> bool:
    """Return whether a module, or a name in it, is one of these rooms or lies in one."""
    return any(f"{module}.".startswith(f"{room}.") for room in rooms)


@cache
def imports(code: str) -> set[str]:
    """Return what imports name, as modules or names in them."""
    imported = [part for part in ast.walk(ast.parse(code)) if isinstance(part, ast.ImportFrom)]
    return {f"{part.module}.{alias.name}" for part in imported for alias in part.names}


def may_name(code: str, rooms: set[str]) -> bool:
    """Return whether code has the last word of one of these rooms, which is seen without parsing."""
    return any(room.rpartition(".")[2] in code for room in rooms)


def paths_of(node: ast.AST, file: str) -> Iterator[str]:
    """Yield the names in modules that texts of an entry give, in full or beside the file of the table."""
    for part in ast.walk(node):
        text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
        if text.startswith("fedpca_flwr."):
            yield text.replace(":", ".")
        elif ":" in text and " " not in text:
            package = module_name(file) if file.endswith("__init__.py") else module_name(file).rpartition(".")[0]
            yield f"{package}.{text.lstrip('.').replace(':', '.')}"


def entries_of(file: str, code: str) -> Iterator[tuple[int, int, set[str]]]:
    """Yield first line, last line, and modules of the entries of a file's tables, and of its imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield (key or value).lineno, value.end_lineno, set(paths_of(value, file))
        elif isinstance(node, ast.Tuple):
            for value in (value for value in node.elts if isinstance(value, ast.Call)):
                yield value.lineno, value.end_lineno, set(paths_of(value, file))
        elif isinstance(node, ast.ClassDef):  # a declaration, which names the module of its implementation
            name = implementations().get(f"{module_name(file)}.{node.name}")
            yield node.lineno, node.end_lineno, {name} if name else set()
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.end_lineno, {f"{node.module}.{alias.name}" for alias in node.names}


def room_of(path: str) -> str:
    parts = path.split(".")
    ends = [3] if parts[1] in {"strategies", "stages"} else range(len(parts), 1, -1)
    return next((module for module in (".".join(parts[:end]) for end in ends) if module in FILES), "")


def rooms() -> list[str]:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = {contract["name"]: contract for contract in tools["importlinter"]["contracts"]}
    subjects = set(contracts["A subject knows no other subject"]["modules"]) - CORE
    found = subjects | set(map(room_of, implementations().values()))
    found |= {"fedpca_flwr.analyses.groups", "fedpca_flwr.analyses.sparse"}  # which no figure shows
    found |= {"fedpca_flwr.post"}  # a folder of commands
    for file in (*TABLES, "fedpca_flwr/cli.py"):
        listed = set(map(room_of, paths_of(ast.parse(CODE[file]), file)))
        found |= {room for room in listed if file in TABLES or not importers({room})}
    return sorted(room for room in found - CORE if room in subjects or not lies_in(room, subjects))


def importers(gone: set[str]) -> set[str]:
    """Return the modules that import what is gone, or go on as a method that is; tables leave an entry out instead."""
    methods = [name for name, method in METHODS.items() if lies_in(method.strategy.__module__, gone)]

    def needs(file: str, code: str) -> bool:
        if file.startswith("strategies/") and "successors=" in code and any(f'"{name}"' in code for name in methods):
            return True
        return may_name(code, gone) and any(lies_in(name, gone) for name in imports(code))

    files = [file for file, code in CODE.items() if not file.endswith("__init__.py") and needs(file, code)]
    return {module for module in map(module_name, files) if not lies_in(module, gone)}


@cache
def implementations() -> dict[str, str]:
    """Return the names of the classes that only declare something, with the names of the classes that do it."""
    return {
        f"{module_name(file)}.{node.name}": path
        for file, code in CODE.items()
        for node in ast.walk(ast.parse(code if "implementation = " in code else ""))
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "implementation"
        for path in paths_of(part, file)
    }


def without(room: str, copy: Path) -> None:
    """Copy the tree but for a room, the modules that import it, and its entries in tables."""
    gone = {room, *(name for name, path in implementations().items() if lies_in(path, {room}))}
    while more := importers(gone):
        gone |= more
    for part in FOLDERS:
        shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))
    for file, code in CODE.items():
        if lies_in(module_name(file), gone):
            (copy / file).unlink()
        if lies_in(module_name(file), gone) or not may_name(code, gone):  # it keeps its time, and so its bytecode
            continue
        entries = [entry for entry in entries_of(file, code) if any(lies_in(path, gone) for path in entry[2])]
        dropped = {number for first, last, _ in entries for number in range(first, last + 1)}
        names = {f'"{path.rpartition(".")[2]}",' for *_, paths in entries for path in paths}
        lines = enumerate(code.splitlines(keepends=True), 1)
        left = [line for number, line in lines if number not in dropped and line.strip() not in names]
        (copy / file).write_text("".join(left), encoding="utf-8")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Look for all rooms by night only: each worker parses the whole library to find them."""
    if "room" in metafunc.fixturenames:
        late = rooms() if "nightly" in metafunc.config.option.markexpr else []
        by_night = [pytest.param(room, marks=pytest.mark.nightly) for room in late]
        metafunc.parametrize("room", ["fedpca_flwr.stages.clusters", *by_night])


@pytest.mark.engine
def test_without_a_room_the_rest_is_as_it_was(room, tmp_path, request):
    without(room, tmp_path)
    assert missing_imports(tmp_path) == []
    if not request.node.get_closest_marker("nightly"):
        return
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    tests = ["test_core", "maths/test_eigen", "maths/test_columns", "maths/test_factors"]
    if not room.startswith("fedpca_flwr.strategies."):  # these name methods as examples
        tests += ["questions/test_rows", "maths/test_moments", "protocol/test_question"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not engine"]
    command += [f"tests/{test}.py" for test in tests]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
