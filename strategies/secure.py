"""The server's half of secure aggregation: masked vectors are added, and only the sum over all parties is ever opened.

Every secure method begins with three rounds: ``keys`` (each party's new public key, which the server passes on),
``means`` and ``variances``. Its own sums follow (`strategies.sums` has the limits, `fedpca_flwr.secure` the masks).
A party that is missing leaves noise and ends the run, as everywhere: there is no tolerance for dropouts, by design.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.common import Parameters, Scalar, ndarrays_to_parameters
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.secure import KEY_BYTES
from strategies.base import MethodCard, PCAStrategy, Reply, Request, Solution
from strategies.sums import Pooled, of_means, of_projection, of_variances, pooled_of

KEYS = Payload((Field("public", ("key",), "uint8"),))
MASKED = Payload((Field("masked", ("words",), "uint64"),))

FIRST_ROUNDS = 3
"""Keys, means, variances."""

NOTE = (
    "the server saw sums over all parties only; to see more it must relay false keys (which a 'group-secret' of the "
    "sites prevents) or collude with all parties but one"
)


def secure_card(card: MethodCard, phase: str) -> MethodCard:
    """The card of a summable method with secure aggregation; ``phase`` names its own sums."""
    payloads = {"keys": KEYS, "means": MASKED, "variances": MASKED, phase: MASKED}
    return replace(card, payloads=payloads, rounds=FIRST_ROUNDS + card.rounds, private=True)


class SecureStrategy(PCAStrategy):
    """Base of the strategies with secure aggregation. A method adds `ask` and `aggregate_sum`."""

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._publics: NDArray | None = None  # (parties, 32)
        self._rows = 0
        self._centre = np.empty(0)
        self._pooled: Pooled | None = None
        self._layout = Layout({})  # of the sum that is asked for
        self._limit = 0.0  # on the squared error of the last round

    # What a method writes

    @abstractmethod
    def ask(self) -> tuple[str, Sequence[NDArray], Layout]:
        """The method's next sum: its phase, what every party receives, and its layout."""

    @abstractmethod
    def aggregate_sum(self, fields: Fields, *, last: bool) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The method's aggregation, of the sum over all parties; ``last``: no further round is allowed."""

    # What a method calls

    @property
    def pooled(self) -> Pooled:
        """What the first rounds told."""
        assert self._pooled is not None
        return self._pooled

    # What the base calls

    def request(self) -> Request:
        if self._publics is None:
            return Request("keys", sizes={"key": KEY_BYTES})
        arrays: Sequence[NDArray]
        bound, d = self.config.bound, self.quorum.features
        if not self._rows:
            phase, arrays, self._layout = "means", [self._publics], of_means(bound, d)
        elif self._pooled is None:
            arrays = [np.asarray(self._rows), self._centre]
            phase, self._layout = "variances", of_variances(bound, self._rows, d)
        else:
            phase, arrays, self._layout = self.ask()
        return Request(phase, arrays, {"words": self._layout.size})

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        if self._publics is None:
            self._publics = np.stack([reply.fields["public"] for reply in replies])
            return None, {}
        fields = self._opened(self._layout, [reply.fields["masked"] for reply in replies])
        if not self._rows:
            self._rows = int(fields["count"])
            self._centre = fields["sum"] / self._rows
            return None, {}
        if self._pooled is None:
            self._require_resolved(fields["diagonal"])
            self._pooled = pooled_of(self.config.bound, self._rows, self._centre, fields["shift"], fields["diagonal"])
            return None, {}
        return self.aggregate_sum(fields, last=server_round == self.rounds)

    def finish(self, solution: Solution, *, notes=(), measured=None) -> tuple[Parameters, dict[str, Scalar]]:
        parties = self.quorum.expected
        weights = 1.0 if solution.scale is None else solution.scale**-2
        first = of_variances(self.config.bound, self._rows, self.pooled.spread.size)
        variances = self.pooled.spread**2 * self._layout.resolution + first.limits["diagonal"] * first.resolution
        rounding = parties * float(np.sum(variances * weights)) / solution.total
        told = {
            "secure aggregation": f"pairwise masks, {parties} parties",
            "fixed point": f"rounds off {rounding:.1g} of the variance at most",
        }
        parameters, metrics = super().finish(solution, notes=[*notes, NOTE], measured={**(measured or {}), **told})
        self._limit = solution.total
        limits = ndarrays_to_parameters([np.array([solution.rows, solution.total])])
        return Parameters(parameters.tensors + limits.tensors, parameters.tensor_type), metrics

    def projected(self, replies: list[Reply]) -> tuple[int, float]:
        model = self.model
        assert model is not None
        layout = of_projection(model.n_samples_, self._limit)
        short = [reply.sender for reply in replies if len(reply.sealed) != 8 * layout.size]
        if short:
            raise ContractError(f"{short[0]}: its masked error has another length than {8 * layout.size} bytes")
        fields = self._opened(layout, [np.frombuffer(reply.sealed, "<u8") for reply in replies])
        rows = int(fields["count"])
        if rows != model.n_samples_:
            raise ContractError(
                f"all parties together project {rows} rows, but the model is of {model.n_samples_}; "
                "did a party's data change during the run?"
            )
        return rows, float(fields["squared"])

    # Inside

    def _require_resolved(self, diagonal: NDArray) -> None:
        """Refuse a bound so far above the data that fixed point, whose steps it sets, misses their variance."""
        limit = self._layout.limits["diagonal"]
        missed = self.quorum.expected * self._layout.resolution * float(limit.sum())
        if missed > 1e-9 * float(diagonal.sum()):
            raise ConfigError(
                f"run-config: 'bound' is {self.config.bound:g}, and next to it the rows of all parties have no "
                "variance: they are identical, or the bound must be nearer to the largest size of a value"
            )

    def _opened(self, layout: Layout, vectors: Sequence[NDArray]) -> Fields:
        """The sum of masked vectors: masks cancel only if all parties are in it."""
        total = np.zeros(layout.size, np.uint64)
        for vector in vectors:
            total += vector
        parties, fields = layout.decode(total)
        if parties != self.quorum.expected:
            raise ContractError(
                f"the masks of the {self.quorum.expected} parties do not cancel: a site's 'group-secret' is not that "
                "of the others, or a key or a request was altered on its way; nothing can be read from the sum"
            )
        return fields
