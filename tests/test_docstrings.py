"""Public functions and classes say what they take and what they return, by numpydoc's own validation."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pydantic
import pytest
from numpydoc.validate import validate

from fedpca_flwr.model.fitted import FittedPCA

ROOT = Path(__file__).parents[1]
CHECKS = {"PR01", "PR02", "RT01"}
"""Parameters without a text, texts of parameters that there are not, results without a text."""

PROGRAMS = {"benchmarks", "examples", "papers"}
"""Folders of what is called by commands only."""

MODULES = [
    "fedpca_flwr." * (folder != "fedpca_flwr") + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("fedpca_flwr", "strategies", "simulations")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.stem not in {"__init__", "__main__"} and not PROGRAMS & set(path.parts)
]


def takes_parameters(kind: type) -> bool:
    """Whether a class has a constructor of its own to document: not where each field has its text, as pydantic's."""
    if issubclass(kind, pydantic.BaseModel | FittedPCA) or getattr(kind, "_is_protocol", False):
        return False  # `PCAModel` lists its attributes
    (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    local = any(isinstance(part, ast.AnnAssign) or getattr(part, "name", "") == "__init__" for part in body.body)
    if not local or not {"__init__", "__new__"} & set(vars(kind)):
        return False  # the constructor is its base's
    following = zip(body.body, body.body[1:], strict=False)
    return not any(isinstance(a, ast.AnnAssign) and isinstance(b, ast.Expr) for a, b in following)


def documented(module: Any) -> Iterator[str]:
    """Public functions, classes and methods of a module; a method that overrides another is documented there."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name
        if inspect.isclass(value):
            if takes_parameters(value):
                yield name
            for method, member in vars(value).items():
                function = inspect.unwrap(getattr(member, "__func__", member))
                local = inspect.isfunction(function) and function.__module__ == module.__name__
                if local and not method.startswith("_") and not getattr(function, "__override__", False):
                    yield f"{name}.{method}"


def faults(name: str) -> list[str]:
    """Return what numpydoc says of a module's documentation."""
    module = import_module(name)
    paths = [f"{name}.{path}" for path in documented(module)]
    return [f"{path}: {text}" for path in paths for code, text in validate(path)["errors"] if code in CHECKS]


@pytest.mark.parametrize("name", MODULES)
def test_parameters_and_results_are_documented(name):
    assert not faults(name)
