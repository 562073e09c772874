"""Whether correlations suit a factor analysis: sampling adequacy (Kaiser 1974), Bartlett's test, and determinant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.special import chdtrc

from fedpca_flwr.analyses.inputs import require_varying, takes_moments
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.model.tables import DisplayTable, display_as, feature_rows


def _factorability_table(result: Factorability) -> DisplayTable:
    """Return the display of the adequacy of each feature, and of all numbers about all of them."""
    test = f"chi squared {result.chi_squared:.4g} of {result.degrees} degrees, probability {result.probability:.4g}"
    numbers = f"KMO {result.kmo:.4g}; Bartlett's {test}; determinant {result.determinant:.4g}"
    rows = feature_rows(result.features, result.kmo_by_feature, weight=-result.kmo_by_feature)
    return DisplayTable(f"Factorability: {numbers}", ["feature", "KMO"], rows)


@display_as(_factorability_table)
@dataclass(frozen=True, eq=False)
class Factorability:
    """Measures of whether the features have enough in common for components or factors.

    Parameters
    ----------
    kmo : float
        Kaiser, Meyer and Olkin's measure of sampling adequacy: squared correlations as a share of these and the squared
        partial correlations. From 0.5 it is thought bearable, from 0.8 good.
    kmo_by_feature : ndarray of shape (d,)
        The same measure for each feature.
    chi_squared, degrees, probability : float, int, float
        Bartlett's test that all correlations are 0, for normal rows.
    determinant : float
        Determinant of the correlation matrix, near 0 if features are nearly collinear.
    correlation : ndarray of shape (d, d)
        Correlations of the features.
    features : tuple of str
        Names of the features; empty if the moments have none.
    """

    kmo: float
    kmo_by_feature: Array
    chi_squared: float
    degrees: int
    probability: float
    determinant: float
    correlation: Array
    features: tuple[str, ...]


@takes_moments
def factorability(moments: SecondMoments) -> Factorability:
    """Compute the measures of Kaiser, Meyer and Olkin (KMO) and of Bartlett from the correlations of the features.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
        Moments of at least two features, which all vary.

    Returns
    -------
    Factorability

    Raises
    ------
    DataError
        If there is one feature, one is constant, or features are collinear.
    """
    d, n = moments.n_features, moments.n_samples
    require_varying(moments, np.arange(d))
    R = moments.correlation
    values, vectors = eigh(R)
    if d < 2 or values[0] <= d * np.finfo(np.float64).eps * values[-1]:
        fault = "there is one feature" if d < 2 else "the features are collinear: each direction of them must vary"
        raise DataError(f"{fault}; `select` others (rows: {n}, features: {d})")
    inverse = (vectors / values) @ vectors.T
    partial = inverse / np.sqrt(np.outer(np.diagonal(inverse), np.diagonal(inverse)))
    squares, partial_squares = R**2 - np.eye(d), partial**2 - np.eye(d)
    by_feature = squares.sum(axis=0) / (squares + partial_squares).sum(axis=0)
    log_determinant, degrees = float(np.log(values).sum()), d * (d - 1) // 2
    chi_squared = -(n - 1 - (2 * d + 5) / 6) * log_determinant
    return Factorability(
        kmo=float(squares.sum() / (squares + partial_squares).sum()),
        kmo_by_feature=by_feature,
        chi_squared=chi_squared,
        degrees=degrees,
        probability=float(chdtrc(degrees, chi_squared)),
        determinant=float(np.exp(log_determinant)),
        correlation=R,
        features=moments.features,
    )
