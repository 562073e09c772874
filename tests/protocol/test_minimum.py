"""Runs in clear that some of the parties suffice for: `minimum`."""

import numpy as np
import pytest

from fedpca_flwr import ConfigError, ContractError, FedPCA, LocalGrid, QuorumError, client_app, run
from tests.harness import differences, on_config, server_of
from tests.refusals import refused

PARTIES = [np.random.default_rng(i).normal(size=(n, 4)) * [4, 3, 2, 1] + i for i, n in enumerate((50, 40, 60, 30, 45))]


def with_some(present, method="p-cov", **options):
    """Return a run of five parties of which some have a node, and its strategy."""
    options = {"n_components": 2, "minimum": 3, **options}
    app = client_app(lambda context: PARTIES[context.node_config["partition-id"]], method, **options)
    grid = LocalGrid(app, 5)
    grid.contexts = {node: context for node, context in grid.contexts.items() if node - 1 in present}
    return grid, FedPCA(method, clients=5, join_deadline=0.1, **options)


@pytest.mark.parametrize("method", ["p-cov", "sub-it", "compressed", "adaptive", "p-cov clusters=2"])
def test_the_parties_that_come_suffice(method):
    grid, pca = with_some([0, 2, 3], method)
    pca.start(grid)
    expected = run(method, [PARTIES[party] for party in (0, 2, 3)], n_components=2)
    assert not differences(pca.model, expected)
    assert [party["party"] for party in pca.model.log["parties"]] == [0, 2, 3]
    assert pca.model.n_samples_ == 140
    assert "the PCA of 3 of 5 parties: client 1, client 4 did not take part" in pca.model.log["notes"]


def test_all_take_part_if_all_come():
    grid, pca = with_some(range(5))
    pca.start(grid)
    assert not differences(pca.model, run("p-cov", PARTIES, n_components=2))


def test_fewer_than_the_minimum_are_refused():
    grid, pca = with_some([0, 2])
    with refused(QuorumError, 2, 5):
        pca.start(grid)


def test_a_party_that_fails_later_ends_the_run():
    """The others were told that it takes part."""
    grid, pca = with_some([0, 1, 2, 3])
    answer = grid.app

    def fail_in_a_round(message, context):
        if context.node_config["partition-id"] == 3 and message.metadata.message_type == "train.fedpca":
            raise RuntimeError
        return answer(message, context)

    grid.app = fail_in_a_round
    with refused(QuorumError, "client 3", 4):
        pca.start(grid)


@pytest.mark.parametrize("members", ["0 1", "1 2 3", "", "0 0 0 1"], ids=repr)
def test_a_party_refuses_a_run_of_too_few(members):
    """The adversary is the server: it would have the sums of two parties, or of others than it says."""
    server = server_of("p-cov", PARTIES, n_components=2, minimum=3)
    on_config(server, 0, "moments", {"parties": members})
    with refused(ContractError, "client 0", "'minimum'"):
        server.fit(num_rounds=9, timeout=None)


def test_a_party_refuses_other_members_than_at_first():
    server = server_of("p-cov", PARTIES, n_components=2, minimum=3)
    on_config(server, 0, "project", {"parties": "0 1 2"})
    with pytest.raises(ContractError, match="client 0"):
        server.fit(num_rounds=9, timeout=None)


@pytest.mark.parametrize("method", ["dsa", "dp-pca epsilon=1.0", "robust", "vertical", "streaming state=x"])
def test_methods_that_need_all_parties_say_so(method):
    with refused(ConfigError, "'minimum'", "p-cov"):
        FedPCA(method, minimum=2)


@pytest.mark.parametrize(
    ("keys", "named"), [({"secure_aggregation": True, "bound": 9.0}, "'survivors'"), ({"clients": 2}, "'clients'")]
)
def test_a_minimum_that_cannot_be_is_refused(keys, named):
    with refused(ConfigError, "'minimum'", 3, named):
        FedPCA("p-cov", minimum=3, **keys)
