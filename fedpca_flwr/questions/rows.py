"""Statistics of all rows, where the parties hold rows of the same features: what is asked, and how they are had.

Means of parties do not add up, so where only sums may be shown the pooled mean m comes first, from counts and plain
sums, then the deviations about it, and all that follows is taken about m (`fedpca_flwr.questions.row_limits` has the
limits). Where parties may drop out, one uncentred sum has it all, in two floats (`fedpca_flwr.maths.sums`).

The server keeps what each party sent where the run is to keep it (``keep='parties'``), or has a limit to what one may
hold of a component (``max-share``). Without either it keeps them for the parties' influence (`influences`) while that
takes little memory, and says in the model where it does not.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.influence import RandomGroups
from fedpca_flwr.maths.moments import Head, Moments, diagonal_positions, packed_size
from fedpca_flwr.maths.rows import Rows, column_sums, count_of
from fedpca_flwr.maths.sums import (
    MomentsSum,
    about_mean,
    mean_products,
    mean_squares,
    pool,
    total_of,
    uncentred_head,
)
from fedpca_flwr.model.solution import ALL_ROWS
from fedpca_flwr.protocol.card import MomentsOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.protocol.replies import as_they_come
from fedpca_flwr.questions import row_limits
from fedpca_flwr.questions.fields import COUNT, MOMENTS, head_fields, moments_in
from fedpca_flwr.questions.influence import AddedContributions, Contributions
from fedpca_flwr.questions.own_scatter import OwnScatter
from fedpca_flwr.questions.row_limits import Pooled
from fedpca_flwr.questions.rows_run import Evidence, RowsClient, RowsStrategy, kept, party_names, require_kept_sums


@contextmanager
def sums_of_rows() -> Iterator[None]:
    """Raise a `ContractError` where sums are those of no rows: nobody can check a single share."""
    try:
        with np.errstate(all="ignore"):
            yield
    except (ArithmeticError, ValueError):  # a matrix that is not positive definite, or numbers that are not finite
        raise ContractError(
            "the parties' sums together are not those of any rows: the share of one of them is false, or was altered "
            "on its way"
        ) from None


WITHIN = (
    "the scatter that lies between the sites' means, a matrix of a rank below their number; of three sites it shows "
    "the plane in which their means lie, and with other runs more"
)
"""What the sum of scatters about own means tells of single sites (`PCAOptions.site_sums`)."""

FOR_INFLUENCE = 2**30
"""Bytes of all parties' scatters together that are kept for nothing but their influence."""


def keeps_each(run: RowsStrategy) -> bool:
    """Whether the server keeps each party's moments until the run has its model."""
    kept = isinstance(run.options, MomentsOptions) and run.options.keep == "parties"
    return kept or run.config.max_share > 0 or _nbytes(run) <= FOR_INFLUENCE


def added_moments(run: RowsStrategy) -> Generator[Ask, Any, tuple[MomentsSum, Evidence]]:
    """The sum of all parties' moments, of which none is kept."""
    added = MomentsSum(run.public.features)
    groups = RandomGroups(run.public.parties, np.random.default_rng())

    def take(fields: Fields, sender: str) -> None:
        part = moments_in(fields)
        try:
            added.add(part)
        except ValueError as error:
            raise ContractError(f"{sender}: field 'scatter': {error}") from None
        groups.add(sender, part)

    replies = yield from as_they_come(Ask("moments"), take)
    cautions = [
        f"no influence of single parties is told: what all {len(replies)} sent has {_nbytes(run):,} bytes, and was "
        "added as it came; with 'max-share' it is kept, and told",
    ]
    return added, Evidence(contributions=AddedContributions(groups), cautions=cautions)


def _nbytes(run: RowsStrategy) -> int:
    return 8 * packed_size(run.public.features) * run.public.parties


ROW_COUNT = Field("rows", (), "int64", kind="count", fixed="rows")
CENTRE = Field("centre", ("d",), fixed="centre")
SPREAD = Field("spread", ("d",), kind="size", fixed="spread")


# The questions


