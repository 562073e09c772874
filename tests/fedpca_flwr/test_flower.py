"""A Flower user takes a strategy of ours, with ServerApp and ClientApp of their own, in either of Flower's ways."""

import sys
from contextlib import nullcontext, suppress
from functools import partial
from inspect import signature
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp, mod
from flwr.server import ServerConfig
from flwr.server.compat.app import start_grid
from flwr.serverapp.strategy import FedAvg, Strategy
from pandas import DataFrame
from threadpoolctl import threadpool_info, threadpool_limits

from fedpca_flwr import FedPCA, LocalGrid, PooledCovariance, SubspaceIteration, client_app, client_loadings, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError, FedPCAError
from fedpca_flwr.flower import one_blas_thread
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.harness import differences, identities, own
from tests.options import option_values
from tests.refusals import refused

PARTIES = [np.random.default_rng(i).normal(size=(n, 4)) * [4, 3, 2, 1] for i, n in enumerate((50, 40, 60))]


def rows_of(context: Context):
    return PARTIES[int(context.node_config["partition-id"])]


def pca_of(method="p-cov", **options):
    return FedPCA(method, **{"n_components": 2, "clients": 3, **options})


def grid_of(method="p-cov", rows=rows_of, nodes=3, **options):
    return LocalGrid(client_app(rows, method, **{"n_components": 2, **options}), nodes)


def by_messages(method="p-cov", node=lambda party: {}, rows=rows_of, **options):
    """Run a strategy of the Message API, and return the strategy and its result."""
    strategy = pca_of(method, **options)
    return strategy, strategy.start(grid_of(method, rows, [node(party) for party in range(3)], **options))


def bits(arrays):
    arrays = {name: array.numpy() if isinstance(array, Array) else array for name, array in arrays.items()}
    return {name: array.tobytes() for name, array in arrays.items()}


SECURE = {"secure_aggregation": True, "bound": 1e3}


def test_the_summary_is_of_this_run(capsys):
    blind = {**SECURE, "blind": True}
    for options, whose, rounds in (({}, "each site", 2), (SECURE, "all sites", 4), (blind, "rotated", 7)):
        pca_of(**options).summary()
        text = capsys.readouterr().out
        assert whose in text
        assert f" {rounds} rounds" in text
        assert ("covariance matrix" in text) == (not options)


@pytest.mark.parametrize(("method", "options"), [("p-cov", {}), ("sub-it block-size=3", {"scale": True})])
def test_the_message_api_gives_the_bits_of_run(method, options):
    strategy, result = by_messages(method, **options)
    model = run(method, PARTIES, n_components=2, **options)
    arrays = {"components": model.components_, "mean": model.mean_, "variances": model.explained_variance_}
    assert bits(result.arrays) == bits(arrays | {"scale": np.ones(4) if model.scale_ is None else model.scale_})
    assert strategy.model.rounds == model.rounds == len(result.train_metrics_clientapp) - 1
    for way in ("up", "down"):
        told = sum(entry[f"bytes-{way}"] for entry in result.train_metrics_clientapp.values())
        assert told == sum(sum(entry[way]) for entry in strategy.model.log["rounds"])


@pytest.mark.parametrize("hider", [None, 1])
def test_the_model_has_the_names_of_columns_if_every_site_shows_them(hider):
    node, names = lambda party: {"show-names": party != hider}, [*"abc", "größe "]
    strategy, _ = by_messages(node=node, rows=lambda context: DataFrame(rows_of(context), columns=names))
    assert np.array_equal(strategy.model.feature_names_in_, None if hider else names)


def test_a_node_config_may_have_keys_of_the_app_and_keys_for_files_are_named(caplog):
    def node(party):
        own = {"data": "rows.csv", "leave-out": "a"} if party == 1 else {"min-rows": 2}
        return {"place": party, "site": "north", "learning-rate": 0.1, **own}

    strategy, _ = by_messages(node=node, rows=lambda context: PARTIES[context.node_config["place"]])
    assert not differences(strategy.model, run("p-cov", PARTIES, n_components=2))
    assert len([record for record in caplog.records if "data, leave-out" in record.message]) == 1
    for slip, key in (("min-row", "min-rows"), ("secureonly", "secure-only"), ("may_shw", "may-show")):
        with refused(ConfigError, f"unknown key '{slip}'", f"'{key}'"):
            by_messages(node=lambda party, slip=slip: {slip: "x"})


