"""The commands: ``python -m fedpca_flwr COMMAND``, which is ``fedpca COMMAND`` where the project is installed."""

import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "compare": ("fedpca_flwr.simulations.compare", "run several methods on the same parties, and recommend one"),
    "report": ("fedpca_flwr.simulations.report", "write the page of a comparison again"),
    "launch": (
        "fedpca_flwr.site.flower_command",
        "start `flwr run --stream`, and end with an exit code that says how the run ended",
    ),
    "cells": ("fedpca_flwr.simulations.cells", "embed the single cells of several .h5ad files together, by Harmony"),
    "genotypes": ("fedpca_flwr.simulations.genotypes", "plot the people of several .bed files on their components"),
    "monitor": ("fedpca_flwr.simulations.monitor", "look for odd rows and for drift in new rows"),
    "methods": ("fedpca_flwr.strategies.__main__", "list the methods, their rounds and their privacy"),
    "rehearse": ("fedpca_flwr.site.commands", "run a whole deployment on this machine, with secure sums and a dropout"),
    "site": ("fedpca_flwr.site.commands", "manage a site's keys, journal and certificates"),
}
"""By command: where its `main` is, and what it does."""

HELP = "\n".join(
    [
        "Federated PCA on Flower. Start a run with `flwr run .` in the repository, or in Python:",
        '  from fedpca_flwr import run; print(run("p-cov", {"north": X, "south": Y}, n_components=2).summary())',
        "Commands (`python -m fedpca_flwr COMMAND -h` lists the options of one):",
        *(f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items()),
    ]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit status, 2 where there is no such command."""
    command, *given = (sys.argv[1:] if arguments is None else arguments) or ["-h"]
    if command in {"-h", "--help"}:
        print(HELP)
        return 0
    if command not in COMMANDS:
        print(f"fedpca: '{command}' is no command, expected one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module = import_module(COMMANDS[command][0])
    if command not in {"rehearse", "site"}:
        return int(module.main(given) or 0)
    from fedpca_flwr.strategies import FACTORY

    module.main([command, *given] if command == "rehearse" else given, FACTORY)
    return 0
