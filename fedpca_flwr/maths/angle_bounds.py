r"""Bounds on the angles between Ritz vectors and the eigenvectors that they approximate, while an iteration goes on.

**The certificate.** The sine theorem (Davis and Kahan) bounds the angle of the first j Ritz pairs
:math:`(\theta_i, u_i)` of a symmetric :math:`A` together, with their residuals R. Two such cuts certify what lies
between them: one component, or a cluster. The theorem needs an upper bound for :math:`\lambda_{j+1}(A)`. A Ritz value
is none: it lies below the eigenvalue. There are two such bounds, and a test of the second.

**From what is known outside the span** (`proven_bound`). Given a bound c on A outside the span of all blocks asked
(from the trace, or from a known approximation), with W, T the other Ritz pairs and R_W their residuals,
:math:`\lambda_{j+1} \le \mu` for every :math:`\mu > c` with :math:`T + R_W^T R_W / (\mu - c) \preceq \mu` (Courant and
Fischer, and a Schur complement).

**From a random first block S** (`presumed_bound`). Every eigenvector x of :math:`\lambda \ge \mu` obeys
:math:`(\lambda - \theta_i) u_i^T x = r_i^T x`, so if the first j pairs do not see x,

.. math:: S^T x = F(\lambda)\, x, \qquad F(\lambda) = S^T W (\lambda - T)^{-1} R_W^T

which falls exponentially as the span grows. Random numbers do not: where F is smaller than what S shows of any
direction, but for a probability of `MISS_PROBABILITY`, no such x exists. That holds for j + 1 eigenvectors together if
S has more than j columns; else for each alone, if no eigenvalue occurs more often than S has columns.

**Whether eigenvalues hide from narrow blocks** (`Probe`). Block Krylov from b random columns sees b directions of an
eigenspace, however long it goes on. So once the first j Ritz vectors U of :math:`A` have converged, a fresh random
block starts again with what they leave, :math:`B = (I - U U^T) A (I - U U^T)`, and
:math:`\lambda_{j+1}(A) \le \lambda_1(B)` (Courant and Fischer), whatever U is. One direction suffices to bound
:math:`\lambda_1(B)`: any column of the block shows a part of it, since the block was drawn after U was found. So
nothing is presumed of multiplicities (`Probe.ceilings`).
"""

import numpy as np
import scipy  # `scipy.special` is loaded when it is used, which few messages to a site do
from scipy.linalg import lapack

from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import FirstBlock, ProductBasis, Ritz, random_block
from fedpca_flwr.maths.refine import RefinedSketch

MISS_PROBABILITY = 1e-6  # that an eigenvector exists although a random block shows less of it than `least_overlap`
LEVEL_SHARES = (1 / 2, 1 / 8, 1 / 64)  # shares of the gap above the next Ritz value at which a bound is tried


def proven_bound(ritz: Ritz, j: int, outside: float, target: float | None = None) -> float:
    """Bound eigenvalue j + 1 of a matrix from Ritz pairs and a bound `outside` on the matrix outside their span.

    Only `target` is tried if it is given, else several levels, of which the smallest counts; infinity if none holds.
    """
    other_values, residuals, above = ritz.values[j:], ritz.residuals[:, j:], float(ritz.values[j - 1])
    if other_values.size == 0:
        return outside + 2 * ritz.error if outside < above else np.inf
    base, ceiling = max(float(other_values[0]), outside), np.inf
    gram = residuals.T @ residuals
    for level in _trial_levels(base, above) if target is None else [target]:
        # no Cholesky factor: the matrix of the module's formula is not positive definite
        if level <= base or lapack.dpotrf(np.diag(level - other_values) - gram / (level - outside), lower=1)[1]:
            break
        ceiling = level + 2 * ritz.error
    return ceiling


def presumed_bound(ritz: Ritz, j: int, start: FirstBlock, target: float | None = None) -> float:
    """Bound eigenvalue j + 1 of a matrix from the random first block of an iteration, but for `MISS_PROBABILITY`.

    With at most j columns in the block, the bound presumes that no eigenvalue occurs more often than the block has
    columns. `target` is that of `proven_bound`; infinity if no bound holds.
    """
    above, columns, values = float(ritz.values[j - 1]), start.columns, ritz.values
    lowest = float(values[j]) if values.size > j else 0.0
    coordinates, _ = start.coordinates(ritz, above)
    if j < columns:
        bound = least_overlap(columns, j + 1) / np.sqrt(j + 1)
    else:  # what may hide behind the first j is far nearer to them
        bound = least_overlap(columns, 1, MISS_PROBABILITY / (j + 1)) / 2
        above -= 10 * ritz.residual_norm(j) * float(np.linalg.norm(coordinates[:j], 2)) / bound
    levels = _trial_levels(lowest, above) if target is None else [min(target, above)]
    return _lowest_excluded_level(ritz, j, start, levels, bound)


