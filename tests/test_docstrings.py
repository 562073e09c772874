"""Public names say what they take, return and raise, by numpydoc's own validation."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pydantic
from numpydoc.validate import validate

import fedpca_flwr
from fedpca_flwr.cli import COMMANDS
from fedpca_flwr.questions import columns_method, method

DOCS = Path(__file__).parents[1] / "docs"
CHECKS = {"PR01", "PR02", "RT01"}
"""Parameters without a text, texts of parameters that there are not, results without a text."""


def objects() -> Iterator[Any]:
    """Yield what the package, the pages of docs and the vocabulary of methods name, and the functions of commands."""
    yield from (getattr(fedpca_flwr, name) for name in fedpca_flwr.__all__)
    yield from (value for module in (method, columns_method) for value in vars(module).values())
    paths = [
        path for page in DOCS.rglob("*.md") for path in re.findall(r"^::: ([\w.]+)", page.read_text("utf-8"), re.M)
    ]
    for path in (*paths, *(function for function, _ in COMMANDS.values())):
        try:
            module = import_module(path)
        except ModuleNotFoundError:
            module, name = import_module(path.rpartition(".")[0]), path.rpartition(".")[2]
            yield getattr(module, name)
        else:
            local = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == path]
            names = getattr(module, "__all__", [name for name in local if not name.startswith("_")])
            yield from (getattr(module, name) for name in names)


def functions(value: Any) -> Iterator[str]:
    """Return the paths of a function, or of a class's methods; a method that overrides another is documented there."""
    path = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if not path.startswith("fedpca_flwr.") or getattr(value, "_is_protocol", False):
        return
    if inspect.isfunction(value):
        yield path
    elif inspect.isclass(value) and not issubclass(value, pydantic.BaseModel):
        for name, member in vars(value).items():
            function = inspect.unwrap(getattr(member, "__func__", member))
            local = inspect.isfunction(function) and function.__qualname__ == f"{value.__qualname__}.{name}"
            if local and not name.startswith("_") and not getattr(function, "__override__", False):
                yield f"{path}.{name}"


def test_public_names_document_parameters_and_results(monkeypatch):
    monkeypatch.delattr(fedpca_flwr.run, "__signature__")  # with the options of all methods, which pages document
    paths = sorted({path for value in objects() for path in functions(value)})
    assert len(paths) > 100
    faults = [f"{path}: {text}" for path in paths for code, text in validate(path)["errors"] if code in CHECKS]
    assert not faults, "\n".join(faults)
