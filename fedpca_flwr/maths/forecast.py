r"""What each way to the components will cost, and how exact it will be, from a few numbers of each party.

The parties tell their counts, means, variances, the eigenvalues of their own scatter and a sketch of it. The
eigenvalues of the pooled scatter are forecast by the sum of the sorted eigenvalues of its parts, which is right where
the parts have the same eigenvectors (elsewhere its partial sums are too large: Ky Fan).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows
from fedpca_flwr.maths.factors import triangular
from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.moments import Head, Moments, pool_heads, unpack


@dataclass(frozen=True)
class Survey:
    """What one party tells before anything is decided.

    Attributes
    ----------
    head : Head
    variances : ndarray of shape (d,)
        Diagonal of its scatter.
    spectrum : ndarray of shape (d,)
        Eigenvalues of its scatter, descending.
    sketch : ndarray of shape (d, s)
        Its scatter times random vectors.
    """

    head: Head
    variances: Array
    spectrum: Array
    sketch: Array


@dataclass(frozen=True)
class Heterogeneity:
    """How different the parties are, each from 0 (alike) to about 1.

    Attributes
    ----------
    means : float
        Share of the variance that lies between the parties.
    covariances : float
        Frobenius distance to the average covariance, relative to it, on the sketches.
    spectra : float
        Jensen-Shannon divergence (base 2) of the normalised spectra.
    variances : float
        Distance of the total variances to their average, relative to it.
    """

    means: float
    covariances: float
    spectra: float
    variances: float

    @property
    def score(self) -> float:
        """Mean of the four, each at most 1."""
        parts = (self.means, self.covariances, self.spectra, self.variances)
        return float(np.mean(np.minimum(parts, 1.0)))

    def named(self) -> dict[str, float]:
        """The score and the four."""
        return {"score": self.score, **asdict(self)}


@dataclass(frozen=True)
class Forecast:
    """The pooled data as far as a survey tells.

    Attributes
    ----------
    head : Head
        Pooled.
    counts : ndarray of shape (K,)
    total : float
        Trace of the pooled scatter, exact.
    variances : ndarray of shape (d,)
        Diagonal of the pooled scatter, exact.
    spectrum : ndarray of shape (d,)
        Forecast eigenvalues of the pooled scatter, descending.
    heterogeneity : Heterogeneity
    """

    head: Head
    counts: NDArray[np.int64]
    total: float
    variances: Array
    spectrum: Array
    heterogeneity: Heterogeneity

    @classmethod
    def of(cls, surveys: Sequence[Survey]) -> Forecast:
        """From the surveys of all parties, in any order."""
        surveys = sorted(surveys, key=lambda s: (s.head.n, s.head.mean.tobytes(), s.variances.tobytes()))
        pooled, deviations = pool_heads([survey.head for survey in surveys])
        rows = np.array([np.sqrt(s.head.n) * dev for s, dev in zip(surveys, deviations, strict=True)])
        between = np.zeros(pooled.mean.size)
        values = eigvalsh(rows @ rows.T)[::-1].clip(min=0.0)[: between.size]
        between[: values.size] = values
        variances = np.sum([survey.variances for survey in surveys], axis=0) + np.einsum("ij,ij->j", rows, rows)
        total = float(variances.sum())
        spectrum = np.sum([survey.spectrum for survey in surveys], axis=0) + between
        counts = np.array([survey.head.n for survey in surveys])
        return cls(pooled, counts, total, variances, spectrum, _heterogeneity(surveys, float(between.sum()), total))

    def krylov_rounds(self, k: int, block: int, tolerance: float, most: int = 200) -> int:
        """Rounds that block Krylov will need until its certificate is at ``tolerance`` degrees.

        The loop itself, run on the diagonal matrix of the forecast eigenvalues: from a Gaussian start the number of
        rounds does not depend on the basis.
        """
        d = self.spectrum.size
        start = np.random.default_rng(0).standard_normal((d, min(block, d)))
        found = BlockIteration(start, k, trace=float(self.spectrum.sum()), tolerance=tolerance)
        while not found.add(found.block, self.spectrum[:, None] * found.block) and found.asked < most:
            pass
        return found.asked

    def step_for(self, k: int, angle: float) -> float:
        """The shared step at which rounding every party's scatter turns the components by ``angle`` degrees at most.

        Entries are rounded at K parties, so their sum has independent errors of ``step sqrt(K / 12)``, and
        first-order perturbation gives the tangents of the angles as the singular values of ``error[i, j] / (l_i -
        l_j)``, i <= k < j. Valid for angles below about 3 degrees, infinite where k = d.

        Returns
        -------
        float
            In units of the mean variance of a feature.
        """
        d = self.spectrum.size
        if k >= d:
            return np.inf
        worst, _ = _turning(self.spectrum, k)
        step = np.tan(np.radians(angle)) / worst / np.sqrt(len(self.counts) / 12)
        return float(step * d / self.total)

    def coded_bytes(self, step: float) -> float:
        """Bytes of one party's scatter in multiples of ``step`` (in units of the mean variance), on average.

        The entropy of Gaussian entries whose variances are products of those of their features and have the
        spectrum's sum of squares: entries with heavier tails, as those of images, take less.
        """
        d, parties = self.spectrum.size, len(self.counts)
        absolute = step * self.total / d
        level = np.linalg.norm(self.spectrum / self.total) / parties  # one party's share of the scatter
        root = np.sqrt(self.variances)
        ratio = level * np.outer(root, root)[np.triu_indices(d)] / absolute
        bits = 0.5 * np.log2(1 + 2 * np.pi * np.e * ratio**2)
        return float(bits.sum() / 8)


def spectrum(data: Rows) -> Array:
    """Eigenvalues (d,), descending, of the scatter of ``data`` (n, d): through the smaller of the two Gram matrices."""
    n, d = data.shape
    values = np.zeros(d)
    if n <= d:
        _, R = triangular(data)
        some = eigvalsh(R @ R.T, check_finite=False) if len(R) else np.zeros(0)
    else:
        some = eigvalsh(unpack(Moments.of(data).scatter, d), lower=True, check_finite=False)
    values[: some.size] = some[::-1].clip(min=0.0)
    return values


def rounding_angle(spectrum: Array, k: int, step: float, parties: int) -> float:
    """The largest angle, in degrees, by which parties' scatters in multiples of ``step`` turn the components.

    From the eigenvalues (d,) of their sum, to first order as `Forecast.step_for`, and with what the largest of so many
    random errors exceeds its mean by: a Gaussian matrix over the gaps has a norm that does so by more than 4 over the
    least gap with a probability of 3e-4 (Ledoux 2001, on Lipschitz functions of Gaussians).
    """
    if k >= spectrum.size:
        return 0.0
    worst, largest = _turning(spectrum, k)
    return float(np.degrees(np.arctan(step * np.sqrt(parties / 12) * (worst + 4 * largest))))


def _turning(spectrum: Array, k: int) -> tuple[float, float]:
    """What independent unit errors in a matrix of these eigenvalues turn its components by: the mean of the largest
    tangent, and the largest part that a single error has in it."""
    gaps = np.maximum(spectrum[:k, None] - spectrum[None, k:], 1e-12 * spectrum[0])
    draws = np.random.default_rng(0).standard_normal((3, *gaps.shape)) / gaps
    return float(np.mean([np.linalg.norm(draw, 2) for draw in draws])), float(1 / gaps.min())


def _heterogeneity(surveys: Sequence[Survey], between: float, total: float) -> Heterogeneity:
    counts = np.array([survey.head.n for survey in surveys], dtype=np.float64)
    weights = counts / counts.sum()
    traces = np.array([survey.variances.sum() for survey in surveys]) / counts
    sketches = np.array([survey.sketch for survey in surveys], dtype=np.float64) / counts[:, None, None]
    sketches /= total or 1.0  # their squares are fourth powers of the data's unit
    average = np.tensordot(weights, sketches, 1)
    distances = np.linalg.norm(sketches - average, axis=(1, 2))
    spectra = np.array([survey.spectrum for survey in surveys])
    shares = spectra / np.maximum(spectra.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    mixture = weights @ shares
    return Heterogeneity(
        means=between / total if total else 0.0,
        covariances=float(weights @ distances / (np.linalg.norm(average) or 1.0)),
        spectra=float(_entropy(mixture) - weights @ [_entropy(share) for share in shares]),
        variances=float(weights @ np.abs(traces - weights @ traces) / (weights @ traces or 1.0)),
    )


def _entropy(shares: Array) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log2(positive)).sum())
