"""Number of components to keep, and the certainty of variances and loadings as estimates of the population's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh, eigvalsh
from scipy.special import stdtrit

from fedpca_flwr.analyses import inputs
from fedpca_flwr.analyses.components import pca
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths import inference
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import count_to_exceed_share, fix_signs
from fedpca_flwr.maths.marchenko_pastur import noise_edge, optimal_threshold
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.model.solution import require_variance
from fedpca_flwr.model.tables import DisplayTable, component_labels, display_as

MAX_DRAWS = 100_000


def _how_many_table(result: HowMany) -> DisplayTable:
    """Return the display of rules and the numbers of components that the rules keep."""
    rows = [[rule, "-" if k is None else k] for rule, k in result.by_rule.items()]
    return DisplayTable(f"HowMany: components of {result.spectrum.size} {result.unit}", ["rule", "components"], rows)


@display_as(_how_many_table)
@dataclass(frozen=True, eq=False)
class HowMany:
    """Number of components that each rule selects.

    Parameters
    ----------
    by_rule : mapping of str to int or None
        Number of components by the name of the rule, which may be 0, or None if the rule does not apply (Minka's rule
        with n < d). Bi-cross-validation needs each party's moments, because it holds out parties.
    spectrum : ndarray of shape (d,)
        Eigenvalues of the covariance (divisor n - 1), descending.
    null_band : ndarray of shape (min(n - 1, d),)
        95th percentiles of the eigenvalues that unrelated features of the same variances would have.
    unit : str
        Unit in which the features were taken.
    """

    by_rule: Mapping[str, int | None]
    spectrum: Array
    null_band: Array
    unit: str = "features"


@inputs.takes_moments
def how_many(moments: SecondMoments, *, scale: bool | None = None, fraction: float = 0.95, draws: int = 100) -> HowMany:
    """Compute the number of components to keep by several rules, such as parallel analysis and Minka's evidence.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
    scale : bool, optional
        Divide each feature by its standard deviation; by default as in the run. All rules except parallel analysis
        assume equal noise in all features, and are meant for features of the same unit.
    fraction : float, default 0.95
        Share of the variance for the rule of the fraction.
    draws : int, default 100
        Number of draws of unrelated features for the null band; the draws are always the same.

    Returns
    -------
    HowMany

    Raises
    ------
    ConfigError
        If ``fraction`` is not between 0 and 1, or ``draws`` not from 1 to 100,000.
    DataError
        If there is a single row, or no feature varies.
    """
    inputs.require_share("fraction", fraction, 0.95)
    inputs.require_count("draws", draws, MAX_DRAWS)
    used = inputs.in_unit(moments, scale)
    require_variance(used.moments.diagonal(), used.n_samples, used.mean)
    n, d = used.n_samples, used.n_features
    covariance = used.covariance
    values = eigvalsh(covariance)[::-1].clip(min=0.0)
    band = inference.null_band(np.diagonal(covariance).clip(min=0.0), n, draws)
    by_rule = {
        "parallel analysis (Horn)": inference.parallel_analysis(values, band),
        "Marchenko-Pastur edge": inference.leading_run(values > noise_edge(values, n, d)),
        "optimal threshold (Gavish, Donoho)": inference.leading_run(values > optimal_threshold(values, n, d)),
        "greatest evidence (Minka)": inference.minka(values, n),
        "broken stick": inference.broken_stick(values),
        f"{fraction:.0%} of the variance": count_to_exceed_share(values, float(values.sum()), fraction),
    }
    if len(used.parties) > 1 and d > 1:
        by_rule["bi-cross-validation (Owen, Perry)"] = inference.bi_cross_validation(list(used.parties.values()))
    return HowMany(by_rule, values, band, moments.preparation.unit(scale))


MIN_JACKKNIFE_PARTIES = 5  # the spread of fewer parties tells nothing


def _how_sure_table(result: HowSure) -> DisplayTable:
    """Return the display of each component's variance, its interval, and its largest error of a loading."""
    low, high = result.variance_intervals.T
    columns = component_labels(low.size), result.variances, low, high, result.loading_errors.max(axis=1)
    heads = ["", "variance", "at least", "at most", "largest error of a loading"]
    title = f"HowSure: intervals of the variances of components of {result.unit}"
    return DisplayTable(title, heads, list(zip(*columns, strict=True)))


