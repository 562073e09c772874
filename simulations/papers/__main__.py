"""Reproduce a paper's figures and tables as data, plots and a short report.

    python -m simulations.papers personalised --output DIR

Each module of this package that has a ``main`` is one paper. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import papers
from ..programs import run_named


def main(arguments: Sequence[str]) -> int:
    return run_named(papers, arguments, kind="paper", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
