"""What the log of a model from a file may hold: whoever made the file may have written anything into it.

`History` has what code reads of a log, each with its type; all else in a log is for people, and may be whatever JSON
holds. Numbers are finite everywhere (`fedpca_flwr.state.files`).
"""

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Number = Annotated[int | float, Field(ge=-1e308, le=1e308)]
Natural = Annotated[int, Field(ge=0, le=2**62)]
ByteCounts = list[Natural]
Vector = list[Number]
Label = Annotated[str, StringConstraints(max_length=1000)]


class Entry(BaseModel):
    """An entry of a log; keys that no code reads may be there too."""

    model_config = ConfigDict(strict=True, extra="allow")


class Round(Entry):
    """What travelled in a round."""

    phase: Label
    up: ByteCounts
    down: ByteCounts


class Party(Entry):
    """A party of the run."""

    party: Natural = 0
    name: Label | None = None
    rows: Annotated[int | float, Field(gt=0, le=2**62)] | None
    features: Natural = 0


class Unit(Entry):
    """A feature that a party seems to have in another unit."""

    party: Label
    feature: Natural
    mean: Number
    mean_elsewhere: Number


class Influence(Entry):
    """What a party holds of the components."""

    party: Label
    rows_share: Number
    variance_share: Number
    component_shares: Annotated[Vector, Field(min_length=1)]
    angles_degrees: Annotated[Vector, Field(min_length=1)]


class OutlierCounts(Entry):
    """How many rows of a party exceed the limits."""

    party: Label
    rows: Annotated[int, Field(ge=1, le=2**62)]
    above_t_squared_limit: Natural
    above_spe_limit: Natural


class Choice(Entry):
    """The method that `adaptive` chose."""

    method: Label
    options: dict[str, bool | int | float | str]


class Clusters(Entry):
    """The clusters of a run."""

    kind: Literal["k-means", "mixture"]
    rows: list[Natural | None]
    centres: list[Vector]
    weights: Vector = []
    covariances: list[list[Vector]] = []

    def require_shapes(self, k: int) -> None:
        """Refuse clusters that are not of ``k`` scores, by a `ValueError`."""
        m = len(self.rows)
        shapes: dict[str, tuple[int, ...]] = {"centres": (m, k)}
        if self.kind == "mixture":
            shapes |= {"weights": (m,), "covariances": (m, k, k)}
        _require_shapes(self, shapes)
        if self.kind == "mixture":
            np.linalg.cholesky(np.array(self.covariances, dtype=np.float64))  # raises a ValueError where it is none
            if min(self.weights, default=0.0) < 0:
                raise ValueError("a mixture has negative weights")


class Harmony(Entry):
    """The steps of Harmony."""

    centres: list[list[Vector]]
    penalties: list[list[Vector]]
    moves: list[list[list[Vector]]]

    def require_shapes(self, parties: int, k: int) -> None:
        """Refuse steps that are not of so many ``parties`` and ``k`` scores, by a `ValueError`."""
        steps, m = len(self.centres), len(self.centres[0]) if self.centres else 0
        if steps:
            kind = {"centres": (k,), "penalties": (parties,), "moves": (parties, k)}
            _require_shapes(self, {name: (steps, m, *shape) for name, shape in kind.items()})


def _require_shapes(entry: Entry, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        actual = np.array(getattr(entry, name), dtype=np.float64).shape  # raises a ValueError where it is ragged
        if actual != shape:
            raise ValueError(f"'{name}' has the shape {actual}, expected {shape}")


class History(Entry):
    """The log of a model."""

    method: Label = ""
    exact: bool = False
    columns: Label = ""
    options: dict[str, bool | int | float | str | None] = {}
    parties: list[Party] = []
    rounds: list[Round] = []
    notes: list[str] = []
    measured: dict[str, Number | Literal["infinity"]] = {}
    levels: dict[str, list[str]] = {}
    other_units: list[Unit] = []
    influence: list[Influence] = []
    outliers: list[OutlierCounts] = []
    kurtosis: Vector | None = None
    chosen: Choice | None = None
    members: dict[str, list[Label]] = {}
    clusters: Clusters | None = None
    harmony: Harmony | None = None

    @model_validator(mode="after")
    def _check_measurements(self) -> Self:
        above, directions = (self.measured.get(name, 1) for name in ("components_above_noise", "left_out_directions"))
        if not isinstance(above, int) or above < 0:
            raise ValueError(f"'components_above_noise' is {above}, expected a whole number from 0")
        if isinstance(directions, str) or directions <= 0:
            raise ValueError(f"'left_out_directions' is {directions}, expected a number above 0")
        return self

    @model_validator(mode="after")
    def _check_party_counts(self) -> Self:
        fit = [entry for entry in self.rounds if entry.phase != "project"]
        if len({len(entry.up) for entry in fit}) > 1:
            raise ValueError("the rounds have other numbers of parties each")
        return self

    def require_shapes(self, k: int, d: int) -> None:
        """Refuse entries that are not of ``k`` components and ``d`` features, by a `ValueError`."""
        if self.clusters is not None:
            self.clusters.require_shapes(k)
        if self.harmony is not None:
            self.harmony.require_shapes(len(self.parties), k)
        if self.kurtosis is not None and len(self.kurtosis) != k:
            raise ValueError(f"'kurtosis' has {len(self.kurtosis)} numbers, expected {k}")
        if any(unit.feature >= d for unit in self.other_units):
            raise ValueError("'other_units' names features that there are not")


def history_of(log: Any, k: int, d: int) -> History:
    """Return the log of a model of ``k`` components and ``d`` features as a `History`.

    Parameters
    ----------
    log : object
        What a file holds as log.
    k, d : int
        Number of components and of features of the model.

    Raises
    ------
    ValueError
        Where an entry that code reads is not what it must be.
    """
    history = History.model_validate(log)
    history.require_shapes(k, d)
    return history
