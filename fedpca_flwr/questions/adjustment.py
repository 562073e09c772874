"""Moments without what covariates explain (``adjust-for``), and without what differs between parties (``harmonise``).

Covariates are columns of the parties' rows like any other. Their joint moments with the features give the slopes, so a
regression of all rows needs no round of its own. Where each party's own means are taken out, the scatter is the sum of
those about own means; where deviations are made alike too, the server divides the parties' scatters, if it sees them,
and else asks for one sum more: every party is told slopes and pooled deviations, and divides its own.

Only parties know the names of columns. So each says where the covariates stand in its own (`PartyInfo.covariates`).
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.adjustment import Adjustment, fitted, harmonising_unit
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, diagonal_positions, pack, symmetric
from fedpca_flwr.maths.rows import Rows, chunks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.card import MomentsOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Public, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.questions.genotypes import GenotypeOptions
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.own_scatter import OwnScatter, left_of
from fedpca_flwr.questions.row_limits import WIDE, moments_limits, projection_limits, reach, require_resolved
from fedpca_flwr.questions.rows import SCATTER, WITHIN, moments_phases, pooled_moments
from fedpca_flwr.questions.rows_run import Evidence, RowsStrategy


def covariate_places(names: list[str], table: Table) -> NDArray[np.int64]:
    """Where the covariates stand in a party's rows, by their names or numbers from 0; a `ConfigError` with all that are
    no columns."""
    width = table.rows.shape[1]
    known = {str(place): place for place in range(width)} | {name: i for i, name in enumerate(table.names)}
    strangers = [name for name in names if name not in known]
    if strangers:
        raise ConfigError(
            f"run-config: 'adjust-for' names {', '.join(map(repr, strangers))}, which this site's {width} columns do "
            "not have; give names as in the files, or numbers from 0",
            local=f"columns: {list(table.names) or width}",
        )
    places = np.array([known[name] for name in names], dtype=np.int64)
    if np.unique(places).size < places.size:
        raise ConfigError(f"run-config: 'adjust-for' names a column twice: {', '.join(names)}")
    return places


@dataclass(frozen=True)
class OwnAdjustment:
    """How a party's rows are adjusted."""

    own: OwnScatter  # of the rows (n, d) that take part
    places: NDArray[np.int64]  # of the covariates
    within: bool  # whether rows are about this party's own mean
    asked: Fields
    """``slopes``, and where variances are harmonised ``spread``; in the last round ``mean`` and ``scale`` too."""

    @property
    def adjustment(self) -> Adjustment:
        return Adjustment(self.places, self.asked["slopes"])

    @cached_property
    def diagonal(self) -> Array:
        """Of the scatter (d, d) of the adjusted rows about their own mean, in the unit of the data."""
        _, diagonal = self.own.head_and_diagonal()
        one_of_each = np.zeros((diagonal.size, self.places.size))
        one_of_each[self.places, np.arange(self.places.size)] = 1.0
        return self.adjustment.of_diagonal(diagonal, self.own.times(one_of_each).T)

    @cached_property
    def unit(self) -> Array:
        """What features are divided by so that they vary alike at all parties (d,)."""
        if "spread" not in self.asked:
            return np.ones(self.diagonal.size)
        return harmonising_unit(self.diagonal, len(self.own.rows), self.asked["spread"])

    def scatter(self) -> Array:
        """The packed scatter of the adjusted rows about this party's mean, with all features in its unit.

        Rounding makes no entry larger than those of any rows with these deviations.
        """
        left = self.adjustment.of_scatter(symmetric(self.own.moments().scatter, self.diagonal.size))
        deviation = np.sqrt(self.diagonal.clip(min=0.0)) / self.unit
        largest = np.outer(deviation, deviation)
        return pack(np.asfortranarray((left / self.unit / self.unit[:, None]).clip(-largest, largest)))

    def squared_error(self, components: Array) -> float:
        """What the projection of the adjusted rows to ``components`` (k, d) leaves of their sum of squares."""
        head, _ = self.own.head_and_diagonal()
        deviation = np.zeros_like(head.mean) if self.within else self.own.deviation(self.asked["mean"])
        between = head.n * (self.adjustment.residuals(deviation[None])[0] / self._scale) ** 2
        total = (self.diagonal / self._scale**2 + between).sum()
        return left_of(float(total), self.own.squares(self._directions(components), deviation))

    def centred(self, rows: Rows) -> Iterator[Array]:
        """Chunks of adjusted rows, as this party projects them for itself."""
        mean, remainder = self._mean
        for chunk in chunks(rows):
            centred = np.subtract(chunk, mean, dtype=np.float64)
            centred -= remainder
            yield self.adjustment.residuals(centred) / self._scale

    def loadings(self, components: Array, columns: str) -> Loadings:
        """The same in one step: rows (n, d) less a mean, times (d, k)."""
        mean, remainder = self._mean
        return Loadings(self._directions(components), mean + remainder, np.ones_like(mean), columns=columns)

    def _directions(self, components: Array) -> Array:
        return self.adjustment.directions(components / self._scale)

    @property
    def _mean(self) -> tuple[Array, Array]:
        if self.within:
            head, _ = self.own.head_and_diagonal()
            return head.mean, head.remainder
        return self.asked["mean"], np.zeros_like(self.asked["mean"])

    @cached_property
    def _scale(self) -> Array:
        return self.unit * self.asked["scale"] if self.asked["scale"].size else self.unit


