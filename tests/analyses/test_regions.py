"""Regions that merge their moments: the components of one federation of all their sites."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from fedpca_flwr import SecondMoments, analyses
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from simulations import run
from tests.families import cut, rows

SITES = cut(rows(600) + np.arange(12), 100, 90, 80, 70, 65, 60, 55, 45, 35)


@pytest.mark.parametrize("secure", [{}, {"secure_aggregation": True, "bound": 50.0}], ids=["clear", "secure"])
def test_three_regions_of_three_sites_are_one_federation(secure, tmp_path):
    for region in range(3):
        model = run("p-cov", SITES[3 * region : 3 * region + 3], n_components=4, keep="moments", **secure)
        model.moments_.save(tmp_path / f"{region}.npz")
    regions = [SecondMoments.load(tmp_path / f"{region}.npz") for region in range(3)]
    merged = analyses.pca(reduce(SecondMoments.merge, regions), 4)
    together = run("p-cov", SITES, n_components=4, **secure)
    assert principal_angles(merged, together).max <= 1e-12
    assert principal_angles(merged, pooled_pca(np.vstack(SITES), 4)).max <= 1e-9
    np.testing.assert_allclose(merged.explained_variance_, together.explained_variance_, rtol=1e-12)
    assert merged.n_samples_ == 600
