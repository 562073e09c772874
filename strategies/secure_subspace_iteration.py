"""SUB-IT with secure aggregation: each round's products are one sum, (X - m)^T (X - m) V over all rows.

The iteration and its certificate are those of `strategies.subspace_iteration`. A warm start is not a sum, and is
refused.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.contract import Field
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.products import scatter_product
from strategies.secure_moments import FIRST_ROUNDS, SecureMomentsClient, SecureMomentsStrategy, centred_card
from strategies.subspace_iteration import CARD, SubspaceIteration
from strategies.sums import of_product


class SecureSubspaceIteration(SecureMomentsStrategy, SubspaceIteration):
    card = centred_card(CARD, "product")

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if options.warm_start == "svd":
            raise ConfigError(
                "run-config: 'warm-start' is 'svd', which is not a sum over the parties; with secure-aggregation it "
                "must be 'random'"
            )

    @property
    def rounds(self) -> int:
        return FIRST_ROUNDS + self.options.max_rounds

    def aggregate_sum(self, fields, *, last):
        answer = super().aggregate_sum(fields, last=last)
        if self._found is None and self._pooled is not None:
            self.begin(self.pooled.head, self.pooled.diagonal)
            if self.options.scale:
                self._ask()
        return answer

    def ask_own(self):
        pooled = self.pooled
        V = self.block().astype(np.float32) if self._query is None else self._query  # exact: see `random_block`
        return "product", [pooled.centre, pooled.spread, V], of_product(pooled.spread, self.block())

    def aggregate_own(self, fields, *, last):
        pooled, V = self.pooled, self.block()
        about_mean = fields["product"] - pooled.rows * np.outer(pooled.remainder, pooled.remainder @ V)
        limits = self.layout.limits["product"] / self._scale[:, None]
        error = self.quorum.expected * self.layout.resolution * float(np.linalg.norm(limits))
        return self.iterate(about_mean, last=last, error=error)


class SecureSubspaceIterationClient(SecureMomentsClient):
    """Adds products of its scatter about the shared centre with the block that it receives."""

    def own_summands(self, phase, received):
        exact = len(received) == 3 and received[2].dtype == np.float64  # see `SecureSubspaceIteration.ask_own`
        block = Field("block", ("d", "any"), "float64" if exact else "float32")
        centre, spread, V = self.asked(received, block)
        V = V.astype(np.float64)
        about_centre = Head(len(self.data), centre, np.zeros_like(centre))
        return {"product": scatter_product(self.data, about_centre, V)}, of_product(spread, V)
