"""The two configurations of a run, typed and validated once, at the door.

``run_config`` says what the run computes, the same for everybody (``pyproject.toml``, ``flwr run --run-config``).
``node_config`` is the site's: where its data are and what it allows; the server never sees it. Keys are in kebab-case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.config_errors import OLD_KEYS, explain
from fedpca_flwr.errors import ConfigError

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, le=1e7)]
Wanted = Annotated[Count | Fraction | Literal["auto"], Field(union_mode="left_to_right")]


def _possible(path: str) -> str:
    try:
        Path(path).expanduser().lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever reads or writes there says so
    except (OSError, ValueError, RuntimeError) as error:
        raise PydanticCustomError(
            "path", "no file can have this path ({why})", {"why": getattr(error, "strerror", None) or str(error)}
        ) from None
    return path


LocalPath = Annotated[str, AfterValidator(_possible)]
"""A path of this machine, where a file is or might be."""

Name = Annotated[str, Field(max_length=64, pattern=r"^[\w .-]*$")]


class Config(BaseModel):
    """Values checked strictly: unknown keys and values of another type are errors, nothing is converted."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,  # docs/methods.md shows them
    )

    public: ClassVar[bool] = True
    """Whether an error's text may show values that are not numbers."""

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        return tuple(name.replace("_", "-") for name in cls.model_fields)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, source: str = "run-config") -> Self:
        """Validate ``values``.

        Parameters
        ----------
        values : mapping
            Keys in kebab-case or snake_case. An empty string means "not given".
        source : str
            How errors name the configuration.

        Raises
        ------
        ConfigError
            With the key, the value, what is allowed, and the nearest known key for a misspelt one.
        """
        given = {str(key): value for key, value in values.items() if not (isinstance(value, str) and value == "")}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            faults = [fault for fault in error.errors() if fault["type"] != "extra_forbidden"]
            strangers = [str(f["loc"][0]) for f in error.errors() if f["type"] == "extra_forbidden"]
            raise ConfigError(explain(source, faults, strangers, cls.keys(), cls.public)) from None