def _lowest_excluded_level(ritz: Ritz, j: int, start: FirstBlock, levels: list[float], bound: float) -> float:
    """Return the lowest of descending levels above which none hides from a block that shows ``bound``, or infinity."""
    lowest, ceiling = float(ritz.values[j]) if ritz.values.size > j else 0.0, np.inf
    hidden = HiddenEigenvector(ritz, j, start)
    for level in levels:
        if level <= lowest:
            break
        coordinates, outside = start.coordinates(ritz, level)
        wrong = ritz.error * float(np.linalg.norm(coordinates[j:]))
        allowed = bound - outside - wrong / (level - lowest)
        if _max_norm_above(hidden, level, allowed) > allowed:
            break
        ceiling = level + 2 * ritz.error
    return ceiling


class HiddenEigenvector:
    r"""The part F of a random first block that lies along an eigenvector which the first j Ritz pairs miss.

    After a restart the block depends on the eigenvalue, and so its part along the first pairs does not quite cancel. As
    :math:`(\lambda - \theta_i) u_i^T x = r_i^T x`, quotients of differences remain, times the residuals of these pairs.
    """

    def __init__(self, ritz: Ritz, j: int, start: FirstBlock) -> None:
        self.ritz, self.j, self.start = ritz, j, start
        self.lowest = float(ritz.values[j]) if ritz.values.size > j else 0.0
        self.first_overlaps = np.zeros((0, start.columns))
        if start.restarts:
            self.first_overlaps = np.array([start.coordinates(ritz, float(ritz.values[i]))[0][i] for i in range(j)])
        self._residuals, self._rest = _compress_residuals(ritz.residuals, start.columns)

    def norm_bound(self, eigenvalue: float) -> float:
        """Bound the Frobenius norm of the block's part F along a missed eigenvector of a given eigenvalue."""
        values, j = self.ritz.values, self.j
        coordinates, _ = self.start.coordinates(self.ritz, eigenvalue)
        gaps = eigenvalue - values
        gaps[:j][gaps[:j] == 0] = np.inf
        weights = coordinates / gaps[:, None]
        weights[:j] = (coordinates[:j] - self.first_overlaps) / gaps[:j, None] if len(self.first_overlaps) else 0.0
        rest = float(self._rest @ np.linalg.norm(weights, axis=1))
        return float(np.hypot(np.linalg.norm(self._residuals @ weights), rest))

    def crude_norm_bound(self, eigenvalue: float) -> float:
        """Bound ``norm_bound(x) * (x - lowest)`` for all eigenvalues x from a given one on."""
        coordinates, _ = self.start.coordinates(self.ritz, eigenvalue)
        residuals = self.ritz.residuals if len(self.first_overlaps) else self.ritz.residuals[:, self.j :]
        shown = float(np.hypot(np.linalg.norm(coordinates[self.j :]), np.linalg.norm(self.first_overlaps)))
        return shown * float(np.linalg.norm(residuals))


def _compress_residuals(residuals: Array, width: int) -> tuple[Array, Array]:
    """Return coordinates (b, m) of residuals (d, m) in b directions, and the lengths (m,) of the remainders.

    In a block Krylov space the residuals lie in the span of the next block, but for rounding.
    """
    d, m = residuals.shape
    sample = residuals if min(d, m) <= 2 * width else residuals @ random_block(m, 2 * width, seed=0)
    directions = np.linalg.qr(sample)[0]
    inside = directions.T @ residuals
    return inside, np.linalg.norm(residuals - directions @ inside, axis=0)


def least_overlap(columns: int, directions: int, probability: float = MISS_PROBABILITY) -> float:
    """Return the part that a random block shows of any unit vector of a fixed subspace, but for a small probability.

    The part is the smallest singular value of a Gaussian matrix (columns of the block, dimensions of the subspace) of
    variance 1/3 (Edelman 1988; Chen and Dongarra 2005, lemma 4.1); uniform numbers between -1 and 1 show as much.
    """
    free = columns - directions + 1
    gammaln = scipy.special.gammaln
    log = np.log(probability) + gammaln(directions / 2) + gammaln(free + 1) - gammaln((columns + 1) / 2)
    return float(np.exp(log / free) / np.sqrt(2 * 3))


