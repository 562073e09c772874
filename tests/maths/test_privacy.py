"""Claims that privacy rests on: rows on a grid, sensitivities, noise beside an accountant and exact probabilities."""

import functools
import math
from decimal import Decimal, localcontext
from itertools import product

import dp_accounting
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import chisquare, kstest, norm

from fedpca_flwr.maths import privacy
from fedpca_flwr.maths.moments import diagonal_positions
from fedpca_flwr.maths.privacy import gaussian_epsilon
from fedpca_flwr.maths.rows import chunks
from fedpca_flwr.strategies.dp_pca import integer_sums
from fedpca_flwr.strategies.dp_pca.integer_sums import (
    GRID_STEPS,
    discrete_gaussian,
    round_to_grid,
    seeded_randomness,
    sensitivity,
)
from tests.families import rows
from tests.refusals import refused


@pytest.mark.parametrize("sums", [0.0, 0.5, 0.9, 1.1, 1.3, 1.41, 1.42, 2.0, 5.0])
def test_replacement_sensitivity_is_of_the_worst_cosine(sums):
    """Two rows of length 1 with cosine t, for t in small steps: (a^2 (2 - 2t) + b^2 (2 - 2t^2))^(1/2)."""
    t = np.linspace(-1, 1, 200_001)
    for products, count in product((1.0, 0.0), (0.0, 0.3)):  # a replaced row leaves the count alone
        worst, weights = (sums**2 * (2 - 2 * t) + products**2 * (2 - 2 * t**2)).max(), (sums, products, count)
        found = [sensitivity(one, sums=sums, products=products, count=count) for one in ("replace-one", "add-remove")]
        np.testing.assert_allclose(found, [np.sqrt(worst), np.linalg.norm(weights)], rtol=1e-9)


def test_noise_and_releases_are_those_of_an_accountant():
    for delta, epsilon in product((1e-9, 1e-5, 1e-2), (0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0)):
        ours = privacy.gaussian_multiplier(epsilon, delta)
        np.testing.assert_allclose(ours, dp_accounting.get_sigma_gaussian(epsilon, delta), rtol=1e-6)
        assert 0.999999 * delta <= privacy.gaussian_delta(epsilon, ours) <= delta
        np.testing.assert_allclose(gaussian_epsilon(ours, delta), epsilon, rtol=1e-6)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(noise) for noise in (12.0, 2.5)]))
    found = gaussian_epsilon(privacy.compose_multipliers([12.0, 2.5]), 1e-5)
    np.testing.assert_allclose(found, accountant.get_epsilon(1e-5), rtol=1e-3)
    assert (privacy.compose_multipliers([]), privacy.compose_multipliers([3.0, 0.0])) == (math.inf, 0.0)
    assert privacy.compose_multipliers([0.3, 0.4]) == pytest.approx(0.24)
    assert (privacy.gaussian_multiplier(math.inf, 1e-5), gaussian_epsilon(0.0, 1e-5)) == (0.0, math.inf)
    assert (gaussian_epsilon(1e9, 1e-5), privacy.gaussian_delta(1.0, math.inf)) == (0.0, 0.0)


INTERVAL = 1e-4
"""Of the accountant's privacy losses: for each number that changes it errs upwards by half of this, never downwards."""


def discrete_epsilon(changes, deviations):
    """Compute the epsilon that an accountant of discrete noise finds if each integer changes by a given number."""
    mechanism = dp_accounting.pld.privacy_loss_distribution.from_discrete_gaussian_mechanism
    discrete = functools.partial(mechanism, value_discretization_interval=INTERVAL)
    changed = (discrete(float(off), sensitivity=change) for change, off in zip(changes, deviations, strict=True))
    return functools.reduce(lambda first, second: first.compose(second), changed).get_epsilon_for_delta(1e-5)


@pytest.mark.engine
@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_an_accountant_of_discrete_noise_finds_no_more_spent(epsilon, monkeypatch):
    """On the grid of the sums, and on coarser ones, where whole noise differs more from continuous noise."""
    multiplier = privacy.gaussian_multiplier(epsilon, 1e-5)
    for changes in ([1], [2], [16], [8, 8, 8, 8]):
        deviation = integer_sums.integer_deviation(multiplier * math.hypot(*changes))
        assert discrete_epsilon(changes, [deviation] * len(changes)) <= epsilon + 3 * INTERVAL
    if epsilon == 5.0:  # and there it costs nothing
        found = discrete_epsilon([GRID_STEPS], [integer_sums.integer_deviation(multiplier * GRID_STEPS)])
        assert 0.999 * epsilon <= found <= epsilon + 3 * INTERVAL
    # Products of the row (3, 4), with the noise of both kinds; the accountant cannot hold that of the true grid.
    monkeypatch.setattr(integer_sums, "discrete_gaussian", lambda size, deviation, source: np.full(size, deviation))
    deviations = integer_sums.symmetric_noise(2, integer_sums.integer_deviation(multiplier * 25), seeded_randomness(1))
    assert discrete_epsilon([9, 12, 16], deviations) <= epsilon + 3 * INTERVAL


