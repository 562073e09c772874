"""What a strategy says of its own run."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import cut, rows
from tests.harness import finish, server_of
from tests.refusals import refused

OVER = float(np.nextafter(EXACT_ANGLE_DEGREES, 1))


@pytest.mark.parametrize(
    ("method", "angle", "certified", "exact"),
    [
        *(("sub-it", angle, True, angle <= EXACT_ANGLE_DEGREES) for angle in (0.0, EXACT_ANGLE_DEGREES, OVER, 90.0)),
        ("ap-cov", 0.0, True, False),
        *((method, None, True, method == "qr-pca") for method in ("qr-pca", "qr-pca rank=4", "qr-pca wire='float32'")),
        *((f"compressed tolerance={most}", EXACT_ANGLE_DEGREES, True, True) for most in (1e-6, 1.0)),
        ("compressed tolerance=0.0", 0.0, True, False),
        ("compressed tolerance=1e-6", EXACT_ANGLE_DEGREES, False, False),
        ("compressed tolerance=1e-6", OVER, True, False),
    ],
)
def test_exact_models_are_certified_to_1e_6_degrees(method, angle, certified, exact):
    strategy = FACTORY.strategy(METHODS.run_config({"method": method, "n-components": 2, "clients": 3}))
    if method.startswith("compressed"):
        vars(strategy).update(proven_angle_degrees=angle, variances_certified=certified)
    elif angle is not None:
        strategy.certificate = angle
    assert strategy.exact is exact
    assert EXACT_ANGLE_DEGREES == 1e-6


@pytest.mark.parametrize(("k", "keep", "columns"), [(2, "nothing", 2), ("auto", "moments", 7), (0.9, "parties", 7)])
def test_a_models_memory_is_its_arrays(k, keep, columns):
    """Moments are a packed triangle, sums and their low halves, of 7 features each; the log takes a MiB."""
    strategy = FACTORY.strategy(METHODS.run_config({"method": "p-cov", "n-components": k, "clients": 3, "keep": keep}))
    strategy.quorum.features = 7
    matrices = {"nothing": 0, "moments": 1, "parties": 4}[keep]
    assert strategy.model_bytes == 8 * 7 * (columns + 8 + 10 * matrices) + 2**20


def test_a_model_follows_the_last_round():
    server = server_of("p-cov", cut(rows(60), 40, 20), n_components=2)
    strategy, seen = server.strategy, []
    strategy.after_round = lambda: seen.append(strategy.done)
    model = finish(server)
    assert [entry["round"] for entry in model.log["rounds"]] == [1, 2]
    assert seen == [False, True]
    strategy.done = False
    with refused(ContractError, "p-cov", 2):
        _ = strategy.model
