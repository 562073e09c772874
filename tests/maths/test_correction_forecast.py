"""Corrections: as many as a run of them needs, on random spectra."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.codecs import dequantise, quantise
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.refine import (
    CORRECTION_BITS,
    DEVIATIONS,
    Corrections,
    block_bits,
    coded_bits,
    corrected,
    corrected_angle_bound,
    rounded_share,
)
from fedpca_flwr.maths.stiefel import polar

D, K, WIDTH, PARTIES = 120, 4, 14, 5
SPECTRUM = np.sort(np.random.default_rng(5).gamma(0.3, 1.0, D))[::-1] + 1e-3
SPECTRUM[:K] += 2.0


def rounded(block, bits):
    return dequantise(quantise(block.T.reshape(-1), bits, D), bits, D, block.size).reshape(block.shape[::-1]).T


def bounds(step: float, most: int) -> list[float]:
    """What happens: parties whose scatters have errors of rounding, corrected by the method's own update."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    matrix, missing = (basis * SPECTRUM) @ basis.T, []
    for _ in range(PARTIES):
        noise = np.triu(rng.uniform(-step / 2, step / 2, (D, D)))
        missing.append(noise + np.triu(noise, 1).T)
    approximate, block, found = matrix - np.sum(missing, axis=0), None, []
    for number in range(most + 1):
        pairs = leading_eigenpairs(np.asfortranarray(approximate), WIDTH)
        wrong = sum(np.linalg.norm(part, 2) for part in missing)
        on_block = wrong if block is None else sum(np.linalg.norm(part @ block, 2) for part in missing)
        found.append(corrected_angle_bound(pairs, K, wrong, on_block, block)[0])
        block = polar(rounded(pairs.vectors, block_bits(number)))
        told = [rounded(part @ block, CORRECTION_BITS) for part in missing]
        approximate = corrected(approximate, block, np.sum(told, axis=0))
        missing = [corrected(part, block, -one) for part, one in zip(missing, told, strict=True)]
    return found


@pytest.mark.parametrize("step", [1e-4, 1e-3, 2e-3])
@pytest.mark.parametrize("tolerance", [10.0, 0.5, 0.02, 1e-4])
def test_a_run_needs_as_many_as_are_forecast(step, tolerance):
    happened = next(number for number, bound in enumerate(bounds(step, 6)) if bound <= tolerance)
    forecast = Corrections(SPECTRUM, K, WIDTH, PARTIES, step).needed(tolerance, 6)
    assert forecast is not None
    assert happened <= forecast <= happened + 1


def test_no_correction_reaches_a_gap_that_is_not_there():
    values = SPECTRUM.copy()
    values[K] = values[K - 1]
    assert Corrections(values, K, WIDTH, PARTIES, 1e-4).needed(1.0, 6) is None


def test_rounding_and_entropy_of_numbers_that_share_a_scale():
    values = np.random.default_rng(0).standard_normal(20000)
    off = dequantise(quantise(values, 8, 20000), 8, 20000, 20000) - values
    assert rounded_share(8) / 2 < off.std() / values.std() < rounded_share(8)
    integers = np.rint(values / (DEVIATIONS * values.std() / 127))
    _, counts = np.unique(integers, return_counts=True)
    shares = counts / counts.sum()
    assert -(shares * np.log2(shares)).sum() == pytest.approx(coded_bits(8), abs=0.05)
