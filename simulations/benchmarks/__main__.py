"""Print a table of what the documentation claims, measured.

    python -m fedpca_flwr.simulations.benchmarks accuracy --dataset mnist --data-root DEST

``--help`` behind a benchmark's name says what it measures.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from fedpca_flwr.simulations.programs import run_named

TOPICS = {
    "accuracy": ("accuracy", "coverage", "missing"),
    "databases": ("databases",),
    "engines": ("empty-method", "start"),
    "genotypes": ("genotypes", "restarts"),
    "growth": ("growth", "rivals"),
    "influence": ("groups", "influence"),
    "memory": ("memory", "sparse"),
    "messages": ("adaptive", "compression", "front", "truncation"),
    "privacy": ("intervals", "privacy", "secure"),
    "robust": ("robust", "robust-map"),
    "soak": ("soak",),
    "speed": ("all", "iteration", "many-rows", "parties", "speed", "threads"),
}
"""The benchmarks of each module: a help imports none of these."""


def run_one(topic: str, name: str, arguments: Sequence[str]) -> None:
    """Run a benchmark of a module with these arguments."""
    import_module(f"{__package__}.{topic}")
    from fedpca_flwr.simulations.benchmarks.harness import BENCHMARKS

    BENCHMARKS[name](arguments)


NAMED = {name: partial(run_one, topic, name) for topic, names in TOPICS.items() for name in names}


def main(arguments: Sequence[str]) -> int:
    return run_named(NAMED, arguments, kind="benchmark", doc=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
