"""What a run computes, the same for everybody: typed and validated once, at the door.

It is the run-config (``pyproject.toml``, ``flwr run --run-config``); a site's own is `fedpca_flwr.node_config`. Keys
are in kebab-case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.config_errors import explain, require_short
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.feature_names import distinct, names_in

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, le=1e7)]
Wanted = Annotated[Count | Fraction | Literal["auto"], Field(union_mode="left_to_right")]


def possible_path(path: str) -> str:
    """The path, if the system takes it for one; pydantic's error if not."""
    try:
        Path(path).expanduser().lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever reads or writes there says so
    except (OSError, ValueError, RuntimeError) as error:
        raise PydanticCustomError(
            "path", "no file can have this path ({why})", {"why": getattr(error, "strerror", None) or str(error)}
        ) from None
    return path


LocalPath = Annotated[str, AfterValidator(possible_path)]
"""A path of this machine, where a file is or might be."""


def of_nobodys_home(path: str) -> str:
    """The path, unless it begins with "~": a run-config must not let a site look into the homes of its users."""
    if path.startswith("~"):
        raise PydanticCustomError("path", "expected a path that does not begin with '~': write the folder in full")
    return path


SharedPath = Annotated[str, AfterValidator(of_nobodys_home), AfterValidator(possible_path)]
"""A path that a run-config gives to all sites."""

Name = Annotated[str, Field(max_length=64, pattern=r"^[\w .-]*$")]


FeatureNames = Annotated[str, AfterValidator(distinct)]


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
    )

    public: ClassVar[bool] = True
    """Whether an error's text may show values that are not numbers."""

    long: ClassVar[Mapping[str, int]] = {}
    """Keys whose texts may be longer than others, and how long."""

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
        require_short(given, source, cls.long)
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            faults = [fault for fault in error.errors() if fault["type"] != "extra_forbidden"]
            strangers = [str(f["loc"][0]) for f in error.errors() if f["type"] == "extra_forbidden"]
            fields = dict(zip(cls.keys(), cls.model_fields.values(), strict=True))
            raise ConfigError(explain(source, faults, strangers, fields, public=cls.public)) from None


class RunConfig(Config):
    """The keys of every run, whatever the method; a method's own options are in the text of `method`."""

    long: ClassVar[Mapping[str, int]] = {"features": 10**7, "columns": 10**7}  # names of all features

    method: str = "p-cov"
    """The method and its own options in one text: 'sub-it block-size=10'."""
    n_components: Wanted = 10
    """How many components; for some methods also the fraction of the variance that they must exceed, or 'auto'."""
    clients: Annotated[int, Field(ge=0)] = 0
    """How many parties must take part; 0 asks a node (`num-partitions` of its node-config)."""
    dataset: str = "digits"
    """The rows of a simulation, and of sites that name no data of their own."""
    data_root: SharedPath = "."
    """The folder in which the data set is."""
    partition: Literal["iid", "dirichlet", "shards", "quantity", "columns"] = "dirichlet"
    """How the parties of a simulation share the data set."""
    columns: str = "even"
    """With partition='columns': 'even', sizes ('20 20 24'), or the names of each party's columns ('a, b; c, d')."""
    features: FeatureNames = ""
    """Names of all features in the model's order ('age, "height, cm"'): sites put their columns into it. Empty: as all
    sites have them."""
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
    """The file of the model, at the server; if it is not an absolute path, in a folder of the run, which is printed."""
    overwrite: bool = False
    """Whether the model may take the place of another run's."""
    join_deadline: Seconds = 300.0
    """Seconds in which all parties must have come."""
    round_deadline: Seconds = 600.0
    """Seconds in which each round must end."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Those that `features` lists."""
        return names_in(self.features)

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
