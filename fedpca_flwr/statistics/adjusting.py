"""Moments without what covariates explain (``adjust-for``), and without what differs between parties (``harmonise``).

Covariates are columns of the parties' rows like any other. Their joint moments with the features give the slopes, so a
regression of all rows needs no round of its own. Where each party's own means are taken out, the scatter is the sum of
those about own means; where deviations are made alike too, the server divides the parties' scatters, if it sees them,
and else asks for one sum more: every party is told slopes and pooled deviations, and divides its own.

Only parties know the names of columns. So each says where the covariates stand in its own (`PartyInfo.covariates`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.config import Config, RunConfig
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.adjustment import Adjustment, fitted, harmonising_unit
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, diagonal_positions, pack, symmetric
from fedpca_flwr.maths.pooling import pool, pool_within
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases, Sum, Total
from fedpca_flwr.statistics.influences import Contributions
from fedpca_flwr.statistics.keeping import kept, party_names
from fedpca_flwr.statistics.moment_fields import moments_of
from fedpca_flwr.statistics.row_limits import require_resolved, scatter_limits
from fedpca_flwr.statistics.rows import ROW_COUNT, SCATTER, moments_phases, summed_moments
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

SLOPES = Field("slopes", ("q", "d"), fixed="slopes")
SPREAD = Field("spread", ("d",), kind="size", fixed="harmonised spread")


class AdjustOptions(Config):
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

    @model_validator(mode="after")
    def _about_means(self) -> Self:
        if len(set(self.covariates)) < len(self.covariates):
            raise PydanticCustomError("twice", "'adjust-for' names a column twice")
        others = {"center": True, "genotypes": False}
        if self.adjusts and any(getattr(self, key, value) != value for key, value in others.items()):
            raise PydanticCustomError(
                "adjust", "'adjust-for' and 'harmonise' go only with center=true, genotypes=false"
            )
        return self


@dataclass(frozen=True)
class Adjusted:
    """What a run has adjusted by.

    Attributes
    ----------
    adjustment : Adjustment
    spread : ndarray of shape (d,)
        Deviations of all rows (divisor n) within the parties, where variances are harmonised; else empty.
    notes : sequence of str
    """

    adjustment: Adjustment
    spread: Array
    notes: list[str]

    @property
    def told(self) -> Fields:
        """What a party needs for its own rows."""
        return {"slopes": self.adjustment.slopes, "spread": self.spread}


def adjusted_phases(config: RunConfig, options: Any) -> Phases:
    """The phases of `adjusted_moments`.

    Raises
    ------
    ConfigError
        Where the server has too few sums for that.
    """
    secure = config.transport != "clear"
    if secure and options.within and options.keep != "nothing":
        raise ConfigError(
            f"run-config: 'keep' is '{options.keep}', but with secure-aggregation and harmonise='{options.harmonise}' "
            "the server has no moments with what lies between the parties; use keep=nothing"
        )
    if config.transport == "surviving" and options.harmonise == "variances":
        raise ConfigError(
            "run-config: 'harmonise' is 'variances', which takes a second sum, and with 'survivors' one is ever "
            "opened: use harmonise=means, or no survivors"
        )
    phases = moments_phases(config, within=options.within, keep=options.keep)
    if not (secure and options.harmonise == "variances"):
        return phases
    harmonised = Phase(
        asked=Payload((ROW_COUNT, SLOPES, SPREAD)),
        reply=Payload((SCATTER,)),
        sizes=lambda public: {"q": len(public.options.covariates)},
        limits=lambda asked, public: scatter_limits(asked["spread"] * np.sqrt(int(asked["rows"])) * (1 + 2.0**-20)),
    )
    return {**phases, "harmonised": harmonised}


def with_adjustment(phases: Phases, options: Any) -> Phases:
    """A script whose last question tells what a party adjusts its own rows by."""
    if not options.adjusts:
        return phases
    known = phases["project"]
    asked = Payload((*known.asked.fields, SLOPES, replace(SPREAD, optional=True)))
    q = len(options.covariates)
    phase = replace(known, asked=asked, sizes=lambda public: {**known.sizes(public), "q": q})
    return {**phases, "project": phase}


def adjusted_moments(run: RowsStrategy) -> Generator[Ask, Any, tuple[Moments, Adjusted]]:
    """The moments of all rows without what the options take out."""
    options: Any = run.options
    if run.config.transport == "clear":
        replies = yield Ask("moments")
        parts = {reply.sender: moments_of(reply) for reply in replies}
        pooled = pool(parts.values())
        run.kept = kept(options, pooled, dict(zip(party_names(replies), parts.values(), strict=True)))
        whole = pool_within(parts.values()) if options.within else pooled
    else:
        parts = {}
        whole, _ = yield from summed_moments(run, within=options.within)
        run.kept = kept(options, whole, {}, missed=run.missed)
    d = whole.n_features
    S = symmetric(whole.scatter, d)
    adjustment, collinear = fitted(S, _places(run.quorum.covariates, len(options.covariates), d))
    left = adjustment.of_scatter(S)
    run.missed = adjustment.missed(run.missed)
    diagonal = np.diagonal(left)
    if not diagonal.any():
        raise DataError("the covariates explain all features, or no party's rows vary: nothing is left to analyse")
    if run.config.transport != "clear":
        require_resolved(run.config.bound, np.broadcast_to(run.missed, (d,)), diagonal)
    spread = np.sqrt(diagonal / whole.count) if options.harmonise == "variances" else np.empty(0)
    found = Adjusted(adjustment, spread, _notes(options, collinear))
    own = {name: _of_party(part, whole, found) for name, part in parts.items()}
    if spread.size and own:
        left = np.sum([symmetric(one.scatter, d) for one in own.values()], axis=0)
    elif spread.size:
        total: Total = yield Sum("harmonised", {"rows": np.asarray(whole.count), **found.told})
        left = symmetric(total["scatter"], d)
        run.missed = run.missed + total.missed["scatter"][diagonal_positions(d)]
    if own:
        run.contributions = Contributions(own, between=not options.within)
    return replace(whole, scatter=pack(np.asfortranarray(left))), found


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
    """Where the parties say that the covariates are.

    Raises
    ------
    ConfigError
    """
    places = [int(place) for place in told.split()]
    if len(places) != expected or len(set(places)) < expected or max(places, default=0) >= d:
        raise ConfigError(f"the parties say that {expected} covariates of {d} columns are at '{told[:100]}'")
    if expected >= d:
        raise ConfigError(f"run-config: 'adjust-for' names all {d} columns: nothing is left to analyse; name fewer")
    return np.array(places, dtype=np.int64)


def _notes(options: Any, collinear: NDArray[np.int64]) -> list[str]:
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
