"""Secure sums: fixed point, Shamir's shares, and honest parties on a ring of neighbours."""

from fractions import Fraction
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from fedpca_flwr.maths.secure import (
    PRIME,
    SHARE_BYTES,
    Layout,
    combine,
    expected_arcs,
    interpolated,
    least_degree,
    split,
)
from tests.refusals import refused

LIMITS = st.floats(1e-200, 1e250)


def summed(layout, parties):
    return layout.decode(np.add.reduce([layout.encode({"x": values}) for values in parties]))


@settings(max_examples=200, deadline=None)
@given(LIMITS, st.integers(1, 1000), st.integers(1, 4), st.sampled_from([-1.0, 1.0]), st.booleans())
def test_no_sum_at_its_limit_overflows(limit, parties, words, sign, alone):
    """Equal shares, or all of it at one party."""
    layout = Layout({"x": np.array([limit])}, words)
    share = np.array([sign * limit * (1.0 if alone else 1 / parties * (1 - 2**-50))])
    values = [share] + [share * (not alone)] * (parties - 1)
    count, fields = summed(layout, values)
    assert count == parties
    exact = float(sum(Fraction(float(value[0])) for value in values))
    np.testing.assert_allclose(fields["x"], exact, rtol=5e-16, atol=parties * layout.resolution * limit)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), LIMITS, st.integers(1, 4), st.floats(-20, 0))
def test_the_error_is_at_most_half_a_step_a_party(shares, limit, words, magnitude):
    """Values far below their limit keep an absolute error; with each further word it is 2^46 times smaller."""
    layout = Layout({"x": np.array([limit])}, words)
    values = [np.array([share * limit / len(shares) * 10.0**magnitude]) for share in shares]
    _, fields = summed(layout, values)
    exact = sum(Fraction(float(value[0])) for value in values)
    rounding = len(values) * layout.resolution * limit + abs(float(exact)) * 2**-51
    assert abs(Fraction(float(fields["x"][0])) - exact) <= rounding


def test_sums_round_to_the_nearest_step_in_any_order_without_overflow():
    _, fields = summed(Layout({"x": np.array([2.0**61])}), [np.array([0.75])] * 3)  # a step of 1
    assert fields["x"] == 3.0
    rng = np.random.default_rng(0)
    layout = Layout({"x": np.full((3, 4), 100.0)})
    values = [rng.standard_normal((3, 4)) for _ in range(20)]
    assert summed(layout, values)[1]["x"].tobytes() == summed(layout, values[::-1])[1]["x"].tobytes()
    # Words that do not open are any: they become numbers, without a warning.
    layout = Layout({"x": np.array(1.0)}, 2)
    layout.decode_double(np.array([1, 2**63 - 1, -(2**63)]).view(np.uint64))


def test_fields_keep_their_shapes_and_others_are_refused():
    layout = Layout({"count": np.array(2.0**40), "sum": np.full(5, 3.0), "block": np.ones((2, 3))}, words=2)
    fields = {"count": np.array(12345), "sum": np.arange(5) / 5, "block": np.eye(2, 3)}
    vector = layout.encode(fields)
    assert vector.shape == (layout.size,)
    assert vector.dtype == np.uint64
    parties, back = layout.decode(vector)
    assert parties == 1
    assert back["count"] == 12345
    for name, values in fields.items():
        np.testing.assert_array_equal(back[name], values)
    with refused(ValueError, "'x'"):
        Layout({"x": np.ones(2)}).encode({"x": np.zeros(3)})


@pytest.mark.parametrize("value", [1.0 + 1e-15, -1.1, np.nan, np.inf])
def test_a_value_beyond_its_limit_is_refused_without_being_told(value):
    with refused(ValueError, "'x'"):
        Layout({"x": np.ones(2)}).encode({"x": np.array([0.0, value])})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4), st.integers(-3, 3))
@example([0, 211139005235020, -676671907300, 38719], -3)
def test_two_floats_hold_what_the_words_do(further, first):
    """The fault: halves rounded down made 2^32 - 1 and -2^32 steps of -1; what followed was rounded off beside them."""
    layout = Layout({"x": np.array(1.0)}, len(further) + 1)
    numbers = [first, *further]
    exponents = (62 - 1 + 46 * word for word in range(len(numbers)))
    terms = [Fraction(number) / 2**exponent for number, exponent in zip(numbers, exponents, strict=True)]
    _, fields = layout.decode_double(np.array([1, *numbers]).view(np.uint64))
    high, low = (Fraction(float(part)) for part in fields["x"])
    assert abs(high + low - sum(terms)) <= max(map(abs, terms)) / 2**100


SECRETS = st.binary(min_size=32, max_size=32)


def test_shares_are_those_of_the_paper_in_the_smallest_prime_field():
    """Fermat's test to several bases, for the prime and against all smaller candidates."""

    def passes(n):
        return all(pow(base, n - 1, n) == 1 for base in (2, 3, 5, 7, 11, 13))

    assert passes(PRIME)
    assert not any(passes(n) for n in range(2**256 + 1, PRIME, 2))
    # 1234 + 166 x + 94 x^2 (the example of Shamir's scheme in the literature), and its sixth point.
    points = {1: 1494, 2: 1942, 3: 2578}
    assert interpolated(points, 0) == 1234
    assert interpolated(points, 6) == 5614
    assert combine({x - 1: y.to_bytes(SHARE_BYTES, "big") for x, y in {2: 1942, 4: 3402, 5: 4414}.items()}) == (
        (1234).to_bytes(32, "big")
    )
    for secret in (bytes(32), b"\xff" * 32):
        assert combine(dict(enumerate(split(secret, 3, 4)))) == secret
    with refused(ValueError):
        combine({0: (2**256 + 1).to_bytes(SHARE_BYTES, "big")})


