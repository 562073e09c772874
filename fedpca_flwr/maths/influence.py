r"""The parties' influence on the components, and whether the statistics that they sent can be the scatter of any rows.

**Shares.** The scatter of all rows is the sum of the parties' contributions, each its own scatter and the part of its
mean::

    S = sum C_k,    C_k = S_k + n_k (m_k - m)(m_k - m)^T

so a component v with eigenvalue :math:`\lambda` has the share :math:`v^T C_k v / \lambda` of party k, and the shares
add up to 1.

**Turns.** Without party k the scatter of the other rows is :math:`S - E_k`, with
:math:`E_k = S_k + n_k N / (N - n_k) (m_k - m)(m_k - m)^T`. If it is cheap, the components of that scatter are computed
(`exact_turn`). Else products :math:`E V` with the components V of all rows bound the angles (`bounded_turn`). With
:math:`V^T (S - E) V = U diag(a) U^T` and :math:`R = (I - V V^T) E V U`, the vectors :math:`V U` are the best that the
span of V has for the others. Since E is positive semidefinite, directions outside the span have no eigenvalue above
:math:`\lambda_{r+1}` of S. So for the first j of them the theorem of Davis and Kahan holds::

    tan 2 theta_j <= 2 |R_1..j| / (a_j - c_j)

where :math:`c_j` bounds the eigenvalues on the orthogonal complement of these j: the largest eigenvalue of
:math:`(a_{j+1}, \rho; \rho, \lambda_{r+1})` with :math:`\rho` the norm of the later columns of R. The squared sine of
the angle by which vector j is off is at most :math:`\sin^2 \theta_{j-1} + \sin^2 \theta_j`, and U tells the turn within
the span.

**Positive semidefinite scatters.** A matrix whose diagonal is that of a scatter can still have a negative eigenvalue.
Added to the scatters of others, it takes a direction of theirs away, and nothing in the sum shows it. A Cholesky factor
of each would cost more than the components do, so scatters are added up in a few groups, drawn at random, and the sum
of each group is factored, in float32 (`RandomGroups`, `indefinite_parts`). A party can then take away no more than the
others of its group have, and it cannot know which parties these are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.moments import Moments, diagonal_positions, packed_size

BLOCK_ENTRIES = 2**16  # entries of packed scatters that are added up at once
MAX_GROUPS = 5  # most groups in which scatters are added up. Each costs a Cholesky factor.
# influence is told of so many components at most: of more it costs more than the components themselves
MAX_COMPONENTS = 10
# share of the first eigenvalue up to which eigenvalues, and gaps between them, are not told from none
RESOLVED_SHARE = 1e-12
# with K parties and d features: up to this K d^3 the components without each party are computed, in some 20 ms
MAX_EXACT_COST = 2**25
# beyond `MAX_EXACT_COST` they are computed where K d^3 is at most this share of n d^2, which the parties' scatters cost
MAX_EXACT_COST_SHARE = 2.0**-8
# a party is named that holds more of a component than this share, and than so many times its share of the rows
MIN_COMPONENT_SHARE, MIN_SHARE_RATIO = 0.35, 3.0
MAX_ROW_SHARE = 0.95  # a party is named that has more than this share of all rows
MAX_SPREAD = 10.0  # a party is named whose rows vary more than so many times as much as those of the median party
# a party is named if the components hold less of its own variance than this share of what they hold of the median
# party's, where they hold at least the second share of that
MIN_FIT_RATIO, MIN_TYPICAL_FIT = 0.4, 0.4

MAX_NEAR_GAP = 0.2  # variances are nearly the same whose difference is at most this share of the larger

Reason = Literal["rows", "share", "spread", "fit"]
Part = Moments | Factor  # one party's rows: their head, and the diagonal and products of their scatter


@dataclass(frozen=True)
class Influence:
    """The influence of a party's rows on a PCA of all rows. Shares are from 0 to 1.

    `components` (r,) are shares of the variance of the first components: of at most `MAX_COMPONENTS`, and only of those
    that float64 resolves. `fit` is the share of the party's own variance in the components' span, NaN if the party has
    no variance. `spread` is the variance of its rows about the pooled mean, in multiples of that of the median party,
    NaN if that is 0.
    """

    rows: float  # share of all rows
    variance: float  # share of the trace of the scatter of all rows
    components: Array
    turns: Turns | Sequence[Turn]  # of all parties, in their order
    fit: float
    spread: float
    party: int = 0

    @property
    def turn(self) -> Turn:
        """Bounds on the angles by which components and span change in the PCA of all other rows with the same scale."""
        return self.turns[self.party]


def party_influences(
    parts: Sequence[Part], pairs: Eigenpairs, mean: Array, scale: Array | None, *, center: bool, between: bool
) -> list[Influence]:
    """Compute the influence of each party, in their order, on the eigenpairs of the scatter of all rows.

    The pairs are of the scatter after division of features by `scale` (d,). If `center`, the scatter is about the mean
    (d,) of the rows, which changes if a party is left out; else the mean is zero. If `between`, the scatter includes
    the variance between the parties' means.
    """
    unit = float(pairs.values[0])  # nothing is squared in the unit of the data
    values = pairs.values / unit
    r = min(MAX_COMPONENTS, int((values > RESOLVED_SHARE).sum()))
    following = values[r] if r < values.size else pairs.following / unit
    V, weights = pairs.vectors[:, :r], np.ones_like(mean) if scale is None else 1 / scale
    heads = [part.head for part in parts]
    rows = np.array([head.n for head in heads], dtype=np.float64)
    total, W, axes = rows.sum(), weights[:, None] * V, V.copy(order="K")  # nobody changes the copy before it is read
    products = np.stack([part.times(W) for part in parts]) / unit * weights[:, None]
    local_traces = np.stack([part.diagonal() for part in parts]) / unit @ weights**2
    deviations = np.stack([head.mean - mean + head.remainder for head in heads]) * weights * between
    deviations *= np.sqrt(rows / unit)[:, None]
    inner = deviations @ V
    component_energies = np.einsum("di,kdi->ki", V, products)
    traces = local_traces + np.einsum("kd,kd->k", deviations, deviations)
    # without party k the scatter loses S_k + n_k N / (N - n_k) (m_k - m)(m_k - m)': `leaving` is N / (N - n_k)
    leaving = total / np.where(rows == total, total, total - rows) if center else np.ones_like(rows)
    if len(parts) * mean.size**3 <= max(MAX_EXACT_COST, MAX_EXACT_COST_SHARE * total * mean.size**2):
        turns = Turns(lambda: _exact_turns(parts, deviations, leaving, weights, unit, axes))
    else:
        removed = products + leaving[:, None, None] * deviations[:, :, None] * inner[:, None, :]
        turns = Turns(lambda: [bounded_turn(product, axes, values[:r], float(following)) for product in removed])
    median = float(np.median(traces / rows))
    shares = (component_energies + inner**2) / values[:r]
    unknown = np.full(len(rows), np.nan)
    fits = np.divide(component_energies.sum(axis=1), local_traces, out=unknown, where=local_traces > 0)
    spread = traces / rows / median if median > 0 else np.full(len(rows), np.nan)
    columns = (rows / total, traces / traces.sum(), shares, fits, spread)
    return [
        Influence(float(n), float(t), components, turns, float(f), float(s), party)
        for party, (n, t, components, f, s) in enumerate(zip(*columns, strict=True))
    ]


def near_groups(variances: Array) -> list[list[int]]:
    """Return the indices of components (k,) in groups, each with nearly the variance of the first of its group."""
    groups: list[list[int]] = []
    for i, variance in enumerate(variances):
        if not groups or variance < (1 - MAX_NEAR_GAP) * variances[groups[-1][0]]:
            groups.append([])
        groups[-1].append(i)
    return groups


def outlying_parties(influences: Sequence[Influence]) -> dict[int, list[Reason]]:
    """Find the indices of parties whose influence is out of proportion, with the reasons.

    A party has nearly all "rows", too large a "share" of a component, too much "spread", or too little "fit" to them.
    """
    if len(influences) == 1:
        return {}
    table = [(record.rows, record.components.max(), record.fit, record.spread) for record in influences]
    rows, largest, fits, spread = np.array(table).T
    many = rows > MAX_ROW_SHARE
    fair = rows / (rows[~many].sum() or 1.0)  # shares of rows without parties that claim nearly all
    finite_fits = fits[~np.isnan(fits)]
    typical = float(np.median(finite_fits)) if finite_fits.size else 0.0
    reasons: dict[Reason, NDArray[np.bool_]] = {
        "rows": many,
        "share": ~many & (largest > np.maximum(MIN_COMPONENT_SHARE, MIN_SHARE_RATIO * fair)),
        "spread": (spread > MAX_SPREAD) & (len(influences) > 2),  # of two, neither is the odd one
        "fit": (fits < MIN_FIT_RATIO * typical) & (typical >= MIN_TYPICAL_FIT) & (len(influences) > 2),
    }
    outlying: dict[int, list[Reason]] = {}
    for name, holds in reasons.items():
        for party in np.flatnonzero(holds).tolist():
            outlying.setdefault(party, []).append(name)
    return dict(sorted(outlying.items()))


def _exact_turns(
    parts: Sequence[Part], deviations: Array, leaving: Array, weights: Array, unit: float, V: Array
) -> list[Turn]:
    """Return, for each party left out, the angles from components ``V`` (d, r) to those of the other rows.

    Row k of ``deviations`` (K, d) is sqrt(n_k) (m_k - m), scaled; its outer product counts ``leaving[k]``-fold in what
    the scatter loses. ``weights`` (d,) multiply features; scatters are divided by ``unit``.
    """

    def scatter(k: int, factor: float) -> Array:
        """Return the scaled scatter (d, d) of part k about its mean, plus ``factor`` times that of its mean."""
        local_scatter = parts[k].times(np.diag(weights)) / unit * weights[:, None]
        return local_scatter + factor * np.outer(deviations[k], deviations[k])

    if len(parts) == 1:
        return [Turn(np.full(V.shape[1], 90.0), 90.0 * (V.shape[1] < V.shape[0]))]
    total = np.add.reduce([scatter(k, 1.0) for k in range(len(parts))])
    return [exact_turn(total - scatter(k, leaving[k]), V) for k in range(len(parts))]


@dataclass(frozen=True)
class Turn:
    """Angles, in degrees from 0 to 90, by which the first r components change, or upper bounds on the angles."""

    axes: Array  # (r,), between components of the same index in both PCAs
    span: float  # largest principal angle between the spans of the r components


class Turns:
    """The turns without each party, computed from the parties' parts when first read; then the parts are dropped."""

    def __init__(self, compute: Callable[[], list[Turn]]) -> None:
        self._turns: Callable[[], list[Turn]] | list[Turn] = compute

    def __getitem__(self, party: int) -> Turn:
        """Return the turn of the components without a party, by its index."""
        if not isinstance(turns := self._turns, list):
            turns = self._turns = turns()
        return turns[party]


