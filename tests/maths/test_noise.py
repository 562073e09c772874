"""Noise in whole numbers: the discrete Gaussian distribution, held against its exact probabilities."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, kstest, norm

from fedpca_flwr.maths import privacy
from fedpca_flwr.maths.moments import diagonal_positions
from fedpca_flwr.maths.privacy import (
    LARGEST,
    _below,
    _exactly_kept,
    _proposed,
    fixed,
    gaussian,
    symmetric,
    system,
    whole_deviation,
)
from tests.refusals import refused

UNLIKELY = 1e-6
LARGE = 2**30


def probabilities(deviation, reach=12):
    """Of the whole numbers up to so many deviations, by the definition."""
    values = np.arange(-reach * deviation, reach * deviation + 1)
    weights = np.exp(-(values**2) / (2 * deviation**2))
    return values, weights / weights.sum()


def surprise(drawn, values, expected):
    """The p-value of Pearson's chi-square, rare values taken together."""
    counted = np.array([(drawn == value).sum() for value in values])
    common = expected * drawn.size >= 10
    seen = np.append(counted[common], drawn.size - counted[common].sum())
    due = np.append(expected[common], expected[~common].sum()) * drawn.size
    assert (seen[due == 0] == 0).all()
    return chi2.sf(((seen - due)[due > 0] ** 2 / due[due > 0]).sum(), common.sum())


@pytest.mark.parametrize("deviation", [1, 2, 3, 7])
def test_each_whole_number_has_its_probability(deviation):
    drawn = gaussian(200_000, deviation, fixed(1, deviation))
    assert drawn.dtype == np.int64
    assert surprise(drawn, *probabilities(deviation)) > UNLIKELY


def test_large_noise_is_normal_down_to_its_last_digits():
    """Kolmogorov and Smirnov, the variance, and each remainder by 16 equally often."""
    drawn = gaussian(200_000, LARGE, fixed(2))
    assert kstest(drawn / LARGE, norm.cdf).pvalue > UNLIKELY
    assert abs(float(((drawn / LARGE) ** 2).sum()) - drawn.size) < 5 * math.sqrt(2 * drawn.size)
    assert surprise(drawn % 16, np.arange(16), np.full(16, 1 / 16)) > UNLIKELY


@pytest.mark.parametrize("level", [1.0, 2.0, 3.0, 4.0])
def test_the_tails_are_as_heavy_as_they_should_be(level):
    """Too light a tail is what shows a sum."""
    drawn, due = gaussian(400_000, LARGE, fixed(3)) / LARGE, norm.sf(level)
    for tail in (drawn > level, drawn < -level):
        assert abs(tail.sum() - due * drawn.size) < 5 * math.sqrt(due * drawn.size)


def test_rounding_continuous_noise_at_random_gives_the_discrete_one():
    """What lets the accounting of continuous noise hold, at a rounding small enough for the difference to show."""
    whole, rounding = 0.5, 0.2
    continuous, factor = math.sqrt(whole - rounding), 2 * math.exp(-2 * math.pi**2 * rounding)

    def rounded(x):
        def given(y):
            near = round(y) + np.arange(-12, 13)
            weights = np.exp(-((near - y) ** 2) / (2 * rounding))
            return norm.pdf(y, scale=continuous) * math.exp(-((x - y) ** 2) / (2 * rounding)) / weights.sum()

        return quad(given, x - 15, x + 15, epsabs=0, epsrel=1e-12, limit=500)[0]

    ratios = [rounded(x) / (norm.pdf(x / math.sqrt(whole)) / math.sqrt(whole)) for x in range(4)]
    assert 1e-6 < max(abs(ratio - 1) for ratio in ratios) < 2 * factor


