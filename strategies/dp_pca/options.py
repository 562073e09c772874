"""Options of DP-PCA, and the noise that follows from them: server and parties must reckon the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.maths.grid import STEPS
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.maths.noise import LARGEST, whole_deviation
from fedpca_flwr.maths.privacy import Relation, composed, gaussian_epsilon, gaussian_multiplier, sensitivity
from fedpca_flwr.maths.spherical import OCTAVES
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.phase import SumLimits

ROWS = 2**34
"""Rows that all parties together may have: their products, and noise, add up in a word of 64 bits."""

FAR = 60.0
"""Standard deviations that no noise reaches (probability 1e-780)."""

Bound = Annotated[float, Limits(ge=1e-150, le=1e150)]

SHARES: dict[str, dict[str, float]] = {
    "directions": {
        "octaves": 0.01,
        "centre": 0.02,
        "nearer_octaves": 0.01,
        "nearer_centre": 0.04,
        "directions": 0.9,
        "variances": 0.02,
    },
    "two-stage": {"centre": 0.03, "products": 0.97},
    "joint": {"joint": 1.0},
}
"""By release, its phases, and how much of the whole 1 / multiplier^2 each takes."""

WEIGHTS: dict[str, dict[str, float]] = {
    "octaves": {"octaves": 1.0},
    "centre": {"rows": 0.0, "sum": 1.0},
    "products": {"products": 1.0},
    "joint": {"rows": 0.0, "sum": 0.5, "products": 1.0},
    "directions": {"octaves": 0.1, "products": 1.0},
    "variances": {"rows": 0.0, "squares": 1.0},
}
"""What is told in each phase, of rows of length at most 1, and at which weight; ``nearer_`` phases tell the same."""

COUNT = 0.3
"""Weight of a noisy row count beside the rest: it costs 4 % more noise."""

UNITS = {"rows": STEPS, "octaves": STEPS, "sum": STEPS, "products": STEPS**2, "squares": STEPS**2}
"""What one row, or a row of length 1, counts in whole steps (`fedpca_flwr.maths.grid`)."""

NEEDED = {
    "clip": "the public bound on the length of a row, in two stages less the centre; longer rows are shortened to it",
    "centre-clip": "the public bound on the length of a row itself, for the first of two stages",
    "honest-parties": "how many parties at least add their share of the noise and keep it from the server",
}


class DPOptions(CountOptions):
    """Options of DP-PCA. Bounds, where a release needs any, must be public: chosen without a look at the data."""

    epsilon: Annotated[
        Annotated[float, Limits(gt=0, le=100)] | Literal["infinity"], Limits(examples=[0.1, 1.0, 100.0, "infinity"])
    ] = 1.0
    """Of the whole run, for one row. ``infinity``: no noise and no clipping, which is p-cov; in simulations only."""
    delta: Annotated[float, Limits(gt=0, lt=0.1)] = 1e-5
    """Of the whole run, for one row."""
    relation: Relation = "add-remove"
    """Which data sets are neighbours."""
    release: Literal["directions", "two-stage", "joint"] = "directions"
    """The rows' directions about a private centre, which need no bound; clipped rows about one; or clipped rows at
    once."""
    clip: Bound | None = None
    """Of ``two-stage`` and ``joint``: to which distance from the centre rows are shortened, in the unit of the data;
    required there."""
    centre_clip: Bound | None = None
    """The same from zero, for the sum that gives the centre; required by ``two-stage``."""
    trust: Annotated[Literal["local", "distributed"], Limits(examples=[])] = "local"
    """Whether each party adds the whole noise, or its share of it."""
    honest_parties: Annotated[int, Limits(ge=0)] = 0
    """Of ``distributed``: how many parties, at least, add their share and keep it from the server; required there."""
    count: Literal["noised", "public"] = "noised"
    """Whether a party tells a noisy number of rows or its own; with ``replace-one``, which keeps it, its own."""
    noise_seed: Annotated[int, Limits(ge=0, examples=[1, 2, 3])] = 0
    """Simulation only, not private: the same noise each time; 0: the operating system's randomness."""

    @model_validator(mode="before")
    @classmethod
    def _a_number_that_stays_needs_no_noise(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {"count": "public", **given} if given.get("relation") == "replace-one" else given

    @model_validator(mode="after")
    def _complete(self) -> Self:
        bounds = {"clip": self.clip, "centre-clip": self.centre_clip}
        used = {"directions": [], "two-stage": ["clip", "centre-clip"], "joint": ["clip"]}[self.release]
        missing = [key for key in used if bounds[key] is None and self.private]
        missing += ["honest-parties"] if not self.honest_parties and self.trust == "distributed" else []
        if missing:
            told = "; ".join(f"'{key}' is missing: {NEEDED[key]}" for key in missing)
            raise PydanticCustomError("needed", "{told}", {"told": told})
        if self.release == "directions" and any(bounds.values()):
            raise PydanticCustomError(
                "bounds",
                "'{key}' is given, and release='directions' needs no bound: leave it out, or set release='two-stage'",
                {"key": next(key for key, value in bounds.items() if value)},
            )
        if self.count == "noised" and self.relation == "replace-one":
            raise PydanticCustomError(
                "count", "count='noised' protects nothing with relation='replace-one', which keeps the number of rows"
            )
        if self.private and max(max(self.noise(phase).of.values()) for phase in self.phases) > LARGEST:
            raise PydanticCustomError("noise", "'epsilon' and 'delta' are so small that their noise would hide any sum")
        return self

    @property
    def private(self) -> bool:
        return self.epsilon != "infinity"

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(SHARES[self.release]) if self.private else ("moments",)

    @property
    def multiplier(self) -> float:
        """Noise multiplier of the whole run."""
        return gaussian_multiplier(float(self.epsilon), self.delta)

    def bound(self, phase: str) -> float:
        """To which length rows are clipped in a phase, where the options say it."""
        bound = self.centre_clip if phase == "centre" else self.clip
        assert bound is not None
        return bound

    def noise(self, phase: str) -> Noise:
        """The noise that each party adds in a phase."""
        multiplier = self.multiplier / math.sqrt(SHARES[self.release][phase])
        of_party = 1.0 if self.trust == "local" else self.honest_parties**-0.5
        weights = self._weights(phase)
        deviation = multiplier * _sensitivity(self.relation, weights) * of_party
        return Noise(
            multiplier,
            {name: whole_deviation(deviation / w * UNITS[name]) if w else 0 for name, w in weights.items()},
        )

    def limits(self, phase: str, d: int, parties: int) -> SumLimits:
        """Public limits on the sums of a phase over all parties, in steps: below 2^62, so that whole numbers stay."""
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (),
            "octaves": (OCTAVES,),
            "sum": (d,),
            "products": (packed_size(d),),
            "squares": (self.n_components + 1,),
        }
        added = self.noise(phase).of
        return {name: np.full(shapes[name], ROWS * UNITS[name] + FAR * parties * added[name]) for name in added}

    def epsilon_of_a_replacement(self) -> float:
        """What the noise gives where one row is replaced by another, the number of rows being known."""

        def multiplier(phase: str) -> float:
            of_values = {name: weight for name, weight in WEIGHTS[kind(phase)].items() if name != "rows"}
            ratio = _sensitivity(self.relation, self._weights(phase)) / _sensitivity("replace-one", of_values)
            return self.noise(phase).multiplier * ratio

        return gaussian_epsilon(composed(multiplier(phase) for phase in self.phases), self.delta)

    def _weights(self, phase: str) -> dict[str, float]:
        weights = WEIGHTS[kind(phase)]
        return {**weights, "rows": COUNT} if "rows" in weights and self.count == "noised" else weights


def kind(phase: str) -> str:
    """What is asked in a phase, whichever time."""
    return phase.removeprefix("nearer_")


def _sensitivity(relation: Relation, weights: Mapping[str, float]) -> float:
    """Of all that is told in a phase together."""
    of_products = math.hypot(*(weights.get(name, 0.0) for name in ("octaves", "products", "squares")))
    return sensitivity(relation, sums=weights.get("sum", 0.0), products=of_products, count=weights.get("rows", 0.0))


class Noise(NamedTuple):
    """The noise that one party adds in one phase: the whole of it, or with ``trust='distributed'`` its share.

    Attributes
    ----------
    multiplier : float
        Standard deviation of the whole over the sensitivity.
    of : dict of str to int
        By field, standard deviations in whole steps (`UNITS`), of products those on the diagonal; 0 for none.
    """

    multiplier: float
    of: dict[str, int]
