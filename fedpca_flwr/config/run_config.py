"""Configuration of a run, equal for everybody: typed and validated once.

The values come from the run-config (``pyproject.toml``, ``flwr run --run-config``), with keys in kebab-case. The
configuration of a site is `fedpca_flwr.config.node_config`.
"""

from __future__ import annotations

import csv
import json
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from inspect import Parameter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.errors import ConfigError, value_text


def refusal(text: str) -> PydanticCustomError:
    """Return the error by which a validator of options refuses a value.

    Parameters
    ----------
    text : str
        What is wrong, the value, and what is allowed. `Config.parse` raises a ConfigError with this text.

    Returns
    -------
    PydanticCustomError
        The error, which the validator raises.
    """
    return PydanticCustomError("refused", "{text}", {"text": text})


def split_names(text: str) -> tuple[str, ...]:
    """Split a text of names at commas, () for an empty text; a name that contains a comma is in double quotes.

    Raise `csv.Error` if the csv module cannot read the text.

    Examples
    --------
    >>> split_names('age, "height, cm"')
    ('age', 'height, cm')
    """
    plain = not any(mark in text for mark in '"\n\r')  # a run may name millions of features, and anyone may start runs
    cells = text.split(",") if plain and text else next(csv.reader([text], skipinitialspace=True), [])
    return tuple(map(str.strip, cells))


def require_distinct_names(text: str) -> str:
    """Return a text of names, separated by commas, unchanged; raise `refusal` if one is empty or occurs twice."""
    try:
        names = split_names(text)
    except csv.Error:
        raise refusal("expected names, separated by commas") from None
    different = set(names)
    if "" in different:
        raise refusal("a name is empty; expected names, separated by commas")
    if len(different) < len(names):
        duplicates = [name for name, times in Counter(names).items() if times > 1]
        overflow = ", ..." if len(duplicates) > MAX_SHOWN_NAMES else ""
        shown = ", ".join(map(value_text, duplicates[:MAX_SHOWN_NAMES])) + overflow
        raise refusal(f"{shown} is named at least twice; expected each name once")
    return text


MAX_KEY_CHARACTERS = 64  # characters of a key, or of an option's name
MAX_TEXT_CHARACTERS = 10_000  # characters of a value
MAX_KEYS = 100  # keys of a configuration, and options of a method
MAX_SHOWN_NAMES = 5  # names that an error lists
MAX_INTEGER_BITS = 1024  # of a whole number; no float is larger


def require_short(values: Mapping[str, Any], source: str, long_keys: Mapping[str, int] = MappingProxyType({})) -> None:
    """Raise ConfigError for too many keys, too long a key or value, or a lone surrogate, before anything is parsed.

    `long_keys` has, by key in kebab-case, the limits of texts that may have more than `MAX_TEXT_CHARACTERS`. The error
    is of the first fault, and quotes nothing that is too long.
    """
    if len(values) > MAX_KEYS:
        raise ConfigError(f"{source}: it has {len(values):,} keys, expected at most {MAX_KEYS}")
    for key, value in values.items():
        if len(key) > MAX_KEY_CHARACTERS:
            raise ConfigError(f"{source}: a key has {len(key):,} characters, expected at most {MAX_KEY_CHARACTERS}")
        # Python writes no number of thousands of digits
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise ConfigError(f"{source}: {value_text(key)} is a whole number of more than {MAX_INTEGER_BITS:,} bits")
        limit = long_keys.get(key.replace("_", "-"), MAX_TEXT_CHARACTERS)
        if isinstance(value, str | bytes) and len(value) > limit:
            raise ConfigError(f"{source}: {value_text(key)} has {len(value):,} characters, expected at most {limit:,}")
        if not _is_unicode(key) or (isinstance(value, str) and not _is_unicode(value)):
            raise ConfigError(
                f"{source}: {value_text(key)} contains half of a surrogate pair, which cannot be written to a file or "
                "a message: write the complete character"
            )


def _is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; lone surrogates cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, le=1e7)]
ComponentChoice = Annotated[Count | Fraction | Literal["auto"], Field(union_mode="left_to_right")]


