"""A party of the personalised method: its own components, which it keeps over the rounds and projects by."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedpca_flwr.contract import Fields
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.personalised import (
    descended,
    distance,
    held_out,
    local_components,
    personal_components,
    settled_components,
    shared,
)
from fedpca_flwr.maths.products import head_and_diagonal
from strategies.base import PCAClient
from strategies.moments import head_fields

OWN = "own components"
"""Where they are in this party's state: (m, d, k) for m strengths."""


class PersonalisedClient(PCAClient):
    """Answers with sums over its rows, and with its projector times the shared components."""

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "start":
            self._state.pop(OWN, None)  # of the rows without those held out
            head, diagonal = head_and_diagonal(self._used)
            fields = head_fields(head, diagonal)
            return {**fields, "used": fields["count"], "diagonal": diagonal}
        *arrays, mean, remainder = received
        if phase == "product":
            rows, block = _centred(self._used, mean, remainder), arrays[0].astype(np.float64)
            return {"product": rows.T @ (rows @ block)}
        if phase == "share":
            return {"shared": self._shared(_centred(self._used, mean, remainder), *arrays)}
        if phase == "choose":
            return {"errors": self._errors(arrays[0], mean, remainder)}
        return self._told(_centred(self._used, mean, remainder), *arrays)

    def projection(self, received: list[NDArray]) -> list[NDArray]:
        return [self._kept(OWN)[0].T, *received[1:]] if OWN in self._state else received

    # Inside

    @property
    def _state(self):
        return self.context.state.array_records

    def _kept(self, name: str) -> NDArray:
        return self._state[name].to_numpy_ndarrays()[0]

    @cached_property
    def _held(self) -> NDArray:
        return held_out(self.data, self.config.seed)

    @property
    def _used(self) -> NDArray:
        """This party's rows, without those that it holds out while mu is chosen."""
        return self.data[~self._held] if self.sizes["hold"] else self.data

    def _shared(self, rows: NDArray, V: NDArray, strengths: NDArray) -> NDArray:
        """One iteration at each strength; V is (m, d, k)."""
        own = self._kept(OWN) if OWN in self._state else V
        if self.options.solver == "closed-form":
            own = personal_components(rows, V, strengths, own)
            answer = shared(own, V)
        else:
            if "largest" not in self._state or OWN not in self._state:
                self._state["largest"] = ArrayRecord([np.array([np.linalg.norm(rows, 2) ** 2])])
            own, answer = descended(rows, own, V, strengths, self._kept("largest"))
        self._state[OWN] = ArrayRecord([own])
        return answer

    def _errors(self, V: NDArray, mean: NDArray, remainder: NDArray) -> NDArray:
        """Squared errors on the rows held out: of the local components, of each strength's own, of the global V."""
        local = local_components(_centred(self._used, mean, remainder), V)
        held = _centred(self.data[self._held], mean, remainder)
        return np.array([_left(held, U) for U in (local, *self._kept(OWN), V)])

    def _told(self, rows: NDArray, V: NDArray, strength: NDArray) -> Fields:
        """What a party tells of its own components, which stay here; without strength they are the shared ones."""
        if strength.size:
            own = self._last(rows, V, float(strength[0]))
            _, rotation = eigh((rows @ own).T @ (rows @ own))
            self._state[OWN] = ArrayRecord([fix_signs(own @ rotation[:, ::-1])[None]])
        own = self._kept(OWN)[0] if strength.size else V
        scores = rows @ V
        return {
            "error": np.asarray(_left(rows, own)),
            "distance": distance(own, V),
            "gram": scores.T @ scores,
        }

    def _last(self, rows: NDArray, V: NDArray, strength: float) -> NDArray:
        """This party's own components (d, k) for the final V."""
        if strength == 0:
            return local_components(rows, V)
        if self.options.solver == "closed-form":
            return settled_components(rows, V, strength, self._kept(OWN)[0])
        return self._kept(OWN)[0]


def _centred(rows: NDArray, mean: NDArray, remainder: NDArray) -> NDArray:
    return np.subtract(rows, mean, dtype=np.float64) - remainder


def _left(rows: NDArray, U: NDArray) -> float:
    """The sum of squares (a number from 0) that a projection to U leaves of rows (n, d)."""
    return max(0.0, float(np.vdot(rows, rows) - np.square(rows @ U).sum()))
