"""What a run-config and a node-config may say: their keys, defaults and limits."""

import tomllib
from pathlib import Path

import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.strategies import FACTORY
from tests.refusals import refused

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
LEVELS = '["f", "other"]', '["f", "missing"]', "[]"


def of_run(values):
    return RunConfig.parse(values)


def of_site(values):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 3, **values}, source="node-config")


def test_pyproject_has_every_key_with_its_default():
    """`flwr run --run-config` accepts only keys that stand in pyproject.toml."""
    config = PROJECT["tool"]["flwr"]["app"]["config"]
    assert set(config) == set(RunConfig.keys())
    strategy = FACTORY.strategy(config)
    assert strategy.config == RunConfig()
    assert strategy.options == strategy.card.options()


@pytest.mark.parametrize(
    ("parse", "key", "most", "beyond"),
    [
        (of_run, "bound", [0.0, 1e100], [-1.0, 1.1e100]),
        (of_run, "alpha", [1e-9], [0.0]),
        (of_run, "shards-per-client", [1, 1000], [0, 1001]),
        (of_run, "max-share", [0.0, 1.0], [-0.1, 1.1]),
        *((of_run, key, [1e-9, 1e7], [0.0, 1.1e7]) for key in ("join-deadline", "round-deadline")),
        *((of_run, key, [0], [-1]) for key in ("clients", "seed")),
        (of_run, "weights", ["x" * 200], ["x" * 201]),
        (of_run, "n-components", [1, 0.99], [0, 1.0, 0.0, "some"]),
        (of_run, "levels", ['{"sex": ["f"]}'], [f'{{"sex": {values}}}' for values in LEVELS] + ["[]"]),
        *((of_site, key, [1], [0]) for key in ("min-rows", "round-rows", "max-reply-bytes", "honest-parties")),
        (of_site, "min-parties", [2], [1]),
        (of_site, "threads", [1, 1024], [0, 1025]),
        (of_site, "name", ["x" * 64], ["x" * 65, "a\nb"]),
        *((of_site, key, [1e-9, 0.9], [0.0, 1.0]) for key in ("delta-budget", "max-delta")),
        *((of_site, key, [1e-9], [0.0]) for key in ("bound", "max-epsilon")),
        (of_site, "partition-id", [0, 2], [-1, 3]),
    ],
)
def test_values_within_limits_are_taken(parse, key, most, beyond):
    for value in most:
        parse({key: value})
    for value in beyond:
        with refused(ConfigError, f"'{key}'"):
            parse({key: value})


def test_a_site_that_says_nothing_allows_little():
    node = NodeConfig(partition_id=0, num_partitions=3)
    assert (node.min_rows, node.min_parties, node.honest_parties, node.round_rows) == (10, 3, 1, 1)
    assert (node.may_show, node.gaps, node.repeat, node.ambiguous) == ("", "shared", "refuse", "refuse")
    assert (node.max_reply_bytes, node.delta_budget) == (2**31, 1e-5)
    assert (node.secure_only, node.public_count) == (False, False)
    with refused(ConfigError, "partition-id"):
        NodeConfig.parse({"num-partitions": 3}, source="node-config")
    with refused(ConfigError, "partition-id", 3, 0, 2):
        of_site({"partition-id": 3})
