"""AP-STACK: stack the parties' scaled eigenvectors and take the singular vectors of the stack; one round.

By default (``weights="none"``) party k sends its leading r eigenvectors, each times the root of its eigenvalue of the
local *covariance*: parties count the same however many rows they have, and their means are left out. The error does not
vanish with r (MNIST, Dirichlet 0.1: about 28 degrees at r = 200).

``weights="rows"`` counts every party by its rows and adds one row for each mean. That is QR-PCA's truncated factor
without filler, and converges to the exact components with r.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.eigen import angle_bound
from fedpca_flwr.maths.factors import Factor, leading_of_factor, stack
from fedpca_flwr.model.solution import Solution, require_variance
from fedpca_flwr.protocol.card import CountOptions, MethodCard, Shown
from fedpca_flwr.protocol.question import Ask, Question, Questions
from fedpca_flwr.questions.fields import TRUNCATED, factor_of, truncated_fields
from fedpca_flwr.questions.rows import projection_phase
from fedpca_flwr.questions.rows_run import RowsStrategy


class StackOptions(CountOptions):
    """Options of AP-STACK."""

    rank: Annotated[int, Limits(ge=0, examples=["k", "2k", 100])] = 0
    """Eigenvectors that each party sends; 0: n-components."""
    weights: Literal["none", "rows"] = "none"
    """Whether parties count the same, or by their rows and with their means."""

    def rows(self, d: int) -> int:
        """How many eigenvectors travel."""
        return min(max(self.rank, self.n_components), d)


def phases(config: RunConfig, options: StackOptions) -> Questions:
    """One truncated factor."""
    truncated = Question(
        reply=TRUNCATED,
        answer=lambda party, asked: truncated_fields(party.data, options.rows(party.public.features)),
        sizes=lambda public: {"r": options.rows(public.features)},
    )
    return {"truncated": truncated, **projection_phase()}


CARD = MethodCard(
    name="ap-stack",
    title="Stacked eigenvectors",
    exact=False,
    result="for comparison",
    rounds="1",
    upload="d `rank` + d + 3",
    server_sees="leading local components",
    shows=Shown(
        "number of rows, mean, total variance, its leading components",
    ),
    options=StackOptions,
    phases=phases,
    reference="Balcan, Kanchanapally, Liang and Woodruff 2014, Improved distributed principal component analysis",
    own_total="the parties' own variances, with weights='none' each of equal weight",
)


UNBOUNDED = "no bound on the angle: row counts and means are left out; weights='rows' has one"


class ApproximateStack(RowsStrategy):
    """AP-STACK."""

    card = CARD
    options: StackOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        parts = [factor_of(reply) for reply in (yield Ask("truncated"))]
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
        bounded = self.options.weights == "rows"
        return Solution(
            pairs=pairs,
            mean=pooled.head.mean,
            total=pooled.trace,
            rows=pooled.head.n,
            notes=[] if bounded else [UNBOUNDED],
            measured={"angle_bound_degrees": angle_bound(pooled.error, pairs)} if bounded else {},
        )


def _average(parts: list[Factor], pooled: Factor) -> Factor:
    """All parties' local covariances with equal weight, in units of the pooled scatter."""
    ordered = sorted(parts, key=lambda part: (part.head.n, part.head.mean.tobytes(), part.trace))
    weights = [pooled.head.n / len(parts) / part.head.n for part in ordered]
    rows = [np.sqrt(weight) * part.rows for weight, part in zip(weights, ordered, strict=True)]
    trace = sum(weight * part.trace for weight, part in zip(weights, ordered, strict=True))
    return replace(pooled, rows=np.vstack(rows), trace=trace)
