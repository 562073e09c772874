"""Statistics of all rows, where the parties hold rows of the same features: what is asked, and how they are had.

Means of parties do not add up. So where only sums may be shown one uncentred sum has it all, whose digits nothing
cancels (`fedpca_flwr.maths.sums`; `fedpca_flwr.questions.row_limits` has the limits). The products that there are many
of travel in their leading digits. Where the sum shows that these do not resolve the variances, one question more has
all of them; where parties may drop out, one sum has them at once.

The server keeps what each party sent where the run is to keep it (``keep='parties'``), or has a limit to what one may
hold of a component (``max-share``). Without either it keeps them for the parties' influence (`influences`) while that
takes little memory, and says in the model where it does not.
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
from fedpca_flwr.maths.moments import Head, Moments, diagonal_positions, packed_size, safe_deviation
from fedpca_flwr.maths.secure import Digits
from fedpca_flwr.maths.sums import (
    MomentsSum,
    about_mean,
    head_about,
    mean_products,
    pool,
    pooled_diagonal,
    pooled_head,
    uncentred_parts,
)
from fedpca_flwr.model.solution import ALL_ROWS
from fedpca_flwr.protocol.card import MomentsOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Public, Question, Questions, Sum, SumLimits, Total, by_transport
from fedpca_flwr.protocol.replies import as_they_come
from fedpca_flwr.questions import row_limits
from fedpca_flwr.questions.digits import SHOWS
from fedpca_flwr.questions.fields import COUNT, MOMENTS, head_fields, moments_in
from fedpca_flwr.questions.influence import AddedContributions, Contributions
from fedpca_flwr.questions.pooling import Evidence, PooledMoments, Pooling, kept, party_names, require_kept_sums
from fedpca_flwr.questions.row_limits import WIDE, Pooled
from fedpca_flwr.questions.rows_run import Party, RowsStrategy
from fedpca_flwr.site.vault import Vault

SUMS = (Field("sum", ("d",)), Field("squares", ("d",)))
"""Of rows and of their squares, about zero."""


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

PARTS, SCATTER_PARTS = 13, 3
"""Numbers that a party's sums about zero add up from, and its products: each is rounded by itself."""

TWO_FLOATS = 2.0**-100
"""Share of a sum of products about zero that two floats do not hold."""

LEFT = 1e-8
"""Share of the variance that covariates may leave over."""

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


# The questions


CENTRE = Field("centre", ("d",), fixed="centre")
SPREAD = Field("spread", ("d",), kind="size", fixed="spread")
SCATTER = Field("scatter", ("d(d+1)/2",))


def centre_phases(prefix: str = "", of: Callable[[Any], Vault] = lambda party: party.vault) -> Questions:
    """The question of `pooled_centre`, about the rows in a vault ``of`` a party."""
    sums = Question(
        reply=Payload((COUNT, *SUMS)),
        answer=lambda party, asked: uncentred(*of(party).head_and_diagonal()),
        limits=lambda asked, public: row_limits.sums_limits(row_limits.reach(asked, public)),
        words=len(WIDE),
    )
    return {f"{prefix}sums": sums}


def moments_phases(config: RunConfig, *, within: bool = False, keep: str = "nothing") -> Questions:
    """The questions of `pooled_moments`; ``within``: of scatters about own means; ``keep``: what of them."""
    require_kept_sums(by_transport(config, clear="nothing", masked=keep), within=within)
    row_limits.require_bound(config)
    whole = Payload((COUNT, *SUMS, SCATTER))
    leading, survivors = (
        _summed(whole, digits, within=within) for digits in (row_limits.leading_digits, lambda sizes: WIDE[:3])
    )
    digits = _summed(Payload((SCATTER,)), lambda sizes: WIDE, within=within)
    return by_transport(
        config,
        clear={"moments": Question(reply=MOMENTS, answer=own_moments)},
        masked={"moments": leading, "digits": replace(digits, asked=Payload((CENTRE,)), optional=True)},
        surviving={"moments": survivors},
    )


