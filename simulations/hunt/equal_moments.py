"""Equal moments, equal answers: a run on rows that are turned about their means, against the run on the rows drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedpca_flwr.model.model import PCAModel

from .draw import Draw
from .oracle import EPS, Long, Truth
from .refusals import Finding
from .running import run_draw


def unequal_moments(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """Other variances, or an error, of rows with the same moments."""
    if draw.turn is None or truth.unsure or not float(truth.total) > 0:
        return
    if "taken for constant" in " ".join(model.log["notes"]):
        return
    again = run_draw(turned(draw))
    if again.model is None:
        yield "equal moments", f"refused of turned rows: {type(again.error).__name__}: {str(again.error)[:200]}"
        return
    apart = float(np.abs(again.model.explained_variance_ - model.explained_variance_).max())
    allowed = rounding_of(draw, truth) + slack(draw) * float(model.explained_variance_[0])
    if draw.method == "compressed":
        allowed += sum(correction_of(draw, one) for one in (model, again.model))
    if apart > allowed:
        yield "equal moments", f"variances of turned rows are {apart:.3g} apart, by rounding {allowed:.3g} at most"


def turned(draw: Draw) -> Draw:
    """The draw with every party's rows turned by an orthogonal matrix that fixes the ones."""
    rng = np.random.default_rng(draw.turn)
    earlier = [turn(rng, part) for part in draw.earlier]
    return replace(draw, earlier=earlier, parties=[turn(rng, part) for part in draw.parties], turn=None)


def turn(rng: Generator, X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows (n, d) of the same count, mean and scatter, up to their rounding to float64."""
    n = len(X)
    square = rng.standard_normal((n, n))
    square[:, 0] = 1.0
    basis = np.linalg.qr(square).Q[:, 1:].astype(Long)
    inside = np.linalg.qr(rng.standard_normal((n - 1, n - 1))).Q.astype(Long)
    rows = np.asarray(X).astype(Long)
    same = (rows == rows[0]).all(axis=0)
    mean = np.where(same, rows[0], rows.mean(axis=0))
    moved: NDArray[np.float64] = (mean + basis @ (inside @ (basis.T @ (rows - mean)))).astype(np.float64)
    return moved


def rounding_of(draw: Draw, truth: Truth) -> float:
    """How far a variance may move where each value of the rows is rounded, in the model's units."""
    sizes = draw.pooled.astype(Long) / truth.scale
    moved = 4 * EPS * float(np.sqrt((sizes**2).sum()))
    first = float(np.sqrt(truth.values[0]))
    return (2 * first * moved + moved**2) * 10 / (len(draw.pooled) - 1)


def correction_of(draw: Draw, model: PCAModel) -> float:
    """How far a variance after corrections may be from that of the moments: the measured error, by Weyl's inequality.

    A correction is about leading eigenvectors of what the server holds. Beyond the rank of the codec they belong to
    one repeated eigenvalue, its filler or zero, so the last digit of a mean turns them, and the correction's few bits
    round other products. The encodings before are compared without this, in draws that have no correction.
    """
    if not (draw.options.get("corrections") or draw.options.get("tolerance")):
        return 0.0
    return float(model.log["measured"]["scatter_error_variance_share"]) * model.total_variance


def slack(draw: Draw) -> float:
    """Parts of the first variance that runs of the same moments may be apart by other things than offsets."""
    return 1e-9 if draw.options.get("wire") != "float32" else 1e-5
