"""Text of the key ``method``: a method's name and its own options, ``"sub-it block-size=10"``.

The same grammar serves for run-config, for `fedpca_flwr.compare` and for records. Words are separated as in a shell:
quotes keep spaces together, as in ``streaming leave="hospital 1"``; a backslash is an ordinary character, so that a
path of Windows stays intact. The first word names the method, every other word is an option, ``key=value``. A value is
the number or boolean that TOML reads, and else a text; an option that is a text takes the value as written.
"""

import difflib
import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar

from fedpca_flwr.config.run_config import MAX_KEY_CHARACTERS, MAX_KEYS, SCALAR_TYPES, Config, RunConfig, require_short
from fedpca_flwr.errors import ConfigError, FedPCAError, combine_errors, removal_text, value_text

Options = TypeVar("Options", bound=Config)
Scalar = bool | int | float | str
RUN_KEYS = RunConfig.keys()
SHARED_KEYS: tuple[str, ...] = ("features", "weights", "levels", "transform", "seed")
SHARED_KEYS += ("secure-aggregation", "bound", "blind", "survivors", "minimum")
"""Keys of the run on which answers depend."""


@lru_cache
def split_method_text(text: str, source: str = "run-config") -> tuple[str, tuple[str, ...]]:
    """Split "sub-it block-size=10" into the method's name, empty if there is none, and its options' words, "key=value".

    Raise ConfigError if a quote is not closed, the text is too long or no Unicode, or there are more than 100 options.
    """
    require_short({"method": text}, source)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        name, *words = list(lexer) or [""]
    except ValueError:
        raise ConfigError(f"{source}: 'method' is {value_text(text)}: a quote in it has no closing quote") from None
    if len(words) > MAX_KEYS:
        raise ConfigError(f"{source}: 'method' has {len(words):,} options, expected at most {MAX_KEYS}")
    return name, tuple(words)


def parse_options(
    text: str, kind: type[Options], extra_options: Mapping[str, Any], source: str = "run-config"
) -> Options:
    """Parse a method's options from the text of `method`, and raise all faults of options in a single ConfigError.

    `extra_options` are outside the text: ``n-components``, and options that callers in Python give by name. Faults are
    words that are not ``key=value``, unknown options, options given twice, and values that are not allowed. A text that
    `split_method_text` refuses is refused alone.
    """
    kinds = tuple(map(type, extra_options.values()))
    parsed = _parse_options if SCALAR_TYPES.issuperset(kinds) else _parse_options.__wrapped__
    options: Options = parsed(text, kind, tuple(extra_options.items()), kinds, source)
    return options


@lru_cache
def _parse_options(
    text: str, kind: type[Options], extra_options: tuple[tuple[str, Any], ...], kinds: tuple[type, ...], source: str
) -> Options:
    """Parse and cache what `parse_options` returns; the types of values (`kinds`) tell True from 1."""
    name, words = split_method_text(text, source)
    method_keys, all_keys = method_option_keys(kind), kind.keys()
    faults = [_unknown_option_text(name, key, kind) for key, _ in extra_options if key not in all_keys]
    values = {key: value for key, value in extra_options if key in all_keys}
    for word in words:
        key, _, value = word.partition("=")
        key = key.replace("_", "-")
        if not (key and value):
            faults.append(f"{value_text(word)} is not an option, expected key=value")
        elif len(key) > MAX_KEY_CHARACTERS:
            faults.append(f"an option's name has {len(key):,} characters, expected at most {MAX_KEY_CHARACTERS}")
        elif key not in method_keys:
            faults.append(_unknown_option_text(name, key, kind))
        elif key in values:
            faults.append(f"the option '{key}' is given twice")
        else:
            values[key] = _parse_value(value, kind.model_fields[key.replace("-", "_")].annotation)
    lines = [f"{source}: {fault}" for fault in faults]
    try:
        options = kind.parse(values, source=source)
    except ConfigError as error:
        lines.append(str(error))
    if lines:
        raise ConfigError("\n".join(lines))
    return options


def parse_run_options(
    run: Mapping[str, Any], text: str, kind: type[Options], extra_options: Mapping[str, Any]
) -> Options:
    """Return a method's options (`parse_options`); raise all faults of options and run keys as one ConfigError."""
    faults: list[FedPCAError] = []
    options: Options | None = None
    try:
        options = parse_options(text, kind, extra_options)
    except ConfigError as error:
        faults.append(error)
    try:  # how many components, the method knows better
        RunConfig.parse({**run, "n-components": ""} if faults else run)
    except ConfigError as error:
        faults.append(error)
    if options is None or faults:
        raise combine_errors(faults)
    return options


