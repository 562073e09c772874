"""Moments without the part that covariates explain (``adjust-for``), or that differs between parties (``harmonise``).

Covariates are columns of the rows, whose joint moments with the features give the slopes without a round of their own.
Where own means are subtracted, the scatter is the sum of those about own means. Where deviations are made equal too,
the server divides the parties' scatters, if it sees them, or else asks for a further sum: every party receives slopes
and pooled deviations, and divides its own scatter. Parties say at which columns the covariates are
(`PartyInfo.covariates`).
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.column_notes import class_code_notes, split_at_commas
from fedpca_flwr.data.table import Table, columns_text
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths.adjustment import Adjustment, fit_adjustment, harmonising_unit
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, diagonal_positions, pack, unpack_symmetric
from fedpca_flwr.maths.rows import Rows, chunks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, SumRound, Total, by_transport
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.pooling import Fitting, PooledMoments, Pooling
from fedpca_flwr.questions.row_limits import WIDE_DIGITS, moments_limits, projection_limits, reach, require_resolved
from fedpca_flwr.questions.rows import SCATTER, moments_questions
from fedpca_flwr.questions.rows_client import Closing, Party, Projection, RowsClient, RowsStage
from fedpca_flwr.site.rows.vault import Vault, residual_sum
from fedpca_flwr.stages.declarations import Adjust, AdjustOptions


def covariate_columns(names: list[str], table: Table) -> NDArray[np.int64]:
    """Return the column indices (q,) of covariates, by names or numbers from 0; ConfigError for unknown, equal ones."""
    width = table.rows.shape[1]
    positions = {str(place): place for place in range(width)} | {name: i for i, name in enumerate(table.names)}
    unknown = [name for name in names if name not in positions]
    if unknown:
        raise ConfigError(
            f"run-config: 'adjust-for' names {', '.join(map(repr, unknown))}, which this site's {width} columns do "
            "not have; give names of columns, or numbers from 0",
            local=columns_text(np.ones(width, dtype=bool), table.names),
        )
    columns = np.array([positions[name] for name in names], dtype=np.int64)
    if np.unique(columns).size < columns.size:
        raise ConfigError(f"run-config: 'adjust-for' names a column twice: {', '.join(names)}")
    return columns


@dataclass(frozen=True)
class LocalAdjustment:
    """Adjustment of a party's rows for covariates, by the slopes and deviations that the server sends."""

    vault: Vault  # moments of the rows (n, d) that take part
    covariates: NDArray[np.int64]  # (q,) column indices
    within: bool  # whether this party's own mean is subtracted, instead of the mean of all rows
    request: Fields  # ``slopes`` (q, d), and where variances are harmonised ``spread`` (d,)

    @property
    def adjustment(self) -> Adjustment:
        """Adjustment that subtracts covariates times slopes from single rows."""
        return Adjustment(self.covariates, self.request["slopes"])

    @cached_property
    def diagonal(self) -> Array:
        """Diagonal (d,) of the scatter of the adjusted rows about their own mean, in the unit of the data."""
        _, diagonal = self.vault.head_and_diagonal()
        selector = np.zeros((diagonal.size, self.covariates.size))
        selector[self.covariates, np.arange(self.covariates.size)] = 1.0
        return self.adjustment.residual_diagonal(diagonal, self.vault.times(selector).T)

    @cached_property
    def unit(self) -> Array:
        """Divisors (d,) of features that make their deviations equal at all parties; 1 without harmonising."""
        if "spread" not in self.request:
            return np.ones(self.diagonal.size)
        return harmonising_unit(self.diagonal, int(self.vault.count), self.request["spread"])

    def scatter(self) -> Array:
        """Return the packed scatter of the adjusted rows about this party's mean, features divided by `unit`.

        Entries are clipped to the products of the deviations, which rounding might exceed.
        """
        residual = self.adjustment.residual_scatter(unpack_symmetric(self.vault.moments().scatter, self.diagonal.size))
        deviation = np.sqrt(self.diagonal.clip(min=0.0)) / self.unit
        max_scatter = np.outer(deviation, deviation)
        return pack(np.asfortranarray((residual / self.unit / self.unit[:, None]).clip(-max_scatter, max_scatter)))


