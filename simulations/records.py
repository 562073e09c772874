"""The runs of comparisons: their records, and their names."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fedpca_flwr.config.method_text import format_method, non_defaults, parse_options, split_method_text
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.card import Disclosure, MethodCard, PCAOptions
from fedpca_flwr.strategies import METHODS

Record = dict[str, Any]

AS_GIVEN = "as given"  # partition of a setting whose tables are the parties' already
# keys of a setting; but for the seed, their values are equal in all runs that are compared with each other
SETTING = ("dataset", "data root", "partition", "alpha", "clients", "components", "seed", "engine", "knn", "bound")

# flags of the command `compare`, by the key of run-config that each sets
FLAGS = {key: f"--{key}" for key in ("clients", "data-root", "n-components", "output")}
FLAGS |= {key: f"--{key}s" for key in ("dataset", "partition", "alpha", "seed")}
FLAGS["bound"] = FLAGS["secure-aggregation"] = "--bounds, which makes runs with secure aggregation"


def parse_method(method: str) -> tuple[str, Record]:
    """Split a method's text, as ``"sub-it block-size=10"``, into name and other options, or raise ConfigError."""
    source = f"method '{method}'"
    keys = [word.partition("=")[0].replace("_", "-") for word in split_method_text(method, source)[1]]
    if flags := [key for key in keys if key in FLAGS]:
        lines = (f"{source}: '{key}' is of all methods of a comparison: use {FLAGS[key]}" for key in flags)
        raise ConfigError("\n".join(lines))
    card = METHODS.parse_method(method, source).strategy.card
    return card.name, non_defaults(parse_options(method, card.options, {}, source))


def card_of(method: str) -> MethodCard:
    """Return a method's card (declaration of options and properties); `ABSENT` for a class of another process."""
    return METHODS[method].strategy.card if method in METHODS else ABSENT


# card of a method whose class was in the process of the run only
ABSENT = MethodCard(
    name="absent",
    title="A class that this process does not have",
    exact=False,
    rounds="",
    upload="",
    server_sees="what its class says, which this process does not have",
    disclosure=Disclosure(""),
    options=PCAOptions,
    script=lambda config, options: {},
    reference="",
)


def is_installed(method: str) -> bool:
    """Return whether a method is installed; it is not if it is a class of this process or of another."""
    return method in METHODS and METHODS.class_of(method) is None


def method_text(record: Record) -> str:
    """Write a run's method with its options, as ``"sub-it block-size=10"``."""
    return format_method(record["method"], record["options"])


def group_by_setting(records: Iterable[Record]) -> list[list[Record]]:
    """Group the records of runs that differ only in methods and seeds, in the order in which settings first occur."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps([*(record[key] for key in SETTING if key != "seed"), *preprocessing(record)])
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def preprocessing(record: Record) -> tuple[bool, bool]:
    """Return whether a run centres, and whether the run scales, the features."""
    options = record["options"]
    if options.get("column-weights"):
        raise ConfigError("a comparison takes no 'column-weights': all its methods have the same reference")
    return bool(options.get("center", True)), bool(options.get("scale", False))


def setting_title(runs: Sequence[Record]) -> str:
    """Write the title of the runs' setting: data, partition, clients, components, seeds and whatever is not usual."""
    record = runs[0]
    alpha = "" if record["alpha"] is None else f" {record['alpha']:.12g}"
    parts = [record["dataset"], f"{record['partition']}{alpha}", f"{record['clients']} clients"]
    parts += [f"{record['components']} components", _seeds_text({run["seed"] for run in runs})]
    centred, scaled = preprocessing(record)
    parts += ["features scaled"] * scaled + ["rows about zero"] * (not centred)
    parts += [f"secure sums, bound {record['bound']:g}"] if record["bound"] else []
    parts += ["with k-NN(5)"] if record["knn"] else []
    parts += [f"engine {record['engine']}"] if record["engine"] != "loopback" else []
    named_by_digest = record["data root"] == "." or record["partition"] == AS_GIVEN
    return ", ".join(parts) + ("" if named_by_digest else f" (data of {record['data root']})")


def _seeds_text(seeds: set[int]) -> str:
    """Write the seeds of a setting: a single seed, from the first to the last, or all of a few."""
    first, last = min(seeds), max(seeds)
    if len(seeds) == 1:
        return f"seed {first}"
    if last - first == len(seeds) - 1:
        return f"seeds {first} to {last}"
    return f"seeds {', '.join(map(str, sorted(seeds)))}" if len(seeds) <= 8 else f"{len(seeds)} seeds"


def run_identity(record: Record) -> str:
    """Return a run's method, options and setting as JSON; runs with equal texts are the same run."""
    return json.dumps([record[key] for key in ("method", "options", *SETTING)], sort_keys=True)


# heads of the columns of results, by key of a record, in the order of the table
HEADS = {
    "max angle": "max angle (degrees)",
    "mean angle": "mean angle (degrees)",
    "captured variance": "variance captured",
    "explained variance": "variance claimed",
    "rounds": "rounds",
    "MB up": "up per client (mean)",
    "MB down": "down per client (mean, before the last round)",
    "seconds": "seconds",
    "knn accuracy": "k-NN(5)",
}
# note of a table: which rounds and bytes are counted
COUNTS_NOTE = (
    "Rounds and bytes are those of the fit, and bytes are means over the clients. They leave out the last round, in "
    "which each client gets the components and reports its squared error. The bytes down in the summary of a run "
    "include the last round."
)

COUNTS = {"rounds", "MB up", "MB down"}
ANGLES = {"max angle", "mean angle"}
SIZES = {"MB up", "MB down"}
SHARES = {"captured variance", "explained variance", "knn accuracy"}


def columns_of(records: Sequence[Record]) -> list[str]:
    """Return the keys of `HEADS` for which any record has a result; the first key alone, for errors, if none has."""
    return [key for key in HEADS if any(record.get(key) is not None for record in records)] or [*HEADS][:1]


def format_result(record: Record, key: str) -> str:
    """Format a result with its unit, and half the interval of a mean of several runs; empty without a result."""
    value = record.get(key)
    if value is None:
        return ""
    half_width = record.get("intervals", {}).get(key)
    text = _format_number(value, key, 3)
    if half_width is None or _format_number(half_width, key, 2) == _format_number(0.0, key, 2):
        return text
    if half_width > value:  # no result is below zero
        return f"{text} (0 to {_format_number(interval_ends(value, half_width, key)[1], key, 2)})"
    return f"{text} ± {_format_number(half_width, key, 2)}"


def _format_number(value: Any, key: str, digits: int) -> str:
    """Format a number with the unit of the result ``key``, to ``digits`` significant digits."""
    if key in SHARES:
        return f"{value:.2%}"
    if key in SIZES:
        return f"{_round(value, digits)} MB" if value >= 1 else f"{_round(1e3 * value, digits)} kB"
    return _round(value, digits) if isinstance(value, float) else str(value)


def _round(value: float, digits: int) -> str:
    """Format a number to significant digits, without an exponent from 0.0001 to a billion."""
    return f"{float(f'{value:.{digits}g}'):.10g}"


def interval_ends(value: float, half_width: float, key: str) -> tuple[float, float]:
    """Return the ends of an interval of a result: none is below 0, and no share above 1."""
    return max(0.0, value - half_width), min(value + half_width, 1.0 if key in SHARES else float("inf"))
