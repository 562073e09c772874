"""What a party adjusts its own rows by, and what it tells of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.loadings import Loadings
from fedpca_flwr.maths.adjustment import Adjustment, harmonising_unit
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, chunks
from fedpca_flwr.maths.moments import pack, symmetric
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.statistics.own_scatter import OwnScatter, left_of
from fedpca_flwr.table import Table


def covariate_places(names: list[str], table: Table) -> NDArray[np.int64]:
    """Where the covariates stand in a party's rows, by their names or numbers from 0.

    Raises
    ------
    ConfigError
        With all that are no columns.
    """
    width = table.rows.shape[1]
    known = {str(place): place for place in range(width)} | {name: i for i, name in enumerate(table.names)}
    strangers = [name for name in names if name not in known]
    if strangers:
        raise ConfigError(
            f"run-config: 'adjust-for' names {', '.join(map(repr, strangers))}, which this site's {width} columns do "
            "not have; give names as in the files, or numbers from 0",
            local=f"columns: {list(table.names) or width}",
        )
    places = np.array([known[name] for name in names], dtype=np.int64)
    if np.unique(places).size < places.size:
        raise ConfigError(f"run-config: 'adjust-for' names a column twice: {', '.join(names)}")
    return places


@dataclass(frozen=True)
class OwnAdjustment:
    """How a party's rows are adjusted.

    Attributes
    ----------
    own : OwnScatter
        Of the rows (n, d) that take part.
    places : ndarray of shape (q,)
        Of the covariates.
    within : bool
        Whether rows are about this party's own mean.
    asked : mapping of str to ndarray
        ``slopes``, and where variances are harmonised ``spread``; in the last round ``mean`` and ``scale`` too.
    """

    own: OwnScatter
    places: NDArray[np.int64]
    within: bool
    asked: Fields

    @property
    def adjustment(self) -> Adjustment:
        return Adjustment(self.places, self.asked["slopes"])

    @cached_property
    def diagonal(self) -> Array:
        """Of the scatter (d, d) of the adjusted rows about their own mean, in the unit of the data."""
        _, diagonal = self.own.head_and_diagonal()
        one_of_each = np.zeros((diagonal.size, self.places.size))
        one_of_each[self.places, np.arange(self.places.size)] = 1.0
        return self.adjustment.of_diagonal(diagonal, self.own.times(one_of_each).T)

    @cached_property
    def unit(self) -> Array:
        """What features are divided by so that they vary alike at all parties (d,)."""
        spread = self.asked["spread"]
        if not spread.size:
            return np.ones(self.diagonal.size)
        return harmonising_unit(self.diagonal, len(self.own.rows), spread)

    def scatter(self) -> Array:
        """The packed scatter of the adjusted rows about this party's mean."""
        left = self.adjustment.of_scatter(symmetric(self.own.moments().scatter, self.diagonal.size))
        return pack(np.asfortranarray(left / self.unit / self.unit[:, None]))

    def squared_error(self, components: Array) -> float:
        """What the projection of the adjusted rows to ``components`` (k, d) leaves of their sum of squares."""
        head, _ = self.own.head_and_diagonal()
        deviation = np.zeros_like(head.mean) if self.within else self.own.deviation(self.asked["mean"])
        between = head.n * (self.adjustment.residuals(deviation[None])[0] / self._scale) ** 2
        total = (self.diagonal / self._scale**2 + between).sum()
        return left_of(float(total), self.own.squares(self._directions(components), deviation))

    def centred(self, rows: Rows) -> Iterator[Array]:
        """Chunks of adjusted rows, as this party projects them for itself."""
        mean, remainder = self._mean
        for chunk in chunks(rows):
            centred = np.subtract(chunk, mean, dtype=np.float64)
            centred -= remainder
            yield self.adjustment.residuals(centred) / self._scale

    def loadings(self, components: Array, columns: str) -> Loadings:
        """The same in one step: rows (n, d) less a mean, times (d, k)."""
        mean, remainder = self._mean
        return Loadings(self._directions(components), mean + remainder, np.ones_like(mean), columns=columns)

    def _directions(self, components: Array) -> Array:
        return self.adjustment.directions(components / self._scale)

    @property
    def _mean(self) -> tuple[Array, Array]:
        if self.within:
            head, _ = self.own.head_and_diagonal()
            return head.mean, head.remainder
        return self.asked["mean"], np.zeros_like(self.asked["mean"])

    @cached_property
    def _scale(self) -> Array:
        return self.unit * self.asked["scale"] if self.asked["scale"].size else self.unit
