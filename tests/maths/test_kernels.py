"""What is wrong with a kernel matrix, at most."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.columns import Kernel, centred


def test_the_error_of_a_kernel_is_that_of_both_triangles():
    """Entries of 4 rows are each off by 1/2, with signs that centring leaves as they are: spectral norm 2."""
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    wrong = np.linalg.norm(centred(np.outer(signs, signs) / 2), 2)
    assert wrong == pytest.approx(2)
    assert wrong <= Kernel("linear").error(np.zeros(10), 4, 0.5) <= 2 * wrong


def test_the_error_of_a_kernel_is_that_of_the_steeper_side():
    """exp(-x) at distances of 1 that may be off by a half changes more below than above."""
    below = np.exp(-0.5) - np.exp(-1.0)
    assert Kernel("rbf", gamma=1.0).error(np.ones(3), 3, 0.5) >= np.sqrt(6) * below


def test_a_polynomial_of_a_negative_constant_may_have_negative_eigenvalues():
    assert [Kernel("polynomial", coef0=c).semidefinite for c in (-1.0, 0.0, 1.0)] == [False, True, True]
    assert not Kernel("sigmoid").semidefinite