@display_as(_how_sure_table)
@dataclass(frozen=True, eq=False)
class HowSure:
    """Variances of the components with confidence intervals, and standard errors of the loadings.

    Parameters
    ----------
    variances : ndarray of shape (k,)
        Variances of the sample, as in ``explained_variance_``.
    variance_intervals : ndarray of shape (k, 2)
        Intervals that cover the population's variances in about ``level`` of all samples.
    loading_errors : ndarray of shape (k, d)
        Standard errors of the loadings, in the order of ``components_``; infinite for tied variances (`how_sure`).
    unit : str
        Unit in which the features were taken.
    """

    variances: Array
    variance_intervals: Array
    loading_errors: Array
    unit: str = "features"


def _spikes_table(result: Spikes) -> DisplayTable:
    """Return the display of each component's population variance and angle to the population's component."""
    columns = component_labels(result.variances.size), result.variances, result.angles
    heads = ["", "variance in the population", "degrees from the population's"]
    title = f"Spikes: what the components of the sample stand for, of {result.unit}"
    return DisplayTable(title, heads, list(zip(*columns, strict=True)))


@display_as(_spikes_table)
@dataclass(frozen=True, eq=False)
class Spikes:
    """Estimated variances of the population's components, and angles between these components and those of the sample.

    Parameters
    ----------
    variances : ndarray of shape (k,)
        Variances of the population's components, if all features have equal noise; that of the noise if it is noise.
    angles : ndarray of shape (k,)
        Expected angle in degrees between each component of the sample and that of the population; 90 for noise.
    unit : str
        Unit in which the features were taken.
    """

    variances: Array
    angles: Array
    unit: str = "features"


@inputs.takes_moments
def how_sure(
    moments: SecondMoments, k: int | None = None, *, level: float = 0.95, scale: bool | None = None
) -> HowSure:
    """Compute intervals of variances and errors of loadings, for normal rows with n much larger than d.

    Anderson 1963; for scaled features Konishi 1979. For rows that are not normal, and for indicators of levels, use
    `how_sure_by_parties` or `variance_intervals`.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
    k : int, optional
        Number of components; by default as in the run.
    level : float, default 0.95
        Coverage of the intervals.
    scale : bool, optional
        Divide each feature by its standard deviation; by default as in the run.

    Returns
    -------
    HowSure

    Raises
    ------
    ConfigError, ContractError, DataError
        If an option is not allowed, component k has no variance, or no feature varies.
    """
    used, unit = inputs.in_unit(moments, scale), moments.preparation.unit(scale)
    k, values, vectors = _spectrum(used, k, level)
    inputs.require_resolved(values[:k])
    n, correlation = used.n_samples, used.correlation if used.preparation.divided else None
    intervals = inference.normal_intervals(values[:k], vectors[:, :k], n, level, correlation)
    return HowSure(values[:k], intervals, inference.loading_errors(values, vectors, k, n, correlation).T, unit)


@inputs.takes_model
def variance_intervals(model: PCAModel, *, level: float = 0.95) -> Array:
    """Compute intervals for the population's variances from fourth moments, for rows of any distribution.

    Parameters
    ----------
    model : PCAModel
        Model of a run with ``fourth_moments=True``, with many more rows than components.
    level : float, default 0.95
        Coverage of the intervals.

    Returns
    -------
    ndarray of shape (k, 2)
        An end may be infinite.

    Raises
    ------
    ConfigError, ContractError
        If the run had no ``fourth_moments``, or the last component has no variance.
    """
    inputs.require_share("level", level, 0.95)
    kurtosis = model.log.get("kurtosis")
    if kurtosis is None:
        advice = "run p-cov with fourth_moments=True"
        raise ConfigError(f"the model does not know the fourth moments of its scores: {advice}")
    inputs.require_resolved(model.explained_variance_)
    return inference.robust_intervals(model.explained_variance_, np.array(kurtosis), model.n_samples_, level)


