"""What every model must hold, whatever made it; `findings` joins all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpca_flwr.model.model import PCAModel

from .claims import claims_of
from .draw import Draw, of_kernel, vertical
from .equal_moments import unequal_moments
from .exactness import basis_of, truth_findings
from .oracle import Long, Truth, truth_of, truth_of_kernel
from .promises import feature_findings
from .refusals import Finding, error_findings
from .running import Outcome


def findings(draw: Draw, outcome: Outcome) -> list[Finding]:
    """All that is wrong with what came of a draw."""
    truth = truth_about(draw)
    found = [("warning", text) for text in outcome.warned]
    if outcome.error is not None:
        return found + list(error_findings(draw, outcome.error, truth))
    model = outcome.model
    assert model is not None
    found += malformed(draw, model)
    if "NaN" in draw.hostile and draw.card.incomplete:
        return found  # a missing value, of which complete rows tell no truth
    if truth is None or "=" in draw.hostile:
        return found + [("accepted", f"{draw.hostile} was not refused")]
    if found or draw.card.after:
        return found
    found += [*truth_findings(draw, model, truth), *wrong_squared_error(draw, model, truth)]
    return found + [*feature_findings(draw, model, truth), *unequal_moments(draw, model, truth)]


def truth_about(draw: Draw) -> Truth | None:
    """The truth, or None where what is hostile leaves none."""
    if draw.hostile and "marker" not in draw.hostile and "huge" not in draw.hostile:
        return None
    own = draw.options
    center, scale = own.get("center", True), own.get("scale", False)
    if not of_kernel(draw):
        center = center and own.get("variant") != "faithful"
        return truth_of(draw.pooled, center=center, scale=scale, by_columns=vertical(draw.method))
    return truth_of_kernel(
        draw.pooled,
        kernel=own.get("kernel", "rbf"),
        gamma=own.get("gamma", 0.0),
        coef0=own.get("coef0", 1.0),
        degree=own.get("degree", 3),
        center=own.get("center", False),
        scale=scale,
    )


def malformed(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Shapes, order, signs, orthonormality: what needs no truth."""
    by_columns = vertical(draw.method)
    k, variances, ratio = model.n_components_, model.explained_variance_, model.explained_variance_ratio_
    wanted, private = draw.options.get("n_components"), draw.card.differentially_private
    fixed = isinstance(wanted, int) and draw.options.get("rank_rule") != "paper" and "=" not in draw.hostile
    if fixed and k != wanted and not draw.card.after:
        yield "form", f"{k} components instead of {wanted}"
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
    if draw.card.after:
        return
    if not unknown:
        yield from malformed_variances(draw, model)
    basis = basis_of(model)
    skew = np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() if basis.size else 0.0
    if skew > 1e-9:
        yield "form", f"directions are not orthonormal: off by {skew:.1e}"
    if (basis.max(axis=0) < np.abs(basis).max(axis=0) * (1 - 1e-9)).any():
        yield "form", "the largest loading of a component is negative"
    if not private and not draw.hostile and "forgetting" not in draw.known and model.n_samples_ != len(draw.pooled):
        yield "form", f"{model.n_samples_} rows instead of {len(draw.pooled)}"


def malformed_variances(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Order, signs and sums of variances that are known."""
    variances, ratio = model.explained_variance_, model.explained_variance_ratio_
    if (np.diff(variances) > 1e-12 * variances[0]).any() or variances.min() < 0 or model.noise_variance_ < 0:
        yield "form", f"variances {variances} in no order or below zero, noise {model.noise_variance_}"
    if not np.allclose(model.singular_values_, np.sqrt(variances * (model.n_samples_ - 1)), rtol=1e-9, atol=0):
        yield "form", "singular values are not the roots of (n - 1) variances"
    rounded = "codec" in draw.known or draw.card.differentially_private or draw.options.get("landmarks")
    if not 0 <= ratio.sum() <= 1 + (np.inf if rounded else 1e-9) + claims_of(model).fixed_point:
        yield "form", f"ratios add up to {ratio.sum():.12g}"


def wrong_squared_error(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """The squared error that the parties measured, against that of the model on all rows."""
    measured = claims_of(model).squared_error
    if measured is None or draw.card.own_components or draw.earlier or model.components_ is None:
        return
    assert model.mean_ is not None
    rows = draw.pooled.astype(Long) - model.mean_.astype(Long)
    if model.scale_ is not None:
        rows = rows / model.scale_
    left = rows - (rows @ model.components_.T) @ model.components_
    true = float((left**2).sum() / len(rows))
    allowed = 1e-5 * true + 1e-9 * float((rows**2).sum() / len(rows))
    if abs(measured - true) > allowed:
        yield "squared error", f"told {measured:.6g}, is {true:.6g}"
