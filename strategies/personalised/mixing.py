"""Personalised PCA: each party's own components U_i, drawn towards components V that all share (Ozkara et al. 2023).

With the rows Y_i (n_i x d) of party i, equation (4) of the paper is up to constants and a common factor::

    minimise  sum_i  -|Y_i U_i|^2 / 2 + c |P_V(U_i)|^2 / 2,    c = s2 (1 + s2) / sU2

with P_V the projection to the tangent space at V, s2 the variance of the noise and sU2 that of the parties about V.

*Closed form.* The least ``|P_V(U Q)|^2`` over rotations Q is ``r - |V'U|^2``, and rotations change nothing else. So for
a given V the best U_i are the leading eigenvectors of ``Y_i'Y_i + c V V'``, and for given U_i the best V are those of
``sum_i U_i U_i'``. The strength c is in squared units of the data.

*Algorithm 1* of the paper is alternating gradient descent on the Stiefel manifold
(`fedpca_flwr.strategies.personalised.stiefel`).

*PerPCA* (Shi and Kontar 2022, arXiv 2207.08041), with which the paper compares, has components that all parties share,
and others of each party alone::

    maximise  sum_i  tr(U' S_i U) + tr(V_i' S_i V_i),    (U, V_i) orthonormal

Each party takes a gradient step with ``(U, V_i)`` and makes the result orthonormal, the server averages the U, and each
party makes its V_i orthogonal to the average.

Rows (..., n, d) and components (..., d, r) may be stacks. The rows of one party may be
`fedpca_flwr.strategies.personalised.own_rows.LocalRows`, about a centre that the server sent. All results depend on
rows through ``Y_i'Y_i`` only.
"""

from collections.abc import Callable

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.eigen import TIE_TOLERANCE, Eigenpairs, leading_eigenpairs, polar_factor, rounding_bound
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.strategies.personalised.own_rows import LocalRows
from fedpca_flwr.strategies.personalised.stiefel import align, symmetric_part, tangent_projection, transpose

KRYLOV_BLOCKS = 3  # how many blocks the Krylov space has in which components of a party with many rows are improved
MIN_CHOLESKY_DIAGONAL = 0.1  # of the factor of nearly orthonormal columns' products; below, columns are rounding
MAX_FINAL_STEPS = 200  # how many improvements there are at most at the end of a run


def scatter_times(rows: Array | LocalRows, X: Array) -> Array:
    """Multiply ``Y' Y``, the scatter about zero of a party's rows Y (..., n, d), by a matrix X (..., d, r)."""
    return rows.times(X) if isinstance(rows, LocalRows) else transpose(rows) @ (rows @ X)


def row_energy(rows: Array | LocalRows) -> float:
    """Sum the squares of all entries of a party's rows (n, d): the trace of their scatter about zero."""
    return rows.energy if isinstance(rows, LocalRows) else float(np.vdot(rows, rows))


def largest_eigenvalue(rows: Array | LocalRows) -> float:
    """Compute the largest eigenvalue of ``Y' Y``, the scatter about zero of a party's rows Y (n, d)."""
    factor = rows.factor if isinstance(rows, LocalRows) else rows
    return float(_leading(rows, 1).values[0] if factor is None else np.linalg.norm(factor, 2) ** 2)


def penalty_strength(noise: float, spread: float) -> float:
    """Compute the penalty's weight s2 (1 + s2) / sU2 from variances ``noise`` s2 and ``spread`` sU2 (module)."""
    return noise * (1 + noise) / spread


def objective(rows: Array, U: Array, V: Array, *, noise: float, spread: float) -> Array:
    """Compute a party's negative log posterior, up to a constant, in personalised PCA (Ozkara et al. 2023, equation 4).

    ``noise`` is the variance of the noise in the rows, and ``spread`` that of the parties' components U about the
    shared V. U is first rotated towards V, since the length of its projection to the tangent space at V depends on the
    rotation.
    Shapes: rows (..., n, d), U, V (..., d, r) -> (...).
    """
    n, d = rows.shape[-2:]
    r = U.shape[-1]
    inside = np.square(rows @ U).sum(axis=(-1, -2))
    trace = (np.square(rows).sum(axis=(-1, -2)) - inside / (1 + noise)) / noise
    volume = r * np.log1p(noise) + (d - r) * np.log(noise)
    distance = np.square(tangent_projection(V, align(U, V))).sum(axis=(-1, -2))
    value: Array = (n * volume + trace) / 2 + distance / (2 * spread)
    return value


def subspace_distance(U: Array, V: Array) -> Array:
    """Sum the squared sines of the principal angles between orthonormal bases U, V (..., d, r): ``r - |V'U|^2``."""
    sines = U - V @ (transpose(V) @ U)  # the difference itself would lose digits near 0
    squares: Array = np.square(sines).sum(axis=(-1, -2))
    return squares


def project_components(U: Array, V: Array) -> Array:
    """Project the shared components V to the span of a party's components U, both (..., d, r): ``U U' V``."""
    return U @ (transpose(U) @ V)


