"""One command for the programs of a package: each module of it that has a ``main`` is one, by its name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from fedpca_flwr.errors import FedPCAError


def found(package: ModuleType) -> dict[str, Callable[[Sequence[str]], object]]:
    """The programs of a package, by name."""
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "__main__"]
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {name.replace("_", "-"): module.main for name, module in modules.items() if hasattr(module, "main")}


def run_named(package: ModuleType, arguments: Sequence[str], *, kind: str, doc: str) -> int:
    """Run the program that the first argument names with the others; its status.

    Parameters
    ----------
    package : module
    arguments : sequence of str
    kind : str
        What its programs are: for texts.
    doc : str
        What is printed before their names, where the name is missing or unknown.
    """
    known = found(package)
    name, *rest = arguments or [""]
    if name not in known:
        given = "" if name in {"", "-h", "--help"} else f"there is no {kind} '{name}'\n\n"
        print(f"{given}{doc}\n{kind.capitalize()}s: {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        status = known[name](rest)
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return status if isinstance(status, int) else 0
