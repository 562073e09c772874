"""What a strategy says of its own run."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import EXACT
from strategies import build_strategy, run_config_of


@pytest.mark.parametrize(
    ("method", "degrees", "exact"),
    [
        ("sub-it", 0.0, True),
        ("sub-it", EXACT, True),
        ("sub-it", float(np.nextafter(EXACT, 1)), False),
        ("sub-it", 90.0, False),
        ("ap-cov", 0.0, False),
    ],
)
def test_exact_is_what_is_certified_to_a_millionth_of_a_degree(method, degrees, exact):
    strategy = build_strategy(run_config_of({"method": method, "n-components": 2, "clients": 3}))
    strategy.certificate = degrees
    assert strategy.exact is exact
    assert EXACT == 1e-6


@pytest.mark.parametrize(
    ("method", "exact"), [("qr-pca", True), ("qr-pca rank=4", False), ("qr-pca wire='float32'", False)]
)
def test_a_factor_that_is_cut_or_rounded_is_not_exact(method, exact):
    assert build_strategy(run_config_of({"method": method, "n-components": 2, "clients": 3})).exact is exact


@pytest.mark.parametrize(
    ("tolerance", "degrees", "values_hold", "exact"),
    [
        (1e-6, EXACT, True, True),
        (1.0, EXACT, True, True),
        (0.0, 0.0, True, False),
        (1e-6, EXACT, False, False),
        (1e-6, float(np.nextafter(EXACT, 1)), True, False),
    ],
)
def test_a_compressed_run_is_exact_where_that_was_wanted_and_both_bounds_hold(tolerance, degrees, values_hold, exact):
    method = f"compressed tolerance={tolerance}"
    strategy = build_strategy(run_config_of({"method": method, "n-components": 2, "clients": 3}))
    vars(strategy).update(proven_angle=degrees, values_hold=values_hold)
    assert strategy.exact is exact
