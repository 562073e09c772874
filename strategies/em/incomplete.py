"""Rows with missing values: means and deviations of the observed values, and sums of the rows' expected values.

All statistics are sums, so the replies travel in clear or masked alike. The centre is the mean of the observed values
of each feature, and the spread their standard deviation. Rows are standardised with both, and models of the rows are in
that unit. Where few factors explain wide rows, no request and no reply has d^2 values, and rows are in the
`factor_unit`. The limits of fixed point are in `fedpca_flwr.strategies.em.incomplete_limits`.
"""

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.maths import moments
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import MIN_EIGENVALUE
from fedpca_flwr.maths.moments import Head, Moments
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Question, Questions, Round, SumLimits, SumRound, Total
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.questions import row_limits
from fedpca_flwr.questions.influence import standard_deviations, unit_entries
from fedpca_flwr.questions.pooling import COUNT, party_names
from fedpca_flwr.questions.rows import CENTRE, SPREAD, constant_cautions, stores_each_party
from fedpca_flwr.questions.rows_run import RowsStrategy
from fedpca_flwr.strategies.em.factor_em import FactorGaussian, FactorSums, factor_sums
from fedpca_flwr.strategies.em.gaussian_em import Expected, Gaussian, expected_sums
from fedpca_flwr.strategies.em.incomplete_client import IncompleteClient
from fedpca_flwr.strategies.em.incomplete_limits import (
    deviation_limits,
    expected_limits,
    factor_limits,
    factor_unit,
    max_standardised,
    observed_limits,
    positive,
    unbounded_limits,
)

MODEL = (
    Field("rows", (), "int64", kind="count"),
    CENTRE,
    SPREAD,
    Field("mean", ("d",)),
    Field("covariance", ("d(d+1)/2",), kind="scatter"),
)
"""A Gaussian model of standardised rows, and what they are standardised with."""


class ObservedValues(NamedTuple):
    """Counts, means and deviations of the observed values of each feature, over all parties."""

    total_rows: int  # of all parties
    rows: int  # rows n with any value
    counts: Array  # (d,) rows that have each feature
    unshared_pairs: int  # pairs of features that no row has both, where the server learns that
    centre: Array  # (d,) means of the observed values, up to rounding
    spread: Array  # (d,) deviations of the observed values; 0 if constant, or in fixed point its mean's rounding
    mean: Array  # (d,) rounding error of the centre, standardised
    constant: NDArray[np.bool_]  # (d,) single-valued as far as fixed point can tell: nothing is predicted of these
    cautions: Sequence[str]  # for the reader of the model
    units: Sequence[dict[str, Any]] = ()  # features in another unit, where the server sees each party
    party_rows: Mapping[str, int] = MappingProxyType({})  # rows with any value, where the server sees each party

    @property
    def deviation(self) -> Array:
        """Standard deviations (d,) of the observed values, 0 for constant features."""
        return np.where(self.constant, 0.0, self.spread)

    def model_request(self, mean: Array) -> Fields:
        """Return the request fields ``rows``, ``centre``, ``spread``, and ``mean`` (d,) of a standardised model."""
        return {"rows": np.asarray(self.rows), "centre": self.centre, "spread": self.spread, "mean": mean}

    @property
    def centre_error(self) -> Array:
        """Rounding error of the centre (d,), in the unit of the data."""
        return self.mean * positive(self.spread)

    @property
    def missing_share(self) -> float:
        """Share of all values that are missing."""
        return 1.0 - float(self.counts.sum()) / (self.rows * self.centre.size)

    def in_data_units(self, mean: Array, scatter: Array, rows: int | None = None) -> Moments:
        """Turn mean (d,) and packed scatter of standardised rows into moments in the unit of the data.

        A constant feature has no scatter. ``rows`` is by default the number of rows that have any value.
        """
        head = Head(self.rows if rows is None else rows, *moments.two_sum(self.centre, self.spread * mean))
        return Moments(*head, scatter=scatter * moments.pack(np.outer(self.deviation, self.deviation)))


