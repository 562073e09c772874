"""The file ``runs.jsonl`` of a comparison's folder: a line of JSON for each run.

The file may come from anyone, so the type and range of every value are checked where it is read.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fedpca_flwr.config.explain import explain_entry
from fedpca_flwr.config.run_config import MAX_KEY_CHARACTERS
from fedpca_flwr.data.partition import PARTITIONS, WITH_ALPHA
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.model_file import measurements_from_json, measurements_to_json
from fedpca_flwr.protocol.registry import NAME
from fedpca_flwr.simulations import ENGINES
from fedpca_flwr.simulations.records import AS_GIVEN, Record, run_identity
from fedpca_flwr.state.files import SHARED, atomic_file, parse_json

RUNS = "runs.jsonl"

Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
Angle = Annotated[float, Field(ge=0, le=90.001)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Natural = Annotated[int, Field(ge=1, le=10**9)]
Text = Annotated[str, Field(max_length=10_000)]
Place = Annotated[str, Field(max_length=10_000, pattern=r"^[^\x00]*$")]

# type of a line; a model is a path in the folder, and other keys are not read
StoredRecord = TypedDict(
    "StoredRecord",
    {
        "method": Annotated[str, Field(max_length=MAX_KEY_CHARACTERS, pattern=f"^{NAME.pattern}$")],
        "options": dict[Text, bool | int | Number | Text],
        "dataset": Text,
        "data root": Place,
        "partition": Literal[*PARTITIONS, AS_GIVEN],  # type: ignore[valid-type]
        "alpha": Annotated[float, Field(gt=0, le=1e9)] | None,
        "clients": Natural,
        "components": Natural,
        "seed": Count,
        "engine": Literal[*ENGINES],  # type: ignore[valid-type]
        "knn": bool,
        "bound": Annotated[float, Field(ge=0, le=1e300)],
        "model": Annotated[str, Field(pattern=r"^models/[0-9a-f]{16}\.npz$")] | None,
        "max angle": Angle | None,
        "mean angle": Angle | None,
        "captured variance": NotRequired[Number | None],
        "explained variance": Number | None,
        "rounds": Count,
        "MB up": Annotated[float, Field(ge=1e-9, le=1e15)],  # on a logarithmic axis
        "MB down": Amount,
        "seconds": Amount,
        "knn accuracy": Number | None,
        "pooled knn accuracy": NotRequired[Number | None],
        "exact": bool,
        "notes": NotRequired[list[Text]],
        "measured": dict[Text, Number | Literal["infinity"]],
        "chosen": NotRequired[Text | None],
        "date": NotRequired[Text],
        "versions": NotRequired[dict[Text, Text]],
        "error": NotRequired[Text],
    },
)
STORED_RECORD: TypeAdapter[Any] = TypeAdapter(StoredRecord)


def read_records(folder: Path) -> list[Record]:
    """Read the last record of each run in ``runs.jsonl``, and remove an unfinished line; or raise ConfigError."""
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
            records.append(_parse_record(line))
        except ValueError as error:
            fault = "it is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            advice = "The file is not of a comparison, or by an older version; name a new folder"
            raise ConfigError(f"{target}, line {number}: {fault}. {advice}") from None
    if cut:  # no newline at the end: the line was being written
        with atomic_file(target, SHARED) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    return list({run_identity(record): record for record in records}.values())


def _parse_record(line: str) -> Record:
    """Parse a line of JSON as the record of a run, or raise a ValueError."""
    record = parse_json(line)
    if not isinstance(record, dict):
        raise ValueError("it is no record")
    record.setdefault("bound", 0.0)  # a record of before there was this key
    try:
        stored: Record = STORED_RECORD.validate_python(record, strict=True)
    except ValidationError as error:
        raise ValueError(explain_entry(StoredRecord, error.errors(), "record")) from None
    if (stored["alpha"] is None) == (stored["partition"] in WITH_ALPHA):
        raise ValueError(f"'alpha' is {stored['alpha']}, which does not go with partition '{stored['partition']}'")
    return {**stored, "measured": measurements_from_json(stored["measured"])}


def remove_runs(folder: Path) -> None:
    """Remove the records of runs in a folder, the models and the report; raise errors as `read_records` before that."""
    read_records(folder)
    for file in (*folder.glob("models/*.npz"), folder / "report.html", folder / RUNS):
        file.unlink(missing_ok=True)


def append_record(folder: Path, record: Record) -> None:
    """Append the record of a run to a folder's ``runs.jsonl``."""
    with (folder / RUNS).open("a", encoding="utf-8") as stream:
        stream.write(record_line(record) + "\n")


def record_line(record: Record) -> str:
    """Write the record of a run as a line of JSON, without a newline; infinite measurements become texts."""
    measured = {"measured": measurements_to_json(record["measured"])} if "measured" in record else {}
    return json.dumps({**record, **measured}, allow_nan=False)