def personal_components(rows: Array | LocalRows, V: Array, c: Array | float, start: Array) -> Array:
    """Compute the leading eigenvectors of ``Y'Y + c V V'``, for a party's rows Y, the shared components V, and c > 0.

    The result is exact for a party with few rows (2 (n + r) <= d), by a Gram matrix of n + r rows; else it is improved
    from the present components ``start`` within a Krylov space, so that no objective ever rises.
    Shapes: rows (..., n, d), V (..., d, r), c (...), start (..., d, r) -> (..., d, r).
    """
    c = np.asarray(c, np.float64)[..., None, None]
    (n, d), r = rows.shape[-2:], V.shape[-1]
    # a matrix F with F'F = Y'Y; LocalRows may have none (None), and then only multiply Y'Y by vectors
    factor = rows.factor if isinstance(rows, LocalRows) else rows
    if factor is None or 2 * (n + r) > d:  # else a larger Gram matrix costs more
        stack = np.broadcast_shapes(*(array.shape[:-2] for array in (rows, V, c, start)))
        start = np.broadcast_to(start, (*stack, d, r))
        ritz_pairs = _rayleigh_ritz(lambda X: scatter_times(rows, X) + c * (V @ (transpose(V) @ X)), start)
        return _replace_unresolved(*ritz_pairs, V)
    # with B the rows of F and of sqrt(c) V', the matrix is B'B, and B'w its eigenvectors for eigenvectors w of B B'
    prior, N = np.sqrt(c) * V, factor.shape[-2]
    shape = np.broadcast_shapes(factor.shape[:-2], prior.shape[:-2])
    gram = np.empty((*shape, N + r, N + r))  # its lower triangle is read
    gram[..., :N, :N] = factor @ transpose(factor)
    gram[..., N:, :N] = transpose(prior) @ transpose(factor)
    gram[..., N:, N:] = transpose(prior) @ prior
    values, gram_vectors = np.linalg.eigh(gram)
    values, gram_vectors = values[..., : -r - 1 : -1], gram_vectors[..., : -r - 1 : -1]
    vectors = transpose(factor) @ gram_vectors[..., :N, :] + prior @ gram_vectors[..., N:, :]
    return _replace_unresolved(values, np.linalg.qr(vectors).Q, V)


def _rayleigh_ritz(product: Callable[[Array], Array], U: Array) -> tuple[Array, Array]:
    """Return leading Ritz values, descending, and vectors of A from the span of U, AU, AAU; ``product(X)`` is AX."""
    d, r = U.shape[-2:]
    if KRYLOV_BLOCKS * r >= d:  # the span is the whole space
        basis = np.broadcast_to(np.eye(d), (*U.shape[:-2], d, d))
        images = product(basis)
    else:
        basis = np.linalg.qr(U).Q
        images = product(basis)
        for _ in range(KRYLOV_BLOCKS - 1):  # each product is made once: it is in the Ritz matrix, too
            block = _orthonormal_complement(basis, images[..., -r:])
            basis = np.concatenate([basis, block], axis=-1)
            images = np.concatenate([images, product(block)], axis=-1)
    values, rotation = np.linalg.eigh(symmetric_part(transpose(basis) @ images))
    leading = slice(None, -r - 1, -1)
    return values[..., leading], basis @ rotation[..., leading]


def _orthonormal_complement(basis: Array, X: Array) -> Array:
    """Return as many orthonormal columns as X (..., d, r) that together with an orthonormal basis span X."""
    sizes = np.abs(X).max(axis=-2, keepdims=True)
    block = X = X / np.where(sizes > 0, sizes, 1.0)  # squares of its entries may overflow
    try:  # Cholesky QR, the second time of nearly orthonormal columns, at the speed of matrix products
        for _ in range(2):
            block = block - basis @ (transpose(basis) @ block)
            lower = np.linalg.cholesky(transpose(block) @ block)
            block = block @ transpose(np.linalg.inv(lower))
        if np.einsum("...ii->...i", lower).min() > MIN_CHOLESKY_DIAGONAL:
            return block
    except np.linalg.LinAlgError:
        pass
    return np.linalg.qr(np.concatenate([basis, X], axis=-1)).Q[..., -X.shape[-1] :]


def _replace_unresolved(values: Array, vectors: Array, V: Array) -> Array:
    """Replace eigenvectors (..., d, r) whose eigenvalues are below the rounding error by directions of V (d, r)."""
    certain = values > rounding_bound(vectors.shape[-2]) * values[..., :1]
    if certain.all():
        return vectors
    fill = np.broadcast_to(V, vectors.shape)
    completed = [_complete_basis(vectors[i][:, certain[i]], fill[i]) for i in np.ndindex(vectors.shape[:-2])]
    return np.array(completed).reshape(vectors.shape)


def _complete_basis(vectors: Array, fill: Array) -> Array:
    """Complete q orthonormal columns to r, by the leading directions of ``fill`` (d, r) orthogonal to their span."""
    directions, _, _ = np.linalg.svd(fill - vectors @ (vectors.T @ fill), full_matrices=False)
    return np.hstack([vectors, directions[:, : fill.shape[1] - vectors.shape[1]]])