@dataclass(frozen=True)
class AdjustedProjection(Projection):
    """Projection of a party's rows after adjustment for covariates and harmonised means and deviations."""

    local_adjustment: LocalAdjustment

    @override
    def squared_error(self) -> float:
        """Return the total squared error of the adjusted rows after projection, from moments."""
        directions, centre = self.axes
        deviation = np.zeros_like(self.mean) if centre is None else self.vault.deviation(centre)
        between = self.vault.count * (self.local_adjustment.adjustment.residuals(deviation[None])[0] / self._unit) ** 2
        total = (self.local_adjustment.diagonal / self._unit**2 + between).sum()
        return residual_sum(float(total), self.vault.squares(directions, deviation))

    @property
    @override
    def axes(self) -> tuple[Array, Array | None]:
        """Loadings that give adjusted scores, and their centre: within parties each party's own mean."""
        return self._directions, None if self.local_adjustment.within else self.mean

    @override
    def centred(self, rows: Rows) -> Iterator[Array]:
        """Yield chunks (m, d) of rows less their own or the pooled centre, less covariates times slopes, over units."""
        mean, remainder = self._centre
        for chunk in chunks(rows):
            centred = np.subtract(chunk, mean, dtype=np.float64)
            centred -= remainder
            yield self.local_adjustment.adjustment.residuals(centred) / self._unit

    @override
    def loadings(self) -> Loadings:
        """Return loadings for unadjusted rows, which include the adjustment and all divisors."""
        mean, remainder = self._centre
        return Loadings(self._directions, mean, np.ones_like(mean), columns=self.columns, remainder=remainder)

    @property
    def _directions(self) -> Array:
        """Loadings (k, d) that give adjusted scores from unadjusted, centred rows."""
        return self.local_adjustment.adjustment.equivalent_loadings(self.components / self._unit)

    @property
    def _centre(self) -> tuple[Array, Array]:
        """Mean (d,) that is subtracted from rows, and its rounding error: the party's own or the pooled mean."""
        if self.local_adjustment.within:
            head, _ = self.vault.head_and_diagonal()
            return head.mean, head.remainder
        return self.mean, np.zeros_like(self.mean)

    @cached_property
    def _unit(self) -> Array:
        """Divisors (d,) of features: harmonising unit times scale."""
        return self.local_adjustment.unit * self.scale if self.scale.size else self.local_adjustment.unit


COVARIATES_KEY = "covariate places"  # key in a party's state for the run: the columns of its covariates
SLOPES = Field("slopes", ("q", "d"), constant="slopes")
SPREAD = Field("spread", ("d",), kind="size", constant="harmonised spread")


@dataclass(frozen=True)
class RunAdjustment:
    """Adjustment that the server computed for all rows: slopes of covariates, pooled deviations, and notes."""

    adjustment: Adjustment
    spread: Array  # (d,) deviations (divisor n) within parties, to harmonise; else (0,)
    notes: list[str]  # for the reader of the model

    @property
    def broadcast(self) -> Fields:
        """Fields sent to the parties: ``slopes`` (q, d), and ``spread`` (d,) if deviations are harmonised."""
        return {"slopes": self.adjustment.slopes, **({"spread": self.spread} if self.spread.size else {})}


def _adjusted_reach(request: Fields, public: Public) -> Array:
    """Return each feature's largest size after adjustment, or, if all vary equally, the root of their mean square."""
    slopes: Array = np.abs(request["slopes"]).sum(axis=0)
    sizes = reach(request, public)
    unit = request["scale"] if request.get("scale", np.empty(0)).size else np.ones_like(sizes)
    sizes = sizes + float((sizes * unit).max()) * slopes / unit
    if "spread" not in request:
        return sizes
    harmonised = request["spread"] / unit * (1 + 2.0**-20)
    return np.asarray(np.where(request["spread"] > 0, harmonised, sizes))


