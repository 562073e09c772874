"""Explanation of faulty configurations: a line for each key, with its value and the allowed values in words."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from fedpca_flwr.errors import removal_text, value_text

COLLECTIONS: dict[Any, str] = {list: "list", dict: "JSON object"}
"""Words for types that hold values of another type."""


def explain_faults(fields: Mapping[str, FieldInfo], faults: Sequence[Any], source: str, *, shows_values: bool) -> str:
    """Return a line for each key that pydantic refused, with its value, and the allowed values or the nearest key.

    `faults` are entries of `ValidationError.errors`. Unless `shows_values`, a line shows a value only of a number.
    """
    lines: list[str] = []
    by_key: dict[str, list[Any]] = {}
    for fault in sorted(faults, key=lambda fault: bool(fault["type"] != "extra_forbidden")):
        if not fault["loc"]:  # a check of several keys together; its text names them
            lines.append(f"{source}: {fault['msg']}")
            continue
        name = str(fault["loc"][0])
        key = name.replace("_", "-")
        if fault["type"] == "extra_forbidden":
            if removal := removal_text(key):
                hint = f", {removal}"
            else:
                near = difflib.get_close_matches(key, fields, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(fields)}"
            lines.append(f"{source}: unknown key {value_text(name)}{hint}")
        else:
            by_key.setdefault(key, []).append(fault)
    for key, key_faults in by_key.items():
        if key_faults[0]["type"] == "missing":
            lines.append(f"{source}: '{key}' is missing")
            continue
        value = key_faults[0]["input"]
        shown = shows_values or isinstance(value, int | float)
        verb = "holds" if len(key_faults[0]["loc"]) > 1 and get_origin(fields[key].annotation) in COLLECTIONS else "is"
        value_words = f"{verb} {value_text(value)}" if shown else "has a value that is not allowed"
        our_texts = [str(fault["msg"]) for fault in key_faults if "url" not in fault]  # pydantic's have one
        if our_texts:
            reason = our_texts[0]
        elif isinstance(value, str) and (removal := removal_text(f"{key}={value}")):
            reason = removal
        else:
            *alternatives, last = dict.fromkeys(_describe_type(fields[key].annotation, fields[key].metadata))
            reason = f"expected {', '.join(alternatives)} or {last}" if alternatives else f"expected {last}"
        lines.append(f"{source}: '{key}' {value_words}, {reason}")
    return "\n".join(lines)


def explain_entry(kind: type, faults: Sequence[Any], source: str) -> str:
    """Return the line on the first fault of an entry of a file, a typed dict or named tuple (`explain_faults`)."""
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: FieldInfo(annotation=hint) for name, hint in hints.items()}
    return explain_faults(fields, faults[:1], source, shows_values=True)


def _describe_type(annotation: Any, limits: Sequence[Any]) -> list[str]:
    """Return each allowed kind of value but None in words, such as "a whole number from 1", by limits (``Ge``)."""
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is NotRequired:
        return _describe_type(parts[0], limits)
    if kind in COLLECTIONS:
        return [f"a {COLLECTIONS[kind]}, each value {' or '.join(_describe_type(parts[-1], []))}"]
    if kind is Annotated:
        inner = [limit for part in parts[1:] for limit in getattr(part, "metadata", [part])]
        return _describe_type(parts[0], [*limits, *inner])
    if kind in (Union, UnionType):
        return [words for part in parts if part is not NoneType for words in _describe_type(part, limits)]
    if kind is Literal:
        return [repr(part) for part in parts]
    if annotation is bool:
        return ["true or false"]
    if annotation in (int, float):
        names = ("ge", "gt", "le", "lt")
        bounds = {name: getattr(limit, name) for limit in limits for name in names if hasattr(limit, name)}
        words = "a whole number" if annotation is int else "a number" if {"le", "lt"} & {*bounds} else "a finite number"
        if {"gt", "lt"} <= set(bounds):
            return [f"{words} between {bounds['gt']:g} and {bounds['lt']:g}"]
        prefixes = {"ge": "from", "gt": "above", "le": "and at most" if "gt" in bounds else "to", "lt": "below"}
        ends = [f"{prefix} {bounds[name]:g}" for name, prefix in prefixes.items() if name in bounds]
        return [" ".join([words, *ends])]
    lengths = [limit.max_length for limit in limits if getattr(limit, "max_length", None)]
    patterns = [limit.pattern for limit in limits if getattr(limit, "pattern", None)]
    constraints = [f"at most {lengths[0]} characters"] if lengths else []
    constraints += [f"the form {patterns[0]}"] if patterns else []
    return [f"a text{' of ' + ' and '.join(constraints) if constraints else ''}"]


def keyword_text(text: str, keys: Iterable[str]) -> str:
    """Rewrite an error's text for callers in Python: `keys` with underscores, True and False, no "run-config"."""
    text = re.sub(r"run-config:? (?=')|run-config: ", "", text)
    text = re.sub(r"(?:no option|unknown key) '[\w-]+'", lambda match: match[0].replace("-", "_"), text)
    dashed = sorted({key for key in keys if "-" in key}, key=len, reverse=True)
    pattern = rf"(?<![\w./-])(?:{'|'.join(dashed)})(?![\w./-])"
    text = re.sub(pattern, lambda match: match[0].replace("-", "_"), text)
    text = text.replace("expected true or false", "expected True or False")
    return re.sub(r"(?<=\w=)(true|false)\b|(?<=' is )(true|false)\b", lambda match: match[0].capitalize(), text)
