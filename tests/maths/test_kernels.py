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
