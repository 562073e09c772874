"""Statistics of all rows, where the parties hold rows of the same features: the questions, and how the server pools.

Means of parties do not add up, so where only sums may be shown one uncentred sum has all moments, whose digits nothing
cancels (`fedpca_flwr.maths.sums`). The products, which are many, travel in their leading digits; a further question has
all if these do not resolve the variances, and where parties may drop out, a single sum has all at once.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.influence import RandomGroups
from fedpca_flwr.maths.moments import Head, Moments, diagonal_positions, packed_size
from fedpca_flwr.maths.secure import Digits
from fedpca_flwr.maths.sums import (
    MeanProducts,
    MomentsSum,
    centre_scatter,
    pool,
    pooled_diagonal,
    pooled_head,
    shift_head,
    uncentred_parts,
)
from fedpca_flwr.model.solution import ALL_ROWS, divisors
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, Round, SumLimits, SumRound, Total, by_transport
from fedpca_flwr.protocol.replies import stream_replies
from fedpca_flwr.questions import pooling, row_limits
from fedpca_flwr.questions.influence import AddedContributions, Contributions
from fedpca_flwr.questions.pooling import COUNT, MOMENTS, head_fields, read_moments
from fedpca_flwr.questions.row_limits import MAX_ROUNDING_SHARE, WIDE_DIGITS, PooledCentre
from fedpca_flwr.questions.rows_client import Party
from fedpca_flwr.questions.rows_run import RowsStrategy
from fedpca_flwr.site.rows.vault import Vault

SUMS = (Field("sum", ("d",)), Field("squares", ("d",)))  # sums of rows and of their squares, about zero


@contextmanager
def refuse_impossible_sums() -> Iterator[None]:
    """Turn ArithmeticError and ValueError in the block into a `ContractError` that the parties' sums fit no rows."""
    try:
        with np.errstate(all="ignore"):
            yield
    except (ArithmeticError, ValueError):  # a matrix that is not positive definite, or numbers that are not finite
        raise ContractError(
            "the parties' sums together are not those of any rows: the share of one of them is false, or was altered "
            "on its way"
        ) from None


WITHIN_DISCLOSURE = (
    "the scatter between the sites' means, a matrix whose rank is below the number of sites. With three sites it shows "
    "the plane in which their means lie; together with other runs it shows more"
)
"""Text on what the sum of scatters about own means tells about single sites (`PCAOptions.sum_disclosures`)."""

SUM_PARTS, SCATTER_PARTS = 13, 3  # floats of a party's sum about zero, and of a product; each is rounded separately
TWO_FLOATS_SHARE = 2.0**-100  # share of a sum of products about zero that two floats do not hold

MIN_RESIDUAL_SHARE = 1e-8  # of the variance, which covariates may leave and which all digits must resolve
MAX_INFLUENCE_BYTES = 2**30  # of all parties' scatters, up to which the server stores them for the influence alone
MAX_STORED_PARTIES = 6  # up to which the server stores each scatter: sums of random groups would take as much memory

CENTRE = Field("centre", ("d",), constant="centre")
SPREAD = Field("spread", ("d",), kind="size", constant="spread")
SCATTER = Field("scatter", ("d(d+1)/2",))


def centre_questions(prefix: str = "", vault_of: Callable[[Any], Vault] = lambda party: party.vault) -> Questions:
    """Return the question ``<prefix>sums`` for count, sums and sums of squares of rows of `vault_of`, about zero."""

    def local_sums(party: Any, request: Fields) -> Sequence[Fields]:
        """Return count, sums and sums of squares of a party's rows about zero."""
        return uncentred_sums(*vault_of(party).head_and_diagonal())

    def limits(request: Fields, public: Public) -> SumLimits:
        """Return the limits of the sums for rows within `bound`."""
        return row_limits.sums_limits(row_limits.reach(request, public))

    reply, words = Payload((COUNT, *SUMS)), row_limits.FIRST_WORDS
    return {f"{prefix}sums": Question(reply=reply, answer=local_sums, limits=limits, words=words)}


