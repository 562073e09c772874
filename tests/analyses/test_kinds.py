"""Every analysis says what it is of when it is given something else."""

import numpy as np
import pytest

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import rows
from tests.refusals import refused

X = rows(60, 4)
MOMENTS = SecondMoments.of(X)
MODEL = analyses.pca(MOMENTS, 2)

OF_MODELS = {
    "categories", "clusters", "drift", "harmonised", "highly_variable", "outliers", "projected", "variance_intervals",
    "whitened",
}  # fmt: skip
ANALYSES = [name for name in analyses.__all__ if not isinstance(getattr(analyses, name), type)]


@pytest.mark.parametrize("name", ANALYSES)
def test_moments_and_models_are_not_taken_for_each_other(name):
    """The faults: AttributeErrors of whatever came first."""
    analysis, of_models = getattr(analyses, name), name in OF_MODELS
    kind, word = ("PCAModel", "model") if of_models else ("SecondMoments", "moments")
    for given in (None, X, MOMENTS if of_models else MODEL):
        with refused(ConfigError, f"'{word}'", type(given).__name__, kind):
            analysis(given, [0], [1])
    with refused(ConfigError, f"'{word}'", "str"):
        analysis(**{word: "model.npz"})


@pytest.mark.parametrize("analysis", [analyses.partial_least_squares, analyses.principal_component_regression])
@pytest.mark.parametrize("k", [None, "2", 2.0, True, 0, 4])
def test_a_number_of_directions_is_a_number(analysis, k):
    with refused(ConfigError, "'k'", repr(k), 1, 3):
        analysis(MOMENTS, [3], k=k)


@pytest.mark.parametrize("draws", [None, "x", 0, 1.5])
def test_a_number_of_draws_is_a_number(draws):
    with refused(ConfigError, "'draws'"):
        analyses.how_many(MOMENTS, draws=draws)


def test_moments_may_be_named():
    np.testing.assert_array_equal(analyses.pca(moments=MOMENTS, n_components=2).components_, MODEL.components_)
