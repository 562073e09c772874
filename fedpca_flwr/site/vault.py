"""The vault: a party's rows, and what an answer may have of them instead.

It offers count, sums, the diagonal and products of the scatter, squares and factors: functions of the site's own
moments about its own mean. No argument of these is a centre, an option or a number of the run, so whatever was asked,
rows with the same count, mean and scatter give the same answers up to rounding (`tests/attacks`). What was asked enters
the algebra of the sums: in float64 a subtraction from rows rounds, and with a centre near 2^53 rounding would tell each
row above a threshold from each one below. A vault can be wrapped, and no answer knows whether it is.

The scatter is formed once where that is cheaper than multiplying the rows each time, and kept for the run, in the state
that Flower holds for a party between the messages of a run: in a simulation in memory, on a site in its SuperNode,
which hands it to the process of the next message. It never leaves the site.
"""

from functools import partial
from typing import Any

import numpy as np

from fedpca_flwr.maths import factors, forecast
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, Moments, head_and_diagonal, packed_size, scale_columns, scatter_product
from fedpca_flwr.maths.rows import Blocks, Rows, centred_chunks, in_order, weighted_count
from fedpca_flwr.protocol.journal import State

MAX_SCATTER_BYTES = 2**29
"""Bytes of the scatters of all parties together: in a simulation one process holds them."""

ROUNDING_SHARE = 2.0**-43
"""Share of a sum of squares below which what is left of it is rounding."""

MOMENTS_NAME, MEANS_NAME = "own moments", "own means"


