"""Codecs keep their bounds, and decoding trusts nothing that it is sent."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.linalg import toeplitz

from fedpca_flwr.maths import codecs
from fedpca_flwr.maths.codecs import Coded, SharedStep, dequantise, quantise
from tests.harness import peak_of
from tests.refusals import refused

X = np.random.default_rng(0).standard_normal(1000) * np.logspace(-6, 3, 1000)
TRIANGLE = np.random.default_rng(1).standard_normal(820) * np.logspace(-6, 3, 820)  # of 40 features
NO_SCALES = np.empty(0, np.float32)


@pytest.mark.parametrize("bits", [4, 5, 8, 11, 16, 24, 32])
def test_quantised_numbers_are_within_the_bound(bits):
    for size in (1, 127, 128, 1000):
        coded, rounded = quantise(X[:size], bits, 128)
        np.testing.assert_array_equal(dequantise(coded, bits, 128, size), rounded)
        bound = np.repeat(coded.scales.astype(np.float64), 128)[:size] / 2
        assert (np.abs(rounded - X[:size]) <= bound * (1 + 1e-12)).all()
        assert bound.max() <= np.abs(X[:size]).max() / (2 ** (bits - 1) - 1)


@pytest.mark.parametrize("smooth", [False, True])
def test_shared_steps_round_by_half_a_step_at_most(smooth):
    """Encode pixels, whose differences are small, and features whose variances differ."""
    pixels, blur = (toeplitz(np.exp(-(np.arange(d) ** 2) / width)) for d, width in ((40, 200), (150, 50)))
    triangle = 900 * pixels[np.triu_indices(40)] if smooth else TRIANGLE
    for step in (1e-3, 1.0):
        coded, values = SharedStep(step).encode(triangle, 40)
        assert coded.code[0] == int(smooth)
        np.testing.assert_array_equal(SharedStep(step).decode(coded, 40), values)
        assert np.abs(values - triangle).max() <= step / 2 * (1 + 1e-9)
        np.testing.assert_allclose(values / step, np.rint(values / step), atol=1e-6)
    d = 150
    rows = np.random.default_rng(2).standard_normal((400, d)) * np.logspace(0, -2, d)
    covariance = np.cov((rows @ blur if smooth else rows).T)
    triangle, steps = covariance[np.triu_indices(d)], np.trace(covariance) / d * np.array([1e-5, 1e-4])
    taken = [SharedStep(step).encode(triangle, d)[0].code for step in steps]
    assert [code[0] for code in taken] == [int(smooth)] * 2
    np.testing.assert_allclose(codecs.forecast_bytes(triangle, d, steps), [code.size for code in taken], rtol=0.2)


def test_codecs_keep_their_bounds_in_closed_form():
    assert quantise(np.zeros(10**5), 16, 128)[0].code.size < 200
    assert dequantise(quantise(np.zeros(300), 8, 128)[0], 8, 128, 300).max() == 0
    sketch = codecs.Sketch(1, 16, 3)
    for bits, rtol in ((16, 1e-3), (0, 1e-6)):  # eigenvalue 5 along (2, 1), and half of the other one, 1, in all
        lowest = codecs.LowRank(1, bits)
        coded, found = lowest.encode(np.array([4.2, 1.6, 1.8]), 2)
        np.testing.assert_array_equal(lowest.decode(coded, 2), found)
        np.testing.assert_allclose(found, [4.1, 1.8, 1.4], rtol=rtol)
    # Of rank one, products with one vector tell all.
    coded, found = sketch.encode(np.array([4.0, 2.0, 1.0]), 2)
    np.testing.assert_array_equal(sketch.decode(coded, 2), found)
    np.testing.assert_allclose(found, [4, 2, 1], rtol=1e-3)
    assert [codecs.power_of_two_unit(size) for size in (0.0, 3.0, 1.7e308)] == [1.0, 4.0, 2.0**1023]
    # In 8 bits numbers are -127 to 127, in the words 0 to 254; the word 255 would be -128.
    last, beyond = (Coded(np.ones(1, np.float32), codecs.compress(np.array([w], np.uint8))) for w in (254, 255))
    assert dequantise(last, 8, 1, 1) == 127
    with refused(ValueError):
        dequantise(beyond, 8, 1, 1)
    code = codecs.compress(np.arange(5, dtype=np.uint8))
    np.testing.assert_array_equal(codecs.decompress(code, 5), np.arange(5))
    for other in (np.append(code, np.uint8(0)), code[:-1]):
        with refused(ValueError, match="code"):
            codecs.decompress(other, 5)
    codec = SharedStep(1.0)
    assert codec.decode(codec.encode(np.array([2.0**27 - 1]), 1)[0], 1) == 2**27 - 1
    with refused(ValueError, 27):
        codec.encode(np.array([2.0**27]), 1)
    code = codec.encode(np.array([5.0]), 1)[0].code
    for scales, first in ((np.ones(1, np.float32), 0), (NO_SCALES, 2)):
        with refused(ValueError, "damaged code"):
            codec.decode(Coded(scales, np.append(np.uint8(first), code[1:])), 1)


@pytest.mark.engine
def test_damaged_codes_are_refused():
    (coded, _), (stepped, _), lowest = quantise(X, 8, 128), SharedStep(1e-3).encode(TRIANGLE, 40), codecs.LowRank(1, 16)
    for scales in (np.ones(7), np.full(8, np.nan), np.zeros(8), -np.ones(8)):
        with refused(ValueError, 8):
            dequantise(Coded(scales.astype(np.float32), coded.code), 8, 128, 1000)
    low, _ = lowest.encode(TRIANGLE, 40)
    for filler in (-1.0, np.nan, np.inf):
        with refused(ValueError, 0):
            lowest.decode(Coded(np.append(low.scales[:-1], np.float32(filler)), low.code), 40)
    bomb = np.frombuffer(pa.Codec("zstd").compress(bytes(40 * 2**20)), np.uint8)

    def read_bomb():
        with refused(ValueError, 3280):
            SharedStep(1.0).decode(Coded(NO_SCALES, np.concatenate([np.zeros(1, np.uint8), bomb])), 40)

    assert peak_of(read_bomb) < 20e6
    for change in (lambda c: c[:-5], lambda c: c[:0], lambda c: np.full(50, 7, np.uint8)):
        with pytest.raises(ValueError, match="code"):
            dequantise(Coded(coded.scales, change(coded.code)), 8, 128, 1000)
        with pytest.raises(ValueError, match="code"):
            SharedStep(1e-3).decode(Coded(NO_SCALES, change(stepped.code)), 40)
