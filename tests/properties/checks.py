"""What every run must hold: `findings` has a sentence for each law that a model or an error breaks."""

import logging
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.eigen import SIGN_TIE_TOLERANCE
from fedpca_flwr.maths.moments import max_row_count
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.engines import run
from tests.properties.oracle import EPS, Long, Truth, angle, truth_of
from tests.properties.strategies import Draw, Table


class Outcome(NamedTuple):
    """Model or error of a run, of which one is None, and its warnings."""

    model: PCAModel | None
    error: Exception | None
    warnings: tuple[str, ...]


def run_draw(draw: Draw) -> Outcome:
    model, error, disabled = None, None, logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(record=True) as seen, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        state = {"state": f"{folder}/state"} if "state" in draw.card.examples[0] else {}
        try:
            model = run(draw.method, draw.parties, engine="loopback", **{"min_rows": 1, **state, **draw.options})
        except Exception as problem:  # all of them are to be judged
            error = problem
        finally:
            logging.disable(disabled)
    return Outcome(model, error, tuple(f"{warning.category.__name__}: {warning.message}" for warning in seen))


def findings(draw: Draw, outcome: Outcome) -> list[str]:
    truth = truth_about(draw)
    problems, model = [f"warning: {text}" for text in outcome.warnings], outcome.model
    if model is None:
        assert outcome.error is not None
        return [*problems, *wrong_error(draw, outcome.error, truth)]
    problems += malformed(draw, model)
    checks = [wrong_squared_error]
    if comparable(draw, model, truth):
        checks += [wrong_exactness, wrong_claims, wrong_totals, wrong_eigenvalues, wrong_order, wrong_ritz_values]
        checks += [wrong_notes]
    return problems or [finding for check in checks for finding in check(draw, model, truth)]


def truth_about(draw: Draw) -> Truth:
    center, scale = option(draw, "center", True), draw.options.get("scale", False)
    center = center and draw.options.get("variant") != "faithful"
    return truth_of(draw.pooled, center=center, scale=scale, by_columns=draw.by_columns)


def option(draw: Draw, name: str, default: Any = None) -> Any:
    """Return a draw's value of an option, or the publication's with variant='paper', or the default."""
    published = draw.card.options.published if draw.options.get("variant") == "paper" else {}
    return draw.options.get(name, published.get(name, default))


def freedom(draw: Draw, model: PCAModel) -> float:
    """Return the number by which the scatter is divided for the model's variances."""
    return model.n_samples_ - (option(draw, "divisor") != "n")


def comparable(draw: Draw, model: PCAModel, truth: Truth) -> bool:
    """Return True if the data determine a model, and no noise or forgetting hides it."""
    if truth.unsure or not float(truth.total) > 0 or draw.options.get("forgetting", 1.0) < 1:
        return False
    private = draw.card.differentially_private and draw.options.get("epsilon") != "infinity"
    return not private and "taken for constant" not in " ".join(model.log["notes"])


class Claims(NamedTuple):
    """Error that a model states; angles in degrees, None where nothing is stated."""

    certificate: float | None
    certified: int  # first components that the certificate is of
    all_certified: bool
    bound: float | None
    fixed_point: float  # the largest cost of rounding in secure sums, as a share of the variance

    @property
    def at_most(self) -> float | None:
        """Smallest bound on the true angle that the model states."""
        angles = [x for x in (self.certificate if self.all_certified else None, self.bound) if x is not None]
        return min(angles, default=None)


def claims_of(model: PCAModel) -> Claims:
    """Return the claims in a model's log; a bound of 90 degrees says nothing."""
    measured = model.log["measured"]
    bounds = (measured.get(key, 90.0) for key in ("certified_angle_degrees", "angle_bound_degrees"))
    certificate, bound = (None if x >= 90 else x for x in bounds)
    certified = measured.get("certified_components", 0)
    fixed_point = measured.get("fixed_point_variance_share", measured.get("fixed_point_size_share", 0.0))
    return Claims(certificate, certified, certified == model.n_components_, bound, fixed_point)


