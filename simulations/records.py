"""The runs of comparisons: lines of JSON in a folder's ``runs.jsonl``, their names, and commands that repeat them.

A folder gathers the runs of every comparison that named it. Runs are of one setting where only their methods differ,
and both scale the features or neither does.
A folder may come from anyone, so types are checked where it is read. `HEADS` are the columns that show results.
"""

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fedpca_flwr.config.method_text import format_method, non_defaults, parse_options, split_method_text
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.model_file import measurements_from_json, measurements_to_json
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.state.files import atomic_file
from fedpca_flwr.strategies import METHODS

Record = dict[str, Any]

RUNS = "runs.jsonl"

AS_GIVEN = "as given"
"""The partition of tables that are the parties' own."""

SETTING = ("dataset", "data root", "partition", "alpha", "clients", "components", "seed", "engine", "knn", "bound")
"""What a run has in common with those that it is compared with."""

FLAGS = {
    "n-components": "--components",
    "clients": "--clients",
    "dataset": "--dataset",
    "data-root": "--data-root",
    "partition": "--partition",
    "alpha": "--alpha",
    "seed": "--seed",
    "secure-aggregation": "--bound, which makes runs with secure aggregation",
    "bound": "--bound, which makes runs with secure aggregation",
    "output": "--output",
}
"""Keys of a run, and what of `fedpca_flwr.compare` stands for them."""


def parsed(method: str) -> tuple[str, Record]:
    """``"sub-it block-size=10"`` as name and options, those alone that are not the defaults.

    Refused are an unknown method or option, one that is given twice, a value that is not allowed, and a key of the run,
    which is a flag here.
    """
    source = f"method '{method}'"
    keys = [word.partition("=")[0].replace("_", "-") for word in split_method_text(method, source)[1]]
    if flags := [key for key in keys if key in FLAGS]:
        said = (f"{source}: '{key}' is of all methods of a comparison: use {FLAGS[key]}" for key in flags)
        raise ConfigError("\n".join(said))
    card = METHODS.parse_method(method, source).strategy.card
    return card.name, non_defaults(parse_options(method, card.options, {}, source))


def card_of(method: str) -> MethodCard:
    """What a method says of itself."""
    card: MethodCard = METHODS[method].strategy.card
    return card


def named(record: Record) -> str:
    """A run's method with its options, as `parsed` reads it."""
    return format_method(record["method"], record["options"])


def by_setting(records: Iterable[Record]) -> list[list[Record]]:
    """The records in groups of one setting, in the order in which the settings first occur."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps([*(record[key] for key in SETTING), *rows_taken(record)])
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def rows_taken(record: Record) -> tuple[bool, bool]:
    """Whether a run is of rows about their mean, and scaled: each is a PCA of its own, and has a truth of its own."""
    options = record["options"]
    return bool(options.get("center", True)), bool(options.get("scale", False))


def title(record: Record) -> str:
    """What the runs of one setting have in common."""
    alpha = "" if record["alpha"] is None else f" {record['alpha']!r}"
    said = [record["dataset"], f"{record['partition']}{alpha}", f"{record['clients']} clients"]
    said += [f"{record['components']} components", f"seed {record['seed']}"]
    centred, scaled = rows_taken(record)
    said += ["features scaled"] * scaled + ["rows about zero"] * (not centred)
    said += [f"secure sums, bound {record['bound']:g}"] if record["bound"] else []
    said += ["with k-NN(5)"] if record["knn"] else []
    said += [f"engine {record['engine']}"] if record["engine"] != "loopback" else []
    named_by_digest = record["data root"] == "." or record["partition"] == AS_GIVEN
    return ", ".join(said) + ("" if named_by_digest else f" (data of {record['data root']})")


def command(group: list[Record]) -> str:
    """The command that repeats the runs of one setting, on one line."""
    one = group[0]
    words = ["python", "-m", "fedpca_flwr", "compare", "--methods", *map(named, group)]
    if one["partition"] == AS_GIVEN:
        words += ["--data", *(one["data root"].split(os.pathsep) if one["data root"] != "." else ["FILE"])]
    else:
        words += ["--dataset", one["dataset"]] + (["--data-root", one["data root"]] if one["data root"] != "." else [])
        words += ["--partition", one["partition"], *([] if one["alpha"] is None else ["--alpha", repr(one["alpha"])])]
        words += ["--clients", str(one["clients"])]
    for key in ("components", "seed", "engine"):
        words += [f"--{key}", str(one[key])]
    words += ["--bound", repr(one["bound"])] if one["bound"] else []
    return shlex.join(words + (["--knn"] if one["knn"] else []))


def identity(record: Record) -> str:
    """What makes a run this one and no other."""
    return json.dumps([record[key] for key in ("method", "options", *SETTING)], sort_keys=True)


def read(folder: Path) -> list[Record]:
    """The records in a folder; a last line that was cut short is left out, and taken out of the file."""
    target = folder / RUNS
    if not target.exists():
        return []
    try:
        *lines, cut = target.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{target} is not a file of a comparison ({type(error).__name__}); name another") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(line))
        except (ValueError, RecursionError) as error:
            why = "it is no JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
            raise ConfigError(
                f"{target}, line {number}: {why}. The file is not of a comparison, or by an older version; name a new "
                "folder"
            ) from None
    if cut:  # no newline at the end: the line was being written
        with atomic_file(target) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    return records


def _record(line: str) -> Record:
    """A line's record; `ValueError` for what is none."""
    record = json.loads(line)
    if isinstance(record, dict):
        record.setdefault("bound", 0.0)  # a record of before there was this key
    require_record(record)
    return {**record, "measured": measurements_from_json(record["measured"])}