class AdjustStage(Adjust, RowsStage):
    """Stage that regresses covariates out of the moments, and removes differences between the parties' means."""

    adjusted: RunAdjustment  # at the server
    residual_diagonal: Array  # (d,) diagonal of the adjusted scatter

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Add slopes to the projection, and with harmonising ask for scatters about own means."""
        options, names = self.options, self.options.covariate_names(config.levels_by_column)
        if len(set(names)) < len(names):
            raise ConfigError(f"run-config: 'adjust-for' names a column twice: {', '.join(names)}")
        if unused := split_at_commas(options.numbers) - {*options.covariates}:
            text = f"'numbers' names {', '.join(sorted(unused))}, which 'adjust-for' does not name"
            raise ConfigError(f"run-config: {text}: name covariates, in the same words")
        if not options.centred:
            raise ConfigError("run-config: 'adjust-for' and 'harmonise' go only with center=true")
        project, harmonises = questions["project"], options.harmonise == "variances"
        last = replace(
            project,
            request=Payload((*project.request.fields, SLOPES, *((SPREAD,) if harmonises else ()))),
            sizes=lambda public: {**project.request_sizes(public), "q": len(names)},
            limits=lambda request, public: projection_limits(_adjusted_reach(request, public)),
        )
        if not options.within:
            return {**questions, "project": last}
        moments = moments_questions(config, within=True, keep=options.keep)
        harmonised = Question(
            request=Payload((SLOPES, SPREAD)),
            reply=Payload((SCATTER,)),
            answer=lambda party, request: {"scatter": local_adjustment(party, request).scatter()},
            sizes=lambda public: {"q": len(names)},
            limits=lambda request, public: {"scatter": moments_limits(_adjusted_reach(request, public))["scatter"]},
            words=lambda sizes: {"scatter": WIDE_DIGITS[:3]},
        )
        extra = by_transport(config, clear={}, masked={"harmonised": harmonised}) if harmonises else {}
        return {**moments, **extra, "project": last}

    # A party

    @override
    def covariate_columns(self, party: RowsClient) -> NDArray[np.int64]:
        """Return the columns of the covariates in the party's table."""
        names = self.options.covariate_names(party.site.config.levels_by_column)
        return covariate_columns(names, party.site.table)

    @override
    def require_ready(self, party: RowsClient) -> None:
        """Store the covariates' columns, and log notes on codes once; raise what `covariate_columns` raises."""
        columns, table = self.covariate_columns(party), party.site.table
        if COVARIATES_KEY not in party.site.state:
            suspects = {*self.options.covariates} - split_at_commas(self.options.numbers)
            for note in class_code_notes({"this site": table.rows}, table.names, suspects):
                site_logger.warning("%s", note)
        party.site.state[COVARIATES_KEY] = [columns]

    @override
    def info(self, party: RowsClient) -> dict[str, Any]:
        """Return ``covariates``, their column indices as text, if there are any."""
        columns = self.covariate_columns(party)
        return {"covariates": " ".join(map(str, columns.tolist()))} if columns.size else {}

    @override
    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Raise DisclosureError for slopes or deviations other than those of an earlier run over the same rows.

        This is so in a secure sum with harmonised variances, at a site with a journal, unless `repeat` is 'allow'.
        """
        if "slopes" in request and "harmonised" in party.questions:
            digest = b"".join(np.ascontiguousarray(request[name]).tobytes() for name in ("slopes", "spread"))
            party.site.repeats(party.card.split).permit_slopes(hashlib.sha256(digest).hexdigest())

    @override
    def projection(self, party: RowsClient, request: Fields, projection: Projection) -> Projection:
        """Return the projection of rows adjusted by the request's slopes."""
        return AdjustedProjection(**vars(projection), local_adjustment=local_adjustment(party.party, request))

    # The server

    @override
    def moments(self, run: PCAStrategy, pooled: Callable[..., Pooling]) -> Pooling:
        """Pool the moments, regress the covariates out, harmonise if requested, and return the rest.

        Raise DataError if nothing is left, and ConfigError for other covariates, components or a `bound` that do not
        fit.
        """
        options = self.options
        result = yield from pooled(within=options.within, retain_all=True)
        all_rows, d = result.moments, result.moments.n_features
        S = unpack_symmetric(all_rows.scatter, d)
        names = options.covariate_names(run.config.levels_by_column)
        columns = _parse_columns(run.quorum.covariates, len(names), d)
        adjustment, collinear = fit_adjustment(S, columns)
        # all indicators of a column add up to 1
        collinear = np.setdiff1d(collinear, columns[[name not in options.covariates for name in names]])
        residual = adjustment.residual_scatter(S)
        error_bound = adjustment.diagonal_error_bound(result.evidence.error_bound)
        diagonal = np.diagonal(residual)
        if not diagonal.any():
            raise DataError("the covariates explain all features, or no party's rows vary: nothing is left to analyse")
        if not result.parts:
            require_resolved(run.config.bound, np.broadcast_to(error_bound, (d,)), diagonal)
        spread = np.sqrt(diagonal / all_rows.count) if options.harmonise == "variances" else np.empty(0)
        self.adjusted = RunAdjustment(adjustment, spread, _notes(options, np.array(names)[np.isin(columns, collinear)]))
        parts = {name: _adjust_part(part, all_rows, self.adjusted) for name, part in result.parts.items()}
        if spread.size and parts:
            residual = np.sum([unpack_symmetric(part.scatter, d) for part in parts.values()], axis=0)
        elif spread.size:
            total: Total = yield SumRound("harmonised", self.adjusted.broadcast)
            residual = unpack_symmetric(total["scatter"], d)
            error_bound = error_bound + total.error_bounds["scatter"][diagonal_positions(d)]
        contributions = Contributions(parts, between=not options.within) if parts else None
        evidence = replace(result.evidence, error_bound=error_bound, contributions=contributions)
        moments = replace(all_rows, scatter=pack(np.asfortranarray(residual)))
        check_components(options.n_components, moments.count, d - adjustment.covariate_columns.size)
        self.residual_diagonal = moments.diagonal()
        return PooledMoments(moments, self.residual_diagonal, evidence=evidence)

    @override
    def fit(self, run: PCAStrategy, fitting: Fitting) -> Fitting:
        """Run the method, zero loadings of features with no remaining variance, and add the adjustment's notes."""
        solution = yield from fitting
        solution.pairs.vectors[self.residual_diagonal == 0] = 0.0  # where nothing is left, rounding is no loading
        return replace(solution, adjustment=self.adjusted.adjustment).with_details(notes=self.adjusted.notes)

    @override
    def closing(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Closing:
        """Return the slopes and pooled deviations as fields of the last request; ask nothing."""
        return self.adjusted.broadcast
        yield


def local_adjustment(party: Party, request: Fields) -> LocalAdjustment:
    """Return a party's adjustment, from its stored covariate columns and the slopes of the request."""
    return LocalAdjustment(party.vault, party.state[COVARIATES_KEY][0], party.options.within, request)


def _adjust_part(part: Moments, all_rows: Moments, adjusted: RunAdjustment) -> Moments:
    """Return a party's moments with covariates regressed out, and its deviations harmonised if the run does so."""
    d, adjustment = part.n_features, adjusted.adjustment
    residual = adjustment.residual_scatter(unpack_symmetric(part.scatter, d))
    if adjusted.spread.size:
        unit = harmonising_unit(np.diagonal(residual), part.count, adjusted.spread)
        residual = residual / unit / unit[:, None]
    # the means (with low-order remainders) differ by what covariates do not explain, in the unit of all rows
    step = adjustment.residuals((part.mean - all_rows.mean + (part.remainder - all_rows.remainder))[None])[0]
    return Moments(part.count, all_rows.mean + step, all_rows.remainder, pack(np.asfortranarray(residual)))


def _parse_columns(text: str, expected: int, d: int) -> NDArray[np.int64]:
    """Parse the column indices that the parties reported; raise ConfigError for impossible ones, or all columns."""
    columns = [int(place) for place in text.split()]
    if len(columns) != expected or len(set(columns)) < expected or max(columns, default=0) >= d:
        raise ConfigError(f"the parties say that {expected} covariates of {d} columns are at {value_text(text)}")
    if expected >= d:
        raise ConfigError(f"run-config: 'adjust-for' names all {d} columns: nothing is left to analyse; name fewer")
    return np.array(columns, dtype=np.int64)


def _notes(options: AdjustOptions, collinear: NDArray[np.str_]) -> list[str]:
    """Return the model's notes on adjustment and harmonising; ``collinear`` are names of some of the covariates."""
    notes = []
    if options.covariates:
        notes.append(f"adjusted for {', '.join(options.covariates)}: the components are those of what these leave")
    if collinear.size:
        names = ", ".join(collinear.tolist())
        notes.append(f"of the covariates {names} some combination does not vary: it was dropped")
    if options.harmonise == "means":
        notes.append("what differs between the parties' means was taken out")
    if options.harmonise == "variances":
        notes.append("what differs between the parties' means and deviations was taken out")
        if options.covariates:
            notes.append(
                "deviations were made alike after that, by other numbers for each party: what is left may correlate "
                "with the covariates again"
            )
    return notes
