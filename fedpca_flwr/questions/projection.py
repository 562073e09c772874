"""Projection of a party's own rows in the last round, and observers of the rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, centred_chunks
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.site.vault import Vault


@dataclass(frozen=True)
class Projection:
    """Projection of a party's own rows: ``(rows - mean) / scale @ components.T``.

    Parameters
    ----------
    vault : Vault
        The moments of the rows that take part.
    components : ndarray of shape (k, d)
        Components with orthonormal rows.
    mean : ndarray of shape (d,)
        Centre that is subtracted.
    scale : ndarray of shape (d,) or (0,)
        Unit of each feature; empty where features are not divided.
    columns : str
        Digest of the columns' names.
    """

    vault: Vault
    components: Array
    mean: Array
    scale: Array
    columns: str

    def centred(self, rows: Rows) -> Iterator[Any]:
        """Centre and scale rows, chunk by chunk.

        Parameters
        ----------
        rows : rows of shape (n, d)
            Rows of the party.

        Returns
        -------
        iterator of ndarray of shape (m, d)
        """
        return centred_chunks(rows, self.mean, self.scale if self.scale.size else None)

    def scores(self, rows: Rows) -> Iterator[Array]:
        """Project rows to scores, chunk by chunk.

        Parameters
        ----------
        rows : rows of shape (n, d)
            Rows of the party.

        Yields
        ------
        ndarray of shape (m, k)
        """
        for centred in self.centred(rows):
            yield centred @ self.components.T

    def squared_error(self) -> float:
        """Return the squared error that the projection leaves of the rows that take part, from their moments.

        Returns
        -------
        float
        """
        return self.vault.squared_error(self.mean, self.scale, self.components)

    def loadings(self) -> Loadings:
        """Return the loadings that project new rows.

        Returns
        -------
        Loadings
        """
        scale = self.scale if self.scale.size else np.ones_like(self.mean)
        return Loadings(self.components, self.mean, scale, columns=self.columns)


class Observer:
    """Observer of a party's rows in the last round, which may add fields to the reply."""

    def watch(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Watch chunks of centred rows, and pass each chunk on.

        Parameters
        ----------
        chunks : iterator of ndarray of shape (m, d)
            Centred and scaled rows.

        Returns
        -------
        iterator of ndarray of shape (m, d)
            The same chunks.
        """
        return chunks

    def reply(self) -> Fields:
        """Return the fields of the party's reply besides count and squared error.

        Returns
        -------
        mapping of str to ndarray
        """
        return {}
