"""Among which ways the adaptive method chooses, and what each is forecast to cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.maths.certificate import EXACT
from fedpca_flwr.maths.correction_forecast import Corrections, coded_bits
from fedpca_flwr.maths.factors import trapezoid_size
from fedpca_flwr.maths.forecast import Forecast
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.maths.refine import CORRECTION_BITS, block_bits
from fedpca_flwr.method_text import text_of
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.statistics.genotypes import GenotypeOptions

CANDIDATES = ("p-cov", "qr-pca", "sub-it", "compressed")
"""Among which it chooses."""

CORRECTED = "compressed"
"""Of these the one that is no exact method; it goes on until a bound holds."""

FACTORS = "qr-pca"
"""Of these the one that resolves most."""

SKETCH = 4
"""Columns of a sketch: enough to tell alike from different."""

ARRAY = 128
"""Bytes of the header of an array in a message."""

FINEST = 2.0**26
"""Steps in the largest variance; with more the codec refuses."""

STEPS = tuple(float(f"{digit}e{power}") for power in range(-7, -1) for digit in (1, 2, 5))
"""From which the step of a coded covariance is chosen, in units of the mean variance of a feature."""

MOST_CORRECTIONS = 4
"""Where a step needs more, its forecast does not hold."""

LARGEST = 5000
"""Features up to which a party is asked to hold matrices (d, d) for the sake of fewer bytes."""

SPARE = 2
"""Corrections beyond those forecast, before another way goes on."""

REFINEMENTS = 2
"""Products after a warm start by whole factors, which float32 alone has rounded."""


class AdaptiveOptions(CountOptions, GenotypeOptions):
    """Options of the adaptive method."""

    target: Annotated[float, Limits(ge=0, le=30, examples=[0.0, 0.01, 0.5, 2.0, 10.0])] = 0.0
    """Wanted largest angle to the exact components, in degrees, which the run certifies; 0: exact."""
    download_weight: Annotated[float, Limits(ge=0, examples=[0.0, 1.0, 10.0])] = 1.0
    """What a byte down costs, where a byte up costs 1."""
    round_bytes: Annotated[float, Limits(ge=0, examples=[0.0, 1e3, 1e6])] = 1e4
    """What a round costs, in bytes up."""

    @property
    def tolerance(self) -> float:
        """The largest angle, in degrees, that a certificate may leave."""
        return self.target or EXACT

    def cost(self, candidate: Candidate) -> float:
        """What the user says that a way costs, in bytes up."""
        return candidate.up + self.download_weight * candidate.down + candidate.rounds * self.round_bytes


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
    """

    method: str
    options: Mapping[str, Any]
    rounds: int
    up: float
    down: float

    @property
    def text(self) -> str:
        """The method with its options, as the run-config has them."""
        return text_of(self.method, self.options)


def candidates(forecast: Forecast, options: AdaptiveOptions) -> list[Candidate]:
    """Every way that reaches the target, with its forecast, the cheapest first. Means over the parties."""
    ways = [*_at_once(forecast, options), *_by_products(forecast, options)]
    if options.genotypes:
        ways = [replace(way, options={**way.options, "genotypes": True}) for way in ways]
    else:
        ways += _corrected(forecast, options)
    return sorted(ways, key=options.cost)


def _head(forecast: Forecast) -> float:
    """Bytes of a count and a mean."""
    return 8.0 * (forecast.spectrum.size + 1) + 3 * ARRAY


def _at_once(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Whole covariances, and whole factors."""
    d, head = forecast.spectrum.size, _head(forecast) + ARRAY
    factors = float(np.mean([trapezoid_size(int(n), d) for n in forecast.counts]))
    yield Candidate("p-cov", {}, 1, head + 8 * packed_size(d), 0)
    yield Candidate(FACTORS, {}, 1, head + 8 * factors, 0)


def _by_products(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Block Krylov, from random blocks of two widths or from whole factors in float32."""
    d, k, tolerance = forecast.spectrum.size, options.n_components, options.tolerance
    head = _head(forecast)
    for block in sorted({min(max(5, k // 5), k + 10, d), min(k + 10, d)}):
        rounds = forecast.krylov_rounds(k, block, tolerance)
        up = head + 8 * d + ARRAY + (8 * d * block + ARRAY) * rounds
        down = ((8 if block < k else 4) * d * block + ARRAY) * (rounds - 1)
        yield Candidate("sub-it", {"block-size": block, "tolerance": tolerance}, rounds, up, down)
    rank = int(forecast.counts.max())
    if rank < d:
        products = REFINEMENTS * (4 * d * min(k + 10, d) + ARRAY)
        warm = {"warm-start": "svd", "warm-rank": rank, "wire": "float32", "tolerance": tolerance}
        yield Candidate("sub-it", warm, 1 + REFINEMENTS, head + 4 * rank * d + 3 * ARRAY + products, products)


def _corrected(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Covariances in multiples of a step and their corrections; of all steps the cheapest."""
    d, k, ways = forecast.spectrum.size, options.n_components, []
    width, parties = min(k + 10, d), len(forecast.counts)
    for step in STEPS if k < d <= min(LARGEST, forecast.head.n) else ():
        if d * forecast.variances.max() / forecast.total >= FINEST * step:
            continue
        corrections = Corrections(forecast.spectrum, k, width, parties, step * forecast.total / d)
        number = corrections.needed(options.tolerance, MOST_CORRECTIONS)
        if number is None:
            continue
        up = forecast.coded_bytes(step) + 2 * _head(forecast) + 5 * ARRAY
        up += number * (d * width * coded_bits(CORRECTION_BITS) / 8 + 3 * ARRAY)
        down = sum(d * width * coded_bits(block_bits(i)) / 8 + 3 * ARRAY for i in range(number))
        coded = {"codec": "shared-step", "step": step, "tolerance": options.tolerance, "corrections": number + SPARE}
        ways.append(Candidate(CORRECTED, coded, 2 + number, up, down))
    if ways:
        yield min(ways, key=options.cost)
