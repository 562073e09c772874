"""Print a table of what the documentation claims, measured.

    python -m fedpca_flwr.simulations.benchmarks accuracy --dataset mnist --data-root DEST

--help behind a benchmark's name says what it measures, --quick runs it with its smallest sizes.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from typer.core import TyperGroup

from fedpca_flwr import cli

MODULES = {
    "accuracy": ("accuracy", "coverage", "missing", "robust", "robust-map"),
    "databases": ("databases",),
    "genotypes": ("genotypes",),
    "growth": ("growth", "rivals"),
    "influence": ("influence",),
    "memory": ("memory", "sparse"),
    "messages": ("compression", "front", "truncation"),
    "privacy": ("intervals", "privacy"),
    "speed": ("all", "empty-method", "secure", "speed"),
}
NAMES = {name: module for module, names in MODULES.items() for name in names}


class _Benchmarks(TyperGroup):
    """Commands of all benchmarks; only the module of the chosen benchmark is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NAMES:
            ctx.fail(f"there is no benchmark '{cmd_name}'\nBenchmarks: {', '.join(sorted(NAMES))}")
        import_module(f"{__package__}.{NAMES[cmd_name]}")
        from fedpca_flwr.simulations.benchmarks.harness import COMMANDS

        return COMMANDS[cmd_name]


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark that the first argument names, and end the process."""
    texts: Any = {"help": cli.readable(__doc__ or ""), "rich_markup_mode": None}
    program = _Benchmarks(name="benchmarks", context_settings=cli.HELP_OPTIONS, **texts)
    program.main([*arguments], prog_name="python -m fedpca_flwr.simulations.benchmarks")


if __name__ == "__main__":
    main(sys.argv[1:])
