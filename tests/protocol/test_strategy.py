"""What a strategy says of its own run."""

from __future__ import annotations

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