def exact_turn(remaining: Array, V: Array) -> Turn:
    """Compute the angles from components V (d, r) to the leading eigenvectors of a scatter (d, d) without a party.

    The scatter is in multiples of the first eigenvalue of the scatter of all rows. The angle is 90 degrees for
    components that the scatter does not determine.
    """
    d, r = V.shape
    pairs = leading_eigenpairs(np.asfortranarray(remaining), r)
    values = np.concatenate([[np.inf], pairs.values, [pairs.following if r < d else -np.inf]])
    gaps = values[:-1] - values[1:]
    cosines = np.abs(np.einsum("di,di->i", pairs.vectors, V))
    axes = np.degrees(np.arccos(np.minimum(1.0, cosines)))
    axes[np.minimum(gaps[:-1], gaps[1:]) <= RESOLVED_SHARE] = 90.0
    if r == d:
        return Turn(axes, 0.0)
    if gaps[-1] <= RESOLVED_SHARE:
        return Turn(axes, 90.0)
    largest_sine = float(np.linalg.norm(pairs.vectors - V @ (V.T @ pairs.vectors), 2))
    return Turn(axes, float(np.degrees(np.arcsin(min(1.0, largest_sine)))))


def bounded_turn(removed_product: Array, V: Array, values: Array, following: float) -> Turn:
    """Bound the angles by which components V change if a party's part E (d x d) is subtracted from the scatter.

    `removed_product` is ``E V``, with E positive semidefinite, and `following` the eigenvalue after ``values``. Theorem
    of Davis and Kahan: tan 2 theta <= 2 |residuals| / gap, for the span of the first j Ritz vectors, each j.

    Shapes: removed_product (d, r), V (d, r), values (r,).
    """
    d, r = V.shape
    inside = V.T @ removed_product
    remaining_values, U = np.linalg.eigh(np.diag(values) - (inside + inside.T) / 2)
    remaining_values, U = remaining_values[::-1], U[:, ::-1]
    R = (removed_product - V @ inside) @ U
    cuts = np.zeros(r + 1)  # bounds on the angle of the first j components together, in radians
    for j in range(1, r + 1):
        above, below = float(np.linalg.norm(R[:, :j], 2)), following
        if j < r:  # larger eigenvalue of (remaining_values[j], rho; rho, following), rho = |R[:, j:]|
            middle, half = (remaining_values[j] + following) / 2, (remaining_values[j] - following) / 2
            below = float(middle + np.hypot(half, float(np.linalg.norm(R[:, j:], 2))))
        gap = float(remaining_values[j - 1]) - below
        cuts[j] = np.arctan2(2 * above, gap) / 2 if gap > RESOLVED_SHARE else np.pi / 2
    if r == d:
        cuts[-1] = 0.0
    # vector j lies off the spans of the first j - 1 and j by these angles, and U rotates it within the span
    sines = np.sqrt(np.minimum(1.0, np.sin(cuts[:-1]) ** 2 + np.sin(cuts[1:]) ** 2))
    axes = np.arcsin(sines) + np.arccos(np.minimum(1.0, np.abs(np.diagonal(U))))
    return Turn(np.minimum(90.0, np.degrees(axes)), float(np.degrees(cuts[-1])))


