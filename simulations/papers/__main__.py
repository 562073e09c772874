"""Reproduce a paper's figures and tables as data, plots and a short report.

    python -m simulations.papers personalised --output DIR

An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from ..programs import run_named


def reproduce(name: str, arguments: Sequence[str]) -> None:
    """Reproduce a paper, whose module is imported here: a help needs none."""
    import_module(f"{__package__}.{name.replace('-', '_')}").PAPER.main(arguments)


PAPERS = {name: partial(reproduce, name) for name in ("adaptive-rank", "personalised", "vertical")}


def main(arguments: Sequence[str]) -> int:
    return run_named(PAPERS, arguments, kind="paper", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
