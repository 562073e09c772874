"""Secure sums: fixed point, exact sums, Shamir's shares, and honest parties on a ring of neighbours."""

import secrets
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths import secure
from fedpca_flwr.maths import sums as module
from fedpca_flwr.maths.moments import Head, packed_size
from fedpca_flwr.maths.secure import PRIME, SHARE_BYTES, Layout, combine_shares, split_secret
from fedpca_flwr.maths.short_words import ShortWords, WordSharing, digit_base, values_per_word
from fedpca_flwr.maths.sums import MAX_ADDENDS, MeanProducts, ReproducibleSum, reproducible_sum
from tests.refusals import refused, unnamed


def held(double, i=0):
    return Fraction(float(double[0][i])) + Fraction(float(double[1][i]))


def summed(layout, parties):
    words = np.add.reduce([layout.encode({"x": values}) for values in parties])
    return int(words[0]), layout.decode(words)[0]["x"]


PARTS = st.sampled_from([-1.0, 1.0, -0.7e-3, 1 / 3 * 1e-17])


@settings(max_examples=150, deadline=None)
@given(st.floats(1e-200, 1e250), st.sampled_from([1, 2, 3, 7, 31, 200]), st.integers(1, 4), PARTS, st.booleans())
@example(1.0, 1000, 1, 1.0, False)
@example(1e-285, 3, 1, 1.0, False)
def test_no_sum_at_its_limit_overflows(limit, parties, words, part, alone):
    """Take equal shares, or the full sum at a single party, of the limit or far below it."""
    layout = Layout({"x": np.array([limit])}, words)
    share = np.array([part * limit * (1.0 if alone else 1 / parties * (1 - 2**-50))])
    count, total = summed(layout, [share] + [share * (not alone)] * (parties - 1))
    exact, bound = Fraction(float(share[0])) * (1 if alone else parties), float(layout.error_bound(parties)["x"][0])
    assert count == parties
    assert abs(Fraction(float(total[0])) - exact) <= bound + abs(float(exact)) * 2**-51
    assert bound <= parties * layout.resolution() * limit


def test_sums_round_to_the_nearest_step_and_other_shapes_are_refused():
    steps = [Layout({"x": np.ones(1)}, words).resolution() for words in range(1, 5)]
    assert steps == [2.0**-63, 2.0**-106, 2.0**-149, 2.0**-192]
    assert summed(Layout({"x": np.array([2.0**62])}), [np.array([0.75])] * 3) == (3, 3.0)  # a step of 1
    many = np.arange(secure.BLOCK_VALUES + 1.0)  # with one limit for all
    assert summed(Layout({"x": np.broadcast_to(many.sum(), many.shape)}), [many, many])[1].tolist() == [*(2 * many)]
    layout, values = Layout({"x": np.full((3, 4), 100.0)}), np.random.default_rng(0).standard_normal((20, 3, 4))
    assert summed(layout, values)[1].tobytes() == summed(layout, values[::-1])[1].tobytes()
    # Words that do not open are any: they become numbers, without a warning.
    Layout({"x": np.array(1.0)}, 2).decode(np.array([1, 2**63 - 1, -(2**63)]).view(np.uint64))
    # Shares up to the limit are 2^71 first steps and wrap around; only the sum must be below 2^-10 of the limit.
    shares = [np.array([2.0**40, -(2.0**40), 3.0]), np.array([0.1 - 2.0**40, 2.0**40 - 2.0**30 + 1, 1e-6])]
    plain, fine = (Layout({"x": np.full(3, 2.0**40)}, {"x": (1, 5)}, {}, 2, {"x": bits}) for bits in (0, 10))
    assert fine.resolution("x") * 2**10 == plain.resolution("x")
    found = [part["x"] for part in fine.decode(sum(fine.encode({"x": share}) for share in shares))]
    for place in range(3):
        assert abs(held(found, place) - held(shares, place)) <= 2 * fine.resolution("x") * 2**40
    layout = Layout({"count": np.array(2.0**40), "sum": np.full(5, 3.0), "block": np.ones((2, 3))}, words=2)
    fields = {"count": np.array(12345), "sum": np.arange(5) / 5, "block": np.eye(2, 3)}
    vector = layout.encode(fields)
    assert (vector.shape, vector.dtype) == ((layout.size,), np.uint64)
    back, _ = layout.decode(vector)
    assert vector[0] == 1
    for name, values in fields.items():
        np.testing.assert_array_equal(back[name], values, strict=name != "count")
    wrong = [np.zeros(3), np.zeros((1, 2)), *(np.array([0.0, value]) for value in (1.0 + 1e-15, -1.1, np.nan, np.inf))]
    for values in wrong:
        with refused(ValueError, "'x'"):
            Layout({"x": np.ones(2)}).encode({"x": values})
    assert secure.further_digit_bits(21, 10) == 17
    with refused(ValueError, "21 bits"):  # too small a digit for what rounding adds
        secure.further_digit_bits(21, 2**20)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4), st.integers(-3, 3))
