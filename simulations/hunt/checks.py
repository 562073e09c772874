"""What every model must hold, whatever made it; `findings` joins all.

Of single features these are names, sizes and units; and equal moments must have equal answers: a run on rows that are
turned about their means is held against the run on the rows drawn.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedpca_flwr.maths.eigen import SIGN_TIE_TOLERANCE
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.hunt.draw import Draw, of_kernel, vertical
from fedpca_flwr.simulations.hunt.exactness import basis_of, claims_of, truth_findings
from fedpca_flwr.simulations.hunt.oracle import EPS, Long, Truth, truth_of, truth_of_kernel
from fedpca_flwr.simulations.hunt.refusals import Finding, error_findings
from fedpca_flwr.simulations.hunt.running import Outcome, framed, names_of, run_draw


def findings(draw: Draw, outcome: Outcome) -> list[Finding]:
    """Return all findings about the outcome of a draw."""
    truth = truth_about(draw)
    problems = [("warning", text) for text in outcome.warned]
    if outcome.error is not None:
        return problems + list(error_findings(draw, outcome.error, truth))
    model = outcome.model
    assert model is not None
    problems += malformed(draw, model)
    if "NaN" in draw.hostile and draw.card.incomplete:
        return problems  # a missing value, of which complete rows tell no truth
    if truth is None or "=" in draw.hostile:
        return problems + [("accepted", f"{draw.hostile} was not refused")]
    if problems or draw.card.loadings_source:
        return problems
    problems += [*truth_findings(draw, model, truth), *wrong_squared_error(draw, model)]
    if not vertical(draw.method):
        problems += [*wrong_names(draw, model), *tiny_scales(draw, model, truth), *wrong_units(draw, model)]
    return problems + list(unequal_moments(draw, model, truth))


def truth_about(draw: Draw) -> Truth | None:
    """The truth, or None where what is hostile leaves none."""
    if draw.hostile and "marker" not in draw.hostile and "huge" not in draw.hostile:
        return None
    settings = draw.options
    center, scale = settings.get("center", True), settings.get("scale", False)
    if not of_kernel(draw):
        center = center and settings.get("variant") != "faithful"
        keywords = {"center": center, "scale": scale, "indicators": len(draw.indicators)}
        return truth_of(draw.pooled, **keywords, by_columns=vertical(draw.method))
    return truth_of_kernel(
        draw.pooled,
        kernel=settings.get("kernel", "rbf"),
        gamma=settings.get("gamma", 0.0),
        coef0=settings.get("coef0", 1.0),
        degree=settings.get("degree", 3),
        center=settings.get("center", False),
        scale=scale,
    )


def malformed(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Shapes, order, signs, orthonormality: what needs no truth."""
    by_columns = vertical(draw.method)
    k, variances, ratio = model.n_components_, model.explained_variance_, model.explained_variance_ratio_
    target, private = draw.options.get("n_components"), draw.card.differentially_private
    fixed = isinstance(target, int) and draw.options.get("rank_rule") != "paper" and "=" not in draw.hostile
    if fixed and k != target and not draw.card.loadings_source:
        yield "form", f"{k} components instead of {target}"
    main = model.scores_ if by_columns else model.components_
    shape = (model.n_samples_, k) if by_columns else (k, model.n_features_in_)
    if main is None or main.shape != shape:
        yield "form", f"shape {None if main is None else main.shape} instead of {shape}"
        return
    numbers = np.concatenate([variances, ratio, model.singular_values_, [model.noise_variance_]])
    unknown = private and claims_of(model).above_noise == 0
    if not np.isfinite(main).all() or not (np.isnan if unknown else np.isfinite)(numbers).all():
        yield "form", "variances of noise alone are told" if unknown and np.isfinite(main).all() else "not finite"
        return
    if draw.card.loadings_source:
        return
    if not unknown:
        yield from malformed_variances(draw, model)
    basis = basis_of(model)
    skew = np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() if basis.size else 0.0
    if skew > 1e-9:
        yield "form", f"directions are not orthonormal: off by {skew:.1e}"
    if (basis.max(axis=0) < np.abs(basis).max(axis=0) * (1 - 2 * SIGN_TIE_TOLERANCE)).any():
        yield "form", "the largest loading of a component is negative"
    if (
        not private
        and not draw.hostile
        and "forgetting" not in draw.option_names
        and model.n_samples_ != len(draw.pooled)
    ):
        yield "form", f"{model.n_samples_} rows instead of {len(draw.pooled)}"


