"""The number of Python calls of whole runs, which no load of a machine changes."""

import logging
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpca_flwr import run


def _count_calls(program: Callable[[], object]) -> int:
    """Count the calls of Python functions in all threads of a program that has run once before."""
    calls = []
    logging.disable(logging.INFO)  # whose lines other tests ask for
    program()
    threading.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        program()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        logging.disable(logging.NOTSET)
    return len(calls)


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 13_700), ({"secure_aggregation": True, "bound": 20.0}, 37_000), ({"method": "qr-pca"}, 13_800)],
    ids=["clear", "masked", "qr-pca"],
)
def test_run_of_ten_parties_takes_few_calls(options, most):
    """A loop over rows, a parse of each message twice, or a check in each round would multiply them."""
    parties = np.array_split(load_digits().data, 10)
    options = {"method": "p-cov", "n_components": 10, "progress": False, **options}
    assert _count_calls(lambda: run(parties=parties, **options)) <= most


def test_party_of_three_messages_takes_few_calls():
    parties = np.array_split(load_digits().data, 10)
    few, more = (_count_calls(lambda n=n: run("p-cov", parties[:n], progress=False)) for n in (5, 6))
    assert more - few <= 1_300


def test_notes_on_columns_take_few_calls():
    """Columns with far values are looked at one by one: each costs hundreds of calls."""
    rng = np.random.default_rng(0)
    parties = np.array_split(np.where(rng.random((2000, 400)) < 0.7, 0.0, rng.integers(1, 256, (2000, 400))), 5)
    assert _count_calls(lambda: run("p-cov", parties, n_components=5, progress=False)) <= 8_600