@inputs.takes_moments
def spikes(moments: SecondMoments, k: int | None = None, *, scale: bool | None = None) -> Spikes:
    """Estimate the population's components by the spiked model, for data with many features compared with rows.

    Parameters
    ----------
    moments, k, scale
        As of `how_sure`.

    Returns
    -------
    Spikes

    Raises
    ------
    ConfigError, DataError
        If k is not allowed, or no feature varies.
    """
    used = inputs.in_unit(moments, scale)
    k, values, _ = _spectrum(used, k, 0.5)
    return Spikes(*inference.spiked_estimates(values, k, used.n_samples), moments.preparation.unit(scale))


@inputs.takes_moments
def how_sure_by_parties(
    moments: SecondMoments, k: int | None = None, *, level: float = 0.95, scale: bool | None = None
) -> HowSure:
    """Compute intervals and standard errors by a jackknife that leaves out each party, for rows of any distribution.

    The parties count as a sample of a population of parties, so differences between parties widen the intervals. The
    jackknife uses the logarithms of the variances.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
        Moments of all rows and of each party (``keep="parties"``), for at least 5 parties.
    k, level, scale
        As of `how_sure`.

    Returns
    -------
    HowSure

    Raises
    ------
    ConfigError, ContractError, DataError
        As `how_sure`, also without one of the parties; a `ConfigError` also for fewer than 5 parties.
    """
    inputs.require_share("level", level, 0.95)
    groups = len(moments.parties)
    if groups < MIN_JACKKNIFE_PARTIES:
        expected = f"expected at least {MIN_JACKKNIFE_PARTIES}: run with keep='parties'"
        raise ConfigError(f"the moments hold those of {groups} parties, {expected}")
    k = inputs.component_count(moments, k, min(moments.n_samples - 1, moments.n_features))
    full_model = pca(moments, k, scale=scale, center=True)
    inputs.require_resolved(full_model.explained_variance_)
    components, _ = full_model.loadings()
    reduced_models = [pca(moments.without(party), k, scale=scale, center=True) for party in moments.parties]
    reduced_components = []
    for model in reduced_models:
        directions, _ = model.loadings()
        signs = np.where(np.sum(directions * components, axis=1) < 0, -1.0, 1.0)
        reduced_components.append(directions * signs[:, None])
    sizes = np.array([party.count for party in moments.parties.values()], dtype=np.float64)
    full_log_variances = np.log(full_model.explained_variance_)
    reduced_log_variances = np.log([model.explained_variance_ for model in reduced_models])
    centre, variance = inference.grouped_jackknife(full_log_variances, reduced_log_variances, sizes)
    step = float(stdtrit(groups - 1, 0.5 + level / 2)) * np.sqrt(variance)  # Student's quantile, two-sided
    _, spread = inference.grouped_jackknife(components, np.array(reduced_components), sizes)
    intervals = np.exp(np.column_stack([centre - step, centre + step]))
    unit = moments.preparation.unit(scale)
    return HowSure(full_model.explained_variance_, intervals, np.sqrt(spread), unit)


def _spectrum(moments: SecondMoments, k: int | None, level: float) -> tuple[int, Array, Array]:
    """Return k, all eigenvalues (d,), descending, and eigenvectors of the covariance; raise as `how_sure`."""
    inputs.require_share("level", level, 0.95)
    k = inputs.component_count(moments, k, min(moments.n_samples - 1, moments.n_features))
    require_variance(moments.moments.diagonal(), moments.n_samples, moments.mean)
    values, vectors = eigh(moments.covariance)
    return k, values[::-1].clip(min=0.0), fix_signs(vectors[:, ::-1])
