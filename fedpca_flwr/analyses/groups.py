r"""Groups of features in equal weight: multiple factor analysis (Escofier and Pages 1994) of numeric features.

Each feature is divided by its standard deviation, and each group by the root of the first eigenvalue :math:`\lambda_g`
of its own correlation matrix: then no direction of a group alone has more variance than 1. The components are those of
all weighted features together, and with the eigenvalue :math:`\mu` and the loadings v the correlation of a component
with a feature of the group is :math:`v_j \sqrt{\mu \lambda_g}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedpca_flwr.analyses.components import Reading, pca
from fedpca_flwr.analyses.inputs import require_count, require_resolved, takes_moments
from fedpca_flwr.data.table import labels_text
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.moments import rescale_features
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import Features, SecondMoments
from fedpca_flwr.model.tables import DisplayTable, Share, component_labels, display_as


def _groups_table(result: MultipleFactorAnalysis) -> DisplayTable:
    """Return the display of a multiple factor analysis: eigenvalues, and the contributions of each group."""
    rows: list[list[object]] = [["(eigenvalue)", "", *result.eigenvalues.tolist()]]
    for name, own, shares in zip(result.groups, result.group_eigenvalues, result.contributions.T, strict=True):
        rows.append([name, float(own), *map(Share, shares)])
    heads = ["group", "own eigenvalue", *component_labels(result.eigenvalues.size)]
    return DisplayTable(f"MultipleFactorAnalysis: contributions of {len(result.groups)} groups", heads, rows)


@display_as(_groups_table)
@dataclass(frozen=True, eq=False)
class MultipleFactorAnalysis:
    """Components of groups of features, in which each group has the same weight.

    Parameters
    ----------
    eigenvalues : ndarray of shape (k,)
        Variances of the components (divisor n). The first is between 1 and the number of groups; it reaches this number
        if all groups share the first component.
    groups : tuple of str
        Names of the groups.
    group_eigenvalues : ndarray of shape (g,)
        First eigenvalue of the correlation matrix of each group, whose root divides the group's features.
    contributions : ndarray of shape (k, g)
        Share of each group in the variance of a component.
    reading : Reading
        Correlations of the components with the features (the coordinates of variables), and the contribution of each
        feature; their signs are those of the model's scores.
    model : PCAModel
        PCA of the weighted features, whose ``scale_`` holds deviations and weights: it gives the scores of rows.
    """

    eigenvalues: Array
    groups: tuple[str, ...]
    group_eigenvalues: Array
    contributions: Array
    reading: Reading
    model: PCAModel


@takes_moments
def multiple_factor_analysis(
    moments: SecondMoments, groups: Mapping[str, Features], k: int = 2
) -> MultipleFactorAnalysis:
    """Compute the first k components of groups of features, in which each group has the same weight.

    Parameters
    ----------
    moments : SecondMoments
    groups : mapping of str to sequence of str or int
        Features of each group, by the name of the group. Each feature is in one group.
    k : int, default 2
        Number of components.

    Returns
    -------
    MultipleFactorAnalysis

    Raises
    ------
    ConfigError, ContractError
        If groups share features or leave features out, features are unknown, or k is not allowed or has no variance.
    DataError
        If all features of a group are constant.
    """
    n, d = moments.n_samples, moments.n_features
    require_count("k", k, min(d, n - 1))
    member = _membership(moments, groups)
    scaled = moments.scaled()
    first = np.empty(len(groups))
    for g, name in enumerate(groups):
        block = scaled.select(np.flatnonzero(member[:, g]).tolist())
        if block.is_constant.all():
            raise DataError(f"the features of the group {name!r} are constant: leave them out by `select`")
        first[g] = leading_eigenpairs(np.asfortranarray(block.scatter / n), 1).values[0]
    weight = np.where(moments.is_constant, 1.0, member @ np.sqrt(first))
    bound = scaled.error_bound / weight**2
    weighted = SecondMoments(rescale_features(scaled.moments, weight), moments.features, error_bound=bound)
    model = pca(weighted, k)
    require_resolved(model.explained_variance_)
    loadings, _ = model.loadings()
    eigenvalues = model.explained_variance_ * (n - 1) / n
    correlations = np.sqrt(eigenvalues)[:, None] * loadings * weight
    weighted_model = replace(model, mean_=moments.mean, scale_=moments.deviation * weight)
    return MultipleFactorAnalysis(
        eigenvalues=eigenvalues,
        groups=tuple(map(str, groups)),
        group_eigenvalues=first,
        contributions=loadings**2 @ member,
        reading=Reading(
            correlations=correlations,
            communalities=np.sum(correlations**2, axis=0),
            contributions=loadings**2,
            variances=eigenvalues,
            between=np.eye(k),
            features=moments.features,
            model=weighted_model,
            rotation=np.eye(k),
        ),
        model=weighted_model,
    )


def _membership(moments: SecondMoments, groups: Mapping[str, Features]) -> Array:
    """Return a matrix (d, g), 1 where a feature is in a group; raise ConfigError unless each is in one group."""
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(f"'groups' is {value_text(groups)}, expected the features of each group by its name")
    member = np.zeros((moments.n_features, len(groups)))
    for g, features in enumerate(groups.values()):
        member[moments.places(features), g] = 1
    for wrong, fault, remedy in (
        (member.sum(axis=1) > 1, "in more than one group", "name each in one"),
        (member.sum(axis=1) == 0, "in no group", "name each in one, or `select` the others first"),
    ):
        if wrong.any():
            columns = np.flatnonzero(wrong)
            names = labels_text(moments.names(columns) or columns.tolist())
            raise ConfigError(f"'groups' has the features {names} {fault}: {remedy}")
    return member
