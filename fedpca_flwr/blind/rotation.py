r"""Secret rotations of a feature space, with noise that rotations do not change, and an exact check of eigenvectors.

PCA is equivariant under rotations: if the scatter S has eigenvectors V, then Q'SQ has eigenvectors Q'V and the same
eigenvalues. For a Haar-distributed Q that is independent of S, Q'SQ is distributed as Q'S_2Q for any S_2 with the
eigenvalues of S. So it tells the eigenvalues and nothing else. Parties that share a key draw the same Q from it.

**The rotation** is the orthogonal factor of a matrix of normal numbers, with signs that make it unique (Mezzadri, How
to generate random matrices from the classical compact groups, Notices of the AMS 2007). Its Householder vectors are
independent vectors of normal numbers (Stewart 1980). So they are drawn directly: no matrix is factorised, and two
machines whose rounding differs have nearly the same Q, whatever the condition of that matrix.

**The noise** hides what rounding leaves in the last digits of a sum. A symmetric matrix of independent normal numbers,
of variance 2 on the diagonal and 1 elsewhere, has the same distribution after every rotation (the Gaussian orthogonal
ensemble). So Q'SQ plus noise is distributed as Q'(S + noise)Q, and tells the eigenvalues of S plus noise. A rounding
error E changes the distribution by at most |E|_F / (2 sqrt(2) sigma) in total variation (Pinsker), if the noise has
standard deviation sigma off the diagonal.

**The check**: whoever has the integers T and gets rows W and values L decides by sums alone whether T W' = W' L. For a
sign vector r, r'(T W' - W' L) is small if all residuals are. If any residual is larger than a limit, then so is the
result for at least half of all r, since for r and r with that sign flipped it differs by twice the residual.
"""

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from scipy.linalg import lapack

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import diagonal_positions, packed_size

VECTOR_BITS = 52  # after the point of the entries of unit vectors in the exact check
_MATRIX_DIGIT_BITS, _VECTOR_DIGIT_BITS = 16, 12  # digits of integers in `sign_products`, whose sums float64 holds
_MATRIX_DIGITS, _VECTOR_DIGITS = 4, 5


def secret_stream(key: bytes, nbytes: int) -> bytes:
    """Return bytes of the ChaCha20 stream of a 32-byte key (RFC 8439), which serves for one stream only."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(nbytes))


def secret_normals(key: bytes, n: int) -> Array:
    """Return independent standard normal numbers (n,) from a 32-byte key, which serves for one stream only."""
    from scipy.special import ndtri  # takes longer to import than most of a site's messages

    words = np.frombuffer(secret_stream(key, 8 * n), "<u8")
    return np.asarray(ndtri(((words >> np.uint64(12)) + 0.5) / 2.0**52))


def secret_signs(key: bytes, shape: tuple[int, int]) -> Array:
    """Return independent signs, -1 or 1 with equal probability, from a 32-byte key for this stream only."""
    n = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(secret_stream(key, -(-n // 8)), np.uint8), count=n)
    return np.asarray(1.0 - 2.0 * bits).reshape(shape)


class HaarRotation:
    """Haar-distributed orthogonal matrix Q (d, d) of Householder reflectors, from a 32-byte key for this use only."""

    def __init__(self, key: bytes, d: int) -> None:
        normals, start = secret_normals(key, packed_size(d)), 0
        self._reflectors, self._scales, self._signs = np.zeros((d, d), order="F"), np.empty(d), np.empty(d)
        for j in range(d):  # H = I - scale v v' with v = (1, rest) maps the column to a multiple of a unit vector
            column = normals[start : start + d - j]
            start += d - j
            self._signs[j] = -np.sign(column[0])
            image = self._signs[j] * float(np.sqrt(column @ column))
            self._reflectors[j + 1 :, j] = column[1:] / (column[0] - image)
            self._scales[j] = (image - column[0]) / image

    def rotated(self, matrix: Array) -> Array:
        """Rotate a symmetric matrix A (d, d): ``Q' A Q``."""
        half = self._reflected("L", "T", matrix)
        return np.asarray(self._signs[:, None] * self._reflected("R", "N", half) * self._signs)

    def turned_back(self, vectors: Array) -> Array:
        """Turn vectors, columns (d, k), of the rotated space back to the features of the data: ``Q v``."""
        return self._reflected("L", "N", self._signs[:, None] * vectors)

    def _reflected(self, side: str, transposed: str, matrix: Array) -> Array:
        """Multiply a matrix by the reflectors' product, or its transpose (T), from the left (L) or right (R)."""
        product: Array
        product, _, info = lapack.dormqr(
            side, transposed, self._reflectors, self._scales, np.asfortranarray(matrix), 64 * len(self._scales)
        )
        assert info == 0, info
        return product


def symmetric_noise(key: bytes, d: int) -> Array:
    """Return the packed triangle of a random symmetric matrix (d, d) whose distribution no rotation changes.

    Entries are normal, of variance 2 on the diagonal and 1 elsewhere. The key serves for one stream only.
    """
    noise = secret_normals(key, packed_size(d))
    noise[diagonal_positions(d)] *= np.sqrt(2.0)
    return noise


def symmetric_noise_norm(d: int) -> float:
    """Bound the spectral norm of the (d, d) noise of `symmetric_noise`, except with a probability of 1e-8."""
    return 2 * math.sqrt(d) + math.sqrt(2.0) * 6.2


def vector_integers(vectors: Array) -> NDArray[np.int64]:
    """Round the entries of unit vectors (k, d) to integer multiples of ``2^-VECTOR_BITS``."""
    return np.rint(np.ldexp(vectors, VECTOR_BITS)).astype(np.int64)


def sign_products(signs: Array, matrix: NDArray[np.int64], vectors: NDArray[np.int64]) -> NDArray[np.object_]:
    """Multiply integers without rounding: ``R T W'``, for R (m, d), T (d, d), W (k, d) up to 2^52, d up to 4,096."""
    products = np.zeros((len(signs), len(vectors)), object)
    columns = [_digit(vectors.T, j, _VECTOR_DIGITS, _VECTOR_DIGIT_BITS) for j in range(_VECTOR_DIGITS)]
    for i in range(_MATRIX_DIGITS):
        rows = signs @ _digit(matrix, i, _MATRIX_DIGITS, _MATRIX_DIGIT_BITS)  # up to 2^16 4,096
        for j, digit in enumerate(columns):  # and up to 2^12 4,096 times as much
            product = (rows @ digit).astype(np.int64).astype(object)
            products += product << (_MATRIX_DIGIT_BITS * i + _VECTOR_DIGIT_BITS * j)
    return products


def _digit(numbers: NDArray[np.int64], place: int, places: int, bits: int) -> Array:
    """Return the digit at a place of integers to the base ``2^bits``; the last is signed and holds the rest."""
    remaining = numbers >> (bits * place)
    return np.asarray(remaining if place == places - 1 else remaining & ((1 << bits) - 1), np.float64)
