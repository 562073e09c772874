"""Statistics of rows whose columns lie at different parties: the questions, and the server's use of the replies.

Every run begins with ``rows``: each party says how many rows and columns it has, and the digests of its ids. Nothing
else is asked before all parties are known to have the same rows. In clear each party adds the energy of its columns
(the sum of their squares after its own centring and scaling). Where only sums may be shown, the energy is the first
sum, and bounds all that follow (`fedpca_flwr.questions.columns`).

The first sum is the energy E of all columns. With x_r a row and A = X X', and no entry larger than a reach that
follows from `bound`, limits are public (`MAX_COLUMNS`, for the sum and for the sum of the parties' absolute values)::

    |A_rs| <= |x_r| |x_s| <= L,    |(A q)_r| <= sqrt(n) L,    |x_r - x_s|^2 <= 4 L,    L = MAX_COLUMNS reach^2

E determines in how many digits these sums are asked for (`fedpca_flwr.questions.digits`).
"""

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import projection_energies
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.model.loadings import Loadings, run_digest
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, Round, SumLimits, SumRound, Total, by_transport
from fedpca_flwr.questions import digits
from fedpca_flwr.questions.columns_run import MAX_COLUMNS, ColumnsClient, ColumnsOptions, ColumnsRun
from fedpca_flwr.questions.pooling import COUNT
from fedpca_flwr.questions.row_limits import require_bound, require_resolved

ENERGY_WORDS = 6  # words of 64 bits for a sum of squares of all entries
MAX_SCALED_SIZE = 2.0**70  # largest size of a value in standard deviations
MAX_MEAN_RATIO = 2.0**10  # largest mean of an earlier run, in bounds of rows that came later


def _reach(options: ColumnsOptions | None, public: Public, *, scaled: bool = False) -> float:
    """Return the largest absolute value of an entry of the centred and scaled columns, from the public `bound`.

    Scaled, centred columns are at most the root of the rows. Options None stand for an earlier run's centre and scale.
    """
    if options is None:
        return MAX_SCALED_SIZE if scaled else MAX_MEAN_RATIO * public.config.bound
    if not options.scale:  # a mean is within `bound`, too
        return 2 * public.config.bound
    return 2 * math.sqrt(public.rows) if options.center else max(2 * public.config.bound, MAX_SCALED_SIZE)


def product_limit(options: ColumnsOptions | None, public: Public, *, scaled: bool = False) -> Array:
    """Return the public limit on an inner product of two rows over all parties' columns, with room for rounding."""
    return np.array(2.0 * MAX_COLUMNS * _reach(options, public, scaled=scaled) ** 2)


ALIGNMENT_FIELDS = (COUNT, Field("features", (), "int64", kind="count"), Field("ids", ("n",), "uint64", optional=True))
"""Fields in which each party describes its rows; the rows of all parties must be the same."""

DIRECTIONS = Field("directions", ("n", "<=k"), kind="orthonormal columns")  # directions of the scores


class LocalStatistic(NamedTuple):
    """Fields of a reply on a party's own columns, and the function from party and request that computes the fields."""

    fields: tuple[Field, ...]
    compute: Callable[[Any, Fields], Fields]


def _local_energy(party: ColumnsClient, request: Fields) -> Fields:
    """Return the energy of a party's columns: the sum of squares of all their entries."""
    return {"energy": np.asarray(party.local_columns.energy)}


LOCAL_ENERGY = LocalStatistic((Field("energy", (), kind="size"),), _local_energy)


def rows_questions(config: RunConfig, energy: Question, *party_statistics: LocalStatistic) -> Questions:
    """Return ``rows``, in clear with the energy, and with secure sums ``energy``; these need a `bound`."""
    require_bound(config)
    masked = {"rows": replace(clear_rows_questions(*party_statistics)["rows"], in_clear=True), "energy": energy}
    return by_transport(config, clear=clear_rows_questions(*party_statistics, LOCAL_ENERGY), masked=masked)


def clear_rows_questions(*statistics: LocalStatistic) -> Questions:
    """Return the first question of a run in clear, ``rows``: the rows of each party, and further statistics."""
    fields = [*ALIGNMENT_FIELDS, *(field for statistic in statistics for field in statistic.fields)]

    def answer(party: ColumnsClient, request: Fields) -> Fields:
        """Return a party's numbers of rows and columns, digests of its row ids, and the further statistics."""
        reply = dict(party.describe_rows())
        for statistic in statistics:
            reply.update(statistic.compute(party, request))
        return reply

    return {"rows": Question(reply=Payload(tuple(fields)), answer=answer)}


