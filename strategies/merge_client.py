"""A party of VFedPCA and VFedAKPCA: its own leading direction in each period, and what it does with the merged one."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.maths.columns import Block, block_of
from fedpca_flwr.maths.power_merge import deflated, direction, merged, overwritten
from strategies.columns import ENERGIES, ROWS, ColumnsClient, ColumnsOptions


class MergeOptions(ColumnsOptions):
    """Options of VFedPCA and VFedAKPCA."""

    variant: Literal["corrected", "faithful"] = "corrected"
    """``faithful``: as the authors' program (`fedpca_flwr.maths.power_merge`), without ``center``."""
    periods: Count = 10
    """Communication periods for each component."""
    weight_scaling: bool = False
    """Boost the larger weights (the paper's equation 15)."""
    graph: Literal["server", "complete", "ring", "star"] = "server"
    """Who merges: the server, or every party what it has from its neighbours."""


PAYLOADS = {
    "rows": ROWS,
    "local": Payload((Field("value", ()), Field("vector", ("n",)))),
    "report": Payload((Field("directions", ("n", "k")),)),
    "energies": ENERGIES,
}


class MergeClient(ColumnsClient):
    """Keeps its overwritten block and the directions found so far. A method adds `local`."""

    @abstractmethod
    def local(self, X: NDArray, start: NDArray) -> tuple[float, NDArray]:
        """Weight and leading direction (n,) of the block ``X`` (n, f)."""

    @cached_property
    def block(self) -> Block:
        """This party's columns; as they are in the authors' program."""
        center = self.options.center and not self.faithful
        return block_of(self.data, center=center, scale=self.options.scale)

    @property
    def faithful(self) -> bool:
        return self.options.variant == "faithful"

    def part(self, phase: str, received: list[NDArray]) -> Fields:
        component, period = self.sizes.get("component", 0), self.sizes.get("period", 0)
        u = self._merged(received)
        if phase == "report":
            return {"directions": np.column_stack([self._found(), direction(u, self._found())])}
        if period == 0:
            if component:
                self._keep("found", np.column_stack([self._found(), direction(u, self._found())]))
            X = deflated(self.block.X, self._found())
        else:
            (X,) = self.context.state.array_records["block"].to_numpy_ndarrays()
            X = overwritten(X, u) if u.size else X
        self._keep("block", X)
        value, vector = self.local(X, self._start(component, period, u))
        self._keep("own", value, vector)
        return {"value": np.asarray(value), "vector": vector}

    # Inside

    def _start(self, component: int, period: int, u: NDArray) -> NDArray:
        """The same for every party, so that it matters to nobody who is which."""
        if period and u.size and getattr(self.options, "warm_start", "random") == "previous":
            return u
        rng = np.random.default_rng((self.config.seed, component, period))
        return rng.random(len(self.data)) if self.faithful else rng.standard_normal(len(self.data))

    def _merged(self, received: list[NDArray]) -> NDArray:
        """The merged direction: the server's, or that of this party's neighbours; empty before there is one."""
        if self.options.graph == "server":
            return received[0] if received else np.empty(0)
        if "own" not in self.context.state.array_records:
            return np.empty(0)
        values, vectors = list(received[0::2]), list(received[1::2])
        if not (self.faithful and values):  # the authors' program leaves a node's own vector out
            value, vector = self.context.state.array_records["own"].to_numpy_ndarrays()
            values, vectors = [value, *values], [vector, *vectors]
        return merged(
            [float(value) for value in values], vectors, faithful=self.faithful, scaled=self.options.weight_scaling
        )

    def _found(self) -> NDArray:
        records = self.context.state.array_records
        return records["found"].to_numpy_ndarrays()[0] if "found" in records else np.empty((len(self.data), 0))

    def _keep(self, name: str, *arrays) -> None:
        self.context.state.array_records[name] = ArrayRecord([np.asarray(array) for array in arrays])