def _summed(reply: Payload, digits: Callable[[Mapping[str, int]], Digits], *, within: bool) -> Question:
    """A question for the sum of these moments, with such ``digits`` of the scatter."""

    def answer(party: Party, asked: Fields) -> Sequence[Fields]:
        parts = _uncentred_moments(party, asked.get("centre", np.zeros(party.public.features)), within=within)
        return [{field.name: part[field.name] for field in reply.fields if field.name in part} for part in parts]

    def limits(asked: Fields, public: Public) -> SumLimits:
        every = row_limits.moments_limits(row_limits.reach(asked, public))
        return {field.name: every[field.name] for field in reply.fields}

    return Question(
        reply=reply,
        answer=answer,
        limits=limits,
        words=lambda sizes: dict.fromkeys(("count", "sum", "squares"), WIDE) | {SCATTER.name: digits(sizes)},
    )


def _uncentred_moments(party: Party, centre: Array, *, within: bool) -> Sequence[Fields]:
    """Count, sum, squares and second moments about a ``centre`` (d,), or these within the party, in parts without a
    rounding."""
    found = party.vault.moments()
    head = head_about(found.head, centre)
    parts = [dict(part) for part in uncentred(head, found.diagonal())]
    products = [found.scatter] if within else [found.scatter, *mean_products(head)]
    for part, product in zip(parts, products, strict=False):
        part[SCATTER.name] = product
    return parts


def uncentred(head: Head, diagonal: Array) -> Sequence[Fields]:
    """Count, sum (d,) and sum of squares (d,) of rows with this ``diagonal`` of their scatter, in parts."""
    sums, squares = uncentred_parts(head)
    parts = [{"squares": square} for square in (diagonal, *squares)]
    parts[0]["count"] = np.asarray(head.n)
    for part, total in zip(parts, sums, strict=False):
        part["sum"] = total
    return parts


def own_moments(party: Party, asked: Fields) -> Fields:
    """Count, mean and scatter of a party's rows."""
    found = party.vault.moments()
    return {**head_fields(found.head, found.diagonal()), "scatter": found.scatter}


