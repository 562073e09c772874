"""Reproduce a paper's figures and tables as data, plots and a short report; with 'all', every paper's.

    python -m fedpca_flwr.simulations.papers personalised --output DIR
    python -m fedpca_flwr.simulations.papers all --output DIR --quick

An interrupted run goes on where it stopped.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from fedpca_flwr.simulations.programs import run_named


def reproduce(name: str, arguments: Sequence[str]) -> None:
    """Reproduce a paper, whose module is imported here: a help needs none."""
    import_module(f"{__package__}.{name.replace('-', '_')}").PAPER.main(arguments)


def reproduce_all(arguments: Sequence[str]) -> None:
    """Reproduce every paper, and hold the numbers against their intervals."""
    import_module(f"{__package__}.published").everything(arguments)


NAMES = (
    "adaptive-rank",
    "decentralised",
    "notes",
    "personalised",
    "vertical",
)
PAPERS: dict[str, Callable[[Sequence[str]], None]] = {
    "all": reproduce_all,
    **{name: partial(reproduce, name) for name in NAMES},
}


def main(arguments: Sequence[str]) -> int:
    return run_named(PAPERS, arguments, kind="paper", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
