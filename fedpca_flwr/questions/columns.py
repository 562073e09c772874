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
from fedpca_flwr.maths.columns import energies, packed_gram
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.model.loadings import Loadings, run_digest
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Answer, Ask, Public, Question, Questions, Sum, SumLimits, Total, by_transport
from fedpca_flwr.questions import digits
from fedpca_flwr.questions.columns_run import COLUMNS, ColumnsClient, ColumnsOptions, ColumnsRun
from fedpca_flwr.questions.digits import in_digits
from fedpca_flwr.questions.fields import COUNT
from fedpca_flwr.questions.row_limits import require_bound, require_resolved

MEASURE_WORDS = 6
"""For each value of the first sums."""

LARGEST_SCALED = 2.0**70
"""No value is so many standard deviations in size."""

LARGEST_MEAN = 2.0**10
"""No mean of an earlier run is so many times the bound of rows that came later."""


def reach(options: ColumnsOptions | None, public: Public, *, centred: bool = False, scaled: bool = False) -> float:
    """The largest size of an entry, as a run takes the columns: those ``centred`` in any case are at most the root of
    the rows in size, once scaled. A constant column is as large as `bound` where its mean stays.

    Without ``options`` they are about means of an earlier run, and scaled where all parties have said so.
    """
    if options is None:
        return LARGEST_SCALED if scaled else LARGEST_MEAN * public.config.bound
    if not options.scale:
        return 2 * public.config.bound
    return 2 * math.sqrt(public.rows) if centred or options.center else max(2 * public.config.bound, LARGEST_SCALED)


def product_limit(
    options: ColumnsOptions | None, public: Public, *, centred: bool = False, scaled: bool = False
) -> Array:
    """Of the sum of the products of two rows' entries, over all columns, and some rounding."""
    return np.array(2.0 * COLUMNS * reach(options, public, centred=centred, scaled=scaled) ** 2)


