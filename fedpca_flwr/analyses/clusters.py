"""Clusters that a run with ``clusters`` found among the scores of all rows, and the clusters of new rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.analyses.inputs import takes_model
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.clustering import Mixture, assign_to_nearest
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import DisplayTable, display_as


def _clusters_table(result: Clusters) -> DisplayTable:
    """Return the display of clusters: rows and centre of each cluster."""
    rows = ["few" if count is None else count for count in result.rows]
    heads = ["cluster", "rows", *(f"PC{j + 1}" for j in range(result.centres.shape[1]))]
    cells = [[i, count, *centre] for i, (count, centre) in enumerate(zip(rows, result.centres.tolist(), strict=True))]
    return DisplayTable(f"Clusters: {len(rows)} by {result.kind}, by their centres", heads, cells)


@display_as(_clusters_table)
@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of the scores of a run, the largest first.

    Parameters
    ----------
    kind : str
        ``"k-means"`` or ``"mixture"``.
    rows : tuple of int or None
        Number of rows of each cluster (for a mixture, the sum of the probabilities); None for fewer than 10.
    centres : ndarray of shape (m, k)
        Means of the scores.
    mixture : Mixture or None
        Weights, means and covariances of a mixture.
    model : PCAModel
        Model of the run, which computes the scores of new rows.
    """

    kind: str
    rows: tuple[int | None, ...]
    centres: Array
    mixture: Mixture | None
    model: PCAModel

    def of(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, which need not be a row of the run.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of int of shape (n,)
            Numbers from 0, of a mixture the most probable.
        """
        scores = self.model.transform(X)
        if self.mixture is None:
            return assign_to_nearest(scores, self.centres)[0]
        return np.asarray(self.mixture.responsibilities(scores)[0].argmax(axis=1))


@takes_model
def clusters(model: PCAModel) -> Clusters:
    """Return the clusters of scores that a run with the option ``clusters`` found.

    Parameters
    ----------
    model : PCAModel
        Model of ``run("p-cov", parties, clusters=4)``.

    Returns
    -------
    Clusters

    Raises
    ------
    ContractError
        If the run had no ``clusters``.
    """
    entry = model.log.get("clusters")
    if entry is None:
        raise ContractError("the model knows of no clusters: ask for them in its run, say by run('p-cov', clusters=4)")
    centres, mixture = np.array(entry["centres"], np.float64), None
    if entry["kind"] == "mixture":
        mixture = Mixture(np.array(entry["weights"], np.float64), centres, np.array(entry["covariances"], np.float64))
    return Clusters(entry["kind"], tuple(entry["rows"]), centres, mixture, model)
