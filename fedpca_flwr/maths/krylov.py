r"""The server's side of subspace iteration: Rayleigh-Ritz on all products so far, restarts, and the next block.

**Rayleigh-Ritz.** The symmetric matrix :math:`A` (d x d, here the scatter of all rows) is known only through products
:math:`A V` with blocks :math:`V` that the server chooses. With an orthonormal basis ``Q`` of all blocks so far and
``AQ`` their products, the Ritz pairs of ``Q.T @ AQ`` are the best eigenpairs within the span, and their residuals
need no further product. Multiplying the residuals next makes the span a block Krylov space (Golub and Underwood 1977;
Musco and Musco 2015).

**Restarts.** A thick restart gives up a part of the span that held the random first block S. Every eigenvector x of
:math:`\lambda` obeys :math:`(\lambda - \theta_i) u_i^T x = r_i^T x` for each Ritz pair, and the residuals of a block
Krylov space are :math:`R = V C`, with V the next block. So the Ritz vectors that are given up, whose values
:math:`\theta_i` lie below :math:`\lambda`, show of x as much as V shows::

    S'x = S(lambda)'x,    S(lambda) = U U'S + V C (lambda - T)^-1 W'S

with U the Ritz vectors that are retained, and W, T those that are not: again a block in the span, which depends on the
eigenvalue. The same holds for S(lambda) at the next restart. No vector of features is stored for it (`FirstBlock`).

**Products in few digits.** Products in float32 take half the bytes, but their rounding stays in the residuals of all
Ritz vectors, and the certificate stands still there. It is enough to have the products of the first k vectors again in
full, and once if possible: the others count only as far as later vectors are made of them, and then their error is
multiplied by an angle that is small by that time (`ProductBasis.renew`, `Renewal`).
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular, svd

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs, largest_singular_value, rounding_bound, sine_theorem

MAX_BASIS_BYTES = 2**30  # an orthonormal basis and its products that take more bytes than this are restarted


class Ritz:
    """Approximate eigenpairs (Ritz pairs) of a symmetric matrix A in the span of an orthonormal basis.

    The ``values`` (m,) descend, ``rotation`` (m, m) has the coordinates of the Ritz vectors in ``basis`` (d, m), and
    ``products`` (d, m) are those of A and the basis. ``error`` bounds the spectral norm of the error of the residuals,
    by rounding in transmission and in float64; ``fine_error`` bounds it for the first ``fine_columns`` columns of the
    basis, whose products were transmitted in full precision (`ProductBasis.renew`). Vectors and residuals are computed
    only as far as they are read.
    """

    def __init__(
        self,
        values: Array,
        rotation: Array,
        basis: Array,
        products: Array,
        error: float,
        fine_error: float = 0.0,
        fine_columns: int = 0,
    ) -> None:
        self.values, self.rotation, self.basis, self.products = values, rotation, basis, products
        self.error, self.fine_error, self.fine_columns = error, fine_error, fine_columns
        self._vectors, self._residuals = basis[:, :0], basis[:, :0]

    @property
    def vectors(self) -> Array:
        """All Ritz vectors as columns (d, m)."""
        return self.leading_vectors(self.values.size)

    @property
    def residuals(self) -> Array:
        """Residuals ``A @ vectors - vectors * values`` (d, m) of all Ritz pairs, from the known products with A."""
        return self.leading_residuals(self.values.size)

    def leading_vectors(self, k: int) -> Array:
        """Return the first k Ritz vectors as orthonormal columns (d, k)."""
        if k > (made := self._vectors.shape[1]):
            self._vectors = np.hstack([self._vectors, self.basis @ self.rotation[:, made:k]])
        return self._vectors[:, :k]

    def leading_residuals(self, k: int) -> Array:
        """Return the residuals ``A u - value * u`` of the first k Ritz pairs as columns (d, k)."""
        if k > (made := self._residuals.shape[1]):
            new = self.products @ self.rotation[:, made:k] - self.leading_vectors(k)[:, made:] * self.values[made:k]
            self._residuals = np.hstack([self._residuals, new])
        return self._residuals[:, :k]

    def residual_norm(self, k: int) -> float:
        """Bound the spectral norm of the true residuals of the first k Ritz pairs, rounding of products included."""
        return largest_singular_value(self.leading_residuals(k)) + self.error_bound(k)

    def error_bound(self, k: int) -> float:
        """Bound the spectral norm of the rounding error in the residuals of the first k Ritz pairs."""
        if not self.fine_columns:
            return self.error
        coarse = float(np.linalg.norm(self.rotation[self.fine_columns :, :k], 2))
        return min(self.error, self.fine_error + self.error * coarse)

    def angles(self, k: int) -> tuple[float, float]:
        """Estimate the angle between the first k Ritz vectors and the eigenvectors, from their residuals and gap.

        Return the angle in degrees due to the residuals, and the angle due to the rounding error in them, by the
        theorem of Davis and Kahan. The gap is the k-th less the next Ritz value, so there must be more than k pairs.
        """
        gap = float(self.values[k - 1] - self.values[k])
        error = self.error_bound(k)
        return sine_theorem(self.residual_norm(k) - error, gap), sine_theorem(error, gap)

    def pairs(self, k: int) -> Eigenpairs:
        """Return the first k Ritz pairs, with signs fixed by convention; without a further Ritz value, 0 follows."""
        following = float(self.values[k]) if self.values.size > k else 0.0
        return Eigenpairs(self.values[:k], fix_signs(self.leading_vectors(k)), following)


class ProductBasis:
    """Orthonormal basis ``Q`` (d, m) of all blocks multiplied so far, and its products with a symmetric matrix A."""

    def __init__(self, d: int) -> None:
        self._stored: Array = np.empty((2, 0, d))  # the basis and its products, with room for more
        self._projected: Array = np.empty((0, 0))  # Q' A Q, symmetric
        self.error = 0.0  # bound on the Frobenius norm of the transmission error in AQ
        self.rounding = 0.0  # bound for the rounding of float64, relative to the largest eigenvalue
        self.fine_columns = 0  # number of first columns with products in full precision

    @property
    def Q(self) -> Array:  # noqa: N802
        """Orthonormal basis of all blocks multiplied so far, as columns (d, m)."""
        return self._stored[0, : len(self._projected)].T

    @property
    def AQ(self) -> Array:  # noqa: N802
        """Products (d, m) of the matrix A with the columns of the basis."""
        return self._stored[1, : len(self._projected)].T

    def add(self, V: Array, AV: Array, *, error: float = 0.0) -> None:
        """Add a block V (d, b), orthonormalised against the basis, and its product AV (d, b) with the matrix A.

        Directions that depend on others, or lie in the span, are omitted. ``error`` bounds AV's error (Frobenius norm).
        """
        size = max(largest_singular_value(V), np.finfo(float).tiny)
        rounded = rounding_bound(len(V)) * size
        for _ in range(2):  # once loses digits where little is left, twice is enough (Kahan; Parlett 1998, section 6.9)
            inside = self.Q.T @ V
            V, AV = V - self.Q @ inside, AV - self.AQ @ inside
            V, AV, shortest = _orthonormalise(V, AV, 1e-10 * size)
            inside_norm = float(np.linalg.norm(inside))
            error = (error + inside_norm * self.error) / shortest
            rounded = (rounded + inside_norm * self.rounding) / shortest
            if shortest >= size / 2:
                break
            size = 1.0  # the columns are orthonormal now
        self._append(V, self._use_symmetry(V, AV))
        self.error, self.rounding = float(np.hypot(self.error, error)), float(np.hypot(self.rounding, rounded))

    def _append(self, V: Array, AV: Array) -> None:
        """Append orthonormal columns V (d, b), orthogonal to Q, and their products AV (d, b); extend ``Q' A Q``."""
        across = (self.Q.T @ AV + self.AQ.T @ V) / 2
        inner = V.T @ AV
        first, last = self.Q.shape[1], self.Q.shape[1] + V.shape[1]
        self._projected = np.block([[self._projected, across], [across.T, (inner + inner.T) / 2]])
        if last > self._stored.shape[1]:
            previous, self._stored = self._stored, np.empty((2, 2 * last, len(V)))  # so that columns are copied seldom
            self._stored[:, :first] = previous[:, :first]
        self._stored[0, first:last], self._stored[1, first:last] = V.T, AV.T

    def ritz(self) -> Ritz:
        """Compute all Ritz pairs, by descending value: the eigenpairs of A projected on the span of the basis."""
        values, rotation = eigh(self._projected, driver="evd", check_finite=False)
        values, rotation = values[::-1], rotation[:, ::-1]
        rounded = self.rounding * abs(float(values[0]))
        return Ritz(values, rotation, self.Q, self.AQ, self.error + rounded, rounded, self.fine_columns)

    def truncate(self, ritz: Ritz, count: int) -> None:
        """Replace the basis by the ``count`` leading Ritz vectors (thick restart, Wu and Simon 2000)."""
        U = ritz.leading_vectors(count)
        self.reset(U, ritz.leading_residuals(count) + U * ritz.values[:count])

    def reset(self, Q: Array, AQ: Array) -> None:
        """Replace the basis by orthonormal columns Q (d, m), whose products with A are AQ (d, m)."""
        self._stored, self._projected = np.empty((2, 0, len(Q))), np.empty((0, 0))
        self._append(Q, AQ)

    def renew(self, ritz: Ritz, AU: Array) -> None:
        """Make the Ritz vectors the basis, with new full-precision products AU (d, k) of A and the first k of them."""
        k = AU.shape[1]
        other_vectors = ritz.vectors[:, k:]
        other_products = ritz.residuals[:, k:] + other_vectors * ritz.values[k:]
        self.fine_columns = k
        self.reset(ritz.vectors[:, :k], AU)
        self._append(other_vectors, self._use_symmetry(other_vectors, other_products))

    def _use_symmetry(self, V: Array, AV: Array) -> Array:
        """Correct ``AV`` (d, b) by more precise products of A with columns U: by symmetry ``U' (A V) = (A U)' V``."""
        U, AU = self.Q[:, : self.fine_columns], self.AQ[:, : self.fine_columns]
        return AV + U @ (AU.T @ V - U.T @ AV) if self.fine_columns else AV

    def next_block(self, ritz: Ritz, size: int, k: int) -> Array:
        """Choose an orthonormal block to multiply next: the largest singular directions of the leading residuals.

        Taking the block from the residuals also repeats the part that was lost when a transmitted block was rounded. If
        no residual exceeds rounding, or the basis has fewer than k columns, the block is filled with random directions.
        Shapes: -> (d, b), with b <= size; b = 0 if the span is the whole space.
        """
        Z = ritz.leading_residuals(max(size, k + 10))
        directions, singular, _ = svd(Z - self.Q @ (self.Q.T @ Z), full_matrices=False, check_finite=False)
        block = directions[:, : min(self.room, size, int((singular > 1e-14 * ritz.values[0]).sum()))]
        block = block - self.Q @ (self.Q.T @ block)
        enough = block.shape[1] and self.Q.shape[1] + block.shape[1] >= k
        return block if enough else self._fill_block(block, size)

    @property
    def room(self) -> int:
        """Number of dimensions of the space outside the span of the basis."""
        return len(self.Q) - len(self._projected)

    def _fill_block(self, block: Array, size: int) -> Array:
        """Append random orthonormal columns, orthogonal to block and basis, up to ``size`` columns or a whole basis."""
        missing = min(size, self.room) - block.shape[1]
        if missing <= 0:
            return block
        basis = np.hstack([self.Q, block])
        fresh = random_block(len(basis), missing, seed=self.Q.shape[1])
        for _ in range(2):  # the second pass removes what rounding left of the first
            fresh, _, _ = svd(fresh - basis @ (basis.T @ fresh), full_matrices=False)
        return np.hstack([block, fresh])


