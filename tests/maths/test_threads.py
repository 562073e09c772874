"""Threads share the work on rows, and nobody can tell from a result how many there were."""

import threading
from concurrent import futures

import numpy as np
import pytest

from fedpca_flwr.maths import moments, rows
from tests.harness import finish, server_of

BYTES = np.random.default_rng(0).integers(0, 256, (3000, 300), dtype=np.uint8)
KINDS = {
    "bytes": BYTES,
    "numbers": BYTES / 7 - 3,
    "weighted": rows.weighted(BYTES / 7, np.arange(3000) % 4),
}


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(moments, "CHUNK_ELEMENTS", 300 * 500)
    monkeypatch.setattr(moments, "WIDTH", 128)


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_results_have_the_same_bits_with_any_number_of_threads(data, small_chunks):
    V = np.random.default_rng(1).standard_normal((300, 4))

    def results(threads):
        own = moments.Moments.of(data, threads)
        head, diagonal = moments.head_and_diagonal(data, threads)
        product = moments.scatter_product(data, head, V, threads)
        return [*own.head, own.scatter, *head, diagonal, product]

    one = results(1)
    np.testing.assert_allclose(moments.symmetric(one[3], 300) @ V, one[-1], rtol=1e-10, atol=1e-6)
    for threads in (2, 4):
        assert all(np.array_equal(a, b) for a, b in zip(one, results(threads), strict=True))


def test_so_many_parts_are_worked_on_at_a_time_and_come_in_their_order():
    both = threading.Barrier(2, timeout=60)  # each of two waits for the other

    def work(part):
        both.wait()
        return part

    assert list(rows.in_order(work, range(6), 2)) == list(range(6))


def test_a_fault_in_a_thread_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        list(rows.in_order(lambda part: 1 // part, [1, 0, 1], 2))


@pytest.mark.parametrize("method", ["p-cov", "sub-it", "compressed"])
def test_a_site_may_set_its_threads_and_the_model_is_the_same(method, small_chunks, monkeypatch):
    started = []
    pool = futures.ThreadPoolExecutor
    monkeypatch.setattr(rows, "ThreadPoolExecutor", lambda threads: started.append(threads) or pool(threads))
    parties = np.split(BYTES[:, :40] / 7, [100, 2000])
    one, three = (
        finish(server_of(method, parties, n_components=3, site={"threads": threads})).components_ for threads in (1, 3)
    )
    assert set(started) == {3}
    assert np.array_equal(one, three)
