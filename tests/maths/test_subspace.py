"""Angles that arccos cannot see."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import principal_angles, projector_distance


@pytest.mark.parametrize("angle", [1e-9, 1e-3, 30.0, 90.0])
def test_a_rotation_by_an_angle_has_that_angle(angle):
    a, t = np.eye(4)[:, :2], np.radians(angle)
    b = np.array([[1, 0], [0, np.cos(t)], [0, np.sin(t)], [0, 0]])
    np.testing.assert_allclose(principal_angles(a, b).max(), angle, rtol=1e-7)
    np.testing.assert_allclose(projector_distance(a, b), np.sin(t), rtol=1e-7)


def test_signs_and_rotations_within_the_subspace_do_not_matter():
    a = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0]
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    assert principal_angles(a, -a @ turn).max() < 1e-12
