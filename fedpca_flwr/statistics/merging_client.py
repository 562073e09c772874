"""A party of VFedPCA and VFedAKPCA: its own leading direction in each period, and what it does with the merged one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import Columns, columns_of
from fedpca_flwr.maths.power_merge import deflated, direction, overwritten
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.statistics.columns_client import ColumnsClient


class MergeClient(ColumnsClient):
    """Keeps its overwritten block and the directions found so far. A method adds `local`."""

    @abstractmethod
    def local(self, X: Array, start: Array) -> tuple[float, Array]:
        """Weight and leading direction (n,) of the block ``X`` (n, f)."""

    @cached_property
    def own_columns(self) -> Columns:
        """This party's columns; as they are in the authors' program."""
        return columns_of(self.data, center=self.options.about_means, scale=self.options.scale)

    @property
    def products(self) -> int:
        # once a block is overwritten it has rank one, and tells no more
        options = self.options
        return int(options.n_components * min(options.all_periods, 2 + options.isolated))

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        if phase in {"start", "local"}:
            return self._step(asked)
        if phase == "report":
            return {"directions": self._with_next(self._merged(asked))}
        return super().statistics(phase, asked)

    # Inside

    def _step(self, asked: Fields) -> Fields:
        """One period: it follows from how many there were."""
        options, state = self.options, self.site.state
        steps = int(state["steps"][0]) if "steps" in state else 0
        component, period = divmod(steps, options.all_periods)
        direction: Array = self._merged(asked) if asked else np.empty(0)
        if period == 0:
            if component:
                state["found"] = [self._with_next(direction)]
            X = deflated(self.own_columns.X, self._found())
        else:
            (X,) = state["block"]
            X = overwritten(X, direction) if period > options.isolated else X
        start = self._start(component, period, direction)
        value, vector = self.local(X, start)
        state["block"], state["own"], state["steps"] = [X], [value, vector], [steps + 1]
        return {"value": np.asarray(value), "vector": vector}

    def _start(self, component: int, period: int, direction: Array) -> Array:
        """The same for every party, so that it matters to nobody who is which."""
        if period > self.options.isolated and self.options.from_merged:
            return direction
        rng = np.random.default_rng((self.site.config.seed, component, period))
        n = len(self.data)
        return rng.random(n) if self.options.faithful else rng.standard_normal(n)

    def _merged(self, asked: Fields) -> Array:
        """The merged direction: the server's, or that of this party and its neighbours."""
        if "merged" in asked:
            return asked["merged"]
        values: list[Any] = list(asked["values"])
        vectors: list[Array] = list(asked["vectors"])
        if not (self.options.faithful and values):  # the authors' program leaves a node's own vector out
            value, vector = self.site.state["own"]
            values, vectors = [value, *values], [vector, *vectors]
        merged: Array = self.options.merge([float(value) for value in values], vectors)
        return merged

    def _found(self) -> Array:
        state = self.site.state
        return state["found"][0] if "found" in state else np.empty((len(self.data), 0))

    def _with_next(self, u: Array) -> Array:
        """The directions found, and what ``u`` (n,) adds."""
        return np.column_stack([self._found(), direction(u, self._found())])