def require_possible_path(path: str) -> str:
    """Return a path unchanged, whether its file exists or not; raise `refusal` for a path that no file can have."""
    try:
        Path(path).expanduser().lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever reads or writes there says so
    except (OSError, ValueError, RuntimeError) as error:
        raise refusal(f"no file can have this path ({getattr(error, 'strerror', None) or error})") from None
    return path


LocalPath = Annotated[str, AfterValidator(require_possible_path)]  # a path of this machine, where a file is or might be


def refuse_home_path(path: str) -> str:
    """Return a path unchanged; raise `refusal` for "~" at its start, as no run may read a home folder at a site."""
    if path.startswith("~"):
        raise refusal("expected a path that does not begin with '~': write the folder in full")
    return path


SharedPath = Annotated[str, AfterValidator(refuse_home_path), AfterValidator(require_possible_path)]
"""A path that a run-config gives to all sites."""

NAME_CHARACTERS = r"[\w .,'&()\u2013\u2014\u2019-]"  # also dashes and the typographer's apostrophe
RowTransform = Literal["", "log1p", "sqrt", "asinh", "clr"]
Name = Annotated[str, Field(max_length=64, pattern=f"^{NAME_CHARACTERS}*$")]


MAX_LEVELS = 1000
"""Levels of a column that a run may declare: every site makes an indicator of each, for all of its rows."""

MAX_INDICATORS = 10_000
"""Columns of indicators of all declared levels together."""


def require_levels(text: str) -> str:
    """Return a JSON text of the levels of each column unchanged.

    Raise `refusal` for a column that occurs twice or has no level, a level that occurs twice, is not printable or is
    'other' or 'missing', more than `MAX_LEVELS` in a column, or more than `MAX_INDICATORS`.
    """
    try:
        pairs = json.loads(text or "{}", object_pairs_hook=tuple)
    except (ValueError, RecursionError):  # the second of a text that is nested deeply
        pairs = None
    columns = [column for column, _ in pairs] if isinstance(pairs, tuple) else []
    proper = isinstance(pairs, tuple) and len(set(columns)) == len(columns) and all(map(_is_visible, columns))
    if not proper or not all(_are_levels(levels) for _, levels in pairs):
        raise refusal(
            'expected levels by column, as JSON: {"sex": ["female", "male"]}; each column once and with at least one, '
            "each level a text without control characters that stands there once and is not 'other' or 'missing'"
        )
    most_levels = max((len(levels) for _, levels in pairs), default=0)
    indicators = sum(len(levels) + 2 for _, levels in pairs)
    if most_levels > MAX_LEVELS or indicators > MAX_INDICATORS:
        raise refusal(
            f"a column has {most_levels:,} levels, and all columns together {indicators:,} indicators; expected at "
            f"most {MAX_LEVELS:,} and {MAX_INDICATORS:,}: declare only the most frequent levels; all other levels "
            "then count as 'other'"
        )
    return text


def _are_levels(levels: object) -> bool:
    """Return whether a value is a list of distinct texts, at least one, without 'other' and 'missing'."""
    if not isinstance(levels, list) or not all(isinstance(level, str) and _is_visible(level) for level in levels):
        return False
    return bool(levels) and len(set(levels)) == len(levels) and not {"other", "missing"} & set(levels)


def _is_visible(name: str) -> bool:
    """Return whether a text is not empty and has no control character or lone surrogate."""
    return bool(name) and not any(unicodedata.category(character) in ("Cc", "Cs") for character in name)


FeatureNames = Annotated[str, AfterValidator(require_distinct_names)]


