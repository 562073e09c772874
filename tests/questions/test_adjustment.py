"""Where covariates may stand."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.questions.adjustment import _places, covariate_places
from tests.refusals import refused

TABLE = SimpleNamespace(rows=np.zeros((2, 3)), names=("age", "sex", "weight"))


def test_covariates_are_named_or_numbered_and_leave_one_column():
    np.testing.assert_array_equal(covariate_places(["weight", "0"], TABLE), [2, 0])
    with refused(ConfigError, "'adjust-for'", "age, 0"):
        covariate_places(["age", "0"], TABLE)
    with refused(ConfigError, "'adjust-for'", 3):
        _places("0 1 2", 3, 3)


@pytest.mark.parametrize(
    ("told", "expected"),
    [("", 1), ("3", 1), ("1 1", 2), ("0", 2), ("0 1", 1), ("1 " + "9" * 4000, 2), ("1 " + "0" * 4000 + "1", 2)],
)
def test_places_that_cannot_be_are_refused(told, expected):
    """The fault: an OverflowError of a number beyond 64 bits."""
    np.testing.assert_array_equal(_places("2 0", 2, 3), [2, 0])
    with refused(ConfigError, expected, 3, *([f"'{told}'"] if len(told) < 9 else [])):
        _places(told, expected, 3)
