r"""How much of the components each party holds, and what they were without it, from moments that are at hand.

The scatter of all rows is the sum of the parties' contributions, each its own scatter and what its mean adds::

    S = sum C_k,    C_k = S_k + n_k (m_k - m)(m_k - m)^T

so a component v with eigenvalue :math:`\lambda` has the share :math:`v^T C_k v / \lambda` of party k, and the shares
add up to 1. Without party k the scatter of the other rows is :math:`S - E_k`, with
:math:`E_k = S_k + n_k N / (N - n_k) (m_k - m)(m_k - m)^T`, and its components are others: by how much,
`fedpca_flwr.maths.leaving` tells, exactly where that is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.maths.leaving import RESOLVED, Turn, bounded_turn, exact_turn
from fedpca_flwr.maths.moments import Head

LEADING = 10
"""Of so many components at most: what each party has of more costs more than the components themselves."""

CHEAP = 2**25
"""Of K parties and d features, K d^3 up to which the components without each party are computed: some 20 ms."""

SHARE = 2.0**-8
"""Beyond it they are computed where K d^3 is at most this share of n d^2, which the parties' scatters cost; else angles
are bounds."""

HOLDS, FAIR = 0.35, 3.0
"""A party is told that holds more than this share of a component, and more than so many times its share of the rows."""

MOST_ROWS = 0.95
"""So is one with more than this share of all rows,"""

SPREAD = 10.0
"""one whose rows vary more than so many times as much as those of the median party,"""

FITS, FITTED = 0.4, 0.4
"""and one of whose own variance the components hold less than this share of what they hold of the median party's,
where that is at least so much."""


Reason = Literal["rows", "share", "spread", "fit"]


class Part(Protocol):
    """What is known of one party's rows."""

    @property
    def head(self) -> Head:
        """Count and mean."""

    def diagonal(self) -> Array:
        """Of its scatter about its own mean, (d,)."""

    def times(self, V: Array) -> Array:
        """That scatter times ``V`` (d, b)."""


@dataclass(frozen=True)
class Influence:
    """What one party has in a model; all but ``spread`` and ``turn`` are shares, 0 to 1.

    Attributes
    ----------
    rows : float
        Of all rows.
    variance : float
        Of the trace.
    components : ndarray of shape (r,)
        Of the variance of each of the first r components: at most `LEADING`, and such as float64 resolves.
    turn : Turn
        By what each of these turns at most, and their span, in the PCA of all other rows with the same scale.
    fit : float
        Of its own variance, what the components hold; NaN where it has none.
    spread : float
        Variance of its rows about the pooled mean, in multiples of that of the median party; NaN where that is 0.
    """

    rows: float
    variance: float
    components: Array
    turn: Turn
    fit: float
    spread: float


def influences(
    parts: Sequence[Part], pairs: Eigenpairs, mean: Array, scale: Array | None, *, center: bool, between: bool
) -> list[Influence]:
    """The influence of each party.

    Parameters
    ----------
    parts : sequence of Part
    pairs : Eigenpairs
        Of the scatter of all rows.
    mean : ndarray of shape (d,)
        That of all rows; zero without ``center``.
    scale : ndarray of shape (d,) or None
        What each feature is divided by.
    center : bool
        Whether the scatter is about the mean of all rows, which is another one without a party.
    between : bool
        Whether the scatter holds what lies between the parties' means.
    """
    unit = float(pairs.values[0])  # nothing is squared in the unit of the data
    values = pairs.values / unit
    r = min(LEADING, int((values > RESOLVED).sum()))
    following = values[r] if r < values.size else pairs.following / unit
    V, weights = pairs.vectors[:, :r], np.ones_like(mean) if scale is None else 1 / scale
    rows = np.array([part.head.n for part in parts], dtype=np.float64)
    total, W = rows.sum(), weights[:, None] * V
    products = np.stack([part.times(W) for part in parts]) / unit * weights[:, None]
    own = np.stack([part.diagonal() for part in parts]) / unit @ weights**2
    deviations = np.stack([part.head.mean - mean + part.head.remainder for part in parts]) * weights * between
    deviations *= np.sqrt(rows / unit)[:, None]
    inner = deviations @ V
    held = np.einsum("di,kdi->ki", V, products)
    traces = own + np.einsum("kd,kd->k", deviations, deviations)
    leaving = total / np.where(rows == total, total, total - rows) if center else np.ones_like(rows)
    if len(parts) * mean.size**3 <= max(CHEAP, SHARE * total * mean.size**2):
        turns = _exact_turns(parts, deviations, leaving, weights, unit, V)
    else:
        taken = products + leaving[:, None, None] * deviations[:, :, None] * inner[:, None, :]
        turns = [bounded_turn(one, V, values[:r], float(following)) for one in taken]
    median = float(np.median(traces / rows))
    shares = (held + inner**2) / values[:r]
    fits = np.divide(held.sum(axis=1), own, out=np.full(len(rows), np.nan), where=own > 0)
    spread = traces / rows / median if median > 0 else np.full(len(rows), np.nan)
    columns = (rows / total, traces / traces.sum(), shares, turns, fits, spread)
    return [Influence(float(n), float(t), c, a, float(f), float(s)) for n, t, c, a, f, s in zip(*columns, strict=True)]


def told(found: Sequence[Influence]) -> dict[int, list[Reason]]:
    """Which parties a reader should be told of, and why: what they hold is out of proportion to what they, or the
    others, are."""
    rows, largest, fits, spread = (
        np.array(numbers)
        for numbers in zip(*((one.rows, one.components.max(), one.fit, one.spread) for one in found), strict=True)
    )
    many = rows > MOST_ROWS
    fair = rows / (rows[~many].sum() or 1.0)  # who claims nearly all rows makes those of the others nothing
    known = fits[~np.isnan(fits)]
    usual = float(np.median(known)) if known.size else 0.0
    reasons: dict[Reason, NDArray[np.bool_]] = {
        "rows": many,
        "share": ~many & (largest > np.maximum(HOLDS, FAIR * fair)),
        "spread": (spread > SPREAD) & (len(found) > 2),  # of two, neither is the odd one
        "fit": (fits < FITS * usual) & (usual >= FITTED) & (len(found) > 2),
    }
    everyone = {party: [name for name, holds in reasons.items() if holds[party]] for party in range(len(found))}
    return {party: why for party, why in everyone.items() if why and len(found) > 1}


def _exact_turns(
    parts: Sequence[Part], deviations: Array, leaving: Array, weights: Array, unit: float, V: Array
) -> list[Turn]:
    """By what components ``V`` (d, r) turn without each part; ``deviations`` (K, d) are what its mean adds."""

    def scatter(k: int, factor: float) -> Array:
        own = parts[k].times(np.diag(weights)) / unit * weights[:, None]
        return own + factor * np.outer(deviations[k], deviations[k])

    if len(parts) == 1:
        return [Turn(np.full(V.shape[1], 90.0), 90.0 * (V.shape[1] < V.shape[0]))]
    whole = np.add.reduce([scatter(k, 1.0) for k in range(len(parts))])
    return [exact_turn(whole - scatter(k, leaving[k]), V) for k in range(len(parts))]
