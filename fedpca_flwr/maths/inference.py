r"""Inference about components: their number, their uncertainty, and rows that are odd.

All rules take the eigenvalues :math:`l_1 \ge l_2 \ge ...` of a covariance of n rows of d features (divisor n - 1), of
which at most min(f, d) are not zero, with f = n - 1 degrees of freedom.

**How many components.** `parallel_analysis` (Horn 1965), `broken_stick`, `minka`, the edges of
`fedpca_flwr.maths.marchenko_pastur`, and `bi_cross_validation` of rows and features at once (Owen and Perry 2009). The
last rule holds out the rows of a fold and a block of features: the data are ``[A B; C D]`` with A held out of both, and
a rank-k approximation of D predicts :math:`A \approx B D_k^+ C`. Its error needs no row: with S the scatter of the
training rows, :math:`D_k^+ C` is the regression on the first k components,
:math:`W_k = V_k \Lambda_k^{-1} V_k^T S_{DC}`, and with T the scatter of the validation rows, about the mean of the
training rows,

    |A - B W_k|^2 = tr T_AA - 2 tr W_k^T T_BA + tr W_k^T T_BB W_k

**How far sample eigenvalues and components are from the population's.** For normal rows, well separated eigenvalues and
many more rows than features (Anderson 1963)::

    l_i / (1 + z sqrt(2 / f))  to  l_i / (1 - z sqrt(2 / f))
    Var(v_i) = sum_{j != i} l_i l_j / (l_i - l_j)^2 v_j v_j^T / f

For rows of any distribution with fourth moments, whose i-th scores have the kurtosis K_i (3 for normal rows), the
variance of l_i is (K_i - 1) l_i^2 / n, so the step is z sqrt((K_i - 1) / n) (Waternaux 1976).

If features are not few beside the rows, a component r that rises over noise s2 of all features comes out larger and
turned (spiked model; Paul 2007, Benaych-Georges and Nadakuditi 2011), with ratio g = d / f::

    l = r (1 + g s2 / (r - s2)),    cos^2 = (1 - g s2^2 / (r - s2)^2) / (1 + g s2 / (r - s2))

New rows then have scores that are too near the centre, by the factor (r - s2) / (r + (g - 1) s2) (`score_shrinkage`;
Lee, Zou and Wright 2010).

**Odd rows.** With scores t of variances l, and the part e of a centred row that the components omit, a row lies
``T2 = sum_i t_i^2 / l_i`` from the others within the components (Hotelling's T squared) and ``SPE = |e|^2`` off them
(Q). For normal rows, with k fixed directions, T2 n (n - k) / (k (n^2 - 1)) has the distribution F(k, n - k) (Tracy,
Young and Mason 1992), and SPE nearly that of :math:`g \chi^2_h` (Box 1954), where with the omitted eigenvalues
:math:`\theta_1 = \sum l, \theta_2 = \sum l^2` it is :math:`h = \theta_1^2 / \theta_2` and :math:`g = \theta_1 / h`: the
omitted variance, and the number of directions that it is spread over. These limits are for the fitted rows. Components
are not fixed directions for new rows, which `fedpca_flwr.maths.new_rows` is about.
"""

from collections.abc import Sequence

import numpy as np
import scipy  # `scipy.special` is loaded when it is used, which few messages to a site do
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.marchenko_pastur import noise_edge, noise_variance
from fedpca_flwr.maths.moments import Moments, unpack_symmetric
from fedpca_flwr.maths.sums import pool

MIN_VARIANCE_SHARE = 1e-13  # share of the first variance below which another is none
NULL_PERCENTILE = 95.0  # the percentile of the null eigenvalues with which `parallel_analysis` compares
MAX_ROW_FOLDS, MAX_FEATURE_BLOCKS = 5, 5  # folds of rows, at most, and blocks of features, in bi-cross-validation
MIN_REGRESSED_SHARE = 1e-12  # of the first eigenvalue: below it another is rounding, on which nothing is regressed


def leading_run(above: NDArray[np.bool_]) -> int:
    """Count the entries before the first false entry."""
    return int(np.append(above, False).argmin())


def null_eigenvalues(variances: Array, n: int, draws: int, rng: Generator) -> Array:
    """Draw eigenvalues (draws, min(n - 1, d)), descending, of covariances of n rows of d independent normal features.

    Bartlett (1933): the rows' scatter has a triangular factor whose entries are independent, normal below the diagonal
    and chi on the diagonal, so that no rows are drawn.
    """
    d, freedom = len(variances), n - 1
    rank = min(d, freedom)
    eigenvalues, varying = np.zeros((draws, rank)), variances > 0  # a constant feature has the eigenvalue 0
    deviations = np.sqrt(variances[varying])[:, None]
    for i in range(draws):
        factor = np.tril(rng.standard_normal((d, rank)), -1)
        factor[np.arange(rank), np.arange(rank)] = np.sqrt(rng.chisquare(freedom - np.arange(rank)))
        rows = deviations * factor[varying]
        values = np.linalg.eigvalsh(rows @ rows.T if len(rows) <= rank else rows.T @ rows)[::-1]
        eigenvalues[i, : len(values)] = np.maximum(values, 0.0) / freedom
    return eigenvalues