ABOUT_ROWS = (
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


class Saying(NamedTuple):
    """What each party says of its own, and how it finds that."""

    fields: tuple[Field, ...]
    find: Callable[[Any, Fields], Fields]


def own_energy(party: ColumnsClient, asked: Fields) -> Fields:
    """Energy of a party's columns."""
    return {"energy": np.asarray(party.own_columns.energy)}


ENERGIES = Saying((ENERGY,), own_energy)


def rows_phases(
    config: RunConfig, energy: Question, *, of_party: Sequence[Saying] = (), measures: Saying = ENERGIES
) -> Questions:
    """The first questions of every run: what each party says of its rows and, ``of_party``, of nobody's values.

    In clear it tells with it the ``measures`` of all its entries together. Where only sums may be shown, the question
    ``energy`` follows (`measures_phase`).
    """
    require_bound(config)
    apart = {"rows": replace(rows_in_clear(*of_party)["rows"], in_clear=True), "energy": energy}
    return by_transport(config, clear=rows_in_clear(*of_party, measures), masked=apart)


def rows_in_clear(*said: Saying) -> Questions:
    """The first question in clear: what each party says of its rows, and what is ``said`` besides."""
    fields = [*ABOUT_ROWS, *(field for one in said for field in one.fields)]

    def about(party: ColumnsClient, asked: Fields) -> Fields:
        found = dict(party.about_rows())
        for one in said:
            found.update(one.find(party, asked))
        return found

    return {"rows": Question(reply=Payload(tuple(fields)), answer=about)}


def measures_phase(
    options: ColumnsOptions | None,
    *asked: Field,
    names: Sequence[str] = ("energy",),
    answer: Answer = own_energy,
    centred: bool = False,
) -> Question:
    """Sums over all entries of all parties: of these (``sum``), of their squares (``energy``), of their squared
    deviations (``spread``) from the ``level`` that is asked."""

    def limits(asked: Fields, public: Public) -> SumLimits:
        entries, largest = float(public.rows) * COLUMNS, reach(options, public)
        level = float(np.abs(asked.get("level", 0.0)))
        every = {"sum": entries * largest, "spread": 2 * entries * (largest + level) ** 2}
        scaled = bool(asked.get("scaled", 0))
        every["energy"] = public.rows * float(product_limit(options, public, centred=centred, scaled=scaled))
        return {name: np.array(every[name]) for name in names}

    return Question(
        asked=Payload(asked),
        reply=Payload(tuple(Field(name, ()) for name in names)),
        answer=answer,
        limits=limits,
        words=MEASURE_WORDS,
    )


def inner_products_phase(config: RunConfig, options: ColumnsOptions, name: str) -> Questions:
    """All inner products of the rows over a party's columns, packed."""
    products = Question(
        reply=Payload((Field(name, ("n(n+1)/2",), kind="scatter"),)),
        answer=lambda party, asked: {name: packed_gram(party.own_columns.X)},
        limits=lambda asked, public: {name: product_limit(options, public)},
    )
    return in_digits(config, name, products)


def k_of_options(public: Public) -> dict[str, int]:
    return {"k": public.options.n_components}


def energies_phase() -> Questions:
    """What each party's columns hold of the directions that it received."""
    held = Question(
        asked=Payload((DIRECTIONS,)),
        reply=Payload((Field("energies", ("k",), kind="size"),)),
        answer=lambda party, asked: {"energies": energies(party.own_columns, asked["directions"])},
        sizes=k_of_options,
    )
    return {"energies": held}


def projection_phase() -> Questions:
    """The last question: every party keeps the scores and its own loadings, and tells the energy that these leave."""
    project = Question(
        asked=Payload((DIRECTIONS, SINGULAR)),
        reply=Payload((Field("squared", (), kind="size"),)),
        answer=_project,
        sizes=k_of_options,
        limits=lambda asked, public: {"squared": public.rows * product_limit(public.options, public)},
        words=MEASURE_WORDS,
        closing=True,
    )
    return {"project": project}


def _project(party: ColumnsClient, asked: Fields) -> Fields:
    """Keep the scores of the rows and the loadings of a party's own columns; the energy that is left."""
    U, singular, own = asked["directions"], asked["singular"], party.own_columns
    projected = own.T @ U
    with np.errstate(all="ignore"):  # whatever was asked, nothing of the rows shows in an error
        party.keep_scores(U * singular)
        if party.site.node.loadings:
            held = singular > 0
            components = np.where(held, projected / np.where(held, singular, 1.0), 0.0).T
            # what is longer than a whole unit vector, of which it is this party's part, is rounding
            components[np.linalg.norm(components, axis=1) > 1 + 1e-6] = 0.0
            loadings = Loadings(components, own.mean, own.scale, run_digest(U, singular), party.site.table.columns)
            loadings.save(party.site.node.loadings)
    return {"squared": np.asarray(max(0.0, own.energy - float(np.vdot(projected, projected))))}


def keeping_phase(scores: Callable[[Fields], Array], *asked: Field) -> Questions:
    """The last question where nobody can tell an error: every party keeps the ``scores`` (n, k) that were asked of it
    to keep, and says that it did."""

    def keep(party: ColumnsClient, asked: Fields) -> Fields:
        with np.errstate(all="ignore"):
            party.keep_scores(scores(asked))
        return {"count": np.asarray(len(party.data))}

    project = Question(
        asked=Payload(asked), reply=Payload((COUNT,)), answer=keep, sizes=k_of_options, in_clear=True, closing=True
    )
    return {"project": project}


# The statistics


def aligned_rows(run: ColumnsRun) -> Generator[Ask, Any, list[Reply]]:
    """What each party says first, once all are known to have the same rows."""
    replies: list[Reply] = yield Ask("rows")
    run.require_same_rows(replies)
    return replies


def total_energy(run: ColumnsRun, replies: list[Reply], **more: Array) -> Generator[Ask, Any, Total | None]:
    """Take the energy of all columns; the sums that it came with, where only sums are shown.

    ``more`` comes with the question for them.
    """
    if "energy" not in run.phases:
        run.set_total(math.fsum(float(reply.fields["energy"]) for reply in replies))
        return None
    sums: Total = yield Sum("energy", more)
    run.set_total(resolved(run, sums, "energy"))
    return sums


def rows_and_energy(run: ColumnsRun) -> Generator[Ask, Any, None]:
    """Rows and energy."""
    replies = yield from aligned_rows(run)
    yield from total_energy(run, replies)


def summed(run: ColumnsRun, name: str, asked: Fields, size: float = 0.0) -> Generator[Ask, Any, Total]:
    """A sum, in digits that show its ``size``: else the energy of all columns."""
    sums = yield from digits.summed(run, name, asked, size or run.total, run.instead_of_bound)
    run.rounding = max(run.rounding, *(float(np.max(missed)) for missed in sums.missed.values()), 0.0)
    return sums


def resolved(run: ColumnsRun, sums: Total, name: str) -> float:
    """A measure of the open sum, unless `bound` is too far above the data for it."""
    require_resolved(run.config.bound, sums.missed[name], sums[name], run.instead_of_bound)
    return float(sums[name])


def require_distances(added: Array, missed: float) -> None:
    """Refuse sums of squared distances below zero, by more than what the sum ``missed``."""
    if added.size and added.min() < -missed:
        raise ContractError(
            f"the parties' squared distances between rows add up to {added.min():.3g}, less than zero: some party's "
            "reply is false"
        )


def finite_kernel(K: Array) -> Array:
    """The kernel matrix (n, c), or a `DataError` where float64 does not hold all that is computed from it."""
    with np.errstate(over="ignore"):
        most = np.abs(K).max() * float(len(K)) ** 2  # no sum of entries or eigenvalues is larger
    if not np.isfinite(most):
        raise DataError("the kernel of the rows is outside the range of float64: lower 'gamma' or 'degree'")
    return K


def measured_pairs(U: Array) -> Generator[Ask, Any, Eigenpairs]:
    """The directions ``U`` (n, k), orthonormal, in the order of the energy that the parties' columns hold of them."""
    sums: Total = yield Sum("energies", {"directions": U})
    held = sums["energies"]
    order = np.argsort(-held, kind="stable")
    return Eigenpairs(held[order], fix_signs(U[:, order]), following=0.0)
