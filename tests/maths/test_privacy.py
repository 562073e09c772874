"""The claims that privacy rests on: rows on a grid, sensitivities, noise against two accountants, an attack."""

import functools
import math

import dp_accounting
import numpy as np
import pytest
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from scipy.optimize import minimize
from scipy.stats import norm

from fedpca_flwr.maths import privacy
from fedpca_flwr.maths.moments import diagonal_positions
from fedpca_flwr.maths.privacy import (
    STEPS,
    clip,
    composed,
    fixed,
    gaussian,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    on_grid,
    sensitivity,
    symmetric,
    system,
    whole_deviation,
    whole_products,
    whole_sum,
)
from fedpca_flwr.maths.rows import chunks
from tests.families import rows

EPSILONS = [0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0]
BOUND = 2.5
WEIGHTS = {
    "sum": {"sums": 1.0},
    "products": {"products": 1.0},
    "joint, light sum": {"sums": 0.3, "products": 1.0},
    "joint": {"sums": 0.5, "products": 1.0},
    "joint, even": {"sums": 1.0, "products": 1.0},
    "joint, heavy sum": {"sums": 2.0, "products": 1.0},
    "with a count": {"sums": 0.5, "products": 1.0, "count": 0.3},
}


def statistic(data, sums=0.0, products=0.0, count=0.0):
    """What a party computes before noise, in units of the bound; products off the diagonal stand for two entries."""
    d = data.shape[1]
    packed = whole_products(data, np.zeros(d), BOUND) / STEPS**2 * math.sqrt(2)
    packed[diagonal_positions(d)] /= math.sqrt(2)
    return np.concatenate([sums * whole_sum(data, np.zeros(d), BOUND) / STEPS, products * packed, [count * len(data)]])


def largest_change(relation, weights, d=4):
    """The largest change of the statistic that a search over neighbours finds; rows may be outside the bound."""
    others = rows(5, d) * BOUND

    def change(flat):
        pair = flat.reshape(2, 1, d)
        before = np.vstack([others, pair[0]])
        after = others if relation == "add-remove" else np.vstack([others, pair[1]])
        return float(np.linalg.norm(statistic(before, **weights) - statistic(after, **weights)))

    starts = np.random.default_rng(0).standard_normal((3, 2 * d)) * 2 * BOUND
    return max(-minimize(lambda x: -change(x), start, method="Powell").fun for start in starts)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_search_for_neighbours_reaches_each_sensitivity_and_never_exceeds_it(relation, weights):
    claimed, found = sensitivity(relation, **weights), largest_change(relation, weights)
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_noise_is_the_accountants(epsilon, delta):
    ours = gaussian_multiplier(epsilon, delta)
    np.testing.assert_allclose(ours, dp_accounting.get_sigma_gaussian(epsilon, delta), rtol=1e-6)
    assert 0.999999 * delta <= gaussian_delta(epsilon, ours) <= delta
    np.testing.assert_allclose(gaussian_epsilon(ours, delta), epsilon, rtol=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0])
def test_delta_is_the_integral_that_it_stands_for(epsilon):
    """Without any accountant: the hockey-stick divergence of N(1, s^2) from N(0, s^2), summed numerically."""
    s = gaussian_multiplier(epsilon, 1e-5)
    x = np.linspace(-12 * s, 12 * s + 1, 2_000_001)
    excess = norm.pdf(x, 1, s) - np.exp(epsilon) * norm.pdf(x, 0, s)
    np.testing.assert_allclose(np.trapezoid(excess.clip(min=0), x), 1e-5, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0])
def test_flowers_accountant_finds_no_more_spent_than_renyi_loses(epsilon):
    """Its bound is looser (Rényi), from above."""
    multiplier = gaussian_multiplier(epsilon, 1e-5)
    everybody = SamplingMethod.NO_AMPLIFICATION
    accountant = RdpAccountant(PrivacyConfig(1e-5, 10, NeighboringRelation.ADD_OR_REMOVE_ONE, everybody))
    accountant.compose(GaussianPrivacyEvent(noise_multiplier=multiplier, sample_size=10, population_size=10))
    assert epsilon <= accountant.get_privacy_spent().epsilon <= 1.25 * epsilon


def test_releases_compose_exactly_to_the_extremes():
    first, second = 12.0, 2.5
    together = composed([first, second])
    events = [dp_accounting.GaussianDpEvent(s) for s in (first, second)]
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    for event in events:
        accountant.compose(event)
    np.testing.assert_allclose(gaussian_epsilon(together, 1e-5), accountant.get_epsilon(1e-5), rtol=1e-3)
    assert composed([]) == math.inf
    assert composed([3.0, 0.0]) == 0.0
    assert gaussian_multiplier(math.inf, 1e-5) == 0.0
    assert gaussian_epsilon(0.0, 1e-5) == math.inf
    assert gaussian_epsilon(1e9, 1e-5) == 0.0
    assert gaussian_delta(1.0, math.inf) == 0.0


INTERVAL = 1e-4
"""Of the accountant's privacy losses: for each number that changes it errs upwards by half of this, never downwards."""


def discrete_epsilon(changes, deviations):
    """What an accountant of discrete noise finds where each whole number changes by so much."""
    discrete = dp_accounting.pld.privacy_loss_distribution.from_discrete_gaussian_mechanism
    changed = [
        discrete(float(deviation), sensitivity=change, value_discretization_interval=INTERVAL)
        for change, deviation in zip(changes, deviations, strict=True)
    ]
    return functools.reduce(lambda first, second: first.compose(second), changed).get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize("changes", [[1], [2], [16], [8, 8, 8, 8], [STEPS]], ids=str)