def bound_outside_last_block(ritz: Ritz, start: Array, product_count: int) -> float:
    """Bound the norm of a matrix on the complement of the last block of a subspace iteration from ``start`` (d, b).

    If no eigenvalue outside is larger than the last Ritz value and its residual, the part of eigenvector i that the
    block lacks falls as the powers of their ratio (Saad 2011, theorem 5.2). The bound is infinite until the block lacks
    little of the first eigenvector.
    """
    values, b = ritz.values, start.shape[1]
    last = float(values[-1]) + float(np.linalg.norm(ritz.residuals[:, -1])) + ritz.error
    length = float(np.linalg.norm(start, 2))
    with np.errstate(over="ignore", divide="ignore"):
        deficits = (last / values.clip(min=0.0)) ** (product_count - 1) * length / least_overlap(b, b)
    resolved = int((deficits < 0.01).sum())  # they rise
    if not resolved:
        return np.inf
    largest = 1.01 * values[:resolved]  # of an eigenvalue of which the block lacks so little: more than `last`
    return float(largest[-1]) + float(largest @ deficits[:resolved] ** 2)


def _trial_levels(lowest: float, above: float) -> list[float]:
    """Return the levels between two values at which a bound is tried."""
    return [lowest + share * (above - lowest) for share in LEVEL_SHARES]


def _max_norm_above(hidden: HiddenEigenvector, level: float, allowed: float) -> float:
    """Return the largest norm of F from a level on, twice that on a grid; the search ends beyond ``allowed``."""
    largest, step = 0.0, level - hidden.lowest
    crude = hidden.crude_norm_bound(level)
    while crude > largest * (level - hidden.lowest) and 2 * largest <= allowed:
        largest = max(largest, hidden.norm_bound(level))
        level += step
        step *= 2
    return 2 * largest


