"""How errors of a configuration are told: every key at fault, its value where that may be shown, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fedpca_flwr.errors import ConfigError, value_text

OLD_KEYS = {
    "ledger": "name a folder as 'journal', where what was spent is kept too; what the old file lists is not read, so "
    "lower 'epsilon-budget' by it",
    "group-secret": "sites know each other by 'identity', the file of a site's own private key, and 'identities', that "
    "of all sites' public keys ('python -m fedpca_flwr site keys' makes them); a secret that only salts ids is named "
    "as 'ids-secret'",
}
"""Of node-configs of before, and what to do instead."""

LONGEST_KEY = 64
"""Characters of a key, or of an option's name."""

LONGEST_TEXT = 10_000
"""Characters of a value."""

MOST_KEYS = 100
"""Keys of a configuration, and options of a method."""


BITS = 1024
"""Of a whole number; no float is larger."""


def require_short(values: Mapping[str, Any], source: str, long: Mapping[str, int] = MappingProxyType({})) -> None:
    """Refuse what is longer than any configuration is, before it costs time: who sends it may be anyone.

    Parameters
    ----------
    values : mapping
    source : str
        How the text names the configuration.
    long : mapping of str to int
        Keys whose texts may be longer, and how long.

    Raises
    ------
    ConfigError
        Of the first fault, in whose text nothing is longer than it should be.
    """
    if len(values) > MOST_KEYS:
        raise ConfigError(f"{source}: it has {len(values):,} keys, expected at most {MOST_KEYS}")
    for key, value in values.items():
        if len(key) > LONGEST_KEY:
            raise ConfigError(f"{source}: a key has {len(key):,} characters, expected at most {LONGEST_KEY}")
        if isinstance(value, int) and value.bit_length() > BITS:  # Python writes no number of thousands of digits
            raise ConfigError(f"{source}: {value_text(key)} is a whole number of more than {BITS:,} bits")
        most = long.get(key.replace("_", "-"), LONGEST_TEXT)
        if isinstance(value, str | bytes) and len(value) > most:
            raise ConfigError(f"{source}: {value_text(key)} has {len(value):,} characters, expected at most {most:,}")


def explain(
    source: str, faults: list[Any], strangers: list[str], fields: Mapping[str, FieldInfo], *, public: bool
) -> str:
    """A line for each key at fault.

    Parameters
    ----------
    source : str
        How the text names the configuration.
    faults : list
        pydantic's.
    strangers : list of str
        Keys that there are not.
    fields : mapping of str to FieldInfo
        Those that there are, by key.
    public : bool
        Whether values that are not numbers may be shown.
    """
    lines, known = [], list(fields)
    for key in strangers:
        near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(known)}"
        lines.append(f"{source}: unknown key {value_text(key)}{hint}")
    by_key: dict[str, list[Any]] = {}
    for fault in faults:
        if not fault["loc"]:  # a check of several keys together; its text names them
            lines.append(f"{source}: {fault['msg']}")
            continue
        by_key.setdefault(str(fault["loc"][0]).replace("_", "-"), []).append(fault)
    for key, own in by_key.items():
        if own[0]["type"] == "missing":
            lines.append(f"{source}: '{key}' is missing")
            continue
        given = own[0]["input"]
        shown = public or isinstance(given, int | float)
        value = f"is {value_text(given)}" if shown else "has a value that is not allowed"
        lines.append(f"{source}: '{key}' {value}, {_reason(own, fields[key])}")
    return "\n".join(lines)


def _reason(faults: list[Any], field: FieldInfo) -> str:
    """What is allowed; of a check of our own, what it says."""
    own = [str(fault["msg"]) for fault in faults if "url" not in fault]  # pydantic's have one
    return own[0] if own else f"expected {allowed(field.annotation, field.metadata)}"


def allowed(annotation: Any, limits: Sequence[Any] = ()) -> str:
    """The values of a type, in words.

    Parameters
    ----------
    annotation : type
        Of a key: what there is in `fedpca_flwr.config` and in methods' options.
    limits : sequence
        annotated_types' ``Ge``, ``Gt``, ``Le``, ``Lt``, and those of a text.
    """
    *others, last = dict.fromkeys(_alternatives(annotation, limits))
    return f"{', '.join(others)} or {last}" if others else last


def _alternatives(annotation: Any, limits: Sequence[Any]) -> list[str]:
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        inner = [limit for one in parts[1:] for limit in getattr(one, "metadata", [one])]
        return _alternatives(parts[0], [*limits, *inner])
    if kind in (Union, UnionType):
        return [words for part in parts if part is not NoneType for words in _alternatives(part, limits)]
    if kind is Literal:
        return [repr(part) for part in parts]
    if annotation is bool:
        return ["true or false"]
    return [_number(annotation, limits) if annotation in (int, float) else _text(limits)]


def _number(kind: type, limits: Sequence[Any]) -> str:
    found = {name: getattr(one, name) for one in limits for name in ("ge", "gt", "le", "lt") if hasattr(one, name)}
    words = "a whole number" if kind is int else "a number" if {"le", "lt"} & set(found) else "a finite number"
    if {"gt", "lt"} <= set(found):
        return f"{words} between {found['gt']:g} and {found['lt']:g}"
    names = {"ge": "from", "gt": "above", "le": "and at most" if "gt" in found else "to", "lt": "below"}
    return " ".join([words, *(f"{names[name]} {found[name]:g}" for name in names if name in found)])


def _text(limits: Sequence[Any]) -> str:
    long = [one.max_length for one in limits if getattr(one, "max_length", None)]
    patterns = [one.pattern for one in limits if getattr(one, "pattern", None)]
    about = [f"at most {long[0]} characters"] if long else []
    about += [f"the form {patterns[0]}"] if patterns else []
    return f"a text{' of ' + ' and '.join(about) if about else ''}"
