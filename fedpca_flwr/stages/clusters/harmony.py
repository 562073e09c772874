"""Harmony on the scores of all rows (``clustering='harmony'``), by sums: the parties are the batches.

The server names centres and corrections, every party tells how much of its rows each cluster holds and the sums of
their scores, and the next centres and corrections follow (`fedpca_flwr.maths.harmony`). Which batch a number belongs to
must be known: also in secure sums, each party's own part of the counts and sums by cluster shows.

What the server names meets scores before they are summed, as of all clusters (`fedpca_flwr.questions.clusters`).
"""

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import clustering, harmony
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Ask, Public, Sum, SumLimits, Total
from fedpca_flwr.questions.row_limits import ROWS
from fedpca_flwr.site.scores import beside

ROUNDS = 10
"""Corrections that a run makes at most."""

FIRST_STEPS = 10
"""Steps from the start, before a batch is kept from a cluster."""

MOST_STEPS = 20
"""Steps between two corrections."""

STILL = 1e-3
"""Shares of rows that changed clusters, in steps and in corrections after which nothing more is gained."""

MOST_BETTER = 1e-4
"""A correction is the last if the objective falls by a smaller share."""

OF_SITES = "how many of each site's rows are in each cluster, and the sums of their scores"
"""What the sums tell of single sites (`PCAOptions.site_sums`)."""

STEPS = (
    Field("centres", ("<=t", "<=m", "<=k")),
    Field("penalties", ("<=t", "<=m", "parties")),
    Field("moves", ("<=t", "<=m", "parties", "<=k"), optional=True),
)
"""What sites are told of the steps of Harmony."""

MIXED = Payload(
    (
        Field("counts", ("m", "parties"), kind="size"),
        Field("units", ("m", "k")),
        Field("sums", ("m", "parties", "k")),
        Field("objective", ()),
    )
)


def sizes(public: Public) -> dict[str, int]:
    """What symbols in these shapes stand for."""
    return {"t": ROUNDS + 1, "parties": public.parties}


def times() -> int:
    """How often a run asks."""
    return FIRST_STEPS + ROUNDS * MOST_STEPS


def limits(asked: Fields, farthest: float) -> SumLimits:
    """Limits of sums over rows of which each counts once, and whose scores are at most ``farthest`` in size."""
    rows = 2.0 * ROWS
    return {
        "counts": np.array(rows),
        "units": np.array(rows),
        "sums": np.array(rows * farthest),
        "objective": np.array(rows * (4 + harmony.WIDTH * np.log(asked["centres"].shape[1] + 1))),
    }


def steps_in(asked: Fields, batch: int) -> harmony.Steps:
    """The steps that a server named, held against each other."""
    centres, penalties = asked["centres"], asked["penalties"]
    t, m, k = centres.shape
    moves = asked["moves"].reshape(-1, m, penalties.shape[-1], k) if m * k else asked["moves"]
    fits = t and m and penalties.shape[:2] == (t, m) and k == len(asked["components"]) and len(moves) in {t - 1, t}
    if not fits or batch >= penalties.shape[2]:
        raise ContractError(f"{SERVER}: 'centres', 'penalties' and 'moves' are not of the same steps of Harmony")
    return harmony.Steps(centres, penalties, moves)


def mixed(asked: Fields, parts: Iterator[Array], batch: int) -> Fields:
    """What a party answers: sums over its rows, in its own part of the fields, and zeros in the others'."""
    found = harmony.Mixed.of(steps_in(asked, batch), parts, batch)
    shape = asked["penalties"].shape[1:]
    counts, sums = np.zeros(shape), np.zeros((*shape, found.sums.shape[1]))
    counts[:, batch], sums[:, batch] = found.counts, found.sums
    return {"counts": counts, "units": found.units, "sums": sums, "objective": np.asarray(found.objective)}


def keep_corrected(scores: str, asked: Fields, parts: Iterator[Array], batch: int) -> None:
    """Write beside a site's own scores what Harmony makes of them."""
    steps = steps_in(asked, batch)
    names = ",".join(f"harmony{j + 1}" for j in range(steps.centres.shape[2]))
    with beside(scores, "harmony", f"{names}\n".encode()) as stream:
        if stream is None:
            return
        for part in steps.corrected_parts(parts, batch):
            np.savetxt(stream, part, delimiter=",", fmt="%.9g")


Found = Generator[Ask, Any, dict[str, Array]]


def harmonised(model: PCAModel, asked: Fields, clusters: int, public: Public) -> Found:
    """The steps of Harmony, as sites are told them; the log of the model has them, too."""
    variances, counted, objective, better = model.explained_variance_, 0, np.inf, True
    steps = harmony.Steps.none(clusters, public.parties, variances.size)
    centres = harmony.unit(clustering.starts(variances, clusters, 1, public.config.seed)[0])
    penalty = np.zeros((clusters, public.parties))
    while len(steps.moves) < ROUNDS and better:
        free = 0 if len(steps.moves) else FIRST_STEPS
        steps, total, taken = yield from _shared_out(asked, steps, centres, penalty, free)
        centres, penalty, counted = steps.centres[-1], steps.penalties[-1], counted + taken
        steps = steps.moved(harmony.ridge_moves(total["counts"], total["sums"]))
        before, objective = objective, _objective(total)
        better = not np.isfinite(before) or before - objective > MOST_BETTER * abs(before)
    told = {"centres": steps.centres, "penalties": steps.penalties, "moves": steps.moves}
    model.log["harmony"] = {"steps": counted, "objective": objective}
    model.log["harmony"] |= {name: value.tolist() for name, value in told.items()}
    return told


def _shared_out(
    asked: Fields, steps: harmony.Steps, centres: Array, penalty: Array, free: int
) -> Generator[Ask, Any, tuple[harmony.Steps, Total, int]]:
    """One more step, by which no row changes clusters any more, the sums by it, and how many questions it took.

    In the first ``free`` of them no batch is kept from a cluster.
    """
    held, moved, taken = np.zeros(penalty.shape), 1.0, 0
    while True:
        trying = steps.begun(centres, penalty)
        named = {"centres": trying.centres, "penalties": trying.penalties, "moves": trying.moves}
        total: Total = yield Sum("mixed", {**asked, **named})
        taken += 1
        held, moved = total["counts"], float(np.abs(total["counts"] - held).sum() / total["counts"].sum())
        if taken == MOST_STEPS + free or (moved < STILL and taken > free):
            return trying, total, taken
        found = harmony.unit(total["units"])
        centres = np.where(found.any(axis=1, keepdims=True), found, centres)
        if taken >= free:
            penalty = (penalty - harmony.DIVERSITY * harmony.over_expected(held)) / 2


def _objective(total: Total) -> float:
    """What Harmony makes small, of all rows: their distances, how mixed their shares are, and how uneven clusters."""
    counts = total["counts"]
    uneven = float((counts * harmony.over_expected(counts)).sum())
    return float(total["objective"]) + harmony.WIDTH * harmony.DIVERSITY * uneven