def malformed_variances(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Order, signs and sums of variances that are known."""
    variances, ratio = model.explained_variance_, model.explained_variance_ratio_
    if (np.diff(variances) > 1e-12 * variances[0]).any() or variances.min() < 0 or model.noise_variance_ < 0:
        yield "form", f"variances {variances} in no order or below zero, noise {model.noise_variance_}"
    if not np.allclose(model.singular_values_, np.sqrt(variances * (model.n_samples_ - 1)), rtol=1e-9, atol=0):
        yield "form", "singular values are not the roots of (n - 1) variances"
    rounded = "codec" in draw.option_names or draw.card.differentially_private or draw.options.get("landmarks")
    if not 0 <= ratio.sum() <= 1 + (np.inf if rounded else 1e-9) + claims_of(model).fixed_point:
        yield "form", f"ratios add up to {ratio.sum():.12g}"


def wrong_squared_error(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """The squared error that the parties measured, against that of the model on all rows."""
    measured = claims_of(model).squared_error
    if measured is None or draw.card.local_components or draw.earlier or model.components_ is None:
        return
    assert model.mean_ is not None
    rows = draw.pooled.astype(Long) - model.mean_.astype(Long)
    if model.scale_ is not None:
        rows = rows / model.scale_
    residual = rows - (rows @ model.components_.T) @ model.components_
    true = float((residual**2).sum() / len(rows))
    allowed = 1e-5 * true + 1e-9 * float((rows**2).sum() / len(rows))
    if abs(measured - true) > allowed:
        yield "squared error", f"told {measured:.6g}, is {true:.6g}"


def unequal_moments(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """Other variances, or an error, of rows with the same moments."""
    if draw.turn is None or truth.unsure or not float(truth.total) > 0:
        return
    if "taken for constant" in " ".join(model.log["notes"]):
        return
    rerun = run_draw(turned(draw))
    if rerun.model is None:
        yield "equal moments", f"refused of turned rows: {type(rerun.error).__name__}: {str(rerun.error)[:200]}"
        return
    gap = float(np.abs(rerun.model.explained_variance_ - model.explained_variance_).max())
    slack = 1e-9 if draw.options.get("wire") != "float32" else 1e-5
    allowed = rounding_of(draw, truth) + slack * float(model.explained_variance_[0])
    if "codec" in draw.option_names:
        allowed += sum(correction_of(draw, item) for item in (model, rerun.model))
    if gap > allowed:
        yield "equal moments", f"variances of turned rows are {gap:.3g} apart, by rounding {allowed:.3g} at most"


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
    moved: NDArray[np.longdouble] = mean + basis @ (inside @ (basis.T @ (rows - mean)))
    return moved.astype(np.float64)


def rounding_of(draw: Draw, truth: Truth) -> float:
    """Return how much rounding of each value of the rows can move a variance, in the model's units."""
    sizes = draw.pooled.astype(Long) / truth.scale
    moved = 4 * EPS * float(np.sqrt((sizes**2).sum()))
    first = float(np.sqrt(truth.values[0]))
    return (2 * first * moved + moved**2) * 10 / (len(draw.pooled) - 1)


def correction_of(draw: Draw, model: PCAModel) -> float:
    """Return the bound on the error of a variance after corrections: the measured error, by Weyl's inequality.

    A correction is about leading eigenvectors of what the server holds. Beyond the rank of the codec they belong to
    one repeated eigenvalue, its filler or zero, so the last digit of a mean turns them, and the correction's few bits
    round other products. The encodings before are compared without this, in draws that have no correction.
    """
    if not (draw.options.get("corrections") or draw.options.get("tolerance")):
        return 0.0
    return float(model.log["measured"]["scatter_error_variance_share"]) * model.total_variance


TINY = 1e-12
"""Of a column's largest value: a scale below makes rounding as large as what is there."""

UNLIKE = re.compile("sorted|shifted|heavy tails|one-hot|indicators|constant features|single rows")
"""Data whose parties may have means and deviations of unlike sizes, or a few rows that do."""


def wrong_names(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Yield a finding unless the model stores the names of data frames, each once."""
    names, target = model.feature_names_in_, names_of(model.n_features_in_ - len(draw.indicators)) + draw.indicators
    if framed(draw) and (names is None or list(names) != target):
        yield "names", f"{None if names is None else list(names)} of data frames with {target}"


def tiny_scales(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """Yield a finding if a feature is divided by rounding, in the model or in scores of new rows."""
    if model.scale_ is None or model.mean_ is None or model.components_ is None or draw.card.differentially_private:
        return
    rows = draw.pooled.astype(Long)
    still, largest = (rows == rows[0]).all(axis=0), np.abs(rows).max(axis=0)
    deviation = np.sqrt(((rows - rows.mean(axis=0)) ** 2).mean(axis=0))
    keywords = (model.scale_ < TINY * largest) & (model.scale_ != 1) & (still | (deviation > 10 * TINY * largest))
    keywords |= ~(model.scale_ > 0)
    if keywords.any():
        yield "tiny scale", f"{model.scale_[keywords]} of features as large as {largest[keywords].astype(float)}"
    if truth.unsure or not draw.options.get("scale") or draw.card.non_mean_centre:
        return
    moved = np.where(still, np.where(largest > 0, largest, 1) / 1000, 0)
    new = (rows[::-1] + moved).astype(np.float64)
    lengths = np.sqrt((((new.astype(Long) - truth.mean) / np.where(still, 1, deviation)) ** 2).sum(axis=1))
    scores = (new - model.mean_) / model.scale_ @ model.components_.T
    limit = 100 * float(lengths.max() + 1)
    if not np.isfinite(scores).all() or np.abs(scores).max() > limit:
        yield "new rows", f"scores up to {np.abs(scores).max():.3g} of rows {limit / 100:.3g} long in the true scale"


def wrong_units(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Yield a finding unless exactly the feature in another unit is named, and features as different as that."""
    if draw.orders:
        return
    notes = [note for note in model.log["notes"] if "in another unit than the others:" in note]
    problems = {(int(unit["party"].rpartition(" ")[2]), unit["feature"]) for unit in model.log.get("other_units", [])}
    if draw.unit is not None:
        place, feature = draw.unit
        place = 1 if len(draw.parties) == 2 else place  # of two none is the odd one
        text = f"{place} seems to have features in another unit than the others: feature {feature + 1} (mean"
        if problems != {(place, feature)} or not any(note.partition(" ")[2].startswith(text) for note in notes):
            yield "units", f"told {sorted(problems)} of {(place, feature)}: {notes}"
        return
    if bool(notes) != bool(problems):
        yield "units", f"told {sorted(problems)}, but noted {notes}"
    honest = not UNLIKE.search(draw.description) and not draw.hostile
    for place, feature in sorted(problems):
        if honest or not _as_unlike(draw, place, feature):
            yield "units", f"party {place} is said to have feature {feature} in another unit, and has it not"


def _as_unlike(draw: Draw, place: int, feature: int) -> bool:
    """Return True if mean and deviation are 4.9 times those of more than half of the parties, or a 4.9th."""
    parties = draw.parties
    if draw.earlier:  # to which they were appended
        parties = [np.vstack(pair) for pair in zip(draw.earlier, draw.parties, strict=True)]
    columns = [np.asarray(party)[:, feature].astype(Long) for party in parties]
    sizes = np.array([[abs(column.mean()), column.std()] for column in columns if len(column) >= 10], dtype=np.float64)
    settings = np.array([abs(columns[place].mean()), columns[place].std()], dtype=np.float64)
    with np.errstate(all="ignore"):
        gap = np.log(sizes / settings)
    distant = (np.abs(gap).min(axis=1) > np.log(4.9)) & (np.abs(gap[:, 0] - gap[:, 1]) < np.log(2.1))
    return bool(distant.sum() > (len(sizes) - 1) / 2 and len(columns[place]) >= 10)
