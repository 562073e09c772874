"""P-COV and AP-COV over the parties that survive: all that the PCA needs in one sum.

P-COV: count, sum and uncentred second moments of all rows, exact to 32 digits (`fedpca_flwr.maths.uncentred`), so that
nobody needs to know the pooled mean before. AP-COV: the scatters about the parties' own means, and the diagonal of the
second moments for the variances. Three words a value: three times the bytes of the same method without ``survivors``.
Only ``bound`` sets the steps here; it may be 10^8 times the data's deviation at no loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.maths.moments import Moments, diagonal_positions, packed_size
from fedpca_flwr.maths.uncentred import about_mean, head_of, mean_products, mean_squares, total_of
from fedpca_flwr.secure import Words
from strategies.approximate_covariance import CARD as AVERAGED
from strategies.approximate_covariance import NOTE, left_out, require_some_within
from strategies.base import Reply, Solution
from strategies.moments import CovarianceStrategy
from strategies.pooled_covariance import CARD as POOLED
from strategies.secure import rows_of
from strategies.secure_projection import SecureProjection, SecureProjectionClient
from strategies.sums import ROWS, require_bound, require_resolved, require_within
from strategies.survivors import SurvivorsStrategy, survivors_card
from strategies.survivors_client import SurvivorsClient

WORDS = 3
"""For each value: steps of 2^-154 of its limit."""


class SurvivorsCovariance(SurvivorsStrategy, SecureProjection, CovarianceStrategy):
    """``within`` says whether the scatters are those about the parties' own means."""

    phase = "moments"
    within = False

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        require_bound(config.bound)
        self._unseen: list[str] = []  # what a reader must know of features whose variance fixed point does not hold

    def layout(self):
        return of_moments(self.config.bound, self.quorum.features, within=self.within)

    def pooled(self, total: Words) -> tuple[Moments, NDArray]:
        """Count, mean and scatter of the survivors' rows, and the diagonal (d,) of the scatter about their mean."""
        layout, parties, bound = self.layout(), len(self.survivors), self.config.bound
        _, sums = layout.decode_double(total)
        head = head_of(rows_of(sums["count"][0], parties), sums["sum"])
        if self.within:
            scatter, _ = sums["scatter"]
            diagonal = about_mean(sums["squares"], mean_squares(head))
        else:
            scatter = about_mean(sums["scatter"], mean_products(head))
            diagonal = scatter[diagonal_positions(head.mean.size)]
        missed = np.full(diagonal.size, 3 * parties * layout.resolution * ROWS * bound**2)  # of three parts each
        require_resolved(bound, missed, diagonal, scale=self.options.scale)
        unseen = int((diagonal <= missed).sum())
        if self.options.scale and unseen:
            least = float(np.sqrt(missed[0] / head.n))
            self._unseen = [
                f"{unseen} features were taken for constant and not scaled: next to 'bound' fixed point holds no "
                f"deviation below {least:.2g}; if one of them varies less than that, change its unit"
            ]
        return Moments(*head, scatter=scatter), diagonal.clip(min=0.0)

    def projected(self, replies: list[Reply]) -> tuple[int, float] | None:
        """As in every secure run, if all survivors are still there: the sum of fewer would show who left."""
        if len(replies) == len(self.survivors):
            return super().projected(replies)
        assert self.model is not None
        self.model.log["notes"].append("a party left before the last round: the squared error is not measured")
        return None

    def finish(self, solution: Solution, *, notes=(), measured=None):
        weights = 1.0 if solution.scale is None else solution.scale**-2
        missed = 3 * len(self.survivors) * self.layout().resolution * ROWS * self.config.bound**2
        share = missed * float(np.sum(weights * np.ones_like(solution.mean))) / solution.total
        told = {"fixed point": f"rounds off {share:.1g} of the variance at most"}
        pairs = replace(solution.pairs, rank=None, error=share * solution.total)  # a variance may be rounded off
        solution = replace(solution, pairs=pairs)
        return super().finish(solution, notes=[*self._unseen, *notes], measured={**(measured or {}), **told})


class SurvivorsPooledCovariance(SurvivorsCovariance):
    card = survivors_card(POOLED, "moments")

    def aggregate_sum(self, total):
        return self.finish(self.solve(*self.pooled(total)))


class SurvivorsApproximateCovariance(SurvivorsCovariance):
    """``measured`` holds the share of variance that it leaves out."""

    card = survivors_card(AVERAGED, "moments")

    @property
    def within(self) -> bool:  # type: ignore[override]
        return self.options.center

    def aggregate_sum(self, total):
        averaged, diagonal = self.pooled(total)
        solution = self.solve(averaged, diagonal)
        require_some_within(solution)
        between = left_out(diagonal - averaged.diagonal(), solution)
        return self.finish(solution, notes=[NOTE], measured={"between parties": between})


class SurvivorsPooledCovarianceClient(SurvivorsClient, SecureProjectionClient):
    """Adds its uncentred second moments."""

    within = False

    def parts(self, phase):
        data, bound = self.data, self.config.bound
        require_within(bound, data, self.node.num_partitions)
        moments = Moments.of(data)
        total = total_of(moments.head)
        first = {"count": np.asarray(len(data)), "sum": total[0], "scatter": moments.scatter}
        if self.within:
            high, low = mean_squares(moments.head)
            parts = [{**first, "squares": moments.diagonal()}, {"sum": total[1], "squares": high}, {"squares": low}]
        else:
            high, low = mean_products(moments.head)
            parts = [first, {"sum": total[1], "scatter": high}, {"scatter": low}]
        return parts, of_moments(bound, data.shape[1], within=self.within)


class SurvivorsApproximateCovarianceClient(SurvivorsPooledCovarianceClient):
    """Adds its scatter about its own mean, and its uncentred squares."""

    @property
    def within(self) -> bool:  # type: ignore[override]
        return self.options.center


def of_moments(bound: float, d: int, *, within: bool) -> Layout:
    """Of count, sum and packed second moments of rows whose values are at most ``bound`` in size."""
    limits = {
        "count": np.array(float(ROWS)),
        "sum": np.full(d, ROWS * bound),
        "scatter": np.full(packed_size(d), ROWS * bound**2),
    }
    if within:
        limits["squares"] = np.full(d, ROWS * bound**2)
    return Layout(limits, words=WORDS)