def centre_phases(prefix: str = "", of: Callable[[Any], Rows] = lambda party: party.data) -> Questions:
    """The questions of `pooled_centre`, about the rows ``of`` a party."""
    rows, centre = (replace(field, fixed=f"{prefix}{field.fixed}") for field in (ROW_COUNT, CENTRE))
    return {
        f"{prefix}sums": Question(
            reply=Payload((COUNT, Field("sum", ("d",)))),
            answer=lambda party, asked: {"count": np.asarray(count_of(of(party))), "sum": column_sums(of(party))},
            limits=lambda asked, public: row_limits.sum_limits(public.config.bound, public.features),
            words=row_limits.FIRST_WORDS,
        ),
        f"{prefix}deviations": Question(
            asked=Payload((rows, centre)),
            reply=Payload((Field("shift", ("d",)), Field("diagonal", ("d",)))),
            answer=lambda party, asked: _deviations(party.own_of(of(party)), asked["centre"]),
            limits=lambda asked, public: row_limits.deviation_limits(
                public.config.bound, float(asked["rows"]), public.features
            ),
            words=row_limits.FIRST_WORDS,
        ),
    }


def _deviations(own: OwnScatter, centre: Array) -> Fields:
    """Sums of deviations from the centre, and of their squares."""
    (head, diagonal), deviation = own.head_and_diagonal(), own.deviation(centre)
    return {"shift": head.n * deviation, "diagonal": diagonal + head.n * deviation**2}


SCATTER = Field("scatter", ("d(d+1)/2",))


def moments_phases(config: RunConfig, *, within: bool = False, keep: str = "nothing") -> Questions:
    """The questions of `pooled_moments`; ``within``: of scatters about own means; ``keep``: what of them."""
    require_kept_sums(by_transport(config, clear="nothing", masked=keep), within=within)
    row_limits.require_bound(config)
    in_clear = {"moments": Question(reply=MOMENTS, answer=own_moments)}
    return by_transport(config, clear=in_clear, masked=_in_three_sums(within), surviving=_in_one_sum(within))


def _in_three_sums(within: bool) -> Questions:
    scatter = Question(
        asked=Payload((CENTRE, SPREAD)),
        reply=Payload((SCATTER,)),
        answer=lambda party, asked: _scatter(party, asked, within=within),
        limits=lambda asked, public: row_limits.scatter_limits(asked["spread"]),
    )
    return {**centre_phases(), "scatter": scatter}


def _in_one_sum(within: bool) -> Questions:
    squares = (Field("squares", ("d",)),) if within else ()
    uncentred = Question(
        reply=Payload((COUNT, Field("sum", ("d",)), SCATTER, *squares)),
        answer=lambda party, asked: _uncentred(party, within=within),
        limits=lambda asked, public: row_limits.uncentred_limits(public.config.bound, public.features, within=within),
        words=row_limits.UNCENTRED_WORDS,
    )
    return {"uncentred": uncentred}


def own_moments(party: RowsClient, asked: Fields) -> Fields:
    """Count, mean and scatter of a party's rows."""
    found = party.own.moments()
    return {**head_fields(found.head, found.diagonal()), "scatter": found.scatter}


def _scatter(party: RowsClient, asked: Fields, *, within: bool) -> Fields:
    """Packed scatter about the centre."""
    found = party.own.moments()
    party.own.deviation(asked["centre"])  # or it is too far away
    return {"scatter": found.scatter if within else found.scatter_about(asked["centre"])}


def _uncentred(party: RowsClient, *, within: bool) -> Sequence[Fields]:
    """Count, sum and second moments about zero, in parts that together have twice the digits of float64."""
    found = party.own.moments()
    total = total_of(found.head)
    first = {"count": np.asarray(found.count), "sum": total[0], "scatter": found.scatter}
    if within:
        high, low = mean_squares(found.head)
        return [{**first, "squares": found.diagonal()}, {"sum": total[1], "squares": high}, {"squares": low}]
    high, low = mean_products(found.head)
    return [first, {"sum": total[1], "scatter": high}, {"scatter": low}]


