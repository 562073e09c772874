"""P-COV: the exact PCA of all rows together, in one round.

Begin with P-COV if your rows are complete numbers with up to some thousand features. Site k sends its number of rows
n_k, mean m_k and centred scatter S_k. With the mean m of all N rows, the server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

The components are the leading eigenvectors of S. The result is exact up to rounding, however the rows are divided among
the sites. With secure aggregation the same sums take more rounds (docs/secure-aggregation.md).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fedpca_flwr.questions import method
from fedpca_flwr.questions.rows import staged_moments


class CovarianceOptions(method.MomentsOptions, method.WeightOptions, method.VariantOptions):
    """Options of P-COV: components, scaling, the moments that the server keeps, and the divisor of variances."""

    published: ClassVar[Mapping[str, Any]] = {"divisor": "n"}

    divisor: Literal["n-1", "n"] = "n-1"
    """Number by which the scatter is divided for variances: that of the rows less one, or of the rows."""


def covariance_script(config: method.RunConfig, options: CovarianceOptions) -> method.Questions:
    """Return the questions of P-COV: count, mean and scatter, and the projection; raise as `moments_questions`."""
    return {**method.moments_questions(config, keep=options.keep), **method.projection_questions()}


CARD = method.MethodCard(
    name="p-cov",
    title="Pooled covariance",
    exact=True,
    rounds="1",
    upload="d(d+1)/2 + d + 1, for d features",
    server_sees="each party's covariance",
    disclosure=method.Disclosure(
        "its number of rows, mean and covariance matrix; in the last round its count and squared error",
        "the pooled components, mean and scales",
    ),
    summed_disclosure=method.Disclosure(
        "the number of rows, mean, variances, scatter and squared error",
        "the number, mean and variances of all rows; the pooled components",
    ),
    pools_moments=True,
    weighted=True,
    mixed=True,
    rotatable=True,
    options=CovarianceOptions,
    script=covariance_script,
    reference="Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance",
    differences="Variances have the divisor N - 1, as in scikit-learn. The unpublished design note 000 divides by N "
    "(`variant='paper'`). On the 1797 digits variances get 0.06 % smaller, and nothing else changes.",
)


class PooledCovariance(method.Strategy):
    """Strategy of P-COV: leading eigenvectors of the scatter of all parties' rows about their pooled mean.

    The moments of two groups A and B of rows merge without loss (Chan, Golub and LeVeque 1983, Algorithms for computing
    the sample variance, equation 2.1)::

        n = n_A + n_B,    m = m_A + (n_B / n) (m_B - m_A),    S = S_A + S_B + (n_A n_B / n) (m_B - m_A)(m_B - m_A)^T

    so counts, means and scatters of the parties give those of all rows, in any order and grouping. No sum of squares
    about zero is subtracted, which would lose digits far from zero. The explained variances are the eigenvalues
    of S divided by N - 1.
    """

    card = CARD
    options: CovarianceOptions

    @override
    def aggregate(self) -> method.Fitting:
        """Pool the sites' moments, after any stages, and return the leading eigenpairs; raise as `solution.solve`."""
        pooled = yield from staged_moments(self)
        indicators, options = self.config.indicators, self.options.solve_options
        unused = not self.stages and pooled.evidence.stored is None
        solution = method.solve(pooled.moments, pooled.diagonal, indicators=indicators, overwrite=unused, **options)
        return replace(solution, evidence=pooled.evidence, divisor=self.options.divisor)
