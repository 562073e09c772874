"""Forecast of the cost and the exactness of each way to the components, from a few numbers of each party.

The parties tell their counts, means, variances, the eigenvalues of their own scatter, a sketch of this scatter, and
about how many bytes it takes in multiples of a step, for some steps. The eigenvalues of the pooled scatter are forecast
by the sum of the sorted eigenvalues of its parts, which is right if the parts have the same eigenvectors (elsewhere its
partial sums are too large: Ky Fan). If all rows are fewer than features, most of the parties' variance lies in separate
directions, and the eigenvalues of all parts side by side are the forecast: right for noise, and too small for
components that stand out of the noise, so that costs are rather forecast too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.codecs import forecast_bytes
from fedpca_flwr.maths.factors import triangular_factor
from fedpca_flwr.maths.moments import Head, Moments, head_and_diagonal, rows_between, scatter_product, unpack
from fedpca_flwr.maths.rows import Rows

MAX_FORECAST_ROUNDS = 200  # more are not forecast
# steps whose bytes a party tells, in units of the mean variance of its own scatter: of a small part of all rows a step
# that is small beside all rows is large
CODED_STEPS = np.logspace(-7, 3, 21)


@dataclass(frozen=True)
class Survey:
    """Numbers that a party sends before a method is chosen: eigenvalues, a sketch of its scatter, sizes in code."""

    head: Head
    variances: Array  # (d,), diagonal of the party's scatter
    spectrum: Array  # (d,), eigenvalues of this scatter, descending
    sketch: Array  # (d, s), this scatter times random vectors
    coded: Array  # (21,), its approximate bytes in multiples of each of `CODED_STEPS`


@dataclass(frozen=True)
class Heterogeneity:
    """Four measures of how much the parties' data differ, each from 0 (not at all) to about 1."""

    means: float  # share of the variance that lies between the parties
    covariances: float  # Frobenius distance to the average covariance, relative to it, on the sketches
    spectra: float  # Jensen-Shannon divergence (base 2) of the normalised spectra
    variances: float  # distance of the total variances to their average, relative to it

    @property
    def score(self) -> float:
        """Mean of the four measures, each cut at 1."""
        parts = (self.means, self.covariances, self.spectra, self.variances)
        return float(np.mean(np.minimum(parts, 1.0)))

    def as_dict(self) -> dict[str, float]:
        """Return the score and the four measures by name."""
        return {"score": self.score, **asdict(self)}


@dataclass(frozen=True)
class Forecast:
    """Estimates of the pooled scatter from all parties' surveys, from which the cost of methods is forecast."""

    head: Head
    counts: NDArray[np.int64]  # (K,), rows of each party
    total: float  # trace of the pooled scatter, exact
    variances: Array  # (d,), its diagonal, exact
    spectrum: Array  # (d,), forecast eigenvalues, descending
    heterogeneity: Heterogeneity
    party_codes: tuple[tuple[float, Array], ...]  # mean variance of each party's scatter, and bytes by `CODED_STEPS`

    @classmethod
    def from_surveys(cls, surveys: Sequence[Survey]) -> Forecast:
        """Create the forecast from the surveys of all parties, in any order."""
        surveys = sorted(surveys, key=lambda s: (s.head.n, s.head.mean.tobytes(), s.variances.tobytes()))
        pooled, rows = rows_between([survey.head for survey in surveys])
        between = np.zeros(pooled.mean.size)
        values = eigvalsh(rows @ rows.T)[::-1].clip(min=0.0)[: between.size]
        between[: values.size] = values
        variances = np.sum([survey.variances for survey in surveys], axis=0) + np.einsum("ij,ij->j", rows, rows)
        total = float(variances.sum())
        counts = np.array([survey.head.n for survey in surveys])
        parts = np.array([*(survey.spectrum for survey in surveys), between])
        separate = pooled.n < between.size
        spectrum = np.sort(parts, axis=None)[::-1][: between.size] if separate else parts.sum(axis=0)
        heterogeneity = _heterogeneity(surveys, float(between.sum()), total)
        party_codes = tuple((float(survey.variances.mean()), survey.coded) for survey in surveys)
        return cls(pooled, counts, total, variances, spectrum, heterogeneity, party_codes)

    def krylov_rounds(self, k: int, block: int, tolerance: float) -> int:
        """Forecast the rounds of a block Krylov iteration until k components are certified to a tolerance in degrees.

        The loop itself runs on the diagonal matrix of the forecast eigenvalues, for `MAX_FORECAST_ROUNDS` at most: from
        a Gaussian start of `block` columns the number of rounds does not depend on the basis.
        """
        rank = int(np.count_nonzero(self.spectrum))
        values = self.spectrum[: rank + block]  # of directions without variance a block meets no more than it is wide
        start = np.random.default_rng(0).standard_normal((values.size, min(block, values.size)))
        iteration = BlockIteration(start, k, trace=float(values.sum()), tolerance=tolerance)
        for _ in range(MAX_FORECAST_ROUNDS):
            if iteration.add(iteration.block, values[:, None] * iteration.block):
                break
        return iteration.product_count

    def coded_bytes(self, step: float) -> float:
        """Forecast the mean bytes of a party's scatter in multiples of a step, given in units of the mean variance."""
        absolute = np.log(step * self.total / self.spectrum.size)
        curves = [(np.log(CODED_STEPS * unit), coded) for unit, coded in self.party_codes if unit > 0]
        return float(sum(np.interp(absolute, steps, coded) for steps, coded in curves) / len(self.party_codes))


def make_survey(data: Rows, block: Array, max_features: int) -> Survey:
    """Compute the survey of a party's rows (n, d) with the random vectors (d, s) of the sketch.

    With more than `max_features` features the bytes in code are 0, and no scatter (d, d) is formed if rows are fewer.
    """
    n, d = data.shape
    if n <= d and d > max_features:
        head, variances = head_and_diagonal(data)
        sketch = scatter_product(data, head, block)
        return Survey(head, variances, _gram_eigenvalues(data), sketch, np.zeros(CODED_STEPS.size))
    local = Moments.from_rows(data)
    variances = local.diagonal()
    steps = CODED_STEPS * float(variances.mean())
    coded = np.zeros(CODED_STEPS.size)
    if steps[0] > 0 and d <= max_features:
        coded = forecast_bytes(local.scatter, d, steps)
    if n <= d:
        values = _gram_eigenvalues(data)
    else:
        values = eigvalsh(unpack(local.scatter, d), lower=True, check_finite=False)[::-1]
    return Survey(local.head, variances, values.clip(min=0.0), local.times(block), coded)


def _gram_eigenvalues(data: Rows) -> Array:
    """Return the eigenvalues (d,), descending, of a scatter of fewer rows than features, from the rows' Gram matrix."""
    values = np.zeros(data.shape[1])
    _, R = triangular_factor(data)
    leading = eigvalsh(R @ R.T, check_finite=False) if len(R) else np.zeros(0)
    values[: leading.size] = leading[::-1].clip(min=0.0)
    return values


def _heterogeneity(surveys: Sequence[Survey], between: float, total: float) -> Heterogeneity:
    """Return the measures of difference, given the variance between the parties' means and the total variance."""
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
    """Return the entropy in bits of shares that sum to 1."""
    positive = shares[shares > 0]
    return float(-(positive * np.log2(positive)).sum())
