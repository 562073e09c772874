"""Print a table of what the documentation claims, measured.

    python -m simulations.benchmarks accuracy --dataset mnist --data-root DEST

``--help`` behind a benchmark's name says what it measures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedpca_flwr.errors import FedPCAError

from . import accuracy, databases, engines, genotypes, influence, memory, messages, privacy, published, speed
from .harness import BENCHMARKS

TOPICS = (accuracy, databases, engines, genotypes, influence, memory, messages, privacy, published, speed)
"""The modules that have them."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names with the others; the status."""
    name, *rest = arguments or [""]
    if name not in BENCHMARKS:
        given = "" if name in {"", "-h", "--help"} else f"there is no benchmark '{name}'\n\n"
        print(f"{given}{__doc__}\nBenchmarks: {', '.join(sorted(BENCHMARKS))}", file=sys.stderr)
        return 2
    try:
        BENCHMARKS[name](rest)
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