def _orthonormalise(V: Array, AV: Array, min_length: float) -> tuple[Array, Array, float]:
    """Return an orthonormal basis of the columns of V, its product with A, and the least singular value retained.

    Singular values up to ``min_length`` are omitted; if all are, the third result is infinite.
    Shapes: V (d, b), AV (d, b).
    """
    unit = max(float(np.abs(V).max(initial=0.0)), np.finfo(float).tiny)
    gram = (V / unit).T @ (V / unit)
    squares = np.linalg.eigvalsh(gram)
    if squares.size and squares[0] > max(squares[-1] / 16, 0.0):  # well conditioned: Cholesky QR loses two bits at most
        upper = cholesky(gram, check_finite=False)
        V, AV = (solve_triangular(upper, part.T / unit, trans="T", check_finite=False).T for part in (V, AV))
        return V, AV, unit * float(np.sqrt(squares[0]))
    left_vectors, sizes, right_vectors = svd(V, full_matrices=False, check_finite=False)
    new = sizes > min_length
    return left_vectors[:, new], AV @ (right_vectors[new].T / sizes[new]), float(sizes[new].min(initial=np.inf))


def random_block(d: int, b: int, seed: int) -> Array:
    """Make a block (d, b) of pseudorandom numbers between -1 and 1 that is the same at every party with the same seed.

    The numbers come from SHAKE-256, since the stream of a random generator could differ between versions of NumPy. They
    are odd multiples of 2^-23, which float32 holds exactly: a square block of signs could be singular, and a vector of
    signs orthogonal to an eigenvector. A square block is the identity: it shows everything, and loses no digits.
    """
    if b == d:
        return np.eye(d)
    digest = hashlib.shake_256(f"{seed}/{d}/{b}".encode()).digest(4 * d * b)
    # 23 random bits u give the number (2 u + 1) / 2^23 - 1
    odd_integers = 2 * (np.frombuffer(digest, "<u4") >> 9).astype(np.float64) + 1
    return odd_integers.reshape(d, b) / 2.0**23 - 1


