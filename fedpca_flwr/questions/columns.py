"""Statistics of rows whose columns lie at different parties: what is asked, and how they are had.

Every run begins with ``rows``: each party says how many rows and columns it has, and the digests of its ids. Nothing
else is asked before all have the same rows. In clear each tells the energy of its columns with it (the sum of their
squares after its own centring and scaling); where only sums may be shown, the energy is the first sum, and bounds all
that follow (`fedpca_flwr.questions.columns`).

The first sum is the energy E of all columns. With x_r a row and A = X X', and no entry larger than a `reach` that
follows from `bound`, limits are public (`COLUMNS`, for the sum and for the sum of the parties' absolute values)::

    |A_rs| <= |x_r| |x_s| <= L,    |(A q)_r| <= sqrt(n) L,    |x_r - x_s|^2 <= 4 L,    L = COLUMNS reach^2

E says how many digits of these sums show something (`fedpca_flwr.questions.digits`).
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import packed_gram, projection_energies
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.model.loadings import Loadings, run_digest
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import (
    Answer,
    Public,
    Question,
    Questions,
    Round,
    SumLimits,
    SumRound,
    Total,
    by_transport,
)
from fedpca_flwr.questions import digits
from fedpca_flwr.questions.columns_run import MAX_COLUMNS, ColumnsClient, ColumnsOptions, ColumnsRun
from fedpca_flwr.questions.digits import digits_questions
from fedpca_flwr.questions.fields import COUNT
from fedpca_flwr.questions.row_limits import require_bound, require_resolved

MEASURE_WORDS = 6
"""For each value of the first sums."""

MAX_SCALED_SIZE = 2.0**70
"""No value is so many standard deviations in size."""

MAX_MEAN_RATIO = 2.0**10
"""No mean of an earlier run is so many times the bound of rows that came later."""


def reach(options: ColumnsOptions | None, public: Public, *, centred: bool = False, scaled: bool = False) -> float:
    """The largest size of an entry, as a run takes the columns: those ``centred`` in any case are at most the root of
    the rows in size, once scaled. A constant column is as large as `bound` where its mean stays.

    Without ``options`` they are about means of an earlier run, and scaled where all parties have said so.
    """
    if options is None:
        return MAX_SCALED_SIZE if scaled else MAX_MEAN_RATIO * public.config.bound
    if not options.scale:
        return 2 * public.config.bound
    return 2 * math.sqrt(public.rows) if centred or options.center else max(2 * public.config.bound, MAX_SCALED_SIZE)


def product_limit(
    options: ColumnsOptions | None, public: Public, *, centred: bool = False, scaled: bool = False
) -> Array:
    """Of the sum of the products of two rows' entries, over all columns, and some rounding."""
    return np.array(2.0 * MAX_COLUMNS * reach(options, public, centred=centred, scaled=scaled) ** 2)


ALIGNMENT_FIELDS = (
    COUNT,
    Field("features", (), "int64", kind="count"),
    Field("ids", ("n",), "uint64", optional=True),
)
"""What each party says of its rows, so that all have the same."""

ENERGY = Field("energy", (), kind="size")

DIRECTIONS = Field("directions", ("n", "<=k"), kind="orthonormal columns")
"""Of the scores."""

SINGULAR = Field("singular", ("<=k",), kind="size")
"""What the directions are multiplied by."""


# The questions


class LocalStatistic(NamedTuple):
    """What each party says of its own, and how it finds that."""

    fields: tuple[Field, ...]
    compute: Callable[[Any, Fields], Fields]


def local_energy(party: ColumnsClient, request: Fields) -> Fields:
    """Energy of a party's columns."""
    return {"energy": np.asarray(party.local_columns.energy)}


LOCAL_ENERGY = LocalStatistic((ENERGY,), local_energy)


