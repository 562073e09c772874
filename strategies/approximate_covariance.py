"""AP-COV: the average of the sites' covariances, in one round.

AP-COV is for comparison: P-COV sends the same numbers and is exact. The average leaves out the scatter between the
sites' means, so its error grows with the distances between the means.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from typing_extensions import override

from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.sums import reproducible_sum
from fedpca_flwr.questions import method
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.pooling import PooledMoments
from fedpca_flwr.questions.rows import WITHIN_DISCLOSURE


class AveragedOptions(method.ScaledOptions):
    """Options of AP-COV (averaged covariances): components, centring, scaling and the parties' weights."""

    party_weights: Literal["rows", "none"] = "rows"
    """Weight of a site's covariance: its number of rows, or the same for all ('none')."""

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by sums of scatters about own means; nothing without centring."""
        return {"ap-cov": WITHIN_DISCLOSURE} if self.center else {}  # averaged raw second moments leave nothing out


def averaged_script(config: method.RunConfig, options: AveragedOptions) -> method.Questions:
    """Return the questions of AP-COV: moments, with ``center`` about the parties' own means, and the projection.

    Raise ConfigError for equal weights without centring, or where only sums open.
    """
    possible = options.center and method.by_transport(config, clear=True, masked=False)
    if options.party_weights == "none" and not possible:
        raise method.ConfigError(
            "run-config: 'party-weights' is 'none', which goes only with center=true, and without secure-aggregation: "
            "sums over all rows do not tell each party's covariance; set party-weights='rows'"
        )
    return {**method.moments_questions(config, within=options.center), **method.projection_questions()}


CARD = method.MethodCard(
    name="ap-cov",
    title="Averaged covariance",
    exact=False,
    result="It leaves out the variance between the sites",
    rounds="1",
    upload="d(d+1)/2 + d + 1, for d features",
    server_sees="each party's covariance",
    disclosure=method.Disclosure(
        "its number of rows, mean and covariance matrix; in the last round its count and squared error",
        "the pooled components, mean and scales",
    ),
    summed_disclosure=method.Disclosure(
        "the number of rows, mean, variances, scatter within the sites, and squared error",
        "the number, mean and variances of all rows; the pooled components",
    ),
    pools_moments=True,
    weighted=True,
    mixed=True,
    options=AveragedOptions,
    script=averaged_script,
    reference="this project",
    variance_base="the parties' own variances, each of equal weight, with party-weights='none'",
    differences="None: the default is the mean `sum n_k C_k / N` of covariances by rows, which the unpublished "
    "design notes 000 and 001 name. `party-weights='none'` is the simple mean `sum C_k / K` of K sites. On the "
    "digits (10 sites, Dirichlet 0.1, seed 42, 10 components) the simple mean is on average 12 degrees from the "
    "exact components, and the mean by rows 6.",
)


class ApproximateCovariance(method.Strategy):
    """Strategy of AP-COV: leading eigenvectors of the scatter within the parties, without that between means.

    The scatter S of all rows is the scatter W within the parties and the scatter B between their means::

        S = W + B,    W = sum S_k,    B = sum n_k (m_k - m)(m_k - m)^T

    The components are eigenvectors of W, and ``trace(B) / trace(S)`` is the share left out. W says nothing of the
    directions of B. Averaged second moments about zero (``center=false``) leave nothing out. Where the server sees the
    parties' means, the model's measurements have the angle to the exact components.
    """

    card = CARD
    options: AveragedOptions

    @override
    def aggregate(self) -> method.Fitting:
        """Solve the scatter within parties, and measure what it omits; raise as `solve`, DataError if it is zero."""
        equal = self.options.party_weights == "none"
        pooling = yield from method.pooled_moments(self, within=self.options.center, retain_all=equal)
        pooling = _weigh_equally(pooling) if equal else pooling
        averaged, diagonal, pooled = pooling.moments, pooling.diagonal, pooling.total
        keywords = {"indicators": self.config.indicators, **self.options.solve_options}
        # of what is left out between the parties the averaged scatter tells no directions
        solution = replace(method.solve(averaged, diagonal, **keywords), evidence=pooling.evidence, measurements={})
        if solution.pairs.values[0] <= 0:
            raise method.DataError(
                "the rows of each party are identical (it may have one row only): averaged covariances hold no "
                "variance; take 'p-cov', which costs the same and keeps the variance between parties"
            )
        weights = 1.0 if solution.scale is None else solution.scale**-2
        if equal:
            solution = replace(solution, total=float((averaged.diagonal() * weights).sum()))
        omitted = float(((diagonal - averaged.diagonal()) * weights).sum()) / solution.total
        measured = {} if equal else {"between_parties_variance_share": max(0.0, omitted)}
        if pooled is not None:
            exact = method.solve(pooled, diagonal, **keywords).pairs.vectors
            k = min(exact.shape[1], solution.pairs.vectors.shape[1])
            angles = principal_angles(solution.pairs.vectors[:, :k], exact[:, :k])
            measured["angle_to_exact_max_degrees"] = float(angles.max())
            measured["angle_to_exact_mean_degrees"] = float(angles.mean())
        notes = ["averaged covariances leave out the variance between parties; p-cov costs the same and is exact"]
        return solution.with_details(notes=notes, measurements=measured)


def _weigh_equally(pooling: PooledMoments) -> PooledMoments:
    """Return the moments with the scatter ``N / K sum S_k / n_k`` of K parties, each of which counts equally."""
    share, units = pooling.moments.count / len(pooling.parts), Contributions(pooling.parts).units()
    parts = {name: replace(part, scatter=share / part.count * part.scatter) for name, part in pooling.parts.items()}
    averaged = replace(pooling.moments, scatter=reproducible_sum([part.scatter for part in parts.values()]))
    evidence = replace(pooling.evidence, contributions=Contributions(parts, between=False), units=units)
    return pooling._replace(moments=averaged, evidence=evidence)