@pytest.mark.parametrize("deviation", [0.0, 0.3, 5.0, 2.5e8, 2.0**38])
def test_whole_noise_has_the_variance_that_rounding_needs_also_off_the_diagonal(deviation):
    """In Python's whole numbers: floats would lose so little beside so much."""
    whole = whole_deviation(deviation)
    off = math.isqrt(whole**2 // 2) + 1
    least = int(deviation) ** 2 if deviation >= 1 else 0
    assert whole**2 >= least + 8
    assert 2 * off**2 >= least + 8
    assert whole <= deviation + 5


def test_noise_of_products_is_smaller_for_two_entries_and_the_systems_never_repeats():
    d, deviation = 300, 2**20
    drawn = symmetric(d, deviation, fixed(4)) / deviation
    on = diagonal_positions(d)
    for values, variance in ((drawn[on], 1.0), (np.delete(drawn, on), 0.5)):
        squares, n = float((values**2).sum()) / variance, values.size
        assert abs(squares - n) < 5 * math.sqrt(2 * n)
        assert abs(float(values.sum())) < 5 * math.sqrt(n * variance)
    assert not np.array_equal(gaussian(10, LARGE, system()), gaussian(10, LARGE, system()))
    assert np.array_equal(gaussian(10, LARGE, fixed(1, 2)), gaussian(10, LARGE, fixed(1, 2)))
    assert not np.array_equal(gaussian(10, LARGE, fixed(1, 2)), gaussian(10, LARGE, fixed(1, 3)))


@pytest.mark.parametrize("deviation", [1, 2, 1000, LARGEST])
def test_where_floats_do_not_decide_whole_numbers_decide_the_same(deviation, monkeypatch):
    """Of 2,000 numbers, each as if floats were sure of nothing."""
    by_floats = gaussian(2000, deviation, fixed(5))
    monkeypatch.setattr("fedpca_flwr.maths.privacy.UNSURE", 2.0)
    np.testing.assert_array_equal(gaussian(2000, deviation, fixed(5)), by_floats)


@pytest.mark.parametrize(("k", "j"), [(0, 1), (0, 6), (1, 3), (2, 0), (5, 4), (12, 0)])
def test_a_number_that_begins_as_its_probability_does_gets_more_digits(k, j):
    """Of those with its first 53 bits the first and the last, then its neighbours 192 bits further on."""
    with localcontext(prec=200):
        power = Decimal(49 - (7 * k + j) ** 2) / 98
        known = int(power.exp() * Decimal(2) ** (k - 1 + 53 + 192))
    first, rest = known >> 192, known % 2**192

    def below(further):
        words = [(further >> shift) % 2**64 for shift in (128, 64, 0)]
        return _exactly_kept(first, 7 * k + j, 7, lambda size: words.pop(0).to_bytes(size, "little"))

    assert [below(further) for further in (0, rest - 1, rest + 1, 2**192 - 1)] == [True, True, False, False]


@pytest.mark.parametrize("deviation", [0, -1, LARGEST + 1])
def test_noise_that_cannot_be_drawn_is_refused(deviation):
    with refused(ValueError, deviation, 1):
        gaussian(3, deviation, system())


def test_words_and_coins_are_used_without_favour():
    """2^64 is 2 beyond a multiple of 7: the last two words would make 0 and 1 more likely than others."""
    words = [2**64 - 1, 5, 2**64 - 2, 2**64 - 3, 11, 13]
    given = []

    def source(size):
        given.append(size)
        return b"".join(words.pop(0).to_bytes(8, "little") for _ in range(size // 8))

    np.testing.assert_array_equal(_below(7, 4, source), [5, 6, 4, 6])
    assert given == [32, 16]
    # Ten coins, ten more, and one: twenty deviations, and two of the next one; which no number below 1 keeps.
    words = [0, 0, 1, 2, 2**64 - 1]
    drawn, kept = _proposed(1, 7, source)
    assert (drawn.tolist(), kept.tolist()) == ([20 * 7 + 2], [False])


@pytest.mark.parametrize("deviation", [1, 1.5, 2, 3, 10, 1e6])
def test_whole_noise_has_the_variance_that_rounding_costs_besides(deviation):
    assert whole_deviation(deviation) ** 2 >= math.ceil(deviation) ** 2 + 8


def test_noise_off_the_diagonal_is_rounded_up(monkeypatch):
    """Of deviation 5 it is the root of 12.5, which is no less than 3.5: 4."""
    monkeypatch.setattr(privacy, "gaussian", lambda size, deviation, source: np.full(size, deviation))
    np.testing.assert_array_equal(symmetric(2, 5, fixed(0)), [5, 4, 5])
