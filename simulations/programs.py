"""Commands of several programs: the first argument names one, and the others are its options."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpca_flwr.errors import FedPCAError


def run_named(
    programs: Mapping[str, Callable[[Sequence[str]], object]], arguments: Sequence[str], *, kind: str, doc: str
) -> int:
    """Run the program that the first argument names on the others; the status of the process.

    Where the name is missing or unknown, ``doc`` and the names of all programs of this ``kind`` are printed.
    """
    name, *rest = arguments or [""]
    if name not in programs:
        given = "" if name in {"", "-h", "--help"} else f"there is no {kind} '{name}'\n\n"
        print(f"{given}{doc}\n{kind.capitalize()}s: {', '.join(sorted(programs))}", file=sys.stderr)
        return 2
    return status_of(lambda: programs[name](rest))


def status_of(program: Callable[[], object]) -> int:
    """Run a program; the status of the process, 2 where an error stands on standard error."""
    try:
        program()
    except (FedPCAError, OSError) as error:
        print(f"{type(error).__name__}: {error} {getattr(error, 'local', '')}".rstrip(), file=sys.stderr)
        return 2
    return 0


def described(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for what stands behind ``python -m``, with its help as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parser(module: str, doc: str | None, options: Mapping[str, Any]) -> argparse.ArgumentParser:
    """The options of what stands behind ``python -m``, with its help.

    An option is given by its default, which is of the same type: a list takes several values, False is a switch. A
    dictionary has the keywords of argparse.
    """
    made = described(module, doc)
    for name, default in options.items():
        keywords: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, dict):
            keywords = default
        elif isinstance(default, bool):
            keywords = {"action": "store_true"}
        elif isinstance(default, list):
            keywords = {"type": type(default[0]), "default": default, "nargs": "*"}
        made.add_argument(f"--{name.replace('_', '-')}", **keywords)
    return made
