"""What docs/security says can be learned, learned: an attack that fails would make the page wrong."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import parameters_to_ndarrays

from fedpca_flwr.data.table import check_rows
from fedpca_flwr.maths.moments import diagonal_positions, unpack_symmetric
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.strategies.dp_pca.integer_sums import integer_products, integer_sum
from fedpca_flwr.strategies.dp_pca.party import DPOptions
from tests.families import rows
from tests.harness import finish, server_of, tamper

PATIENTS = np.round(rows(12, 8) * 10 + 50)


def seen(method, parties, **options):
    server, caught = server_of(method, parties, n_components=2, **options), []
    tamper(server, 0, lambda reply: caught.append(parameters_to_ndarrays(reply.parameters)) or reply)
    finish(server)
    return caught[0]


def test_moments_of_one_row_and_of_two_are_the_rows():
    _, mean, _, scatter = seen("p-cov", [PATIENTS[:1], rows(30, 8)])
    np.testing.assert_array_equal(mean, PATIENTS[0])
    assert not scatter.any()
    _, mean, _, scatter = seen("p-cov", [PATIENTS[:2], rows(30, 8)])
    values, vectors = np.linalg.eigh(unpack_symmetric(scatter, 8))
    half = vectors[:, -1] * np.sqrt(values[-1] / 2)
    guessed = sorted([tuple(np.round(mean + half)), tuple(np.round(mean - half))])
    assert guessed == sorted(map(tuple, PATIENTS[:2]))


def test_a_covariance_of_few_rows_reveals_membership():
    """With fewer rows than features, exactly the rows' own affine space has variance."""
    few = PATIENTS[:5]
    _, mean, _, scatter = seen("p-cov", [few, rows(30, 8)])
    values, vectors = np.linalg.eigh(unpack_symmetric(scatter, 8))
    empty = vectors[:, values < 1e-9 * values[-1]]
    assert np.linalg.norm((few - mean) @ empty, axis=1).max() < 1e-6
    assert np.linalg.norm((PATIENTS[5:] - mean) @ empty, axis=1).min() > 1


CENTRED = PATIENTS - 50
WORLDS = [np.vstack([CENTRED[:4], CENTRED[other]]) for other in (6, 5)]
"""All that the attacker knows, and one row or the other."""
CLIP = 21.0
"""No row of `CENTRED` is longer; the two in question are its longest."""


def replies(method, data, times=1, **options):
    """Return what a real client with these few rows sends first, in so many runs with noise of their own."""
    run_config = {"method": method, "n-components": 2, **{key.replace("_", "-"): v for key, v in options.items()}}
    phase = "moments" if method == "p-cov" else "joint"
    for seed in range(1, times + 1):
        own = {"noise-seed": seed} if method == "dp-pca" else {}  # the same in each run of this test
        node = {"partition-id": 0, "num-partitions": 2, "min-rows": 5}
        context = Context(seed, 1, node, RecordDict(), METHODS.run_config({**run_config, **own}))
        arrays, _, said = FACTORY.client(context, lambda node, config: check_rows(data)).fit([], {"phase": phase})
        assert "error" not in said
        yield arrays


def is_nearer_to_the_first(reply, worlds, deviations):
    """Return the likelihood ratio test for Gaussian noise of known deviations: no attack on this reply is better."""
    distances = [
        sum(float((((seen - true) / s) ** 2).sum()) for seen, true, s in zip(reply, world, deviations, strict=True))
        for world in worlds
    ]
    return distances[0] < distances[1]


def test_the_moments_of_few_rows_tell_who_is_among_them():
    worlds = [next(replies("p-cov", data)) for data in WORLDS]
    for inside, data in zip((True, False), WORLDS, strict=True):
        (reply,) = replies("p-cov", data[::-1])
        assert is_nearer_to_the_first(reply, worlds, [1.0] * 4) is inside


@pytest.mark.engine
@pytest.mark.parametrize(("epsilon", "times", "least", "most"), [(0.1, 200, -0.15, 0.15), (50.0, 40, 0.95, 1.0)])
def test_differential_privacy_hides_who_is_among_few_rows(epsilon, times, least, most):
    """The advantage over a coin is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): 0.05, and 1 (no protection)."""
    options = {"release": "joint", "relation": "replace-one", "clip": CLIP, "epsilon": epsilon}
    noise = DPOptions(**options).noise("joint")
    products = np.full(36, noise.deviations["products"] / np.sqrt(2))
    products[diagonal_positions(8)] = noise.deviations["products"]
    worlds = [[values(data, np.zeros(8), CLIP) for values in (integer_sum, integer_products)] for data in WORLDS]
    says = [
        np.mean([is_nearer_to_the_first(reply[1:], worlds, [noise.deviations["sum"], products]) for reply in many])
        for many in (replies("dp-pca", data, times=times, **options) for data in WORLDS)
    ]
    assert least <= says[0] - says[1] <= most
