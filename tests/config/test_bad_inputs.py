"""What options, site keys, data and files may say, and what is refused in one clear error, no bare `PartyError`."""

import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from scipy.sparse import csr_array

from fedpca_flwr import run
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.simulations.python_words import POLICY
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import cut, rows
from tests.harness import finish, server_of
from tests.refusals import refused, unnamed


def fit(**options):
    return run("p-cov", cut(rows(60), 30, 20, 10), **{"n_components": 2, "min_rows": 1, **options})


def reported_error(node, **options):
    node = {"partition-id": 0, "num-partitions": 1, "min-rows": 1, **node}
    values = METHODS.run_config({"method": "p-cov", "n-components": 2, **options})
    context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=values)
    metrics = FACTORY.client(context).fit([], {"phase": "statistics"})[2]
    return metrics.get("error"), metrics.get("message", "")


@pytest.mark.parametrize("key", POLICY)
@pytest.mark.parametrize("value", [[], ["p-cov"] * 3, {"a": 1}, None, float("nan")], ids=repr)
def test_a_policy_of_another_type_is_named(key, value):
    value = "ten" if key == "min-rows" and value is None else value
    with refused(ConfigError, "party 0", key.replace("-", "_")):
        fit(**{key.replace("-", "_"): value})


@pytest.mark.parametrize("key", ["scores", "loadings"])
@pytest.mark.parametrize("value", [None, 3, 1.5, True, {}, b"xyz", ["a.npy"], ["a.npy"] * 4, [1, 2, 3]], ids=repr)
def test_files_of_the_parties_are_a_list_of_paths(key, value):
    with refused(ConfigError, f"'{key}'", 3):
        fit(**{key: value})


def test_parties_are_a_list_and_no_table():
    for parties in (None, 3, "rows", b"rows", np.eye(3), csr_array(np.eye(3))):
        with refused(ConfigError, "'parties'"):
            run("p-cov", parties)
    with refused(ConfigError, "DataFrame", "X.groupby"):
        run("p-cov", pd.DataFrame(rows(60)).assign(site=["north", "south"] * 30))


@pytest.mark.parametrize("key", ["data", "scores", "loadings", "ids-secret", "identity", "identities", "journal"])
@pytest.mark.parametrize("path", ["a\0b.npy", "x" * 5000 + ".npy", "~nobodyhere/x.npy"], ids=["null", "long", "nobody"])
def test_a_path_that_no_file_can_have_is_named_at_the_door(key, path):
    kind, text = reported_error({key: path})
    assert (kind, path in text) == ("ConfigError", False)
    assert not unnamed(text, f"'{key}'")


def test_a_journal_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    options = {"n_components": 2, "clip": 5.0, "release": "joint", "noise_seed": 1}
    with refused(DisclosureError, "client 0", match="journal") as caught:
        finish(server_of("dp-pca", [rows(60)], **options, site={"journal": str(tmp_path / "file")}))
    assert str(tmp_path) not in str(caught.value)


def test_absurd_options_of_a_simulation_are_named():
    text = ": ".join(reported_error({}, dataset="wine", partition="columns", columns="9" * 5000))
    assert text.startswith("ConfigError: ")
    assert "'columns' names 1 columns in 1 groups" in text
    with refused(ConfigError, "'shards-per-client'"):  # the server reads these options first
        reported_error({}, dataset="wine", partition="shards", **{"shards-per-client": 10**30})


def test_site_keys_of_a_wrong_type_are_named():
    for key in (name.replace("_", "-") for name in NodeConfig.model_fields):
        for value in ([], {}, None, b"", object(), 3 + 4j, float("nan")):
            if key in ("bound", "epsilon-budget", "max-epsilon", "max-delta") and value is None:
                continue
            with refused(ConfigError, f"'{key}'"):
                NodeConfig.parse({"partition-id": 0, "num-partitions": 1, key: value}, source="node-config")


def of_site(values):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 3, **values}, source="node-config")


def test_a_former_name_is_refused_with_what_to_take_instead():
    for use in (
        partial(fit, associate="linear"),
        partial(fit, phenotypes=["north.csv", "south.csv", "west.csv"]),
        partial(run, "p-cov associate=linear", cut(rows(30), 20, 10)),
        partial(RunConfig.parse, {"phenotype-covariates": "age"}),
        partial(of_site, {"phenotypes": "north.csv"}),
        partial(METHODS.parse_method, "Associate"),
    ):
        with refused(ConfigError, "docs/genotypes.md"):
            use()


def test_pyproject_has_every_key_with_its_default_and_a_site_that_says_nothing_allows_little():
    """`flwr run --run-config` accepts only keys that stand in pyproject.toml."""
    config = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert set(config) == set(RunConfig.keys())
    strategy = FACTORY.strategy(config)
    assert strategy.config == RunConfig()
    assert strategy.options == strategy.card.options()
    node = of_site({})
    assert (node.min_rows, node.min_parties, node.honest_parties, node.round_rows) == (10, 3, 1, 1)
    assert (node.may_show, node.gaps, node.repeat, node.ambiguous) == ("", "shared", "refuse", "refuse")
    assert (node.max_reply_bytes, node.delta_budget, node.secure_only, node.public_count) == (2**31, 1e-5, False, False)
    with refused(ConfigError, "partition-id"):
        NodeConfig.parse({"num-partitions": 3}, source="node-config")
    with refused(ConfigError, "partition-id", 3, 0, 2):
        of_site({"partition-id": 3})


@pytest.mark.parametrize(
    ("parse", "key", "most", "beyond"),
    [
        (RunConfig.parse, "bound", [0.0, 1e100], [-1.0, 1.1e100]),
        (RunConfig.parse, "alpha", [1e-9], [0.0]),
        (RunConfig.parse, "shards-per-client", [1, 1000], [0, 1001]),
        (RunConfig.parse, "max-share", [0.0, 1.0], [-0.1, 1.1]),
        *((RunConfig.parse, key, [1e-9, 1e7], [0.0, 1.1e7]) for key in ("join-deadline", "round-deadline")),
        *((RunConfig.parse, key, [0, 1], [-1, True]) for key in ("clients", "seed")),  # an equal value is read anew
        (RunConfig.parse, "secure-aggregation", [True], [1]),
        (RunConfig.parse, "data-root", ["a/b"], ["~", "~/data", "~root", "~nosuchuser/data"]),
        (RunConfig.parse, "weights", ["x" * 200], ["x" * 201]),
        (RunConfig.parse, "n-components", [1, 0.99], [0, 1.0, 0.0, "some"]),
        (RunConfig.parse, "levels", ['{"sex": ["f"]}'], ['{"sex": ["f", "other"]}', '{"sex": ["f", "missing"]}']),
        (RunConfig.parse, "levels", ["{}"], ['{"sex": []}', "[]"]),
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
