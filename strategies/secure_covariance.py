"""P-COV and AP-COV with secure aggregation: one sum of scatters, packed.

P-COV: every party sends its scatter T_k about the centre m that all share, and the sum is the pooled one,
S = sum T_k - N (m' - m)(m' - m)^T with m' the mean before rounding. No scatter between means is left to add.

AP-COV: every party sends its scatter about its own mean. What the average leaves out follows from the variances; the
angle to the exact components would need P-COV's sum too, and is not measured.
"""

from __future__ import annotations

from scipy.linalg import blas

from fedpca_flwr.maths.moments import Moments
from strategies.approximate_covariance import CARD as AVERAGED
from strategies.approximate_covariance import NOTE, left_out, require_some_within
from strategies.moments import CovarianceStrategy
from strategies.pooled_covariance import CARD as POOLED
from strategies.secure_moments import SecureMomentsClient, SecureMomentsStrategy, centred_card
from strategies.sums import of_scatter


class SecureCovarianceStrategy(SecureMomentsStrategy, CovarianceStrategy):
    """Asks for one sum of packed scatters."""

    def ask_own(self):
        return "scatter", [self.pooled.centre, self.pooled.spread], of_scatter(self.pooled.spread)

    def moments(self, scatter, *, about_centre: bool) -> Moments:
        """The moments that a sum of scatters (packed) makes, taken about the shared centre or the parties' means."""
        pooled = self.pooled
        if about_centre:
            scatter = blas.dspr(pooled.centre.size, -float(pooled.rows), pooled.remainder, scatter, lower=1)
        return Moments(*pooled.head, scatter=scatter)


class SecurePooledCovariance(SecureCovarianceStrategy):
    card = centred_card(POOLED, "scatter")

    def aggregate_own(self, fields, *, last):
        moments = self.moments(fields["scatter"], about_centre=True)
        return self.finish(self.solve(moments, self.pooled.diagonal))


class SecureApproximateCovariance(SecureCovarianceStrategy):
    """``measured`` holds the share of variance that it leaves out."""

    card = centred_card(AVERAGED, "scatter")

    def aggregate_own(self, fields, *, last):
        averaged = self.moments(fields["scatter"], about_centre=not self.options.center)
        solution = self.solve(averaged, self.pooled.diagonal)
        require_some_within(solution)
        between = left_out(self.pooled.diagonal - averaged.diagonal(), solution)
        return self.finish(solution, notes=[NOTE], measured={"between parties": between})


class SecurePooledCovarianceClient(SecureMomentsClient):
    """Adds its scatter about the shared centre."""

    def own_summands(self, phase, received):
        centre, spread, *_ = self.asked(received)
        return {"scatter": Moments.of(self.data).scatter_about(centre)}, of_scatter(spread)


class SecureApproximateCovarianceClient(SecureMomentsClient):
    """Adds its scatter about its own mean, or about the shared centre where nothing is centred."""

    def own_summands(self, phase, received):
        centre, spread, *_ = self.asked(received)
        moments = Moments.of(self.data)
        scatter = moments.scatter if self.options.center else moments.scatter_about(centre)
        return {"scatter": scatter}, of_scatter(spread)