def null_band(variances: Array, n: int, draws: int = 100) -> Array:
    """Compute the 95th percentiles (min(n - 1, d),) of `null_eigenvalues` drawn with a fixed seed (Horn 1965)."""
    return np.percentile(null_eigenvalues(variances, n, draws, np.random.default_rng(0)), NULL_PERCENTILE, axis=0)


def parallel_analysis(values: Array, band: Array) -> int:
    """Count the leading eigenvalues (d,), descending, above the percentiles (m,) of `null_band` (Horn 1965)."""
    return leading_run(values[: len(band)] > band)


def broken_stick(values: Array) -> int:
    """Count the leading eigenvalues (d,), descending, above the broken-stick lengths (Jackson 1993).

    These are the expected lengths, longest first, of d pieces of the total variance, broken at random points.
    """
    d = len(values)
    # expected length of the k-th longest of d pieces: (1 / d) sum of 1 / i over i = k, ..., d
    pieces = np.cumsum(1 / np.arange(d, 0, -1))[::-1] / d
    return leading_run(values > pieces * values.sum())


def minka(values: Array, n: int) -> int | None:
    """Choose the number of components of greatest evidence (Minka 2000), from 1, by eigenvalues (d,); None if n < d."""
    d = len(values)
    if n < d:
        return None
    evidence = [_log_evidence(values, k, n) for k in range(1, d)]
    return 1 + int(np.argmax(evidence)) if evidence else 1


def _log_evidence(values: Array, k: int, n: int) -> float:
    """Return Laplace's approximation of the log evidence of k components, from covariance eigenvalues of n rows."""
    # equation 77 of Minka 2000: directions is the log prior of the k components, curvature the log determinant |A_Z|
    d, i = len(values), np.arange(1, k + 1)
    floor = d * np.finfo(np.float64).eps * float(values[0])
    if values[k - 1] <= floor:
        return -np.inf
    noise = max(floor, float(values[k:].sum()) / (d - k))
    free = d * k - k * (k + 1) / 2
    directions = -k * np.log(2) + np.sum(scipy.special.gammaln((d - i + 1) / 2) - np.log(np.pi) * (d - i + 1) / 2)
    likelihood = -n / 2 * (np.log(values[:k]).sum() + (d - k) * np.log(noise))
    smoothed = np.concatenate([values[:k], np.full(d - k, noise)])
    pairs = np.triu_indices(d, 1)
    pairs = pairs[0][pairs[0] < k], pairs[1][pairs[0] < k]
    gaps = (values[pairs[0]] - values[pairs[1]]) * (1 / smoothed[pairs[1]] - 1 / smoothed[pairs[0]])
    with np.errstate(divide="ignore"):
        curvature = float(np.sum(np.log(gaps) + np.log(n)))
    return float(directions + likelihood + np.log(2 * np.pi) * (free + k) / 2 - curvature / 2 - k * np.log(n) / 2)


def bi_cross_validation(parts: Sequence[Moments]) -> int:
    """Choose the number of components, possibly 0, with the least error of held-out values (`validation_errors`)."""
    return int(np.argmin(validation_errors(parts)))


def validation_errors(parts: Sequence[Moments]) -> Array:
    """Compute the squared errors (m,) of held-out values for predictions from 0, ..., m - 1 components.

    There are two parties and two features or more. A fold is all rows of some parties; the least rank of one is m - 1.
    """
    groups, d = _folds([int(part.count) for part in parts]), parts[0].n_features
    blocks = min(MAX_FEATURE_BLOCKS, d)
    errors: list[Array] = []
    for group in groups:
        training = pool(part for i, part in enumerate(parts) if i not in group)
        validation = pool(parts[i] for i in group)
        # S, T: scatters (d, d) of the training and the validation rows, both about the training mean
        S = unpack_symmetric(training.scatter, d)
        T = unpack_symmetric(validation.scatter_about(training.mean + training.remainder), d)
        # a block is every `blocks`-th feature
        errors += [_fold_errors(S, T, np.arange(first, d, blocks)) for first in range(blocks)]
    count = min(fold_errors.size for fold_errors in errors)
    return np.asarray(np.sum([fold_errors[:count] for fold_errors in errors], axis=0))