def moments_questions(config: RunConfig, *, within: bool = False, keep: str = "nothing") -> Questions:
    """Return the questions for count, mean and scatter of all rows: in clear, or as secure sums about zero.

    Parameters
    ----------
    config : RunConfig
    within : bool
        Whether scatters are about each party's own mean.
    keep : str
        Which moments the run stores (option ``keep``).

    Returns
    -------
    mapping of str to Question
        ``moments``, and with secure sums without survivors ``digits``, which a run may ask afterwards.

    Raises
    ------
    ConfigError
        If `bound` is missing, or the server would lack moments to store.
    """
    pooling.require_storable_sums(by_transport(config, clear="nothing", masked=keep), within=within)
    row_limits.require_bound(config)
    payload = Payload((COUNT, *SUMS, SCATTER))

    def leading_digits(sizes: Mapping[str, int]) -> Digits:
        """Return the fixed-point digits of a scatter's values: two words each, or 1 1/5 if many."""
        # two, of which the second shares a word where there are many values, with room for each party's rounding
        if packed_size(sizes["d"]) <= row_limits.MAX_TWO_WORD_VALUES:
            return WIDE_DIGITS[:2]
        return (1, 5) if sizes["parties"] <= row_limits.MAX_SHORT_DIGIT_PARTIES else (1, 3)

    leading = _moments_question(payload, leading_digits, within=within)
    leading = replace(leading, spare_bits={SCATTER.name: row_limits.SPARE_BITS})
    survivors = _moments_question(payload, lambda sizes: WIDE_DIGITS[:3], within=within)
    digits = _moments_question(Payload((SCATTER,)), lambda sizes: WIDE_DIGITS, within=within)
    return by_transport(
        config,
        clear={"moments": Question(reply=MOMENTS, answer=local_moments)},
        masked={"moments": leading, "digits": replace(digits, request=Payload((CENTRE,)), optional=True)},
        surviving={"moments": survivors},
    )


def _moments_question(reply: Payload, digits: Callable[[Mapping[str, int]], Digits], *, within: bool) -> Question:
    """Return a question for sums of moments in the reply's fields, with the scatter's layout of ``digits``.

    The sums are about the request's centre, by default zero, the scatter if ``within`` about each party's mean.
    """

    def answer(party: Party, request: Fields) -> Sequence[Fields]:
        """Return the reply's fields of a party's moments, as float64 parts whose exact sum is the value."""
        moments = party.vault.moments()
        head = shift_head(moments.head, request.get("centre", np.zeros(party.public.features)))
        parts = [dict(part) for part in uncentred_sums(head, moments.diagonal())]
        mean_products = MeanProducts(head)
        products: list[Any] = [moments.scatter] if within else [moments.scatter, mean_products.high, mean_products.low]
        for part, product in zip(parts, products, strict=False):
            part[SCATTER.name] = product
        return [{field.name: part[field.name] for field in reply.fields if field.name in part} for part in parts]

    def limits(request: Fields, public: Public) -> SumLimits:
        """Return the limits of the reply's fields for rows within `bound`."""
        limits_by_name = row_limits.moments_limits(row_limits.reach(request, public))
        return {field.name: limits_by_name[field.name] for field in reply.fields}

    return Question(
        reply=reply,
        answer=answer,
        limits=limits,
        sizes=lambda public: {"parties": public.parties},
        words=lambda sizes: dict.fromkeys(("count", "sum", "squares"), WIDE_DIGITS) | {SCATTER.name: digits(sizes)},
    )