def test_clipping_makes_no_row_longer():
    data = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(integer_sums.clip_rows(data, 1.0), [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-11)
    assert (np.linalg.norm(integer_sums.clip_rows(rows(2000, 50) * 1e8, 0.1), axis=1) <= 0.1).all()
    # At the bound, each value half a step above a whole number: to the nearest, without a margin, is beyond.
    row = np.full((1, 900), (GRID_STEPS // 30 + 0.5) / GRID_STEPS)
    assert float((round_to_grid(row, 1.0) ** 2).sum()) <= GRID_STEPS**2 < float((np.rint(row * GRID_STEPS) ** 2).sum())
    assert max(float((round_to_grid(np.ones((1, d)), 1.0) ** 2).sum()) for d in range(1, 100)) <= GRID_STEPS**2
    # Of rows far below the bound; toward zero, each would be smaller by a hundredth.
    data = rows(20_000, 5)
    placed = round_to_grid(data, 100.0) * (100.0 / GRID_STEPS)
    np.testing.assert_allclose((placed**2).sum(axis=0), (data**2).sum(axis=0), rtol=2e-3)
    # Counted in Python's whole numbers: the sum of squares is at most the square of the steps, with nothing over.
    for bound, size in product((1e-150, 0.1, 7.0, 1e150), (1e-3, 1.0, 1e8, 1e150)):
        placed = round_to_grid(rows(500, 20) * size, bound)
        assert np.array_equal(placed, np.round(placed))
        assert max(sum(int(value) ** 2 for value in row) for row in placed) <= GRID_STEPS**2


@pytest.mark.parametrize("at_once", [2**22, 100])
def test_sums_are_exact_whole_numbers(at_once, monkeypatch):
    """Beyond what float32 or a rounding would keep: against Python's integers."""
    monkeypatch.setattr(integer_sums, "CHUNK_ELEMENTS", at_once)
    monkeypatch.setattr(chunks, "__defaults__", (at_once,))
    data, centre = rows(3000, 5) * 4, np.arange(5.0)
    placed = round_to_grid(data - centre, 2.0).astype(int).astype(object)
    expected = (placed.T @ placed)[np.triu_indices(5)]
    assert [int(value) for value in integer_sums.integer_products(data, centre, 2.0)] == list(expected)
    assert [int(value) for value in integer_sums.integer_sum(data, centre, 2.0)] == list(placed.sum(axis=0))


UNLIKELY = 1e-6
LARGE = 2**30


def surprise(drawn, values, expected):
    """Return the p-value of Pearson's chi-square, rare values taken together."""
    counted, common = (drawn[:, None] == values).sum(axis=0), expected * drawn.size >= 10
    seen = np.append(counted[common], drawn.size - counted[common].sum())
    due = np.append(expected[common], expected[~common].sum()) * drawn.size
    return chisquare(seen[due > 0], due[due > 0]).pvalue


@pytest.mark.parametrize("deviation", [1, 2, 3, 7])
def test_each_whole_number_has_its_probability(deviation):
    values = np.arange(-12 * deviation, 12 * deviation + 1)
    drawn = discrete_gaussian(200_000, deviation, seeded_randomness(1, deviation))
    assert drawn.dtype == np.int64
    assert surprise(drawn, values, softmax(-(values**2) / (2 * deviation**2))) > UNLIKELY


def test_noise_is_normal_protects_as_continuous_noise_and_never_repeats(monkeypatch):
    """Kolmogorov and Smirnov, the variance, and each remainder by 16 equally often; too light a tail shows a sum."""
    drawn = discrete_gaussian(400_000, LARGE, seeded_randomness(2))
    noise = drawn / LARGE
    assert kstest(noise, norm.cdf).pvalue > UNLIKELY
    assert abs(float((noise**2).sum()) - drawn.size) < 5 * math.sqrt(2 * drawn.size)
    assert surprise(drawn % 16, np.arange(16), np.full(16, 1 / 16)) > UNLIKELY
    for level, tail in product((1.0, 2.0, 3.0, 4.0), (noise, -noise)):
        due = norm.sf(level) * drawn.size
        assert abs((tail > level).sum() - due) < 5 * math.sqrt(due)
    # Off the diagonal the deviation is isqrt(whole^2 / 2) + 1; counted in Python's whole numbers.
    for deviation in (0.0, 0.3, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 1e6, 2.5e8, 2.0**38):
        whole = integer_sums.integer_deviation(deviation)
        least = math.ceil(deviation) ** 2 if deviation >= 1 else 0
        assert min(whole**2, 2 * (math.isqrt(whole**2 // 2) + 1) ** 2) >= least + 8
        assert whole <= deviation + 5
    d, deviation = 300, 2**20
    symmetric, on = integer_sums.symmetric_noise(d, deviation, seeded_randomness(4)) / deviation, diagonal_positions(d)
    for values, variance in ((symmetric[on], 1.0), (np.delete(symmetric, on), 0.5)):
        squares, n = float((values**2).sum()) / variance, values.size
        assert abs(squares - n) < 5 * math.sqrt(2 * n)
        assert abs(float(values.sum())) < 5 * math.sqrt(n * variance)
    sources = [integer_sums.system_randomness()] * 2 + [seeded_randomness(1, last) for last in (2, 2, 3)]
    one, other, seeded, same, another = (discrete_gaussian(10, LARGE, source).tolist() for source in sources)
    assert one != other
    assert seeded == same != another
    # Of deviation 5 it is the root of 12.5, which is no less than 3.5: 4.
    monkeypatch.setattr(integer_sums, "discrete_gaussian", lambda size, deviation, source: np.full(size, deviation))
    np.testing.assert_array_equal(integer_sums.symmetric_noise(2, 5, seeded_randomness(0)), [5, 4, 5])


@pytest.mark.parametrize("deviation", [1, 2, 1000, integer_sums.MAX_DEVIATION])
def test_integers_decide_what_floats_leave_open(deviation, monkeypatch):
    """Decide 2,000 numbers as if floats were sure of nothing."""
    by_floats = discrete_gaussian(2000, deviation, seeded_randomness(5))
    monkeypatch.setattr(integer_sums, "PROBABILITY_ERROR", 2.0)
    np.testing.assert_array_equal(discrete_gaussian(2000, deviation, seeded_randomness(5)), by_floats)


def test_random_words_and_coins_are_unbiased(monkeypatch):
    """2^64 is 2 beyond a multiple of 7: the last two words would make 0 and 1 more likely than others."""
    sure = 0b10  # a word that proposes a positive number below the deviation, and accepts it
    words, given = [*[sure] * 4, 2**64 - 1, 5, 2**64 - 2, 2**64 - 3, 11, 13], []

    def source(size):
        given.append(size)
        return b"".join(words.pop(0).to_bytes(8, "little") for _ in range(size // 8))

    monkeypatch.setattr(integer_sums, "MAX_PROPOSALS", 4)
    np.testing.assert_array_equal(discrete_gaussian(4, 7, source), [5, 6, 4, 6])
    assert given == [32, 32, 16]
    # Ten coins, ten more, and one: twenty deviations, and two of the next one; which numbers near 0 keep.
    monkeypatch.setattr(integer_sums, "MAX_PROPOSALS", 2)
    for decisive, number in (([0] * 4, 20 * 7 + 2), ([2**64 - 1], 3)):
        words += [0, sure, 0, 1, 2, 3, *decisive]
        assert [*discrete_gaussian(1, 7, source), *words] == [number]
    for deviation in (0, -1, integer_sums.MAX_DEVIATION + 1):
        with refused(ValueError, deviation, 1):
            discrete_gaussian(3, deviation, integer_sums.system_randomness())
    # Of numbers that begin as their probability does the first and the last, then its neighbours 192 bits further on.
    for k, j in ((0, 1), (0, 6), (1, 3), (2, 0), (5, 4), (12, 0)):
        with localcontext(prec=200):
            known = int((Decimal(49 - (7 * k + j) ** 2) / 98).exp() * Decimal(2) ** (k - 1 + 53 + 192))
        first, rest = known >> 192, known % 2**192
        for further, below in ((0, True), (rest - 1, True), (rest + 1, False), (2**192 - 1, False)):
            coins = [1 << k] if k < 10 else [0, 1 << k - 10]  # ten in each word
            words[:] = [first << 11 | coins[0] << 1, sure, *coins[1:], j, 3]
            words += [(further >> shift) % 2**64 for shift in (128, 64, 0)]
            assert discrete_gaussian(1, 7, source) == (7 * k + j if below else 3)