def energy_question(options: ColumnsOptions | None, *request: Field) -> Question:
    """Return the question for the energy of all columns, which may be scaled if the request's ``scaled`` is true."""

    def limits(request: Fields, public: Public) -> SumLimits:
        """Return the public limit of the energy, from the largest absolute value of an entry."""
        return {"energy": public.rows * product_limit(options, public, scaled=bool(request.get("scaled", 0)))}

    reply = Payload((Field("energy", ()),))
    return Question(request=Payload(request), reply=reply, answer=_local_energy, limits=limits, words=ENERGY_WORDS)


def component_sizes(public: Public) -> dict[str, int]:
    """Return the value of the symbol ``k`` in shapes: the number of components that the options ask for."""
    return {"k": public.options.n_components}


def energies_questions() -> Questions:
    """Return the question ``energies``, for the energy of each party's columns along each requested direction."""
    reply = Payload((Field("energies", ("k",), kind="size"),))
    request = Payload((DIRECTIONS,))
    return {"energies": Question(request=request, reply=reply, answer=_local_energies, sizes=component_sizes)}


def _local_energies(party: ColumnsClient, request: Fields) -> Fields:
    """Return the energies (k,): sums of squares of a party's columns projected on each direction (n,)."""
    return {"energies": projection_energies(party.local_columns, request["directions"])}


def projection_questions() -> Questions:
    """Return the last question, ``project``: every party writes its files, and replies with the unexplained energy."""
    project = Question(
        request=Payload((DIRECTIONS, Field("singular", ("<=k",), kind="size"))),
        reply=Payload((Field("squared", (), kind="size"),)),
        answer=_project,
        sizes=component_sizes,
        limits=lambda request, public: {"squared": public.rows * product_limit(public.options, public)},
        words=ENERGY_WORDS,
        closing=True,
    )
    return {"project": project}


def _project(party: ColumnsClient, request: Fields) -> Fields:
    """Write a party's scores and loadings; return ``squared``, the energy that the scores leave, at least 0."""
    U, singular, local = request["directions"], request["singular"], party.local_columns
    projected = local.T @ U
    with np.errstate(all="ignore"):  # whatever was asked, nothing of the rows shows in an error
        party.write_scores(U * singular)
        positive = singular > 0
        components = np.where(positive, projected / np.where(positive, singular, 1.0), 0.0).T
        # what is longer than a whole unit vector, of which it is this party's part, is rounding
        components[np.linalg.norm(components, axis=1) > 1 + 1e-6] = 0.0
        digest, columns = run_digest(U, singular), party.site.table.names_digest
        step = party.site.config.transform
        party.loadings = Loadings(components, local.centre, local.scale, digest, columns, local.remainder, step)
        if party.site.node.loadings:
            party.loadings.save(party.site.node.loadings)
    return {"squared": np.asarray(max(0.0, local.energy - float(np.vdot(projected, projected))))}


def aligned_rows(run: ColumnsRun) -> Generator[Round, Any, list[Reply]]:
    """Ask every party about its rows, and return the replies; raise what `ColumnsRun.require_same_rows` raises."""
    replies: list[Reply] = yield Round("rows")
    run.require_same_rows(replies)
    return replies


def total_energy(run: ColumnsRun, replies: list[Reply], **request: Array) -> Generator[Round, Any, None]:
    """Store the energy of all columns, from replies in clear or by asking; raise errors for `bound` and no energy."""
    if "energy" not in run.script:
        run.set_total(math.fsum(float(reply.fields["energy"]) for reply in replies))
        return
    sums: Total = yield SumRound("energy", request)
    require_resolved(run.config.bound, sums.error_bounds["energy"], sums["energy"], run.bound_advice)
    run.set_total(float(sums["energy"]))


def rows_and_energy(run: ColumnsRun) -> Generator[Round, Any, None]:
    """Run `aligned_rows` and `total_energy`."""
    replies = yield from aligned_rows(run)
    yield from total_energy(run, replies)


def sum_in_digits(run: ColumnsRun, name: str, request: Fields, size: float = 0.0) -> Generator[Round, Any, Total]:
    """Return the sum of a question's replies, in digits that resolve this size, or else the energy of all columns."""
    sums = yield from digits.sum_in_digits(run, name, request, size or run.total, run.bound_advice)
    run.rounding = max(run.rounding, *(float(np.max(error_bound)) for error_bound in sums.error_bounds.values()), 0.0)
    return sums


def pairs_by_energy(U: Array) -> Generator[Round, Any, Eigenpairs]:
    """Order orthonormal directions U (n, k) by the energy of all columns along each, descending."""
    sums: Total = yield SumRound("energies", {"directions": U})
    energy = sums["energies"]
    order = np.argsort(-energy, kind="stable")
    return Eigenpairs(energy[order], fix_signs(U[:, order]), following=0.0)
