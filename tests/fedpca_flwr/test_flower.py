"""A Flower user takes a strategy of ours, with ServerApp and ClientApp of their own, in either of Flower's ways."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import ServerConfig
from flwr.server.compat.app import start_grid

from fedpca_flwr import (
    ConfigError,
    ContractError,
    FedPCA,
    FedPCAError,
    PooledCovariance,
    SubspaceIteration,
    client_app,
    run,
)
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.grid import GridOfThisProcess
from tests.harness import identities
from tests.options import option_values
from tests.refusals import refused

PARTIES = [np.random.default_rng(i).normal(size=(n, 4)) * [4, 3, 2, 1] for i, n in enumerate((50, 40, 60))]


def rows_of(context: Context):
    return PARTIES[int(context.node_config["partition-id"])]


def by_messages(method, node=lambda party: {}, rows=rows_of, **options):
    """Run a strategy of the Message API, and return the strategy and its result."""
    strategy = FedPCA(method, clients=3, **options)
    return strategy, strategy.start(GridOfThisProcess(3, client_app(rows, method, **options), node))


@pytest.mark.parametrize(("method", "options"), [("p-cov", {}), ("sub-it block-size=3", {"scale": True})])
def test_the_message_api_gives_the_bits_of_run(method, options):
    strategy, result = by_messages(method, n_components=2, **options)
    expected = run(method, PARTIES, n_components=2, **options)
    found = (expected.components_, expected.mean_, expected.explained_variance_)
    assert [array.tobytes() for array in result.arrays.to_numpy_ndarrays()] == [array.tobytes() for array in found]
    assert strategy.model.rounds == expected.rounds == len(result.train_metrics_clientapp) - 1
    told = result.train_metrics_clientapp.values()
    assert [sum(entry[key] for entry in told) for key in ("bytes-up", "bytes-down")] == [
        sum(sum(entry[way]) for entry in strategy.model.log["rounds"]) for way in ("up", "down")
    ]


def test_a_node_config_may_have_keys_of_the_app(tmp_path):
    files = []
    for party, part in enumerate(PARTIES):
        files.append(str(tmp_path / f"{party}.npy"))
        np.save(files[-1], part)
    node = lambda party: {"rows": files[party], "site": "north", "learning-rate": 0.1}  # noqa: E731
    strategy, _ = by_messages("p-cov", node, lambda context: np.load(context.node_config["rows"]), n_components=2)
    assert strategy.model.components_.tobytes() == run("p-cov", PARTIES, n_components=2).components_.tobytes()


@pytest.mark.parametrize(
    ("slip", "key"), [("min-row", "min-rows"), ("secureonly", "secure-only"), ("may_shw", "may-show")]
)
def test_a_mistyped_rule_of_a_site_is_refused_with_its_name(slip, key):
    with refused(ConfigError, f"unknown key '{slip}'", f"'{key}'"):
        by_messages("p-cov", lambda party: {slip: "x"}, n_components=2)


def test_a_strategy_is_for_one_run():
    strategy, _ = by_messages("p-cov", n_components=2)
    components = strategy.model.components_
    with refused(ContractError, "'p-cov' has run already"):
        strategy.start(GridOfThisProcess(3, client_app(rows_of, "p-cov", n_components=2)))
    assert strategy.model.components_ is components
    assert repr(strategy) == "FedPCA(PooledCovariance(n_components=2))"
    assert repr(SubspaceIteration(n_components=3, block_size=5)) == "SubspaceIteration(n_components=3, block_size=5)"


class GridWithRetries(GridOfThisProcess):
    """A user's grid, whose `send_and_receive` is the user's."""

    calls = 0

    def send_and_receive(self, messages, *, timeout=None):
        self.calls += 1
        return super().send_and_receive(messages, timeout=timeout)


def test_a_users_send_and_receive_is_called_and_stays():
    strategy = FedPCA("p-cov", n_components=2, clients=3)
    grid = GridWithRetries(3, client_app(rows_of, "p-cov", n_components=2))
    strategy.start(grid)
    assert grid.calls == 3 * 3  # of each party what it holds, its moments and the last round
    assert "send_and_receive" not in vars(grid)


def test_an_error_of_the_grid_is_not_told_as_the_nodes(monkeypatch):
    def fails(self, messages, **options):
        raise NotImplementedError("no such link")

    monkeypatch.setattr(GridWithRetries, "send_and_receive", fails)
    grid = GridWithRetries(3, client_app(rows_of, "p-cov", n_components=2))
    with refused(FedPCAError, "grid of the server", "NotImplementedError", "no such link"):
        FedPCA("p-cov", n_components=2, clients=3).start(grid)


def by_components(strategy, rounds: int | None = None, **options) -> None:
    """Run a strategy as Flower's ServerApp does with `server_fn`, on its own `Server`."""
    app = ClientApp(client_fn=lambda context: type(strategy).client(context, rows_of(context), **options).to_client())
    grid = GridOfThisProcess(3, app, own_key="of the app's own", seed="another meaning")
    start_grid(grid=grid, strategy=strategy, config=ServerConfig(num_rounds=rounds or strategy.rounds))