def rows_questions(
    config: RunConfig,
    energy: Question,
    *,
    party_statistics: Sequence[LocalStatistic] = (),
    entry_statistics: LocalStatistic = LOCAL_ENERGY,
) -> Questions:
    """The first questions of every run: what each party says of its rows and, ``of_party``, of nobody's values.

    In clear it tells with it the ``measures`` of all its entries together. Where only sums may be shown, the question
    ``energy`` follows (`measures_phase`).
    """
    require_bound(config)
    masked = {"rows": replace(clear_rows_questions(*party_statistics)["rows"], in_clear=True), "energy": energy}
    return by_transport(config, clear=clear_rows_questions(*party_statistics, entry_statistics), masked=masked)


def clear_rows_questions(*statistics: LocalStatistic) -> Questions:
    """The first question in clear: what each party says of its rows, and what is ``said`` besides."""
    fields = [*ALIGNMENT_FIELDS, *(field for statistic in statistics for field in statistic.fields)]

    def answer(party: ColumnsClient, request: Fields) -> Fields:
        reply = dict(party.describe_rows())
        for statistic in statistics:
            reply.update(statistic.compute(party, request))
        return reply

    return {"rows": Question(reply=Payload(tuple(fields)), answer=answer)}


def measures_question(
    options: ColumnsOptions | None,
    *request: Field,
    names: Sequence[str] = ("energy",),
    answer: Answer = local_energy,
    centred: bool = False,
) -> Question:
    """Sums over all entries of all parties: of these (``sum``), of their squares (``energy``), of their squared
    deviations (``spread``) from the ``level`` that is asked."""

    def limits(request: Fields, public: Public) -> SumLimits:
        entries, max_size = float(public.rows) * MAX_COLUMNS, reach(options, public)
        level = float(np.abs(request.get("level", 0.0)))
        limits_by_name = {"sum": entries * max_size, "spread": 2 * entries * (max_size + level) ** 2}
        scaled = bool(request.get("scaled", 0))
        limits_by_name["energy"] = public.rows * float(product_limit(options, public, centred=centred, scaled=scaled))
        return {name: np.array(limits_by_name[name]) for name in names}

    return Question(
        request=Payload(request),
        reply=Payload(tuple(Field(name, ()) for name in names)),
        answer=answer,
        limits=limits,
        words=MEASURE_WORDS,
    )


def inner_products_questions(config: RunConfig, options: ColumnsOptions, name: str) -> Questions:
    """All inner products of the rows over a party's columns, packed."""
    products = Question(
        reply=Payload((Field(name, ("n(n+1)/2",), kind="scatter"),)),
        answer=lambda party, request: {name: packed_gram(party.local_columns.X)},
        limits=lambda request, public: {name: product_limit(options, public)},
    )
    return digits_questions(config, name, products)


def component_sizes(public: Public) -> dict[str, int]:
    return {"k": public.options.n_components}


def energies_questions() -> Questions:
    """What each party's columns hold of the directions that it received."""
    question = Question(
        request=Payload((DIRECTIONS,)),
        reply=Payload((Field("energies", ("k",), kind="size"),)),
        answer=lambda party, request: {"energies": projection_energies(party.local_columns, request["directions"])},
        sizes=component_sizes,
    )
    return {"energies": question}


def projection_questions() -> Questions:
    """The last question: every party keeps the scores and its own loadings, and tells the energy that these leave."""
    project = Question(
        request=Payload((DIRECTIONS, SINGULAR)),
        reply=Payload((Field("squared", (), kind="size"),)),
        answer=_project,
        sizes=component_sizes,
        limits=lambda request, public: {"squared": public.rows * product_limit(public.options, public)},
        words=MEASURE_WORDS,
        closing=True,
    )
    return {"project": project}


def _project(party: ColumnsClient, request: Fields) -> Fields:
    """Keep the scores of the rows and the loadings of a party's own columns; the energy that is left."""
    U, singular, local = request["directions"], request["singular"], party.local_columns
    projected = local.T @ U
    with np.errstate(all="ignore"):  # whatever was asked, nothing of the rows shows in an error
        party.write_scores(U * singular)
        if party.site.node.loadings:
            positive = singular > 0
            components = np.where(positive, projected / np.where(positive, singular, 1.0), 0.0).T
            # what is longer than a whole unit vector, of which it is this party's part, is rounding
            components[np.linalg.norm(components, axis=1) > 1 + 1e-6] = 0.0
            loadings = Loadings(components, local.mean, local.scale, run_digest(U, singular), party.site.table.columns)
            loadings.save(party.site.node.loadings)
    return {"squared": np.asarray(max(0.0, local.energy - float(np.vdot(projected, projected))))}


