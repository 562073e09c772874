"""Whether an error was the right answer: a clear one of a specific kind, for a reason that the draw has."""

import re
from collections.abc import Callable, Iterator

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError, FedPCAError
from fedpca_flwr.simulations.hunt.draw import Draw, of_kernel
from fedpca_flwr.simulations.hunt.oracle import EPS, Long, Truth
from fedpca_flwr.simulations.hunt.running import HangError

Finding = tuple[str, str]
"""A kind, and what was found."""

SPECIFIC = (ConfigError, DataError, ContractError, DisclosureError)

LARGEST, SMALLEST = 1e270, 1e-270
"""Variances beyond which float64 has no squares of squares."""


def error_findings(draw: Draw, error: Exception, truth: Truth | None) -> Iterator[Finding]:
    """The findings about an error, if any."""
    text = str(error)
    if isinstance(error, HangError):
        yield "hang", text
    elif not isinstance(error, FedPCAError):
        yield "raw error", f"{type(error).__name__}: {text[:200]}"
    elif not isinstance(error, SPECIFIC):
        yield "vague error", f"{type(error).__name__}: {text[:200]}"
    elif draw.hostile:
        yield from _unclear(draw, error)
    elif not _explained(draw, error, truth):
        yield "false refusal", f"{type(error).__name__}: {text[:250]}"


def _unclear(draw: Draw, error: FedPCAError) -> Iterator[Finding]:
    """Return True if a refusal of hostile input names the input, or has another reason."""
    text = str(error)
    key = draw.hostile.partition("=")[0].replace("_", "-")
    if "=" in draw.hostile and key not in text.replace("_", "-") and not _explained(draw, error, None):
        yield "unclear refusal", f"{draw.hostile} is refused without its name: {text[:200]}"
    huge = "huge value" in draw.hostile or "marker" in draw.hostile
    named = re.search(r"huge|too large|beyond|bound|outside the range", text)
    if huge and not named and not _explained(draw, error, None):
        yield "unclear refusal", f"{draw.hostile}: {text[:200]}"


def _explained(draw: Draw, error: FedPCAError, truth: Truth | None) -> bool:
    """Return True if the draw has the reason that a text gives."""
    text = str(error)
    for pattern, holds in REASONS:
        if re.search(pattern, text):
            return holds(draw, truth)
    if not isinstance(error, ConfigError):
        return False
    set_by_draw = draw.options.keys() - {"n_components", "bound"}
    return any(re.search(rf"\b{key.replace('_', '-')}\b", text.replace("_", "-")) for key in set_by_draw)


def _no_variance(draw: Draw, truth: Truth | None) -> bool:
    """Return True if the variance is within a factor of rounding of the means or of the kernel."""
    if truth is None:
        return _constant(draw)
    if truth.unsure:
        return True
    if of_kernel(draw):
        return not truth.rank or truth.rounding > (1e-6 if draw.options.get("landmarks") else 1e-2)
    return _constant(draw)


def _none_within(draw: Draw, truth: Truth | None) -> bool:
    return all((np.asarray(party) == np.asarray(party)[0]).all() for party in draw.parties)


def _constant(draw: Draw) -> bool:
    rows = draw.first.astype(Long)
    about_means = rows if draw.options.get("center", True) is False else rows - rows.mean(axis=0)
    return bool((about_means**2).sum() <= rows.size * (100 * EPS * np.abs(rows).max()) ** 2)  # in 80 bits


def _too_many(draw: Draw, truth: Truth | None) -> bool:
    target = draw.options["n_components"]
    return not isinstance(target, str) and target > min(draw.first.shape)


