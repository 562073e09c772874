"""Reproduce a paper's figures and tables as data, plots and a short report; with 'all', every paper's.

    python -m fedpca_flwr.simulations.papers personalised --output DIR
    python -m fedpca_flwr.simulations.papers all --output DIR --quick

An interrupted run goes on where it stopped.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

import click

from fedpca_flwr import cli

NAMES = ("adaptive-rank", "decentralised", "notes", "personalised", "vertical")


def load(name: str) -> click.Command:
    """Import the module of a paper, or for "all" of all papers, and return its command."""
    module = import_module(f"{__package__}.{'published' if name == 'all' else name.replace('-', '_')}")
    command: click.Command = module.COMMAND if name == "all" else module.PAPER.command()
    return command


def main(arguments: Sequence[str]) -> int:
    """Run the paper's command that the first argument names, with the others as its options; return the exit code."""
    loaders = {name: partial(load, name) for name in (*NAMES, "all")}
    return cli.run_listed(loaders, __doc__, arguments, "python -m fedpca_flwr.simulations.papers")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