SLOPES = Field("slopes", ("q", "d"), fixed="slopes")
SPREAD = Field("spread", ("d",), kind="size", fixed="harmonised spread")


class AdjustOptions(MomentsOptions, GenotypeOptions):
    """Options of a method that has the moments of covariates and features together."""

    adjust_for: str = ""
    """Columns (names, or numbers from 0, with commas between them) that are regressed out of all others first."""
    harmonise: Annotated[Literal["nothing", "means", "variances"], Limits(examples=[])] = "nothing"
    """'means': nothing is left between the parties' means; 'variances': all parties' features also vary alike."""

    @property
    def covariates(self) -> list[str]:
        return [name.strip() for name in self.adjust_for.split(",") if name.strip()]

    @property
    def adjusts(self) -> bool:
        return bool(self.covariates) or self.harmonise != "nothing"

    @property
    def within(self) -> bool:
        """Whether rows are about their own party's mean."""
        return self.harmonise != "nothing"

    @property
    def site_sums(self) -> Mapping[str, str]:
        deviations = "; and a scatter that each site has divided by its own deviations"
        told = {"nothing": {}, "means": {"harmonise": WITHIN}, "variances": {"harmonise": WITHIN + deviations}}
        return {**super().site_sums, **told[self.harmonise]}

    @model_validator(mode="after")
    def _about_means(self) -> Self:
        if len(set(self.covariates)) < len(self.covariates):
            raise PydanticCustomError("twice", "'adjust-for' names a column twice")
        if self.adjusts and (self.genotypes or not self.center):
            raise PydanticCustomError(
                "adjust", "'adjust-for' and 'harmonise' go only with center=true, genotypes=false"
            )
        return self


@dataclass(frozen=True)
class Adjusted:
    """What a run has adjusted by."""

    adjustment: Adjustment
    spread: Array  # deviations of all rows (divisor n) within the parties, where variances are harmonised; else empty
    notes: list[str]

    @property
    def told(self) -> Fields:
        """What a party needs for its own rows."""
        return {"slopes": self.adjustment.slopes, **({"spread": self.spread} if self.spread.size else {})}


def adjusted_phases(config: RunConfig, options: AdjustOptions) -> Questions:
    """The questions of `adjusted_moments`."""
    phases = moments_phases(config, within=options.within, keep=options.keep)
    if options.harmonise != "variances":
        return phases
    harmonised = Question(
        asked=Payload((SLOPES, SPREAD)),
        reply=Payload((SCATTER,)),
        answer=lambda party, asked: {"scatter": party.adjusted(asked).scatter()},
        sizes=lambda public: {"q": len(public.options.covariates)},
        limits=lambda asked, public: {"scatter": moments_limits(_reach(asked, public))["scatter"]},
        words=lambda sizes: {"scatter": WIDE[:3]},
    )
    return by_transport(config, clear=phases, masked={**phases, "harmonised": harmonised})


def with_adjustment(phases: Questions, options: AdjustOptions) -> Questions:
    """A script whose last question tells what a party adjusts its own rows by."""
    if not options.adjusts:
        return phases
    known = phases["project"]
    alike = (SPREAD,) if options.harmonise == "variances" else ()
    asked = Payload((*known.asked.fields, SLOPES, *alike))
    q = len(options.covariates)
    phase = replace(
        known,
        asked=asked,
        sizes=lambda public: {**known.sizes(public), "q": q},
        limits=lambda asked, public: projection_limits(_reach(asked, public)),
    )
    return {**phases, "project": phase}


