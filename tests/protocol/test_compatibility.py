"""A site refuses what does not go together by itself: its rules are not the server's to check."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import rows
from tests.harness import identities

LEVELS = '{"sex": ["f", "m"]}'
BY_ROWS = {name: method.strategy.card for name, method in METHODS.items() if method.strategy.card.split == "rows"}
SECURE = {"secure-aggregation": True, "bound": 1e3}

RUNS: dict[str, dict[str, Any]] = {
    **{f"levels of {name}": {"method": name, "levels": LEVELS} for name, card in BY_ROWS.items() if not card.mixed},
    **{f"weights of {name}": {"method": name, "weights": "0"} for name, card in BY_ROWS.items() if not card.weighted},
    **{
        f"levels of {name}{way}": {"method": name + way, "levels": LEVELS}
        for name, card in BY_ROWS.items()
        if card.mixed and name != "streaming"
        for way in (" scale=false", " scale=true center=false")
    },
    "levels of genotypes": {"method": "p-cov genotypes=true", "levels": LEVELS},
    "weights and a limit of odd rows": {"method": "p-cov outliers=counts", "weights": "0"},
    "features of columns": {"method": "vertical", "features": "a, b, c, d"},
    "a share of sums": {"method": "p-cov", "max-share": 0.5, **SECURE},
    "a share of no moments": {"method": "dsa", "max-share": 0.5},
    "a fraction of the paper's": {"method": "sapca variant=paper", "n-components": 0.5},
    "shares out of order": {"method": "sapca share-low=0.5 share-high=0.2"},
    "a rule of the rank": {"method": "sapca rank-rule=paper"},
    "fewer tracked than wanted": {"method": "spca tracked=1"},
    "weights of no running model": {"method": "sapca old-weight=0.5"},
    "no bound": {"method": "p-cov", "secure-aggregation": True},
    "pruned numbers": {"method": "p-cov prune=0.2"},
    "sums of a factor": {"method": "qr-pca", **SECURE},
}
"""Runs that a server's half refuses to begin."""


@pytest.mark.parametrize("name", RUNS)
def test_a_site_refuses_by_itself_what_the_servers_half_refuses(name, tmp_path):
    run = {"n-components": 2, **RUNS[name]}
    with pytest.raises(ConfigError) as caught:
        FACTORY.strategy(run)
    np.save(tmp_path / "rows.npy", np.abs(rows(60, 4)) + 1)
    node = {"partition-id": 0, "num-partitions": 3, "may-show": "inner products", **identities(3)[0]}
    node |= {"data": str(tmp_path / "rows.npy"), "journal": str(tmp_path / "journal")}
    node |= {"epsilon-budget": 1.0} if run["method"] == "dp-pca" else {"weights": "0"}
    client = FACTORY.client(Context(1, 1, node, RecordDict(), run))
    report = client.get_properties({})
    assert report["error"] in ("ConfigError", "TravelError")
    assert report["message"].splitlines()[0] in str(caught.value)
    for phase in ("moments", "keys", "start", "summary", "observed", "truncated", "project"):
        assert client.fit([], {"phase": phase})[0] == []


@pytest.mark.parametrize("method", [name for name, card in BY_ROWS.items() if card.beyond_moments])
def test_levels_and_weights_need_methods_of_moments(method):
    """Under noise, in streams and in groups of gaps a level or a weight could be that of a few rows."""
    assert not BY_ROWS[method].mixed or BY_ROWS[method].incomplete
    assert not (BY_ROWS[method].weighted)
