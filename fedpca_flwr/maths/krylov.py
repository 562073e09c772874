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
    """Ritz pairs (approximate eigenpairs from a subspace) by descending value; vectors are computed when needed.

    They are made of an orthonormal basis and its products with the matrix. Most rounds read the first few only.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Ritz values, descending.
    rotation : ndarray of shape (m, m)
        Coordinates of the Ritz vectors in the basis.
    basis, products : ndarray of shape (d, m)
        Orthonormal columns, and their products with the matrix.
    error : float
        Bound on the spectral norm of the error of the residuals: the wire's and float64's rounding.
    fine_error : float
        The same bound for products in full (`ProductBasis.renew`).
    fine_columns : int
        Number of leading columns of the basis that have products in full.
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
        """All Ritz vectors (d, m)."""
        return self.leading_vectors(self.values.size)

    @property
    def residuals(self) -> Array:
        """Residuals ``A @ vectors - vectors * values`` (d, m), up to the error of the products."""
        return self.leading_residuals(self.values.size)

    def leading_vectors(self, k: int) -> Array:
        """Return the first k Ritz vectors.

        Parameters
        ----------
        k : int
            Number of vectors.

        Returns
        -------
        ndarray of shape (d, k)
            The vectors.
        """
        if k > (made := self._vectors.shape[1]):
            self._vectors = np.hstack([self._vectors, self.basis @ self.rotation[:, made:k]])
        return self._vectors[:, :k]

    def leading_residuals(self, k: int) -> Array:
        """Return the residuals of the first k Ritz pairs.

        Parameters
        ----------
        k : int
            Number of pairs.

        Returns
        -------
        ndarray of shape (d, k)
            The residuals.
        """
        if k > (made := self._residuals.shape[1]):
            new = self.products @ self.rotation[:, made:k] - self.leading_vectors(k)[:, made:] * self.values[made:k]
            self._residuals = np.hstack([self._residuals, new])
        return self._residuals[:, :k]

    def residual_norm(self, k: int) -> float:
        """Bound the spectral norm of the residuals of the first k pairs, with the error of the products.

        Parameters
        ----------
        k : int
            Number of pairs.

        Returns
        -------
        float
            The bound.
        """
        return largest_singular_value(self.leading_residuals(k)) + self.error_bound(k)

    def error_bound(self, k: int) -> float:
        """Bound the spectral norm of the error of the residuals of the first k pairs.

        Parameters
        ----------
        k : int
            Number of pairs.

        Returns
        -------
        float
            The bound.
        """
        if not self.fine_columns:
            return self.error
        coarse = float(np.linalg.norm(self.rotation[self.fine_columns :, :k], 2))
        return min(self.error, self.fine_error + self.error * coarse)

    def angles(self, k: int) -> tuple[float, float]:
        """Estimate the angle in degrees of the first k vectors to the eigenvectors from the Ritz values alone.

        Parameters
        ----------
        k : int
            Number of pairs.

        Returns
        -------
        from_residuals, from_error : float
            Angles in degrees that their residuals, and the error of these, account for.
        """
        gap = float(self.values[k - 1] - self.values[k])
        error = self.error_bound(k)
        return sine_theorem(self.residual_norm(k) - error, gap), sine_theorem(error, gap)

    def pairs(self, k: int) -> Eigenpairs:
        """Return the first k Ritz pairs as eigenpairs.

        Parameters
        ----------
        k : int
            Number of pairs.

        Returns
        -------
        Eigenpairs
            The pairs.
        """
        following = float(self.values[k]) if self.values.size > k else 0.0
        return Eigenpairs(self.values[:k], fix_signs(self.leading_vectors(k)), following)


class ProductBasis:
    """An orthonormal basis ``Q`` (d, m) of all blocks so far, and its products ``A Q`` with the matrix.

    Attributes: `error` bounds the Frobenius norm of the wire's error in ``AQ``; `rounding` bounds that of float64,
    relative to the largest eigenvalue; `fine_columns` is the number of leading columns that have products in full.

    Parameters
    ----------
    d : int
        Number of features.
    """

    def __init__(self, d: int) -> None:
        self._stored: Array = np.empty((2, 0, d))  # the basis and its products, with room for more
        self._projected: Array = np.empty((0, 0))  # Q' A Q, symmetric
        self.error = 0.0  # bound on the Frobenius norm of what the wire added to AQ
        self.rounding = 0.0  # the same for float64, relative to the largest eigenvalue
        self.fine_columns = 0  # how many columns, the first ones, have products in full

    @property
    def Q(self) -> Array:  # noqa: N802
        """The basis (d, m)."""
        return self._stored[0, : len(self._projected)].T

    @property
    def AQ(self) -> Array:  # noqa: N802
        """Products with the basis (d, m)."""
        return self._stored[1, : len(self._projected)].T

    def add(self, V: Array, AV: Array, *, error: float = 0.0) -> None:
        """Add a block and its product; directions within the span so far add nothing.

        Parameters
        ----------
        V : ndarray of shape (d, b)
            The block.
        AV : ndarray of shape (d, b)
            Its product.
        error : float, optional
            Bound on the Frobenius norm of the product's error.
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
            size = 1.0
        self._append(V, self._use_symmetry(V, AV))
        self.error, self.rounding = float(np.hypot(self.error, error)), float(np.hypot(self.rounding, rounded))

    def _append(self, V: Array, AV: Array) -> None:
        """Append orthonormal columns (d, b) outside the span, their product (d, b), and their part of ``Q' A Q``."""
        across = (self.Q.T @ AV + self.AQ.T @ V) / 2
        inner = V.T @ AV
        first, last = self.Q.shape[1], self.Q.shape[1] + V.shape[1]
        self._projected = np.block([[self._projected, across], [across.T, (inner + inner.T) / 2]])
        if last > self._stored.shape[1]:
            previous, self._stored = self._stored, np.empty((2, 2 * last, len(V)))
            self._stored[:, :first] = previous[:, :first]
        self._stored[0, first:last], self._stored[1, first:last] = V.T, AV.T

    def ritz(self) -> Ritz:
        """Compute all Ritz pairs in the span.

        Returns
        -------
        Ritz
            The pairs.
        """
        values, rotation = eigh(self._projected, driver="evd", check_finite=False)
        values, rotation = values[::-1], rotation[:, ::-1]
        rounded = self.rounding * abs(float(values[0]))
        return Ritz(values, rotation, self.Q, self.AQ, self.error + rounded, rounded, self.fine_columns)

    def truncate(self, ritz: Ritz, count: int) -> None:
        """Keep only the leading Ritz vectors as the basis (thick restart, Wu and Simon 2000).

        Parameters
        ----------
        ritz : Ritz
            Ritz pairs in the span.
        count : int
            Number of Ritz vectors retained.
        """
        U = ritz.leading_vectors(count)
        AU = ritz.leading_residuals(count) + U * ritz.values[:count]
        self.reset(U, AU)

    def reset(self, Q: Array, AQ: Array) -> None:
        """Replace the basis and its products.

        Parameters
        ----------
        Q : ndarray of shape (d, m)
            Orthonormal columns.
        AQ : ndarray of shape (d, m)
            Their products.
        """
        self._stored, self._projected = np.empty((2, 0, len(Q))), np.empty((0, 0))
        self._append(Q, AQ)

    def renew(self, ritz: Ritz, AU: Array) -> None:
        """Replace the products of the first Ritz vectors by products in full precision.

        Parameters
        ----------
        ritz : Ritz
            Ritz pairs in the span.
        AU : ndarray of shape (d, k)
            Products of the first k Ritz vectors.
        """
        k = AU.shape[1]
        other_vectors = ritz.vectors[:, k:]
        other_products = ritz.residuals[:, k:] + other_vectors * ritz.values[k:]
        self.fine_columns = k
        self.reset(ritz.vectors[:, :k], AU)
        self._append(other_vectors, self._use_symmetry(other_vectors, other_products))

    def _use_symmetry(self, V: Array, AV: Array) -> Array:
        """Return the product with ``V`` (d, b), corrected by the symmetry of ``A`` and products in full precision."""
        U, AU = self.Q[:, : self.fine_columns], self.AQ[:, : self.fine_columns]
        return AV + U @ (AU.T @ V - U.T @ AV) if self.fine_columns else AV

    def next_block(self, ritz: Ritz, size: int, k: int) -> Array:
        """Choose the orthonormal block to multiply next: the largest directions of the leading residuals.

        In exact arithmetic all residuals lie in the span of the newest products. Taking the block from the residuals
        also repeats the part that rounding a block on the wire has lost. If no residual exceeds rounding, the span is
        invariant, and random directions look for other eigenvectors; so they do until k directions are reached.

        Parameters
        ----------
        ritz : Ritz
            Ritz pairs in the span.
        size : int
            Largest number of columns.
        k : int
            Number of components.

        Returns
        -------
        ndarray of shape (d, b)
            The block, with b <= size; empty if the span is everything.
        """
        Z = ritz.leading_residuals(max(size, k + 10))
        directions, singular, _ = svd(Z - self.Q @ (self.Q.T @ Z), full_matrices=False, check_finite=False)
        block = directions[:, : min(self.room, size, int((singular > 1e-14 * ritz.values[0]).sum()))]
        block = block - self.Q @ (self.Q.T @ block)
        enough = block.shape[1] and self.Q.shape[1] + block.shape[1] >= k
        return block if enough else self._fill_block(block, size)

    @property
    def room(self) -> int:
        """Number of dimensions outside the span."""
        room: int = self.Q.shape[0] - self.Q.shape[1]
        return room

    def _fill_block(self, block: Array, size: int) -> Array:
        """Fill a block with random directions outside the span up to ``size`` columns."""
        missing = min(size, self.room) - block.shape[1]
        if missing <= 0:
            return block
        basis = np.hstack([self.Q, block])
        fresh = random_block(len(basis), missing, seed=self.Q.shape[1])
        for _ in range(2):
            fresh, _, _ = svd(fresh - basis @ (basis.T @ fresh), full_matrices=False)
        return np.hstack([block, fresh])