def uncentred_sums(head: Head, diagonal: Array) -> Sequence[Fields]:
    """Return count, sum and squares of rows about zero, as float64 parts whose exact sum is the value.

    All parts have ``squares`` (d,), as ``diagonal`` (d,) does, the first parts ``sum`` (d,), and the first ``count``.
    """
    sums, squares = uncentred_parts(head)
    parts = [{"squares": square} for square in (diagonal, *squares)]
    parts[0]["count"] = np.asarray(head.n)
    for part, total in zip(parts, sums, strict=False):
        part["sum"] = total
    return parts


def local_moments(party: Party, request: Fields) -> Fields:
    """Return the reply fields `MOMENTS` of count, mean and packed scatter of a party's rows; the request is unused."""
    moments = party.vault.moments()
    return {**head_fields(moments.head, moments.diagonal()), "scatter": moments.scatter}


def projection_questions(
    *, differentially_private: bool = False, mean_name: str = "", extra_fields: tuple[Field, ...] = ()
) -> Questions:
    """Return the last question: every party projects its own rows and replies with the squared error that remains.

    Parameters
    ----------
    differentially_private : bool
        Whether the reply is a constant, in clear.
    mean_name : str
        Name of the run's constant that the mean equals, where the parties received the constant before.
    extra_fields : tuple of Field
        Further fields of the request that the projection needs.

    Returns
    -------
    mapping of str to Question
    """
    components = Field("components", ("<=k", "d"), kind="orthonormal rows")
    mean = Field("mean", ("d",), constant_or_zero=mean_name)
    scale = Field("scale", ("d",), kind="positive", optional=True)
    project = Question(
        request=Payload((components, mean, scale, *extra_fields)),
        reply=Payload((COUNT, Field("squared", (), kind="size"))),
        answer=lambda party, request: party.project(request),
        needs="files",
        sizes=lambda public: {"k": public.features},
        limits=lambda request, public: row_limits.projection_limits(row_limits.reach(request, public)),
        words=row_limits.FIRST_WORDS,
        in_clear=differentially_private,
        closing=True,
    )
    return {"project": project}


def pooled_centre(
    run: RowsStrategy, prefix: str = "", *, subject: str = ALL_ROWS
) -> Generator[Round, Any, PooledCentre]:
    """Return count, mean and variances of all rows, from a stage that has them or from a secure sum.

    Raise ConfigError if `bound` leaves the variances of ``subject`` unresolved, ContractError for impossible sums.
    """
    for stage in run.stages:
        head = stage.head()
        if head is not None:
            return head
    sums: Total = yield SumRound(f"{prefix}sums")
    return _resolve_centre(run, sums, subject=subject)


def _resolve_centre(
    run: RowsStrategy, sums: Total, *, subject: str = ALL_ROWS, added_diagonal: Array | float = 0.0
) -> PooledCentre:
    """Return count, mean and variances from opened sums of rows and squares; raise what `pooled_centre` raises.

    A feature to scale whose whole variance may be rounding has variance 0. ``added_diagonal`` (d,) will be added.
    """
    assert sums.exact_integers is not None
    rows = row_limits.read_row_count(sums["count"], sums.parties, weighted=bool(run.config.weights))
    total, squares = sums.exact_integers("sum"), sums.exact_integers("squares")
    with refuse_impossible_sums():
        head, diagonal = pooled_head(rows, total), pooled_diagonal(rows, total, squares)
        error_bound = SUM_PARTS * (sums.error_bounds["squares"] + 2 * np.abs(head.mean) * sums.error_bounds["sum"])
        if not (diagonal >= -error_bound).all():  # by Cauchy and Schwarz no rows have such sums
            raise ArithmeticError
    diagonal, total_diagonal = diagonal.clip(min=0.0), diagonal.clip(min=0.0) + added_diagonal
    squared_means = 0.0 if run.options.centred else head.n * head.mean**2
    row_limits.require_resolved(run.config.bound, error_bound, total_diagonal + squared_means, subject=subject)
    if not run.options.scaled:
        return PooledCentre(head, diagonal, error_bound)
    numbers = slice(total_diagonal.size - run.config.indicators)
    min_diagonal = np.zeros_like(total_diagonal)
    min_diagonal[numbers.stop :] = 0.5  # a 0/1 column of n rows that varies has a scatter of (n - 1) / n or more
    row_limits.require_scalable(run.config.bound, error_bound, np.maximum(total_diagonal, min_diagonal), head.n)
    unresolved = total_diagonal <= error_bound
    cautions = constant_cautions(unresolved[numbers], float(np.sqrt(error_bound.max() / head.n)))
    return PooledCentre(head, np.where(unresolved, 0.0, diagonal), error_bound, cautions)


