"""Laws of moments: pooling is associative, exact at any offset, and the same as NumPy's, by however many threads."""

import threading
from concurrent import futures
from fractions import Fraction
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr.maths import moments as module
from fedpca_flwr.maths import rows as row_tools
from fedpca_flwr.maths.moments import Head, Moments, head_and_diagonal, packed_size, safe_deviation, unpack_symmetric
from fedpca_flwr.maths.sums import pool
from tests.families import cut, rows
from tests.harness import finish, peak_of, server_of


def dense(moments):
    return unpack_symmetric(moments.scatter, moments.n_features)


def test_means_scatters_and_sums_of_two_keep_what_float64_cannot():
    """At offset 1e8 a rounded mean is off by 1e-8; mean + remainder is not."""
    X = np.round(rows(300, 3) * 1024) + 1e8
    moments = pool(Moments.from_rows(part) for part in cut(X, 100, 150, 50))
    exact = (X - 1e8).sum(axis=0) / 300  # whole numbers: summed without error
    np.testing.assert_allclose((moments.mean - 1e8) + moments.remainder, exact, rtol=0, atol=1e-12)
    # Three rows whose mean lies half a unit above what float64 holds, about a centre two below: 2.5 away.
    moments = Moments(3, np.array([2.0**53]), np.array([0.5]), np.array([2.0]))
    np.testing.assert_array_equal(moments.scatter_about(np.array([2.0**53 - 2])), [2 + 3 * 2.5**2])
    halved = module.rescale_features(moments, np.array([2.0]))
    assert (halved.mean - 2.0**52 + halved.remainder, halved.scatter) == (0.25, 0.5)
    # Without a row that lies 1.5 above their mean, that of four is half a unit less, and their scatter 4/3 of 1.5^2.
    four = Moments(4, np.array([2.0**53]), np.array([0.5]), np.array([6.0]))
    left = module.subtract_part(four, Moments(1, np.array([2.0**53 + 2]), np.array([0.0]), np.array([0.0])))
    assert (left.count, left.mean - 2.0**53 + left.remainder, left.scatter) == (3, 0.0, 3.0)
    # Rows 0 and 1, the second of them twice: a third below the mean that float64 holds.
    own = Moments.from_rows(row_tools.weight_rows(2.0**52 + np.array([[0.0], [1.0]]), np.array([1.0, 2.0])))
    np.testing.assert_allclose([own.mean - 2.0**52 + own.remainder, own.scatter], 2 / 3, rtol=1e-12)
    heads = [Head(3, np.zeros(1), np.array([remainder])) for remainder in (0.0, 1e-20)]
    assert module.head_order(heads[0]) != module.head_order(heads[1])
    # Rows 1 and 3 about 1.5, whose mean is half a unit above: their scatter is 2, not the 2.5 about 1.5.
    head = Head(2, np.array([1.5]), np.array([0.5]))
    np.testing.assert_array_equal(module.scatter_product(np.array([[1.0], [3.0]]), head, np.array([[4.0]])), [[8.0]])
    for a, b in ((2.0**60, 0.1), (0.1, 2.0**60), (1.0, 2.0**53), (0.1, 0.2), (-1e8, 1e8 + 1e-7)):
        high, low = module.two_sum(np.array([a]), np.array([b]))
        assert (high[0], Fraction(high[0]) + Fraction(low[0])) == (a + b, Fraction(a) + Fraction(b))


