"""A table of all parties' heads that fills while parties pass on what they know."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, pool_heads


class Heads(NamedTuple):
    """Heads by party; zeros where a party's is not known yet.

    Attributes
    ----------
    counts : ndarray of shape (K,), integers
    traces : ndarray of shape (K,)
        Of the scatter about the party's own mean.
    tops : ndarray of shape (K,)
        Largest eigenvalue of that scatter, from below (`sanger.largest_eigenvalue`).
    means, remainders : ndarray of shape (K, d)
        See `moments.Head`.
    """

    counts: NDArray[np.int64]
    traces: Array
    tops: Array
    means: Array
    remainders: Array

    @classmethod
    def of(cls, party: int, parties: int, head: Head, trace: float, top: float) -> Heads:
        """What a party knows at first: its own head."""
        d = head.mean.size
        alone, vectors = np.zeros(parties), np.zeros((parties, d))
        table = cls(np.zeros(parties, np.int64), alone, alone.copy(), vectors, vectors.copy())
        table.counts[party], table.traces[party], table.tops[party] = head.n, trace, top
        table.means[party], table.remainders[party] = head.mean, head.remainder
        return table

    def filled_from(self, other: Heads) -> Heads:
        """This table with those of the other's heads that it does not have."""
        new = (self.counts == 0) & (other.counts > 0)
        columns = zip(self, other, strict=True)
        return Heads(*(np.where(new if own.ndim == 1 else new[:, None], their, own) for own, their in columns))

    def pooled(self) -> tuple[Head, float, Array, Array]:
        """Pooled head, the trace of the pooled scatter, each party's trace about the pooled mean, its deviation.

        The order of the sums is fixed by the heads: permuting the parties changes no bit of the pooled head and trace.

        Returns
        -------
        head : Head
        total : float
        traces : ndarray of shape (K,)
        deviations : ndarray of shape (K, d)
        """
        heads = [Head(int(n), m, r) for n, m, r in zip(self.counts, self.means, self.remainders, strict=True)]
        order = sorted(range(len(heads)), key=lambda i: (heads[i].n, heads[i].mean.tobytes(), heads[i][2].tobytes()))
        pooled, ordered = pool_heads([heads[i] for i in order])
        deviations = np.array(ordered)[np.argsort(order)]
        traces = self.traces + self.counts * np.einsum("ij,ij->i", deviations, deviations)
        return pooled, math.fsum(traces), traces, deviations

    def steepest(self) -> float:
        """What no party's largest eigenvalue exceeds, about the pooled mean, K-fold, of the pooled scatter's trace."""
        _, total, traces, _ = self.pooled()
        return float(len(self.counts) * (traces - self.traces + self.tops).max() / total)
