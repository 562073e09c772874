"""Kept moments without what covariates explain, and without what differs between the means of the parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.analyses.inputs import blocks, of_moments, rows_of
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.adjustment import fitted
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, pack
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.second_moments import Features, SecondMoments
from fedpca_flwr.model.tables import Shown, by_feature, printed_as


def _adjusted(found: AdjustedMoments) -> Shown:
    names = [found.features[j] if found.features else f"feature {j}" for j in found.covariates]
    title = f"AdjustedMoments: slopes on {len(names)} covariates, {found.moments.n_samples} rows"
    weight = np.abs(found.coefficients).max(axis=0, initial=0.0)
    return Shown(title, ["feature", *names], by_feature(found.moments.features, *found.coefficients, weight=weight))


@printed_as(_adjusted)
@dataclass(frozen=True, eq=False)
class AdjustedMoments:
    """The moments of features without what covariates explain, and how the same is taken out of rows.

    Attributes
    ----------
    moments : SecondMoments
        The moments of what is left of the features; their means are kept.
    coefficients : ndarray of shape (q, d)
        Slopes of d features on q covariates, in units of feature per unit of covariate.
    collinear : tuple
        Covariates (names, or places where there are no names) of which some combination does not vary: it was dropped.
    places, covariates : ndarray of shape (d,), (q,)
        Where features and covariates stand in the rows of the original moments.
    features : tuple of str
        Names of features and covariates in those rows; empty where the moments have none.
    means : mapping of str to ndarray of shape (d + q,)
        The means of each party, where these were taken out; else those of all rows, under an empty name.
    """

    moments: SecondMoments
    coefficients: Array
    collinear: tuple[str | int, ...]
    places: NDArray[np.intp]
    covariates: NDArray[np.intp]
    features: tuple[str, ...]
    means: Mapping[str, Array]

    def apply(self, rows: ArrayLike, *, party: str = "") -> Array:
        """The features (n, d) of a party's rows, which have covariates too, without what was taken out.

        Parameters
        ----------
        rows : array-like of shape (n, features and covariates)
            In the order of the moments; of a data frame the columns are matched by their names.
        party : str
            Whose they are, where the parties' means were taken out.
        """
        if party not in self.means:
            known = ", ".join(self.means) if "" not in self.means else "none: all rows have one mean"
            raise ConfigError(f"'party' is '{party}', expected one of those of the fit: {known}")
        mean = self.means[party]
        centred = rows_of(rows, self.features, mean.size) - mean
        kept: Array = centred[:, self.places] - centred[:, self.covariates] @ self.coefficients
        return kept + self.moments.mean


@of_moments
def adjusted(moments: SecondMoments, covariates: Features, *, parties: bool = False) -> AdjustedMoments:
    """The moments of the features after a linear regression on covariates, as of the pooled rows.

    Parameters
    ----------
    moments : SecondMoments
        Of features and covariates together.
    covariates : sequence of str or int
        The features that are regressed out of all others.
    parties : bool
        Whether each party has a mean of its own, so that nothing is left between their means (``keep="parties"``).
    """
    if parties and not moments.parties:
        raise ConfigError("no party's own moments were kept: run with keep='parties'")
    whole = pool(moments.parties.values(), within=True) if parties else moments.moments
    there = SecondMoments(whole, moments.features)
    found = blocks(there, covariates)
    adjustment, held = fitted(there.scatter, found.y)
    scatter = adjustment.of_scatter(there.scatter)[np.ix_(found.x, found.x)]
    left = Moments(whole.count, whole.mean[found.x], whole.remainder[found.x], pack(np.asfortranarray(scatter)))
    if not np.diagonal(scatter).any():
        raise DataError("the covariates explain all features: nothing is left to analyse")
    own = {key: party.mean + party.remainder for key, party in moments.parties.items()}
    return AdjustedMoments(
        moments=SecondMoments(left, moments.names(found.x), missed=adjustment.missed(moments.missed)[found.x]),
        coefficients=adjustment.slopes[:, found.x],
        collinear=moments.names(held) or tuple(held.tolist()),
        places=found.x,
        covariates=found.y,
        features=moments.features,
        means=own if parties else {"": moments.mean},
    )