def make_run_config(name: str, kind: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run-config: keys of the run, and ``method`` with its options; raise as `parse_run_options` does."""
    run = {key: value for key, value in values.items() if key in RUN_KEYS}
    method_options = {key: value for key, value in values.items() if key not in run or key == "n-components"}
    options = parse_run_options(run, run["method"], kind, method_options)
    return {**run, "method": format_method(name, non_defaults(options))}


@cache
def method_option_keys(kind: type[Config]) -> tuple[str, ...]:
    """Return a method's options, in kebab-case, that belong in the text `method`: all but keys of the run."""
    keys = kind.keys()
    return tuple(key for key in keys if key not in RUN_KEYS)


def _unknown_option_text(name: str, key: str, kind: type[Config]) -> str:
    """Return the error text for an unknown option: what to do instead, or the nearest key and the valid options."""
    if key in RUN_KEYS:
        return f"{value_text(key)} is no option of a method but a key of the run: set it beside 'method', not in it"
    if key in kind.unavailable:
        return f"{value_text(name)} has no option {value_text(key)}: {kind.unavailable[key]}"
    if removal := removal_text(key):
        return f"{value_text(name)} has no option {value_text(key)}, {removal}"
    method_keys = method_option_keys(kind)
    near = difflib.get_close_matches(key, [*method_keys, *RUN_KEYS], n=1, cutoff=0.65)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    options = f"Its options: {', '.join(method_keys) or 'none'}; keys of the run: {', '.join(map(repr, RUN_KEYS))}"
    return f"{value_text(name)} has no option {value_text(key)}{hint} {options}"


def format_method(name: str, options: Mapping[str, Any]) -> str:
    """Return the text of a method, such as "sub-it block-size=10": options in order of their names, texts in quotes."""
    words = [name]
    for key, value in sorted(options.items()):
        words.append(f"{key}={shlex.quote(value) if isinstance(value, str) else json.dumps(value)}")
    return " ".join(words)


def non_defaults(options: Config) -> dict[str, Scalar]:
    """Return the options that differ from the variant's defaults, without keys of the run, by key in kebab-case."""
    kind, values = type(options), options.model_dump()
    defaults = {name: field.default for name, field in kind.model_fields.items()}
    defaults |= kind.published if values.get("variant") == "paper" else {}
    names = {key: key.replace("-", "_") for key in sorted(method_option_keys(kind))}
    return {key: values[name] for key, name in names.items() if values[name] != defaults[name]}


MAX_SHOWN_CHARACTERS = 200


@lru_cache  # of a simulation's parties
def shared_settings(name: str, options: Config, config: RunConfig) -> Mapping[str, Scalar]:
    """Return the settings that server and parties must share, by key: the method, all its options, and `SHARED_KEYS`.

    A text of more than `MAX_SHOWN_CHARACTERS` is replaced by ``sha256:`` and its digest.
    """
    run = config.model_dump(by_alias=True)
    values = {"method": name, **options.model_dump(by_alias=True), **{key: run[key] for key in SHARED_KEYS}}
    settings: dict[str, Scalar] = {}
    for key, value in values.items():
        if isinstance(value, bool | int | float):
            settings[key] = value
            continue
        text = str(value)
        is_short = len(text) <= MAX_SHOWN_CHARACTERS
        settings[key] = text if is_short else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return settings


def settings_digest(name: str, options: Config, config: RunConfig) -> str:
    """Return the SHA-256, in hexadecimal digits, of the settings that server and parties share."""
    return hashlib.sha256(json.dumps(shared_settings(name, options, config)).encode()).hexdigest()


def require_same_settings(settings: Mapping[str, Scalar], server_text: str) -> None:
    """Raise ConfigError if the server's settings are no JSON object, or differ from one of this party's, and name each.

    If the methods differ, their options do too, and only the methods are named.
    """
    try:
        server_settings = json.loads(server_text)
    except ValueError:
        server_settings = None
    if not isinstance(server_settings, dict):
        raise ConfigError(
            "the server's settings of the run are not a JSON object; do all parties run the same version?"
        )
    keys = [key for key in settings if settings[key] != server_settings.get(key)]
    if keys:
        differences = "; ".join(
            f"'{key}' is {value_text(settings[key])} here and {value_text(server_settings.get(key))} at the server"
            for key in (["method"] if "method" in keys else keys)
        )
        raise ConfigError(f"run-config: {differences}: give server and parties the same method and options")


def _parse_value(text: str, annotation: object) -> Scalar:
    """Return the number or boolean that the text is in TOML; else, or if `annotation` is str, the text itself."""
    if annotation is not str and re.fullmatch(r"[\w.+-]+", text):
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except ValueError:  # also a number of thousands of digits
            return text
        if isinstance(value, bool | int | float):
            return value
    return text
