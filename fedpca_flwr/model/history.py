"""`History`: the log of a model, checked when read from a file, which anyone may have written.

Entries that code does not read are for people, and may be whatever JSON holds. Numbers are finite everywhere
(`fedpca_flwr.state.files`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from fedpca_flwr.config.run_config import RowTransform

Number = Annotated[int | float, Field(ge=-1e308, le=1e308)]
Natural = Annotated[int, Field(ge=0, le=2**62)]
ByteCounts = list[Natural]
Vector = list[Number]
Label = Annotated[str, StringConstraints(max_length=1000)]


class Entry(BaseModel):
    """Base of the entries of a model's log; keys beyond the declared fields are accepted and ignored."""

    model_config = ConfigDict(strict=True, extra="allow")


class Round(Entry):
    """Log entry of a round: name of its phase, and the bytes that each party sent (up) and received (down)."""

    phase: Label
    up: ByteCounts
    down: ByteCounts
    digests: dict[str, Annotated[list[Label], Field(min_length=2, max_length=2)]] = {}
    """SHA-256 of the question and of the reply, by partition; empty for a party that has not replied."""
    journals: dict[str, Label] = {}
    """Keyed digest of the last event of each site's journal, by partition, in the last round."""


class Provenance(Entry):
    """Log entry of the run that made the model: Flower's number, times, app, versions, digest of the settings."""

    run: Label
    began: Label
    ended: Label
    settings: Label
    versions: dict[str, Label] = {}
    app: Label = ""
    app_hash: Label = ""
    account: Label = ""


class Party(Entry):
    """Log entry of a party of the run: its number, name, rows and features."""

    party: Natural = 0
    name: Label | None = None
    rows: Annotated[int | float, Field(gt=0, le=2**62)] | None
    features: Natural = 0


class Unit(Entry):
    """Log entry of a feature whose mean at a party suggests another unit of measurement than at the other parties."""

    party: Label
    feature: Natural
    mean: Number
    mean_elsewhere: Number


class Influence(Entry):
    """Log entry of a party: its shares of rows, variance and components, and angles to the model without the party."""

    party: Label
    rows_share: Number
    variance_share: Number
    component_shares: Annotated[Vector, Field(min_length=1)]
    angles_degrees: Annotated[Vector, Field(min_length=1)]


class OutlierCounts(Entry):
    """Log entry of the number of a party's rows that exceed the outlier limits of T squared and of SPE."""

    party: Label
    rows: Annotated[int, Field(ge=1, le=2**62)]
    above_t_squared_limit: Natural
    above_spe_limit: Natural


class Choice(Entry):
    """Log entry of the method `adaptive`: the method and the options that it chose."""

    method: Label
    options: dict[str, bool | int | float | str]


class Clusters(Entry):
    """Log entry of clusters of scores: kind, rows by cluster, centres, and a mixture's weights and covariances."""

    kind: Literal["k-means", "mixture"]
    rows: list[Natural | None]
    centres: list[Vector]
    weights: Vector = []
    covariances: list[list[Vector]] = []


class Harmony(Entry):
    """Log entry of the batch correction Harmony: centres, penalties and moves of each of its steps."""

    centres: list[list[Vector]]
    penalties: list[list[Vector]]
    moves: list[list[list[Vector]]]


class History(Entry):
    """Log of a model, checked: every entry that code reads has its declared type."""

    method: Label = ""
    exact: bool = False
    columns: Label = ""
    options: dict[str, bool | int | float | str | None] = {}
    parties: list[Party] = []
    rounds: list[Round] = []
    notes: list[str] = []
    measured: dict[str, Number | Literal["infinity"]] = {}
    levels: dict[str, list[str]] = {}
    transform: RowTransform = ""
    other_units: list[Unit] = []
    influence: list[Influence] = []
    outliers: list[OutlierCounts] = []
    kurtosis: Vector | None = None
    chosen: Choice | None = None
    members: dict[str, list[Label]] = {}
    clusters: Clusters | None = None
    harmony: Harmony | None = None
    provenance: Provenance | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        """Refuse impossible measurements, and rounds of the fit that list different numbers of parties."""
        above, directions = (self.measured.get(name, 1) for name in ("components_above_noise", "left_out_directions"))
        if not isinstance(above, int) or above < 0:
            raise ValueError(f"'components_above_noise' is {above}, expected a whole number from 0")
        if isinstance(directions, str) or directions <= 0:
            raise ValueError(f"'left_out_directions' is {directions}, expected a number above 0")
        fit = [entry for entry in self.rounds if entry.phase != "project"]
        if len({len(entry.up) for entry in fit}) > 1:
            raise ValueError("the rounds have other numbers of parties each")
        return self


def history_of(log: Any, k: int, d: int) -> History:
    """Check the log, any JSON value, of a model of k components of d features; ValueError for a wrong entry."""
    history = History.model_validate(log)
    if (clusters := history.clusters) is not None:
        m, is_mixture = len(clusters.rows), clusters.kind == "mixture"
        mixture_shapes = {"weights": (m,), "covariances": (m, k, k)} if is_mixture else {}
        _require_shapes(clusters, {"centres": (m, k), **mixture_shapes})
        if is_mixture:
            np.linalg.cholesky(np.array(clusters.covariances, dtype=np.float64))  # raises a ValueError where it is none
            if min(clusters.weights, default=0.0) < 0:
                raise ValueError("a mixture has negative weights")
    if (harmony := history.harmony) is not None and harmony.centres:
        steps, m, parties = len(harmony.centres), len(harmony.centres[0]), len(history.parties)
        cluster_shapes = {"centres": (k,), "penalties": (parties,), "moves": (parties, k)}
        _require_shapes(harmony, {name: (steps, m, *shape) for name, shape in cluster_shapes.items()})
    if history.kurtosis is not None and len(history.kurtosis) != k:
        raise ValueError(f"'kurtosis' has {len(history.kurtosis)} numbers, expected {k}")
    if any(unit.feature >= d for unit in history.other_units):
        raise ValueError("'other_units' names features that there are not")
    return history


def _require_shapes(entry: Entry, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a ValueError unless the entry's fields, as arrays, have the given shapes."""
    for name, shape in shapes.items():
        actual = np.array(getattr(entry, name), dtype=np.float64).shape  # raises a ValueError where it is ragged
        if actual != shape:
            raise ValueError(f"'{name}' has the shape {actual}, expected {shape}")
