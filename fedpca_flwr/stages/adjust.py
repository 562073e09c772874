"""Moments without what covariates explain (``adjust-for``), and without what differs between parties (``harmonise``).

Covariates are columns of the parties' rows like any other. Their joint moments with the features give the slopes, so a
regression of all rows needs no round of its own. Where each party's own means are taken out, the scatter is the sum of
those about own means; where deviations are made alike too, the server divides the parties' scatters, if it sees them,
and else asks for one sum more: every party is told slopes and pooled deviations, and divides its own.

Only parties know the names of columns. So each says where the covariates stand in its own (`PartyInfo.covariates`).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.adjustment import Adjustment, fitted, harmonising_unit
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, diagonal_positions, pack, symmetric
from fedpca_flwr.maths.rows import Rows, chunks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.protocol.card import MethodCard, MomentsOptions, PCAOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.pooling import Fitting, PooledMoments, Pooling
from fedpca_flwr.questions.projection import Projection
from fedpca_flwr.questions.row_limits import WIDE, moments_limits, projection_limits, reach, require_resolved
from fedpca_flwr.questions.rows import SCATTER, WITHIN, moments_phases
from fedpca_flwr.questions.rows_run import Closing, Party, RowsClient, RowsStage, RowsStrategy
from fedpca_flwr.site.vault import Vault, left_of


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

    vault: Vault  # of the rows (n, d) that take part
    places: NDArray[np.int64]  # of the covariates
    within: bool  # whether rows are about this party's own mean
    asked: Fields  # ``slopes``, and where variances are harmonised ``spread``

    @property
    def adjustment(self) -> Adjustment:
        return Adjustment(self.places, self.asked["slopes"])

    @cached_property
    def diagonal(self) -> Array:
        """Of the scatter (d, d) of the adjusted rows about their own mean, in the unit of the data."""
        _, diagonal = self.vault.head_and_diagonal()
        one_of_each = np.zeros((diagonal.size, self.places.size))
        one_of_each[self.places, np.arange(self.places.size)] = 1.0
        return self.adjustment.of_diagonal(diagonal, self.vault.times(one_of_each).T)

    @cached_property
    def unit(self) -> Array:
        """What features are divided by so that they vary alike at all parties (d,)."""
        if "spread" not in self.asked:
            return np.ones(self.diagonal.size)
        return harmonising_unit(self.diagonal, int(self.vault.count), self.asked["spread"])

    def scatter(self) -> Array:
        """The packed scatter of the adjusted rows about this party's mean, with all features in its unit.

        Rounding makes no entry larger than those of any rows with these deviations.
        """
        left = self.adjustment.of_scatter(symmetric(self.vault.moments().scatter, self.diagonal.size))
        deviation = np.sqrt(self.diagonal.clip(min=0.0)) / self.unit
        largest = np.outer(deviation, deviation)
        return pack(np.asfortranarray((left / self.unit / self.unit[:, None]).clip(-largest, largest)))


@dataclass(frozen=True)
class AdjustedProjection(Projection):
    """A party's rows without what the run takes out; parameters of `Projection`, and these.

    Parameters
    ----------
    by : OwnAdjustment
    """

    by: OwnAdjustment

    def squared_error(self) -> float:
        head, _ = self.vault.head_and_diagonal()
        deviation = np.zeros_like(head.mean) if self.by.within else self.vault.deviation(self.mean)
        between = head.n * (self.by.adjustment.residuals(deviation[None])[0] / self._unit) ** 2
        total = (self.by.diagonal / self._unit**2 + between).sum()
        return left_of(float(total), self.vault.squares(self._directions, deviation))

    def centred(self, rows: Rows) -> Iterator[Array]:
        mean, remainder = self._centre
        for chunk in chunks(rows):
            centred = np.subtract(chunk, mean, dtype=np.float64)
            centred -= remainder
            yield self.by.adjustment.residuals(centred) / self._unit

    def loadings(self) -> Loadings:
        mean, remainder = self._centre
        return Loadings(self._directions, mean + remainder, np.ones_like(mean), columns=self.columns)

    @property
    def _directions(self) -> Array:
        return self.by.adjustment.directions(self.components / self._unit)

    @property
    def _centre(self) -> tuple[Array, Array]:
        if self.by.within:
            head, _ = self.vault.head_and_diagonal()
            return head.mean, head.remainder
        return self.mean, np.zeros_like(self.mean)

    @cached_property
    def _unit(self) -> Array:
        return self.by.unit * self.scale if self.scale.size else self.by.unit


PLACES = "covariate places"
"""In a party's state for the run: where its covariates stand."""

SLOPES = Field("slopes", ("q", "d"), fixed="slopes")
SPREAD = Field("spread", ("d",), kind="size", fixed="harmonised spread")


class AdjustOptions(PCAOptions):
    """What is taken out of rows first."""

    adjust_for: str = ""
    """Columns (names, or numbers from 0, with commas between them) that are regressed out of all others first."""
    harmonise: Annotated[Literal["nothing", "means", "variances"], Limits(examples=[])] = "nothing"
    """'means': nothing is left between the parties' means; 'variances': all parties' features also vary alike."""

    @property
    def covariates(self) -> list[str]:
        return [name.strip() for name in self.adjust_for.split(",") if name.strip()]

    @property
    def within(self) -> bool:
        """Whether rows are about their own party's mean."""
        return self.harmonise != "nothing"


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