def test_an_error_of_all_parties_is_told_once(caplog):
    with refused(ConfigError, 3, 2, "'n-components'", match="^client 0; client 1; client 2: ") as caught:
        pca_of().start(grid_of(n_components=3))
    assert (str(caught.value).count("n-components"), caplog.text.count("n-components")) == (1, 0)


def test_a_strategy_is_for_one_run_and_shows_its_options():
    with refused(ContractError, "start(grid)"):
        _ = pca_of().model
    strategy, _ = by_messages()
    model = strategy.model
    with refused(ContractError, "'p-cov' has already run"):
        strategy.start(grid_of())
    assert strategy.model is model
    assert repr(strategy) == "FedPCA(PooledCovariance(n_components=2))"
    assert repr(SubspaceIteration(n_components=3, block_size=5)) == "SubspaceIteration(n_components=3, block_size=5)"
    parameters = signature(SubspaceIteration).parameters
    assert (parameters["n_components"].default, parameters["max_rounds"].annotation) == (10, int)
    assert parameters.keys() - {"run_config"} == SubspaceIteration.card.options.model_fields.keys()


def test_a_users_send_and_receive_is_called_and_stays():
    calls = []

    class OwnGrid(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            calls.append(messages)
            if len(calls) > 3:
                raise NotImplementedError("no such link")
            return super().send_and_receive(messages, timeout=timeout)

    pca_of().start(grid := OwnGrid(grid_of().app, 3))
    assert len(calls) == 3  # of all parties at once: what they hold, the moments and the last round
    assert "send_and_receive" not in vars(grid)
    with refused(FedPCAError, "NotImplementedError", "no such link"):  # which is not of the nodes
        pca_of().start(OwnGrid(grid_of().app, 3))


def by_components(strategy, rounds: int | None = None, **options) -> None:
    """Run a strategy as Flower's ServerApp does with `server_fn`, on its own `Server`."""
    app = ClientApp(client_fn=lambda context: type(strategy).client(context, rows_of(context), **options).to_client())
    grid = LocalGrid(app, 3, {"own_key": "of the app's own", "seed": "another meaning"})
    start_grid(grid=grid, strategy=strategy, config=ServerConfig(num_rounds=rounds or strategy.rounds))


def test_wrong_arguments_and_too_few_rounds_are_named_in_the_spelling_of_python():
    for make, wrong, right in (
        (partial(FedPCA, "SUB_IT"), "n_component", "n_components"),  # a method's name may be in capitals
        (PooledCovariance, "n_component", "n_components"),
        (SubspaceIteration, "blocksize", "block_size"),
    ):
        with refused(ConfigError, f"'{wrong}'", f"'{right}'") as caught:
            make(**{wrong: 3})
        assert [word for word in (right.replace("_", "-"), "run-config") if word in str(caught.value)] == []
    with refused(ConfigError, "block_size", "'many'"):
        SubspaceIteration(block_size="many")
    with refused(ConfigError, "'method'", "p-cov"):
        FedPCA("pcov")
    for take, kind in ((client_app, PARTIES[0]), (partial(grid_of().app.add_pca, "other"), PARTIES)):
        with refused(ConfigError, "'rows'", type(kind).__name__, *["lambda context"] * (kind is not PARTIES)):
            take(kind)
    strategy = PooledCovariance(n_components=2, clients=3)
    assert strategy.rounds == 2
    by_components(strategy, 1, n_components=2)
    with refused(ContractError, 1, 2, "num_rounds"):
        strategy.model  # noqa: B018
    options = {"n_components": 2, "max_rounds": 30}
    by_components(again := SubspaceIteration(clients=3, **options), **options)
    assert not differences(again.model, run("sub-it", PARTIES, **options))


@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if not known.strategy.card.loadings_source])
def test_options_that_differ_between_sides_are_named(method):
    """A party computed by its own options: with another 'center' sapca was 88 degrees off, in silence."""
    needed = {key.replace("-", "_"): value for key, value in METHODS[method].strategy.card.examples[0].items()}
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 3}, RecordDict(), {})

    def settings(**options):
        return FedPCA(method, clients=3, **{**needed, **options}).strategy.quorum.settings

    party = FACTORY.client_of_rows(context, lambda: PARTIES[0], METHODS.run_config({"method": method, **needed}))
    answer = party.get_properties({"settings": settings(output="elsewhere", round_deadline=5.0)})
    assert "at the server" not in answer.get("message", "")
    tried = 0
    values = {**option_values(method, 2, 40, 5), "seed": [7], "features": ["a, b"], "weights": ["0"], "bound": [5.0]}
    values["levels"] = ['{"a": ["b"]}']
    for name, value in ((name, value) for name, choices in values.items() for value in choices):
        with suppress(ConfigError):  # of a value that does not go with the options that it needs
            other = settings(**{name: value})
            if other != settings():
                key = name.replace("_", "-")
                assert f"'{key}' is " in party.get_properties({"settings": other})["message"], (name, value)
                tried += 1
    assert tried > 2
    other = FedPCA("sub-it" if method == "p-cov" else "p-cov").strategy.quorum.settings
    assert f"'method' is '{method}' here" in party.get_properties({"settings": other})["message"]


