"""`Solution`: the leading components of pooled moments, how far rounding resolves components, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import indicator_names
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES, Eigenpairs, leading_eigenpairs, resolution, rounding_bound
from fedpca_flwr.maths.moments import Moments, max_row_count, safe_deviation, unpack, varying_features

if TYPE_CHECKING:
    from fedpca_flwr.maths.adjustment import Adjustment

# ways to resolve smaller components, for a note
SCALE_REMEDY, FACTORS_REMEDY = "scale=true", "the method 'qr-pca' with whole factors"


class Certainty(NamedTuple):
    """Certainty of a model's components: whether they are exact, at most one note, and how many are above rounding."""

    exact: bool
    notes: list[str]
    resolved: int | None = None  # None if all are that can be; else a certificate is about these


def certainty(pairs: Eigenpairs, *, exact: bool, remedies: Sequence[str]) -> Certainty:
    """Assess whether float64 determines the leading components, and write a note if some are undetermined.

    Components are exact if the method is, and rounding turns them by no more than `EXACT_ANGLE_DEGREES`. ``remedies``,
    such as `SCALE_REMEDY`, are for the note.
    """
    k, limit = pairs.values.size, resolution(pairs)
    max_resolved = k if pairs.rank is None else min(k, pairs.rank)
    resolved = int((pairs.values > limit.floor).sum())
    advice = f"; {' or '.join(remedies)} resolves more" if remedies else ""
    if resolved < max_resolved:
        share = limit.floor / max(float(pairs.values[0]), np.finfo(np.float64).tiny)
        which = f"component {k} is" if resolved + 1 == k else f"components {resolved + 1} to {k} are"
        text = (
            f"{which} below what can be resolved beside the first component ({share:.1g} of its variance): no variance "
            "is left there, or the directions are noise of rounding"
        )
        return Certainty(False, [text + advice], resolved)
    if max_resolved < k:
        which = f"components {max_resolved + 1} to {k}"
        text = f"the data have rank {max_resolved}: {which} have no variance and arbitrary directions"
        return Certainty(exact and limit.angle <= EXACT_ANGLE_DEGREES, [text])
    if limit.angle == 90:
        text = f"components {k} and {k + 1} have equal variance: the {k}-dimensional subspace is not unique"
        return Certainty(False, [text])
    if exact and limit.angle > EXACT_ANGLE_DEGREES:
        text = f"rounding may turn the components by {limit.angle:.1g} degrees: the gap after the last variance is too "
        return Certainty(False, [f"{text}small beside the first{advice}"])
    return Certainty(exact, [])


ALL_ROWS = "the rows of all parties"  # the rows that a refusal names, unless a method names others


@represent_by_shapes
@dataclass(frozen=True, kw_only=True)
class Solution:
    """Leading eigenpairs that a method computed, with the mean, scale, notes and measurements of its model.

    Parameters
    ----------
    pairs : Eigenpairs
        Leading eigenpairs of the scatter of all rows.
    mean : ndarray of shape (d,)
        Mean that is subtracted from rows.
    total : float
        Trace of the scatter.
    rows : int or float
        Number of rows of all parties, or the sum of their weights if rows have weights.
    scale : ndarray of shape (d,), optional
        Scale that divides each centred feature.
    adjustment : Adjustment, optional
        Regression that is subtracted from centred rows before scaling.
    notes : sequence of str
        Texts for the reader of the model.
    measurements : mapping of str to float
        Numbers by the names of `fedpca_flwr.model.measurements`.
    divisor : {"n-1", "n"}
        Number by which the scatter is divided for the variances.
    evidence : object, optional
        Results of the statistics (`fedpca_flwr.questions.rows_run.Evidence`).
    """

    pairs: Eigenpairs
    mean: Array
    total: float
    rows: int | float
    scale: Array | None = None
    adjustment: Adjustment | None = None
    notes: Sequence[str] = ()
    measurements: Mapping[str, float] = field(default_factory=dict)
    divisor: Literal["n-1", "n"] = "n-1"
    evidence: Any = None

    def with_details(self, *, notes: Sequence[str] = (), measurements: Mapping[str, float] | None = None) -> Solution:
        """Return a copy with more notes and measurements.

        Parameters
        ----------
        notes : sequence of str, default ()
        measurements : mapping of str to float, optional

        Returns
        -------
        Solution
        """
        return replace(self, notes=[*self.notes, *notes], measurements={**self.measurements, **(measurements or {})})


