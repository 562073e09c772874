r"""A table of a model's components for a paper: correlations with features, variances with intervals, communalities.

With the variances :math:`\lambda_i` and loadings :math:`v_{ij}` of the components, and the variance :math:`s_{jj}` of
feature j after scaling, the correlations and the communality (the share of the feature's variance in the components)
are::

    r_ij = v_ij sqrt(lambda_i / s_jj),    h_j^2 = sum_i r_ij^2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import MIN_VARIANCE_SHARE, normal_intervals, robust_intervals
from fedpca_flwr.model.fitted import FittedPCA
from fedpca_flwr.model.measurements import is_scaled, is_weighted
from fedpca_flwr.model.tables import component_labels, import_pandas

if TYPE_CHECKING:
    import pandas

LEVEL = 0.95  # coverage of the intervals
DIVISORS = "n-1", "n"  # of the deviations that scale features
# largest relative difference between a total variance and the number of varying features, if all have variance 1
MAX_TRACE_ERROR = 1e-9


def components_table(model: FittedPCA, *, sort: bool, blank: float, divisor: str) -> pandas.DataFrame:
    """Make the data frame `fedpca_flwr.model.model.PCAModel.table` of a model, with `sampling_intervals`."""
    if divisor not in DIVISORS:
        raise ConfigError(f"'divisor' is {value_text(divisor)}, expected one of: {', '.join(DIVISORS)}")
    components, _ = model.loadings()
    library, labels = import_pandas(), component_labels(len(components))
    named = model.feature_names_in_
    features = [f"feature {j}" for j in range(model.n_features_in_)] if named is None else list(named)
    shares, n = model.explained_variance_ratio_, model.n_samples_
    # deviations with the divisor n, by which the run scaled, make variances of scaled features n / (n - 1)
    unit = (n - 1) / n if is_scaled(model) and divisor == "n-1" else 1.0
    rows = {"variance": unit * model.explained_variance_, "share of variance": shares}
    rows["cumulative share"] = shares.cumsum()
    intervals = sampling_intervals(model)
    if intervals is not None:
        ends = [f"{LEVEL * 100:.0f} percent interval from", f"{LEVEL * 100:.0f} percent interval to"]
        rows |= dict(zip(ends, unit * intervals.T, strict=True))
    entries = correlations(model)
    body, kind = (components, "loadings") if entries is None else (entries, "correlations")
    body, order = body.T, np.arange(len(features))
    if sort:  # each feature under the component on which it is largest, the largest first
        order = np.lexsort([-np.abs(body).max(axis=1), np.abs(body).argmax(axis=1)])
    small = np.abs(body) < blank
    values = np.vstack([np.where(small, np.nan, body)[order], *rows.values()])
    names = [features[j] for j in order.tolist()]
    columns = library.Index(labels, name=kind)
    table = library.DataFrame(values + 0.0, index=[*names, *rows], columns=columns)  # no -0.0, for papers
    if entries is not None:
        table["communality"] = np.concatenate([np.sum(entries**2, axis=0)[order], np.full(len(rows), np.nan)])
    return table


def sampling_intervals(model: FittedPCA) -> Array | None:
    """Return 95 % intervals (k, 2) of the population's variances; None if what the run measured does not give them.

    Fourth moments give intervals for rows of any distribution; kept moments of centred rows without gaps, adjustment
    and levels give intervals for normal rows.
    """
    values, kurtosis, options = model.explained_variance_, model.log.get("kurtosis"), model.log.get("options", {})
    if np.isnan(values).any() or values[-1] <= MIN_VARIANCE_SHARE * values[0]:
        return None
    if kurtosis is not None:
        return robust_intervals(values, np.array(kurtosis), model.n_samples_, LEVEL)
    incomplete = model.log.get("measured", {}).get("missing_share", 0.0) > 0
    changed = model.adjustment_ is not None or incomplete or "levels" in model.log
    centred = options.get("center", True) and options.get("harmonise", "nothing") == "nothing"
    if model.moments_ is None or changed or not centred:
        return None
    components, _ = model.loadings()
    correlation = None if model.scale_ is None else model.moments_.correlation
    return normal_intervals(values, components.T, model.n_samples_, LEVEL, correlation)


def correlations(model: FittedPCA) -> Array | None:
    """Return the correlations (k, d) of scores with features, 0 for constant features; None if they are unknown."""
    options, n = model.log.get("options", {}), model.n_samples_
    centred = options.get("center", True) and model.adjustment_ is None and not is_weighted(model)
    if not centred or options.get("harmonise", "nothing") != "nothing":
        return None
    if model.moments_ is not None:
        scale = 1.0 if model.scale_ is None else model.scale_
        variances = np.where(model.moments_.is_constant, 0.0, model.moments_.moments.diagonal() / (n - 1) / scale**2)
    elif model.scale_ is None:
        return None
    else:
        varying = model.scale_ != 1  # a scale of 1 is that of a feature which does not vary
        variances = varying * (n / (n - 1))  # of features that were divided by their deviation, divisor n
        if not abs(model.total_variance - variances.sum()) <= MAX_TRACE_ERROR * model.total_variance:
            return None
    components, _ = model.loadings()
    common = np.sqrt(model.explained_variance_ * model.divisor / (n - 1))[:, None] * components
    return np.asarray(np.divide(common, np.sqrt(variances), out=np.zeros_like(common), where=variances > 0))