def test_rows_of_an_app_are_the_sites_own_outside_a_simulation(tmp_path, monkeypatch):
    """A process that has started Ray, as a notebook after a simulation, is no simulated party."""
    actor = {"get_runtime_context.return_value.get_actor_id.return_value": None}
    monkeypatch.setitem(sys.modules, "ray", Mock(**actor))
    with refused(Exception, "may-show"):
        by_messages("vertical", rows=lambda context: rows_of(context).T[:40])
    secure, known = {"secure_aggregation": True, "bound": 100.0}, identities(3)
    with refused(Exception, "'identity'"):
        by_messages(**secure)
    with refused(Exception, "'journal'"):
        by_messages(node=lambda party: known[party], **secure)
    by_messages(node=lambda party: {**known[party], "journal": str(tmp_path / str(party))}, **secure)


COLUMNS = np.split(np.random.default_rng(0).normal(size=(40, 7)) * np.arange(7, 0, -1), [3, 5], axis=1)


@pytest.mark.parametrize("method", METHODS)
def test_messages_and_components_give_the_same_bits(method, tmp_path):
    parties = PARTIES if METHODS[method].strategy.card.split == "rows" else COLUMNS
    by_loadings, models = method == "vertical-scores", []
    nodes = [{"loadings": str(tmp_path / f"{party}.npz")} if by_loadings else {} for party in range(3)]
    if by_loadings:
        run("vertical", COLUMNS, n_components=2, loadings=[node["loadings"] for node in nodes])
    for by_messages in (True, False):
        options = {**own(method), **(SECURE if by_loadings else {"n_components": 2})}
        app = client_app(lambda context: parties[context.node_config["partition-id"]], method, **options)
        grid = LocalGrid(app, 3)
        for context, node in zip(grid.contexts.values(), nodes, strict=True):
            context.node_config |= node
        strategy = METHODS[method].strategy(clients=3, **options)
        if by_messages:
            FedPCA(strategy).start(grid)
        else:
            start_grid(grid=grid, strategy=strategy, config=ServerConfig(num_rounds=strategy.rounds))
        models.append(strategy.model)
    assert not differences(*models)


def test_fedavg_after_the_pca_has_the_scores_at_its_clients():
    """Its config may have a key of ours, and the PCA's records are not in the way of the app's own."""
    grid, scores = grid_of(scale=True), {}

    @grid.app.train()
    def train(message, context):
        scores[context.node_config["partition-id"]] = client_loadings(context).part_of_scores(rows_of(context))
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    for context in grid.contexts.values():
        context.state["mine"] = ArrayRecord([np.ones(3)])
    with refused(ContractError, "no PCA 'pca' has ended"):
        client_loadings(grid.contexts[1])
    result = pca_of(scale=True).start(grid)
    components, mean, scale = (result.arrays[name].numpy() for name in ("components", "mean", "scale"))
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    fedavg.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=1, train_config=ConfigRecord({"phase": 1.0}))
    for party, found in scores.items():
        np.testing.assert_allclose(found, (PARTIES[party] - mean) / scale @ components.T, atol=1e-12)
    assert [len(scores), *("mine" in context.state for context in grid.contexts.values())] == [3, True, True, True]


