"""Moments without what covariates explain, and without differences between the means of the parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.analyses.inputs import finite_rows, scatter_blocks, takes_moments
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.adjustment import fit_adjustment
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, pack
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.second_moments import Features, SecondMoments
from fedpca_flwr.model.tables import DisplayTable, display_as, feature_rows


def _adjusted_table(result: AdjustedMoments) -> DisplayTable:
    """Return the display of an adjustment: each feature's slopes on the covariates."""
    names = [result.features[j] if result.features else f"feature {j}" for j in result.covariates]
    title = f"AdjustedMoments: slopes on {len(names)} covariates, {result.moments.n_samples} rows"
    weight = np.abs(result.coefficients).max(axis=0, initial=0.0)
    rows = feature_rows(result.moments.features, *result.coefficients, weight=weight)
    return DisplayTable(title, ["feature", *names], rows)


@display_as(_adjusted_table)
@dataclass(frozen=True, eq=False)
class AdjustedMoments:
    """Moments of the residuals of features regressed on covariates, and the same regression for rows.

    Parameters
    ----------
    moments : SecondMoments
        Moments of the features' residuals, about the features' means.
    coefficients : ndarray of shape (q, d)
        Slopes of d features on q covariates, in units of feature per unit of covariate.
    collinear : tuple
        Covariates (names, or positions if there are no names) that were dropped because a linear combination of them
        does not vary.
    places, covariates : ndarray of shape (d,), (q,)
        Positions of features and covariates in the rows of the original moments.
    features : tuple of str
        Names of features and covariates in those rows; empty if the moments have none.
    means : mapping of str to ndarray of shape (d + q,)
        Means of each party, if the regression subtracted them; otherwise the means of all rows, under an empty name.
    """

    moments: SecondMoments
    coefficients: Array
    collinear: tuple[str | int, ...]
    places: NDArray[np.intp]
    covariates: NDArray[np.intp]
    features: tuple[str, ...]
    means: Mapping[str, Array]

    def apply(self, rows: ArrayLike, *, party: str = "") -> Array:
        """Return the residuals of a party's rows, by the slopes and means of the fit.

        Parameters
        ----------
        rows : array-like of shape (n, d + q)
            Rows with features and covariates, in the order of the moments; columns of a data frame are matched by
            names.
        party : str, default ""
            Name of the party, if the parties' means were taken out.

        Returns
        -------
        ndarray of shape (n, d)

        Raises
        ------
        ConfigError, DataError
            If the party is unknown, or the rows do not fit the features.
        """
        if party not in self.means:
            expected = ", ".join(self.means) if "" not in self.means else "none: all rows have one mean"
            raise ConfigError(f"'party' is '{party}', expected one of those of the fit: {expected}")
        mean = self.means[party]
        centred = finite_rows(rows, self.features, mean.size) - mean
        residuals = centred[:, self.places] - centred[:, self.covariates] @ self.coefficients
        return np.asarray(residuals + self.moments.mean)


@takes_moments
def adjusted(moments: SecondMoments, covariates: Features, *, parties: bool = False) -> AdjustedMoments:
    """Compute the moments of the residuals of a linear regression of features on covariates.

    Parameters
    ----------
    moments : SecondMoments
        Moments of features and covariates together.
    covariates : sequence of str or int
        Features that the regression removes from all other features.
    parties : bool, default False
        Give each party a mean of its own, which removes all differences between the parties' means. This needs moments
        of each party (``keep="parties"``).

    Returns
    -------
    AdjustedMoments

    Raises
    ------
    ConfigError
        If covariates are unknown, or if the moments of the parties were not kept.
    DataError
        If the covariates explain all features.
    """
    if parties and not moments.parties:
        raise ConfigError("no party's own moments were kept: run with keep='parties'")
    total = pool(moments.parties.values(), within=True) if parties else moments.moments
    pooled = SecondMoments(total, moments.features)
    parts = scatter_blocks(pooled, covariates)
    adjustment, collinear = fit_adjustment(pooled.scatter, parts.y)
    scatter = adjustment.residual_scatter(pooled.scatter)[np.ix_(parts.x, parts.x)]
    remainder = Moments(total.count, total.mean[parts.x], total.remainder[parts.x], pack(np.asfortranarray(scatter)))
    if not np.diagonal(scatter).any():
        raise DataError("the covariates explain all features: nothing is left to analyse")
    party_means = {key: party.mean + party.remainder for key, party in moments.parties.items()}
    error_bound = adjustment.diagonal_error_bound(moments.error_bound)[parts.x]
    return AdjustedMoments(
        moments=SecondMoments(remainder, moments.names(parts.x), error_bound=error_bound),
        coefficients=adjustment.slopes[:, parts.x],
        collinear=moments.names(collinear) or tuple(collinear.tolist()),
        places=parts.x,
        covariates=parts.y,
        features=moments.features,
        means=party_means if parties else {"": moments.mean},
    )
