"""The runs of comparisons: lines of JSON in a folder's ``runs.jsonl``, their names, and commands that repeat them.

A folder gathers the runs of every comparison that named it. Runs are of one setting where only their methods differ.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.files import written_whole
from strategies import method_named

Record = dict[str, Any]

RUNS = "runs.jsonl"

SETTING = ("dataset", "data root", "partition", "alpha", "clients", "components", "seed", "engine", "knn")
"""What a run has in common with those that it is compared with."""


def parsed(method: str) -> tuple[str, Record]:
    """``"sub-it block-size=10"`` as name and options, those of the method or ``secure-aggregation`` and ``bound``.

    Raises
    ------
    ConfigError
        For a word that is not ``key=value``, an unknown method or option, or a value that is not allowed.
    """
    name, *words = method.split() or [""]
    known = method_named(name).strategy.card.options
    options: Record = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"method '{method}': '{word}' is not an option, expected key=value")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    own = {key: value for key, value in options.items() if key not in {"secure-aggregation", "bound"}}
    if "n-components" in own:
        raise ConfigError(f"method '{method}': the number of components is that of the comparison (--components)")
    known.parse(own, source=f"method '{method}'")
    return name, options


def named(record: Record) -> str:
    """A run's method with its options, as `parsed` reads it."""
    return " ".join([record["method"], *(f"{key}={_told(value)}" for key, value in record["options"].items())])


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def by_setting(records: Iterable[Record]) -> list[list[Record]]:
    """The records in groups of one setting, in the order in which the settings first occur."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(json.dumps([record[key] for key in SETTING]), []).append(record)
    return list(groups.values())


def command(group: list[Record]) -> str:
    """The command that repeats the runs of one setting, on one line."""
    one = group[0]
    words = ["python", "-m", "simulations.compare", "--methods", *map(named, group), "--dataset", one["dataset"]]
    words += ["--data-root", one["data root"]] if one["data root"] != "." else []
    words += ["--partition", one["partition"], *([] if one["alpha"] is None else ["--alpha", repr(one["alpha"])])]
    for key in ("clients", "components", "seed", "engine"):
        words += [f"--{key}", str(one[key])]
    return shlex.join(words + (["--knn"] if one["knn"] else []))


def identity(record: Record) -> str:
    """What makes a run this one and no other."""
    return json.dumps([record[key] for key in ("method", "options", *SETTING)], sort_keys=True)


def read(folder: Path) -> list[Record]:
    """The records in a folder; a last line that was cut short is left out, and taken out of the file.

    Raises
    ------
    ConfigError
    """
    target = folder / RUNS
    if not target.exists():
        return []
    try:
        *lines, cut = target.read_text().split("\n")
        records = [json.loads(line) for line in lines]
        for record in records:
            identity(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{target} is not a file of a comparison ({type(error).__name__}); name another") from None
    if cut:  # no newline at the end: the line was being written
        with written_whole(target) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    return records


def append(folder: Path, record: Record) -> None:
    """Add a record to those in a folder."""
    with (folder / RUNS).open("a") as stream:
        stream.write(json.dumps(record) + "\n")
