"""Shamir's secret sharing: any t shares give the secret, and fewer fit every secret."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths.secure import PRIME, SHARE_BYTES, combine, interpolated, split
from tests.refusals import refused

SECRETS = st.binary(min_size=32, max_size=32)


def test_the_field_is_that_of_the_smallest_prime_above_two_to_the_256():
    """Fermat's test to several bases, for the prime and against all smaller candidates."""

    def passes(n):
        return all(pow(base, n - 1, n) == 1 for base in (2, 3, 5, 7, 11, 13))

    assert passes(PRIME)
    assert not any(passes(n) for n in range(2**256 + 1, PRIME, 2))


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


def test_the_polynomial_is_that_of_the_paper():
    """1234 + 166 x + 94 x^2 (the example of Shamir's scheme in the literature), and its sixth point."""
    points = {1: 1494, 2: 1942, 3: 2578}
    assert interpolated(points, 0) == 1234
    assert interpolated(points, 6) == 5614
    assert combine({x - 1: y.to_bytes(SHARE_BYTES, "big") for x, y in {2: 1942, 4: 3402, 5: 4414}.items()}) == (
        (1234).to_bytes(32, "big")
    )


def test_extreme_secrets_come_back():
    for secret in (bytes(32), b"\xff" * 32):
        assert combine(dict(enumerate(split(secret, 3, 4)))) == secret


@pytest.mark.parametrize(("secret", "threshold", "parties"), [(bytes(31), 2, 3), (bytes(32), 4, 3), (bytes(32), 0, 3)])
def test_what_cannot_be_shared_is_refused(secret, threshold, parties):
    with refused(ValueError, 3):
        split(secret, threshold, parties)


def test_shares_that_give_no_secret_are_refused():
    with refused(ValueError):
        combine({0: (2**256 + 1).to_bytes(SHARE_BYTES, "big")})
