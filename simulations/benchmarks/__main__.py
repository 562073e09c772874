"""Print a table of what the documentation claims, measured.

    python -m simulations.benchmarks accuracy --dataset mnist --data-root DEST

``--help`` behind a benchmark's name says what it measures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..programs import run_named
from . import accuracy, databases, engines, genotypes, influence, memory, messages, privacy, published, speed
from .harness import BENCHMARKS

TOPICS = (accuracy, databases, engines, genotypes, influence, memory, messages, privacy, published, speed)
"""The modules that fill `BENCHMARKS`."""


def main(arguments: Sequence[str]) -> int:
    return run_named(BENCHMARKS, arguments, kind="benchmark", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