class AngleBounds:
    """Bounds on the angles between an iteration's Ritz vectors and eigenvectors, which only become sharper with time.

    `proven` says whether the latest bound presumes nothing; otherwise the bound presumes that no eigenvalue occurs more
    often than the first block has columns. `leading_bound` is for the first `last_pair` pairs: k, or more if pair k is
    tied with the following ones. The matrix's trace, or a sketch of the matrix, bounds what is outside the span.
    `accelerated` stands for block Krylov; the span of a plain iteration is its last block.
    """

    def __init__(self, k: int, trace: float, *, accelerated: bool, sketch: RefinedSketch | None) -> None:
        self.k, self.trace, self.accelerated, self._sketch = k, trace, accelerated, sketch
        self.proven, self.last_pair = False, k
        self._ceilings: dict[int, float] = {}  # of eigenvalues, by what was asked before: they hold for ever

    def update(self, products: ProductBasis, ritz: Ritz, start: FirstBlock, product_count: int) -> None:
        """Sharpen the bounds by all products so far, the Ritz pairs in their basis, and the random first block."""
        self._products, self._ritz, self._start = products, ritz, start
        self._rest = self._bound_outside(product_count)

    def can_reach(self, tolerance: float) -> bool:
        """Return False if the residuals alone rule out a certificate of k components to an angle in degrees."""
        values, k = self._ritz.values, self.k
        tie_width = eigen.TIE_TOLERANCE * len(self._ritz.basis) * float(values[0])
        gap = float(values[k - 1] - values[k]) if values.size > k else 0.0
        separated = min(gap, float(values[k - 1])) > tie_width  # of a tie others than the first k are certified
        return not separated or eigen.sine_theorem(self._ritz.residual_norm(k), gap) <= tolerance

    def leading_bound(self) -> tuple[float, int]:
        """Bound the angle in degrees between the spans of the first k Ritz vectors and of the first k eigenvectors.

        Return the bound, 90 if there is none, and the number of components that the matrix determines. It does not
        determine components that are tied with the next one, or whose variance float64 cannot tell from zero. Of tied
        components the bound is the angle to the nearest of their bases.
        """
        values, k = self._ritz.values, self.k
        self.last_pair = k
        tie_width = eigen.TIE_TOLERANCE * len(self._ritz.basis) * float(values[0])
        if self._products.error > tie_width:
            return self.angle(k), k  # equal values may be what the wire made of them
        distinct = int((values[:k] > values[k - 1] + tie_width).sum())
        last_pair = int((values >= values[k - 1] - tie_width).sum())
        if max(values[k - 1], self._rest) <= tie_width:
            return self.angle(distinct), distinct  # no variance is left, of which the last pairs could have any
        if last_pair == k:
            return self.angle(k), k
        self.last_pair = last_pair
        first, proven = self.angle(last_pair), self.proven  # of a tie at the cut any basis will do
        second = self.angle(distinct)
        self.proven &= proven
        return min(90.0, first + second), distinct

    def cuts(self, max_pairs: int, tolerance: float) -> list[tuple[int, float]]:
        """List the numbers j <= `max_pairs` of Ritz vectors whose span is certified (`certifies`), with the angles."""
        candidates = range(1, min(max_pairs, self._ritz.values.size - 1) + 1)
        return [(j, self.angle(j)) for j in candidates if self.certifies(j, tolerance)]

    def certifies(self, j: int, tolerance: float) -> bool:
        """Return whether the first j Ritz vectors' span is certified to an angle in degrees, without presumption."""
        residual, values = self._ritz.residual_norm(j), self._ritz.values
        # no Ritz value is above its eigenvalue
        lower_bound = eigen.sine_theorem(residual, float(values[j - 1] - values[j]))
        return lower_bound <= tolerance and self.angle(j) <= tolerance and self.proven

    def angle(self, j: int) -> float:
        """Bound the angle in degrees between the spans of the first j Ritz vectors and eigenvectors; 90 is no bound."""
        if j in (0, len(self._ritz.basis)):
            self.proven = True
            return 0.0
        return eigen.sine_theorem(self._ritz.residual_norm(j), float(self._ritz.values[j - 1]) - self.eigenvalue(j))

    def eigenvalue(self, j: int, level: float | None = None) -> float:
        """Bound eigenvalue j + 1 from above (infinity if no bound holds), and set `proven`; `level` is tried alone."""
        ritz, width = self._ritz, self._start.columns
        if not self._products.room:
            self.proven = True
            return float(ritz.values[j]) + 2 * ritz.error
        ceiling, wide = min(proven_bound(ritz, j, self._rest, level), self._ceilings.get(j, np.inf)), j < width
        proven = wide or ceiling < np.inf
        if self._sketch is None and self.accelerated and (wide or not proven):
            ceiling = min(ceiling, presumed_bound(ritz, j, self._start, level))
        self.proven = proven
        if proven:
            self._ceilings[j] = ceiling
        return ceiling

    def level(self, tolerance: float) -> float:
        """Return the largest value of eigenvalue `last_pair` + 1 that allows a certificate to an angle in degrees."""
        j = self.last_pair
        half = tolerance / (1 if j == self.k else 2)  # of a tie both ends count
        return float(self._ritz.values[j - 1]) - 1.0001 * self._ritz.residual_norm(j) / float(np.sin(np.radians(half)))

    @property
    def following(self) -> float:
        """Ritz value after the first `last_pair`, a lower bound on the eigenvalue; infinite without such a value."""
        return float(self._ritz.values[self.last_pair]) if self._ritz.values.size > self.last_pair else np.inf

    def add_ceilings(self, ceilings: dict[int, float]) -> None:
        """Take upper bounds that a probe found: the entry of key i bounds eigenvalue i + 1."""
        self._ceilings |= {i: min(ceiling, self._ceilings.get(i, np.inf)) for i, ceiling in ceilings.items()}

    def _bound_outside(self, product_count: int) -> float:
        """Bound the norm of the matrix on the complement of the Ritz vectors' span."""
        values, error = self._ritz.values, self._ritz.error
        rounding = np.sqrt(values.size) * error + 4 * float(np.finfo(np.float64).eps) * self.trace
        bounds: list[float] = [max(0.0, self.trace - float(values.sum())) + rounding]
        if self._sketch is not None:
            bounds.append(self._sketch.outside_bound)
        elif not self.accelerated and self._start.columns > self.k:
            bounds.append(bound_outside_last_block(self._ritz, self._start.block, product_count))
        return min(bounds)


