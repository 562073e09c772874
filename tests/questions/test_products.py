"""Products of the pooled scatter with blocks of vectors, opened in fixed point."""

import numpy as np

from fedpca_flwr.questions.products import OpenedProducts


def test_a_products_bound_holds_for_its_coarsest_block():
    """The fault: the bound of the last block stood for all blocks."""
    products, unit = OpenedProducts(3), np.eye(3)
    for column, bound in ((0, 1e-3), (1, 1e-9)):
        products.add(unit[:, column : column + 1], unit[:, column : column + 1], np.full((3, 1), bound))
    _, bounds = products.product(np.array([[2.0]]), np.array([[0.5]]))
    assert (bounds >= 2e-3).all()
    assert bounds.shape == (3, 1)
