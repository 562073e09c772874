"""Runs in clear that some of the parties suffice for: `minimum`."""

from contextlib import nullcontext

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


SOME = [(method, [0, 2, 3]) for method in ("p-cov", "sub-it", "compressed", "adaptive", "p-cov clusters=2")]


@pytest.mark.parametrize(("method", "present"), [*SOME, ("p-cov", [0, 1, 2, 3, 4])])
def test_the_parties_that_come_suffice(method, present):
    grid, pca = with_some(present, method)
    pca.start(grid)
    assert not differences(pca.model, run(method, [PARTIES[party] for party in present], n_components=2))
    assert [party["party"] for party in pca.model.log["parties"]] == present
    assert pca.model.n_samples_ == (140 if len(present) == 3 else 225)
    note = "the PCA of 3 of 5 parties: client 1, client 4 did not take part"
    assert (note in pca.model.log["notes"]) == (len(present) == 3)


def test_fewer_than_the_minimum_are_refused():
    grid, pca = with_some([0, 2])
    with refused(QuorumError, 2, 5):
        pca.start(grid)


@pytest.mark.parametrize("fails_at", ["train.fedpca", ""])
def test_a_party_that_fails_later_ends_the_run(fails_at):
    """The others were told that it takes part; one that never says a word takes none."""
    grid, pca = with_some([0, 1, 2, 3])
    answer = grid.app

    def fail_in_a_round(message, context):
        if context.node_config["partition-id"] == 3 and fails_at in message.metadata.message_type:
            raise RuntimeError
        return answer(message, context)

    grid.app = fail_in_a_round
    with refused(QuorumError, "client 3", 4) if fails_at else nullcontext():
        pca.start(grid)


@pytest.mark.parametrize(
    ("phase", "members", "named"),
    [
        *(("moments", told, f" {len({*told.split()})} .* = 3") for told in ("0 1", "1 2 3 4", "", "0 0 0 1", "0 1 x")),
        ("project", "0 1 2", ""),
    ],
)
def test_a_party_refuses_a_run_of_too_few_or_of_others(phase, members, named):
    """The adversary is the server: it would have the sums of two parties, or of others than it says, or said first."""
    server = server_of("p-cov", PARTIES, n_components=2, minimum=3)
    on_config(server, 0, phase, {"parties": members})
    with pytest.raises(ContractError, match=f"client 0.*{named}"):
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
