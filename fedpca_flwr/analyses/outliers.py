"""Odd rows that lie far from a model's rows, and drift: new rows that no longer resemble the model's rows."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.analyses.inputs import require_resolved, require_share, takes_model
from fedpca_flwr.data.frames import row_labels
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.maths import inference as maths
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.new_rows import MIN_MODEL_ROWS, ROWS_PER_COMPONENT, NewRows, new_rows
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import DisplayTable, display_as, largest_features

MIN_DRIFT_ROWS = 10  # no drift can be told of fewer rows


def _outliers_table(result: Outliers) -> DisplayTable:
    """Return the display of outliers: the rows that exceed a limit, the largest excess first."""
    row_names, rows = result.labels or range(result.odd.size), []
    for i in result.oddest.tolist():
        features = largest_features(result.spe_contributions[i], result.features)
        rows.append([row_names[i], result.t_squared[i], result.spe[i], features])
    limits = f"T squared {result.t_squared_limit:.4g}, SPE {result.spe_limit:.4g}"
    title = f"Outliers: {len(rows)} of {result.odd.size} rows exceed a limit of new rows ({limits})"
    title = f"Outliers: {result.note}" if result.note else title
    return DisplayTable(title, ["row", "T squared", "SPE", "most of its SPE"], rows)


@display_as(_outliers_table)
@dataclass(frozen=True, eq=False)
class Outliers:
    """Distances of rows to a PCA model, within its components (T squared) and off the components (SPE), with limits.

    Parameters
    ----------
    t_squared, spe : ndarray of shape (n,)
        Hotelling's T squared, the distance within the components, and the squared prediction error (Q), the distance
        from the components.
    t_squared_limit, spe_limit : float
        Limits, each of which a new row of the model's kind, one that the model was not fitted to, exceeds with
        probability 1 - ``level``. NaN if no limit of new rows is known for the model.
    t_squared_contributions, spe_contributions : ndarray of shape (n, d)
        Contribution of each feature to each row's distance.
    features : tuple of str, default ()
        Names of the features; empty if the model has none.
    labels : tuple, default ()
        Labels of the rows: the index of a data frame of pandas, or the names of cells; otherwise empty.
    level : float, default 0.99
        Share of the new rows of the model's kind within each limit.
    note : str, default ""
        Why no limit is known, and for which models one is; empty if the limits are known.
    """

    t_squared: Array
    spe: Array
    t_squared_limit: float
    spe_limit: float
    t_squared_contributions: Array
    spe_contributions: Array
    features: tuple[str, ...] = ()
    labels: tuple[Hashable, ...] = ()
    level: float = 0.99
    note: str = ""

    @property
    def odd(self) -> NDArray[np.bool_]:
        """Mask of the rows that exceed a limit, shape (n,). All are false if no limit is known."""
        return (self.t_squared > self.t_squared_limit) | (self.spe > self.spe_limit)

    @property
    def oddest(self) -> NDArray[np.intp]:
        """Numbers (from 0) of the rows that exceed a limit, the largest excess first; empty if none does."""
        excess = np.maximum(self.t_squared / self.t_squared_limit, self.spe / self.spe_limit)
        return np.argsort(-excess, kind="stable")[: self.odd.sum()]


def _drift_table(result: Drift) -> DisplayTable:
    """Return the display of drift: the verdict, and the probability of each test."""
    verdict = f"the new rows are {'no longer' if result.drifted else 'still'} of the kind of the model's"
    chances = {"shift of the mean": result.shift_probability, "spread off the components": result.spread_probability}
    title = result.note or f"{verdict}; {result.odd_share:.1%} of them exceed a limit"
    return DisplayTable(f"Drift: {title}", ["", "probability"], [] if result.note else list(chances.items()))


@display_as(_drift_table)
@dataclass(frozen=True)
class Drift:
    """Test of new rows against a model: whether they still come from the distribution of the model's rows.

    Parameters
    ----------
    shift_probability, spread_probability : float
        Probabilities, if the rows have the model's distribution, of a mean score at least this far from the model's
        (F), and of a mean SPE at least this far above that of new rows (Student's t).
    odd_share : float
        Share of the rows beyond a limit that holds 99 % of new normal rows. Rows with heavier tails have a larger
        share.
    drifted : bool
        Whether a probability is below half of the accepted rate of false alarms; false if none is known.
    note : str, default ""
        Why nothing is known, in which case the numbers are NaN; empty if they are known.
    """

    shift_probability: float
    spread_probability: float
    odd_share: float
    drifted: bool
    note: str = ""


@takes_model
def outliers(model: PCAModel, X: ArrayLike, *, level: float = 0.99) -> Outliers:
    """Compute each row's distances within and from the components, and each feature's contribution to the distances.

    Parameters
    ----------
    model : PCAModel
        Model that describes the variance outside its components, such as a model of p-cov, of em or of moments.
    X : array-like of shape (n, d)
    level : float, default 0.99
        Probability that a new normal row, one that the model was not fitted to, is within a limit. Fitted rows are
        within the limits more often.

    Returns
    -------
    Outliers

    Raises
    ------
    ConfigError, ContractError, DataError
        If ``level`` is not between 0 and 1; if the model does not describe the variance outside its components, or its
        components hold all variance; if the rows do not fit the model.
    """
    require_share("level", level, 0.99)
    law, note = _new_rows(model)
    components, _ = model.loadings()
    centred, variances = model.centred(X), _sample_variances(model)
    errors = (centred - centred @ components.T @ components) ** 2
    return Outliers(
        t_squared=maths.t_squared(centred @ components.T, variances),
        spe=errors.sum(axis=1),
        t_squared_limit=law.t_squared_limit(level) if law else np.nan,
        spe_limit=law.spe_limit(level) if law else np.nan,
        t_squared_contributions=maths.t_squared_contributions(centred, components, variances),
        spe_contributions=errors,
        features=() if model.feature_names_in_ is None else tuple(model.feature_names_in_),
        labels=row_labels(X),
        level=level,
        note=note,
    )


@takes_model
def drift(model: PCAModel, X: ArrayLike, *, false_alarms: float = 0.01) -> Drift:
    """Test whether new rows still have the mean and the spread of the model's rows.

    Parameters
    ----------
    model : PCAModel
        As in `outliers`.
    X : array-like of shape (n, d)
        New rows, at least 10, drawn independently.
    false_alarms : float, default 0.01
        Accepted rate of false alarms.

    Returns
    -------
    Drift

    Raises
    ------
    ConfigError, ContractError, DataError
        As `outliers`; a `DataError` also for fewer than 10 rows.
    """
    require_share("false_alarms", false_alarms, 0.01)
    result = outliers(model, X)
    law, note = _new_rows(model)
    rows = len(result.spe)
    if rows < MIN_DRIFT_ROWS:
        raise DataError(f"there are {rows} new rows, expected at least {MIN_DRIFT_ROWS}: of fewer no drift can be told")
    if law is None:
        return Drift(np.nan, np.nan, odd_share=np.nan, drifted=False, note=note)
    shift = model.transform(X).mean(axis=0)
    distance = float(np.sum(shift**2 / _sample_variances(model))) / (1 / rows + 1 / model.n_samples_)
    chances = law.shift_probability(distance), law.spread_probability(result.spe)
    return Drift(*chances, odd_share=float(result.odd.mean()), drifted=min(chances) < false_alarms / 2)


def _new_rows(model: PCAModel) -> tuple[NewRows | None, str]:
    """Return the distribution of new rows about a model, or None and why it is unknown; or raise ContractError."""
    omitted, directions = _left_out_variance(model)
    variances, n = _sample_variances(model), model.n_samples_
    require_resolved(variances)
    k, d = variances.size, int(model.loadings()[0].any(axis=0).sum())
    law = new_rows(variances, omitted, directions, n, d)
    note = (
        f"no limit of new rows is known for {k} components of {n:g} rows and {d} features; fit a model to at least "
        f"{MIN_MODEL_ROWS} rows, with at most a component for each {ROWS_PER_COMPONENT} rows and three for each four "
        "features, and at least two fewer than features"
    )
    return law, "" if law else note


def _left_out_variance(model: PCAModel) -> tuple[float, float]:
    """Return the variance outside the components, and the number of its directions, or raise ContractError."""
    directions = model.log.get("measured", {}).get("left_out_directions")
    if directions is None:
        raise ContractError(
            f"the model (method '{model.log.get('method', 'pooled')}') does not know how the variance is spread "
            "that its components leave out, or they leave out none; take fewer components, of p-cov, em or kept "
            "moments. 'robust' judges rows in the run itself, in files beside those that 'scores' names"
        )
    left_out = model.total_variance - float(model.explained_variance_.sum())
    return left_out * model.divisor / (model.n_samples_ - 1), directions


def _sample_variances(model: PCAModel) -> Array:
    """Return the variances (k,) of the components with the divisor n - 1, whatever the model's own."""
    variances: Array = model.explained_variance_ * (model.divisor / (model.n_samples_ - 1))
    return variances
