"""A name of former versions is refused with what to take instead, wherever it stands."""

from functools import partial

import pytest

from fedpca_flwr import run
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.refusals import refused

PARTIES = cut(rows(30), 20, 10)
NODE = {"partition-id": 0, "num-partitions": 3}
PLACES = {
    "option in a text": partial(run, "p-cov associate=linear", PARTIES),
    "option by name": partial(run, "em", PARTIES, associate="linear"),
    "key of sites by name": partial(run, "p-cov", PARTIES, phenotypes=["north.csv", "south.csv"]),
    "key of a run": partial(RunConfig.parse, {"phenotype-covariates": "age"}),
    "key of a node": partial(NodeConfig.parse, NODE | {"phenotypes": "north.csv"}, source="node-config"),
    "method": partial(METHODS.parse_method, "Associate"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_former_name_is_refused_with_what_to_take_instead(place):
    with refused(ConfigError, "docs/genotypes.md"):
        PLACES[place]()
