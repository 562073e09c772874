"""The server of VFedPCA and VFedAKPCA: it merges the parties' leading directions, or relays them between neighbours.

In every period each party takes the leading direction of its own data, the directions are merged with weights in
proportion to their eigenvalues, and each party replaces its data by their part along the merged direction. That part
has rank one, so later periods change the weights and nothing else. Further components come from the data without the
directions found (deflation), each in as many periods.

With a ``graph`` the server only relays: a party merges its own vector and its neighbours', each comes to a direction of
its own, and the model is the mean of these. The last round measures what every party's columns hold of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.columns import added
from fedpca_flwr.maths.graph import graph_of
from fedpca_flwr.maths.power_merge import direction, merged
from fedpca_flwr.maths.subspace import principal_angles
from strategies.base import Reply, Request
from strategies.columns import ColumnsStrategy
from strategies.merge_client import MergeOptions


class MergeStrategy(ColumnsStrategy):
    """Merges, or relays."""

    options: MergeOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._component = self._period = 0
        self._said: dict[int, list[NDArray]] = {}  # value and vector of each party, in the last period
        self._values: list[float] = []  # all that came since the isolated start
        self._vectors: list[NDArray] = []
        self._merged = np.empty(0)
        self._found: list[NDArray] = []
        self._U: NDArray | None = None
        self._apart = 0.0

    @property
    def rounds(self) -> int:
        return 1 + self._periods * self.options.n_components + (1 if self._central else 2)

    def request(self) -> Request:
        request = super().request()
        if self._central or request.phase not in {"local", "report"} or not self._said:
            return request
        graph = graph_of(self.options.graph, self.quorum.expected)
        each = {
            party: [array for other in np.flatnonzero(graph[party]).tolist() for array in self._said[other]]
            for party in self._said
        }
        return Request(request.phase, sizes=request.sizes, each=each)

    def ask(self):
        k = self.options.n_components
        if self._U is not None:
            return "energies", [self._U], {"k": k}
        if self._component == k:
            return "report", [], {"k": k}
        shared = [self._merged] if self._merged.size else []
        return "local", shared, {"component": self._component, "period": self._period}

    def aggregate(self, replies, *, last):
        if self._U is not None:
            return self._end(replies)
        if "directions" in replies[0].fields:
            self._U = self._mean([reply.fields["directions"] for reply in replies])
            return None, {}
        if not (self._component or any(float(reply.fields["value"]) > 0 for reply in replies)):
            raise DataError(
                "there is no variance to explain in any party's columns, up to rounding: the rows are identical, "
                "a kernel's 'gamma' is too small for them, or variant='faithful' takes a single column's row means away"
            )
        self._said = {reply.party: list(reply.fields.values()) for reply in replies}
        if self._central:
            self._merge(replies)
        self._period += 1
        if self._period == self._periods:
            self._next_component()
        return None, {}

    # Inside

    @property
    def _central(self) -> bool:
        return self.options.graph == "server"

    @property
    def _isolated(self) -> bool:
        """Whether the authors' period without communication comes first, whose vectors they merge all the same."""
        return self._central and self.options.variant == "faithful"

    @property
    def _periods(self) -> int:
        return self.options.periods + self._isolated

    def _merge(self, replies: list[Reply]) -> None:
        faithful = self.options.variant == "faithful"
        if not faithful:
            self._values, self._vectors = [], []
        self._values += [float(reply.fields["value"]) for reply in replies]
        self._vectors += [reply.fields["vector"] for reply in replies]
        if self._isolated and self._period == 0:
            self._merged = np.empty(0)  # nothing yet: the last component's direction is gone from the parties' columns
        else:
            self._merged = merged(self._values, self._vectors, faithful=faithful, scaled=self.options.weight_scaling)

    def _next_component(self) -> None:
        self._component, self._period = self._component + 1, 0
        self._values, self._vectors = [], []
        if self._central:
            found = np.column_stack(self._found) if self._found else np.empty((self.n_rows, 0))
            self._found.append(direction(self._merged, found))
            if self._component == self.options.n_components:
                self._U = np.column_stack(self._found)

    def _mean(self, own: list[NDArray]) -> NDArray:
        """An orthonormal basis (n, k) of the mean of the parties' directions, turned alike."""
        largest = max(own, key=lambda U: U.tobytes())
        turned = [U * np.where(np.einsum("ij,ij->j", U, largest) < 0, -1.0, 1.0) for U in own]
        U, _ = qr(added(turned), mode="economic")
        self._apart = max(float(principal_angles(V, U).max()) for V in own)
        return U

    def _end(self, replies: list[Reply]):
        assert self._U is not None
        notes = ["an average of the parties' own directions, not the principal components of all columns"]
        told = {"periods": f"{self.options.periods} for each component, {self.options.variant}"}
        if not self._central:
            notes.append("a simulated network: the server relayed; the model is the mean of the parties' directions")
            told["consensus error"] = f"{self._apart:.2g} degrees at most, from a party's directions to the mean"
        return self.conclude_measured(self._U, replies, notes=notes, measured=told)
