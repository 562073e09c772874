r"""SPCA and SAPCA: the leading directions of a stream in a single pass, and their merging with those of others.

The methods `spca` and `sapca`: Grammenos et al. 2019, algorithms 2 and 3, with rank-revealing blocks, directions that
stay orthonormal, a mean that streams along, and the last partial block.

**The state.** A `Subspace` stands for rows: :math:`V \mathrm{diag}(\sigma^2) V^T` is their scatter, but for
truncations. A truncation takes away a positive semidefinite matrix, of which two numbers are stored: its trace
(``energy`` less the sum of :math:`\sigma^2`) and a bound on its norm (the sum of the first omitted eigenvalues). Every
block and every merge rounds anew, so the rounding of each is counted too, in the same bound (``omitted``). Memory is
O(d (k + b)) for k tracked directions and blocks of b rows; no d x d matrix is ever formed.

**The number of directions** that a stream needs comes from a rule that looks at the singular values after each block:
`Fixed`, `Energy`, the usual rule and the default, or `Band`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr, svd
from typing_extensions import override

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs, rounding_bound
from fedpca_flwr.maths.moments import Head, centre_rows, head_order, pool_heads, rows_between
from fedpca_flwr.maths.rows import Rows, row_chunks

MIN_SINGULAR_SHARE = 1e-12  # of the largest singular value: below it another is rounding, with an arbitrary direction
HOLD_BLOCKS = 2  # so many blocks a rank stands before it falls, of a rule with hysteresis


class RankRule(Protocol):
    """A rule that chooses the number of directions (`rank`) tracked in a stream, anew after each block of rows."""

    rank: int

    def step(self, sigma: Array, energy: float) -> int:
        """Choose the rank from the singular values (k,) and the scatter's trace (``energy``) of all rows so far."""


class Fixed(RankRule):
    """The rule that keeps a constant number of directions (rank)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @override
    def step(self, sigma: Array, energy: float) -> int:
        """Return the same rank as before: the rule keeps a fixed rank, whatever the singular values."""
        return self.rank


class Energy(RankRule):
    """The rule that takes the smallest rank whose squared singular values hold a share of the total variance (energy).

    If all directions hold less than ``target``, from 0 to 1, the rank is one more than their number.
    """

    def __init__(self, target: float) -> None:
        self.target, self.rank = target, 1

    @override
    def step(self, sigma: Array, energy: float) -> int:
        """Return the smallest rank whose squared singular values hold the target share of ``energy``."""
        enough = np.cumsum(sigma**2) >= self.target * energy
        self.rank = int(enough.argmax()) + 1 if enough.any() else sigma.size + 1
        return self.rank


class Band(RankRule):
    r"""The rule that keeps the last singular value's share of their sum within a band (Grammenos et al. 2019, eq. 6).

    The share :math:`c = \sigma_r / \sum_{i \le r} \sigma_i` shall lie between alpha and beta, with 0 <= alpha < beta <=
    1: above, the rank grows by one; below, it falls by one. Since c <= 1 / r, it never grows beyond ceil(1 / beta). As
    printed, the rule cycles on equal values. With hysteresis it grows only if the next direction would not be dropped
    again, and a fall waits until the rank has stood for `HOLD_BLOCKS` blocks.
    """

    def __init__(self, rank: int, alpha: float, beta: float, *, hysteresis: bool = True) -> None:
        self.rank, self.alpha, self.beta, self.hysteresis = rank, alpha, beta, hysteresis
        self.hold = HOLD_BLOCKS if hysteresis else 0
        self._steady_blocks = 0

    @override
    def step(self, sigma: Array, energy: float) -> int:
        """Raise or lower the rank by one if the share of the last of its singular values is outside of the band."""
        r = min(self.rank, sigma.size)  # a block may have fewer directions than the rank
        if not r:
            return self.rank
        share = sigma[r - 1] / sigma[:r].sum()
        change = 0
        stays = not self.hysteresis or (sigma.size > r and sigma[r] / sigma[: r + 1].sum() >= self.alpha)
        if share > self.beta and stays and r < math.ceil(1 / self.beta):  # with rounding it might exceed that
            change = 1
        elif share < self.alpha and r > 1 and self._steady_blocks >= self.hold:
            change = -1
        self._steady_blocks = 0 if change else self._steady_blocks + 1
        self.rank = r + change if change else self.rank
        return self.rank

    def stationary_rank(self, sigma: Array) -> int:
        """Apply the rule to the same singular values (k,), descending, until `rank` is stationary, and return it."""
        for _ in sigma:  # as many steps as there are directions suffice
            self._steady_blocks = self.hold
            before = self.rank
            if self.step(sigma, 0.0) == before:
                break
        return self.rank


@dataclass(frozen=True)
class Subspace:
    """The leading principal directions of the rows of a stream, with their singular values and error bounds."""

    head: Head  # weighted number of rows (a float), and their mean
    vectors: Array  # orthonormal directions V (d, k)
    sigma: Array  # (k,), singular values of the centred rows, descending, above zero
    energy: float = 0.0  # trace of the scatter of all rows, in squared units of the data
    omitted: float = 0.0  # bound on the spectral norm of ``V diag(sigma^2) V'`` less the scatter, with rounding

    @classmethod
    def empty(cls, d: int) -> Subspace:
        """Create the state of a stream of d features before its first row: no directions."""
        return cls(Head(0, np.zeros(d), np.zeros(d)), np.empty((d, 0)), np.empty(0))

    def diagonal(self) -> Array:
        """Compute the diagonal (d,) of the low-rank scatter ``V diag(sigma^2) V'``, for the tracked directions V."""
        return np.asarray(np.square(self.vectors * self.sigma).sum(axis=1))

    def pairs(self, k: int) -> Eigenpairs:
        """Return the k leading eigenpairs of the tracked scatter, completed by orthonormal vectors of eigenvalue 0."""
        vectors, missing = self.vectors[:, :k], max(0, k - self.sigma.size)
        if missing:
            filler = np.random.default_rng(0).standard_normal((len(vectors), missing))
            vectors, _ = qr(np.hstack([vectors, filler]), mode="economic")
        values = np.concatenate([self.sigma[:k] ** 2, np.zeros(missing)])
        following = float(self.sigma[k] ** 2) if self.sigma.size > k else 0.0
        return Eigenpairs(values, fix_signs(vectors), following)