def observed_questions(config: RunConfig, *, pairs: bool) -> Questions:
    """Return the questions ``observed``, for counts and sums of observed values, and ``deviations``, from their mean.

    With ``pairs`` the counts are, for every two features, of the rows that have both.
    """
    row_limits.require_bound(config)
    counts = Field("pairs", ("d(d+1)/2",), kind="size") if pairs else Field("values", ("d",), kind="size")
    return {
        "observed": Question(
            reply=Payload((COUNT, Field("empty", (), "int64", kind="size"), counts, Field("sum", ("d",)))),
            answer=_local_observed,
            limits=lambda request, public: observed_limits(public, pairs=pairs),
            share_limits=unbounded_limits(lambda request, public: observed_limits(public, pairs=pairs)),
            words=row_limits.FIRST_WORDS,
        ),
        "deviations": Question(
            request=Payload((MODEL[0], CENTRE)),
            reply=Payload((Field("shift", ("d",)), Field("diagonal", ("d",), kind="size"))),
            answer=_local_deviations,
            limits=lambda request, public: deviation_limits(request, public, row_limits.MAX_ROWS),
            share_limits=unbounded_limits(
                lambda request, public: deviation_limits(request, public, int(request["rows"]))
            ),
            words=row_limits.FIRST_WORDS,
        ),
    }


def expected_question(times: int) -> Question:
    """Return the question for E-step sums under a Gaussian model (`MODEL`), which a run may ask ``times`` times."""
    return Question(
        request=Payload(MODEL),
        reply=Payload((Field("first", ("d",)), Field("second", ("d(d+1)/2",), kind="scatter"))),
        answer=_local_expected,
        limits=lambda request, public: expected_limits(
            request, row_limits.MAX_ROWS, max_standardised(request, public, positive(request["spread"]))
        ),
        share_limits=unbounded_limits(lambda request, public: expected_limits(request, int(request["rows"]), 1.0)),
        words=row_limits.FIRST_WORDS,
        times=times,
    )


def filled_limits(request: Fields, public: Public) -> SumLimits:
    """Return limits of the projection's ``count`` and ``squared``, the squared error of rows with imputed values.

    They follow as for expected values, and are not finite for a request out of range, which has ``mean``, ``scale``,
    and ``factors`` or ``covariance``.
    """
    reach = public.config.bound + np.abs(request["mean"])
    with np.errstate(all="ignore"):  # what is not finite is refused
        observed = 2 * row_limits.MAX_ROWS * reach**2
        if "factors" in request:
            *loadings, noise = request["factors"]
            variances, metric = np.square(loadings).sum(axis=0) + noise, np.where(noise > 0, 1 / noise, np.inf)
        else:
            diagonal = request["covariance"][moments.diagonal_positions(reach.size)].clip(min=0.0)
            variances = np.where(diagonal > 0, diagonal, 1.0)
            metric = 1 / variances / MIN_EIGENVALUE
        squares = observed + variances * float((observed * metric).sum())
        scale = request["scale"] if request["scale"].size else 1.0
        return {"count": np.array(float(row_limits.MAX_ROWS)), "squared": (squares / scale**2).sum()}


def _local_observed(party: IncompleteClient, request: Fields) -> Fields:
    """Return the numbers of rows and of empty rows, and each feature's count and sum of observed values.

    For a model with a covariance, counts are of the rows that have both features of a pair. Log rows that take no part.
    """
    rows, patterns = party.gapped, party.gapped.patterns
    if excluded := party.patterns.of.size - len(party.selection):
        site_logger.warning(
            "%d rows take no part in this run, since fewer rows than 'min-rows' = %d share their gaps, or to make "
            "the number of rows a multiple of 'round-rows'; they get scores",
            excluded,
            party.site.node.min_rows,
        )
    empty = int(patterns.counts[patterns.without_values].sum())
    if party.options.model == "factors":
        counts = {"values": rows.counts}
    else:
        observed = (~patterns.missing).astype(np.float64)
        counts = {"pairs": moments.pack((patterns.counts[:, None] * observed).T @ observed)}
    values = rows.observed_moments
    total = values.counts * values.mean + values.counts * values.remainder
    return {"count": np.asarray(len(party.selection)), "empty": np.asarray(empty), **counts, "sum": total}


def _local_deviations(party: IncompleteClient, request: Fields) -> Fields:
    """Return each feature's sum of the observed values' deviations from the centre, and of their squares."""
    values = party.gapped.observed_moments
    deviation = np.where(values.counts > 0, (values.mean - request["centre"]) + values.remainder, 0.0)
    return {"shift": values.counts * deviation, "diagonal": values.squares + values.counts * deviation**2}


def _local_expected(party: IncompleteClient, request: Fields) -> Fields:
    """Return a party's E-step sums: expected deviations and products; raise ContractError for a false covariance."""
    model = Gaussian(request["mean"], moments.unpack_symmetric(request["covariance"], request["mean"].size))
    try:
        sums = expected_sums(party.gapped, model, request["centre"], request["spread"])
    except ValueError as error:
        raise ContractError(f"{SERVER}: 'covariance': {error}") from None
    return {"first": sums.first, "second": sums.second}


