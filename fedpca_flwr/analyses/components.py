r"""Components and factors from kept moments: a PCA, its loadings as correlations, rotations, and factor analysis.

*Rotations* of loadings make each feature load on few components. With Kaiser's normalisation, as by R's ``varimax``
and ``factanal``, features of which the components hold little count as much as others.

*Factor analysis* explains correlations by few factors, each feature with a noise of its own:
:math:`\Sigma = W W^T + \Psi` with k columns of loadings and a diagonal of noise. Given :math:`\Psi` the loadings of
greatest likelihood follow from the eigenpairs of :math:`\Psi^{-1/2} S \Psi^{-1/2}`, and what is left is a function of
:math:`\log \Psi` alone, with gradient :math:`(\Sigma_{ii} - S_{ii}) / \Psi_{ii}` (Joreskog 1967), which a
quasi-Newton method minimises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve, eigh, lstsq, svd

from fedpca_flwr.analyses import inputs
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, ContractError, DataError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import column_signs, fix_signs
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import Features, SecondMoments
from fedpca_flwr.model.tables import DisplayTable, component_labels, display_as, feature_rows


@inputs.takes_moments
def pca(
    moments: SecondMoments,
    n_components: int | float | str | None = None,
    *,
    center: bool | None = None,
    scale: bool | None = None,
) -> PCAModel:
    """Compute the PCA of stored moments. It equals that of a run of the exact method `p-cov` on the same rows.

    What is not given is as in the run that made the moments. A model that differs from the run's has a note.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
        Moments, or a model that keeps them.
    n_components : int, float or str, optional
        Number of components, a fraction of the variance, or "auto" (see `fedpca_flwr.model.solution.solve`); without a
        run 10 by default.
    center : bool, optional
        Subtract the mean; without a run True by default.
    scale : bool, optional
        Divide each feature by its standard deviation (divisor n); without a run False by default.

    Returns
    -------
    PCAModel

    Raises
    ------
    ConfigError, DataError
        As `fedpca_flwr.model.solution.solve`.
    """
    prepared = moments.preparation
    count = prepared.n_components or 10 if n_components is None else n_components
    if not isinstance(count, int | float | str | np.integer):
        raise ConfigError(f"'n_components' is {value_text(count)}, expected a number or 'auto'")
    parties = moments.parties.items()
    log_entries = {
        "method": "second moments",
        "columns": names_digest(moments.features),
        "parties": [{"party": i, "name": key, "rows": party.count} for i, (key, party) in enumerate(parties)],
        **({"transform": prepared.transform} if prepared.transform else {}),
    }
    centred = prepared.center if center is None else center
    model = PCAModel.of_moments(
        moments.moments,
        log_entries,
        n_components=count,
        center=centred,
        scale=prepared.must_divide(scale),
        indicators=prepared.indicators,
        divisor=prepared.divisor,
        error_bound=moments.error_bound,
    )
    if differences := prepared.differences(scale, center=centred):
        model.log["notes"].append(f"this is not the PCA of the run that made the moments: {'; '.join(differences)}")
    return model.named(moments.features)


# varimax ends after so many steps, or with a step that raises its criterion by no larger share
MAX_VARIMAX_STEPS, MIN_VARIMAX_GAIN = 10000, 1e-14
PROMAX_POWER = 4


def varimax(loadings: Array, *, kaiser: bool = True) -> Array:
    """Compute the rotation (k, k) after which squared loadings (d, k) vary most within each column (Kaiser 1958).

    With ``kaiser`` each feature's loadings are scaled to length 1 for the search.
    """
    if kaiser:
        lengths = np.linalg.norm(loadings, axis=1)
        loadings = loadings[lengths > 0] / lengths[lengths > 0, None]
    rotation = np.eye(loadings.shape[1])
    previous_strength = 0.0
    for _ in range(MAX_VARIMAX_STEPS):
        rotated = loadings @ rotation
        target = rotated**3 - rotated * np.mean(rotated**2, axis=0)
        u, strengths, vt = svd(loadings.T @ target)
        rotation = u @ vt
        if strengths.sum() <= previous_strength * (1 + MIN_VARIMAX_GAIN):
            break
        previous_strength = float(strengths.sum())
    return rotation


def promax(loadings: Array, *, kaiser: bool = True) -> Array:
    """Compute the matrix (k, k) that brings loadings (d, k) nearest to powers of their `varimax`.

    Its columns are scaled so that the factors, which may be correlated, have variance 1 (Hendrickson and White 1964).
    """
    orthogonal = varimax(loadings, kaiser=kaiser)
    rotated = loadings @ orthogonal
    fitted, *_ = lstsq(rotated, rotated * np.abs(rotated) ** (PROMAX_POWER - 1))
    spread = np.diagonal(np.linalg.inv(fitted.T @ fitted))
    return np.asarray(orthogonal @ (fitted * np.sqrt(spread)))


ROTATIONS: dict[str, Callable[..., Array] | None] = {"none": None, "varimax": varimax, "promax": promax}


def _reading_table(result: Reading) -> DisplayTable:
    """Return the display of a reading: correlations and communality of each feature."""
    k, d = result.correlations.shape
    title = f"Reading: correlations of {k} components with {d} {result.unit}, and the share of each that they hold"
    rows = feature_rows(result.features, *result.correlations, result.communalities, weight=result.communalities)
    rows.append(["(variance)", *result.variances.tolist(), ""])
    return DisplayTable(title, ["feature", *component_labels(k), "held"], rows)


@display_as(_reading_table)
@dataclass(frozen=True, eq=False)
class Reading:
    """Description of the first components by their correlations with the features.

    Parameters
    ----------
    correlations : ndarray of shape (k, d)
        Correlations of each component's scores with each feature; with promax, the coefficients of a regression on
        correlated scores. A constant feature has 0. The largest absolute correlation of each component is positive.
        Rotated components are in the order of the sum of their squared correlations.
    communalities : ndarray of shape (d,)
        Share of each feature's variance that the k components hold. A rotation does not change this share.
    contributions : ndarray of shape (k, d)
        Share of each feature in a component's variance: its squared loading, as in FactoMineR.
    variances : ndarray of shape (k,)
        Variance of the (rotated) components: the sum of the features' variances times their squared correlations. With
        promax the components share variance, and these sum to more or less than what they hold.
    between : ndarray of shape (k, k)
        Correlations of the (rotated) scores with each other: the identity, except with promax.
    features : tuple of str
        Names of the features; empty if the moments have no names.
    model : PCAModel
        PCA of the features that contribute, whose mean and scale prepare rows.
    rotation : ndarray of shape (k, k)
        Matrix that rotates correlations: those of the unrotated components (d, k) times it are ``correlations.T``.
    supplementary : int, default 0
        Number of features that do not contribute to the components; they come last in each array by feature.
    unit : str
        Unit in which the PCA took the features.
    """

    correlations: Array
    communalities: Array
    contributions: Array
    variances: Array
    between: Array
    features: tuple[str, ...]
    model: PCAModel
    rotation: Array
    supplementary: int = 0
    unit: str = "features"

    def scores(self, X: ArrayLike) -> Array:
        """Compute the scores of rows on the (rotated) components, with variance 1 in the fitted rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows of the features that contribute.

        Returns
        -------
        ndarray of shape (n, k)
            Whose correlations with the features are ``correlations``; with promax, the factors' scores.
        """
        return np.asarray(whitened(self.model, X) @ np.linalg.inv(self.rotation).T)


@inputs.takes_moments
def read(
    moments: SecondMoments,
    k: int | None = None,
    *,
    scale: bool | None = None,
    rotation: str = "none",
    kaiser: bool = True,
    supplementary: Features = (),
) -> Reading:
    """Describe the first k components by their correlations with the features, optionally rotated.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
    k : int, optional
        Number of components; by default as in the run.
    scale : bool, optional
        Divide each feature by its standard deviation; by default as in the run.
    rotation : {"none", "varimax", "promax"}
    kaiser : bool, default True
        Compute the rotation for loadings that are scaled to length 1 for each feature, as R does by default.
    supplementary : sequence of str or int, default ()
        Features that do not contribute to the components, and whose correlations with the components are also computed.

    Returns
    -------
    Reading

    Raises
    ------
    ConfigError, ContractError, DataError
        If an option is not allowed, a component has no variance, or no feature varies.
    """
    if not isinstance(rotation, str) or rotation not in ROTATIONS:
        raise ConfigError(f"'rotation' is {value_text(rotation)}, expected one of: {', '.join(ROTATIONS)}")
    none = isinstance(supplementary, Sequence | np.ndarray) and not len(supplementary)
    supplementary_columns = [] if none else moments.places(supplementary).tolist()
    active = [column for column in range(moments.n_features) if column not in supplementary_columns]
    moments, first = moments.select(active + supplementary_columns), len(active)
    k = inputs.component_count(moments, k, min(moments.n_samples - 1, first))
    model = pca(moments.select(range(first)), k, scale=scale, center=True)
    inputs.require_resolved(model.explained_variance_)
    components, _ = model.loadings()
    covariance = inputs.in_unit(moments, scale).covariance
    spread = np.sqrt(np.diagonal(covariance).clip(min=0.0))
    deviations = np.sqrt(np.einsum("ij,jl,il->i", components, covariance[:first, :first], components))
    common = components @ covariance[:first] / deviations[:, None]
    loadings = (common / np.where(moments.is_constant, np.inf, spread)).T
    communalities = np.sum(loadings**2, axis=1)
    rotate = ROTATIONS[rotation]
    rotation_matrix = np.eye(len(components)) if rotate is None else rotate(loadings[:first], kaiser=kaiser)
    rotated = loadings[:first] @ rotation_matrix
    order = np.arange(len(rotation_matrix))
    if rotation != "none":
        order = np.argsort(-np.sum(rotated**2, axis=0), kind="stable")
    ordered = rotated[:, order]
    rotation_matrix = rotation_matrix[:, order] * column_signs(ordered)
    inverse = np.linalg.inv(rotation_matrix)
    parts = (ordered * spread[:first, None] * column_signs(ordered)) ** 2  # of the components' variances
    contributions = np.zeros_like(loadings.T)
    contributions[:, :first] = (parts / parts.sum(axis=0)).T
    return Reading(
        correlations=(loadings @ rotation_matrix).T,
        communalities=communalities,
        contributions=contributions,
        variances=parts.sum(axis=0),
        between=inverse @ inverse.T,
        features=moments.features,
        model=model,
        rotation=rotation_matrix,
        supplementary=len(supplementary_columns),
        unit=moments.preparation.unit(scale),
    )


@inputs.takes_moments
def barycentres(moments: SecondMoments, k: int | None, levels: Features, *, scale: bool | None = None) -> Array:
    """Compute the mean scores (m, k) of the rows that have each level. A level is a supplementary column of 0 and 1.

    The components are those of ``pca(moments.select(other_features), k, scale=scale)``, for all other features.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
    k : int or None
        Number of components; None as in the run.
    levels : sequence of str or int
        The m columns of 0 and 1.
    scale : bool, optional
        Divide each feature by its standard deviation; by default as in the run.

    Returns
    -------
    ndarray of shape (m, k)

    Raises
    ------
    ConfigError, DataError
        As `pca`; a `DataError` also if a column is constant, or cannot consist of 0 and 1.
    """
    level_columns = moments.places(levels)
    inputs.require_varying(moments, level_columns)
    mean, variances = moments.mean[level_columns], np.diagonal(moments.scatter)[level_columns] / moments.n_samples
    invalid_columns = level_columns[np.abs(variances - mean * (1 - mean)) > 1e-9]
    if invalid_columns.size:
        names = ", ".join(moments.names(invalid_columns) or map(str, invalid_columns))
        raise DataError(f"the features {names} are not of 0 and 1: name indicators of levels")
    other_columns = np.setdiff1d(np.arange(moments.n_features), level_columns).tolist()
    model = pca(moments.select(other_columns), k, scale=scale)
    components, _ = model.loadings()
    deviations = moments.scatter[np.ix_(level_columns, other_columns)] / (moments.n_samples * mean[:, None])
    return np.asarray(deviations / (1.0 if model.scale_ is None else model.scale_) @ components.T)


@overload
def projected(model: PCAModel, X: ArrayLike, *, return_std: Literal[False] = False) -> Array: ...
@overload
def projected(model: PCAModel, X: ArrayLike, *, return_std: Literal[True]) -> tuple[Array, Array]: ...


@inputs.takes_model
def projected(model: PCAModel, X: ArrayLike, *, return_std: bool = False) -> Array | tuple[Array, Array]:
    """Compute the scores of new rows, which may have gaps, divided by the model's `shrinkage_`.

    The scores of a row with gaps are the least squares on the features that it has; a model of ``em`` replaces missing
    values by their expected values instead. For rows that were in the PCA, use ``model.transform``.

    Parameters
    ----------
    model : PCAModel
    X : array-like of shape (n, d)
        Rows with NaN for missing values.
    return_std : bool, default False
        Also return the standard errors of the scores, which a model of ``em`` does not tell.

    Returns
    -------
    scores : ndarray of shape (n, k)
        NaN for a component that does not stand out of the noise. NaN, with a UserWarning, for a row with gaps that has
        fewer than 2 k features, or whose features do not tell the components apart (loadings of a condition above 100).
    std : ndarray of shape (n, k)
        Standard errors, if ``return_std``: how far scores lie from those of the same row without gaps; 0 without gaps.

    Raises
    ------
    ContractError, DataError
        As ``model.transform``, except for NaN; a `DataError` also for gaps in covariates, and a `ContractError` also
        for standard errors of a model of ``em``.
    """
    if return_std and not (model.covariance_ is None and model.factors_ is None):
        raise ContractError("a model of 'em' tells no standard errors of scores: leave out 'return_std'")
    scores, errors = model.seen_scores(X)
    if unknown := int(np.isnan(scores[:, 0]).sum()):
        warnings.warn(
            f"{unknown} of {len(scores)} rows have NaN scores: they have fewer than {2 * scores.shape[1]} features (2 "
            "for each component), or features that do not tell the components apart; take fewer components",
            UserWarning,
            stacklevel=3,
        )
    return (scores / model.shrinkage_, errors / model.shrinkage_) if return_std else scores / model.shrinkage_


@inputs.takes_model
def whitened(model: PCAModel, X: ArrayLike) -> Array:
    """Compute scores with variance 1 in each component, as ``PCA(whiten=True)`` does.

    Parameters
    ----------
    model : PCAModel
    X : array-like of shape (n, d)

    Returns
    -------
    ndarray of shape (n, k)

    Raises
    ------
    ContractError
        If a component has no variance.
    """
    inputs.require_resolved(model.explained_variance_)
    return model.transform(X) / np.sqrt(model.explained_variance_)


# share of a feature's variance: less noise is none (a Heywood case), and the likelihood has no maximum
MIN_NOISE_SHARE = 1e-9


def _factors_table(result: FactorModel) -> DisplayTable:
    """Return the display of a factor analysis: loadings, noise and communality of each feature."""
    title = "FactorModel: loadings, variance of the noise, and share explained; log-likelihood"
    heads = ["feature", *(f"F{j + 1}" for j in range(len(result.components))), "noise", "explained"]
    columns = *result.components, result.noise_variance, result.communalities
    rows = feature_rows(result.features, *columns, weight=result.communalities)
    return DisplayTable(f"{title} {result.log_likelihood:.4g}", heads, rows)


@display_as(_factors_table)
@dataclass(frozen=True, eq=False)
class FactorModel:
    """Fitted factor analysis: loadings, noise variances, mean and log-likelihood.

    Parameters
    ----------
    components : ndarray of shape (k, d)
        Loadings in the units of the features; the largest absolute loading of each factor is positive.
    noise_variance : ndarray of shape (d,)
        Variance of each feature that the factors do not explain.
    mean : ndarray of shape (d,)
    log_likelihood : float
        Mean log-likelihood of a row.
    proper : bool
        False if the noise of a feature is zero (a Heywood case). Then fewer factors are enough.
    features : tuple of str
        Names of the features; empty if the moments have no names.
    """

    components: Array
    noise_variance: Array
    mean: Array
    log_likelihood: float
    proper: bool
    features: tuple[str, ...]

    @property
    def communalities(self) -> Array:
        """Share of each feature's variance that the factors explain, shape (d,)."""
        common = np.sum(self.components**2, axis=0)
        return np.asarray(common / (common + self.noise_variance))

    def transform(self, X: ArrayLike) -> Array:
        """Compute the expected values of the factors, given rows.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n, k)
        """
        centred = inputs.finite_rows(X, self.features, self.mean.size) - self.mean
        weighted = self.components / self.noise_variance
        precision = np.eye(len(self.components)) + weighted @ self.components.T
        return np.asarray(cho_solve(cho_factor(precision), weighted @ centred.T).T)


