"""One command for the programs of a package: each module of it that has a ``main`` is one, by its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from fedpca_flwr.errors import FedPCAError


def found(package: ModuleType) -> list[str]:
    """The programs of a package by name, told by their text: importing all of them takes seconds."""
    files = sorted(path for folder in package.__path__ for path in Path(folder).glob("*.py"))
    programs = [path.stem for path in files if re.search(r"^def main\(", path.read_text(encoding="utf-8"), re.M)]
    return [name.replace("_", "-") for name in programs if name != "__main__"]


def program(package: ModuleType, name: str) -> Callable[[Sequence[str]], object]:
    """One of them."""
    main: Callable[[Sequence[str]], object] = import_module(f"{package.__name__}.{name.replace('-', '_')}").main
    return main


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
        status = program(package, name)(rest)
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return status if isinstance(status, int) else 0
