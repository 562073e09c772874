"""A party's own scatter, to be multiplied in several rounds: formed once where that is cheaper, and kept for the run.

What is kept is in the state that Flower holds for a party between the messages of a run: in a simulation in memory, on
a site in its SuperNode, which hands it to the process of the next message. It never leaves the site.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Blocks, Rows
from fedpca_flwr.maths.moments import Head, Moments, packed_size
from fedpca_flwr.maths.products import head_and_diagonal, scatter_product
from fedpca_flwr.protocol.state import State

MOST_KEPT = 2**29
"""Bytes of the scatters of all parties together: in a simulation one process holds them."""

MOMENTS, MEANS = "own moments", "own means"


class OwnScatter:
    """The scatter of ``rows`` (n, d) about their mean.

    Parameters
    ----------
    rows : rows of shape (n, d)
    state : State
        Lasts for the run.
    columns : int
        How many it will be multiplied with in the run, about; 0: it is needed once.
    parties : int
        That keep one each.
    """

    def __init__(self, rows: Rows, state: State, *, columns: int, parties: int) -> None:
        self.rows, self.state = rows, state
        n, d = rows.shape
        dense = not (isinstance(rows, Blocks) and rows.sparse)
        self.formed = (
            dense and worth_forming(n, d, columns) and parties * packed_size(d) * np.float64().nbytes <= MOST_KEPT
        )

    def moments(self) -> Moments:
        """Count, mean and scatter, formed once in a run."""
        if not self._kept(MOMENTS):
            found = Moments.of(self.rows)
            self.state[MOMENTS] = [found.count, found.mean, found.remainder, found.scatter]
            return found
        count, mean, remainder, scatter = self.state[MOMENTS]
        return Moments(int(count), mean, remainder, scatter)

    def head_and_diagonal(self) -> tuple[Head, Array]:
        """Count and mean of the rows, and the diagonal (d,) of their scatter."""
        if self.formed:
            found = self.moments()
            return found.head, found.diagonal()
        if not self._kept(MEANS):
            head, diagonal = head_and_diagonal(self.rows)
            self.state[MEANS] = [head.n, head.mean, head.remainder, diagonal]
            return head, diagonal
        count, mean, remainder, diagonal = self.state[MEANS]
        return Head(int(count), mean, remainder), diagonal

    def times(self, V: Array) -> Array:
        """The scatter times ``V`` (d, b)."""
        if self.formed:
            return self.moments().times(V)
        head, _ = self.head_and_diagonal()
        return scatter_product(self.rows, head, V)

    def times_about(self, centre: Array, V: Array) -> Array:
        """The same about another ``centre`` (d,)."""
        if not self.formed:
            return scatter_product(self.rows, Head(len(self.rows), centre, np.zeros_like(centre)), V)
        found = self.moments()
        deviation = (found.mean - centre) + found.remainder
        return found.times(V) + found.count * np.outer(deviation, deviation @ V)

    def _kept(self, name: str) -> bool:
        """Whether it is there, of these rows: a method may ask about a part of them first (`personalised`)."""
        return name in self.state and int(self.state[name][0]) == len(self.rows)

    def drop(self) -> None:
        """Forget it: the run needs it no more."""
        self.state.drop(MOMENTS)
        self.state.drop(MEANS)


def worth_forming(rows: int, features: int, columns: int) -> bool:
    """Whether forming a scatter and multiplying it with so many columns is cheaper than multiplying the rows.

    In multiplications and additions n d^2, 2 d^2 c, and 4 n d c.
    """
    return rows * features + 2 * features * columns < 4 * rows * columns
