"""Genes that vary most among all cells, as scanpy finds them of the pooled cells."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError
from tests.families import cut
from tests.harness import fit
from tests.refusals import refused

RNG = np.random.default_rng(0)
ACTIVITY = RNG.gamma(0.3, 0.5, 300) * np.where(RNG.random((3, 300)) < 0.1, 8.0, 1.0)
COUNTS = RNG.poisson(ACTIVITY[RNG.integers(3, size=240)]).astype(float)
COUNTS[:, 7] = 0.0
NORMALISED = COUNTS * (100 / COUNTS.sum(axis=1).clip(min=1))[:, None]


def as_scanpy(X, top):
    """Return the steps of scanpy's flavour seurat (its _highly_variable_genes.py), with pandas."""
    mean, variance = X.mean(axis=0), np.where(np.ptp(X, axis=0) > 0, X.var(axis=0, ddof=1), 0.0)
    mean[mean == 0] = 1e-12
    dispersion = variance / mean
    dispersion[dispersion == 0] = np.nan
    table = pd.DataFrame({"mean": np.log1p(mean), "dispersion": np.log(dispersion)})
    table["bin"] = pd.cut(table["mean"], bins=20)
    grouped = table.groupby("bin", observed=True)["dispersion"]
    middle, deviation = grouped.transform("mean"), grouped.transform("std")
    alone = deviation.isna()
    middle, deviation = middle.where(~alone, 0.0), deviation.where(~alone, middle)
    standing_out = ((table["dispersion"] - middle) / deviation).to_numpy()
    least = np.sort(standing_out[~np.isnan(standing_out)])[::-1][:top][-1]
    return np.flatnonzero(np.nan_to_num(standing_out, nan=-np.inf) >= least)


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 100.0}], ids=str)
def test_genes_are_those_of_scanpy(way):
    parties = [sparse.csr_array(part) for part in cut(NORMALISED, 120, 80, 40)]
    model = fit("sub-it", parties, n_components=1, scale=True, max_rounds=1, **way)
    for top in (1, 50):
        found = analyses.highly_variable(model, top)
        np.testing.assert_array_equal(found, as_scanpy(NORMALISED, top))
        assert 7 not in found


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 1e4}], ids=str)
def test_constant_genes_are_not_variable(way):
    cells = NORMALISED.copy()
    cells[:, 20:25] = [0.01, 0.1, 1 / 3, 3.0, 1e3]
    cells[:, 30:33] = [1.0, 2.0, 4.0]
    cells[::2, 30:33] += 2.0  # of mean 2, 3 and 5, and deviation 1
    cells[:120, 40:45] = 0.0  # a party without these genes
    cells[:, 50:60] = 0.0
    cells[np.arange(10), 50 + np.arange(10)] = 1.0  # each in one cell
    for method in ("p-cov", "sub-it max-rounds=1"):
        model = fit(method, cut(cells, 120, 80, 40), n_components=1, scale=True, **way)
        for top in (1, 50, 250):
            np.testing.assert_array_equal(analyses.highly_variable(model, top), as_scanpy(cells, top))


def test_what_are_no_counts_is_refused():
    for cells, scale, top, error, named in (
        (NORMALISED - 1, False, 5, ContractError, ["scale=True"]),
        (NORMALISED - 1, True, 5, ContractError, [0]),
        (NORMALISED, True, 301, ConfigError, ["top", 301]),
    ):
        with refused(error, *named):
            analyses.highly_variable(fit("p-cov", cut(cells, 120, 120), n_components=1, scale=scale), top)