def converged_components(rows: Array | LocalRows, V: Array, c: float, start: Array) -> Array:
    """Iterate from ``start`` to the leading eigenvectors of ``Y'Y + c V V'`` until their span no longer changes.

    The iteration ends after `MAX_FINAL_STEPS` steps all the same.
    Shapes: rows Y (n, d), V (d, r), start (d, r) -> (d, r).
    """
    for _ in range(MAX_FINAL_STEPS):
        start, before = personal_components(rows, V, c, start), start
        if subspace_distance(start, before) < 1e-20:
            break
    return start


def local_components(rows: Array | LocalRows, fill: Array) -> Array:
    """Compute the r principal components of a single party's rows, completed from ``fill`` if their rank is below r.

    This is the limit of personalised PCA as the penalty's weight goes to 0. ``fill`` has orthonormal columns.
    Shapes: rows (n, d), fill (d, r) -> (d, r).
    """
    d, r = fill.shape
    factor = rows.factor if isinstance(rows, LocalRows) else rows
    if factor is not None and rows.shape[0] <= d:
        _, roots, vectors = np.linalg.svd(factor, full_matrices=False)
        values, components = roots**2, vectors.T
    else:
        pairs = _leading(rows, r)
        values, components = pairs.values, pairs.vectors
    return _complete_basis(components[:, :r][:, values[:r] > TIE_TOLERANCE * d * values[0]], fill)


def _leading(rows: Array | LocalRows, r: int) -> Eigenpairs:
    """Return the r leading eigenpairs of ``Y' Y``, the scatter of a party's rows Y."""
    scatter = rows.scatter if isinstance(rows, LocalRows) else None
    if scatter is not None:
        return leading_eigenpairs(scatter, r)
    d = rows.shape[-1]
    iteration = BlockIteration(random_block(d, min(r + 10, d), seed=0), r, trace=row_energy(rows))
    while not iteration.add(iteration.block, scatter_times(rows, iteration.block)):
        pass
    return iteration.pairs


def local_gradient(rows: Array | LocalRows, U: Array, V: Array, c: Array | float, weight: float = 1.0) -> Array:
    """Compute the gradient of a party's objective ``-|Y U|^2 / 2 + c |P_V(U)|^2 / 2`` with respect to its components U.

    Finite differences confirm this gradient. Fact 1 of the paper has half of the first term: ``weight=0.5``.
    Shapes: rows (..., n, d), U, V (..., d, r), c (...) -> (..., d, r).
    """
    c = np.asarray(c, np.float64)[..., None, None]
    return c * tangent_projection(V, U) - weight * scatter_times(rows, U)


def shared_gradient(U: Array, V: Array) -> Array:
    """Compute the gradient of ``|P_V(U)|^2 / 2`` with respect to V (fact 1 of the paper), for U, V (..., d, r)."""
    return -tangent_projection(V, U) @ symmetric_part(transpose(V) @ U)


def gradient_step(
    rows: Array | LocalRows,
    U: Array,
    V: Array,
    c: Array | float,
    step: Array | float,
    server_step: Array | float,
    weight: float = 1.0,
) -> tuple[Array, Array]:
    """Take a Riemannian gradient step on a party's components U, and another on its copy of the shared components V.

    One iteration of Algorithm 1 of the paper. For any number of rows n a ``step`` of U is stable up to
    ``1 / (weight * largest + c)``, for the largest eigenvalue of ``Y'Y``, and a ``server_step`` of V up to ``1 / c``.
    Shapes: rows (..., n, d), U, V (..., d, r), c, step, server_step (...) -> next U, V (..., d, r).
    """
    lengths, shared_lengths = (np.asarray(value)[..., None, None] for value in (step, np.multiply(server_step, c)))
    X = lengths * tangent_projection(U, local_gradient(rows, U, V, c, weight))
    moved = polar_factor(U - X)  # the retraction, for X of any length
    return moved, V - shared_lengths * tangent_projection(V, shared_gradient(moved, V))


def perpca(rows: Array, start: Array, shared_count: int, *, iterations: int = 100) -> Array:
    """Run PerPCA (Shi and Kontar 2022): fit components that all parties share, and others for each party alone.

    The m parties have n rows each. The iteration starts from the components ``start`` of all rows; the first
    ``shared_count``, fewer than r, are shared, in the result too.
    Shapes: rows (m, n, d), start (d, r) -> (m, d, r).
    """
    U, local = start[:, :shared_count], start[:, shared_count:]
    local = np.broadcast_to(local, (len(rows), *local.shape))
    step = 1 / np.linalg.norm(rows, 2, axis=(-2, -1))[:, None, None] ** 2
    for _ in range(iterations):
        joint = np.concatenate([np.broadcast_to(U, (len(rows), *U.shape)), local], axis=-1)
        joint = polar_factor(joint + step * (transpose(rows) @ (rows @ joint)))
        U = polar_factor(joint[..., :shared_count].mean(axis=0))
        local = joint[..., shared_count:]
        local = polar_factor(local - U @ (U.T @ local))
    return np.concatenate([np.broadcast_to(U, (len(rows), *U.shape)), local], axis=-1)