def test_moments_are_numpys_for_any_chunks_and_exact_for_pixels(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 20), dtype=np.uint8)
    pixels[:, 3] = 255  # constant
    pixels[:, 4] = np.where(np.arange(5000) % 2, 255, 0)  # the largest variance there is
    pixels[:4000, 5:15] = 0
    pixels[4000:, 5:15] |= 192  # bright rows at the end: sums beyond 2^24, so blocks must be halved
    exact, floats = Moments.from_rows(pixels), Moments.from_rows(pixels.astype(np.float64))
    np.testing.assert_allclose(dense(exact), dense(floats), rtol=1e-12, atol=1e-6)
    integers = pixels.astype(np.int64) * 5000 - pixels.sum(axis=0, dtype=np.int64)
    np.testing.assert_allclose(dense(exact), integers.T @ integers / 5000**2, rtol=1e-14, atol=1e-9)
    np.testing.assert_array_equal(dense(exact)[3], 0)
    parts = list(map(Moments.from_rows, cut(rows(300), 100, 100, 60, 40)))
    one, other = pool(parts), pool(parts[::-1])
    assert (one.scatter.tobytes(), one.mean.tobytes()) == (other.scatter.tobytes(), other.mean.tobytes())
    parts = [Moments.from_rows(rows(50)), Moments.from_rows(rows(50) + 1)]
    kept, whole = pool(parts, within=True), pool(parts)
    np.testing.assert_array_equal(kept.mean, whole.mean)
    np.testing.assert_allclose(dense(whole) - dense(kept), np.full((12, 12), 100 * 0.25), rtol=1e-9)
    X = rows(200) + 3
    moments = Moments.from_rows(X)
    np.testing.assert_allclose(dense(moments), np.cov(X, rowvar=False, ddof=0) * 200, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(moments.mean, X.mean(axis=0), rtol=1e-14)
    assert moments.count == 200
    np.testing.assert_allclose(dense(moments.about_zero()), X.T @ X, rtol=1e-12)
    for own in (np.round(rows(200) * 1000).astype(dtype) for dtype in (np.int16, np.int64, np.float32, bool)):
        found, expected = (dense(Moments.from_rows(one)) for one in (own, own.astype(float)))
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    X = rows(1000, 5) + np.linspace(0, 50, 1000)[:, None]  # the mean drifts from chunk to chunk
    whole = Moments.from_rows(X)
    for chunk in (64 * 5, 100 * 5):  # these change nothing but rounding
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
        np.testing.assert_allclose(dense(Moments.from_rows(X)), dense(whole), rtol=1e-12)


def test_triangles_are_packed_row_by_row():
    S = dense(Moments.from_rows(rows(50, 7)))
    packed = S[np.triu_indices(7)]
    np.testing.assert_array_equal(module.pack(np.asfortranarray(S)), packed)
    np.testing.assert_array_equal(packed[module.diagonal_positions(7)], S.diagonal())
    np.testing.assert_array_equal(np.tril(module.unpack(packed, 7)), np.tril(S))
    assert packed_size(7) == len(packed)
    np.testing.assert_array_equal(unpack_symmetric(np.array([1.0, 2.0, 3.0]), 2), [[1, 2], [2, 3]])
    V = np.array([[3.0, 0.0, 2.0**-900], [-5.0, 0.0, 0.0]])
    scaled, exponents = module.scale_columns(V)
    np.testing.assert_array_equal(exponents, [3, 0, -899])
    np.testing.assert_array_equal(scaled, [[3 / 8, 0, 0.5], [-5 / 8, 0, 0]])
    np.testing.assert_array_equal(np.ldexp(scaled, exponents), V)
    for d in (1, 2, 3, 9):  # in their own memory too
        packed = module.empty_packed(d)
        packed[:] = np.arange(packed_size(d))
        expected, matrix = module.unpack(packed, d), module.unpack(packed, d, overwrite=True)
        np.testing.assert_array_equal(matrix, expected)
        assert np.shares_memory(matrix, packed)


@pytest.mark.parametrize("chunk_rows", [10, 100])
def test_moments_of_rows_need_little_beside_a_matrix(chunk_rows, monkeypatch):
    d = 1400  # two stripes
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk_rows * d)
    X = rows(50, d)
    Moments.from_rows(X)
    assert peak_of(lambda: Moments.from_rows(X)) < 3.3 * 8 * packed_size(d)