def basis_of(model: PCAModel) -> Table:
    """Return directions (p, k): components, or scores divided by their lengths, without zeros."""
    if model.components_ is not None:
        return model.components_.T
    assert model.scores_ is not None
    positive = model.singular_values_ > 0
    return model.scores_[:, positive] / model.singular_values_[positive]


def tightness(draw: Draw, model: PCAModel | None) -> float:
    """Return the true angle by the bound that a model states: above 1 is wrong, and what is near it is sought."""
    if model is None or not comparable(draw, model, truth := truth_about(draw)):
        return 0.0
    bound = claims_of(model).at_most
    return min(2.0, truth.miss(basis_of(model)) / bound) if bound else 0.0


def malformed(draw: Draw, model: PCAModel) -> Iterator[str]:
    k, target = model.n_components_, draw.options.get("n_components")
    fixed = isinstance(target, int) and not draw.card.adapts_rank
    if fixed and k != target:
        yield f"form: {k} components instead of {target}"
    if fixed and k > min(draw.pooled.shape):
        yield f"form: {k} components of {draw.pooled.shape[0]} rows and {draw.pooled.shape[1]} features"
    main = model.scores_ if draw.by_columns else model.components_
    shape = (model.n_samples_, k) if draw.by_columns else (k, model.n_features_in_)
    if main is None or main.shape != shape:
        yield f"form: shape {None if main is None else main.shape} instead of {shape}"
        return
    numbers = [*model.explained_variance_, *model.explained_variance_ratio_, *model.singular_values_]
    noise_alone = draw.card.differentially_private and model.log["measured"].get("components_above_noise") == 0
    known = np.isnan if noise_alone else np.isfinite
    if not np.isfinite(main).all() or not known([*numbers, model.noise_variance_]).all():
        yield "form: variances of noise alone, or not finite"
        return
    if not noise_alone:
        yield from malformed_variances(draw, model)
    basis = basis_of(model)
    skew = np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() if basis.size else 0.0
    if skew > 1e-9:
        yield f"form: directions are not orthonormal: off by {skew:.1e}"
    if (basis.max(axis=0) < np.abs(basis).max(axis=0) * (1 - 2 * SIGN_TIE_TOLERANCE)).any():
        yield "form: the largest loading of a component is negative"
    counted = not (draw.card.differentially_private or "forgetting" in draw.card.options.model_fields)
    if counted and model.n_samples_ != len(draw.pooled):
        yield f"form: {model.n_samples_} rows instead of {len(draw.pooled)}"


def malformed_variances(draw: Draw, model: PCAModel) -> Iterator[str]:
    variances, ratio = model.explained_variance_, model.explained_variance_ratio_
    if (np.diff(variances) > 1e-12 * variances[0]).any() or variances.min() < 0 or model.noise_variance_ < 0:
        yield f"form: variances {variances} in no order or below zero, noise {model.noise_variance_}"
    if not np.allclose(model.singular_values_, np.sqrt(variances * freedom(draw, model)), rtol=1e-9, atol=0):
        yield "form: singular values are not the roots of variances times the divisor"
    rounded = "codec" in draw.card.options.model_fields or draw.card.differentially_private
    if not 0 <= ratio.sum() <= 1 + (np.inf if rounded else 1e-9) + claims_of(model).fixed_point:
        yield f"form: ratios add up to {ratio.sum():.12g}"