class Tracker:
    """Streaming PCA in a single pass over blocks of rows, of fixed rank (SPCA) or of a rank chosen by a rule (SAPCA).

    Attribute `subspace` is the state after all blocks so far. ``tracked`` directions are tracked, or with 0 as many as
    the rank: the paper's number, which loses 3 to 6 % of the variance that twice as many hold. Before each block of b
    rows the singular values are multiplied by ``forgetting``, for an effective window of ``b / (1 - forgetting**2)``
    rows. With ``center`` the rows' mean is followed and subtracted, exactly as if it had been known before.
    """

    def __init__(self, d: int, rule: RankRule, *, tracked: int = 0, forgetting: float = 1.0, center: bool) -> None:
        self.subspace = Subspace.empty(d)
        self.rule, self.tracked, self.forgetting, self.center = rule, tracked, forgetting, center

    @property
    def rank(self) -> int:
        """Present number of directions that the rank rule chose."""
        return self.rule.rank

    @property
    def vectors(self) -> Array:
        """Leading principal directions (d, rank) of the rows so far, orthonormal columns."""
        return self.subspace.vectors[:, : self.rank]

    def update(self, block: NDArray[Any]) -> None:
        """Update the subspace by a block (b, d) of rows, b >= 1, after earlier rows are scaled by ``forgetting``."""
        rows, old = np.asarray(block, dtype=np.float64), _scale_subspace(self.subspace, self.forgetting)
        head = old.head._replace(n=old.head.n + len(rows))
        if self.center:
            head, rows = _append_mean_row(old.head, rows)
        energy = old.energy + float(np.vdot(rows, rows))
        basis, turn, sigma, neglected = _append_block(old.vectors, old.sigma, rows)
        rank = self.rule.step(sigma, energy)
        k = self.tracked or rank
        omitted = old.omitted + _truncation_error(sigma, k, len(basis)) + neglected
        self.subspace = Subspace(head, basis @ turn[:, :k], sigma[:k], energy, omitted)


def track(rows: Rows, rank: int, *, tracked: int = 0, block: int = 50, center: bool = True) -> Subspace:
    """Compute the ``rank`` leading principal directions of rows (n, d) in a single pass, by blocks (see `Tracker`)."""
    tracker = Tracker(rows.shape[1], Fixed(rank), tracked=tracked, center=center)
    for part in row_chunks(rows, block):
        tracker.update(part)
    return tracker.subspace


