"""The door to the methods and the engines: `strategies` and `simulations`, wherever this project has them.

In the wheel both lie inside this package, so that the wheel has one top-level name and meets no folder ``strategies``
and no file ``simulations.py`` of a user's. In the repository they lie beside it. Modules of any other place that have
one of these names are refused, by their path. Whatever crosses from one of the three packages to another goes through
here; imports within each are relative.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import simulations as simulations
    import strategies as strategies

NAMES = ("strategies", "simulations")
HERE = Path(__file__).resolve().parent


def __getattr__(name: str) -> ModuleType:
    """`strategies` and `simulations`, loaded where they are first named."""
    if name not in NAMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return module(name)


def module(name: str) -> ModuleType:
    """A module of either package, by its name in the repository: ``"simulations.engines"``. Where another module of
    that name is found first, it is refused."""
    package, _, within = name.partition(".")
    if (HERE / package).is_dir():
        return import_module(f"fedpca_flwr.{name}")
    found = import_module(package)
    home = Path(found.__file__ or next(iter(found.__path__), "")).resolve()
    if home != HERE.parent / package / "__init__.py":
        raise ImportError(
            f"'{package}' is {home}, but this copy of the project needs {HERE.parent / package}: rename yours, take it "
            "off sys.path, or install the project as a wheel (python -m pip install .), which keeps its own inside"
        )
    return import_module(name) if within else found
