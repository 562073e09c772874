"""`History`: the log of a model, checked when it is read from a file, into which anyone may have written anything.

`History` has the entries that code reads, each with its type; all other entries are for people, and may be whatever
JSON holds. Numbers are finite everywhere (`fedpca_flwr.state.files`).
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
    """Entry of a log, which may have further keys that no code reads."""

    model_config = ConfigDict(strict=True, extra="allow")


class Round(Entry):
    """Phase of a round, and the bytes that each party sent and received."""

    phase: Label
    up: ByteCounts
    down: ByteCounts


class Party(Entry):
    """Party of the run: its number, name, rows and features."""

    party: Natural = 0
    name: Label | None = None
    rows: Annotated[int | float, Field(gt=0, le=2**62)] | None
    features: Natural = 0


class Unit(Entry):
    """Feature that a party seems to have in another unit than the other parties."""

    party: Label
    feature: Natural
    mean: Number
    mean_elsewhere: Number


class Influence(Entry):
    """Shares of a party in rows, variance and components, and the angles by which the model turns without the party."""

    party: Label
    rows_share: Number
    variance_share: Number
    component_shares: Annotated[Vector, Field(min_length=1)]
    angles_degrees: Annotated[Vector, Field(min_length=1)]


class OutlierCounts(Entry):
    """Number of a party's rows that exceed the limits of T squared and of SPE."""

    party: Label
    rows: Annotated[int, Field(ge=1, le=2**62)]
    above_t_squared_limit: Natural
    above_spe_limit: Natural


class Choice(Entry):
    """Method and options that `adaptive` chose."""

    method: Label
    options: dict[str, bool | int | float | str]


class Clusters(Entry):
    """Clusters of a run: kind, rows, centres, and the weights and covariances of a mixture."""

    kind: Literal["k-means", "mixture"]
    rows: list[Natural | None]
    centres: list[Vector]
    weights: Vector = []
    covariances: list[list[Vector]] = []

    def require_shapes(self, k: int) -> None:
        """Refuse clusters that do not belong to k scores.

        Parameters
        ----------
        k : int
            Number of components of the model.

        Raises
        ------
        ValueError
            If a shape differs, or weights or covariances are those of no mixture.
        """
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
    """Centres, penalties and moves of each step of Harmony."""

    centres: list[list[Vector]]
    penalties: list[list[Vector]]
    moves: list[list[list[Vector]]]

    def require_shapes(self, parties: int, k: int) -> None:
        """Refuse steps that do not belong to the model's parties and scores.

        Parameters
        ----------
        parties : int
            Number of parties of the run.
        k : int
            Number of components of the model.

        Raises
        ------
        ValueError
            If a shape differs.
        """
        steps, m = len(self.centres), len(self.centres[0]) if self.centres else 0
        if steps:
            kind = {"centres": (k,), "penalties": (parties,), "moves": (parties, k)}
            _require_shapes(self, {name: (steps, m, *shape) for name, shape in kind.items()})


def _require_shapes(entry: Entry, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse an entry whose fields have other shapes, by a `ValueError`."""
    for name, shape in shapes.items():
        actual = np.array(getattr(entry, name), dtype=np.float64).shape  # raises a ValueError where it is ragged
        if actual != shape:
            raise ValueError(f"'{name}' has the shape {actual}, expected {shape}")


class History(Entry):
    """Log of a model, with every entry that code reads."""

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
        """Refuse measurements that code cannot compute with."""
        above, directions = (self.measured.get(name, 1) for name in ("components_above_noise", "left_out_directions"))
        if not isinstance(above, int) or above < 0:
            raise ValueError(f"'components_above_noise' is {above}, expected a whole number from 0")
        if isinstance(directions, str) or directions <= 0:
            raise ValueError(f"'left_out_directions' is {directions}, expected a number above 0")
        return self

    @model_validator(mode="after")
    def _check_party_counts(self) -> Self:
        """Refuse rounds of the fit with different numbers of parties."""
        fit = [entry for entry in self.rounds if entry.phase != "project"]
        if len({len(entry.up) for entry in fit}) > 1:
            raise ValueError("the rounds have other numbers of parties each")
        return self

    def require_shapes(self, k: int, d: int) -> None:
        """Refuse entries that do not belong to k components and d features.

        Parameters
        ----------
        k, d : int
            Number of components and of features of the model.

        Raises
        ------
        ValueError
            If a shape differs.
        """
        if self.clusters is not None:
            self.clusters.require_shapes(k)
        if self.harmony is not None:
            self.harmony.require_shapes(len(self.parties), k)
        if self.kurtosis is not None and len(self.kurtosis) != k:
            raise ValueError(f"'kurtosis' has {len(self.kurtosis)} numbers, expected {k}")
        if any(unit.feature >= d for unit in self.other_units):
            raise ValueError("'other_units' names features that there are not")


def history_of(log: Any, k: int, d: int) -> History:
    """Return the log of a model as a checked `History`.

    Parameters
    ----------
    log : object
        Content of a file, in place of a log.
    k, d : int
        Number of components and of features of the model.

    Returns
    -------
    History

    Raises
    ------
    ValueError
        If an entry that code reads is not what it must be.
    """
    history = History.model_validate(log)
    history.require_shapes(k, d)
    return history