def projection_phase(
    *, differentially_private: bool = False, about: str = "", further: tuple[Field, ...] = ()
) -> Questions:
    """The last question: every party projects its own rows and tells what squared error that leaves.

    Where only sums are shown, the rows and total variance of the model say how large that can be. A method that is
    private by noise replies a constant, in clear. ``about`` names the number of the run that the mean is, but for
    rounding, where the parties were told one; ``further`` fields are what else the rows are projected with.
    """
    return {
        "project": Question(
            asked=Payload(
                (
                    Field("components", ("<=k", "d"), kind="orthonormal rows"),
                    Field("mean", ("d",), near=about),
                    Field("scale", ("d",), kind="positive", optional=True),
                    *further,
                )
            ),
            reply=Payload((Field("count", (), "int64", kind="count"), Field("squared", (), kind="size"))),
            answer=lambda party, asked: party.project(asked),
            sizes=lambda public: {"k": public.features},
            limits=lambda asked, public: row_limits.projection_limits(float(asked["rows"]), float(asked["total"])),
            limited_by=(ROW_COUNT, Field("total", (), kind="positive")),
            in_clear=differentially_private,
            closing=True,
        )
    }


# The statistics


def pooled_centre(
    run: RowsStrategy, prefix: str = "", *, which: str = ALL_ROWS, joined: Array | float = 0.0
) -> Generator[Ask, Any, Pooled]:
    """Rows, mean and deviations of all rows, by two short sums.

    ``prefix`` names their phases, ``which`` says in a refusal what rows they are of; ``joined`` (d,) is the diagonal of
    a scatter that theirs is added to.
    """
    if run.known is not None:
        return run.known
    bound = run.config.bound
    first: Total = yield Sum(f"{prefix}sums")
    rows = row_limits.rows_in(first["count"], first.parties, weighted=bool(run.config.weights))
    centre = first["sum"] / rows
    second: Total = yield Sum(f"{prefix}deviations", {"rows": np.asarray(rows), "centre": centre})
    pooled = row_limits.pooled_of(bound, rows, centre, second["shift"], second["diagonal"])
    missed = second.missed["diagonal"]
    with sums_of_rows():
        most = 2 * (second["diagonal"] + missed) + rows * np.spacing(np.abs(centre)) ** 2
        if (rows * pooled.remainder**2 > most).any():  # by Cauchy and Schwarz no rows have such sums
            raise ArithmeticError
    diagonal, cautions = _resolved_diagonal(run, missed, pooled.diagonal, pooled.head, which=which, joined=joined)
    return pooled._replace(diagonal=diagonal, missed=missed, cautions=cautions)


class PooledMoments(NamedTuple):
    """What the parties' moments add up to."""

    moments: Moments  # of all rows, or without what lies between the parties' means
    diagonal: Array  # of the scatter of all rows
    whole: Moments | None = None  # those of all rows, where the server has them
    parts: Mapping[str, Moments] = MappingProxyType({})
    """By how texts name the party: what each of them sent, where the server has kept it."""
    names: Sequence[str] = ()  # how else they are named, in the same order: a name that is the same in every run
    evidence: Evidence = Evidence()


Pooling = Generator[Ask, Any, PooledMoments]


def pooled_moments(
    run: RowsStrategy, *, within: bool = False, each: bool = False, joined: Array | float = 0.0
) -> Pooling:
    """The moments of all rows; ``within``: without what lies between the parties' means.

    With ``each`` all that the parties send in clear is retained, however much it is. Where only sums are shown,
    ``joined`` (d,) is the diagonal of the scatter that this one is added to.
    """
    pool_by = by_transport(run.config, clear=_from_each, masked=_by_three_sums, surviving=_by_one_sum)
    found = yield from pool_by(run, within, each, joined)
    own, evidence = dict(zip(found.names, found.parts.values(), strict=True)), found.evidence
    whole = found.moments if found.whole is None else found.whole
    return found._replace(evidence=replace(evidence, kept=kept(run.options, whole, own, missed=evidence.missed)))