def projection_phase(
    *, differentially_private: bool = False, about: str = "", further: tuple[Field, ...] = ()
) -> Questions:
    """The last question: every party projects its own rows and tells what squared error that leaves.

    A method that is private by noise replies a constant, in clear. ``about`` names the number of the run that the mean
    is, where the parties were told one; ``further`` fields are what else the rows are projected with.
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
            reply=Payload((COUNT, Field("squared", (), kind="size"))),
            answer=lambda party, asked: party.project(asked),
            needs="files",
            sizes=lambda public: {"k": public.features},
            limits=lambda asked, public: row_limits.projection_limits(row_limits.reach(asked, public)),
            words=row_limits.FIRST_WORDS,
            in_clear=differentially_private,
            closing=True,
        )
    }


# The statistics


def pooled_centre(
    run: RowsStrategy, prefix: str = "", *, which: str = ALL_ROWS, joined: Array | float = 0.0
) -> Generator[Ask, Any, Pooled]:
    """Rows, mean and variances of all rows, by one short sum.

    ``prefix`` names its phase, ``which`` says in a refusal what rows it is of; ``joined`` (d,) is the diagonal of a
    scatter that theirs is added to.
    """
    for stage in run.stages:
        head = stage.head()
        if head is not None:
            return head
    sums: Total = yield Sum(f"{prefix}sums")
    return _resolved(run, sums, which=which, joined=joined)


def _resolved(run: RowsStrategy, sums: Total, *, which: str = ALL_ROWS, joined: Array | float = 0.0) -> Pooled:
    """What sums of rows and of their squares say, if no digits are missing.

    With scaling a feature of whose variance rounding may be all is constant; else it would be scaled by what rounding
    left of it.
    """
    assert sums.exactly is not None
    rows = row_limits.rows_in(sums["count"], sums.parties, weighted=bool(run.config.weights))
    total, squares = sums.exactly("sum"), sums.exactly("squares")
    with sums_of_rows():
        head, diagonal = pooled_head(rows, total), pooled_diagonal(rows, total, squares)
        missed = PARTS * (sums.missed["squares"] + 2 * np.abs(head.mean) * sums.missed["sum"])
        if not (diagonal >= -missed).all():  # by Cauchy and Schwarz no rows have such sums
            raise ArithmeticError
    diagonal, whole = diagonal.clip(min=0.0), diagonal.clip(min=0.0) + joined
    about_zero = 0.0 if run.options.centred else head.n * head.mean**2
    row_limits.require_resolved(run.config.bound, missed, whole + about_zero, which=which)
    if not run.options.scaled:
        return Pooled(head, diagonal, missed)
    numbers = slice(whole.size - run.config.indicators)
    least = np.append(np.zeros_like(whole[numbers]), np.full(run.config.indicators, 0.5))  # of an indicator that varies
    row_limits.require_scalable(run.config.bound, missed, np.maximum(whole, least), head.n)
    unseen = whole <= missed
    cautions = taken_for_constant(unseen[numbers], float(np.sqrt(missed.max() / head.n)))
    return Pooled(head, np.where(unseen, 0.0, diagonal), missed, cautions)


def moments_of_all(run: RowsStrategy) -> Pooling:
    """The moments of all rows, as the stages of the run leave them."""
    pooled: Callable[..., Pooling] = partial(pooled_moments, run)
    for stage in run.stages:
        pooled = partial(stage.moments, run, pooled)
    return pooled()


def pooled_moments(
    run: RowsStrategy, *, within: bool = False, each: bool = False, joined: Array | float = 0.0
) -> Pooling:
    """The moments of all rows; ``within``: without what lies between the parties' means.

    With ``each`` covariates or parties may explain most of them: all that the parties send in clear is retained,
    however much it is, and of sums all digits. Where only sums are shown, ``joined`` (d,) is the diagonal of the
    scatter that this one is added to.
    """
    pool_by = by_transport(run.config, clear=_from_each, masked=_by_sums)
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


def _by_sums(run: RowsStrategy, within: bool, each: bool, joined: Array | float) -> Pooling:
    sums: Total = yield Sum("moments")
    pooled = _resolved(run, sums, joined=joined)
    places = diagonal_positions(pooled.diagonal.size)
    head, held = pooled.head, 0.0 if within else TWO_FLOATS * pooled.rows * pooled.centre**2
    missed = SCATTER_PARTS * sums.missed["scatter"][places] + held
    unit = safe_deviation(pooled.diagonal, pooled.head.n, pooled.head.mean) if run.options.scaled else 1.0
    about_zero = 0.0 if run.options.centred else pooled.head.n * pooled.head.mean**2
    variance = float(((pooled.diagonal + joined + about_zero) / unit**2).sum())
    # Frobenius norms, in the unit in which the components are found
    if "digits" in run.phases and (missed / unit**2).sum() > SHOWS * (LEFT if each else 1.0) * variance:
        sums = yield Sum("digits", {"centre": pooled.centre})
        head, missed = head_about(head, pooled.centre), SCATTER_PARTS * sums.missed["scatter"][places]
    double = sums["scatter"], sums.low["scatter"]
    found = double[0] if within else about_mean(double, mean_products(head))
    if run.options.scaled:  # one is resolved beside others, since its own variance has all digits
        small = (missed > row_limits.UNSEEN * pooled.diagonal) & (pooled.diagonal > 0)
        row_limits.require_few(run.config.bound, int(small.sum()), 1)
    elif not within:
        row_limits.require_resolved(run.config.bound, missed, np.array([variance]))
    if not within:
        found[places] = pooled.diagonal
    evidence = Evidence(missed=np.maximum(pooled.missed, missed), cautions=pooled.cautions)
    return PooledMoments(Moments(*pooled.head, scatter=found), pooled.diagonal, evidence=evidence)


def taken_for_constant(unseen: NDArray[np.bool_], least: float) -> Sequence[str]:
    """What a reader must know of ``unseen`` features (d,): fixed point holds no deviation below the ``least``."""
    if not unseen.any():
        return ()
    return [
        f"{unseen.sum()} features were taken for constant and not scaled: next to 'bound' fixed point holds no "
        f"deviation below {least:.2g}; if one of them varies less than that, change its unit"
    ]
