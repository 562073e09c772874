"""AP-STACK: the singular vectors of the parties' stacked eigenvectors, in one round, for comparison.

With ``party-weights="none"`` party k sends its leading r eigenvectors, each times the root of its eigenvalue of the
local *covariance*. All parties count the same, however many rows they have, and their means are left out, so the error
does not vanish with r (MNIST, Dirichlet 0.1: about 28 degrees at r = 200).

``party-weights="rows"`` counts each party by its rows and adds one row for each mean. This is the truncated factor of
QR-PCA without filler, and converges to the exact components with r.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.maths import factors
from fedpca_flwr.maths.eigen import angle_bound
from fedpca_flwr.questions import fields, method


class StackOptions(method.Options):
    """Options of AP-STACK."""

    rank: Annotated[int, Limits(ge=0, examples=["k", "2k", 100])] = 0
    """Eigenvectors that each party sends; 0: n-components."""
    party_weights: Literal["none", "rows"] = "none"
    """Parties count the same, or by their rows and with their means."""


def stack_script(config: method.RunConfig, options: StackOptions) -> method.Questions:
    """One truncated factor."""
    truncated = fields.truncated_questions(lambda public: min(max(options.rank, options.n_components), public.features))
    return {**truncated, **method.projection_questions()}


CARD = method.MethodCard(
    name="ap-stack",
    title="Stacked eigenvectors",
    exact=False,
    result="for comparison",
    rounds="1",
    upload="d `rank` + d + 3",
    server_sees="leading local components",
    disclosure=method.Disclosure("number of rows, mean, total variance, its leading components"),
    options=StackOptions,
    script=stack_script,
    reference="Balcan, Kanchanapally, Liang and Woodruff 2014, Improved distributed principal component analysis",
    variance_base="the parties' own variances, with party-weights='none' each of equal weight",
)

NO_BOUND_NOTE = "no bound on the angle: row counts and means are left out; party-weights='rows' has one"


class ApproximateStack(method.Strategy):
    """AP-STACK."""

    card = CARD
    options: StackOptions

    def aggregate(self) -> method.Fitting:
        parts = [fields.read_factor(reply) for reply in (yield method.Round("truncated"))]
        pooled = factors.stack_factors(parts)
        n_components = self.n_components(pooled.head.n, pooled.head.mean.size)
        method.require_variance(pooled.diagonal(), pooled.head.n, pooled.head.mean)
        if self.options.party_weights == "none":
            pooled = _average_parties(parts, pooled)
            if not pooled.trace > 0:
                raise method.DataError(
                    "the rows of each party are identical (it may have one row only): party-weights='none' leaves out "
                    "the variance between parties, and there is no other; set party-weights='rows', or take 'qr-pca'"
                )
        pairs = replace(
            factors.factor_eigenpairs(pooled, n_components), resolution=None
        )  # truncated factors come from scatters
        bounded = self.options.party_weights == "rows"
        return method.Solution(
            pairs=pairs,
            mean=pooled.head.mean,
            total=pooled.trace,
            rows=pooled.head.n,
            notes=[] if bounded else [NO_BOUND_NOTE],
            measurements={"angle_bound_degrees": angle_bound(pooled.error, pairs)} if bounded else {},
        )


def _average_parties(parts: list[factors.Factor], pooled: factors.Factor) -> factors.Factor:
    """All parties' local covariances with equal weight, in units of the pooled scatter."""
    ordered = sorted(parts, key=lambda part: (part.head.n, part.head.mean.tobytes(), part.trace))
    weights = [pooled.head.n / len(parts) / part.head.n for part in ordered]
    rows = [np.sqrt(weight) * part.rows for weight, part in zip(weights, ordered, strict=True)]
    trace = sum(weight * part.trace for weight, part in zip(weights, ordered, strict=True))
    return replace(pooled, rows=np.vstack(rows), trace=trace)