def merge(parts: Sequence[Subspace], k: int, factors: Iterable[float] = (), *, batch: int = 0) -> Subspace:
    """Merge the leading directions of several sets of rows into k of all rows together, with their means.

    The ``factors`` (1 by default) scale each part's singular values: below 1 forgets, above 1 enhances. The scaled
    directions, and rows for the differences of the means, are stacked, and their SVD gives the result (Grammenos et al.
    2019, algorithm 5, extended by the means). The merge is associative as long as nothing is truncated. The parts
    themselves fix their order: permuting them changes no bit. With ``batch`` of 2 or more, so many neighbours are
    merged at once, and then the results, until one is left: the order then matters.
    """
    scaled = [_scale_subspace(*pair) for pair in zip(parts, list(factors) or [1.0] * len(parts), strict=True)]
    while 1 < batch < len(scaled):
        groups = [scaled[i : i + batch] for i in range(0, len(scaled), batch)]
        scaled = [merge(group, k) if len(group) > 1 else group[0] for group in groups]
    scaled.sort(key=lambda part: (*head_order(part.head), *part.sigma))
    pooled, between = rows_between([part.head for part in scaled])
    columns = np.hstack([*(part.vectors * part.sigma for part in scaled), between.T])
    vectors, sigma, _ = svd(columns, full_matrices=False, check_finite=False)
    sigma = _above_noise(sigma, sigma.max())
    energy = sum(part.energy for part in scaled) + float(np.vdot(between, between))
    omitted = sum(part.omitted for part in scaled) + _truncation_error(sigma, k, len(vectors))
    return Subspace(pooled, vectors[:, : sigma[:k].size], sigma[:k], energy, omitted)


def _scale_subspace(part: Subspace, factor: float) -> Subspace:
    """Multiply the centred rows of a subspace by ``factor``, so that each row has the weight ``factor**2``."""
    head = part.head._replace(n=factor**2 * part.head.n)
    return Subspace(head, part.vectors, factor * part.sigma, factor**2 * part.energy, factor**2 * part.omitted)


def _append_mean_row(before: Head, rows: Array) -> tuple[Head, Array]:
    """Return count and mean of old and new rows, and the new rows less their mean, with a row between the means.

    The last row, omitted if there are no old rows, makes the scatters of old and new rows that about their common mean.
    """
    block_head, centred = centre_rows(rows)
    if not before.n:
        return block_head, centred
    pooled, (_, step) = pool_heads([before, block_head])
    return pooled, np.vstack([centred, np.sqrt(block_head.n * pooled.n / before.n) * step])


def _append_block(vectors: Array, sigma: Array, rows: Array) -> tuple[Array, Array, Array, float]:
    """Compute the SVD of ``diag(sigma) vectors'`` stacked on ``rows``, as a basis, a rotation and singular values.

    The basis (d, m) times the rotation (m, m') has the right singular vectors. The last number bounds the spectral norm
    of the scatter's change by leaving out directions at the level of rounding. The residual is projected twice, and
    only its directions above rounding enter the basis: the literal algorithm takes a QR's arbitrary directions instead,
    and is no longer orthonormal on a stream of low rank.
    """
    # rows = inside @ vectors' + outside, with outside orthogonal to the vectors
    inside = rows @ vectors
    outside = rows - inside @ vectors.T
    correction = outside @ vectors
    outside -= correction @ vectors.T
    inside += correction
    directions, triangle, pivots = qr(outside.T, mode="economic", pivoting=True, check_finite=False)
    length = float(np.linalg.norm(rows))
    unit = max(length, sigma.max(initial=0.0))
    k, new = sigma.size, _above_noise(np.abs(triangle.diagonal()), unit).size
    directions = directions[:, :new] - vectors @ (vectors.T @ directions[:, :new])
    coordinates = np.hstack([inside[pivots], triangle[:new].T])  # of the rows in the basis
    gram = coordinates.T @ coordinates  # rounds as every scatter does, which `_truncation_error` counts
    gram[np.diag_indices(k)] += sigma**2
    values, turn = eigh(gram, driver="evd", check_finite=False)
    merged = _above_noise(np.sqrt(values[::-1].clip(min=0.0)), unit)
    neglected = 2 * length * float(np.linalg.norm(triangle[new:]))
    return np.hstack([vectors, directions]), turn[:, ::-1][:, : merged.size], merged, neglected


def _above_noise(sigma: Array, unit: float) -> Array:
    """Return the singular values that are above rounding errors: above `MIN_SINGULAR_SHARE` of ``unit``."""
    return sigma[sigma > MIN_SINGULAR_SHARE * unit]


def _truncation_error(sigma: Array, k: int, d: int) -> float:
    """Bound the spectral norm of a scatter's (d, d) change by truncation to k directions, and by rounding.

    ``sigma`` are its singular values, descending; the truncation omits ``sigma[k]**2`` at most in any direction.
    """
    return float(sigma[k:].max(initial=0.0) ** 2) + rounding_bound(d) * float(sigma.max(initial=0.0) ** 2)