def test_a_run_may_have_several_pcas_each_with_a_name():
    grid = grid_of()
    grid.app.add_pca("three", lambda context: rows_of(context)[:30], "sub-it", n_components=3)
    pca_of().start(grid)
    three = pca_of("sub-it", name="three", n_components=3)
    three.start(grid)
    assert not differences(three.model, run("sub-it", [X[:30] for X in PARTIES], n_components=3))
    assert client_loadings(grid.contexts[1], "three").components.shape == (3, 4)
    with refused(ContractError, "'pca'"):
        pca_of().start(grid)
    with refused(ConfigError, "'three'"):
        pca_of(name="four").start(grid)
    with refused(ConfigError, "'three'"):
        grid.app.add_pca("three", rows_of)


@pytest.mark.parametrize("name", mod.__all__)
def test_mods_of_flower_see_answers_and_change_none(name):
    """Those that measure sizes work; those that clip or add noise to an update refuse answers that are none."""
    made = mod.LocalDpMod(1.0, 1.0, 1.0, 1e-5) if name == "LocalDpMod" else getattr(mod, name)
    with nullcontext() if "size" in name else refused(FedPCAError, 3):
        pca_of().start(grid_of(mods=[made]))


def test_mods_of_the_app_see_each_message_with_deadline_and_rows():
    """What they raise is told by its kind alone."""
    messages, told = [], []

    def note(message, context, call_next):
        reply = call_next(message, context)
        messages.append(message.metadata.message_type)
        if message.metadata.message_type == "train.fedpca":
            rows = reply.content.metric_records["metrics"]["num-examples"]
            told.append((message.metadata.group_id, message.metadata.ttl, rows))
            assert all(array.stype == "numpy.ndarray" for array in message.content["arrays"].values())
        return reply

    pca_of().start(grid_of(mods=[note]), timeout=7.0)
    assert messages == ["train.fedpca"] * 6
    assert told == [(number, 7.0, rows) for number in ("1", "2") for rows in (50, 40, 60)]
    with refused(FedPCAError, "ZeroDivisionError") as caught:
        pca_of().start(grid_of(mods=[Mock(side_effect=ZeroDivisionError("patient 17"))]))
    assert "patient" not in str(caught.value)


@pytest.mark.parametrize("raised", [ValueError("patient 17"), DataError("rows", local="patient 17")], ids=repr)
def test_what_a_function_of_rows_raises_at_a_site_has_no_data(raised):
    rows = Mock(side_effect=raised)
    with refused(FedPCAError, "client 1") as caught:
        by_messages(rows=lambda context: rows() if context.node_config["partition-id"] == 1 else rows_of(context))
    assert "patient" not in str(caught.value)


def test_flowers_own_loop_runs_a_pca_whose_start_refuses_what_it_does_not_take():
    strategy, grid = pca_of("sub-it"), grid_of("sub-it")
    result = Strategy.start(pca_of("sub-it"), grid_of("sub-it"), ArrayRecord(), num_rounds=strategy.strategy.rounds)
    assert bits(result.arrays)["components"] == run("sub-it", PARTIES, n_components=2).components_.tobytes()
    config = ConfigRecord({"lr": 0.1})
    with refused(ConfigError, "initial_arrays", "num_rounds", 1, "train_config", "evaluate_config", "lr"):
        strategy.start(grid, ArrayRecord([np.ones(2)]), 1, train_config=config, evaluate_config=config)
    seen = []
    result = strategy.start(grid, ArrayRecord(), 500, evaluate_fn=lambda number, arrays: seen.append(arrays))
    assert seen == [result.arrays]
    with refused(ConfigError, "n_components"):
        FedPCA(PooledCovariance(n_components=2), n_components=3)


def test_a_pca_of_columns_returns_scores():
    pca, grid = pca_of("vertical"), grid_of("vertical", lambda context: COLUMNS[context.node_config["partition-id"]])
    found = pca.start(grid, num_rounds=pca.strategy.rounds).arrays
    assert bits(found) == bits({"scores": pca.model.scores_, "variances": pca.model.explained_variance_})


def test_clients_compute_with_one_blas_thread():
    def threads(message, context, call_next=None):
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        assert one_blas_thread(None, None, threads) == {1}
        assert threads(None, None) == {2}