def wrong_squared_error(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Compare the squared error that the parties measured with that of the model on all rows."""
    measured = model.log["measured"].get("squared_error_per_row")
    if measured is None or draw.card.local_components or model.components_ is None:
        return
    assert model.mean_ is not None
    rows = draw.pooled.astype(Long) - model.mean_.astype(Long)
    rows = rows if model.scale_ is None else rows / model.scale_
    true = float(((rows - (rows @ model.components_.T) @ model.components_) ** 2).sum() / len(rows))
    if abs(measured - true) > 1e-5 * true + 1e-9 * float((rows**2).sum() / len(rows)):
        yield f"squared error: {measured:.6g}, is {true:.6g}"


def wrong_exactness(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Yield a finding if a model is called exact and is not, or approximate without a reason."""
    miss = truth.miss(basis_of(model))
    if model.log["exact"] and miss > 1e-6:
        yield f"exact: at least {miss:.2g} degrees off"
    k, clear = model.n_components_, draw.transport == "clear"
    rounded = option(draw, "rank") or draw.options.get("wire") == "float32"
    dense = draw.card.exact and draw.card.pools_moments and not rounded
    squares = np.append(truth.levels, 0.0) ** 2
    if clear and dense and not model.log["exact"] and squares[k - 1] - squares[k] > 1e-5:
        yield "exact: called approximate, but the gap is wide"


def wrong_claims(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Yield findings about certificates, bounds and targets: no true angle is above these, and no tie is certified."""
    claims, basis = claims_of(model), basis_of(model)
    miss, certificate, bound = truth.miss(basis), claims.certificate, claims.at_most
    if certificate is not None and claims.certified and not claims.all_certified:
        first = truth.miss(basis[:, : claims.certified])
        if first > certificate + 1e-12:
            yield f"certificate: {certificate:.2g} of the first {claims.certified}, at least {first:.2g} off"
    if bound is not None and miss > bound + 1e-12:
        yield f"certificate: {bound:.2g} degrees at most, at least {miss:.2g} off"
    target = draw.options.get("target", 0.0)
    if target and miss > target:
        yield f"target: {target:g} degrees, at least {miss:.2g} off"
    k = min(claims.certified, model.n_components_)
    if certificate is not None and k and is_tie(truth, k):
        yield f"certificate: {certificate:.2g} of components {k} and {k + 1}, which have equal variance"


def is_tie(truth: Truth, k: int) -> bool:
    """Return True if components k and k + 1 surely have equal variance above zero."""
    return k < truth.levels.size and truth.levels[k - 1] > 1e-4 and abs(truth.gap(k)) < 10 * EPS


def wrong_totals(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Compare total variance, mean and scale, which every method but a few has exactly."""
    fixed_point, ratio = claims_of(model).fixed_point, model.explained_variance_ratio_[0]
    total = float(truth.total) / freedom(draw, model)
    weights = draw.card.options.model_fields.get("party_weights")
    other_base = draw.card.variance_base and option(draw, "party_weights", weights and weights.default) != "rows"
    if not other_base and ratio > 0:
        claimed = float(model.explained_variance_[0] / ratio)
        rounding = 1e-6 if draw.options.get("wire") == "float32" else 1e-9
        if abs(claimed - total) > (rounding + fixed_point) * total:
            yield f"ratio: shares of {claimed:.12g}, but the variance is {total:.12g}"
    if model.mean_ is None or draw.card.differentially_private or draw.card.non_mean_centre:
        return
    hidden = draw.options.get("bound", 0.0) * 1e-12 if draw.transport != "clear" else 0.0
    size = np.abs(truth.mean) + np.abs(draw.pooled.astype(Long)).max(axis=0)
    if (np.abs(model.mean_ - truth.mean) > 1e-12 * size + hidden).any():
        yield f"mean: off by {float(np.abs(model.mean_ - truth.mean).max()):.2g}"
    lost = fixed_point * model.n_features_in_  # the share of a single feature
    if model.scale_ is not None and (np.abs(model.scale_ / truth.scale - 1) > 1e-8 + lost).any():
        yield f"scale: off by {float(np.abs(model.scale_ / truth.scale - 1).max()):.2g} of itself"


def wrong_eigenvalues(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Compare variances and their rest with the truth, for an exact model."""
    k, n, fixed_point = model.n_components_, model.n_samples_, claims_of(model).fixed_point
    divisor = freedom(draw, model)
    if not model.log["exact"]:
        return
    true = np.append(truth.values, np.zeros(k))[:k] / divisor
    allowed = 1e-8 * true + (100 * truth.rounding * truth.values[0] + fixed_point * truth.total) / divisor
    if (np.abs(model.explained_variance_ - true) > allowed).any():
        yield f"eigenvalues: {model.explained_variance_[:6]} instead of {true[:6].astype(float)}"
    if not draw.card.variance_base:
        rest = min(max_row_count(n), model.n_features_in_) - k  # weights tell no number of rows
        noise = float(max(0.0, truth.total / divisor - true.sum()) / rest) if rest > 0 else 0.0
        if abs(model.noise_variance_ - noise) > 1e-6 * noise + float(allowed.sum()) + 1e-9 * float(true[0]):
            yield f"noise variance: {model.noise_variance_:.9g} instead of {noise:.9g}"


def wrong_order(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Compare the first components of an exact model with the truth, where they are well separated."""
    basis = basis_of(model)
    for j in range(1, basis.shape[1] if model.log["exact"] else 0):
        if truth.gap(j) > 1e-3 and truth.levels[j - 1] > 1e-2:
            off = angle(basis[:, :j], truth.vectors[:, :j]) - truth.uncertainty(j)
            if off > 1e-4:
                yield f"order: the first {j} of {basis.shape[1]} components are {off:.2g} degrees off"


def wrong_ritz_values(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Yield a finding if a certified variance is above the truth, or below by more than the angle allows."""
    claims, k, n = claims_of(model), model.n_components_, model.n_samples_
    every = claims.certificate is not None and claims.all_certified
    if model.log["exact"] or not every or draw.options.get("warm_start") == "svd":
        return
    true = np.append(truth.values, np.zeros(k))[:k] / (n - 1)
    slack = float((200 * truth.rounding + claims.fixed_point) * truth.total) / (n - 1)
    missing = (true - model.explained_variance_).astype(float)
    limit = k * float(true[0]) * math.sin(math.radians(min(90.0, claims.at_most or 90.0))) ** 2
    if missing.min() < -slack - 1e-9 * float(true[0]):
        yield f"eigenvalues: above the true ones by {-missing.min():.2g}"
    if missing.sum() > limit + slack:
        yield f"eigenvalues: below the true ones by {missing.sum():.2g}, at most {limit:.2g} by the angle"


def wrong_notes(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[str]:
    """Yield a finding if notes on rank and ties are false, or missing from an exact model."""
    text, k = " ".join(model.log["notes"]), model.n_components_
    rank = re.search(r"(?<!either )the data have rank (\d+)", text)
    if rank and int(rank[1]) < min(k, truth.rank):
        yield f"note: says the rank is {rank[1]}, it is {truth.rank} at least"
    dense = draw.card.exact and draw.card.pools_moments and draw.transport == "clear"
    if k >= truth.levels.size or not (dense or model.log["exact"]):
        return
    if is_tie(truth, k) and not re.search(r"unique|equal variance|not determined|resolve", text):
        yield f"note: components {k} and {k + 1} have equal variance, and nothing says so"
    if truth.levels[k - 1] < 10 * EPS and not re.search(r"rank|no variance|resolve|not determined", text):
        yield f"note: component {k} has no variance, and nothing says so"


def wrong_error(draw: Draw, error: Exception, truth: Truth) -> Iterator[str]:
    text, keys = str(error), draw.options.keys() - {"n_components", "bound"}
    named = any(re.search(rf"\b{key.replace('_', '-')}\b", text.replace("_", "-")) for key in keys)
    explained = (holds(draw, truth) for pattern, holds in REASONS if re.search(pattern, text))
    if not isinstance(error, ConfigError | DataError | ContractError | DisclosureError):
        yield f"raw or vague error: {type(error).__name__}: {text[:250]}"
    elif not next(explained, named and isinstance(error, ConfigError)):
        yield f"false refusal: {type(error).__name__}: {text[:250]}"


def _constant(draw: Draw, truth: Truth) -> bool:
    """Return True if the variance is within a factor of rounding of the means."""
    rows = draw.pooled.astype(Long)
    about_means = rows if draw.options.get("center", True) is False else rows - rows.mean(axis=0)
    return bool((about_means**2).sum() <= rows.size * (100 * EPS * np.abs(rows).max()) ** 2)  # in 80 bits


def _alike_but_held_out(draw: Draw, truth: Truth) -> bool:
    """Return True if without a fifth of each party's rows the variance is zero, or too small for the bound."""
    rows, times = np.unique(draw.pooled, axis=0, return_counts=True)
    common = rows[times.argmax()] if draw.options.get("center", True) else np.zeros(rows.shape[1])
    others = [int((np.asarray(party) != common).any(axis=1).sum()) for party in draw.parties]
    equal = all(few <= len(party) // 5 for few, party in zip(others, draw.parties, strict=True))
    return equal or _constant(draw, truth) or _coarse(draw, truth)


def _beyond(draw: Draw, truth: Truth) -> bool:
    size = float(np.abs(draw.pooled.astype(Long)).max()) ** 2 * draw.pooled.size
    return size > 1e270 or float(truth.total) < 1e-270  # of which float64 has no squares of squares


def _tiny_column(draw: Draw, truth: Truth) -> bool:
    """Return True if a column of a party has values, all of them too small for their squares."""
    largest = [np.abs(np.asarray(party, dtype=np.float64)).max(axis=0) for party in draw.parties]
    return any(bool(((column > 0) & (column < 1e-140)).any()) for column in largest)


def _coarse(draw: Draw, truth: Truth) -> bool:
    """Return True if fixed point steps of the bound are near the deviation of a column."""
    options, bound = draw.options, float(draw.options.get("bound", 0.0))
    if draw.by_columns and options.get("scale") and not options.get("center"):
        return bound > 1e25  # no unit; a sum of energies has more words
    deviation = draw.pooled.astype(Long).std(axis=0)
    standardised = options.get("scale") or draw.card.incomplete  # which standardises, whatever the options are
    return bound > 0 and bound > 1e6 * float(deviation.min() if standardised else deviation.max())


REASONS: list[tuple[str, Callable[[Draw, Truth], bool]]] = [
    (r"the kernel of the rows is outside the range", lambda draw, truth: truth.unsure),
    (
        r"in any party's columns",
        lambda d, t: d.options.get("variant") == "faithful" or "kernel" in d.card.options.model_fields,
    ),
    (r"but those held out to choose 'mu'", _alike_but_held_out),
    (r"identical: there is no variance|no energy about|up to rounding", lambda d, t: t.unsure or _constant(d, t)),
    (r"the rows of each party are identical", lambda d, t: all((X[:1] == X).all() for X in map(np.asarray, d.parties))),
    (
        r"most rows lie in one place|honest parties must be alike|was unlike the others in some step",
        lambda draw, truth: draw.card.non_mean_centre,
    ),
    (
        r"next to it (the rows of all parties have no|\d+ features have too little) variance",
        lambda d, t: t.unsure or _constant(d, t) or _coarse(d, t),
    ),
    (r"'auto', which needs center=[Tt]rue", lambda draw, truth: draw.options.get("center") is False),
    (
        r"'n[-_]components' is \d+.*(at most \d+ = min|but the data have \d+ features)",
        lambda d, t: not isinstance(k := d.options["n_components"], str) and k > min(d.pooled.shape),
    ),
    (r"rows while some are held out", lambda d, t: d.options["n_components"] > 0.7 * len(d.pooled)),
    (r"a PCA needs at least 2", lambda draw, truth: len(draw.pooled) < 2),
    (r"outside the range of float64", _beyond),
    (r"too small to be squared", _tiny_column),
    (r"a warm start needs at most features - 2", lambda d, t: d.options["n_components"] > d.pooled.shape[1] - 2),
    (r"too few for n[-_]components", lambda draw, truth: draw.options.get("max_rounds", 100) < 10),
    (r"so many directions hold", lambda draw, truth: isinstance(draw.options["n_components"], float)),
    (r"'rank' goes only with|'rank' needs a number", lambda draw, truth: bool(option(draw, "rank"))),
    (r"'step' is", lambda draw, truth: draw.options.get("codec") == "shared-step"),
    (r"'edge[-_]probability' is", lambda draw, truth: draw.options.get("graph") == "erdos-renyi"),
    (r"'step[-_]size' is .* diverge", lambda draw, truth: "step_size" in draw.card.options.model_fields),
    (r"'bound' is .* expected a number from 0 to", lambda draw, truth: draw.options["bound"] > 1e100),
    (r"'min[-_]parties'", lambda draw, truth: len(draw.parties) < 2),
]
"""What an error's text may say, and whether the draw has it. Else it must name an option that the draw sets."""