class Vault:
    """The rows (n, d) that take part, and functions of their moments.

    Parameters
    ----------
    rows : rows of shape (n, d)
    state : State
        Lasts for the run.
    columns : int
        How many the scatter will be multiplied with in the run, about; 0: it is needed once.
    parties : int
        That keep one each.
    threads : int
        That compute with dense rows.
    """

    def __init__(self, rows: Rows, state: State, *, columns: int, parties: int, threads: int = 1) -> None:
        self._rows, self._state, self._threads = rows, state, threads
        self._moments: Moments | None = None  # as read in this message, and so are these
        self._means: tuple[Head, Array] | None = None
        n, d = rows.shape
        dense = not (isinstance(rows, Blocks) and rows.sparse)
        self.formed = (
            dense
            and worth_forming(n, d, columns)
            and parties * packed_size(d) * np.float64().nbytes <= MAX_SCATTER_BYTES
        )

    @property
    def count(self) -> int | float:
        """How many rows, or the sum of their weights."""
        return weighted_count(self._rows)

    @property
    def features(self) -> int:
        return int(self._rows.shape[1])

    def moments(self) -> Moments:
        """Count, mean and scatter; kept for the run where that is worth it, and else count, mean and diagonal."""
        if not self.formed:
            found = Moments.from_rows(self._rows, self._threads)
            self._store_means(found.head, found.diagonal())
            return found
        if self._moments is None and (stored := self._stored(MOMENTS_NAME)):
            self._moments = Moments(stored[0].item(), *stored[1:])
        elif self._moments is None:
            self._moments = found = Moments.from_rows(self._rows, self._threads)
            self._state[MOMENTS_NAME] = [found.count, found.mean, found.remainder, found.scatter]
        return self._moments

    def head_and_diagonal(self) -> tuple[Head, Array]:
        """Count and mean of the rows, and the diagonal (d,) of their scatter."""
        if self.formed:
            moments = self.moments()
            return moments.head, moments.diagonal()
        if self._means is None and (stored := self._stored(MEANS_NAME)):
            count, mean, remainder, diagonal = stored
            self._means = Head(count.item(), mean, remainder), diagonal
        elif self._means is None:
            self._store_means(*head_and_diagonal(self._rows, self._threads))
        assert self._means is not None
        return self._means

    def _store_means(self, head: Head, diagonal: Array) -> None:
        self._means = head, diagonal
        self._state[MEANS_NAME] = [head.n, head.mean, head.remainder, diagonal]

    def deviation(self, centre: Array) -> Array:
        """The mean of the rows less a ``centre`` (d,)."""
        head, _ = self.head_and_diagonal()
        deviation: Array = (head.mean - centre) + head.remainder
        return deviation

    def times(self, V: Array) -> Array:
        """The scatter about the own mean times ``V`` (d, b)."""
        if self.formed:
            return self.moments().times(V)
        head, _ = self.head_and_diagonal()
        block, exponents = scale_columns(V)
        with np.errstate(over="ignore"):  # what is not finite is refused before it leaves
            return np.ldexp(scatter_product(self._rows, head, block, self._threads), exponents)

    def centred_product(self, centre: Array, V: Array) -> Array:
        """The scatter about a ``centre`` (d,) times ``V`` (d, b)."""
        deviation = self.deviation(centre)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.times(V) + weighted_count(self._rows) * np.outer(deviation, deviation @ V)

    def squares(self, directions: Array, deviation: Array) -> float:
        """The squared scores of all rows for ``directions`` (k, d), about a point that is ``deviation`` (d,) below
        their mean, added up."""
        head, _ = self.head_and_diagonal()
        block, exponents = scale_columns(directions.T)
        if self.formed:
            sums = np.einsum("ij,ij->j", block, self.moments().times(block))
        else:
            sums = -head.n * (head.remainder @ block) ** 2
            for part in in_order(partial(_squares, block), centred_chunks(self._rows, head.mean), self._threads):
                sums += part
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.ldexp(sums, 2 * exponents).sum() + head.n * np.square(directions @ deviation).sum()
        return float(total)

    def squared_error(self, mean: Array, scale: Array, components: Array) -> float:
        """What the projection of rows less ``mean`` (d,), divided by ``scale`` (d,) or by nothing (0,), to orthonormal
        ``components`` (k, d) leaves of their sum of squares."""
        head, diagonal = self.head_and_diagonal()
        deviation, unit = self.deviation(mean), scale if scale.size else np.ones_like(mean)
        with np.errstate(over="ignore", invalid="ignore"):
            total = ((diagonal + head.n * deviation**2) / unit**2).sum()
        return residual_sum(float(total), self.squares(components / unit, deviation))

    def triangular(self) -> tuple[Head, Array]:
        """Count and mean of the rows, and the triangular factor (min(n - 1, d), d) of the centred rows."""
        return factors.triangular_factor(self._rows)

    def truncated(self, rank: int) -> factors.Factor:
        """The best factor of so many rows of the scatter."""
        if self.formed:
            return factors.truncate_moments(self.moments(), rank)
        return factors.truncated_factor(self._rows, rank)

    def survey(self, block: Array, max_features: int) -> forecast.Survey:
        """What a forecast needs: eigenvalues, a sketch with a block (d, s), lengths in code (`maths.forecast`)."""
        return forecast.make_survey(self._rows, block, max_features)

    def _stored(self, name: str) -> list[Array] | None:
        """What is there of these rows: a method may ask about a part of them first (`personalised`)."""
        if name not in self._state:
            return None
        stored = self._state[name]
        return stored if np.isclose(stored[0], weighted_count(self._rows), rtol=1e-12, atol=0) else None

    def drop(self) -> None:
        """Forget it: the run needs it no more."""
        self._moments = self._means = None
        self._state.drop(MOMENTS_NAME)
        self._state.drop(MEANS_NAME)


def _squares(block: Array, centred: Any) -> Array:
    """Sums of squares (b,) of each column of rows (m, d) times ``block`` (d, b)."""
    scores = centred @ block
    return np.asarray(np.einsum("ij,ij->j", scores, scores))


def residual_sum(total: float, explained: float) -> float:
    """What components leave of a sum of squares; nothing where only rounding is left, which would differ for other rows
    of the same moments."""
    residual = total - explained
    return 0.0 if residual <= ROUNDING_SHARE * total else residual


def worth_forming(rows: int, features: int, columns: int) -> bool:
    """Whether forming a scatter and multiplying it with so many columns is cheaper than multiplying the rows.

    In multiplications and additions n d^2, 2 d^2 c, and 4 n d c.
    """
    return rows * features + 2 * features * columns < 4 * rows * columns