def _alike_but_held_out(draw: Draw, truth: Truth | None) -> bool:
    """Return True if without a fifth of each party's rows the variance is zero, or too small for the bound."""
    rows, times = np.unique(draw.pooled, axis=0, return_counts=True)
    common = rows[times.argmax()] if draw.options.get("center", True) else np.zeros(rows.shape[1])
    peers = [int((np.asarray(party) != common).any(axis=1).sum()) for party in draw.parties]
    equal = all(few <= len(party) // 5 for few, party in zip(peers, draw.parties, strict=True))
    return equal or _constant(draw) or _coarse(draw, truth)


def _beyond(draw: Draw, truth: Truth | None) -> bool:
    size = float(np.abs(draw.pooled.astype(Long)).max()) ** 2 * draw.pooled.size
    return size > LARGEST or truth is None or float(truth.total) < SMALLEST


def _some_column_below(draw: Draw, size: float) -> bool:
    """Return True if a column of a party has values, all below a size."""
    largest = [np.abs(np.asarray(party, dtype=np.float64)).max(axis=0) for party in draw.parties]
    return any(bool(((column > 0) & (column < size)).any()) for column in largest)


def _coarse(draw: Draw, truth: Truth | None) -> bool:
    """Return True if fixed point steps of the bound are near the deviation of a column."""
    settings = draw.options
    if "bound" not in settings:
        return False
    if draw.card.split == "columns" and settings.get("scale") and not settings.get("center"):
        return bool(settings["bound"] > (1e6 if of_kernel(draw) else 1e25))  # no unit; a sum of energies has more words
    deviation = draw.pooled.astype(Long).std(axis=0)
    smallest = deviation.min() if settings.get("scale") else deviation.max()
    return bool(settings["bound"] > 1e6 * float(smallest))


def _below_rounding(draw: Draw, truth: Truth | None, times: float) -> bool:
    """Return True if the last component may be within a factor of rounding."""
    k = draw.options["n_components"]
    return truth is None or truth.unsure or bool(truth.levels[k - 1] < max(1e-11, times * truth.rounding))


REASONS: list[tuple[str, Callable[[Draw, Truth | None], bool]]] = [
    (r"the kernel of the rows is outside the range", lambda draw, truth: truth is None or truth.unsure),
    (r"in any party's columns", lambda d, t: d.options.get("variant") == "faithful" or "kernel" in d.option_names),
    (r"but those held out to choose 'mu'", _alike_but_held_out),
    (r"fixed point of secure sums does not tell these rows apart", lambda d, t: _below_rounding(d, t, 10)),
    (r"identical: there is no variance|no energy about|up to rounding", _no_variance),
    (r"the rows of each party are identical", _none_within),
    (
        r"most rows lie in one place|honest parties must be alike|was unlike the others in some step",
        lambda draw, truth: draw.card.non_mean_centre,
    ),
    (
        r"next to it (the rows of all parties have no|\d+ features have too little) variance",
        lambda d, t: _coarse(d, t) or _no_variance(d, t),
    ),
    (r"'auto', which needs center=[Tt]rue", lambda draw, truth: draw.options.get("center") is False),
    (r"'n[-_]components' is \d+.*(at most \d+ = min|but the data have \d+ features)", _too_many),
    (r"rows while some are held out", lambda d, t: d.options["n_components"] > 0.7 * len(d.pooled)),
    (r"a PCA needs at least 2", lambda draw, truth: len(draw.pooled) < 2),
    (r"outside the range of float64", _beyond),
    (r"too small to be squared", lambda draw, truth: _some_column_below(draw, 1e-140)),
    (r"a warm start needs at most features - 2", lambda d, t: d.options["n_components"] > d.pooled.shape[1] - 2),
    (r"too few for n[-_]components", lambda draw, truth: draw.options.get("max_rounds", 100) < 10),
    (r"'landmarks' = .* alike", lambda draw, truth: bool(draw.options.get("landmarks"))),
    (r"positive eigenvalues", lambda draw, truth: _below_rounding(draw, truth, 1)),
    (r"so many directions hold", lambda draw, truth: isinstance(draw.options["n_components"], float)),
    (r"'rank' goes only with|'rank' needs a number", lambda draw, truth: "rank" in draw.options),
    (r"'step' is", lambda draw, truth: draw.options.get("codec") == "shared-step"),
    (r"'edge[-_]probability' is", lambda draw, truth: draw.options.get("graph") == "erdos-renyi"),
    (r"'step[-_]size' is .* diverge", lambda draw, truth: "step_size" in draw.option_names),
    (r"'bound' is .* expected a number from 0 to", lambda draw, truth: draw.options["bound"] > 1e100),
    (r"'min[-_]parties'", lambda draw, truth: len(draw.parties) < 2),
]
"""What an error's text may say, and whether the draw has it. Else it must name an option that the draw sets."""
