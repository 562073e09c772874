"""Secure sums about the pooled mean: what the covariance methods and SUB-IT have in common, both halves.

After the keys come two short rounds, ``means`` and ``variances``, from which the limits of all later sums follow
(`strategies.sums`). The last round is a secure sum too: of the parties' row counts and squared errors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.common import Parameters, Scalar
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.maths.products import head_and_diagonal
from strategies.base import MethodCard, Solution
from strategies.secure import SecureStrategy, rows_of, secure_card
from strategies.secure_client import SERVER
from strategies.secure_projection import SecureProjection, SecureProjectionClient
from strategies.sums import (
    Pooled,
    of_means,
    of_variances,
    pooled_of,
    require_bound,
    require_resolved,
    require_within,
)

ROWS_AND_CENTRE = (Field("rows", (), "int64", kind="count"), Field("centre", ("d",)))
POOLED = (Field("centre", ("d",)), Field("spread", ("d",), kind="size"))
"""What the server sends with the request for the variances, and with those for the method's own sums."""

FIRST_ROUNDS = 3
"""Keys, means, variances."""


def centred_card(card: MethodCard, phase: str) -> MethodCard:
    """The card of a method with secure aggregation; ``phase`` names its own sums."""
    return secure_card(card, "means", "variances", phase)


class SecureMomentsStrategy(SecureStrategy, SecureProjection):
    """Base of the strategies whose sums are taken about the pooled mean. A method adds `ask_own`, `aggregate_own`."""

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        require_bound(config.bound)
        self._rows = 0
        self._centre = np.empty(0)
        self._pooled: Pooled | None = None

    @abstractmethod
    def ask_own(self) -> tuple[str, Sequence[NDArray], Layout]:
        """As `ask`, once `pooled` is known."""

    @abstractmethod
    def aggregate_own(self, fields: Fields, *, last: bool) -> tuple[Parameters | None, dict[str, Scalar]]:
        """As `aggregate_sum`, of the method's own sums."""

    @property
    def pooled(self) -> Pooled:
        """What the first rounds told."""
        assert self._pooled is not None
        return self._pooled

    def ask(self):
        bound, d = self.config.bound, self.quorum.features
        if not self._rows:
            return "means", [], of_means(bound, d)
        if self._pooled is None:
            return "variances", [np.asarray(self._rows), self._centre], of_variances(bound, self._rows, d)
        return self.ask_own()

    def aggregate_sum(self, fields, *, last):
        if not self._rows:
            self._rows = rows_of(fields["count"], self.quorum.expected)
            self._centre = fields["sum"] / self._rows
            return None, {}
        if self._pooled is None:
            missed = self.quorum.expected * self.layout.resolution * self.layout.limits["diagonal"]
            scale = getattr(self.options, "scale", False)
            require_resolved(self.config.bound, missed, fields["diagonal"], scale=scale)
            self._pooled = pooled_of(self.config.bound, self._rows, self._centre, fields["shift"], fields["diagonal"])
            return None, {}
        return self.aggregate_own(fields, last=last)

    def finish(self, solution: Solution, *, notes=(), measured=None) -> tuple[Parameters, dict[str, Scalar]]:
        weights = 1.0 if solution.scale is None else solution.scale**-2
        first = of_variances(self.config.bound, self._rows, self.pooled.spread.size)
        variances = self.pooled.spread**2 * self.layout.resolution + first.limits["diagonal"] * first.resolution
        rounding = self.quorum.expected * float(np.sum(variances * weights)) / solution.total
        told = {"fixed point": f"rounds off {rounding:.1g} of the variance at most"}
        pairs = replace(solution.pairs, rank=None, error=rounding * solution.total)  # a variance may be rounded off
        solution = replace(solution, pairs=pairs)
        return super().finish(solution, notes=notes, measured={**(measured or {}), **told})


class SecureMomentsClient(SecureProjectionClient):
    """Base of the clients whose sums are taken about the pooled mean. A method adds `own_summands`."""

    @abstractmethod
    def own_summands(self, phase: str, received: list[NDArray]) -> tuple[Fields, Layout]:
        """As `summands`, of the method's own sums."""

    def summands(self, phase, received):
        if phase == "means":
            if received:
                raise ContractError("the server sent the parties' keys twice; other keys would be another sum")
            return self._means()
        if phase == "variances":
            rows, centre = self._checked(received, ROWS_AND_CENTRE)
            return self._variances(int(rows), centre)
        return self.own_summands(phase, received)

    def asked(self, received: list[NDArray], *further: Field) -> list[NDArray]:
        """Centre and spread that the server sends with a method's own sum, and what else it does, checked."""
        return self._checked(received, (*POOLED, *further))

    def _checked(self, received: list[NDArray], fields: tuple[Field, ...]) -> list[NDArray]:
        payload = Payload(fields)
        payload.check(payload.named(received, SERVER), SERVER, {"d": self.data.shape[1]})
        return received

    def _means(self) -> tuple[Fields, Layout]:
        data, bound = self.data, self.config.bound
        require_within(bound, data, self.node.num_partitions)
        fields = {"count": np.asarray(len(data)), "sum": data.sum(axis=0, dtype=np.float64)}
        return fields, of_means(bound, data.shape[1])

    def _variances(self, rows: int, centre: NDArray) -> tuple[Fields, Layout]:
        head, diagonal = head_and_diagonal(self.data)
        deviation = (head.mean - centre) + head.remainder
        fields = {"shift": head.n * deviation, "diagonal": diagonal + head.n * deviation**2}
        return fields, of_variances(self.config.bound, rows, centre.size)