def forget(folder: Path) -> None:
    """Remove the runs in a folder, with their models and report; nothing else, and nothing of another kind."""
    read(folder)  # or it is no folder of a comparison, and nothing is removed
    for made in (*folder.glob("models/*.npz"), folder / "report.html", folder / RUNS):
        made.unlink(missing_ok=True)


def append(folder: Path, record: Record) -> None:
    """Add a record to those in a folder."""
    with (folder / RUNS).open("a", encoding="utf-8") as stream:
        stream.write(
            json.dumps({**record, "measured": measurements_to_json(record["measured"])}, allow_nan=False) + "\n"
        )


Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(max_length=10_000)]

TYPES: dict[str, Any] = {
    "method": Text,
    "options": dict[Text, bool | int | Number | Text],
    "dataset": Text,
    "data root": Text,
    "partition": Text,
    "alpha": Number | None,
    "clients": Count,
    "components": Count,
    "seed": Count,
    "engine": Text,
    "knn": bool,
    "bound": Number,
    "model": Annotated[str, Field(pattern=r"^models/[0-9a-f]{16}\.npz$")] | None,
    "max angle": Number | None,
    "mean angle": Number | None,
    "captured variance": Number | None,
    "explained variance": Number | None,
    "rounds": Count,
    "MB up": Number,
    "MB down": Number,
    "seconds": Number,
    "knn accuracy": Number | None,
    "pooled knn accuracy": Number | None,
    "exact": bool,
    "notes": list[Text],
    "measured": dict[Text, Number | Literal["infinity"]],
    "chosen": Text | None,
    "date": Text,
    "versions": dict[Text, Text],
    "error": Text,
}
"""By key; of a model, the file is in the folder's own."""

LATER = {"captured variance", "notes", "pooled knn accuracy", "chosen", "date", "versions", "error"}
"""What not every record has."""
ADAPTERS = {key: TypeAdapter[Any](kind) for key, kind in TYPES.items()}


def require_record(given: Any) -> None:
    """Refuse what is no record: a `ValueError` names the key that is missing, or whose value is not what it must be."""
    if not isinstance(given, dict):
        raise ValueError("it is no record")
    for key, adapter in ADAPTERS.items():
        if key not in given:
            if key in LATER:
                continue
            raise ValueError(f"'{key}' is missing")
        try:
            adapter.validate_python(given[key], strict=True)
        except ValidationError:
            raise ValueError(f"'{key}' is not what it must be") from None
    if given["method"] not in METHODS:
        raise ValueError("'method' is none that there is")


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
"""What stands above the results of a record, by their key, in their order."""

COUNTED = (
    "Rounds and bytes are those of the fit, bytes the mean over the clients. The last round, "
    "in which each client gets the components and says its squared error, is not among them; the bytes down in the "
    "summary of a run have it, too."
)
"""What is counted as rounds, and as bytes up and down."""

COUNTS = {"rounds", "MB up", "MB down"}
SIZES = {"MB up", "MB down"}
SHARES = {"captured variance", "explained variance", "knn accuracy"}


def columns_of(records: Sequence[Record]) -> list[str]:
    """The keys that any of the records has a result for; the first, under which errors stand, where none has any."""
    return [key for key in HEADS if any(record.get(key) is not None for record in records)] or [*HEADS][:1]


def shown(record: Record, key: str) -> str:
    """A result as text; empty where there is none."""
    value = record.get(key)
    if value is None:
        return ""
    if key in SHARES:
        return f"{value:.2%}"
    if key in SIZES:
        return f"{value:.3g} MB" if value >= 1 else f"{1e3 * value:.3g} kB"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