@example([0, 211139005235020, -676671907300, 38719], -3)
def test_two_floats_hold_what_the_words_do(further, first):
    """Take words for which halves rounded down made 2^32 - 1 and -2^32 steps of -1, and lost the digits after."""
    layout, numbers = Layout({"x": np.array([1.0])}, len(further) + 1), [first, *further]
    exponents = (63 - 1 + 43 * word for word in range(len(numbers)))
    exact = sum(Fraction(number) / 2**exponent for number, exponent in zip(numbers, exponents, strict=True))
    words = np.array([1, *numbers]).view(np.uint64)
    assert abs(held([part["x"] for part in layout.decode(words)]) - exact) <= abs(exact) / 2**100
    (number,), (exponent,) = layout.decode_exactly(words, "x")
    assert Fraction(number) / 2 ** int(exponent) == exact


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 70).flatmap(lambda n: st.lists(st.floats(-1, 1), min_size=n, max_size=n)),
    st.sampled_from([1, 3, 10, 100, 50_000]),
    st.sampled_from([(1, 2), (1, 3), (1, 3, 1)]),
    st.booleans(),
)
@example([1.0] * 7, 50_000, (1, 3), True)
def test_digits_that_share_words_add_up(values, parties, digits, alike):
    """A party's value is the sum of three numbers. Nearly all parties have the same, so that every digit adds up."""
    limit, x = 1.0 if alike else np.linspace(1, 1e9, len(values)), np.array(values)
    layout = Layout({"x": np.broadcast_to(limit, len(values))}, {"x": digits}, parties=parties)
    parts = [x * limit / parties * (1 - 1e-9), x * limit * 1e-20, x * limit * 2.0**-90]
    own = layout.encode(*({"x": part} for part in parts))
    words = own * np.uint64(parties)
    assert (words[0], layout.size) == (parties, own.size)
    total, low = (part["x"] for part in layout.decode(words))
    for place, most in enumerate(layout.error_bound(3 * parties)["x"]):
        wanted = parties * sum(Fraction(float(part[place])) for part in parts)
        assert abs(held((total, low), place) - wanted) <= Fraction(float(most)) + abs(wanted) / 2**51


def test_shares_are_those_of_the_paper():
    """Fermat's test to several bases, for the prime and against all smaller candidates."""

    def passes(n):
        return all(pow(base, n - 1, n) == 1 for base in (2, 3, 5, 7, 11, 13))

    assert passes(PRIME)
    assert not any(passes(n) for n in range(2**256 + 1, PRIME, 2))
    # 1234 + 166 x + 94 x^2 (the example of Shamir's scheme in the literature), and its sixth point.
    assert [secure.interpolate({1: 1494, 2: 1942, 3: 2578}, x) for x in (0, 6)] == [1234, 5614]
    shares = {x - 1: y.to_bytes(SHARE_BYTES, "big") for x, y in {2: 1942, 4: 3402, 5: 4414}.items()}
    assert combine_shares(shares) == (1234).to_bytes(32, "big")
    assert combine_shares(dict(enumerate(split_secret(b"\xff" * 32, 3, 4)))) == b"\xff" * 32
    with refused(ValueError):
        combine_shares({0: (2**256 + 1).to_bytes(SHARE_BYTES, "big")})
    for secret, threshold, parties in ((bytes(31), 2, 3), (bytes(32), 4, 3), (bytes(32), 0, 3)):
        with refused(ValueError, 3):
            split_secret(secret, threshold, parties)


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3))
def test_any_t_shares_give_the_secret_and_fewer_never(secret, threshold, more):
    shares = dict(enumerate(split_secret(secret, threshold, threshold + more)))
    assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    for chosen in (*combinations(shares, threshold), shares):
        assert combine_shares({party: shares[party] for party in chosen}) == secret
    for chosen in combinations(shares, threshold - 1) if threshold > 1 else ():
        value = secure.interpolate({party + 1: int.from_bytes(shares[party], "big") for party in chosen}, 0)
        assert value != int.from_bytes(secret, "big")


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_fewer_shares_fit_every_secret(threshold, monkeypatch):
    """Of all polynomials over a field of five numbers each t - 1 shares occur once for each secret."""
    monkeypatch.setattr(secure, "PRIME", 5)
    for chosen, secret in product(combinations(range(4), threshold - 1), range(5)):
        seen = set()
        for coefficients in product(range(5), repeat=threshold - 1):  # which are random, and new each time
            drawn = {5: iter(coefficients)}
            monkeypatch.setattr(secrets, "randbelow", lambda below, drawn=drawn: next(drawn[below]))
            shares = split_secret(secret.to_bytes(32, "big"), threshold, 4)
            seen.add(tuple(shares[party] for party in chosen))
        assert len(seen) == 5 ** (threshold - 1)