class Config(BaseModel):
    """Base of configurations: a strict pydantic model, which refuses unknown keys and converts no types."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
        validate_by_alias=True,
    )

    public: ClassVar[bool] = True
    """Whether an error's text may show values that are not numbers."""

    long_keys: ClassVar[Mapping[str, int]] = {}
    """Keys whose texts may be longer than others, and how long."""

    unavailable: ClassVar[Mapping[str, str]] = {}
    """Keys that others of the same kind have and these have not, and for each why, and what to do instead."""

    published: ClassVar[Mapping[str, Any]] = {}
    """Values, by name, of the fields that ``variant='paper'`` sets where they are not given."""

    @cached_property
    def non_defaults(self) -> frozenset[str]:
        """Names of the fields whose values differ from their defaults."""
        fields = type(self).model_fields
        return frozenset([name for name, field in fields.items() if getattr(self, name) != field.default])

    @classmethod
    @cache
    def keys(cls) -> tuple[str, ...]:
        """Return the names of all keys, in kebab-case and in order of declaration."""
        return tuple(name.replace("_", "-") for name in cls.model_fields)

    @classmethod
    def keywords(cls) -> dict[str, Parameter]:
        """Return the fields by name as keywords of a function, with types, which lack the limits, and defaults."""
        types, fields, kind = get_type_hints(cls), cls.model_fields.items(), Parameter.KEYWORD_ONLY
        return {name: Parameter(name, kind, default=field.default, annotation=types[name]) for name, field in fields}

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str = "run-config") -> Self:
        """Validate keys (kebab-case or snake_case) and values; raise all faults in a single ConfigError.

        Keys with an empty text are ignored. The error has each key, its value if that may be shown, the allowed values,
        and the nearest known key for a misspelt one; `source` is the beginning of its lines.
        """
        kinds = tuple(map(type, values.values()))
        validated = _validate if SCALAR_TYPES.issuperset(kinds) else _validate.__wrapped__
        config: Self = validated(cls, source, tuple(values.items()), kinds)
        return config


SCALAR_TYPES = {bool, int, float, str}
"""Types of values in Flower's configs. Configurations with only these types are cached."""


@lru_cache
def _validate(kind: type[Config], source: str, items: tuple[tuple[Any, Any], ...], kinds: tuple[type, ...]) -> Any:
    """Validate and cache keys and values, whose types (`kinds`) tell True from 1; raise ConfigError for faults."""
    values = {str(key): value for key, value in items if not (isinstance(value, str) and value == "")}
    require_short(values, source, kind.long_keys)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        from fedpca_flwr.config.explain import explain_faults  # most configurations are right

        fields = dict(zip(kind.keys(), kind.model_fields.values(), strict=True))
        raise ConfigError(explain_faults(fields, error.errors(), source, shows_values=kind.public)) from None