@settings(max_examples=50, deadline=None)
@given(SECRETS, st.integers(1, 6), st.integers(0, 3))
def test_any_t_shares_give_the_secret(secret, threshold, more):
    shares = split(secret, threshold, threshold + more)
    assert {len(share) for share in shares} == {SHARE_BYTES}
    for chosen in combinations(range(len(shares)), threshold):
        assert combine({party: shares[party] for party in chosen}) == secret
    assert combine(dict(enumerate(shares))) == secret


@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_a_share_less_never_gives_the_secret(threshold):
    secret = bytes(range(32))
    shares = dict(enumerate(split(secret, threshold, 6)))
    for chosen in combinations(shares, threshold - 1):
        value = interpolated({party + 1: int.from_bytes(shares[party], "big") for party in chosen}, 0)
        assert value != int.from_bytes(secret, "big")


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_fewer_shares_fit_every_secret(threshold, monkeypatch):
    """Over a field of seven numbers, where all polynomials can be tried: each t - 1 shares occur once for each secret,
    so they say nothing about it.
    """
    monkeypatch.setattr("fedpca_flwr.maths.secure.PRIME", 7)
    for chosen in combinations(range(5), threshold - 1):
        for secret in range(7):
            seen = []
            for coefficients in product(range(7), repeat=threshold - 1):
                drawn = iter(coefficients)
                monkeypatch.setattr(
                    "fedpca_flwr.maths.secure.secrets.randbelow", lambda below, drawn=drawn: next(drawn)
                )
                shares = split(secret.to_bytes(32, "big"), threshold, 5)
                seen.append(tuple(shares[party] for party in chosen))
            assert len(set(seen)) == 7 ** (threshold - 1)


def test_a_share_alone_is_uniform():
    """Its leading bytes over many sharings of one secret: the coefficients are random, and new each time."""
    shares = [split(bytes(32), 2, 3) for _ in range(2000)]
    for party in range(3):
        leading = [share[party][1] for share in shares]
        assert abs(sum(leading) / len(leading) - 127.5) < 5 * 73.9 / len(leading) ** 0.5
        assert len({share[party] for share in shares}) == len(shares)


@pytest.mark.parametrize(("secret", "threshold", "parties"), [(bytes(31), 2, 3), (bytes(32), 4, 3), (bytes(32), 0, 3)])
def test_what_cannot_be_shared_is_refused(secret, threshold, parties):
    with refused(ValueError, 3):
        split(secret, threshold, parties)


def gaps(parties, colluding, degree):
    """By placement of the colluders: how many intervals between honest parties hold degree / 2 of them or more."""
    for places in combinations(range(parties), colluding):
        honest = [place for place in range(parties) if place not in places]
        steps = np.diff([*honest, honest[0] + parties])
        yield honest, int(np.count_nonzero(steps - 1 >= degree // 2))


def connected(honest, parties, degree):
    """Whether these are in one piece where everybody is tied to the degree / 2 next ones on either side."""
    apart = np.abs(np.subtract.outer(honest, honest))
    return connected_components(np.minimum(apart, parties - apart) <= degree // 2)[0] == 1


SMALL = [(9, 6, 2), (10, 6, 4), (11, 7, 4), (12, 8, 4), (12, 8, 6), (13, 6, 2)]


@pytest.mark.parametrize(("parties", "colluding", "degree"), SMALL)
def test_gaps_and_arcs_are_those_of_all_placements(parties, colluding, degree):
    for honest, found in gaps(parties, colluding, degree):
        assert connected(honest, parties, degree) == (found < 2)
    found = [number for _, number in gaps(parties, colluding, degree)]
    assert expected_arcs(parties, colluding, degree) == Fraction(sum(n * (n - 1) for n in found), len(found))
    assert Fraction(sum(n >= 2 for n in found), len(found)) <= expected_arcs(parties, colluding, degree) / 2


def probability_apart(parties, colluding, degree):
    """That of two gaps or more, by inclusion and exclusion."""
    honest, half = parties - colluding, degree // 2
    ways = [comb(honest, j) * comb(colluding - j * half + honest - 1, honest - 1) for j in range(colluding // half + 1)]
    apart = sum((-1) ** j * (j - 1) * number for j, number in enumerate(ways) if j >= 2)
    return Fraction(apart, comb(colluding + honest - 1, honest - 1))


def test_degrees_are_even_and_bounds_within_a_bit_of_the_probability():
    for parties, colluding, degree in SMALL:
        found = [number for _, number in gaps(parties, colluding, degree)]
        apart = Fraction(sum(n >= 2 for n in found), len(found))
        assert probability_apart(parties, colluding, degree) == apart
    for parties, degree in ((60, 40), (100, 54), (1000, 92)):
        colluding = 2 * parties // 3
        exact = probability_apart(parties, colluding, degree)
        assert 0 < exact <= expected_arcs(parties, colluding, degree) / 2 <= exact * Fraction(1001, 1000)
    assert expected_arcs(10, 9, 2) == 0
    assert expected_arcs(10, 3, 4) == 0
    # Half of the neighbours stand on either side.
    assert {least_degree(60, colluding, 20) % 2 for colluding in range(2, 50)} == {0}


@pytest.mark.parametrize("parties", [51, 60, 100, 300])
def test_fewer_colluders_are_no_worse_and_fewer_neighbours_are_too_few(parties):
    colluding = 2 * parties // 3
    degree = least_degree(parties, colluding, 40)
    assert all(expected_arcs(parties, some, degree) * 2**40 <= 1 for some in range(colluding + 1))
    assert expected_arcs(parties, colluding, degree - 2) * 2**40 > 1