class RunConfig(Config):
    """The keys of every run, whatever the method; a method's own options are in the text of `method`."""

    method: str = "p-cov"
    """The method and its own options in one text: 'sub-it block-size=10'."""
    n_components: Wanted = 10
    """How many components; for some methods also the fraction of the variance that they must exceed, or 'auto'."""
    clients: Annotated[int, Field(ge=0)] = 0
    """How many parties must take part; 0 asks a node (`num-partitions` of its node-config)."""
    dataset: str = "digits"
    """The rows of a simulation, and of sites that name no data of their own."""
    data_root: LocalPath = "."
    """The folder in which the data set is."""
    partition: Literal["iid", "dirichlet", "shards", "quantity", "columns"] = "dirichlet"
    """How the parties of a simulation share the data set."""
    columns: str = "even"
    """With partition='columns': 'even', sizes ('20 20 24'), or the names of each party's columns ('a, b; c, d')."""
    alpha: Annotated[float, Field(gt=0)] = 0.1
    """With partition='dirichlet' and 'quantity': the smaller, the more the parties differ."""
    shards_per_client: Annotated[int, Field(ge=1, le=1000)] = 2
    """With partition='shards'."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Of all that is drawn at random, but for secrets and the noise of privacy."""
    secure_aggregation: bool = False
    """Show the server sums over all parties only."""
    bound: Annotated[float, Field(ge=0, le=1e100)] = 0.0
    """With secure aggregation: no value of anyone's rows is larger in size. It may be generous."""
    survivors: Annotated[int, Field(ge=0)] = 0
    """With secure aggregation: go on without parties that drop out while so many are left; 0: everyone or no one."""
    max_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Without secure aggregation: end the run if a party holds more than this share of a component; 0: never."""
    reference: bool = True
    """Simulation only: also compute the PCA of the pooled rows, and report the angle to it."""
    output: str = "model"
    """The file of the model, at the server."""
    join_deadline: Seconds = 300.0
    """Seconds in which all parties must have come."""
    round_deadline: Seconds = 600.0
    """Seconds in which each round must end."""

    @property
    def transport(self) -> Literal["clear", "masked", "surviving"]:
        """How answers travel."""
        if not self.secure_aggregation:
            return "clear"
        return "surviving" if self.survivors else "masked"

    @model_validator(mode="after")
    def _survivors_are_hidden(self) -> Self:
        if self.survivors and not self.secure_aggregation:
            text = "'survivors' is {t}, but secure-aggregation is false; it is an option of secure aggregation"
            raise PydanticCustomError("survivors", text, {"t": self.survivors})
        return self


class NodeConfig(Config):
    """A site's own configuration: who it is, where its rows are, where its scores go, and its policy."""

    public: ClassVar[bool] = False

    partition_id: Annotated[int, Field(ge=0)]
    num_partitions: Count
    name: Name = ""
    data: LocalPath = ""
    """Path of the site's rows (.npy, .npz, .csv, .parquet, .h5ad); empty: a partition of the run's data set."""
    label: str = ""
    """Column of the file that is not a feature (its name, or its number from 0): left out, never sent."""
    layer: str = ""
    """Layer of an .h5ad file; empty: its X."""
    ids: str = ""
    """Column of the file with the ids by which rows of different parties belong together (with split='columns')."""
    ids_secret: LocalPath = ""
    """With `ids`: path of a file with bytes that all sites share and the server does not know; it salts ids."""
    split: Literal["", "rows", "columns"] = ""
    """Some rows of all features, or all rows of some features: methods for the other are refused. Empty: not said."""
    scores: LocalPath = ""
    """Where the site's own scores are written (.npy or .csv); empty: nowhere."""
    loadings: LocalPath = ""
    """Where the components by which the site projects its rows are written (.npz), with data split by columns those of
    its own columns; and where 'vertical-scores' reads them; empty: nowhere."""
    may_show: Literal["", "nothing", "scores", "inner products"] = ""
    """The most that others may see of single rows. Empty: nothing for a site's own file, everything for a data set."""
    min_rows: Count = 10
    """Refuse to answer about fewer rows than this."""
    round_rows: Count = 1
    """Leave out the last rows, so that their number, which replies tell, is a multiple of this."""
    allowed_methods: str = ""
    """Method names separated by spaces or commas; empty: every method."""
    max_reply_bytes: Count = 2**31
    """Refuse to send a larger reply."""
    secure_only: bool = False
    """Refuse a run without secure aggregation."""
    min_parties: Annotated[int, Field(ge=2)] = 3
    """With secure aggregation: refuse a sum of fewer parties."""
    identity: LocalPath = ""
    """With secure aggregation: path of this site's own private key; a site with data of its own needs one."""
    identities: LocalPath = ""
    """With secure aggregation: path of the file with all sites' public keys, a line for each party."""
    journal: LocalPath = ""
    """Folder in which this site keeps what it was asked, has answered and has spent of its privacy; a site with data of
    its own needs one for secure aggregation and for private methods. Empty: only for the length of a run."""
    repeat: Literal["refuse", "refuse-same", "allow"] = "refuse"
    """What to do where secure sums over several runs would tell a party's share, a few rows, or a largest value;
    'refuse-same' takes rows that are not the same ones for wholly new."""
    epsilon_budget: Annotated[float, Field(gt=0)] | None = None
    """Refuse to spend more over all runs, and methods that spend without bound. Needs `journal`."""
    delta_budget: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta at which epsilon is reckoned."""
    max_epsilon: Annotated[float, Field(gt=0)] | None = None
    """Refuse a private run whose `epsilon` is larger. Empty: 10 for a site's own file, any for a data set."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Refuse a private run whose `delta` is larger. Empty: 1e-5 for a site's own file, any for a data set."""
    honest_parties: Count = 1
    """How many parties, itself included, this site trusts to add their share of the noise and to keep it secret."""

    @model_validator(mode="before")
    @classmethod
    def _keys_of_old_are_named(cls, given: dict[str, Any]) -> dict[str, Any]:
        for key, text in OLD_KEYS.items():
            if key in given or key.replace("-", "_") in given:
                raise PydanticCustomError("old", "'{key}' is no key any more: {text}", {"key": key, "text": text})
        return given

    @model_validator(mode="after")
    def _budget_is_kept(self) -> Self:
        if self.epsilon_budget is not None and not self.journal:
            raise PydanticCustomError(
                "journal", "'epsilon-budget' needs 'journal', a folder in which this site keeps what it has spent"
            )
        return self

    @model_validator(mode="after")
    def _others_are_known(self) -> Self:
        if bool(self.identity) != bool(self.identities):
            given, lacking = ("identity", "identities") if self.identity else ("identities", "identity")
            raise PydanticCustomError(
                "identity",
                "'{given}' is set, but '{lacking}' is not; 'identity' is the file of a site's private key, "
                "'identities' that of all sites' public keys ('python -m fedpca_flwr.site keys' makes them)",
                {"given": given, "lacking": lacking},
            )
        if self.secure_only and self.data and not self.identity:
            raise PydanticCustomError(
                "identity",
                "'secure-only' needs 'identity' and 'identities', by which this site knows the other sites: without "
                "them whoever holds the server acts in their place; make a key with 'python -m fedpca_flwr.site keys'",
            )
        return self

    @model_validator(mode="after")
    def _partition_exists(self) -> Self:
        if self.partition_id >= self.num_partitions:
            raise PydanticCustomError(
                "range",
                "'partition-id' is {id}, expected 0 to {last} (num-partitions = {n})",
                {"id": self.partition_id, "last": self.num_partitions - 1, "n": self.num_partitions},
            )
        if self.ids and self.split != "columns":
            raise PydanticCustomError("ids", "'ids' is for data split by columns; say so with split='columns'")
        return self
