"""Options of DP-PCA, and the noise that follows from them: server and parties must reckon the same."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.grid import STEPS
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.maths.noise import LARGEST, whole_deviation
from fedpca_flwr.maths.privacy import Relation, composed, gaussian_epsilon, gaussian_multiplier, sensitivity
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.phase import SumLimits

ROWS = 2**34
"""Rows that all parties together may have: their products, and noise, add up in a word of 64 bits."""

FAR = 60.0
"""Standard deviations that no noise reaches (probability 1e-780)."""

Bound = Annotated[float, Limits(ge=1e-150, le=1e150)]

WEIGHTS: dict[str, dict[str, float]] = {
    "centre": {"sums": 1.0},
    "products": {"products": 1.0},
    "joint": {"sums": 0.5, "products": 1.0},
}
"""What is released in each phase, of rows of length at most 1, and at which weight."""

COUNT = 0.3
"""Weight of a noisy row count beside a sum: it costs 4 % more noise."""

NEEDED = {
    "clip": "the public bound on the length of a row, in two stages less the centre; longer rows are shortened to it",
    "centre-clip": "the public bound on the length of a row itself, for the first of two stages",
    "honest-parties": "how many parties at least add their share of the noise and keep it from the server",
}


class DPOptions(CountOptions):
    """Options of DP-PCA. Bounds must be public: chosen without a look at the data."""

    epsilon: Annotated[float, Limits(gt=0, le=100)] | Literal["infinity"] = 1.0
    """Of the whole run, for one row. ``infinity``: no noise and no clipping, which is p-cov; in simulations only."""
    delta: Annotated[float, Limits(gt=0, lt=0.1)] = 1e-5
    """Of the whole run, for one row."""
    relation: Relation = "add-remove"
    """Which data sets are neighbours."""
    clip: Bound | None = None
    """To which distance from the centre rows are shortened, in the unit of the data; required."""
    centre_clip: Bound | None = None
    """The same from zero, for the sum that gives the centre; required by ``two-stage``."""
    release: Literal["two-stage", "joint"] = "two-stage"
    """Whether a private centre comes first, or sum and products at once."""
    centre_share: Annotated[float, Limits(gt=0, lt=1)] = 0.03
    """How much of the whole 1 / multiplier^2 the first of two stages takes."""
    trust: Literal["local", "distributed"] = "local"
    """Whether each party adds the whole noise, or its share of it."""
    honest_parties: Annotated[int, Limits(ge=0)] = 0
    """Of ``distributed``: how many parties, at least, add their share and keep it from the server; required there."""
    count: Literal["noised", "public"] = "noised"
    """Whether a party tells a noisy number of rows or its own; with ``replace-one``, which keeps it, its own."""
    drop: bool = True
    """Drop features that do not stand out of the noise."""
    noise_seed: Annotated[int, Limits(ge=0)] = 0
    """Simulation only, not private: the same noise each time; 0: the operating system's randomness."""

    @model_validator(mode="before")
    @classmethod
    def _a_number_that_stays_needs_no_noise(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {"count": "public", **given} if given.get("relation") == "replace-one" else given

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = {
            "clip": self.clip is None and self.private,
            "centre-clip": self.centre_clip is None and self.private and self.release == "two-stage",
            "honest-parties": not self.honest_parties and self.trust == "distributed",
        }
        for key in (key for key, absent in missing.items() if absent):
            raise PydanticCustomError("needed", "'{key}' is missing: {text}", {"key": key, "text": NEEDED[key]})
        if self.count == "noised" and self.relation == "replace-one":
            raise PydanticCustomError(
                "count", "count='noised' protects nothing with relation='replace-one', which keeps the number of rows"
            )
        if self.private and max(max(self.noise(phase)[1:]) for phase in self.phases) > LARGEST:
            raise PydanticCustomError("noise", "'epsilon' and 'delta' are so small that their noise would hide any sum")
        return self

    @property
    def private(self) -> bool:
        return self.epsilon != "infinity"

    @property
    def phases(self) -> tuple[str, ...]:
        if not self.private:
            return ("moments",)
        return ("joint",) if self.release == "joint" else ("centre", "products")

    @property
    def multiplier(self) -> float:
        """Noise multiplier of the whole run."""
        return gaussian_multiplier(float(self.epsilon), self.delta)

    def bound(self, phase: str) -> float:
        """To which length rows are clipped in a phase."""
        bound = self.centre_clip if phase == "centre" else self.clip
        assert bound is not None
        return bound

    def noise(self, phase: str) -> Noise:
        """The noise that each party adds in a phase."""
        share = {"centre": self.centre_share, "products": 1 - self.centre_share, "joint": 1.0}[phase]
        multiplier = self.multiplier / math.sqrt(share)
        weights, count = WEIGHTS[phase], COUNT if self.count == "noised" and "sums" in WEIGHTS[phase] else 0.0
        of_party = 1.0 if self.trust == "local" else self.honest_parties**-0.5
        deviation = multiplier * sensitivity(self.relation, **weights, count=count) * of_party

        def whole(weight: float, unit: int) -> int:
            return whole_deviation(deviation / weight * unit) if weight else 0

        return Noise(
            multiplier,
            rows=whole(count, STEPS),
            sum=whole(weights.get("sums", 0.0), STEPS),
            products=whole(weights.get("products", 0.0), STEPS**2),
        )

    def limits(self, phase: str, d: int, parties: int) -> SumLimits:
        """Public limits on the sums of a phase over all parties, in steps: below 2^62, so that whole numbers stay."""
        noise, reach = self.noise(phase), FAR * parties
        limits: dict[str, Array] = {}
        if phase != "products":
            limits["rows"] = np.array(ROWS * STEPS + reach * noise.rows)
            limits["sum"] = np.full(d, ROWS * STEPS + reach * noise.sum)
        if phase != "centre":
            limits["products"] = np.full(packed_size(d), ROWS * STEPS**2 + reach * noise.products)
        return limits

    def epsilon_of_a_replacement(self) -> float:
        """What the noise gives where one row is replaced by another, the number of rows being known."""
        ratios = {
            phase: sensitivity(self.relation, **WEIGHTS[phase]) / sensitivity("replace-one", **WEIGHTS[phase])
            for phase in self.phases
        }
        together = composed(self.noise(phase).multiplier * ratio for phase, ratio in ratios.items())
        return gaussian_epsilon(together, self.delta)


class Noise(NamedTuple):
    """The noise that one party adds in one phase: the whole of it, or with ``trust='distributed'`` its share.

    Attributes
    ----------
    multiplier : float
        Standard deviation of the whole over the sensitivity.
    rows, sum, products : int
        Standard deviations in whole steps (`fedpca_flwr.maths.grid`): of the row count, in ``1 / STEPS``; of a sum of
        rows; of the diagonal of a sum of products, in squared steps. 0 where there is none.
    """

    multiplier: float
    rows: int
    sum: int
    products: int
