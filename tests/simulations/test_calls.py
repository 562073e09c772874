"""The number of Python calls of whole runs, which no load of a machine changes."""

import logging
import sys
import threading

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpca_flwr import run

PARTIES = np.array_split(load_digits().data, 10)


def count_calls(parties, **options) -> int:
    """Count the calls of Python functions in all threads of a run that has run once before."""
    calls, options = [], {"method": "p-cov", "n_components": 10, "progress": False, **options}
    logging.disable(logging.INFO)  # whose lines other tests ask for
    run(parties=parties, **options)
    for of in (threading, sys):
        of.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        run(parties=parties, **options)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        logging.disable(logging.NOTSET)
    return len(calls)


MASKED = {"secure_aggregation": True, "bound": 20.0}


@pytest.mark.parametrize(("options", "most"), [({}, 13_700), (MASKED, 37_000), ({"method": "qr-pca"}, 13_800)])
def test_run_of_ten_parties_takes_few_calls(options, most):
    """A loop over rows, a parse of each message twice, or a check in each round would multiply them."""
    assert count_calls(PARTIES, **options) <= most


def test_party_of_three_messages_takes_few_calls():
    assert count_calls(PARTIES[:6]) - count_calls(PARTIES[:5]) <= 1_300


def test_notes_on_columns_take_few_calls():
    """Columns with far values are looked at one by one: each costs hundreds of calls."""
    rng = np.random.default_rng(0)
    parties = np.array_split(np.where(rng.random((2000, 400)) < 0.7, 0.0, rng.integers(1, 256, (2000, 400))), 5)
    assert count_calls(parties, n_components=5) <= 8_600
