"""Reproduce a paper's figures and tables as data, plots and a short report.

    python -m simulations.papers personalised --output DIR

Each module of this package that has a ``main`` is one paper. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence

from fedpca_flwr.errors import FedPCAError
from simulations import papers


def found() -> dict[str, Callable[[Sequence[str]], object]]:
    """What can be reproduced, by name."""
    names = [module.name for module in pkgutil.iter_modules(papers.__path__) if module.name != "__main__"]
    modules = {name: importlib.import_module(f"simulations.papers.{name}") for name in names}
    return {name.replace("_", "-"): module.main for name, module in modules.items() if hasattr(module, "main")}


def main(arguments: Sequence[str]) -> int:
    known = found()
    name, *rest = arguments or [""]
    if name not in known:
        given = "" if name in {"", "-h", "--help"} else f"there is no paper '{name}'\n\n"
        print(f"{given}{__doc__}\nPapers: {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        known[name](rest)
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
