"""A party of the personalised method: its own components, which it keeps over the rounds and projects by."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.own_rows import OwnRows, own_rows
from fedpca_flwr.maths.personalised import (
    converged_components,
    distance,
    gradient_step,
    largest_eigenvalue,
    local_components,
    personal_components,
    shared,
)
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.site.fold import require_fold
from fedpca_flwr.statistics.moment_fields import head_fields
from fedpca_flwr.statistics.rows_client import RowsClient

from .script import HELD_OUT, PersonalisedOptions

OWN = "own components"
"""Where they are in this party's state: (m, d, k) for m strengths."""


OWN_MEAN = "own mean of rows"
"""Of so many, likewise, in two floats (2, d)."""


class PersonalisedClient(RowsClient):
    """Answers with sums over its rows, and with its projector times the shared components."""

    options: PersonalisedOptions
    holds_out = False
    """Whether the question is of the pass that holds rows out."""

    def require_ready(self) -> None:
        super().require_ready()
        if self.options.mu == "held-out":
            require_fold(self.site.node, len(self.data))

    def statistics(self, phase: str, asked: Fields) -> Any:
        self.holds_out = phase.startswith(HELD_OUT) or phase == "choose"
        name = phase.removeprefix(HELD_OUT)
        if name == "start":
            self.site.state.drop(OWN)  # of the rows without those held out
            head, diagonal = head_and_diagonal(self.used)
            fields = head_fields(head, diagonal)
            return {"used": fields["count"], "mean": head.mean, "remainder": fields["remainder"], "diagonal": diagonal}
        if name == "sums":
            self.site.state.drop(OWN)
        if name in {"sums", "deviations", "project"}:
            return super().statistics(name, asked)
        rows = own_rows(self.used, asked["mean"], asked["remainder"], self._known_head())
        if name == "product":
            return {"product": rows.times_any(asked["block"])}
        if name == "share":
            return {"shared": self._shared(rows, asked["shared"], asked["strengths"])}
        if name == "choose":
            held = own_rows(self.data[self._held_out], asked["mean"], asked["remainder"])
            return {"errors": self._errors(rows, held, asked["shared"])}
        return self._report_own(rows, asked["shared"], asked["strengths"])

    @property
    def used(self) -> Rows:
        """This party's rows, without those that it holds out while mu is chosen."""
        return self.data[~self._held_out] if self.holds_out else self.data

    def loadings(self, asked: Fields) -> Array:
        """Its own components, where it has any."""
        return self.site.state[OWN][0][0].T if OWN in self.site.state else asked["components"]

    # Inside

    @cached_property
    def _held_out(self) -> NDArray[np.bool_]:
        return self.site.held_out(self.card.split)

    def _known_head(self) -> Head | None:
        """Count and mean of the rows used, found once in a pass where they are more than the features."""
        (n, d), name = self.used.shape, f"{OWN_MEAN} {len(self.used)}"
        if n <= d:
            return None
        if name not in self.site.state:
            head, _ = head_and_diagonal(self.used)
            self.site.state[name] = [np.stack([head.mean, head.remainder])]
        return Head(n, *self.site.state[name][0])

    def _shared(self, rows: OwnRows, V: Array, strengths: Array) -> Array:
        """One iteration at each strength; V is (m, d, k)."""
        own = self.site.state[OWN][0] if OWN in self.site.state else V
        if self.options.solver == "closed-form":
            own = personal_components(rows, V, strengths, own)
            answer = shared(own, V)
        else:
            if "largest" not in self.site.state or OWN not in self.site.state:
                self.site.state["largest"] = [np.array([largest_eigenvalue(rows)])]
            own, answer = gradient_step(rows, own, V, strengths, self.site.state["largest"][0])
        self.site.state[OWN] = [own]
        return answer

    def _errors(self, rows: OwnRows, held: OwnRows, V: Array) -> Array:
        """Squared errors on the rows held out: of the local components, of each strength's own, of the global V."""
        return np.array([held.left_by(U) for U in (local_components(rows, V), *self.site.state[OWN][0], V)])

    def _report_own(self, rows: OwnRows, V: Array, strength: Array) -> Fields:
        """What a party tells of its own components, which stay here; without strength they are the shared ones."""
        if strength.size:
            own = self._final_components(rows, V, float(strength[0]))
            _, rotation = eigh(rows.gram(own))
            self.site.state[OWN] = [fix_signs(own @ rotation[:, ::-1])[None]]
        own = self.site.state[OWN][0][0] if strength.size else V
        return {"error": np.asarray(rows.left_by(own)), "distance": distance(own, V), "gram": rows.gram(V)}

    def _final_components(self, rows: OwnRows, V: Array, strength: float) -> Array:
        """This party's own components (d, k) for the final V."""
        if strength == 0:
            return local_components(rows, V)
        if self.options.solver == "closed-form":
            return converged_components(rows, V, strength, self.site.state[OWN][0][0])
        own: Array = self.site.state[OWN][0][0]
        return own