def _orthonormalise(V: Array, AV: Array, min_length: float) -> tuple[Array, Array, float]:
    """Return an orthonormal basis of ``V`` (d, b), its product, and the length of the shortest direction left.

    Directions shorter than ``min_length`` are omitted. The product follows from ``AV`` (d, b).
    """
    unit = max(float(np.abs(V).max(initial=0.0)), np.finfo(float).tiny)
    gram = (V / unit).T @ (V / unit)
    squares = np.linalg.eigvalsh(gram)
    if squares.size and squares[0] > max(squares[-1] / 16, 0.0):  # the triangle loses two bits at most
        upper = cholesky(gram, check_finite=False)
        V, AV = (solve_triangular(upper, part.T / unit, trans="T", check_finite=False).T for part in (V, AV))
        return V, AV, unit * float(np.sqrt(squares[0]))
    left_vectors, sizes, right_vectors = svd(V, full_matrices=False, check_finite=False)
    new = sizes > min_length
    return left_vectors[:, new], AV @ (right_vectors[new].T / sizes[new]), float(sizes[new].min(initial=np.inf))


def random_block(d: int, b: int, seed: int) -> Array:
    """Make a random block of numbers between -1 and 1 that every party can make from a seed.

    The numbers come from SHAKE-256, not from a random generator whose stream could differ between versions of NumPy:
    parties that disagree about the block would give a wrong answer without notice. They are odd multiples of 2^-23,
    which float32 holds exactly: a square block of signs would be singular with a noticeable probability, and a vector
    of signs can be orthogonal to an eigenvector. A square block is the identity: it shows everything, and loses no
    digits.

    Parameters
    ----------
    d, b : int
        Shape of the block.
    seed : int
        The seed.

    Returns
    -------
    ndarray of shape (d, b)
        The block.
    """
    if b == d:
        return np.eye(d)
    digest = hashlib.shake_256(f"{seed}/{d}/{b}".encode()).digest(4 * d * b)
    odd_integers = 2 * (np.frombuffer(digest, "<u4") >> 9).astype(np.float64) + 1
    return odd_integers.reshape(d, b) / 2.0**23 - 1