class RunConfig(Config):
    """Configuration of a run, the same for server and parties; options of a method are in the text `method`."""

    # names of all features
    long_keys: ClassVar[Mapping[str, int]] = {"features": 10**7, "columns": 10**7, "levels": 10**6}

    method: str = "p-cov"
    """Name of the method, and the method's own options: 'sub-it block-size=10'."""
    n_components: ComponentChoice = 10
    """Number of components. Some methods also take the fraction of the variance that the components must exceed, or
    'auto' (docs/which-method.md)."""
    clients: Annotated[int, Field(ge=0)] = 0
    """Number of sites that must take part. With 0 the server reads `num-partitions` of a node's node-config."""
    dataset: str = "digits"
    """Data set of a simulation, and of sites without data of their own."""
    data_root: SharedPath = "."
    """Folder of the data set."""
    partition: Literal["iid", "dirichlet", "shards", "quantity", "columns"] = "dirichlet"
    """Way in which a simulation divides the data set among the sites."""
    columns: str = "even"
    """Columns of each site with partition='columns': 'even', numbers of columns ('20 20 24'), or names
    ('a, b; c, d')."""
    features: FeatureNames = ""
    """Names of all features in the model's order: 'age, "height, cm"' (docs/data.md). If empty, all sites must have the
    same columns."""
    weights: Annotated[str, Field(max_length=200)] = ""
    """Column (name, or number from 0) of every site's data that holds a weight for each row (docs/data.md). If empty,
    each row counts once."""
    levels: Annotated[str, AfterValidator(require_levels)] = ""
    """Levels of the columns of categories, as JSON: '{"sex": ["female", "male"]}' (docs/mixed.md). If empty, all
    columns are numbers."""
    transform: RowTransform = ""
    """Function of each value that all sites apply before the PCA; 'clr' is the log-ratio of each value to the geometric
    mean of its row (docs/data.md). If empty, rows stay as they are."""
    alpha: Annotated[float, Field(gt=0)] = 0.1
    """Likeness of the sites with partition='dirichlet' or 'quantity'. With a smaller value the sites differ more."""
    shards_per_client: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of shards of each site, with partition='shards'."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Seed of all random numbers except secrets and the noise of `dp-pca`."""
    secure_aggregation: bool = False
    """Show the server only sums over all sites (docs/secure-aggregation.md)."""
    bound: Annotated[float, Field(ge=0, le=1e100)] = 0.0
    """With secure aggregation: a bound on the absolute value of every number in the sites' rows. It may be generous."""
    blind: bool = False
    """With secure aggregation: show the server only sums of rotated rows. The server learns the shares of variance, and
    the sites have the model (docs/security/sums.md)."""
    survivors: Annotated[int, Field(ge=0)] = 0
    """With secure aggregation: number of sites that must remain if others drop out. With 0 all must remain."""
    minimum: Annotated[int, Field(ge=0)] = 0
    """Without secure aggregation: number of sites that suffice at `join-deadline`. With 0 all must have joined."""
    max_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Without secure aggregation: largest share of a component that one site may hold. If a site holds more, the run
    fails. 0 sets no limit."""
    reference: bool = True
    """In simulations: also compute the PCA of the pooled rows, and report the angle to it."""
    output: str = "model"
    """File of the model, at the server. A relative path lies in a folder of the run, which the run prints."""
    overwrite: bool = False
    """Whether the model may replace the model of another run."""
    metrics: str = ""
    """Absolute path NAME: the server writes numbers about its runs to NAME.prom and NAME.jsonl (extra `metrics`). If
    empty, it writes none."""
    join_deadline: Seconds = 300.0
    """Seconds until which all sites must have joined."""
    round_deadline: Seconds = 600.0
    """Seconds that a round may take."""

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names that the key `features` lists, in the model's order; empty if it is not set."""
        return split_names(self.features)

    @cached_property
    def levels_by_column(self) -> dict[str, list[str]]:
        """Levels of each column of categories, which the key `levels` declares as JSON; empty if it is not set."""
        levels: dict[str, list[str]] = json.loads(self.levels or "{}")
        return levels

    @property
    def indicators(self) -> int:
        """Number of 0/1 columns for categories: each column's levels, 'other' and 'missing'; 0 without `levels`."""
        levels = self.levels_by_column
        return sum(map(len, levels.values())) + 2 * len(levels)

    @property
    def min_summed_parties(self) -> float:
        """Smallest number of parties in a secure sum: `survivors`; infinity if all must remain."""
        return self.survivors or math.inf

    @cached_property
    def transport(self) -> Literal["clear", "masked", "surviving"]:
        """How answers travel: "clear", "masked", or "surviving": masked such that parties may drop out."""
        if not self.secure_aggregation:
            return "clear"
        return "surviving" if self.survivors else "masked"

    @model_validator(mode="after")
    def _require_possible_survivors(self) -> Self:
        """Raise `refusal` for 'survivors', 'blind' or 'minimum' beside a key that excludes it."""
        if self.survivors and not self.secure_aggregation:
            raise refusal(
                f"'survivors' is {self.survivors}, but 'secure-aggregation' is false; 'survivors' is an option of "
                "secure aggregation"
            )
        if self.blind and not self.secure_aggregation:
            raise refusal(
                "'blind' is true, but 'secure-aggregation' is false: a blind server needs masked sums, so set "
                "secure-aggregation=true"
            )
        if self.blind and self.survivors:
            raise refusal(
                f"'blind' is true, and 'survivors' is {self.survivors}: a blind run has several sums, and the "
                "difference of two over different parties would show the share of those that left; set 'survivors' to 0"
            )
        if self.minimum and self.secure_aggregation:
            raise refusal(
                f"'minimum' is {self.minimum}, but 'secure-aggregation' is true: with secure aggregation, set "
                "'survivors' instead"
            )
        if self.minimum and self.clients and self.minimum > self.clients:
            raise refusal(
                f"'minimum' is {self.minimum}, but 'clients' is {self.clients}: set 'minimum' to at most the number "
                "of clients"
            )
        return self