def test_a_constant_feature_has_deviation_one():
    X = np.where(np.arange(4) == 1, 0.1, rows(100, 4))
    moments = Moments.from_rows(X)
    deviation = safe_deviation(moments.diagonal(), moments.count, moments.mean)
    assert deviation[1] == 1
    np.testing.assert_allclose(np.delete(deviation, 1), np.delete(X.std(axis=0), 1), rtol=1e-12)
    # A mean of n values of 5 may be off by n roundings of 5.
    n, rounding = 1000, 1000 * 5 * 2.0**-52
    found = module.constant_features(n * (np.array([0.5, 2.0]) * rounding) ** 2, n, np.full(2, 5.0))
    np.testing.assert_array_equal(found, [True, False])
    np.testing.assert_array_equal(safe_deviation(np.array([0.0, 8.0]), 2, np.zeros(2)), [1, 2])
    # Of indicators it is the root of the share of ones, and of one that does not vary 1.
    unit = safe_deviation(np.array([8.0, 0.5, 0.0]), 2, np.array([3.0, 0.25, 0.49]), 2)
    np.testing.assert_array_equal(unit, [2, 0.5, 1])
    least = (4 * 2.0**-52) ** 2 / 8  # by which one value that differs in its last bit varies about a mean of 4
    assert module.varying_features(np.array([least, 0.0, 1e3 * (4 * 2.0**-104) ** 2]), np.full(3, 4.0)).sum() == 1
    for value, n in product((0.1, 1 / 3, 1e8 + 0.1, -7e-9), (3, 15, 17, 100, 1000)):
        X = np.column_stack([np.full(n, value), rows(n, 3)])
        for diagonal in (Moments.from_rows(X).diagonal(), head_and_diagonal(X)[1]):
            assert 0 <= diagonal[0] <= 1e-28 * value**2


BYTES = np.random.default_rng(0).integers(0, 256, (3000, 300), dtype=np.uint8)
KINDS = {"bytes": BYTES, "numbers": BYTES / 7 - 3, "weighted": row_tools.weight_rows(BYTES / 7, np.arange(3000) % 4)}


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 300 * 500)
    monkeypatch.setattr(module, "STRIPE_COLUMNS", 128)


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_results_have_the_same_bits_with_any_number_of_threads(data, small_chunks):
    V = np.random.default_rng(1).standard_normal((300, 4))

    def results(threads):
        own = Moments.from_rows(data, threads)
        head, diagonal = head_and_diagonal(data, threads)
        return [*own.head, own.scatter, *head, diagonal, module.scatter_product(data, head, V, threads)]

    one = results(1)
    np.testing.assert_allclose(unpack_symmetric(one[3], 300) @ V, one[-1], rtol=1e-10, atol=1e-6)
    np.testing.assert_allclose(unpack_symmetric(one[3], 300).diagonal(), one[-2], rtol=1e-10)
    for threads in (2, 4):
        assert all(np.array_equal(a, b) for a, b in zip(one, results(threads), strict=True))


@pytest.mark.parametrize("threads", [2, 3])
def test_parts_come_in_order_and_one_more_waits_than_threads(threads):
    together, results, ahead = threading.Barrier(threads, timeout=60), [], []

    def parts():
        for part in range(6 * threads):
            ahead.append(part - len(results))
            yield part

    results.extend(row_tools.in_order(lambda part: (together.wait(), part)[1], parts(), threads))
    assert (results, max(ahead)) == (list(range(6 * threads)), threads)
    with pytest.raises(ZeroDivisionError):  # a fault in a thread is the caller's
        list(row_tools.in_order(lambda part: 1 // part, [1, 0, 1], threads))


@pytest.mark.parametrize("method", ["p-cov", "sub-it", "compressed"])
def test_a_site_may_set_its_threads_and_the_model_is_the_same(method, small_chunks, monkeypatch):
    pool = Mock(side_effect=futures.ThreadPoolExecutor)
    monkeypatch.setattr(row_tools, "ThreadPoolExecutor", pool)
    parties = np.split(BYTES[:, :40] / 7, [100, 2000])
    one, three = (finish(server_of(method, parties, n_components=3, site={"threads": n})) for n in (1, 3))
    assert {started.args for started in pool.call_args_list} == {(3,)}
    assert np.array_equal(one.components_, three.components_)
