"""A Flower user takes a strategy of ours, with ServerApp and ClientApp of their own, in either of Flower's ways."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.compat.server import ServerAppComponents
from flwr.server import ServerConfig
from flwr.server.compat.app import start_grid

from fedpca_flwr import ConfigError, ContractError, FedPCA, PooledCovariance, SubspaceIteration, client_app, run
from tests.grid import GridOfThisProcess
from tests.harness import identities
from tests.refusals import refused

PARTIES = [np.random.default_rng(i).normal(size=(n, 4)) * [4, 3, 2, 1] for i, n in enumerate((50, 40, 60))]


def rows_of(context: Context):
    return PARTIES[int(context.node_config["partition-id"])]


@pytest.mark.parametrize(
    ("method", "options"), [("p-cov", {"n_components": 2}), ("sub-it block-size=3", {"n_components": 2, "scale": True})]
)
def test_the_message_api_gives_the_bits_of_run(method, options):
    strategy = FedPCA(method, clients=3, **options)
    result = strategy.start(GridOfThisProcess(3, client_app(rows_of, method, **options)))
    expected = run(method, PARTIES, **options)
    components, mean, variances = result.arrays.to_numpy_ndarrays()
    assert components.tobytes() == expected.components_.tobytes()
    assert mean.tobytes() == expected.mean_.tobytes()
    assert variances.tobytes() == expected.explained_variance_.tobytes()
    assert strategy.model.rounds == expected.rounds == len(result.train_metrics_clientapp) - 1
    assert sum(entry["bytes-up"] for entry in result.train_metrics_clientapp.values()) > 0


def by_components(app: ClientApp, strategy, num_rounds: int) -> None:
    """As Flower's ServerApp does with `server_fn`, on its own `Server`."""
    parts = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=num_rounds))
    start_grid(
        grid=GridOfThisProcess(3, app, own_key="of the app's own", seed="another meaning"),
        strategy=parts.strategy,
        config=parts.config,
    )


def test_a_strategy_runs_on_flowers_own_server():
    strategy = SubspaceIteration(n_components=2, clients=3, max_rounds=30)
    app = ClientApp(
        client_fn=lambda context: SubspaceIteration.client(
            context, rows_of(context), n_components=2, max_rounds=30
        ).to_client()
    )
    by_components(app, strategy, strategy.rounds)
    expected = run("sub-it", PARTIES, n_components=2, max_rounds=30)
    assert strategy.model.components_.tobytes() == expected.components_.tobytes()


def test_wrong_options_and_too_few_rounds_are_named():
    with refused(ConfigError, "block-size", "'many'"):
        SubspaceIteration(block_size="many")
    with refused(ConfigError, "'method'", "p-cov"):
        FedPCA("pcov")
    strategy = PooledCovariance(n_components=2, clients=3)
    assert strategy.rounds == 2
    app = ClientApp(client_fn=lambda context: PooledCovariance.client(context, rows_of(context)).to_client())
    by_components(app, strategy, 1)
    with refused(ContractError, 1, 2, "num_rounds"):
        strategy.model  # noqa: B018
    by_components(app, again := PooledCovariance(n_components=2, clients=3), again.rounds)
    assert again.model.n_components_ == 2


def test_rows_of_an_app_are_the_sites_own_outside_a_simulation(tmp_path, monkeypatch):
    """So a site shows no scores that its node-config does not allow, and secure sums need a journal and identities.

    A process that has started Ray, as a notebook after a simulation, is no simulated party.
    """
    ray = SimpleNamespace(
        is_initialized=lambda: True, get_runtime_context=lambda: SimpleNamespace(get_actor_id=lambda: None)
    )
    monkeypatch.setitem(sys.modules, "ray", ray)

    def started(**node):
        app = client_app(lambda context: rows_of(context).T[:40], "vertical", n_components=2)
        return FedPCA("vertical", n_components=2, clients=3).start(GridOfThisProcess(3, app, lambda party: node))

    with refused(Exception, "may-show"):
        started()
    options = {"n_components": 2, "secure_aggregation": True, "bound": 100.0}

    def secure(node):
        return FedPCA("p-cov", clients=3, **options).start(
            GridOfThisProcess(3, client_app(rows_of, "p-cov", **options), node)
        )

    with refused(Exception, "'identity'"):
        secure(lambda party: {})
    with refused(Exception, "'journal'"):
        secure(lambda party: identities(3)[party])
    secure(lambda party: {**identities(3)[party], "journal": str(tmp_path / str(party))})