@pytest.mark.parametrize(
    ("parties", "colluding", "degree"), [(9, 6, 2), (10, 6, 4), (11, 7, 4), (12, 8, 4), (12, 8, 6), (11, 5, 2)]
)
def test_gaps_and_arcs_are_those_of_all_placements(parties, colluding, degree):
    """Count for each placement the intervals between honest parties with degree / 2 colluders or more."""
    honest = np.array(list(combinations(range(parties), parties - colluding)))
    gaps = (np.diff(honest, append=honest[:, :1] + parties) - 1 >= degree // 2).sum(axis=1)
    assert secure.expected_arcs(parties, colluding, degree) == Fraction(int((gaps * (gaps - 1)).sum()), len(gaps))


def test_degrees_are_even_and_the_least_that_are_enough():
    assert {secure.expected_arcs(*case) for case in ((10, 9, 2), (10, 3, 4), (4, 2, 6), (5, 5, 2))} == {0}
    # Half of the neighbours stand on either side.
    assert {secure.min_degree(60, colluding, 20) % 2 for colluding in range(2, 50)} == {0}
    for parties in (51, 60, 100, 300):
        colluding = 2 * parties // 3
        degree = secure.min_degree(parties, colluding, 40)
        assert all(secure.expected_arcs(parties, some, degree) * 2**40 <= 1 for some in range(colluding + 1))
        assert secure.expected_arcs(parties, colluding, degree - 2) * 2**40 > 1


def assert_summed(words, shares, near=None, *, rounding=1e-9):
    """Assert that the sum of words is off by no more than its bound, besides the last digits of float64."""
    with np.errstate(over="ignore"):
        total = np.add.reduce([words.encode(share, "x") for share in shares])
    expected, last_digits = sum(shares), 2 * np.spacing(np.abs(shares).max(axis=0) * len(shares))
    assert (np.abs(words.decode(total, near) - expected) <= words.error_bound * (1 + rounding) + last_digits).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_no_sum_at_its_limit_wraps(each, parties, size, seed):
    """A small residual gives a sum beyond its words."""
    rng = np.random.default_rng(seed)
    limit, signs = 10.0 ** rng.uniform(-9, 9, size), rng.choice([-1.0, 1.0], size)
    words, most = ShortWords(limit, WordSharing(each), parties), limit / parties
    assert_summed(words, [signs * most, *(most * rng.uniform(-1, 1, size) for _ in range(parties - 1))])
    assert_summed(words, [signs * most] * parties)
    words = ShortWords(limit, WordSharing(min(each, 5), residual=True), parties)
    shares = [1e4 * limit * rng.standard_normal(size) for _ in range(parties)]
    assert_summed(words, shares, sum(shares) + limit * signs * rng.choice([0.0, 0.5, 1.0], size), rounding=1e-6)


def test_words_say_what_is_rounded_to_and_share_as_many_digits_as_fit():
    words, value = ShortWords(np.full((5, 4), 2.0), WordSharing(4), 1), np.random.default_rng(0).uniform(-1, 1, (5, 4))
    rounded = words.decode(words.encode(value, "x"))
    assert rounded.tobytes() == words.decode(words.encode(rounded, "x")).tobytes()
    assert np.abs(rounded - value).max() > 1e-6
    words = ShortWords(np.array([1.0, 0.0, 0.0, 1.0, 1.0]), WordSharing(4), 2)
    assert words.size == 1
    np.testing.assert_array_equal(Layout({}, short={"x": words}).error_bound(2)["x"], words.error_bound)
    np.testing.assert_allclose(words.decode(2 * words.encode(np.full(5, 0.25), "x")), [0.5, 0, 0, 0.5, 0.5], atol=1e-4)
    with refused(ValueError, 16, 20):
        ShortWords(np.ones(1), WordSharing(16), 20).error_bound  # noqa: B018
    for how, beyond in ((WordSharing(4), 1.5), (WordSharing(3, residual=True), 1e13)):
        with refused(ValueError, "'x'") as caught:  # and not by its value
            ShortWords(np.ones(2), how, 3).encode(np.array([0.5, beyond]), "x")
        assert unnamed(str(caught.value), beyond) == [beyond]
    for values in range(2, 17):
        assert digit_base(values) ** values <= 2**64 < (digit_base(values) + 1) ** values
    rooms = {(5, 3): 16, (6, 3): 15, (7, 3): 15, (8, 3): 14, (3, 9): 15, (0, 11): 16, (0, 12): 15}
    rooms |= {(10**6, 3): 3, (2 * 10**6, 3): 2, (10**12, 3): 2}
    assert {case: values_per_word(*case) for case in rooms} == rooms
    assert ShortWords(np.full(1, 3.0), WordSharing(16), 11).error_bound == 5.5 * 3
    words, whole = ShortWords(np.full(32, 6.0), WordSharing(16), 1), np.resize(np.arange(-6.0, 7.0), 32)
    np.testing.assert_array_equal(words.decode(words.encode(whole, "x")), whole)


def running(addends):
    total = ReproducibleSum(addends[0].shape)
    for addend in addends:
        total.add(addend)
    return total.total()


def exact(addends):
    return np.array([float(sum(map(Fraction, column))) for column in np.array(addends).T.tolist()])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([0, 3, 40, 300]), st.booleans())
