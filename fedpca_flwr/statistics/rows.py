"""Statistics of all rows, where the parties hold rows of the same features: what is asked, and how they are had.

Means of parties do not add up, so where only sums may be shown the pooled mean m comes first, from counts and plain
sums, then the deviations about it, and all that follows is taken about m (`fedpca_flwr.statistics.row_limits` has the
limits). Where parties may drop out, one uncentred sum has it all, in two floats (`fedpca_flwr.maths.uncentred`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import blas

from fedpca_flwr.config import RunConfig
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, Moments, diagonal_positions
from fedpca_flwr.maths.pooling import pool, pool_within
from fedpca_flwr.maths.uncentred import about_mean, mean_products, mean_squares, uncentred_head
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases, Sum, Total
from fedpca_flwr.solution import ALL_ROWS
from fedpca_flwr.statistics.arriving_moments import added_moments, keeps_each
from fedpca_flwr.statistics.influences import Contributions
from fedpca_flwr.statistics.keeping import kept, party_names, require_kept_sums
from fedpca_flwr.statistics.moment_fields import COUNT, MOMENTS, moments_of
from fedpca_flwr.statistics.row_limits import (
    FIRST_WORDS,
    UNCENTRED_WORDS,
    Pooled,
    deviation_limits,
    pooled_of,
    projection_limits,
    require_bound,
    require_resolved,
    require_scalable,
    rows_in,
    scatter_limits,
    sum_limits,
    uncentred_limits,
)
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

ROW_COUNT = Field("rows", (), "int64", kind="count", fixed="rows")
CENTRE = Field("centre", ("d",), fixed="centre")
SPREAD = Field("spread", ("d",), kind="size", fixed="spread")


# The phases


def centre_phases(prefix: str = "") -> Phases:
    """The phases of `pooled_centre`."""
    rows, centre = (replace(field, fixed=f"{prefix}{field.fixed}") for field in (ROW_COUNT, CENTRE))
    return {
        f"{prefix}sums": Phase(
            reply=Payload((COUNT, Field("sum", ("d",)))),
            limits=lambda asked, public: sum_limits(public.config.bound, public.features),
            words=FIRST_WORDS,
        ),
        f"{prefix}deviations": Phase(
            asked=Payload((rows, centre)),
            reply=Payload((Field("shift", ("d",)), Field("diagonal", ("d",)))),
            limits=lambda asked, public: deviation_limits(public.config.bound, int(asked["rows"]), public.features),
            words=FIRST_WORDS,
        ),
    }


SCATTER = Field("scatter", ("d(d+1)/2",))


def moments_phases(config: RunConfig, *, within: bool = False, keep: str = "nothing") -> Phases:
    """The phases of `pooled_moments`; ``within``: of scatters about the parties' own means; ``keep``: what of them."""
    if config.transport == "clear":
        return {"moments": Phase(reply=MOMENTS)}
    require_kept_sums(keep)
    require_bound(config.bound)
    if config.transport == "masked":
        scatter = Phase(
            asked=Payload((CENTRE, SPREAD)),
            reply=Payload((SCATTER,)),
            limits=lambda asked, public: scatter_limits(asked["spread"]),
        )
        return {**centre_phases(), "scatter": scatter}
    squares = (Field("squares", ("d",)),) if within else ()
    uncentred = Phase(
        reply=Payload((COUNT, Field("sum", ("d",)), SCATTER, *squares)),
        limits=lambda asked, public: uncentred_limits(public.config.bound, public.features, within=within),
        words=UNCENTRED_WORDS,
    )
    return {"uncentred": uncentred}


def projection_phase(
    config: RunConfig, *, differentially_private: bool = False, about: str = "", further: tuple[Field, ...] = ()
) -> Phases:
    """The last question: every party projects its own rows and tells what squared error that leaves.

    Where only sums are shown, the rows and total variance of the model say how large that can be. A method that is
    private by noise replies a constant, in clear. ``about`` names the number of the run that the mean is, but for
    rounding, where the parties were told one; ``further`` fields are what else the rows are projected with.
    """
    summed = config.transport != "clear" and not differentially_private
    limits = (ROW_COUNT, Field("total", (), kind="positive"))
    return {
        "project": Phase(
            asked=Payload(
                (
                    Field("components", ("<=k", "d"), kind="orthonormal rows"),
                    Field("mean", ("d",), near=about),
                    Field("scale", ("d",), kind="positive", optional=True),
                    *further,
                    *(limits if summed else ()),
                )
            ),
            reply=Payload((Field("count", (), "int64", kind="count"), Field("squared", (), kind="size"))),
            sizes=lambda public: {"k": public.features},
            limits=lambda asked, public: projection_limits(int(asked["rows"]), float(asked["total"])),
            in_clear=differentially_private,
            closing=True,
        )
    }


# The statistics


