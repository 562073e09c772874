"""Secure sums over parties with different columns of the same rows, both halves.

The first round is in clear: numbers of rows and columns, and the digests of ids, since nothing adds up before all have
the same rows. Keys follow, then the sum of the energies, from which the limits of all later sums follow
(`strategies.column_sums`), then the method's own sums.

Without one of the parties there is nothing to learn: its columns are missing in every sum.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import Parameters
from numpy.typing import NDArray

from fedpca_flwr.contract import Fields, Payload
from fedpca_flwr.maths.fixed_point import Layout
from strategies.base import MethodCard, Request
from strategies.column_sums import of_measures, of_part
from strategies.columns import ColumnsClient, ColumnsStrategy
from strategies.secure import NOTE, SecureStrategy, secure_card
from strategies.secure_client import SecureClient
from strategies.sums import require_bound, require_resolved, require_within

FURTHER_ROUNDS = 2
"""Keys, energy."""

SEEN = "of each party the server saw its numbers of rows and columns; the sums have a value for every row"


def columns_card(card: MethodCard, *phases: str, rounds: int = FURTHER_ROUNDS) -> MethodCard:
    """The card of a method with secure aggregation, with its own sums, and so many rounds more than without."""
    secured = secure_card(card, "energy", *phases)
    in_clear = [field for field in card.payloads["rows"].fields if field.dtype != "float64"]  # no measures
    payloads = {"rows": Payload(tuple(in_clear)), **secured.payloads}
    return replace(secured, payloads=payloads, rounds=card.rounds + rounds)


class SecureColumnsStrategy(SecureStrategy, ColumnsStrategy):
    """Base of the strategies. A method adds `ask_own` and `take`."""

    first: Sequence[str] = ("energy",)
    """What the first sum is of."""

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        require_bound(config.bound)

    @abstractmethod
    def ask_own(self) -> tuple[str, Sequence[NDArray]]:
        """The phase of a sum of the method's own, and what every party receives."""

    @abstractmethod
    def take(self, fields: Fields, *, last: bool) -> tuple[Parameters | None, dict[str, Any]]:
        """The aggregation of that sum; ``last``: no further round is allowed."""

    def ask(self):
        if not self._total:
            return "energy", [np.asarray(sum(self._widths))], self.measures(self.first)
        phase, arrays = self.ask_own()
        return phase, [np.asarray(self._total), *arrays], of_part(phase, self.n_rows, self._total, arrays)

    def aggregate_sum(self, fields, *, last):
        if not self._total:
            self.weigh(self.resolved(fields["energy"], "energy"))
            return None, {}
        return self.take(fields, last=last)

    def measures(self, names: Sequence[str]) -> Layout:
        return of_measures(
            names, self.config.bound, self.n_rows, sum(self._widths), scaled=getattr(self.options, "scale", True)
        )

    def resolved(self, measure: NDArray, name: str) -> float:
        """A measure of the open sum, unless `bound` is too far above the data for it."""
        missed = self.quorum.expected * self.layout.resolution * self.layout.limits[name]
        require_resolved(self.config.bound, missed, measure, scale=False)
        return float(measure)

    # What the base calls

    def request(self) -> Request:
        return SecureStrategy.request(self) if self._widths else Request("rows")

    def aggregate_fit(self, server_round, results, failures):
        if self._widths:
            return SecureStrategy.aggregate_fit(self, server_round, results, failures)
        self.meet(self.collect(server_round, results, failures))
        return None, {}

    def history(self, pairs, notes=(), measured=None):
        parties = self.quorum.expected
        told = {
            "secure aggregation": f"pairwise masks, {parties} parties",
            "fixed point": f"rounds off {parties * self.layout.resolution:.1g} of the largest size that a sum may have",
        }
        return super().history(pairs, [*notes, NOTE, SEEN], {**(measured or {}), **told})


class SecureColumnsClient(SecureClient, ColumnsClient):
    """Base of the clients, which mask what they would send."""

    def statistics(self, phase, received):
        return self.about_rows() if phase == "rows" else SecureClient.statistics(self, phase, received)

    def summands(self, phase, received):
        if phase == "energy":
            require_within(self.config.bound, self.data, self.node.num_partitions)
            fields = self.measures()
            return fields, self.layout_of(tuple(fields), received[0])
        energy, *own = received
        return self.part(phase, own), of_part(phase, len(self.data), float(energy), own)

    def layout_of(self, names: Sequence[str], columns: NDArray) -> Layout:
        """Of measures of all entries, of so many columns of all parties."""
        return of_measures(
            names, self.config.bound, len(self.data), int(columns), scaled=getattr(self.options, "scale", True)
        )
