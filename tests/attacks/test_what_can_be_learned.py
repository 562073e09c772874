"""What docs/security says can be learned, learned: an attack that fails would make the page wrong."""

import numpy as np
from flwr.common import parameters_to_ndarrays

from fedpca_flwr.maths.moments import unpack_symmetric
from tests.families import rows
from tests.harness import finish, server_of, tamper

PATIENTS = np.round(rows(12, 8) * 10 + 50)


def seen(parties):
    """Return what the first party sends first."""
    server, caught = server_of("p-cov", parties, n_components=2), []
    tamper(server, 0, lambda reply: caught.append(parameters_to_ndarrays(reply.parameters)) or reply)
    finish(server)
    return caught[0]


def test_moments_of_one_row_and_of_two_are_the_rows():
    _, mean, _, scatter = seen([PATIENTS[:1], rows(30, 8)])
    np.testing.assert_array_equal(mean, PATIENTS[0])
    assert not scatter.any()
    _, mean, _, scatter = seen([PATIENTS[:2], rows(30, 8)])
    values, vectors = np.linalg.eigh(unpack_symmetric(scatter, 8))
    half = vectors[:, -1] * np.sqrt(values[-1] / 2)
    guessed = sorted([tuple(np.round(mean + half)), tuple(np.round(mean - half))])
    assert guessed == sorted(map(tuple, PATIENTS[:2]))


def test_a_covariance_of_few_rows_reveals_membership():
    """With fewer rows than features, exactly the rows' own affine space has variance."""
    few = PATIENTS[:5]
    _, mean, _, scatter = seen([few, rows(30, 8)])
    values, vectors = np.linalg.eigh(unpack_symmetric(scatter, 8))
    empty = vectors[:, values < 1e-9 * values[-1]]
    assert np.linalg.norm((few - mean) @ empty, axis=1).max() < 1e-6
    assert np.linalg.norm((PATIENTS[5:] - mean) @ empty, axis=1).min() > 1


WORLDS = [np.vstack([PATIENTS[:4], PATIENTS[other]]) for other in (6, 5)]
"""All rows but one that the attacker knows, and one person or another."""


def test_the_moments_of_few_rows_tell_who_is_among_them():
    """What noise hides of this is attacked in test_mironov.py."""
    here, there, asked = (seen([data, rows(30, 8)]) for data in (*WORLDS, WORLDS[0][::-1]))
    distances = [sum(np.square(a - b).sum() for a, b in zip(asked, world, strict=True)) for world in (here, there)]
    assert distances[0] < 1e-9 * distances[1]