def _local_products(party: IncompleteClient, request: Fields) -> Fields:
    """Return a party's E-step sums under a factor model: expected deviations, products with the factors' basis.

    Raise ContractError unless the noise is at least `MIN_EIGENVALUE` and below all variances.
    """
    model = FactorGaussian(request["mean"], request["basis"], request["variances"], float(request["noise"]))
    if model.noise < MIN_EIGENVALUE or model.variances.min() <= model.noise:
        raise ContractError(
            f"{SERVER}: 'noise' is {model.noise:.3g}, expected at least {MIN_EIGENVALUE:.3g} and below all 'variances'"
        )
    unit = factor_unit(request, scale=party.options.scale)
    sums = factor_sums(party.gapped, model, request["centre"], unit)
    return {name: np.asarray(value) for name, value in sums._asdict().items()}


def observed_values(run: RowsStrategy, *, scale: bool) -> Generator[Round, Any, ObservedValues]:
    """Return each feature's mean and standard deviation of the observed values of all parties, from two rounds.

    Raise ConfigError if `bound` is too far above the data (with ``scale``, above any feature's deviation),
    ContractError if counts contradict each other, and DataError if no party has a value of some feature.
    """
    party_rows: dict[str, int] = {}
    parties: dict[str, list[Any]] = {}  # observed values of each party that the server sees in clear

    def consume_observed(fields: Fields, sender: str) -> None:
        """Store a party's row count, and counts and sums of its observed values."""
        positions = moments.diagonal_positions(fields["sum"].size)
        counts = fields["pairs"][positions] if "pairs" in fields else fields["values"]
        party_rows[sender] = int(fields["count"]) - int(fields["empty"])
        parties[sender] = [float(fields["count"]), counts.copy(), fields["sum"].copy()]

    def consume_deviations(fields: Fields, sender: str) -> None:
        """Turn a party's stored sums into means and standard deviations, with the fields of its second reply."""
        all_rows, party_counts, sums = parties[sender]
        with np.errstate(all="ignore"):  # of a feature that a party does not have
            squares = fields["diagonal"] - fields["shift"] ** 2 / party_counts
            parties[sender] = [all_rows, sums / party_counts, standard_deviations(squares, party_counts)]

    first: Total = yield SumRound("observed", consume=consume_observed)
    count = int(row_limits.read_row_count(first["count"], first.parties))
    rows, d = count - int(first["empty"]), first["sum"].size
    pairs = np.rint(first["pairs"]) if "pairs" in first else np.ones(moments.packed_size(d))
    counts = pairs[moments.diagonal_positions(d)] if "pairs" in first else np.rint(first["values"])
    _require_observed(rows, counts)
    centre = first["sum"] / counts
    request = {"rows": np.asarray(count), "centre": centre}
    second: Total = yield SumRound("deviations", request, consume=consume_deviations)
    error_bound = second.error_bounds.get("diagonal", np.zeros(d))
    diagonal = second["diagonal"] - second["shift"] ** 2 / counts
    constant, cautions = _constant_features(run, error_bound, diagonal, counts, centre, scale=scale)
    diagonal = np.where(constant, 0.0, diagonal)
    row_limits.require_resolved(run.config.bound, error_bound, diagonal)
    spread = np.sqrt(diagonal / counts)
    unshared, mean = int((pairs == 0).sum()), second["shift"] / counts / positive(spread)
    order = sorted(parties, key=lambda name: (len(name.partition(" (")[0]), name))  # 2 before 10
    units = unit_entries({name: tuple(parties[name]) for name in order}) if parties else ()
    return ObservedValues(count, rows, counts, unshared, centre, spread, mean, constant, cautions, units, party_rows)


def _constant_features(
    run: RowsStrategy, error_bound: Array, diagonal: Array, counts: Array, centre: Array, *, scale: bool
) -> tuple[NDArray[np.bool_], Sequence[str]]:
    """Return a mask of constant features, with cautions; raise ConfigError if scaling needs an unresolved variance.

    ``diagonal`` has the sums of squared deviations from the ``centre`` (the means) of ``counts`` observed values, and
    ``error_bound`` bounds its rounding in a secure sum. A feature whose sum is within that bound is constant, too.
    """
    constant = ~moments.varying_features(diagonal, centre)
    if not error_bound.any():
        return constant, ()
    unresolved = diagonal <= error_bound
    if not scale:
        return constant | unresolved, ()
    row_limits.require_scalable(run.config.bound, error_bound, diagonal, int(counts.max()))
    return constant | unresolved, constant_cautions(unresolved, float(np.sqrt((error_bound / counts).max())))