def divisors(
    diagonal: Array, count: float, mean: Array, scale: bool, weights: Sequence[float], indicators: int | Sequence[int]
) -> Array | None:
    """Return the divisors (d,) of features: `safe_deviation` if they are scaled, over the roots of weights if any."""
    if len(weights) not in (0, mean.size):
        raise ConfigError(f"'column-weights' has {len(weights)} numbers for {mean.size} features; give each its own")
    deviation = safe_deviation(diagonal, count, mean, indicators) if scale else np.ones_like(mean)
    unit = deviation / np.sqrt(weights or 1.0)
    unit[(unit == 1.0) & (deviation != 1.0)] = np.nextafter(1.0, 2.0)  # 1 says that a scaled feature is undivided
    return unit if scale or weights else None


def solve(
    moments: Moments,
    diagonal: Array,
    *,
    n_components: int | float | str,
    center: bool,
    scale: bool,
    weights: Sequence[float] = (),
    indicators: int | Sequence[int] = 0,
    overwrite: bool = False,
) -> Solution:
    """Compute the leading components of the pooled scatter, centred and scaled as asked.

    Parameters
    ----------
    moments : Moments
        The scatter, with the pooled count and mean.
    diagonal : ndarray of shape (d,)
        Diagonal of the pooled scatter, by which features are scaled. The variance is a share of its sum, which for an
        exact method is that of ``moments``.
    n_components : int, float or str
        Number of components; a fraction of the variance that the components must exceed; or "auto": as many components
        as stand out of unrelated features (Horn 1965).
    center : bool
        Take the scatter about the mean.
    scale : bool
        Divide each feature by its standard deviation (divisor n).
    weights : sequence of float
        Weights of the features, by whose roots they are multiplied then; empty for 1.
    indicators : int or sequence of int, default 0
        The last features, so many, or those at these positions, are indicators of levels (`safe_deviation`).
    overwrite : bool, default False
        Whether the scatter of ``moments`` may be overwritten, which saves memory.

    Returns
    -------
    Solution

    Raises
    ------
    ConfigError, DataError
        For a number of components that the data do not allow; for a single row, or rows without variance.
    """
    d = diagonal.size
    check_components(n_components, moments.count, d)
    if n_components == "auto" and not center:
        raise ConfigError("'n_components' is 'auto', which needs center=True: it is about variances")
    deviation = divisors(diagonal, moments.count, moments.mean, scale, weights, indicators)
    varying = int(varying_features(diagonal, moments.mean).sum())
    rank = min(max_row_count(moments.count) - center, varying + (not center))
    if not center:
        diagonal = diagonal + moments.count * (moments.mean + moments.remainder) ** 2
        moments = moments.about_zero()
    matrix = unpack(moments.scatter, d, overwrite=overwrite)
    if deviation is not None:
        matrix /= deviation
        matrix /= deviation[:, None]
    unit = 1.0 if deviation is None else deviation
    diagonal = diagonal / unit**2
    require_variance(diagonal, moments.count, moments.mean / unit)
    total = float(diagonal.sum())
    notes = []
    if n_components == "auto":
        from fedpca_flwr.maths.inference import null_band, parallel_analysis  # few runs ask for it

        values = eigvalsh(matrix)[::-1] / (moments.count - 1)
        retained = parallel_analysis(values, null_band(diagonal / (moments.count - 1), int(moments.count)))
        n_components = max(1, retained)
        notes = [f"n-components='auto': parallel analysis (Horn) keeps {retained or 'none'} of {d}"]
    assert not isinstance(n_components, str)
    pairs = leading_eigenpairs(matrix, n_components, total=total, overwrite_upper=True).with_rank_bound(rank)
    share = float(pairs.values.sum()) / total
    if isinstance(n_components, float) and share < n_components - 4 * rounding_bound(len(matrix)):
        notes.append(f"n-components={n_components:g}: all components that there are hold {share:.4g} of the variance")
    directions = pairs.residual_directions(matrix)
    return Solution(
        pairs=pairs,
        mean=moments.mean,
        total=total,
        rows=moments.count,
        scale=deviation,
        notes=notes,
        measurements={} if directions is None else {"left_out_directions": directions},
    )


