"""Print a table of what the documentation claims, measured.

    python -m fedpca_flwr.simulations.benchmarks accuracy --dataset mnist --data-root DEST

--help behind a benchmark's name says what it measures, --quick runs it with its smallest sizes.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

import click

from fedpca_flwr import cli

MODULES = {
    "accuracy": ("accuracy", "alternatives", "coverage", "missing", "new-rows", "robust", "robust-map", "worth"),
    "genotypes": ("genotypes",),
    "influence": ("influence",),
    "memory": ("memory", "sparse"),
    "messages": ("compression", "front", "truncation"),
    "peaks": ("peaks",),
    "privacy": ("intervals", "privacy"),
    "speed": ("rivals", "secure", "speed"),
}
NAMES = {name: module for module, names in MODULES.items() for name in names}


def load(name: str) -> click.Command:
    """Import the module of a benchmark, a name of `NAMES`, and return its command."""
    import_module(f"{__package__}.{NAMES[name]}")
    command: click.Command = import_module(f"{__package__}.harness").COMMANDS[name]
    return command


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names, with the others as its options; return the exit code."""
    loaders = {name: partial(load, name) for name in NAMES}
    return cli.run_listed(loaders, __doc__, arguments, "python -m fedpca_flwr.simulations.benchmarks")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