class RandomGroups:
    """Sums of scatters in a few groups, drawn at random for a number of parties, each tested for negative eigenvalues.

    The scatters come in sequence and are not stored. The parties must not know the seed of ``rng``.
    """

    def __init__(self, parts: int, rng: np.random.Generator) -> None:
        self._groups = itertools.cycle(_draw_groups(parts, rng))
        self._sums: dict[int, Array] = {}
        self._names: dict[int, list[str]] = {}

    def add(self, name: str, part: Moments) -> None:
        """Add the scatter of a party, by name, to the sum of the party's random group."""
        group = int(next(self._groups))
        self._names.setdefault(group, []).append(name)
        if group not in self._sums:
            self._sums[group] = part.scatter.copy()
            return
        with np.errstate(over="ignore"):
            self._sums[group] += part.scatter

    def indefinite_groups(self, d: int, largest: float, scale: Array | None) -> list[list[str]]:
        """Return the parties' names in each group whose sum has a negative eigenvalue beyond float32 rounding.

        Scatters are divided by ``scale`` (d,). ``largest`` is the largest eigenvalue of the sum of all after that.
        """
        return [self._names[i] for i, total in self._sums.items() if not _is_semidefinite([total], d, largest, scale)]


def indefinite_parts(
    parts: Sequence[Moments], largest: float, scale: Array | None, rng: np.random.Generator
) -> list[int]:
    """Find the parties whose scatter has a negative eigenvalue, in random groups whose sum has a negative eigenvalue.

    Scatters are divided by ``scale`` (d,); ``largest`` is the largest eigenvalue of their sum after that. A negative
    eigenvalue is rounding if it is less than ``4 d`` roundings of float32 of ``largest`` (4e-4 for 784 features).
    Whoever made the parts must not know the seed of ``rng``, which draws the groups.
    """
    if not parts:
        return []
    d, groups, suspects = parts[0].n_features, _draw_groups(len(parts), rng), list[int]()
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group).tolist()
        if not _is_semidefinite([parts[i].scatter for i in members], d, largest, scale):
            suspects += members
    return [i for i in sorted(suspects) if not _is_semidefinite([parts[i].scatter], d, largest, scale)]


