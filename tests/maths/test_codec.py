"""Codecs keep their bounds, and decoding trusts nothing that it is sent."""

import lzma
import tracemalloc

import numpy as np
import pytest

from fedpca_flwr.maths.codecs import (
    FILTERS,
    Coded,
    LowRank,
    SharedStep,
    TopEntries,
    compress,
    decompress,
    dequantise,
    forecast_bytes,
    quantise,
    unit_of,
)
from tests.refusals import refused

X = np.random.default_rng(0).standard_normal(1000) * np.logspace(-6, 3, 1000)


@pytest.mark.parametrize("bits", [4, 5, 8, 11, 16, 24, 32])
@pytest.mark.parametrize("size", [1, 127, 128, 1000])
def test_quantised_numbers_are_within_the_bound(bits, size):
    coded = quantise(X[:size], bits, 128)
    decoded = dequantise(coded, bits, 128, size)
    bound = np.repeat(coded.scales.astype(np.float64), 128)[:size] / 2
    assert (np.abs(decoded - X[:size]) <= bound * (1 + 1e-12)).all()
    assert bound.max() <= np.abs(X[:size]).max() / (2 ** (bits - 1) - 1)


TRIANGLE = np.random.default_rng(1).standard_normal(820) * np.logspace(-6, 3, 820)  # of 40 features


@pytest.mark.parametrize("step", [1e-3, 1.0])
@pytest.mark.parametrize("smooth", [False, True])
def test_numbers_on_a_shared_step_are_within_half_of_it_and_add_up(step, smooth):
    grid = np.arange(40.0)
    kernel = 900 * np.exp(-((grid[:, None] - grid) ** 2) / 200)
    triangle = kernel[np.triu_indices(40)] if smooth else TRIANGLE
    coded = SharedStep(step).encode(triangle, 40)
    assert coded.code[0] == int(smooth)
    values = SharedStep(step).decode(coded, 40)
    assert np.abs(values - triangle).max() <= step / 2 * (1 + 1e-9)
    np.testing.assert_allclose(values / step, np.rint(values / step), atol=1e-6)


@pytest.mark.parametrize("smooth", [False, True])
def test_bytes_on_a_shared_step_are_forecast(smooth):
    """Of pixels, whose differences are small, and of features whose variances differ."""
    d, rng = 150, np.random.default_rng(2)
    rows = rng.standard_normal((400, d)) * np.logspace(0, -2, d)
    grid = np.arange(float(d))
    rows = rows @ np.exp(-((grid[:, None] - grid) ** 2) / 50) if smooth else rows
    covariance = np.cov(rows.T)
    triangle, steps = covariance[np.triu_indices(d)], np.trace(covariance) / d * np.array([1e-5, 1e-4])
    taken = [SharedStep(step).encode(triangle, d) for step in steps]
    assert [coded.code[0] for coded in taken] == [int(smooth)] * 2
    np.testing.assert_allclose(forecast_bytes(triangle, d, steps), [coded.code.size for coded in taken], rtol=0.2)


def test_codecs_keep_what_they_promise_in_closed_form():
    assert quantise(np.zeros(10**5), 16, 128).code.size < 200
    assert dequantise(quantise(np.zeros(300), 8, 128), 8, 128, 300).max() == 0
    codec = LowRank(1, 16)
    found = codec.decode(codec.encode(np.array([5.0, 0.0, 1.0]), 2), 2)
    np.testing.assert_allclose(found, [5.0, 0.0, 0.5], rtol=1e-3, atol=1e-12)
    largest = TopEntries(0.0, 16)
    np.testing.assert_allclose(largest.decode(largest.encode(np.array([1.0, 5.0, 1.0]), 2), 2), [1, 0, 1], rtol=1e-4)
    assert (unit_of(0.0), unit_of(3.0), unit_of(1.7e308)) == (1.0, 4.0, 2.0**1023)


@pytest.mark.parametrize("change", [lambda c: c[:-5], lambda c: c[:0], lambda c: np.full(50, 7, np.uint8)])
def test_a_damaged_code_is_refused(change):
    coded, stepped = quantise(X, 8, 128), SharedStep(1e-3).encode(TRIANGLE, 40)
    for decode in (
        lambda: dequantise(Coded(coded.scales, change(coded.code)), 8, 128, 1000),
        lambda: SharedStep(1e-3).decode(Coded(np.empty(0, np.float32), change(stepped.code)), 40),
    ):
        with pytest.raises(ValueError, match="code"):
            decode()


@pytest.mark.parametrize("scales", [np.ones(7), np.full(8, np.nan), np.zeros(8), -np.ones(8)])
def test_scales_that_cannot_be_are_refused(scales):
    coded = quantise(X, 8, 128)
    with refused(ValueError, 8):
        dequantise(Coded(scales.astype(np.float32), coded.code), 8, 128, 1000)


def test_a_bomb_is_read_only_as_far_as_expected():
    bomb = np.frombuffer(lzma.compress(bytes(200 * 2**20), lzma.FORMAT_RAW, filters=FILTERS), np.uint8)
    tracemalloc.start()
    with refused(ValueError, 3280):
        SharedStep(1.0).decode(Coded(np.empty(0, np.float32), np.concatenate([np.zeros(1, np.uint8), bomb])), 40)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_words_and_codes_end_where_they_must():
    """In 8 bits numbers are -127 to 127; the word 255 would be 128."""
    codes = [Coded(np.ones(1, np.float32), compress(np.array([word], np.uint8))) for word in (254, 255)]
    assert dequantise(codes[0], 8, 1, 1) == 127
    with refused(ValueError):
        dequantise(codes[1], 8, 1, 1)
    code = compress(np.arange(5, dtype=np.uint8))
    np.testing.assert_array_equal(decompress(code, 5), np.arange(5))
    with refused(ValueError):
        decompress(np.append(code, np.uint8(0)), 5)
    codec = SharedStep(1.0)
    assert codec.decode(codec.encode(np.array([2.0**27 - 1]), 1), 1) == 2**27 - 1
    with refused(ValueError, 27):
        codec.encode(np.array([2.0**27]), 1)