def _fold_errors(S: Array, T: Array, block: NDArray[np.intp]) -> Array:
    """Return the squared errors of a held-out block of features predicted from 0, 1, ... components of the others.

    S, T (d, d): scatters of the training and of the held-out rows about the training mean; ``block``: feature indices.
    """
    predictors = np.setdiff1d(np.arange(len(S)), block)
    values, V = eigh(S[np.ix_(predictors, predictors)])
    values, V = values[::-1], V[:, ::-1]
    rank = int((values > MIN_REGRESSED_SHARE * max(values[0], 0.0)).sum())
    V = V[:, :rank]
    # prediction B V W of the block from the other features B; its error is tr T - 2 tr W'V'T_B + tr W'V'T V W
    W = (V.T @ S[np.ix_(predictors, block)]) / values[:rank, None]
    cross_terms = np.einsum("ij,ij->i", W, V.T @ T[np.ix_(predictors, block)])
    quadratic_terms = (V.T @ T[np.ix_(predictors, predictors)] @ V) * (W @ W.T)
    squares = np.diagonal(np.cumsum(np.cumsum(quadratic_terms, axis=0), axis=1))
    total = float(np.diagonal(T)[block].sum())
    return np.concatenate([[total], total - 2 * np.cumsum(cross_terms) + squares])


def _folds(rows: Sequence[int]) -> list[list[int]]:
    """Divide parties, by their numbers of rows, into folds (lists of party indices) of nearly equal numbers of rows."""
    folds: list[list[int]] = [[] for _ in range(min(MAX_ROW_FOLDS, len(rows)))]
    for party in sorted(range(len(rows)), key=lambda i: (-rows[i], i)):
        min(folds, key=lambda fold: sum(rows[i] for i in fold)).append(party)
    return folds


def normal_intervals(values: Array, vectors: Array, n: float, level: float, correlation: Array | None = None) -> Array:
    """Compute confidence intervals (k, 2) of the population's eigenvalues (k,) for normal rows (`robust_intervals`).

    Anderson 1963. With a ``correlation`` matrix (d, d) values and vectors (d, k) are those of scaled features, whose
    deviations err too: the variance is 2 l^2 (1 - 2 l sum v^4 + sum_ij v_i^2 v_j^2 r_ij^2) / n (Konishi 1979).
    """
    kurtosis = np.full_like(values, 3.0)
    if correlation is not None:
        squares = vectors**2
        pairs = np.sum(squares * (correlation**2 @ squares), axis=0)
        kurtosis += 2 * pairs - 4 * values * (n - 1) / n * np.sum(squares**2, axis=0)
    return robust_intervals(values, kurtosis, n - 1, level)


def variance_units(variances: Array) -> Array:
    """Return the unit (k,) of the squared scores of each component: its variance; infinite if it has none."""
    return np.where(variances > MIN_VARIANCE_SHARE * variances.max(initial=0.0), variances, np.inf)


def robust_intervals(values: Array, kurtosis: Array, n: float, level: float) -> Array:
    """Compute confidence intervals (k, 2) of the population's eigenvalues from the kurtosis (k,) of scores.

    The kurtosis of normal rows is 3 (Waternaux 1976). An upper end is infinite if rows are too few to bound it.
    """
    step = scipy.special.ndtri(0.5 + level / 2) * np.sqrt((kurtosis - 1).clip(min=0.0) / n)
    with np.errstate(divide="ignore"):
        upper = np.where(step < 1, values / (1 - step), np.inf)
    return np.column_stack([values / (1 + step), upper])


def loading_errors(values: Array, vectors: Array, k: int, n: float, correlation: Array | None = None) -> Array:
    """Compute standard errors (d, k) of normal rows' loadings from all d eigenpairs; infinite for tied eigenvalues.

    With a ``correlation`` matrix (d, d) the eigenpairs are those of scaled features, whose deviations err too.
    """
    gaps = values[:k, None] - values
    np.fill_diagonal(gaps, np.inf)
    tied = (gaps == 0).any(axis=1)
    gaps[tied] = np.inf
    if correlation is None:
        return np.where(tied, np.inf, np.sqrt(vectors**2 @ (values[:k, None] * values / gaps**2 / (n - 1)).T))
    values, errors = values * (n - 1) / n, np.empty((len(values), k))
    gaps = gaps * (n - 1) / n
    for j in range(k):  # covariances of u_m' dR v, where dR = dS - (diag(dS) R + R diag(dS)) / 2, of all m
        products, means = vectors * vectors[:, [j]], (values[j] + values) / 2
        cross = values[j] * np.outer(values, means) * (products.T @ products)
        C = np.diag(values[j] * values) - 2 * (cross + cross.T)
        C += 2 * np.outer(means, means) * (products.T @ correlation**2 @ products)
        turned = vectors / gaps[j]
        errors[:, j] = np.sqrt(np.einsum("im,ml,il->i", turned, C, turned).clip(min=0.0) / (n - 1))
    return np.where(tied, np.inf, errors)


