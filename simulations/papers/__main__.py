"""Reproduce a paper's figures and tables as data, plots and a short report; with 'all', every paper's.

    python -m fedpca_flwr.simulations.papers personalised --output DIR
    python -m fedpca_flwr.simulations.papers all --output DIR --quick

An interrupted run goes on where it stopped.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click
from typer.core import TyperCommand

from fedpca_flwr import cli

NAMES = (
    "adaptive-rank",
    "decentralised",
    "notes",
    "personalised",
    "vertical",
)


def load(name: str) -> click.Command:
    """Import a paper, or what reproduces all of them.

    Parameters
    ----------
    name : str
        Name of the paper, or "all".

    Returns
    -------
    click.Command
        The command.
    """
    module = import_module(f"{__package__}.{'published' if name == 'all' else name.replace('-', '_')}")
    command: click.Command = module.COMMAND if name == "all" else module.PAPER.command()
    return command


def main(arguments: Sequence[str]) -> int:
    """Reproduce the paper that the first argument names.

    Parameters
    ----------
    arguments : sequence of str
        Name of the paper, and its options.

    Returns
    -------
    int
        Exit code.
    """
    commands: dict[str, click.Command] = {
        name: TyperCommand(name, callback=partial(load, name)) for name in (*NAMES, "all")
    }
    texts: Any = {"help": cli.readable(__doc__), "context_settings": cli.HELP_OPTIONS, "rich_markup_mode": None}
    group = cli.Group(commands=commands, **texts)
    return cli.run(group, arguments, "python -m fedpca_flwr.simulations.papers")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
