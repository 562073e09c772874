"""What a strategy says of its own run."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import EXACT
from strategies import build_strategy, run_config_of

OVER = float(np.nextafter(EXACT, 1))


@pytest.mark.parametrize(
    ("method", "found", "exact"),
    [
        ("sub-it", {"certificate": 0.0}, True),
        ("sub-it", {"certificate": EXACT}, True),
        ("sub-it", {"certificate": OVER}, False),
        ("sub-it", {"certificate": 90.0}, False),
        ("ap-cov", {"certificate": 0.0}, False),
        ("qr-pca", {}, True),
        ("qr-pca rank=4", {}, False),
        ("qr-pca wire='float32'", {}, False),
        ("compressed tolerance=1e-6", {"proven_angle": EXACT, "values_hold": True}, True),
        ("compressed tolerance=1.0", {"proven_angle": EXACT, "values_hold": True}, True),
        ("compressed tolerance=0.0", {"proven_angle": 0.0, "values_hold": True}, False),
        ("compressed tolerance=1e-6", {"proven_angle": EXACT, "values_hold": False}, False),
        ("compressed tolerance=1e-6", {"proven_angle": OVER, "values_hold": True}, False),
    ],
)
def test_exact_is_what_is_neither_cut_nor_rounded_and_certified_to_a_millionth_of_a_degree(method, found, exact):
    strategy = build_strategy(run_config_of({"method": method, "n-components": 2, "clients": 3}))
    vars(strategy).update(found)
    assert strategy.exact is exact
    assert EXACT == 1e-6