class Adjust(RowsStage):
    """Moments without what covariates explain, and without what differs between parties."""

    Options = AdjustOptions
    names = ("adjust_for", "harmonise")
    examples = ({"harmonise": "variances"},)
    adjusted: Adjusted
    """What the run has taken out of the rows, at the server."""
    left: Array
    """The diagonal (d,) of what is left."""

    @classmethod
    def fits(cls, card: MethodCard) -> bool:
        return card.pools_rows and issubclass(card.options, MomentsOptions)

    @property
    def site_sums(self) -> Mapping[str, str]:
        deviations = "; and a scatter that each site has divided by its own deviations"
        sums = {"nothing": {}, "means": {"harmonise": WITHIN}, "variances": {"harmonise": WITHIN + deviations}}
        return sums[self.options.harmonise]

    def script(self, config: RunConfig, questions: Questions) -> Questions:
        names = self.options.covariates
        if len(set(names)) < len(names):
            raise ConfigError(f"run-config: 'adjust-for' names a column twice: {', '.join(names)}")
        if not self.options.centred:
            raise ConfigError("run-config: 'adjust-for' and 'harmonise' go only with center=true")
        options: AdjustOptions = self.options
        known = questions["project"]
        alike = options.harmonise == "variances"
        last = replace(
            known,
            asked=Payload((*known.asked.fields, SLOPES, *((SPREAD,) if alike else ()))),
            sizes=lambda public: {**known.sizes(public), "q": len(options.covariates)},
            limits=lambda asked, public: projection_limits(_reach(asked, public)),
        )
        if not options.within:
            return {**questions, "project": last}
        moments = moments_phases(config, within=True, keep=self.options.keep)
        harmonised = Question(
            asked=Payload((SLOPES, SPREAD)),
            reply=Payload((SCATTER,)),
            answer=lambda party, asked: {"scatter": own_adjustment(party, asked).scatter()},
            sizes=lambda public: {"q": len(options.covariates)},
            limits=lambda asked, public: {"scatter": moments_limits(_reach(asked, public))["scatter"]},
            words=lambda sizes: {"scatter": WIDE[:3]},
        )
        further = by_transport(config, clear={}, masked={"harmonised": harmonised}) if alike else {}
        return {**moments, **further, "project": last}

    # A party

    def ready(self, party: RowsClient) -> None:
        covariate_places(self.options.covariates, party.site.table)

    def about(self, party: RowsClient) -> dict[str, Any]:
        places = covariate_places(self.options.covariates, party.site.table)
        return {"covariates": " ".join(map(str, places.tolist()))} if places.size else {}

    def take(self, party: RowsClient, asked: Fields) -> None:
        """Keep where the covariates are; refuse other slopes than those that this site was told for these rows."""
        if "slopes" in asked:
            party.site.state[PLACES] = [covariate_places(self.options.covariates, party.site.table)]
            if "harmonised" in party.questions:
                digest = b"".join(np.ascontiguousarray(asked[name]).tobytes() for name in ("slopes", "spread"))
                party.site.repeats(party.card.split).permit_slopes(hashlib.sha256(digest).hexdigest())

    def projection(self, party: RowsClient, asked: Fields, projection: Projection) -> Projection:
        return AdjustedProjection(**vars(projection), by=own_adjustment(party.party, asked))

    # The server

    def moments(self, run: RowsStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        options = self.options
        found = yield from pooled(within=options.within, each=True)
        whole, d = found.moments, found.moments.n_features
        S = symmetric(whole.scatter, d)
        adjustment, collinear = fitted(S, _places(run.quorum.covariates, len(options.covariates), d))
        left = adjustment.of_scatter(S)
        missed = adjustment.missed(found.evidence.missed)
        diagonal = np.diagonal(left)
        if not diagonal.any():
            raise DataError("the covariates explain all features, or no party's rows vary: nothing is left to analyse")
        if not found.parts:
            require_resolved(run.config.bound, np.broadcast_to(missed, (d,)), diagonal)
        spread = np.sqrt(diagonal / whole.count) if options.harmonise == "variances" else np.empty(0)
        self.adjusted = Adjusted(adjustment, spread, _notes(options, collinear))
        own = {name: _of_party(part, whole, self.adjusted) for name, part in found.parts.items()}
        if spread.size and own:
            left = np.sum([symmetric(one.scatter, d) for one in own.values()], axis=0)
        elif spread.size:
            total: Total = yield Sum("harmonised", self.adjusted.told)
            left = symmetric(total["scatter"], d)
            missed = missed + total.missed["scatter"][diagonal_positions(d)]
        contributions = Contributions(own, between=not options.within) if own else None
        evidence = replace(found.evidence, missed=missed, contributions=contributions)
        moments = replace(whole, scatter=pack(np.asfortranarray(left)))
        check_components(options.n_components, moments.count, d - adjustment.places.size)
        self.left = moments.diagonal()
        return PooledMoments(moments, self.left, evidence=evidence)

    def fit(self, run: RowsStrategy, fitting: Fitting) -> Fitting:
        solution = yield from fitting
        solution.pairs.vectors[self.left == 0] = 0.0  # where nothing is left, rounding is no loading
        return replace(solution, adjustment=self.adjusted.adjustment).extended(notes=self.adjusted.notes)

    def closing(self, run: RowsStrategy, model: PCAModel, asked: Fields) -> Closing:
        return self.adjusted.told
        yield


def own_adjustment(party: Party, asked: Fields) -> OwnAdjustment:
    """How this party's rows are adjusted, by what the run tells."""
    return OwnAdjustment(party.vault, party.state[PLACES][0], party.options.within, asked)


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