@dataclass(frozen=True)
class Restart:
    """One restart of a block Krylov basis, which gives up the last g of m Ritz vectors, as `FirstBlock` follows it."""

    turn: Array  # (m, c), maps coordinates in the basis after the last restart (first: in the first block) to Ritz ones
    values: Array  # (g,), Ritz values of the vectors that are given up
    into: Array  # (b, g), coordinates in the next block of the residuals of the vectors given up
    wrong: float  # bound on the spectral norm of the part of these residuals outside the next block
    place: Array  # (m - g + b, b), coordinates of the next block in the basis to which it was added
    outside: float = 0.0  # norm of the part of the next block outside that basis, due to rounding in transmission


class FirstBlock:
    """The random first block S (d, b) of an iteration, followed through restarts that give up parts of its span.

    After a restart, a block S(lambda) in the present span takes its place (see the module's formula).
    """

    def __init__(self, block: Array) -> None:
        self.block, self.columns = block, block.shape[1]
        self.restarts: list[Restart] = []
        self._outside = 0.0
        self._pending: Array | None = None
        self._last: tuple[Ritz, Array, float] | None = None  # before any restart

    def coordinates(self, ritz: Ritz, eigenvalue: float) -> tuple[Array, float]:
        """Compute the coordinates (m, b) in the Ritz vectors of the block that replaces the first block after restarts.

        For each eigenvector x of ``eigenvalue``, which must exceed all Ritz values that were given up, this block
        S(lambda) has ``S(lambda)'x = S'x`` with the first block S, but for rounding; without restarts it is S itself.
        Return also a bound on the spectral norm of the block's part outside the span.
        """
        if not self.restarts:
            if self._last is None or self._last[0] is not ritz:
                inside = ritz.basis.T @ self.block
                outside = float(np.linalg.norm(self.block - ritz.basis @ inside))
                self._last = ritz, ritz.rotation.T @ inside, outside
            return self._last[1:]
        block_coordinates, outside = np.eye(self.columns), self._outside
        for restart in self.restarts:
            ritz_coordinates = restart.turn @ block_coordinates
            retained = len(ritz_coordinates) - restart.values.size
            # the module's formula
            shown = ritz_coordinates[retained:] / (eigenvalue - restart.values)[:, None]
            into = restart.into @ shown
            outside += restart.wrong * float(np.linalg.norm(shown, 2))
            outside += restart.outside * float(np.linalg.norm(into, 2))
            block_coordinates = restart.place @ into
            block_coordinates[:retained] += ritz_coordinates[:retained]
        return ritz.rotation[: len(block_coordinates)].T @ block_coordinates, outside

    def make_room(self, products: ProductBasis, ritz: Ritz, block: Array, k: int) -> None:
        """Truncate the basis, and record a restart, if it would exceed `basis_limits` with the next block (d, b)."""
        max_columns, retained = basis_limits(len(block), k, self.columns)
        if products.Q.shape[1] + block.shape[1] > max_columns:
            self.restart(ritz, retained, block)
            products.truncate(ritz, retained)

    def restart(self, ritz: Ritz, retained: int, block: Array) -> None:
        """Record, before the next ``block`` (d, b), that all but the ``retained`` leading Ritz vectors are given up."""
        residuals = ritz.residuals[:, retained:]
        into = block.T @ residuals
        wrong = float(np.linalg.norm(residuals - block @ into, 2)) + ritz.error
        if self.restarts:
            turn = ritz.rotation[: len(self.restarts[-1].place)].T
        else:
            turn, self._outside = self.coordinates(ritz, np.inf)
            self.block, self._last = np.empty((len(block), 0)), None
        self.restarts.append(Restart(turn, ritz.values[retained:], into, wrong, np.empty((0, 0))))
        self._pending = block

    def locate_block(self, products: ProductBasis) -> None:
        """Record the coordinates in the basis of the block that followed a restart, if it was not located before."""
        if self._pending is not None:
            place = products.Q.T @ self._pending
            outside = float(np.linalg.norm(self._pending - products.Q @ place))
            self.restarts[-1] = replace(self.restarts[-1], place=place, outside=outside)
            self._pending = None


