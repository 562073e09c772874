"""Columns and levels of a mixed table on the components, by the model's loadings and the frequency of levels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np

from fedpca_flwr.analyses.inputs import takes_model
from fedpca_flwr.data.categories import indicator_names
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import DisplayTable, Share, display_as


def _categories_table(result: Categories) -> DisplayTable:
    """Return the display of categories: share, mean scores and squared cosines of each level."""
    k = range(result.coordinates.shape[1])
    heads = ["level", "share", *(f"PC{j + 1}" for j in k), *(f"cos2 PC{j + 1}" for j in k)]
    numbers = np.hstack([result.coordinates, result.squared_cosines]).tolist()
    entries = zip(result.levels, map(Share, result.shares), numbers, strict=True)
    cells = [[name, share, *row] for name, share, row in entries]
    return DisplayTable(f"Categories: {len(cells)} levels, by the mean scores of their rows", heads, cells)


@display_as(_categories_table)
@dataclass(frozen=True, eq=False)
class Categories:
    """Relation of a mixed table's columns and levels to the components (FAMD, or MCA without numbers).

    Parameters
    ----------
    columns : tuple of str
        Names of the columns, numbers first, then categories.
    squared_correlations : ndarray of shape (columns, k)
        For a column of numbers, the squared correlation with the component. For a category, the correlation ratio: the
        share of the component's variance between the levels.
    levels : tuple of str
        Levels that occur in the rows, such as ``"sex=female"``.
    shares : ndarray of shape (levels,)
        Share of the rows that have each level.
    coordinates : ndarray of shape (levels, k)
        Mean scores of the rows that have each level. Divided by the roots of the components' variances, these are the
        coordinates of an MCA.
    contributions : ndarray of shape (levels, k)
        Share of each level in a component's variance. The shares of all levels and numbers add up to 1.
    squared_cosines : ndarray of shape (levels, k)
        Squared correlations of the level's indicator with the component.
    """

    columns: tuple[str, ...]
    squared_correlations: Array
    levels: tuple[str, ...]
    shares: Array
    coordinates: Array
    contributions: Array
    squared_cosines: Array


@takes_model
def categories(model: PCAModel) -> Categories:
    """Compute how the columns and levels of a mixed table relate to the components, from the model alone.

    Escofier 1979; Pages 2004.

    Parameters
    ----------
    model : PCAModel
        Model of a run with ``levels``.

    Returns
    -------
    Categories

    Raises
    ------
    ContractError
        If the run of the model had no levels.
    """
    declared = model.log.get("levels")
    if not declared or model.feature_names_in_ is None or model.mean_ is None or model.components_ is None:
        raise ContractError("the model is of numbers only: run with levels={'sex': ['female', 'male']}")
    names, indicators = model.feature_names_in_.tolist(), indicator_names(declared)
    first = len(names) - len(indicators)
    column_of = np.array([column for column, levels in declared.items() for _ in range(len(levels) + 2)])
    n = model.n_samples_
    variances = model.singular_values_**2 / n
    squares = variances * model.components_.T**2  # of correlations, where a column has the variance 1
    by_column = [squares[first:][column_of == column].sum(axis=0) for column in declared]
    shares = model.mean_[first:]
    occurs = (shares > 0) & (shares < 1)
    p, loadings = shares[occurs][:, None], model.components_.T[first:][occurs]
    return Categories(
        columns=(*names[:first], *declared),
        squared_correlations=np.vstack([squares[:first], *by_column]),
        levels=tuple(compress(indicators, occurs)),
        shares=shares[occurs],
        coordinates=variances * loadings / np.sqrt(p),
        contributions=loadings**2,
        squared_cosines=squares[first:][occurs] / (1 - p),
    )