def pooled_centre(run: RowsStrategy, prefix: str = "", *, which: str = ALL_ROWS) -> Generator[Ask, Any, Pooled]:
    """Rows, mean and deviations of all rows, by two short sums.

    ``prefix`` names their phases, ``which`` says in a refusal what rows they are of.
    """
    if run.known is not None:
        return run.known
    bound = run.config.bound
    first: Total = yield Sum(f"{prefix}sums")
    rows = rows_in(first["count"], first.parties)
    centre = first["sum"] / rows
    second: Total = yield Sum(f"{prefix}deviations", {"rows": np.asarray(rows), "centre": centre})
    pooled = pooled_of(bound, rows, centre, second["shift"], second["diagonal"])
    return pooled._replace(
        diagonal=_resolved_diagonal(run, second.missed["diagonal"], pooled.diagonal, pooled.head, which)
    )


def pooled_moments(run: RowsStrategy) -> Generator[Ask, Any, tuple[Moments, Array]]:
    """The moments of all rows, and the diagonal (d,) of their scatter."""
    if run.config.transport == "clear":
        if not keeps_each(run):
            pooled = (yield from added_moments(run)).pooled()
            run.kept = kept(run.options, pooled, {})
            return pooled, pooled.diagonal()
        replies = yield Ask("moments")
        parts = {reply.sender: moments_of(reply) for reply in replies}
        run.contributions = Contributions(parts)
        pooled = pool(parts.values())
        run.kept = kept(run.options, pooled, dict(zip(party_names(replies), parts.values(), strict=True)))
        return pooled, pooled.diagonal()
    pooled, diagonal = yield from summed_moments(run, within=False)
    run.kept = kept(run.options, pooled, {}, missed=run.missed)
    return pooled, diagonal


def averaged_moments(run: RowsStrategy, *, within: bool) -> Generator[Ask, Any, tuple[Moments, Array, Moments | None]]:
    """Moments whose scatter leaves out what is between the parties' means, the diagonal (d,) of the whole scatter, and
    where the server has them the moments of all rows; without ``within`` nothing is left out."""
    if run.config.transport == "clear":
        if not keeps_each(run):
            added = yield from added_moments(run)
            pooled = added.pooled()
            return (added.pooled(within=True) if within else pooled), pooled.diagonal(), pooled
        parts = {reply.sender: moments_of(reply) for reply in (yield Ask("moments"))}
        run.contributions = Contributions(parts, between=not within)
        pooled = pool(parts.values())
        return (pool_within(parts.values()) if within else pooled), pooled.diagonal(), pooled
    return (*(yield from summed_moments(run, within=within)), None)


def summed_moments(run: RowsStrategy, *, within: bool) -> Generator[Ask, Any, tuple[Moments, Array]]:
    """Moments where only sums are shown, and the diagonal (d,) of the whole scatter.

    ``within``: the moments leave out what lies between the parties' means.
    """
    by = _by_three_sums if run.config.transport == "masked" else _by_one_sum
    return (yield from by(run, within))


def _by_three_sums(run: RowsStrategy, within: bool) -> Generator[Ask, Any, tuple[Moments, Array]]:
    pooled = yield from pooled_centre(run)
    sums: Total = yield Sum("scatter", {"centre": pooled.centre, "spread": pooled.spread})
    scatter, d = sums["scatter"], pooled.centre.size
    run.missed = run.missed + sums.missed["scatter"][diagonal_positions(d)]
    if not within:
        scatter = blas.dspr(d, -float(pooled.rows), pooled.remainder, scatter, lower=1)
    return Moments(*pooled.head, scatter=scatter), pooled.diagonal


def _by_one_sum(run: RowsStrategy, within: bool) -> Generator[Ask, Any, tuple[Moments, Array]]:
    sums: Total = yield Sum("uncentred")
    double = {name: (sums[name], sums.low[name]) for name in sums}
    head = uncentred_head(rows_in(sums["count"], sums.parties), double["sum"])
    if within:
        scatter, diagonal = sums["scatter"], about_mean(double["squares"], mean_squares(head))
    else:
        scatter = about_mean(double["scatter"], mean_products(head))
        diagonal = scatter[diagonal_positions(head.mean.size)]
    missed = 3 * sums.missed["scatter"][diagonal_positions(head.mean.size)]  # a share is of three parts
    return Moments(*head, scatter=scatter), _resolved_diagonal(run, missed, diagonal, head, ALL_ROWS).clip(min=0.0)


def _resolved_diagonal(run: RowsStrategy, missed: Array, diagonal: Array, head: Head, which: str) -> Array:
    """The diagonal (d,) of the scatter of rows, of which fixed point may have ``missed`` so much.

    What is too much is refused. With scaling a feature of which it may be all is constant; else it would be scaled by
    what rounding left of it.
    """
    run.missed = missed
    whole = diagonal + run.joined
    about_zero = 0.0 if getattr(run.options, "center", True) else head.n * head.mean**2
    require_resolved(run.config.bound, missed, whole + about_zero, which=which)
    if not getattr(run.options, "scale", False):
        return diagonal
    require_scalable(run.config.bound, missed, whole, head.n)
    unseen = whole <= missed
    if unseen.any():
        least = float(np.sqrt(missed.max() / head.n))
        run.cautions = [
            f"{unseen.sum()} features were taken for constant and not scaled: next to 'bound' fixed point holds no "
            f"deviation below {least:.2g}; if one of them varies less than that, change its unit"
        ]
    return np.where(unseen, 0.0, diagonal)