def _draw_groups(parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the random group of each part (parts,)."""
    return rng.permutation(parts) % min(MAX_GROUPS, parts)


def _is_semidefinite(parts: Sequence[Array], d: int, largest: float, scale: Array | None) -> bool:
    """Return whether the sum of packed scatters (d x d) has no negative eigenvalue beyond rounding.

    It is divided by ``scale`` (d,) in rows and columns, and by the eigenvalue ``largest``, before the test in float32.
    """
    size = packed_size(d)
    packed, starts = np.empty(size, np.float32), [*diagonal_positions(d).tolist(), size]
    rows = max(1, BLOCK_ENTRIES // d)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite entries fail the test: others must cancel them
        for first in range(0, d, rows):
            last = min(first + rows, d)
            block = slice(starts[first], starts[last])
            total = parts[0][block].copy()
            for other in parts[1:]:
                total += other[block]
            total /= largest
            if scale is not None:  # unscaled entries may be out of the range of float32
                for i in range(first, last):
                    total[starts[i] - block.start : starts[i + 1] - block.start] /= scale[i] * scale[i:]
            packed[block] = total
        matrix, _ = lapack.stpttr(d, packed, uplo="L")
    del packed
    # a Cholesky factor exists only if no eigenvalue is below minus this tolerance
    matrix[np.diag_indices(d)] += np.float32(4 * d * np.finfo(np.float32).eps)
    _, info = lapack.spotrf(matrix, lower=1, clean=0, overwrite_a=1)
    return bool(info == 0)
