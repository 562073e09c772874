"""Noise of design note 001's private moments: its formula, with sensitivities that hold, for what is released."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from fedpca_flwr import run
from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS, integer_products, integer_sum
from fedpca_flwr.strategies.dp_pca.party import DPOptions
from tests.papers.partitions import PARTITIONS, ROWS

CLIP, DELTA = 5.0, 1e-5
UNITS = {"sum": CLIP / GRID_STEPS, "products": (CLIP / GRID_STEPS) ** 2}


def note_sigma(sensitivity, epsilon):
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def delta_of(multiplier, epsilon):
    """Return the exact delta of Gaussian noise, from the two tails of the privacy loss."""
    shift, loss = 1 / (2 * multiplier), epsilon * multiplier
    return norm.cdf(shift - loss) - math.exp(epsilon) * norm.cdf(-shift - loss)


def deviations(**options):
    """Return the deviations of the noise in the sum of rows and in that of their products, in units of the data."""
    noise = DPOptions(variant="paper", **options).noise("joint").deviations
    return {name: noise[name] * unit for name, unit in UNITS.items()}


@pytest.mark.parametrize(("epsilon", "holds"), [(0.5, True), (1.0, True), (10.0, False)])
def test_the_multiplier_is_the_notes_where_it_is_private(epsilon, holds):
    parties = [ROWS[part] for part in PARTITIONS["iid"]]
    model = run("dp-pca", parties, n_components=3, variant="paper", epsilon=epsilon, noise_seed=1)
    multiplier, formula = model.log["measured"]["noise_multiplier_joint"], note_sigma(1, epsilon)
    assert (delta_of(formula, epsilon) <= DELTA) == holds
    assert multiplier == pytest.approx(formula, rel=1e-12) if holds else multiplier > formula
    assert delta_of(multiplier, epsilon) <= DELTA * (1 + 1e-9)
    assert model.log["measured"]["clipping_norm_joint"] == CLIP


def test_the_noise_is_the_notes_formula_with_sensitivities_that_hold():
    """A replaced row moves the sum by 2 c, the products by sqrt(2) c^2, and both not at once: by 1.25 instead of 1.41.

    With t the cosine of the two rows the squares are (2 - 2 t) c^2 and (2 - 2 t^2) c^4.
    """
    t = np.linspace(-1, 1, 200_001)
    together = np.sqrt(((2 - 2 * t) / 4 + (2 - 2 * t**2) / 2).max())
    assert together == pytest.approx(1.25)
    expected = {"sum": together * note_sigma(2 * CLIP, 1), "products": together * note_sigma(2**0.5 * CLIP**2, 1)}
    assert deviations() == pytest.approx(expected, rel=1e-3)  # deviations are whole steps, rounded up


def test_no_neighbour_exceeds_what_the_noise_is_made_for():
    noise, others = deviations(), np.random.default_rng(0).standard_normal((5, 3))
    twice = (2 - np.eye(3)[np.triu_indices(3)]) ** 0.5  # two halves of a symmetric matrix, at half the variance each

    def change(flat):
        """Return the distance of neighbours' sums, on the grid, in deviations of the noise."""
        first, second = (np.vstack([others, row]) for row in flat.reshape(2, 1, 3))
        sums, products = (
            unit * (statistic(first, np.zeros(3), CLIP) - statistic(second, np.zeros(3), CLIP))
            for statistic, unit in zip((integer_sum, integer_products), UNITS.values(), strict=True)
        )
        return math.hypot(np.linalg.norm(sums) / noise["sum"], np.linalg.norm(products * twice) / noise["products"])

    starts = np.random.default_rng(1).standard_normal((2, 6)) * 9
    largest = max(-minimize(lambda x: -change(x), start, method="Powell").fun for start in starts)
    assert 0.99 < largest * note_sigma(1, 1) <= 1