@example(7, 10952934, 40, True)  # a small addend came first, above half of the last word of the grid that followed
def test_no_order_changes_a_bit(parties, seed, spread, coarse):
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((parties, 50))
    if coarse:  # so that halves of the last word come up, whose rounding could depend on what is there already
        numbers = np.round(4 * numbers) / 4
    addends = list(np.ldexp(numbers, rng.integers(-spread, spread + 1, numbers.shape)))
    found = {running([addends[i] for i in rng.permutation(parties)]).tobytes() for _ in range(5)}
    assert found == {reproducible_sum(addends).tobytes()}


def test_exact_sums_take_any_shape_and_round_far_below_float64(monkeypatch):
    last, rng = 2.0 ** -(3 * module.DIGIT_BITS), np.random.default_rng(0)
    addends = [np.array([1.0]), *(np.array([sign * part * last]) for sign in (1, -1) for part in (0.5, 1.5, 0.5))]
    assert len({running([addends[i] for i in rng.permutation(len(addends))]).tobytes() for _ in range(40)}) == 1
    addends = [np.ldexp(rng.standard_normal(200), rng.integers(-60, 60, 200)) for _ in range(50)]
    largest, truth = np.abs(addends).max(axis=0), exact(addends)
    assert (np.abs(running(addends) - truth) <= 50 * 2.0**-73 * largest + np.spacing(np.abs(truth))).all()
    for unit in (1e-290, 1.0, 1e300):
        parts = list(unit * np.random.default_rng(1).standard_normal((9, 100)))
        addends = [*parts, *(-part for part in parts[1:]), 1e-9 * parts[0]]
        np.testing.assert_allclose(running(addends), exact(addends), rtol=3e-16)
    # What is below the grid of the largest addend is left out, also where smaller ones came before it.
    for edge in (2.0**module.DIGIT_BITS, 1.5 * 2.0**module.DIGIT_BITS):
        addends = [np.array([value]) for value in (1.0, edge, 2.0**-40, -edge)]
        assert running(addends) == running([addends[i] for i in (1, 0, 2, 3)]) == 1.0
    values = np.array([0.0, 5e-324, -1e-310, 1 / 3, -1.7e308])
    np.testing.assert_array_equal(running([values]), values)
    monkeypatch.setattr(module, "CHUNK_SIZE", 7)
    addends = list(np.random.default_rng(0).standard_normal((4, 5, 8)))
    np.testing.assert_allclose(running(addends), np.sum(addends, axis=0), rtol=1e-14, atol=1e-15)
    assert running(addends).tobytes() == reproducible_sum(addends).tobytes()
    assert running([np.asarray(3), np.asarray(4)]) == 7  # a count
    values = -np.arange(20.0)
    assert [module.exceeds(values, np.where(values == last, -last, 19.0)) for last in (-19.0, 0.0)] == [False, False]
    assert module.exceeds(values, np.full(20, 18.5))
    # Other shapes and more than words can hold are refused.
    total = ReproducibleSum((2,))
    total.add(np.array([1.0, 2.0]))
    with refused(ValueError, "(3,)", "(2,)"):
        total.add(np.zeros(3))
    np.testing.assert_array_equal(total.total(), [1.0, 2.0])


