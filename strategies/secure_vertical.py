"""The VERTICAL methods with secure aggregation: what the parties' columns add up to, and nothing of one party.

``krylov`` adds products ``X_i (X_i' Q)`` and ``gram`` all inner products; the iteration and its certificate, which
takes in the rounding of fixed point, are those of `strategies.vertical`. ``merge`` is not a sum, and is refused. The
kernels add squared distances or inner products, and where ``gamma`` is not given the entries and their squared
deviations from the mean of all. Parts of the scores of new rows add up as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.columns import block_of
from strategies.column_sums import of_left
from strategies.secure import opened_last
from strategies.secure_columns import FURTHER_ROUNDS, SecureColumnsClient, SecureColumnsStrategy, columns_card
from strategies.vertical import CARD, Vertical, VerticalClient
from strategies.vertical_kernel import CARD as KERNEL
from strategies.vertical_kernel import VerticalKernel, VerticalKernelClient
from strategies.vertical_scores import CARD as SCORES
from strategies.vertical_scores import VerticalScores, VerticalScoresClient


class SecureVertical(SecureColumnsStrategy, Vertical):
    card = columns_card(CARD, "product", "gram")

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if options.solver == "merge":
            raise ConfigError(
                "run-config: 'solver' is 'merge', which is not a sum over the parties; with secure-aggregation it must "
                "be 'krylov' or 'gram'"
            )

    @property
    def rounds(self) -> int:
        return FURTHER_ROUNDS + Vertical.rounds.__get__(self)

    def ask_own(self):
        return Vertical.ask(self)[:2]

    def take(self, fields, *, last):
        limits = np.concatenate([limit.ravel() for limit in self.layout.limits.values()])
        error = self.quorum.expected * self.layout.resolution * float(np.linalg.norm(limits))
        return Vertical.take(self, fields, last=last, error=error)

    def conclude(self, pairs, total, *, notes=(), measured=None):
        parameters, metrics = super().conclude(pairs, total, notes=notes, measured=measured)
        limit = ndarrays_to_parameters([np.asarray(self._total)])
        return Parameters(parameters.tensors + limit.tensors, parameters.tensor_type), metrics

    def projected(self, replies):
        return self.n_rows, float(opened_last(of_left(self._total), replies)["squared"])


class SecureVerticalClient(SecureColumnsClient, VerticalClient):
    """Masks its part of the products, and the energy that the last round finds left."""

    def verdict(self, squared: float, received: list[NDArray]) -> tuple[float, int, dict[str, Any]]:
        layout = of_left(float(received[-1]))
        masked = self.masked("project", received, {"squared": np.asarray(squared)}, layout)
        loss, told, about = super().verdict(squared, received)
        return loss, told, {**about, "sealed": masked.astype("<u8").tobytes()}


class SecureVerticalKernel(SecureColumnsStrategy, VerticalKernel):
    card = columns_card(KERNEL, "spread", "distances", "products", "landmarks", rounds=FURTHER_ROUNDS + 1)

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._level: float | None = None  # mean of all entries, while gamma waits for their spread
        if not options.gamma:
            self.first = ("energy", "sum")

    def met(self, replies):
        self.choose_landmarks()

    def ask(self):
        if self._level is None:
            return super().ask()
        return "spread", [np.asarray(sum(self._widths)), np.asarray(self._level)], self.measures(["spread"])

    def ask_own(self):
        return VerticalKernel.ask(self)[:2]

    def aggregate_sum(self, fields, *, last):
        if "spread" in fields:
            self._level = None
            self.settle(self.n_rows / self.resolved(fields["spread"], "spread"))
            return None, {}
        if "sum" in fields:
            self._level = float(fields["sum"]) / (self.n_rows * sum(self._widths))
        return super().aggregate_sum(fields, last=last)

    def take(self, fields, *, last):
        return VerticalKernel.take(self, fields)


class SecureVerticalKernelClient(SecureColumnsClient, VerticalKernelClient):
    """Masks its part of the distances or inner products."""

    def measures(self):
        own = block_of(self.data, scale=self.options.scale) if self.options.kernel == "rbf" else self.block
        told = {"energy": np.asarray(own.energy)}
        return told if self.options.gamma else {**told, "sum": np.asarray(self.block.X.sum())}

    def summands(self, phase, received):
        if phase != "spread":
            return super().summands(phase, received)
        columns, level = received
        deviation = self.block.X - level
        return {"spread": np.asarray(np.vdot(deviation, deviation))}, self.layout_of(["spread"], columns)


class SecureVerticalScores(SecureColumnsStrategy, VerticalScores):
    card = columns_card(SCORES, "scores")

    def ask_own(self):
        return VerticalScores.ask(self)[:2]

    def take(self, fields, *, last):
        return VerticalScores.take(self, fields)


class SecureVerticalScoresClient(SecureColumnsClient, VerticalScoresClient):
    """Masks its part of the scores."""