def _require_observed(rows: int, counts: Array) -> None:
    """Raise ContractError for counts of observed values that are impossible, and DataError if some feature has none."""
    if (counts < 0).any() or (counts > rows).any():
        raise ContractError(
            "the parties together say that a feature has a value in more rows than there are: the share of one of them "
            "is false, or was altered on its way"
        )
    if unobserved := np.flatnonzero(counts == 0).tolist():
        raise DataError(
            f"no party has a value of the features {unobserved} (numbered from 0): leave them out at every party, or "
            "find one that measured them"
        )


class PooledExpected(NamedTuple):
    """Sums of the expected rows of all parties, and of each party where the server stores these."""

    sums: Expected  # of the expected deviations from the model's mean, and of their products
    error_bounds: Array  # (d,) on the fixed-point rounding of the squares
    parts: Mapping[str, Expected]  # each party's sums, by its name in texts; empty if only the sum is shown or stored
    names: Sequence[str]  # of these parties, the same in every run, in the same order


def party_moments(pooled: PooledExpected, observed: ObservedValues, mean: Array) -> dict[str, Moments]:
    """Return the expected moments of each party's rows, in the unit of the data; their sum is that of all rows.

    A party whose rows have no value at all has no part. ``mean`` (d,) is the model's, standardised.
    """
    parts = {}
    for name, sums in pooled.parts.items():
        if rows := observed.party_rows[name]:
            step = sums.first / rows
            scatter = sums.second - rows * moments.pack(np.outer(step, step))
            parts[name] = observed.in_data_units(mean + step, scatter, rows)
    return parts


def pooled_expected(
    run: RowsStrategy, observed: ObservedValues, model: Gaussian
) -> Generator[Round, Any, PooledExpected]:
    """Return all parties' E-step sums under a Gaussian model of standardised rows: expected deviations and products."""
    parts: dict[str, Expected] = {}

    def consume(fields: Fields, sender: str) -> None:
        parts[sender] = Expected(fields["first"].copy(), fields["second"].copy())

    request = {**observed.model_request(model.mean), "covariance": moments.pack(model.covariance)}
    total: Total = yield SumRound("expected", request, consume=consume if stores_each_party(run) else None)
    error_bounds = total.error_bounds.get("second", np.zeros_like(total["second"]))
    return PooledExpected(
        Expected(total["first"], total["second"]),
        error_bounds[moments.diagonal_positions(model.mean.size)],
        {reply.sender: parts[reply.sender] for reply in total.replies if parts},
        party_names(total.replies),
    )


FACTOR_MODEL = (
    *MODEL[:-1],
    Field("basis", ("d", "<=q"), kind="orthonormal columns"),
    Field("variances", ("<=q",), kind="positive"),
    Field("noise", (), kind="positive"),
)
"""A model of few factors, of rows in the unit that the spread gives."""


def factor_question(times: int, max_factors: int) -> Question:
    """Return the question for E-step sums under a factor model, which a run may ask ``times`` times."""
    return Question(
        request=Payload(FACTOR_MODEL),
        reply=Payload(
            (
                Field("first", ("d",)),
                Field("product", ("d", "q")),
                Field("square", (), kind="size"),
                Field("likelihood", ()),
            )
        ),
        answer=_local_products,
        sizes=lambda public: {"q": min(max_factors, public.features)},
        limits=factor_limits,
        share_limits=unbounded_limits(partial(factor_limits, shared=True)),
        words=row_limits.FIRST_WORDS,
        times=times,
    )


def pooled_products(
    run: RowsStrategy, observed: ObservedValues, model: FactorGaussian
) -> Generator[Round, Any, tuple[FactorSums, Array]]:
    """Return all parties' E-step sums under a factor model of rows in `factor_unit`, and the products' rounding (d,).

    The sums are of the expected deviations, their products with the factors, their squares, and the likelihood.
    """
    factors = {"basis": model.basis, "variances": model.variances, "noise": np.asarray(model.noise)}
    total: Total = yield SumRound("products", {**observed.model_request(model.mean), **factors})
    error_bounds = total.error_bounds.get("product", np.zeros_like(model.basis))
    sums = FactorSums(total["first"], total["product"], float(total["square"]), float(total["likelihood"]))
    return sums, np.linalg.norm(error_bounds, axis=1)