def test_a_strategy_runs_on_flowers_own_server():
    options = {"n_components": 2, "max_rounds": 30}
    strategy = SubspaceIteration(clients=3, **options)
    by_components(strategy, **options)
    assert strategy.model.components_.tobytes() == run("sub-it", PARTIES, **options).components_.tobytes()


def test_wrong_options_and_too_few_rounds_are_named():
    with refused(ConfigError, "block-size", "'many'"):
        SubspaceIteration(block_size="many")
    with refused(ConfigError, "'method'", "p-cov"):
        FedPCA("pcov")
    strategy = PooledCovariance(n_components=2, clients=3)
    assert strategy.rounds == 2
    by_components(strategy, 1, n_components=2)
    with refused(ContractError, 1, 2, "num_rounds"):
        strategy.model  # noqa: B018
    by_components(again := PooledCovariance(n_components=2, clients=3), n_components=2)
    assert again.model.n_components_ == 2


KEYS = {"seed": 7, "features": "a, b", "weights": "0", "bound": 5.0, "levels": '{"a": ["b"]}'}


@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if not known.strategy.card.loadings_source])
def test_options_that_differ_between_sides_are_named(method):
    """A party computed by its own options: with another 'center' sapca was 88 degrees off, in silence."""
    needed = method_options(method)
    context = Context(
        run_id=1, node_id=1, node_config={"partition-id": 0, "num-partitions": 3}, state=RecordDict(), run_config={}
    )

    def settings(**options):
        return FedPCA(method, clients=3, **{**needed, **options}).strategy.quorum.settings

    party = FACTORY.client_of_rows(context, PARTIES[0], METHODS.run_config({"method": method, **needed}))
    answer = party.get_properties({"settings": settings(output="elsewhere", round_deadline=5.0)})
    assert "at the server" not in answer.get("message", "")
    tried = 0
    for name, values in {**option_values(method, 2, 40, 5), **{key: [value] for key, value in KEYS.items()}}.items():
        for value in values:
            try:
                other = settings(**{name: value})
            except ConfigError:  # not with the options that it needs
                continue
            if other != settings():
                key = name.replace("_", "-")
                assert f"'{key}' is " in party.get_properties({"settings": other})["message"], (name, value)
                tried += 1
    assert tried > 2
    other = "sub-it" if method == "p-cov" else "p-cov"
    assert (
        f"'method' is '{method}' here"
        in party.get_properties({"settings": FedPCA(other).strategy.quorum.settings})["message"]
    )


def method_options(method):
    """Options that a method needs."""
    return {key.replace("-", "_"): value for key, value in METHODS[method].strategy.card.examples[0].items()}


def test_a_run_whose_sides_differ_ends_at_the_door():
    grid = GridOfThisProcess(3, client_app(rows_of, "sapca", n_components=2), lambda party: {})
    with refused(ConfigError, "'center'", "client 0", "client 2"):
        FedPCA("sapca", clients=3, n_components=2, center=False).start(grid)


def test_rows_of_an_app_are_the_sites_own_outside_a_simulation(tmp_path, monkeypatch):
    """A site shows no scores that its node-config does not allow, and secure sums need a journal and identities.

    A process that has started Ray, as a notebook after a simulation, is no simulated party.
    """
    there = SimpleNamespace(get_actor_id=lambda: None)
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: there)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with refused(Exception, "may-show"):
        by_messages("vertical", rows=lambda context: rows_of(context).T[:40], n_components=2)
    options = {"n_components": 2, "secure_aggregation": True, "bound": 100.0}
    known = identities(3)
    for lacking, node in {"'identity'": lambda party: {}, "'journal'": lambda party: known[party]}.items():
        with refused(Exception, lacking):
            by_messages("p-cov", node, **options)
    by_messages("p-cov", lambda party: {**known[party], "journal": str(tmp_path / str(party))}, **options)
