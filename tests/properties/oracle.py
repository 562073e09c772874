"""The truth about a draw: means in 80-bit numbers, LAPACK's gesvd; nothing of the library's."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import svd

Long = np.longdouble
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Truth:
    """Exact result to compare a model with; values, means and rows have 80 bits."""

    levels: NDArray[Any]  # (r,) what the gaps are between, the first being 1, descending: singular values
    vectors: NDArray[Any]  # (p, r) directions in the space of the model: of features, or of scores
    values: NDArray[Any]  # (r,) eigenvalues of the scatter
    total: Any
    rounding: float  # how wrong a level may be
    mean: NDArray[Any]
    scale: NDArray[Any]
    unsure: bool = False  # whether a column that would be scaled varies by little more than its mean's rounding

    @property
    def rank(self) -> int:
        """Levels that are surely not rounding."""
        return int((self.levels > 10 * self.rounding).sum())

    def uncertainty(self, k: int) -> float:
        """Return the degrees by which the oracle's own k-dimensional subspace may be off."""
        gap = self.gap(k)
        return math.degrees(math.asin(min(1.0, 2 * self.rounding / gap))) if gap > 0 else 90.0

    def gap(self, k: int) -> float:
        padded = np.append(self.levels, 0.0)
        return float(padded[k - 1] - padded[k])

    def miss(self, basis: NDArray[Any]) -> float:
        """Return the degrees by which a basis (p, k) surely misses every subspace that leading components may span.

        Where levels k and k + 1 are apart, the angle to the one there is. Else it must hold all directions of the
        last gap before, and lie in those of the first gap after. Nothing misses nothing.
        """
        k, worst = basis.shape[1], 0.0
        if not k:
            return worst
        marks = range(1, self.levels.size + 1)
        for smallest in (1e-4, 1e-8, 3e-12):
            clear = [j for j in marks if self.gap(j) > smallest]
            below, above = [j for j in clear if j <= k], [j for j in clear if j >= k]
            if below:
                worst = max(worst, angle(self.vectors[:, : below[-1]], basis) - self.uncertainty(below[-1]))
            if above:
                worst = max(worst, angle(basis, self.vectors[:, : above[0]]) - self.uncertainty(above[0]))
        return worst


def angle(inner: NDArray[Any], outer: NDArray[Any]) -> float:
    """Return the largest angle, in degrees, from a direction in the span of ``inner`` (p, j) to that of ``outer``."""
    residual = inner - outer @ (outer.T @ inner)
    return math.degrees(math.asin(min(1.0, float(svd(residual, compute_uv=False, lapack_driver="gesvd")[0]))))


def truth_of(X: NDArray[Any], *, center: bool = True, scale: bool = False, by_columns: bool = False) -> Truth:
    """Return the PCA of all rows (n, d); for parties of columns, directions are those of the scores."""
    rows = np.asarray(X).astype(Long)
    constant = (rows == rows[0]).all(axis=0)
    mean = np.where(constant, rows[0], rows.mean(axis=0))
    centred = rows - mean
    remainder = centred.mean(axis=0)  # of time stamps even 80 bits round the mean
    centred -= remainder
    deviation = np.sqrt((centred**2).mean(axis=0))
    nearly_constant = ~constant & (deviation <= 50 * len(rows) * EPS * np.abs(mean))
    divisor = np.where(constant, Long(1), deviation) if scale else np.ones_like(mean)
    rows = (centred if center else rows) / divisor
    size = np.abs(rows).max()
    unit = Long(2.0) ** np.frexp(size)[1] if size > 0 else Long(1)
    U, s, Vt = svd((rows / unit).astype(np.float64), full_matrices=False, lapack_driver="gesvd")
    return Truth(
        levels=s / (s[0] if s[0] > 0 else 1.0),
        vectors=U if by_columns else Vt.T,
        values=(s.astype(Long) * unit) ** 2,
        total=(rows**2).sum(),
        rounding=10 * math.sqrt(sum(X.shape)) * EPS,
        mean=mean + remainder if center else np.zeros_like(mean),
        scale=divisor,
        unsure=bool(nearly_constant.any()),
    )