def keep_scores_questions(scores: Callable[[Fields], Array], *request: Field) -> Questions:
    """The last question where nobody can tell an error: every party keeps the ``scores`` (n, k) that were asked of it
    to keep, and says that it did."""

    def keep(party: ColumnsClient, request: Fields) -> Fields:
        with np.errstate(all="ignore"):
            party.write_scores(scores(request))
        return {"count": np.asarray(len(party.data))}

    project = Question(
        request=Payload(request),
        reply=Payload((COUNT,)),
        answer=keep,
        sizes=component_sizes,
        in_clear=True,
        closing=True,
    )
    return {"project": project}


# The statistics


def aligned_rows(run: ColumnsRun) -> Generator[Round, Any, list[Reply]]:
    """What each party says first, once all are known to have the same rows."""
    replies: list[Reply] = yield Round("rows")
    run.require_same_rows(replies)
    return replies


def total_energy(run: ColumnsRun, replies: list[Reply], **request: Array) -> Generator[Round, Any, Total | None]:
    """Take the energy of all columns; the sums that it came with, where only sums are shown.

    ``more`` comes with the question for them.
    """
    if "energy" not in run.script:
        run.set_total(math.fsum(float(reply.fields["energy"]) for reply in replies))
        return None
    sums: Total = yield SumRound("energy", request)
    run.set_total(resolved_measure(run, sums, "energy"))
    return sums


def rows_and_energy(run: ColumnsRun) -> Generator[Round, Any, None]:
    """Rows and energy."""
    replies = yield from aligned_rows(run)
    yield from total_energy(run, replies)


def sum_in_digits(run: ColumnsRun, name: str, request: Fields, size: float = 0.0) -> Generator[Round, Any, Total]:
    """A sum, in digits that show its ``size``: else the energy of all columns."""
    sums = yield from digits.sum_in_digits(run, name, request, size or run.total, run.bound_advice)
    run.rounding = max(run.rounding, *(float(np.max(error_bound)) for error_bound in sums.error_bounds.values()), 0.0)
    return sums


def resolved_measure(run: ColumnsRun, sums: Total, name: str) -> float:
    """A measure of the open sum, unless `bound` is too far above the data for it."""
    require_resolved(run.config.bound, sums.error_bounds[name], sums[name], run.bound_advice)
    return float(sums[name])


def require_distances(distances: Array, error_bound: float) -> None:
    """Refuse sums of squared distances below zero, by more than what the sum ``missed``."""
    if distances.size and distances.min() < -error_bound:
        raise ContractError(
            f"the parties' squared distances between rows add up to {distances.min():.3g}, less than zero: some party's "
            "reply is false"
        )


def finite_kernel(K: Array) -> Array:
    """The kernel matrix (n, c), or a `DataError` where float64 does not hold all that is computed from it."""
    with np.errstate(over="ignore"):
        max_sum = np.abs(K).max() * float(len(K)) ** 2  # no sum of entries or eigenvalues is larger
    if not np.isfinite(max_sum):
        raise DataError("the kernel of the rows is outside the range of float64: lower 'gamma' or 'degree'")
    return K


def pairs_by_energy(U: Array) -> Generator[Round, Any, Eigenpairs]:
    """The directions ``U`` (n, k), orthonormal, in the order of the energy that the parties' columns hold of them."""
    sums: Total = yield SumRound("energies", {"directions": U})
    energy = sums["energies"]
    order = np.argsort(-energy, kind="stable")
    return Eigenpairs(energy[order], fix_signs(U[:, order]), following=0.0)
