"""`Solution`: the leading components of pooled moments, what rounding leaves of them, and what cannot be solved.

Every method makes its model of a `Solution`, and every model says by `certainty` how far float64 resolves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths.adjustment import Adjustment
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import EXACT, Eigenpairs, leading_eigenpairs, resolution
from fedpca_flwr.maths.inference import left_out_directions, null_band, parallel_analysis
from fedpca_flwr.maths.moments import Moments, certainly_varying, most_rows, unit_of, unpack

# ways to resolve smaller components, for a note
SCALED, FACTORS = "scale=true", "the method 'qr-pca' with whole factors"


class Certainty(NamedTuple):
    """How certain the components of a model are."""

    # whether the method is exact, and rounding turns the components by no more than `EXACT`: no basis of tied
    # components is exact, since the data determine none
    exact: bool
    notes: list[str]
    resolved: int | None = None  # how many components are above rounding, where not all are: a certificate is of these


def certainty(pairs: Eigenpairs, *, exact: bool, ways: Sequence[str]) -> Certainty:
    """How certain the leading components are, of a method that is exact or not; ``ways`` are such as `SCALED`."""
    k, limit = pairs.values.size, resolution(pairs)
    most = k if pairs.rank is None else min(k, pairs.rank)
    found = int((pairs.values > limit.floor).sum())
    advice = f"; {' or '.join(ways)} resolves more" if ways else ""
    if found < most:
        return Certainty(False, [_unresolved(pairs, found, limit.floor) + advice], found)
    if most < k:
        text = f"the data have rank {most}: components {most + 1} to {k} have no variance and arbitrary directions"
        return Certainty(exact and limit.angle <= EXACT, [text])
    if limit.angle == 90:
        text = f"components {k} and {k + 1} have equal variance: the {k}-dimensional subspace is not unique"
        return Certainty(False, [text])
    if exact and limit.angle > EXACT:
        text = f"rounding may turn the components by {limit.angle:.1g} degrees: the gap after the last variance is too "
        return Certainty(False, [f"{text}small beside the first{advice}"])
    return Certainty(exact, [])


def _unresolved(pairs: Eigenpairs, found: int, floor: float) -> str:
    k, share = pairs.values.size, floor / max(float(pairs.values[0]), np.finfo(np.float64).tiny)
    which = f"component {k} is" if found + 1 == k else f"components {found + 1} to {k} are"
    return (
        f"{which} below what can be resolved beside the first component ({share:.1g} of its variance): no variance is "
        "left there, or the directions are noise of rounding"
    )


ALL_ROWS = "the rows of all parties"  # the rows that a refusal names, unless a method names others


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The leading components that a method found, and what makes a model of them."""

    pairs: Eigenpairs  # leading eigenpairs of the scatter of all rows
    mean: Array  # (d,), what is subtracted from a row
    total: float  # trace of the scatter
    rows: int | float  # of all parties; the sum of their weights, a float, where they have some
    scale: Array | None = None  # (d,), what each centred feature is divided by
    adjustment: Adjustment | None = None  # what is taken out of centred rows before that
    notes: Sequence[str] = ()  # what a reader of the model must know
    # numbers by the names of `fedpca_flwr.model.measurements`
    measured: Mapping[str, float] = field(default_factory=dict)
    evidence: Any = None  # what the statistics say of it (`fedpca_flwr.questions.rows_run.Evidence`)

    def extended(self, *, notes: Sequence[str] = (), measured: Mapping[str, float] | None = None) -> Solution:
        """The same solution with more notes and measurements."""
        return replace(self, notes=[*self.notes, *notes], measured={**self.measured, **(measured or {})})