def describe_cuts(cuts: list[tuple[int, float]]) -> str:
    """Describe in words which single components and which clusters of components `AngleBounds.cuts` certifies.

    Components between two cuts are turned by no more than the angles of both cuts together.
    """
    single: list[int] = []
    clusters, before, max_degrees, above = [], 0, 0.0, 0.0
    for j, degrees in cuts:
        max_degrees = max(max_degrees, degrees + above)
        if j == before + 1:
            single.append(j)
        else:
            clusters.append(f"{before + 1} to {j}")
        before, above = j, degrees
    texts = [f"{_format_ranges(single)} each"] if single else []
    if clusters:
        texts.append(f"{' and '.join(clusters)} as {'subspaces' if len(clusters) > 1 else 'a subspace'}")
    return f"{', '.join(texts)}, to {eigen.format_upper_bound(max_degrees)} degrees"


def _format_ranges(numbers: list[int]) -> str:
    """Format ascending numbers, with consecutive runs as "first to last"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


class Probe:
    """A second block Krylov iteration that looks for eigenvectors which the first j Ritz vectors miss.

    It tells whether eigenvalue j + 1 is below a level. More vectors than j are left out if more have converged well
    enough. `block` (d, b), with b = `width` at most, is to be multiplied with ``A`` next, and `top_value` is a lower
    bound, or nearly so, on an eigenvalue of ``A`` after the first j. Each `turn` starts from another random block.
    """

    def __init__(self, ritz: Ritz, j: int, level: float, width: int, *, turn: int) -> None:
        following = float(ritz.values[j]) if ritz.values.size > j else 0.0
        wrong = np.sqrt(np.cumsum(np.linalg.norm(ritz.residuals, axis=0) ** 2)) + ritz.error
        self.j = j = max(j, int((wrong <= (level - following) / 4).sum()))  # the more, the sooner it knows
        d = len(ritz.basis)
        self._U, self._residuals, self._values = ritz.leading_vectors(j), ritz.leading_residuals(j), ritz.values[:j]
        self._error, self._wrong = ritz.error, ritz.residual_norm(j)
        S = random_block(d, min(width, d - j), seed=-1 - turn)  # no seed of a first block
        self._products, self.block = ProductBasis(d), eigen.project_out(S, self._U)
        self._start = FirstBlock(self.block)
        self._ritz: Ritz | None = None
        self.top_value = 0.0

    def add(self, V: Array, AV: Array, *, error: float) -> None:
        """Take the product AV (d, b) of the matrix ``A`` with the last `block` or its rounded copy, V (d, b).

        `error` bounds the Frobenius norm of the product's error besides rounding in float64.
        """
        if self._ritz is None:
            self._start = FirstBlock(V - self._U @ (self._U.T @ V))
        else:
            self._start.make_room(self._products, self._ritz, self.block, 1)
        inside = self._U.T @ V
        V, AV = V - self._U @ inside, AV - (self._residuals + self._U * self._values) @ inside
        rounded = eigen.rounding_bound(len(V)) * float(self._values[0]) * eigen.frobenius_norm(V)
        error += rounded + self._error * eigen.frobenius_norm(inside)
        self._products.add(V, eigen.project_out(AV, self._U), error=error)
        self._start.locate_block(self._products)
        self._ritz = ritz = self._products.ritz()
        self.top_value = float(ritz.values[0]) + self._wrong
        following = self._products.next_block(ritz, self._start.columns, 1) if self.room else V[:, :0]
        self.block = eigen.project_out(following, self._U)

    @property
    def room(self) -> int:
        """Number of dimensions outside the spans of the Ritz vectors and of the probe."""
        return self._products.room - self.j

    def ceilings(self, level: float) -> dict[int, float]:
        """Return upper bounds, by i of eigenvalue i + 1; empty unless eigenvalue j + 1 is certainly below a level."""
        assert self._ritz is not None
        level -= self._wrong
        first = float(self._ritz.values[0]) + 2 * self._ritz.error
        if self.room:
            above = level - 2 * self._ritz.error
            levels = [above, *_trial_levels(float(self._ritz.values[0]), above)]
            first = _lowest_excluded_level(self._ritz, 0, self._start, levels, least_overlap(self._start.columns, 1))
        if first > level:
            return {}
        between = {i: max(float(self._values[i]), first) + self._wrong for i in range(1, self.j)}  # Weyl
        return {**between, self.j: first}

    def all_products(self) -> ProductBasis:
        """Join the products with the first j Ritz vectors and the products of this probe in one basis."""
        Q, BQ, joint = self._products.Q, self._products.AQ, ProductBasis(len(self._U))
        products = [self._residuals + self._U * self._values, BQ + self._U @ (self._residuals.T @ Q)]
        joint.reset(np.hstack([self._U, Q]), np.hstack(products))
        joint.error = float(np.hypot(self._error, self._products.error))
        return joint