def undivided_features(
    scale: Array | None, adjustment: Adjustment | None, levels: Mapping[str, Sequence[str]]
) -> NDArray[np.intp]:
    """Return the indices of numbers, without covariates, that a run with ``scale`` (d,) left undivided."""
    numbers = 0 if scale is None else scale.size - len(indicator_names(levels))
    undivided = np.flatnonzero(() if scale is None else scale[:numbers] == 1.0)  # as `safe_deviation` says
    return undivided if adjustment is None else np.setdiff1d(undivided, adjustment.covariate_columns)


def check_components(n_components: int | float | str, rows: float, features: int) -> None:
    """Raise ConfigError for an invalid number of components, or more than rows or features; DataError for one row."""
    is_count = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool) and n_components >= 1
    is_share = isinstance(n_components, float | np.floating) and 0 < n_components < 1
    if not (is_count or is_share or n_components == "auto"):
        expected = "expected a number from 1, a fraction between 0 and 1, or 'auto'"
        raise ConfigError(f"'n-components' is {value_text(n_components)}, {expected}")
    maximum = min(max_row_count(rows), features)
    if rows < 2:
        raise DataError(f"all parties together have {rows} row; a PCA needs at least 2")
    if not isinstance(n_components, str) and n_components > maximum:
        raise ConfigError(
            f"run-config: 'n-components' is {n_components}{_default_text(n_components)}, at most {maximum} = "
            f"min(rows, features) of all parties together ({rows} rows, {features} features)"
        )


def check_features(n_components: int | float | str, features: int) -> None:
    """Raise ConfigError for more components than features; a fraction of the variance, and "auto", need no check."""
    if not isinstance(n_components, str) and n_components > features:
        raise ConfigError(
            f"run-config: 'n-components' is {n_components}{_default_text(n_components)}, but the data have "
            f"{features} features; give n-components from 1 to {features}"
        )


def _default_text(n_components: int | float) -> str:
    """Return a remark for errors on a number of components if it is the default, else an empty text."""
    return ", as where none is given" if n_components == RunConfig().n_components else ""


def check_rounds(rounds: int, block: int, components: int) -> None:
    """Raise ConfigError if the blocks of all rounds, each of ``block`` columns, have fewer columns than components."""
    if rounds * block < components:
        raise ConfigError(
            f"run-config: 'max-rounds' is {rounds}, in which blocks of {block} columns span {rounds * block} "
            f"directions, too few for n-components = {components}; allow more rounds, or a larger 'block-size'"
        )


def require_variance(variance: Array | float, rows: float, mean: Array, *, which: str = ALL_ROWS) -> None:
    """Refuse a scatter without variance beyond the rounding of the data, or outside the range of float64.

    Parameters
    ----------
    variance : ndarray of shape (d,) or float
        Diagonal of the scatter: each feature is judged against its own mean. Or its trace, if no more is known: a
        constant feature whose mean is 1e16 deviations of the other features then hides them.
    rows : float
        Number of rows.
    mean : ndarray of shape (d,)
        Mean, in the unit of the scatter: divided by the features' scale if the scatter is.
    which : str
        How errors call the rows.

    Raises
    ------
    DataError
    """
    total = float(np.sum(variance))
    if not np.isfinite(total) or 0 < total < 1e-280:  # near 2.2e-308, float64's smallest number of full precision
        outside = "outside the range of float64: change the unit of the data"
        raise DataError(f"the scatter of {which} is {total:.1g} in all, {outside}")
    rounding = rows * (np.finfo(np.float64).eps * mean) ** 2
    if np.all(variance <= (rounding if np.ndim(variance) else rounding.sum())):
        raise DataError(f"{which} are identical: there is no variance to explain")


def variance_fields(values: Array, total: float, rows: float, features: int, divisor: str = "n-1") -> dict[str, Any]:
    """Compute the fields of `FittedPCA` that follow from the scatter's leading eigenvalues (k,) and its trace."""
    scatter = values.clip(min=0.0)
    remaining = min(max_row_count(rows), features) - scatter.size
    freedom = rows if divisor == "n" else max(1, rows - 1)  # a single new row has scores too
    return {
        "explained_variance_": scatter / freedom,
        "explained_variance_ratio_": scatter / total if total > 0 else np.zeros_like(scatter),
        "singular_values_": np.sqrt(scatter),
        "noise_variance_": max(0.0, total - scatter.sum()) / freedom / remaining if remaining > 0 else 0.0,
        "n_samples_": rows,
    }
