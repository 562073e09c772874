"""Divergences of the parties' moments from those of all rows: four measures, and their mean as a score.

The measures are those of design note 001: of means, of covariances (Frobenius), of normalised spectra (Kullback and
Leibler) and of total variances. The note does not publish how it scales and weighs them. Here each is relative to the
average covariance, counts no more than 1 at any party, and is a mean over the parties. The score weighs the four
equally.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, head_order, rows_between, unpack_symmetric
from fedpca_flwr.maths.sums import pool

MIN_SHARE = 1e-12  # of the variance, which is added to every eigenvalue, so that each logarithm is finite


def divergences(parts: Sequence[Moments]) -> dict[str, float]:
    r"""Compute the score and the four divergences of parties with moments n_k, m_k and covariance C_k, by name.

    With the mean m of all rows and the average covariance ``C = sum n_k C_k / N``, a party's divergences are ``|m_k -
    m| / sqrt(tr C)``, ``|C_k - C|_F / |C|_F``, ``sum_j p_kj log(p_kj / p_j)`` with eigenvalues p as shares of their
    sum, and ``|tr C_k / tr C - 1|``.
    """
    ordered = sorted(parts, key=lambda part: head_order(part.head))
    d = ordered[0].n_features
    pooled, rows = rows_between([part.head for part in ordered])
    average = unpack_symmetric(pool(ordered, within=True).scatter / pooled.n, d)
    total = max(float(np.trace(average)), np.finfo(np.float64).tiny)  # rows equal at each party have no variance
    average /= total
    norm, shares = float(np.linalg.norm(average)) or 1.0, _spectrum_shares(average)
    measures = []
    for part, row in zip(ordered, rows, strict=True):
        n = part.head.n
        covariance = unpack_symmetric(part.scatter / (n * total), d)
        of_party = _spectrum_shares(covariance)
        means = float(np.linalg.norm(row) / math.sqrt(n) / math.sqrt(total))
        covariances = float(np.linalg.norm(covariance - average)) / norm
        spectra = float(of_party @ np.log(of_party / shares))
        measures.append((means, covariances, spectra, abs(float(np.trace(covariance - average)))))
    limited = np.clip(measures, 0.0, 1.0).T
    names = ("means", "covariances", "spectra", "variances")
    result = {name: math.fsum(values) / len(ordered) for name, values in zip(names, limited, strict=True)}
    return {"score": math.fsum(result.values()) / len(result), **result}


def _spectrum_shares(C: Array) -> Array:
    """Return the eigenvalues (d,), ascending, of a covariance (d, d) as shares of their sum, each above 0."""
    values = np.linalg.eigvalsh(C).clip(min=0.0)
    values += MIN_SHARE * (float(np.trace(C)) or 1.0)
    return np.asarray(values / values.sum())