def staged_moments(run: RowsStrategy) -> pooling.Pooling:
    """Ask for the moments of all rows, and return them as changed by the run's stages."""
    pooled: Callable[..., pooling.Pooling] = partial(pooled_moments, run)
    for stage in run.stages:
        pooled = partial(stage.moments, run, pooled)
    return pooled()


def pooled_moments(
    run: RowsStrategy, *, within: bool = False, retain_all: bool = False, joined: Array | float = 0.0
) -> pooling.Pooling:
    """Ask for the moments of all rows (count, mean, scatter), in clear or as secure sums, and pool the moments.

    Parameters
    ----------
    run : RowsStrategy
    within : bool
        Leave out the scatter between the parties' means.
    retain_all : bool
        Whether covariates or parties may explain most of the variance. The server then stores all moments that the
        parties send in clear, and asks for all digits of sums.
    joined : ndarray of shape (d,) or float
        With secure sums: diagonal of a scatter to which this scatter will be added.

    Returns
    -------
    PooledMoments
    """
    pool_function = by_transport(run.config, clear=_pool_replies, masked=_pool_sums)
    result = yield from pool_function(run, within, retain_all, joined)
    party_moments = dict(zip(result.names, result.parts.values(), strict=True))
    total = result.moments if result.total is None else result.total
    stored = pooling.stored_moments(run.options, total, party_moments, error_bound=result.evidence.error_bound)
    return result._replace(evidence=replace(result.evidence, stored=stored))


def scatter_nbytes(public: Public) -> int:
    """Return the bytes of the packed scatters of all parties together."""
    return 8 * packed_size(public.features) * public.parties


def stores_each_party(run: RowsStrategy) -> bool:
    """Return whether the server stores each party's scatter: by `keep` or `max-share`, or if they are small or few."""
    public = run.public
    stores_parts = run.options.stored_moments_count(public.parties) > 1
    few = scatter_nbytes(public) <= MAX_INFLUENCE_BYTES or public.parties <= MAX_STORED_PARTIES
    return stores_parts or run.config.max_share > 0 or few


def _pool_replies(run: RowsStrategy, within: bool, retain_all: bool, added_diagonal: Array | float) -> pooling.Pooling:
    """Pool moments in clear, ``within`` without what lies between means; ``retain_all`` stores each party's."""
    if retain_all or stores_each_party(run):
        replies = yield Round("moments")
        parts = {reply.sender: read_moments(reply.fields) for reply in replies}
        pooled = pool(parts.values())
        moments = pool(parts.values(), within=True) if within else pooled
        evidence = pooling.Evidence(contributions=Contributions(parts, between=not within))
        return pooling.PooledMoments(moments, pooled.diagonal(), pooled, parts, pooling.party_names(replies), evidence)
    added = MomentsSum(run.public.features)
    groups = RandomGroups(run.public.parties, np.random.default_rng())

    def consume(fields: Fields, sender: str) -> None:
        """Add a party's moments to the sum and to random groups; raise ContractError for a scatter of another size."""
        part = read_moments(fields)
        try:
            added.add(part)
        except ValueError as error:
            raise ContractError(f"{sender}: field 'scatter': {error}") from None
        groups.add(sender, part)

    replies = yield from stream_replies(Round("moments"), consume)
    nbytes = scatter_nbytes(run.public)
    caution = (
        f"no influence of single parties is told: what all {len(replies)} sent has {nbytes:,} bytes, and was added as "
        "it came; with 'max-share' it is kept, and told"
    )
    pooled = added.pooled()
    moments = added.pooled(within=True) if within else pooled
    evidence = pooling.Evidence(contributions=AddedContributions(groups), cautions=[caution])
    return pooling.PooledMoments(moments, pooled.diagonal(), pooled, evidence=evidence)


