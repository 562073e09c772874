"""Among which ways the adaptive method chooses, and what each is forecast to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.maths.certificate import EXACT
from fedpca_flwr.maths.factors import trapezoid_size
from fedpca_flwr.maths.forecast import Forecast
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.method_text import text_of
from fedpca_flwr.protocol.card import CountOptions

CANDIDATES = ("p-cov", "qr-pca", "sub-it", "compressed")
"""Among which it chooses."""

ROUNDED = "compressed"
"""Of these the one that is not exact."""

FACTORS = "qr-pca"
"""Of these the one that resolves most."""

SKETCH = 4
"""Columns of a sketch: enough to tell alike from different."""

SAFETY = 4.0
"""By what the true angle may exceed its forecast; 3.2 was the most seen (images, four partitions, three targets)."""

ARRAY = 128
"""Bytes of the header of an array in a message."""

FINEST = 2.0**26
"""Steps in the largest variance; with more the codec refuses."""

VALID = 3.0
"""Degrees up to which the forecast of an angle holds."""


class AdaptiveOptions(CountOptions):
    """Options of the adaptive method."""

    target: Annotated[float, Limits(ge=0, le=30)] = 0.0
    """Wanted largest angle to the exact components, in degrees; 0: exact."""
    download_weight: Annotated[float, Limits(ge=0)] = 1.0
    """What a byte down costs, where a byte up costs 1."""
    round_bytes: Annotated[float, Limits(ge=0)] = 0.0
    """What a round costs, in bytes up."""


@dataclass(frozen=True)
class Candidate:
    """A way to the components: a method of the registry with its options, and its forecast for one party.

    Attributes
    ----------
    method : str
    options : mapping
        Keys as in the run-config.
    rounds : int
    up, down : float
        Bytes, the mean over the parties.
    angle : float
        Forecast largest angle in degrees; 0 for an exact method.
    """

    method: str
    options: Mapping[str, Any]
    rounds: int
    up: float
    down: float
    angle: float = 0.0

    @property
    def text(self) -> str:
        """The method with its options, as the run-config has them."""
        return text_of(self.method, self.options)


def candidates(forecast: Forecast, options: AdaptiveOptions) -> list[Candidate]:
    """Every way that reaches the target, with its forecast. Means over the parties."""
    d, k = forecast.spectrum.size, options.n_components
    head = 8.0 * (d + 1) + 3 * ARRAY
    factors = float(np.mean([trapezoid_size(int(n), d) for n in forecast.counts]))
    tolerance = options.target or EXACT
    ways = [
        Candidate("p-cov", {}, 1, head + 8 * packed_size(d) + ARRAY, 0),
        Candidate("qr-pca", {}, 1, head + 8 * factors + ARRAY, 0),
    ]
    for block in sorted({min(max(5, k // 5), k + 10, d), min(k + 10, d)}):
        rounds = forecast.krylov_rounds(k, block, tolerance)
        up = head + 8 * d + ARRAY + (8 * d * block + ARRAY) * rounds
        down = ((8 if block < k else 4) * d * block + ARRAY) * (rounds - 1)
        ways.append(Candidate("sub-it", {"block-size": block, "tolerance": tolerance}, rounds, up, down))
    if options.target and k < d:
        angle = min(options.target / SAFETY, VALID)
        step = float(f"{min(forecast.step_for(k, angle), 1.0):.2g}")
        up = forecast.coded_bytes(step) + 2 * head + 5 * ARRAY
        if d * forecast.variances.max() / forecast.total < FINEST * step:
            ways.append(Candidate(ROUNDED, {"codec": "shared-step", "step": step}, 2, up, 0, angle))
    return ways
