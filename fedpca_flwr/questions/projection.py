"""How a party projects its own rows in the last round, and who watches them."""

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
    """How a party projects its own rows: ``(rows - mean) / scale @ components.T``.

    Parameters
    ----------
    vault : Vault
        The moments of the rows that take part.
    components : ndarray of shape (k, d)
        With orthonormal rows.
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or (0,)
        Empty where features are not divided by anything.
    columns : str
        Digest of the columns' names.
    """

    vault: Vault
    components: Array
    mean: Array
    scale: Array
    columns: str

    def centred(self, rows: Rows) -> Iterator[Any]:
        """Centre and scale rows (n, d), chunk by chunk."""
        return centred_chunks(rows, self.mean, self.scale if self.scale.size else None)

    def scores(self, rows: Rows) -> Iterator[Array]:
        """Project rows (n, d) to scores (n, k), chunk by chunk."""
        for centred in self.centred(rows):
            yield centred @ self.components.T

    def squared_error(self) -> float:
        """Return what the projection leaves of the squares of the rows that take part, from their moments."""
        return self.vault.squared_error(self.mean, self.scale, self.components)

    def loadings(self) -> Loadings:
        """Return what projects new rows."""
        scale = self.scale if self.scale.size else np.ones_like(self.mean)
        return Loadings(self.components, self.mean, scale, columns=self.columns)


class Observer:
    """Watches a party's rows in the last round, and may add to its reply."""

    def watch(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Watch chunks of centred rows, and give each on."""
        return chunks

    def reply(self) -> Fields:
        """Return what the party's reply holds besides count and squared error."""
        return {}
