"""Reproduce a paper's figures and tables as data, plots and a short report.

    python -m simulations.papers personalised --output DIR

An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..programs import run_named
from . import adaptive_rank, personalised, vertical

PAPERS = {paper.PAPER.name: paper.PAPER.main for paper in (adaptive_rank, personalised, vertical)}


def main(arguments: Sequence[str]) -> int:
    return run_named(PAPERS, arguments, kind="paper", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