def _from_each(run: RowsStrategy, within: bool, each: bool, joined: Array | float) -> Pooling:
    if not (each or keeps_each(run)):
        added, evidence = yield from added_moments(run)
        pooled = added.pooled()
        moments = added.pooled(within=True) if within else pooled
        return PooledMoments(moments, pooled.diagonal(), pooled, evidence=evidence)
    replies = yield Ask("moments")
    parts = {reply.sender: moments_in(reply.fields) for reply in replies}
    pooled = pool(parts.values())
    moments = pool(parts.values(), within=True) if within else pooled
    evidence = Evidence(contributions=Contributions(parts, between=not within))
    return PooledMoments(moments, pooled.diagonal(), pooled, parts, party_names(replies), evidence)


def _by_three_sums(run: RowsStrategy, within: bool, each: bool, joined: Array | float) -> Pooling:
    pooled = yield from pooled_centre(run, joined=joined)
    sums: Total = yield Sum("scatter", {"centre": pooled.centre, "spread": pooled.spread})
    scatter, d = sums["scatter"], pooled.centre.size
    missed = pooled.missed + sums.missed["scatter"][diagonal_positions(d)]
    if not within:
        scatter = blas.dspr(d, -float(pooled.rows), pooled.remainder, scatter, lower=1)
    evidence = Evidence(missed=missed, cautions=pooled.cautions)
    return PooledMoments(Moments(*pooled.head, scatter=scatter), pooled.diagonal, evidence=evidence)


def _by_one_sum(run: RowsStrategy, within: bool, each: bool, joined: Array | float) -> Pooling:
    sums: Total = yield Sum("uncentred")
    double = {name: (sums[name], sums.low[name]) for name in sums}
    rows = row_limits.rows_in(sums["count"], sums.parties, weighted=bool(run.config.weights))
    head = uncentred_head(rows, double["sum"])
    if within:
        scatter, diagonal = sums["scatter"], about_mean(double["squares"], mean_squares(head))
    else:
        scatter = about_mean(double["scatter"], mean_products(head))
        diagonal = scatter[diagonal_positions(head.mean.size)]
    missed = 3 * sums.missed["scatter"][diagonal_positions(head.mean.size)]  # a share is of three parts
    resolved, cautions = _resolved_diagonal(run, missed, diagonal, head, which=ALL_ROWS, joined=joined)
    evidence = Evidence(missed=missed, cautions=cautions)
    return PooledMoments(Moments(*head, scatter=scatter), resolved.clip(min=0.0), evidence=evidence)


def _resolved_diagonal(
    run: RowsStrategy, missed: Array, diagonal: Array, head: Head, *, which: str, joined: Array | float
) -> tuple[Array, Sequence[str]]:
    """The diagonal (d,) of the scatter of rows, of which fixed point may have ``missed`` so much, and cautions.

    What is too much is refused. With scaling a feature of which it may be all is constant; else it would be scaled by
    what rounding left of it.
    """
    whole = diagonal + joined
    about_zero = 0.0 if run.options.centred else head.n * head.mean**2
    row_limits.require_resolved(run.config.bound, missed, whole + about_zero, which=which)
    if not run.options.scaled:
        return diagonal, ()
    numbers = slice(whole.size - run.config.indicators)
    least = np.append(np.zeros_like(whole[numbers]), np.full(run.config.indicators, 0.5))  # of an indicator that varies
    row_limits.require_scalable(run.config.bound, missed, np.maximum(whole, least), head.n)
    unseen = whole <= missed
    return np.where(unseen, 0.0, diagonal), taken_for_constant(unseen[numbers], float(np.sqrt(missed.max() / head.n)))


def taken_for_constant(unseen: NDArray[np.bool_], least: float) -> Sequence[str]:
    """What a reader must know of ``unseen`` features (d,): fixed point holds no deviation below the ``least``."""
    if not unseen.any():
        return ()
    return [
        f"{unseen.sum()} features were taken for constant and not scaled: next to 'bound' fixed point holds no "
        f"deviation below {least:.2g}; if one of them varies less than that, change its unit"
    ]
