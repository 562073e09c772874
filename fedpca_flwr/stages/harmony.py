"""Harmony on the scores of all rows (``clustering='harmony'``), by sums: the parties are the batches.

The server sends centres and corrections, every party replies how much of its rows each cluster holds and the sums of
the rows' scores, and the next centres and corrections follow (`fedpca_flwr.maths.harmony`). The server must know to
which batch a number belongs: also in secure sums, each party's own part of the counts and sums by cluster shows.
"""

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import clustering, harmony
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Round, SumLimits, SumRound, Total
from fedpca_flwr.questions.row_limits import MAX_ROWS
from fedpca_flwr.questions.rows_client import Closing
from fedpca_flwr.site.scores import companion_file

MAX_CORRECTIONS = 10  # largest number of corrections of a run
FIRST_STEPS = 10  # steps from the start, before a batch is kept from a cluster
MAX_STEPS = 20  # largest number of steps between two corrections
MAX_QUESTIONS = FIRST_STEPS + MAX_CORRECTIONS * MAX_STEPS  # largest number of questions of a run

MIN_MOVED_SHARE = 1e-3  # of rows; a step in which a smaller share changes clusters is the last before a correction
MIN_IMPROVEMENT = 1e-4  # share of the objective; a correction that lowers the objective by a smaller share is the last

STEP_FIELDS = (
    Field("centres", ("<=t", "<=m", "<=k")),
    Field("penalties", ("<=t", "<=m", "parties")),
    Field("moves", ("<=t", "<=m", "parties", "<=k"), optional=True),
)
"""Fields of the steps of Harmony, which sites receive."""

STEP_SUMS = Payload(
    (
        Field("counts", ("m", "parties"), kind="size"),
        Field("units", ("m", "k")),
        Field("sums", ("m", "parties", "k")),
        Field("objective", ()),
    )
)


def limits(request: Fields, max_score: float) -> SumLimits:
    """Return public limits of Harmony's sums (counts, unit scores, scores, objective) over at most `MAX_ROWS` rows."""
    rows = 2.0 * MAX_ROWS
    return {
        "counts": np.array(rows),
        "units": np.array(rows),
        "sums": np.array(rows * max_score),
        # unit vectors are at most 2 apart, and the entropy over m clusters is at most log(m)
        "objective": np.array(rows * (4 + harmony.CLUSTER_WIDTH * np.log(request["centres"].shape[1] + 1))),
    }


def read_steps(request: Fields, batch: int) -> harmony.Steps:
    """Return the Harmony steps in a request, or raise ContractError for fields of different steps or no such batch."""
    centres, penalties = request["centres"], request["penalties"]
    t, m, k = centres.shape
    moves = request["moves"].reshape(-1, m, penalties.shape[-1], k) if m * k else request["moves"]
    fits = t and m and penalties.shape[:2] == (t, m) and k == len(request["components"]) and len(moves) in {t - 1, t}
    if not fits or batch >= penalties.shape[2]:
        raise ContractError(f"{SERVER}: 'centres', 'penalties' and 'moves' are not of the same steps of Harmony")
    return harmony.Steps(centres, penalties, moves)


def local_sums(request: Fields, parts: Iterator[Array], batch: int) -> Fields:
    """Return the fields `STEP_SUMS` of a party, counts and sums in its own batch's slot with zeros elsewhere.

    ``parts`` are chunks of the rows' scores (m, k), and ``batch`` is the number of the party. Raise as `read_steps`.
    """
    local = harmony.BatchSums.from_scores(read_steps(request, batch), parts, batch)
    shape = request["penalties"].shape[1:]
    counts, sums = np.zeros(shape), np.zeros((*shape, local.sums.shape[1]))
    counts[:, batch], sums[:, batch] = local.counts, local.sums
    return {"counts": counts, "units": local.units, "sums": sums, "objective": np.asarray(local.objective)}


def write_corrected(scores: str, request: Fields, parts: Iterator[Array], batch: int) -> None:
    """Write a site's scores (m, k) after Harmony's batch correction to a file beside the site's file ``scores``.

    Nothing is written if ``scores`` is empty; ``batch`` is the number of the party. Raise as `read_steps`.
    """
    steps = read_steps(request, batch)
    names = ",".join(f"harmony{j + 1}" for j in range(steps.centres.shape[2]))
    with companion_file(scores, "harmony", f"{names}\n".encode()) as stream:
        if stream is None:
            return
        for points in parts:
            np.savetxt(stream, steps.correct(points, batch), delimiter=",", fmt="%.9g")


def harmonise(model: PCAModel, request: Fields, clusters: int, public: Public) -> Closing:
    """Run Harmony by sums: return ``centres``, ``penalties`` and ``moves``, and log the steps in the model.

    ``request`` has the fields that rows are projected with.
    """
    variances, step_count, objective, improves = model.explained_variance_, 0, np.inf, True
    steps = harmony.Steps.empty(clusters, public.parties, variances.size)
    centres = harmony.normalise_rows(clustering.draw_starts(variances, clusters, 1, public.config.seed)[0])
    penalty = np.zeros((clusters, public.parties))
    while len(steps.moves) < MAX_CORRECTIONS and improves:
        free = 0 if len(steps.moves) else FIRST_STEPS
        steps, total, new_steps = yield from _converge_step(request, steps, centres, penalty, free)
        centres, penalty, step_count = steps.centres[-1], steps.penalties[-1], step_count + new_steps
        steps = steps.finish_step(harmony.ridge_moves(total["counts"], total["sums"]))
        previous, objective = objective, _objective(total)
        improves = not np.isfinite(previous) or previous - objective > MIN_IMPROVEMENT * abs(previous)
    fields = {"centres": steps.centres, "penalties": steps.penalties, "moves": steps.moves}
    model.log["harmony"] = {"steps": step_count, "objective": objective}
    model.log["harmony"] |= {name: value.tolist() for name, value in fields.items()}
    return fields


def _converge_step(
    request: Fields, steps: harmony.Steps, centres: Array, penalty: Array, free: int
) -> Generator[Round, Any, tuple[harmony.Steps, Total, int]]:
    """Ask until few rows change clusters, or `MAX_STEPS` times; return steps, last sums and number of questions.

    In the first ``free`` questions the penalty on clusters that a batch dominates is not updated.
    """
    counts, moved_share, questions = np.zeros(penalty.shape), 1.0, 0
    while True:
        trial = steps.begin_step(centres, penalty)
        fields = {"centres": trial.centres, "penalties": trial.penalties, "moves": trial.moves}
        total: Total = yield SumRound("mixed", {**request, **fields})
        questions += 1
        counts, moved_share = total["counts"], float(np.abs(total["counts"] - counts).sum() / total["counts"].sum())
        if questions == MAX_STEPS + free or (moved_share < MIN_MOVED_SHARE and questions > free):
            return trial, total, questions
        units = harmony.normalise_rows(total["units"])
        centres = np.where(units.any(axis=1, keepdims=True), units, centres)
        if questions >= free:
            penalty = (penalty - harmony.DIVERSITY * harmony.log_excess(counts)) / 2  # damped: mean with the last one


def _objective(total: Total) -> float:
    """Return Harmony's objective over all rows: the parties' distances and entropies plus the diversity penalty."""
    counts = total["counts"]
    uneven = float((counts * harmony.log_excess(counts)).sum())
    return float(total["objective"]) + harmony.CLUSTER_WIDTH * harmony.DIVERSITY * uneven
