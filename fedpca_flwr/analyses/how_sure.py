"""How sure variances and loadings are, as estimates of those of the population that the rows are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.analyses.blocks import require_count, require_resolved
from fedpca_flwr.analyses.kinds import of_model, of_moments
from fedpca_flwr.analyses.pca import pca
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths import sampling_error
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.model import PCAModel
from fedpca_flwr.second_moments import SecondMoments
from fedpca_flwr.solution import require_variance

FEWEST = 5
"""Parties, of fewer of which a spread tells nothing."""


@dataclass(frozen=True, eq=False)
class HowSure:
    """Attributes
    ----------
    variances : ndarray of shape (k,)
        Of the sample, as ``explained_variance_``.
    variance_intervals : ndarray of shape (k, 2)
        For the population's, which they cover in about ``level`` of all samples.
    loading_errors : ndarray of shape (k, d)
        Standard errors of the loadings, in the order of ``components_``.
    """

    variances: Array
    variance_intervals: Array
    loading_errors: Array


@dataclass(frozen=True, eq=False)
class Spikes:
    """Attributes
    ----------
    variances : ndarray of shape (k,)
        Of the population's components, if they rise over noise that all features have alike.
    angles : ndarray of shape (k,)
        In degrees, how far each component of the sample is expected to be from the population's; 90 where it is noise.
    """

    variances: Array
    angles: Array


@of_moments
def how_sure(moments: SecondMoments, k: int, *, level: float = 0.95) -> HowSure:
    """Intervals and errors for normal rows, many more than features, with well separated variances (Anderson 1963).

    For scaled features, or rows that are not normal, take `how_sure_by_parties`; for variances of these, also
    `variance_intervals`.

    Raises
    ------
    ConfigError, ContractError, DataError
    """
    values, vectors = _spectrum(moments, k, level)
    require_resolved(values[:k])
    n = moments.n_samples
    intervals = sampling_error.eigenvalue_intervals(values[:k], n, level)
    return HowSure(values[:k], intervals, sampling_error.loading_errors(values, vectors, k, n).T)


@of_model
def variance_intervals(model: PCAModel, *, level: float = 0.95) -> Array:
    """Intervals (k, 2) for the variances of the population, of rows of any distribution, many more than components.

    Parameters
    ----------
    model : PCAModel
        Of a run with ``fourth_moments=True``.

    Raises
    ------
    ConfigError, ContractError
    """
    _require_level(level)
    kurtosis = model.log.get("kurtosis")
    if kurtosis is None:
        raise ConfigError(
            "the model does not know the fourth moments of its scores: run p-cov with fourth_moments=True"
        )
    require_resolved(model.explained_variance_)
    return sampling_error.robust_intervals(model.explained_variance_, np.array(kurtosis), model.n_samples_, level)


@of_moments
def spikes(moments: SecondMoments, k: int, *, scale: bool = False) -> Spikes:
    """What is to be expected of components over noise where features are not few beside the rows (spiked model).

    Raises
    ------
    ConfigError, DataError
    """
    used = moments.scaled() if scale else moments
    values, _ = _spectrum(used, k, 0.5)
    return Spikes(*sampling_error.spiked(values, k, used.n_samples))


@of_moments
def how_sure_by_parties(moments: SecondMoments, k: int, *, level: float = 0.95, scale: bool = False) -> HowSure:
    """Intervals and errors by leaving out one party after the other (grouped jackknife): they presume no distribution.

    The parties count as drawn from others like them, so what differs between parties widens the intervals. Variances
    are taken on a logarithmic scale.

    Parameters
    ----------
    moments : SecondMoments
        With each party's own (``keep="parties"``), 5 at least.

    Raises
    ------
    ConfigError, ContractError, DataError
    """
    _require_level(level)
    groups = len(moments.parties)
    if groups < FEWEST:
        raise ConfigError(
            f"the moments hold those of {groups} parties, expected at least {FEWEST}: run with keep='parties'"
        )
    whole = pca(moments, k, scale=scale)
    require_resolved(whole.explained_variance_)
    components, _ = whole.loadings()
    others = [pca(moments.without(party), k, scale=scale) for party in moments.parties]
    turned = [model.loadings()[0] for model in others]
    turned = [found * np.where(np.sum(found * components, axis=1) < 0, -1.0, 1.0)[:, None] for found in turned]
    sizes = np.array([party.count for party in moments.parties.values()], dtype=np.float64)
    logarithm = np.log(whole.explained_variance_)
    left_out = np.log([model.explained_variance_ for model in others])
    centre, variance = sampling_error.grouped_jackknife(logarithm, left_out, sizes)
    step = sampling_error.student_step(groups, level) * np.sqrt(variance)
    _, spread = sampling_error.grouped_jackknife(components, np.array(turned), sizes)
    intervals = np.exp(np.column_stack([centre - step, centre + step]))
    return HowSure(whole.explained_variance_, intervals, np.sqrt(spread))


def _spectrum(moments: SecondMoments, k: int, level: float) -> tuple[Array, Array]:
    _require_level(level)
    require_count("k", k, min(moments.n_samples - 1, moments.n_features))
    require_variance(moments.moments.diagonal(), moments.n_samples, moments.mean)
    values, vectors = eigh(moments.covariance)
    return values[::-1].clip(min=0.0), fix_signs(vectors[:, ::-1])


def _require_level(level: float) -> None:
    if not (isinstance(level, float) and 0 < level < 1):
        raise ConfigError(f"'level' is {value_text(level)}, expected a fraction between 0 and 1, as 0.95")
