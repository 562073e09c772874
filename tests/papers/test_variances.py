"""No method tells more variance than a subspace of its rank can have."""

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.strategies import METHODS
from tests.papers.partitions import PARTITIONS, ROWS

CARDS = [method.strategy.card for method in METHODS.values()]
OF_ALL_ROWS = [card.name for card in CARDS if card.split == "rows" and not card.variance_base]


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", OF_ALL_ROWS)
def test_shares_are_at_most_those_of_the_best_subspace(name, partition, tmp_path):
    parts = [ROWS[part] for part in PARTITIONS[partition]]
    own = {"dsa": {"iterations": 60}, "fast-pca": {"iterations": 60}, "streaming": {"state": str(tmp_path / "state")}}
    model = run(name, parts, n_components=3, **own.get(name, {}))
    values = np.linalg.eigvalsh(np.cov(ROWS.T))[::-1]
    k, rounding = len(model.components_), 1e-5 if name == "compressed" else 0.0  # of a covariance in 16 bits
    assert 0 < model.explained_variance_ratio_.sum() <= values[:k].sum() / values.sum() + 1e-9 + rounding
    along = np.einsum("ij,jl,il->i", model.components_, np.cov(ROWS.T), model.components_)
    if name in ("dsa", "fast-pca"):
        np.testing.assert_allclose(model.explained_variance_, along, rtol=1e-9)
