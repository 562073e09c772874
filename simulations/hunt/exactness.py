"""A model against the truth: angles, eigenvalues, shares, means, certificates, and what it tells of its own error."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import max_row_count
from fedpca_flwr.model.measurements import measurement_lines
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.hunt.draw import Draw
from fedpca_flwr.simulations.hunt.oracle import EPS, Truth, angle
from fedpca_flwr.simulations.hunt.refusals import Finding


@dataclass(frozen=True)
class Claims:
    """Error that a model states; angles in degrees, None where nothing is stated."""

    certificate: float | None
    certified: int
    """The certificate is of so many of the first components."""
    every: bool
    """Whether these are all."""
    bound: float | None
    squared_error: float | None
    """Per row, as the parties measured it."""
    fixed_point: float
    """What rounding of secure sums may cost, as a share of the variance."""
    above_noise: int | None
    """Components that a private run says are no noise."""

    @property
    def at_most(self) -> float | None:
        """Smallest bound on the true angle that the model states."""
        dense = self.certificate if self.every else None
        angles = [angle for angle in (dense, self.bound) if angle is not None]
        return min(angles) if angles else None


def claims_of(model: PCAModel) -> Claims:
    measured = model.log["measured"]
    certified = measured.get("certified_components", 0)
    return Claims(
        certificate=_angle(measured.get("certified_angle_degrees")),
        certified=certified,
        every=certified == model.n_components_,
        bound=_angle(measured.get("angle_bound_degrees")),
        squared_error=measured.get("squared_error_per_row"),
        fixed_point=measured.get("fixed_point_variance_share", measured.get("fixed_point_size_share", 0.0)),
        above_noise=measured.get("components_above_noise"),
    )


def _angle(bound: float | None) -> float | None:
    """A bound that says something."""
    return None if bound is None or bound >= 90 else bound


EXACT = 1e-6
"""Degrees from the determined subspace up to which a model may be called exact."""


def truth_findings(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """The findings about a model whose form is right."""
    if truth.unsure or not float(truth.total) > 0 or draw.options.get("forgetting", 1.0) < 1:
        return
    if "taken for constant" in " ".join(model.log["notes"]):
        return
    claims, exact = claims_of(model), model.log["exact"]
    miss = truth.miss(basis_of(model))
    if draw.card.differentially_private and draw.options.get("epsilon") != "infinity":
        return
    if exact and miss > EXACT:
        yield "exact", f"exact, but at least {miss:.2g} degrees off{_why(model)}"
    yield from needlessly_approximate(draw, model, truth)
    if claims.certificate is not None and claims.certified and not claims.every:
        first = truth.miss(basis_of(model)[:, : claims.certified])
        if first > claims.certificate + 1e-12:
            keywords = f"told {claims.certificate:.2g} of the first {claims.certified}"
            yield "certificate", f"{keywords}, at least {first:.2g} off"
    yield from exceeded_claims(draw, claims, miss)
    yield from certified_ties(model, truth, claims)
    yield from wrong_totals(draw, model, truth, claims)
    yield from wrong_notes(model, truth, claims)
    if exact:
        yield from wrong_eigenvalues(draw, model, truth, claims)
        yield from wrong_order(model, truth)
    elif claims.certificate is not None and claims.every and draw.options.get("warm_start") != "svd":
        yield from wrong_ritz_values(model, truth, claims)


def needlessly_approximate(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """Yield a finding if an exact method is called approximate without a reason."""
    k, clear = model.n_components_, draw.transport == "clear"
    rounded = draw.options.get("rank") or draw.options.get("wire") == "float32"
    dense = draw.card.exact and draw.card.pools_moments and not rounded
    squares = np.append(truth.levels, 0.0) ** 2
    if clear and dense and not model.log["exact"] and squares[k - 1] - squares[k] > 1e-5:
        yield "exact", "called approximate, but the gap is wide"


def basis_of(model: PCAModel) -> Array:
    """Return directions (p, k): components, or scores divided by their lengths, without zeros."""
    if model.components_ is not None:
        return model.components_.T
    assert model.scores_ is not None
    stored = model.singular_values_ > 0
    return model.scores_[:, stored] / model.singular_values_[stored]


def exceeded_claims(draw: Draw, claims: Claims, miss: float) -> Iterator[Finding]:
    """Certificates, bounds and forecasts: no true angle is above what is claims."""
    smallest = claims.at_most
    if smallest is not None and miss > smallest + 1e-12:
        yield "certificate", f"told {smallest:.2g} degrees at most, at least {miss:.2g} off"
    target = draw.options.get("target", 0.0)
    if target and miss > target:
        yield "target", f"wanted {target:g} degrees, got at least {miss:.2g}"


def certified_ties(model: PCAModel, truth: Truth, claims: Claims) -> Iterator[Finding]:
    """Yield a finding if components are certified that the data do not determine because of a tie."""
    k = min(claims.certified, model.n_components_)
    if claims.certificate is not None and k and tied(truth, k):
        yield "certificate", f"told {claims.certificate:.2g} of components {k} and {k + 1}, which have equal variance"


def tied(truth: Truth, k: int) -> bool:
    """Return True if components k and k + 1 surely have equal variance above zero."""
    return k < truth.levels.size and truth.levels[k - 1] > 1e-4 and abs(truth.gap(k)) < 10 * EPS


def wrong_totals(draw: Draw, model: PCAModel, truth: Truth, claims: Claims) -> Iterator[Finding]:
    """Total variance, mean and scale, which every method but a few has exactly."""
    settings = draw.card.variance_base and draw.options.get("party-weights") != "rows"
    total = float(truth.total) / (model.n_samples_ - 1)
    ratio = model.explained_variance_ratio_[0]
    if not settings and ratio > 0:
        claimed = float(model.explained_variance_[0] / ratio)
        rounding = 1e-6 if draw.options.get("wire") == "float32" else 1e-9
        if abs(claimed - total) > (rounding + claims.fixed_point) * total:
            yield "ratio", f"shares of {claimed:.12g}, but the variance is {total:.12g}"
    if model.mean_ is None or draw.card.differentially_private or draw.card.non_mean_centre:
        return
    hidden = draw.options.get("bound", 0.0) * 1e-12 if draw.transport != "clear" else 0.0
    size = np.abs(truth.mean) + np.abs(draw.pooled.astype(np.longdouble)).max(axis=0)
    if (np.abs(model.mean_ - truth.mean) > 1e-12 * size + hidden).any():
        yield "mean", f"off by {float(np.abs(model.mean_ - truth.mean).max()):.2g}"
    lost = claims.fixed_point * model.n_features_in_  # the share of a single feature
    if model.scale_ is not None and (np.abs(model.scale_ / truth.scale - 1) > 1e-8 + lost).any():
        yield "scale", f"off by {float(np.abs(model.scale_ / truth.scale - 1).max()):.2g} of itself"


def wrong_eigenvalues(draw: Draw, model: PCAModel, truth: Truth, claims: Claims) -> Iterator[Finding]:
    """Compare variances and shares of an exact model with the truth."""
    k, n = model.n_components_, model.n_samples_
    true = np.append(truth.values, np.zeros(k))[:k] / (n - 1)
    allowed = 1e-8 * true + (100 * truth.rounding * truth.values[0] + claims.fixed_point * truth.total) / (n - 1)
    if (np.abs(model.explained_variance_ - true) > allowed).any():
        problems, target = (
            np.array2string(values[:6], precision=6, separator=", ")
            for values in (model.explained_variance_, true.astype(float))
        )
        yield "eigenvalues", f"{problems} instead of {target}"
    if not draw.card.variance_base:
        rest = min(max_row_count(n), model.n_features_in_) - k  # weights tell no number of rows
        noise = float(max(0.0, truth.total / (n - 1) - true.sum()) / rest) if rest > 0 else 0.0
        if abs(model.noise_variance_ - noise) > 1e-6 * noise + float(allowed.sum()) + 1e-9 * float(true[0]):
            yield "noise variance", f"{model.noise_variance_:.9g} instead of {noise:.9g}"


def wrong_order(model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """Compare the first components of an exact model with the truth, where they are well separated."""
    basis = basis_of(model)
    for j in range(1, basis.shape[1]):
        if truth.gap(j) > 1e-3 and truth.levels[j - 1] > 1e-2:
            off = angle(basis[:, :j], truth.vectors[:, :j]) - truth.uncertainty(j)
            if off > 1e-4:
                yield "order", f"the first {j} of {basis.shape[1]} components are {off:.2g} degrees off"
                return


def wrong_ritz_values(model: PCAModel, truth: Truth, claims: Claims) -> Iterator[Finding]:
    """Yield a finding if a certified variance is above the truth, or below by more than the angle allows."""
    k, n = model.n_components_, model.n_samples_
    true = np.append(truth.values, np.zeros(k))[:k] / (n - 1)
    slack = float((200 * truth.rounding + claims.fixed_point) * truth.total) / (n - 1)
    missing = (true - model.explained_variance_).astype(float)
    limit = k * float(true[0]) * math.sin(math.radians(min(90.0, claims.at_most or 90.0))) ** 2
    if missing.min() < -slack - 1e-9 * float(true[0]):
        yield "eigenvalues", f"above the true ones by {-missing.min():.2g}"
    if missing.sum() > limit + slack:
        yield "eigenvalues", f"below the true ones by {missing.sum():.2g}, at most {limit:.2g} by the angle told"


def wrong_notes(model: PCAModel, truth: Truth, claims: Claims) -> Iterator[Finding]:
    """Yield a finding if notes on rank and ties are false, or missing from an exact model."""
    text, k = " ".join(model.log["notes"]), model.n_components_
    problems = re.search(r"(?<!either )the data have rank (\d+)", text)
    if problems and int(problems[1]) < min(k, truth.rank):
        yield "note", f"says the rank is {problems[1]}, it is {truth.rank} at least"
    if not model.log["exact"] or k >= truth.levels.size:
        return
    if tied(truth, k) and not re.search(r"unique|equal variance|not determined|resolve", text):
        yield "note", f"components {k} and {k + 1} have equal variance, and nothing says so"
    lacking = truth.levels[k - 1] < 10 * EPS
    if lacking and not re.search(r"rank|no variance|resolve|not determined", text):
        yield "note", f"component {k} has no variance, and nothing says so"


def _why(model: PCAModel) -> str:
    claimed = [text for line, text in measurement_lines(model) if line == "certified angle"]
    doubts = [note[:90] for note in model.log["notes"] if re.search(r"rank|unique|resolve|stopped", note)]
    return "".join(f" ({text})" for text in [*claimed, *doubts])
