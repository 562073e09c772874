"""What a record of a comparison holds: its folder may come from anyone, so types are checked where it is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fedpca_flwr.packages import strategies

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
    """Refuse what is no record.

    Raises
    ------
    ValueError
        With the key that is not there, or whose value is not what it must be.
    """
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
    if given["method"] not in strategies.METHODS:
        raise ValueError("'method' is none that there is")