@inputs.takes_moments
def factor_analysis(moments: SecondMoments, k: int = 2) -> FactorModel:
    """Fit a factor analysis of k factors by maximum likelihood (Joreskog 1967).

    Parameters
    ----------
    moments : SecondMoments
    k : int, default 2
        Number of factors.

    Returns
    -------
    FactorModel

    Raises
    ------
    ConfigError, DataError
        If k is not from 1 to one less than the rows and the features; if a feature is constant.
    """
    inputs.require_count("k", k, min(moments.n_samples, moments.n_features) - 1)
    inputs.require_varying(moments, np.arange(moments.n_features))
    from scipy.optimize import minimize  # a tenth of a second to import, for this analysis alone

    covariance = moments.scatter / moments.n_samples
    unit = np.sqrt(np.diagonal(covariance))
    R = covariance / unit / unit[:, None]
    d = len(R)
    options = {"maxiter": 15000, "maxfun": 15000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    bounds = [(np.log(MIN_NOISE_SHARE), 0.0)] * d
    start = np.full(d, np.log(0.5))
    solution = minimize(_deviance, start, (R, k), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    noise = np.exp(solution.x)
    root = np.sqrt(noise)
    values, vectors = eigh(R / root / root[:, None], subset_by_index=(d - k, d - 1))
    loadings = root[:, None] * vectors[:, ::-1] * np.sqrt((values[::-1] - 1).clip(min=0.0))
    return FactorModel(
        components=fix_signs(loadings * unit[:, None]).T,
        noise_variance=noise * unit**2,
        mean=moments.mean,
        log_likelihood=-0.5 * (solution.fun + d * np.log(2 * np.pi)) - float(np.log(unit).sum()),
        proper=bool((noise > 2 * MIN_NOISE_SHARE).all()),
        features=moments.features,
    )


def _deviance(log_noise: Array, R: Array, k: int) -> tuple[float, Array]:
    """Return minus twice the profile log-likelihood per row, up to a constant, and its gradient (d,); R (d, d)."""
    noise = np.exp(log_noise)
    root = np.sqrt(noise)
    values, vectors = eigh(R / root / root[:, None])
    excess = np.maximum(values[-k:], 1.0)
    explained = np.sum(np.log(excess)) + np.sum(values[-k:] / excess)
    deviance = float(log_noise.sum() + explained + values[:-k].sum())
    fitted = noise * (np.sum(vectors[:, -k:] ** 2 * (excess - 1), axis=1) + 1)
    return deviance, (fitted - np.diagonal(R)) / noise