@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_an_accountant_of_discrete_noise_finds_no_more_spent(epsilon, changes):
    """On the grid of the sums, and on coarser ones, where whole noise differs more from continuous noise."""
    deviation = whole_deviation(gaussian_multiplier(epsilon, 1e-5) * math.hypot(*changes))
    found = discrete_epsilon(changes, [deviation] * len(changes))
    assert found <= epsilon + 3 * INTERVAL
    if changes == [STEPS]:
        assert found >= 0.999 * epsilon  # and there it costs nothing


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_the_same_of_products_with_the_noise_of_both_kinds(epsilon, monkeypatch):
    """The row (3, 4) on a coarse grid: the accountant cannot hold the noise of the true one."""
    monkeypatch.setattr("fedpca_flwr.maths.privacy.gaussian", lambda size, deviation, source: np.full(size, deviation))
    deviations = symmetric(2, whole_deviation(gaussian_multiplier(epsilon, 1e-5) * 25), fixed(1))
    assert discrete_epsilon([9, 12, 16], deviations) <= epsilon + 3 * INTERVAL


def advantage(multiplier, trials=4000):
    """True minus false positive rate of the best membership test against a tiny party's second moment.

    The attacker knows all other rows and looks along the product of the row in question.
    """
    d = 5
    data = rows(12, d) * BOUND
    row = rows(1, d, seed=9) * 100
    others = whole_products(data, np.zeros(d), BOUND)  # what the attacker knows
    (own,) = on_grid(row, BOUND)
    deviation = whole_deviation(multiplier * STEPS**2)
    test = np.outer(own, own) * (2 - np.eye(d))  # a packed triangle holds one of two equal entries
    weights = test[np.triu_indices(d)]
    guesses = []
    for members in (data, np.vstack([data, row])):
        seen = whole_products(members, np.zeros(d), BOUND) - others
        noise = gaussian(trials * seen.size, deviation, system()).reshape(trials, -1) / deviation
        noise *= np.sqrt((1 + np.eye(d)) / 2)[np.triu_indices(d)]
        guesses.append(((seen + deviation * noise) @ weights > STEPS**4 / 2).mean())
    return guesses[1] - guesses[0]


def test_a_membership_attack_on_a_tiny_party_succeeds_without_noise_and_fails_with_it():
    epsilon, delta = 1.0, 1e-5
    multiplier = gaussian_multiplier(epsilon, delta)
    allowed = (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)
    assert advantage(0.0, 10) == 1.0
    assert advantage(multiplier / 10) > allowed  # the attack is strong enough to see noise that is too small
    expected = 2 * norm.cdf(0.5 / multiplier) - 1  # 0.107, of the best attack there is
    assert abs(advantage(multiplier) - expected) < 0.06
    assert expected < allowed


@pytest.mark.parametrize("sums", [0.0, 0.5, 0.9, 1.1, 1.3, 1.41, 1.42, 2.0, 5.0])
def test_the_sensitivity_of_a_replacement_is_that_of_the_worst_cosine(sums):
    """Two rows of length 1 with cosine t, for t in small steps: (a^2 (2 - 2t) + b^2 (2 - 2t^2))^(1/2)."""
    cosines = np.linspace(-1, 1, 200_001)
    squares = sums**2 * (2 - 2 * cosines) + 2 - 2 * cosines**2
    found = sensitivity("replace-one", sums=sums, products=1.0)
    assert found == pytest.approx(math.sqrt(squares.max()), rel=1e-9)


def test_clipping_and_rounding_make_no_row_longer_and_leave_variances():
    data = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clip(data, 1.0)
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-11)
    assert (np.linalg.norm(clip(rows(2000, 50) * 1e8, 0.1), axis=1) <= 0.1).all()
    # At the bound, each value half a step above a whole number: to the nearest, without a margin, is beyond.
    row = np.full((1, 900), (STEPS // 30 + 0.5) / STEPS)
    assert float((np.rint(row * STEPS) ** 2).sum()) > STEPS**2
    assert float((on_grid(row, 1.0) ** 2).sum()) <= STEPS**2
    # Of rows far below the bound; toward zero, each would be smaller by a hundredth.
    data = rows(20_000, 5)
    placed = on_grid(data, 100.0) * (100.0 / STEPS)
    np.testing.assert_allclose((placed**2).sum(axis=0), (data**2).sum(axis=0), rtol=2e-3)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e8, 1e150])
@pytest.mark.parametrize("bound", [1e-150, 0.1, 7.0, 1e150])
def test_no_row_on_the_grid_is_longer_than_the_bound(size, bound):
    """Counted in Python's whole numbers: the sum of squares is at most the square of the steps, with nothing over."""
    placed = on_grid(rows(500, 20) * size, bound)
    assert np.array_equal(placed, np.round(placed))
    assert max(sum(int(value) ** 2 for value in row) for row in placed) <= STEPS**2


@pytest.mark.parametrize("at_once", [2**22, 100])
def test_sums_are_exact_whole_numbers(at_once, monkeypatch):
    """Beyond what float32 or a rounding would keep: against Python's integers."""
    monkeypatch.setattr(privacy, "CHUNK_ELEMENTS", at_once)
    monkeypatch.setattr(chunks, "__defaults__", (at_once,))
    data, centre = rows(3000, 5) * 4, np.arange(5.0)
    placed = on_grid(data - centre, 2.0).astype(int).astype(object)
    expected = (placed.T @ placed)[np.triu_indices(5)]
    assert [int(value) for value in whole_products(data, centre, 2.0)] == list(expected)
    assert [int(v) for v in whole_sum(data, centre, 2.0)] == list(placed.sum(axis=0))