@pytest.mark.parametrize("most", [2**9, pytest.param(MAX_ADDENDS, marks=pytest.mark.nightly)])
def test_words_hold_as_many_addends_as_are_allowed(most, monkeypatch):
    monkeypatch.setattr(module, "MAX_ADDENDS", most)
    total, one = ReproducibleSum((1,)), np.array([2.0**module.DIGIT_BITS])
    for _ in range(most):
        total.add(one)
    assert total.total() == most * 2.0**module.DIGIT_BITS
    with pytest.raises(OverflowError):
        total.add(one)


def whole(numbers, exponent=400):
    """Return exact sums, as fixed point has them."""
    exact = [sum(Fraction(float(part)) for part in parts) * 2**exponent for parts in zip(*numbers, strict=True)]
    assert all(number.denominator == 1 for number in exact)
    return np.array([int(number) for number in exact], object), np.full(len(exact), exponent, np.int32)


def test_products_of_means_have_thirty_digits_and_sums_all():
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(40) + 1e8
    head = Head(12345, mean, np.spacing(mean) * rng.uniform(-0.5, 0.5, 40))
    means = np.array([held((head.mean, head.remainder), i) for i in range(40)])
    products, size, (i, j) = MeanProducts(head), packed_size(40), np.triu_indices(40)
    triangle = products.block(0, size)
    off = np.array([held(triangle, place) for place in range(size)]) / (head.n * means[i] * means[j]) - 1
    assert np.abs(off).max() < Fraction(1, 2**100)
    for step in (1, 7, 700, 10_000):
        blocks = [products.block(start, min(start + step, size)) for start in range(0, size, step)]
        np.testing.assert_array_equal(np.concatenate(blocks, axis=1), triangle)
    np.testing.assert_array_equal([products.high, products.low], triangle)
    totals, squares = map(whole, module.uncentred_parts(head))
    np.testing.assert_array_equal([totals[0], squares[0]], 2**400 * head.n * np.array([means, means**2]))
    back = module.pooled_head(head.n, totals)
    assert back.n == head.n
    np.testing.assert_array_equal([back.mean, back.remainder], [head.mean, head.remainder])


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_one_sum_gives_the_scatter_between_parties(offset):
    """float64 alone would lose every digit at an offset of 1e12; a constant has no variance at all."""
    means, layout = np.array([offset, offset, offset + 0.1]), Layout({"x": np.full(packed_size(3), 2.0**140)}, words=3)
    heads = [Head(n, means + [shift, -shift, 0.0], np.zeros(3)) for n, shift in ((10, 1.0), (30, -2.0))]
    words = sum(layout.encode({"x": own.high}, {"x": own.low}) for own in map(MeanProducts, heads))
    parts = [module.uncentred_parts(head) for head in heads]
    totals, squares = ([*one, *other] for one, other in zip(*parts, strict=True))
    pooled, between = module.pooled_head(40, whole(totals)), 10 * 30 / 40 * 3.0**2
    np.testing.assert_allclose(pooled.mean, means + [-1.25, 1.25, 0.0], rtol=1e-15)
    scatter = module.centre_scatter(tuple(part["x"] for part in layout.decode(words)), pooled)
    np.testing.assert_allclose(scatter[[0, 1, 3]], [between, -between, between], rtol=1e-9)
    for exponent in (400, 1000):
        diagonal = module.pooled_diagonal(40, whole(totals), whole(squares, exponent))
        np.testing.assert_allclose(diagonal, [between, between, 0.0], rtol=1e-14, atol=0)