def basis_limits(d: int, k: int, width: int) -> tuple[int, int]:
    """Compute the largest number of columns of a Krylov basis, and the number retained at a restart, half of it.

    A basis and its products take `MAX_BASIS_BYTES` at most, but there is room for 2 k columns and ten blocks of
    ``width`` columns: the information of the first block is lost if restarts follow each other closely.
    """
    max_columns = max(MAX_BASIS_BYTES // (2 * np.float64().nbytes * d), 2 * k + 10 * width)
    return max_columns, max_columns // 2


class Renewal:
    """Rule for the round in which products of the first k Ritz vectors are requested again, in full precision.

    Others are in float32, whose rounding limits the angle that can be reached; ``tolerance`` is an angle in degrees.
    """

    def __init__(self, k: int, tolerance: float) -> None:
        self.k, self.tolerance = k, tolerance
        self._angle = 90.0

    def is_due(self, ritz: Ritz, *, last: bool) -> bool:
        """Return whether the next request should be for full-precision products of the first k Ritz vectors.

        It should as soon as two more rounds at the present rate would reach the tolerance, so that the renewal costs no
        round, or if the request is the last; but only if rounding keeps the angle above the tolerance.
        """
        if ritz.values.size <= self.k:
            return False
        angle, error = ritz.angles(self.k)
        before, self._angle = self._angle, angle
        # the rounding error matters, and new products would halve it at least
        mends = error > self.tolerance and ritz.error_bound(self.k) > 2 * ritz.fine_error
        return mends and (last or angle * (angle / before) ** 2 <= self.tolerance)
