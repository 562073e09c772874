r"""A table of a model's components for a paper: loadings, variances with intervals, and communalities.

The communality of feature j is the share of its variance that the k components hold, with the variances
:math:`\lambda_i` and loadings :math:`v_{ij}` of the components and the variance :math:`s_{jj}` of the feature, after
scaling::

    h_j^2 = sum_i lambda_i v_ij^2 / s_jj
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import MIN_VARIANCE_SHARE, eigenvalue_intervals, robust_intervals
from fedpca_flwr.model.fitted import FittedPCA
from fedpca_flwr.model.tables import component_labels, import_pandas

if TYPE_CHECKING:
    import pandas

LEVEL = 0.95  # coverage of the intervals
# largest relative difference between a total variance and the number of varying features, if all have variance 1
MAX_TRACE_ERROR = 1e-9


def components_table(model: FittedPCA) -> pandas.DataFrame:
    """Make the data frame `fedpca_flwr.model.model.PCAModel.table` of a model, with `sampling_intervals`."""
    components, _ = model.loadings()
    library, labels = import_pandas(), component_labels(len(components))
    names = model.feature_names_in_
    features = [f"feature {j}" for j in range(model.n_features_in_)] if names is None else list(names)
    shares = model.explained_variance_ratio_
    rows = {"variance": model.explained_variance_, "share of variance": shares, "cumulative share": shares.cumsum()}
    intervals = sampling_intervals(model)
    if intervals is not None:
        ends = [f"{LEVEL * 100:.0f} percent interval from", f"{LEVEL * 100:.0f} percent interval to"]
        rows |= dict(zip(ends, intervals.T, strict=True))
    values = np.vstack([components.T, *rows.values()]) + 0.0  # no -0.0, which a paper would print as -0.00
    table = library.DataFrame(values, index=[*features, *rows], columns=labels)
    common = communalities(model)
    if common is not None:
        table["communality"] = np.concatenate([common, np.full(len(rows), np.nan)])
    return table


def sampling_intervals(model: FittedPCA) -> Array | None:
    """Return 95 % intervals (k, 2) of the population's variances, from what the run has measured; None without that.

    The intervals are for rows of any distribution if the run measured fourth moments. Kept moments of complete, centred
    rows, neither scaled nor adjusted, give intervals for normal rows (Anderson 1963). None if the last variance is
    nearly 0, or the variances are unknown.
    """
    values, kurtosis, options = model.explained_variance_, model.log.get("kurtosis"), model.log.get("options", {})
    if np.isnan(values).any() or values[-1] <= MIN_VARIANCE_SHARE * values[0]:
        return None
    if kurtosis is not None:
        return robust_intervals(values, np.array(kurtosis), model.n_samples_, LEVEL)
    incomplete = model.log.get("measured", {}).get("missing_share", 0.0) > 0
    changed = model.scale_ is not None or model.adjustment_ is not None or incomplete
    centred = options.get("center", True) and options.get("harmonise", "nothing") == "nothing"
    if model.moments_ is None or changed or not centred:
        return None
    return eigenvalue_intervals(values, int(model.n_samples_), LEVEL)


def communalities(model: FittedPCA) -> Array | None:
    """Return the share (d,) of each feature's variance in the components, 0 if it is constant; None if unknown."""
    options, n = model.log.get("options", {}), model.n_samples_
    centred = options.get("center", True) and model.adjustment_ is None
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
    explained = model.explained_variance_ @ components**2
    shares: Array = np.divide(explained, variances, out=np.zeros_like(explained), where=variances > 0)
    return shares