@dataclass(frozen=True)
class Restart:
    """One restart: which combination of the Ritz vectors stayed, and where the next block lies.

    Parameters
    ----------
    turn : ndarray of shape (m, c)
        Map from coordinates of the block before to coordinates in these Ritz vectors.
    values : ndarray of shape (g,)
        Ritz values of the vectors that are given up, the last ones.
    into : ndarray of shape (b, g)
        Coordinates C of their residuals in the next block.
    wrong : float
        Bound on the part of their residuals outside the next block (spectral norm).
    place : ndarray of shape (m - g + b, b)
        Coordinates of the next block in the basis.
    outside : float
        Norm of its part outside the basis, as it was rounded on its way.
    """

    turn: Array
    values: Array
    into: Array
    wrong: float
    place: Array
    outside: float = 0.0


class FirstBlock:
    """The random block (d, b) with which an iteration began, and its coordinates in the basis after restarts.

    Parameters
    ----------
    block : ndarray of shape (d, b)
        The block.
    """

    def __init__(self, block: Array) -> None:
        self.block, self.columns = block, block.shape[1]
        self.restarts: list[Restart] = []
        self._outside = 0.0
        self._pending: Array | None = None
        self._last: tuple[Ritz, Array, float] | None = None  # before any restart

    def coordinates(self, ritz: Ritz, eigenvalue: float) -> tuple[Array, float]:
        """Compute the coordinates, in Ritz vectors, of what the first block shows of an eigenvector after restarts.

        Parameters
        ----------
        ritz : Ritz
            Ritz pairs in the span.
        eigenvalue : float
            A number larger than all Ritz values that were given up.

        Returns
        -------
        coordinates : ndarray of shape (m, b)
            The coordinates.
        outside : float
            Bound on the spectral norm of the part outside the span.
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
            shown = ritz_coordinates[retained:] / (eigenvalue - restart.values)[:, None]
            into = restart.into @ shown
            outside += restart.wrong * float(np.linalg.norm(shown, 2))
            outside += restart.outside * float(np.linalg.norm(into, 2))
            block_coordinates = restart.place @ into
            block_coordinates[:retained] += ritz_coordinates[:retained]
        return ritz.rotation[: len(block_coordinates)].T @ block_coordinates, outside

    def make_room(self, products: ProductBasis, ritz: Ritz, block: Array, k: int) -> None:
        """Restart the basis if it would be too long with the next block.

        Parameters
        ----------
        products : ProductBasis
            The basis, which may be truncated.
        ritz : Ritz
            Ritz pairs in its span.
        block : ndarray of shape (d, b)
            The next block.
        k : int
            Number of components.
        """
        max_columns, retained = basis_limits(len(block), k, self.columns)
        if products.Q.shape[1] + block.shape[1] > max_columns:
            self.restart(ritz, retained, block)
            products.truncate(ritz, retained)

    def restart(self, ritz: Ritz, retained: int, block: Array) -> None:
        """Record a restart, in which only the leading Ritz vectors stay.

        Parameters
        ----------
        ritz : Ritz
            Ritz pairs in the span.
        retained : int
            Number of Ritz vectors that stay.
        block : ndarray of shape (d, b)
            Block that is multiplied next.
        """
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
        """Record where the first block after a restart lies in the basis, once its product is known.

        Parameters
        ----------
        products : ProductBasis
            The basis with this block.
        """
        if self._pending is not None:
            place = products.Q.T @ self._pending
            outside = float(np.linalg.norm(self._pending - products.Q @ place))
            self.restarts[-1] = replace(self.restarts[-1], place=place, outside=outside)
            self._pending = None


def basis_limits(d: int, k: int, width: int) -> tuple[int, int]:
    """Compute the largest number of columns of a basis, and the number that a restart leaves.

    A basis has ten blocks at least: the information of the first block is lost if restarts follow each other closely.

    Parameters
    ----------
    d : int
        Number of features.
    k : int
        Number of components.
    width : int
        Columns of a block.

    Returns
    -------
    max_columns, retained : int
        Numbers of columns.
    """
    max_columns = max(MAX_BASIS_BYTES // (2 * np.float64().nbytes * d), 2 * k + 10 * width)
    return max_columns, max_columns // 2


class Renewal:
    """A rule for when to ask for the products of the first k Ritz vectors in full precision.

    Parameters
    ----------
    k : int
        Number of components.
    tolerance : float
        Angle in degrees that the iteration should reach.
    """

    def __init__(self, k: int, tolerance: float) -> None:
        self.k, self.tolerance = k, tolerance
        self._angle = 90.0

    def is_due(self, ritz: Ritz, *, last: bool) -> bool:
        """Return whether the next round should ask for products in full precision.

        They should as soon as two more rounds at the present rate would reach the tolerance: then the renewal costs no
        round.

        Parameters
        ----------
        ritz : Ritz
            Ritz pairs in the span.
        last : bool
            Whether no further block will tell more.

        Returns
        -------
        bool
            True if they should.
        """
        if ritz.values.size <= self.k:
            return False
        angle, error = ritz.angles(self.k)
        before, self._angle = self._angle, angle
        mends = error > self.tolerance and ritz.error_bound(self.k) > 2 * ritz.fine_error
        return mends and (last or angle * (angle / before) ** 2 <= self.tolerance)