def spiked_estimates(values: Array, k: int, n: int) -> tuple[Array, Array]:
    """Estimate the population's variances (k,) of components, and their angles (k,) to the sample's, in degrees.

    By the spiked model, from all eigenvalues (d,), descending. A component that noise alone may have gets the variance
    of the noise, and 90 degrees.
    """
    d, leading = len(values), values[:k]
    s2, ratio = noise_variance(values, n, d), d / (n - 1)
    above = leading > noise_edge(values, n, d)
    population = population_variances(leading, s2, ratio)
    excess = np.where(above, population - s2, 1.0)
    cosines = (1 - ratio * s2**2 / excess**2) / (1 + ratio * s2 / excess)
    angles = np.degrees(np.arccos(np.sqrt(cosines.clip(0.0, 1.0))))
    return np.where(above, population, s2), np.where(above, angles, 90.0)


def grouped_jackknife(statistic: Array, leave_out_statistics: Array, sizes: Array) -> tuple[Array, Array]:
    """Compute the jackknife estimate, without bias, of a statistic and its variance from groups (Busing et al. 1999).

    `leave_out_statistics` (g, ...) are of all rows but one group's, and `sizes` (g,) are the groups' rows.
    """
    groups = len(sizes)
    share = (sizes / sizes.sum()).reshape(-1, *[1] * statistic.ndim)
    estimate = groups * statistic - np.sum((1 - share) * leave_out_statistics, axis=0)
    pseudo = statistic / share - (1 / share - 1) * leave_out_statistics
    return estimate, np.mean((pseudo - estimate) ** 2 / (1 / share - 1), axis=0)


def score_shrinkage(variances: Array, total: float, n: float, d: int) -> Array:
    """Compute the factor by which scores of new rows are too small for each component (Lee, Zou and Wright 2010).

    `variances` (k,) are the sample's, `total` is the sum of the variances of all features, and d counts the features
    that vary. The factors (k,) are at most 1 (1 without noise), and NaN for a component that is not above the noise.
    """
    gamma, noise_rank = d / max(1, n - 1), min(n - 1, d) - variances.size
    if noise_rank <= 0 or total <= variances.sum():
        return np.ones(variances.size)  # no noise is left
    # noise variance: the omitted variance over the nearly d - k dimensions of the noise
    level = (total - float(variances.sum())) / (noise_rank * max(1.0, gamma))
    excess = population_variances(variances, level, gamma) - level
    return np.asarray(excess / (excess + gamma * level))


def population_variances(variances: Array, noise: float, ratio: float) -> Array:
    """Solve ``l = r (1 + g s / (r - s))`` for the population's variances r (k,), with noise s and ratio g; or NaN.

    A component that is not above the noise, whose largest variance is ``s (1 + sqrt(g))^2``, has NaN.
    """
    unit = float(variances.max()) or 1.0  # their squares are fourth powers of the data's unit
    values, s = variances / unit, noise / unit
    b = values + s * (1 - ratio)
    root = b**2 - 4 * values * s
    population = (b + np.sqrt(root.clip(min=0.0))) / 2
    return np.where((root > 0) & (population > s), unit * population, np.nan)


def t_squared(scores: Array, variances: Array) -> Array:
    """Compute Hotelling's T squared (n,): the sum of squared scores (n, k) over the components' variances (k,)."""
    return np.asarray(np.sum(scores**2 / variances, axis=1))


def t_squared_limit(k: int, n: float, level: float) -> float:
    """Compute the limit that T squared of a normal row exceeds with probability 1 - ``level``, of n > k fitted rows."""
    return float(k * (n**2 - 1) / (n * (n - k)) * scipy.special.fdtri(k, n - k, level))


def spe_limit(residual_variance: float, directions: float, level: float) -> float:
    """Compute the limit that the squared residual (SPE) of a fitted row exceeds with probability 1 - ``level``.

    `residual_variance` is the variance that the components omit, and `directions` comes from `Eigenpairs`.
    """
    return float(residual_variance / directions * 2 * scipy.special.gammaincinv(directions / 2, level))


def t_squared_contributions(centred: Array, components: Array, variances: Array) -> Array:
    """Divide T squared of centred rows (n, d) into parts (n, d) of the features (Westerhuis, Gurden and Smilde 2000).

    The parts sum to Hotelling's T squared; a part may be negative. Components (k, d) are orthonormal.
    """
    return centred * ((centred @ components.T / variances) @ components)
