"""The door: what is not allowed is named with its key, its value and what to do."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from strategies import build_strategy
from tests.refusals import refused

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_pyproject_offers_every_key_and_no_other():
    """`flwr run --run-config` accepts only keys that stand in pyproject.toml."""
    offered = set(PROJECT["tool"]["flwr"]["app"]["config"])
    assert offered == set(RunConfig.keys())


def test_the_defaults_of_pyproject_are_those_of_the_code():
    config = PROJECT["tool"]["flwr"]["app"]["config"]
    strategy = build_strategy(config)
    assert strategy.config == RunConfig()
    assert strategy.options == strategy.card.options()


def test_several_faults_are_told_at_once():
    with refused(ConfigError, "'alpha'", 0.0, "'seed'", -1):
        RunConfig.parse({"alpha": 0.0, "seed": -1})


def test_a_node_must_say_which_partition_it_is():
    with refused(ConfigError, "partition-id"):
        NodeConfig.parse({"num-partitions": 3}, source="node-config")
    with refused(ConfigError, "partition-id", 3, 0, 2):
        NodeConfig.parse({"partition-id": 3, "num-partitions": 3}, source="node-config")


def test_a_name_cannot_carry_control_characters():
    with refused(ConfigError, "'name'"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "name": "a\nb"}, source="node-config")
