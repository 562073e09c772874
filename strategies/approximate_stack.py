"""AP-STACK: stack the parties' scaled eigenvectors and take the singular vectors of the stack; one round (note 001).

As the note has it, party k sends its leading r eigenvectors, each times the root of its eigenvalue of the local
*covariance*: parties count the same however many rows they have, and their means are left out. The error does not
vanish with r (MNIST, Dirichlet 0.1: about 28 degrees at r = 200).

``weights="rows"`` counts every party by its rows and adds one row for each mean. That is QR-PCA's truncated factor
without filler, and converges to the exact components with r.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.contract import Fields
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.eigen import angle_bound
from fedpca_flwr.maths.factors import Factor, leading_of_factor, stack
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, MethodCard, PCAClient, PCAStrategy, Request, Solution
from strategies.moments import TRUNCATED, factor_of, truncated_fields


class StackOptions(CountOptions):
    """Options of AP-STACK."""

    rank: Annotated[int, Limits(ge=0)] = 0
    """Eigenvectors that each party sends; 0: n-components."""
    weights: Literal["none", "rows"] = "none"
    """Whether parties count the same, or by their rows and with their means."""


CARD = MethodCard(
    name="ap-stack",
    title="Stacked eigenvectors",
    exact=False,
    result="for comparison",
    rounds=1,
    upload="d `rank` + d + 3",
    server_sees="leading local components",
    options=StackOptions,
    payloads={"statistics": TRUNCATED},
    reference="note 001",
)


class ApproximateStack(PCAStrategy):
    """AP-STACK."""

    card = CARD
    options: StackOptions

    def request(self) -> Request:
        rank = max(self.options.rank, self.options.n_components)
        return Request("statistics", sizes={"r": min(rank, self.quorum.features)})

    def aggregate_fit(self, server_round, results, failures):
        parts = [factor_of(reply) for reply in self.collect(server_round, results, failures)]
        pooled = stack(parts)
        wanted = self.n_components(pooled.head.n, pooled.head.mean.size)
        require_variance(pooled.diagonal(), pooled.head.n, pooled.head.mean)
        if self.options.weights == "none":
            pooled = _average(parts, pooled)
            if not pooled.trace > 0:
                raise DataError(
                    "the rows of each party are identical (it may have one row only): weights='none' leaves out the "
                    "variance between parties, and there is no other; set weights='rows', or take 'qr-pca'"
                )
        pairs = replace(leading_of_factor(pooled, wanted), resolution=None)  # truncated factors come from scatters
        bound = "none: row counts and means are left out; weights='rows' has one"
        if self.options.weights == "rows":
            bound = f"{angle_bound(pooled.error, pairs):.2g} degrees (Davis and Kahan: the worst case)"
        solution = Solution(pairs=pairs, mean=pooled.head.mean, total=pooled.trace, rows=pooled.head.n)
        return self.finish(solution, measured={"angle bound": bound})


class ApproximateStackClient(PCAClient):
    """Returns its own leading eigenvectors, times the roots of their eigenvalues."""

    def statistics(self, phase, received) -> Fields:
        return truncated_fields(self.data, self.sizes["r"])


def _average(parts: list[Factor], pooled: Factor) -> Factor:
    """All parties' local covariances with equal weight, in units of the pooled scatter."""
    ordered = sorted(parts, key=lambda part: (part.head.n, part.head.mean.tobytes(), part.trace))
    weights = [pooled.head.n / len(parts) / part.head.n for part in ordered]
    rows = [np.sqrt(weight) * part.rows for weight, part in zip(weights, ordered, strict=True)]
    trace = sum(weight * part.trace for weight, part in zip(weights, ordered, strict=True))
    return replace(pooled, rows=np.vstack(rows), trace=trace)
