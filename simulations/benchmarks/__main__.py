"""Print a table of what the README claims, measured.

    python -m simulations.benchmarks accuracy --dataset mnist --data-root DEST

Each module of this package that has a ``main`` is one benchmark; ``--help`` behind its name says what it measures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import benchmarks
from ..programs import run_named


def main(arguments: Sequence[str]) -> int:
    return run_named(benchmarks, arguments, kind="benchmark", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