def _reach(asked: Fields, public: Public) -> Array:
    """The largest size of a value (d,) of adjusted rows; of features that all vary alike at every party, the root of
    their mean square."""
    slopes: Array = np.abs(asked["slopes"]).sum(axis=0)
    largest = reach(asked, public)
    unit = asked["scale"] if asked.get("scale", np.empty(0)).size else np.ones_like(largest)
    largest = largest + float((largest * unit).max()) * slopes / unit
    if "spread" not in asked:
        return largest
    alike = asked["spread"] / unit * (1 + 2.0**-20)
    return np.asarray(np.where(asked["spread"] > 0, alike, largest))


def adjusted_moments(
    run: RowsStrategy, options: AdjustOptions
) -> Generator[Ask, Any, tuple[Moments, Adjusted, Evidence]]:
    """The moments of all rows without what the options take out."""
    pooled = yield from pooled_moments(run, within=options.within, each=True)
    whole, d = pooled.moments, pooled.moments.n_features
    S = symmetric(whole.scatter, d)
    adjustment, collinear = fitted(S, _places(run.quorum.covariates, len(options.covariates), d))
    left = adjustment.of_scatter(S)
    missed = adjustment.missed(pooled.evidence.missed)
    diagonal = np.diagonal(left)
    if not diagonal.any():
        raise DataError("the covariates explain all features, or no party's rows vary: nothing is left to analyse")
    if not pooled.parts:
        require_resolved(run.config.bound, np.broadcast_to(missed, (d,)), diagonal)
    spread = np.sqrt(diagonal / whole.count) if options.harmonise == "variances" else np.empty(0)
    found = Adjusted(adjustment, spread, _notes(options, collinear))
    own = {name: _of_party(part, whole, found) for name, part in pooled.parts.items()}
    if spread.size and own:
        left = np.sum([symmetric(one.scatter, d) for one in own.values()], axis=0)
    elif spread.size:
        total: Total = yield Sum("harmonised", found.told)
        left = symmetric(total["scatter"], d)
        missed = missed + total.missed["scatter"][diagonal_positions(d)]
    contributions = Contributions(own, between=not options.within) if own else None
    evidence = replace(pooled.evidence, missed=missed, contributions=contributions)
    return replace(whole, scatter=pack(np.asfortranarray(left))), found, evidence


def _of_party(part: Moments, whole: Moments, found: Adjusted) -> Moments:
    """A party's moments, adjusted as its rows are."""
    d, adjustment = part.n_features, found.adjustment
    left = adjustment.of_scatter(symmetric(part.scatter, d))
    if found.spread.size:
        unit = harmonising_unit(np.diagonal(left), part.count, found.spread)
        left = left / unit / unit[:, None]
    step = adjustment.residuals((part.mean - whole.mean + (part.remainder - whole.remainder))[None])[0]
    return Moments(part.count, whole.mean + step, whole.remainder, pack(np.asfortranarray(left)))


def _places(told: str, expected: int, d: int) -> NDArray[np.int64]:
    """Where the parties say that the covariates are; a `ConfigError` where that cannot be."""
    places = [int(place) for place in told.split()]
    if len(places) != expected or len(set(places)) < expected or max(places, default=0) >= d:
        raise ConfigError(f"the parties say that {expected} covariates of {d} columns are at '{told[:100]}'")
    if expected >= d:
        raise ConfigError(f"run-config: 'adjust-for' names all {d} columns: nothing is left to analyse; name fewer")
    return np.array(places, dtype=np.int64)


def _notes(options: AdjustOptions, collinear: NDArray[np.int64]) -> list[str]:
    notes = []
    if options.covariates:
        notes.append(f"adjusted for {', '.join(options.covariates)}: the components are those of what these leave")
    if collinear.size:
        names = ", ".join(map(str, collinear.tolist()))
        notes.append(f"of the covariates at {names} (from 0) some combination does not vary: it was dropped")
    taken = {
        "means": "what differs between the parties' means was taken out",
        "variances": "what differs between the parties' means and deviations was taken out",
    }
    again = (
        "deviations were made alike after that, by other numbers for each party: what is left may correlate with the "
        "covariates again"
    )
    mixed = options.covariates and options.harmonise == "variances"
    return [*notes, *([taken[options.harmonise]] if options.within else []), *([again] if mixed else [])]