def feature_divisors(run: RowsStrategy, diagonal: Array, head: Head) -> Array | None:
    """Return the divisors (d,) of a run's features from the diagonal of the pooled scatter; None without scaling."""
    options, indicators = run.options, run.config.indicators
    return divisors(diagonal, head.n, head.mean, options.scaled, options.feature_weights, indicators)


def _pool_sums(run: RowsStrategy, within: bool, retain_all: bool, added_diagonal: Array | float) -> pooling.Pooling:
    """Return the moments of all rows from a secure sum, with a second sum if its digits are too few.

    With ``within`` the scatters are about own means; with ``retain_all`` digits must resolve what covariates may leave.
    """
    sums: Total = yield SumRound("moments")
    pooled = _resolve_centre(run, sums, added_diagonal=added_diagonal)
    positions = diagonal_positions(pooled.diagonal.size)
    head, float_error = pooled.head, 0.0 if within else TWO_FLOATS_SHARE * pooled.rows * pooled.centre**2
    error_bound = SCATTER_PARTS * sums.error_bounds["scatter"][positions] + float_error
    divided = feature_divisors(run, pooled.diagonal, pooled.head)
    unit = 1.0 if divided is None else divided
    squared_means = 0.0 if run.options.centred else pooled.head.n * pooled.head.mean**2
    variance = float(((pooled.diagonal + added_diagonal + squared_means) / unit**2).sum())
    # Frobenius norms, in the unit in which the components are found
    allowed = MAX_ROUNDING_SHARE * (MIN_RESIDUAL_SHARE if retain_all else 1.0) * variance
    question = run.script["moments"]
    assert question.limits is not None
    limit = question.limits({}, run.public)["squares"] * 2.0 ** -question.spare_bits.get(SCATTER.name, 0)
    is_lost = (sums["squares"] > limit * (1 - 2.0**-20)).any()  # by Cauchy and Schwarz no product is larger
    if "digits" in run.script and (is_lost or (error_bound / unit**2).sum() > allowed):
        sums = yield SumRound("digits", {"centre": pooled.centre})
        head, error_bound = shift_head(head, pooled.centre), SCATTER_PARTS * sums.error_bounds["scatter"][positions]
    double = sums["scatter"], sums.low["scatter"]
    scatter = double[0] if within else centre_scatter(double, head)
    if run.options.scaled:  # a single such feature is harmless: its variance comes from the sums of squares
        small = (error_bound > row_limits.MAX_UNRESOLVED_SHARE * pooled.diagonal) & (pooled.diagonal > 0)
        row_limits.require_max_unresolved(run.config.bound, int(small.sum()), 1)
    elif not within:
        row_limits.require_resolved(run.config.bound, error_bound, np.array([variance]))
    if not within:
        scatter[positions] = pooled.diagonal
    evidence = pooling.Evidence(error_bound=np.maximum(pooled.error_bound, error_bound), cautions=pooled.cautions)
    return pooling.PooledMoments(Moments(*pooled.head, scatter=scatter), pooled.diagonal, evidence=evidence)


def constant_cautions(unresolved: NDArray[np.bool_], min_deviation: float) -> Sequence[str]:
    """Return one caution on features (mask) with no deviation that fixed point resolves (smallest given), or none."""
    if not unresolved.any():
        return ()
    return [
        f"{unresolved.sum()} features were taken for constant and not scaled: next to 'bound' fixed point holds no "
        f"deviation below {min_deviation:.2g}; if one of them varies less than that, change its unit"
    ]