def solve(
    moments: Moments,
    diagonal: Array,
    *,
    n_components: int | float | str,
    center: bool,
    scale: bool,
    indicators: int = 0,
) -> Solution:
    """The solution for the scatter in ``moments``, whose count and mean are the pooled ones.

    Features are scaled by the ``diagonal`` (d,) of the pooled scatter, the last ``indicators`` of them by `unit_of`.
    The variance is a share of it: that of ``moments`` for an exact method. Components are so many, a fraction of the
    variance that they must exceed, or with "auto" as many as stand out of unrelated features. A `ConfigError` or a
    `DataError` where there is none.
    """
    check_components(n_components, moments.count, moments.n_features)
    if n_components == "auto" and not center:
        raise ConfigError("'n_components' is 'auto', which needs center=True: it is about variances")
    deviation = unit_of(diagonal, moments.count, moments.mean, indicators) if scale else None
    rank = min(most_rows(moments.count) - center, certainly_varying(diagonal, moments.mean) + (not center))
    if not center:
        diagonal = diagonal + moments.count * (moments.mean + moments.remainder) ** 2
        moments = moments.about_zero()
    matrix = unpack(moments.scatter, moments.n_features)
    if deviation is not None:
        matrix /= deviation
        matrix /= deviation[:, None]
    unit = 1.0 if deviation is None else deviation
    diagonal = diagonal / unit**2
    require_variance(diagonal, moments.count, moments.mean / unit)
    total = float(diagonal.sum())
    notes = []
    if n_components == "auto":
        values = eigvalsh(matrix)[::-1] / (moments.count - 1)
        found = parallel_analysis(values, null_band(diagonal / (moments.count - 1), int(moments.count)))
        n_components = max(1, found)
        notes = [f"n-components='auto': {found or 'none'} of {diagonal.size} stand out of unrelated features (Horn)"]
    assert not isinstance(n_components, str)
    pairs = leading_eigenpairs(matrix, n_components, total=total).of_rank(rank)
    directions = left_out_directions(matrix, pairs)
    return Solution(
        pairs=pairs,
        mean=moments.mean,
        total=total,
        rows=moments.count,
        scale=deviation,
        notes=notes,
        measured={} if directions is None else {"left_out_directions": directions},
    )


def check_components(wanted: int | float | str, rows: float, features: int) -> None:
    """Refuse more components than so many rows and features have, and a single row.

    By a `ConfigError` and a `DataError`.
    """
    count = isinstance(wanted, int | np.integer) and not isinstance(wanted, bool) and wanted >= 1
    share = isinstance(wanted, float | np.floating) and 0 < wanted < 1
    if not (count or share or wanted == "auto"):
        raise ConfigError(
            f"'n-components' is {value_text(wanted)}, expected a number from 1, a fraction between 0 and 1, or 'auto'"
        )
    most = min(most_rows(rows), features)
    if rows < 2:
        raise DataError(f"all parties together have {rows} row; a PCA needs at least 2")
    if not isinstance(wanted, str) and wanted > most:
        raise ConfigError(
            f"run-config: 'n-components' is {wanted}{_default(wanted)}, at most {most} = min(rows, features) of all "
            f"parties together ({rows} rows, {features} features)"
        )


def check_features(wanted: int | float | str, features: int) -> None:
    """Refuse more components than there are features, which is known before any row counts, by a `ConfigError`."""
    if not isinstance(wanted, str) and wanted > features:
        raise ConfigError(
            f"run-config: 'n-components' is {wanted}{_default(wanted)}, but the data have {features} features; "
            f"give n-components from 1 to {features}"
        )


def _default(wanted: int | float) -> str:
    return ", as where none is given" if wanted == RunConfig().n_components else ""


def check_rounds(rounds: int, block: int, components: int) -> None:
    """Refuse so few products with blocks that they cannot span the components, by a `ConfigError`."""
    if rounds * block < components:
        raise ConfigError(
            f"run-config: 'max-rounds' is {rounds}, in which blocks of {block} columns span {rounds * block} "
            f"directions, too few for n-components = {components}; allow more rounds, or a larger 'block-size'"
        )


def require_variance(variance: Array | float, rows: float, mean: Array, *, which: str = ALL_ROWS) -> None:
    """Refuse a scatter without variance beyond the rounding of the data, or outside the range of float64 (`DataError`).

    The variance is the diagonal (d,) of the scatter, each feature against its own mean; or its trace, where no more is
    known: then a constant feature whose mean is 1e16 deviations of the others hides them. The mean (d,) is in the unit
    of the scatter: divided by the features' scale where that is.
    """
    total = float(np.sum(variance))
    if not np.isfinite(total) or 0 < total < 1e-280:
        raise DataError(
            f"the scatter of {which} is {total:.1g} in all, outside the range of float64: change the unit of the data"
        )
    rounding = rows * (np.finfo(np.float64).eps * mean) ** 2
    if np.all(variance <= (rounding if np.ndim(variance) else rounding.sum())):
        raise DataError(f"{which} are identical: there is no variance to explain")


def variances_of(values: Array, total: float, rows: float, features: int) -> dict[str, Any]:
    """The fields of a model that follow from the eigenvalues of the scatter and its trace."""
    scatter = values.clip(min=0.0)
    left = min(most_rows(rows), features) - scatter.size
    divisor = max(1, rows - 1)  # a single new row has scores too
    return {
        "explained_variance_": scatter / divisor,
        "explained_variance_ratio_": scatter / total if total > 0 else np.zeros_like(scatter),
        "singular_values_": np.sqrt(scatter),
        "noise_variance_": max(0.0, total - scatter.sum()) / divisor / left if left > 0 else 0.0,
        "n_samples_": rows,
    }
