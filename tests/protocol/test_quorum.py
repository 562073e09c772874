"""Who takes part: the expected parties or a `minimum` of them, and all that is wrong is told before any round."""

import threading
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr import FedPCA, LocalGrid, client_app, run
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError, QuorumError
from fedpca_flwr.protocol import quorum
from fedpca_flwr.simulations.loopback import LoopbackProxy
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import cut, rows
from tests.harness import Clock, context_of, differences, finish, fit, on_config, proxy_of, server_of
from tests.refusals import refused, unnamed

PARTIES = cut(rows(90), 60, 30)
METHOD = {"block_size": 3, "n_components": 2, "max_rounds": 6}
HOLES, NARROW = np.where(np.arange(360).reshape(30, 12), rows(30), np.nan), rows(30)[:, :4]
FIVE = [np.random.default_rng(i).normal(size=(n, 4)) * [4, 3, 2, 1] + i for i, n in enumerate((50, 40, 60, 30, 45))]


def of_two(**options):
    return server_of("sub-it", PARTIES, **METHOD, **options)


def of_three(**options):
    return server_of("p-cov", cut(rows(90), 30, 30, 30), n_components=2, **options)


def twin(server, party, name="1234"):
    """Another node that holds what a party of the run does."""
    return LoopbackProxy(name, proxy_of(server, party).make)


def before(server, phase, happens):
    """Call a function when the first party is asked in a phase, or is asked to join if the phase is empty."""
    proxy, kind = proxy_of(server, 0), "fit" if phase else "get_properties"
    honest = getattr(proxy, kind)

    def ask(ins, timeout, group_id):
        if ins.config.get("phase", "") == phase:
            happens()
        return honest(ins, timeout, group_id)

    setattr(proxy, kind, ask)


def test_one_client_too_many_is_refused_and_most_say_the_number():
    server = of_two()
    for more in (1, 2):
        server.client_manager().register(twin(server, 1, f"{6999 + more}"))
        with refused(QuorumError, 2 + more, 2, "client 1", 2, "7000") as caught:
            finish(server)
        assert unnamed(str(caught.value), "client 0"), "it has its partition for itself"
    assert finish(of_three(clients=0)).n_samples_ == 90
    server = of_three(clients=0)
    context_of(server, 1).node_config["num-partitions"] = 2
    with refused(ConfigError, "client 1", 2, 3):
        finish(server)
    server = of_two(clients=0)  # of two numbers that are said as often, the smaller one counts
    context_of(server, 1).node_config["num-partitions"] = 3
    with refused(ConfigError, "client 1", 3, 2):
        finish(server)


@pytest.mark.parametrize("phase", ["", "start"])
def test_nodes_that_sign_in_later_are_not_asked(phase):
    server = of_two()
    stranger = twin(server, 1)
    stranger.get_properties = stranger.fit = lambda *_, **__: pytest.fail("it was asked")
    before(server, phase, lambda: server.client_manager().register(stranger))
    assert finish(server).components_.tobytes() == fit("sub-it", PARTIES, **METHOD).components_.tobytes()
    assert len(server.client_manager().all()) == 3
    server, dead = of_two(), twin(server, 1)  # which nobody needs
    dead.get_properties = Mock(side_effect=RuntimeError("Error code 4: Node Unavailable"))
    server.client_manager().register(dead)
    assert finish(server).n_samples_ == 90


@pytest.mark.parametrize("another", [False, True])
def test_a_member_that_is_away_is_named(another, monkeypatch):
    """A newcomer at another node does not replace the member: the newcomer knows nothing of the run."""
    monkeypatch.setattr(quorum, "time", Clock())
    server = of_two(join_deadline=40.0)
    manager, leaves, joins = server.client_manager(), proxy_of(server, 1), twin(server, 1)
    context_of(server, 1).node_config["name"] = "south"
    before(server, "start", lambda: manager.unregister(leaves) or (another and manager.register(joins)))
    with refused(QuorumError, "client 1", "south", "join-deadline", 40):
        finish(server)


@pytest.mark.parametrize("phase", ["joins late", "start"])
def test_a_member_that_has_not_joined_is_named(phase, monkeypatch):
    clock, lines, sleeps, server = Clock(), [], [], of_two(join_deadline=40.0)
    manager, absent = server.client_manager(), proxy_of(server, 1)
    monkeypatch.setattr(quorum, "time", clock)
    monkeypatch.setattr(quorum, "log_progress", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(clock, "sleep", lambda _: sleeps.append(1) or (len(sleeps) == 3 and manager.register(absent)))
    if phase == "start":
        before(server, phase, lambda: manager.unregister(absent))
    else:
        manager.unregister(absent)
    assert (finish(server).n_samples_, len(sleeps)) == (90, 3)
    assert [line.endswith("missing: client 1") for line in lines] == [True]  # once, however often it looks
    assert "; 40 s are left" in lines[0]
    for number, end in ((13, "client 9 and 3 others"), (10, "client 9")):  # a line names ten parties
        assert quorum.Quorum(RunConfig()).name_parties(reversed(range(number))).endswith(end)


def test_those_that_never_join_are_named_and_a_bad_site_waits_for_no_other(monkeypatch):
    monkeypatch.setattr(quorum, "time", Clock())
    server = of_three(join_deadline=30.0)
    for party in (0, 2):
        server.client_manager().unregister(proxy_of(server, party))
    with refused(QuorumError, 1, 3, "join-deadline", 30, "client 0", "client 2") as caught:
        finish(server)
    assert unnamed(str(caught.value), "client 1", "round-deadline") == ["client 1", "round-deadline"]
    clock = Clock()
    monkeypatch.setattr(quorum, "time", clock)
    for bad, parties in enumerate(([HOLES, rows(30)], [rows(30), HOLES])):
        server = server_before_any_round(parties)
        manager, late = server.client_manager(), proxy_of(server, 1)
        manager.unregister(late)
        comes = partial(manager.register, late) if bad else partial(pytest.fail, "it waited")
        monkeypatch.setattr(clock, "sleep", lambda _, comes=comes: comes())
        with refused(DataError, f"client {bad}", "NaN"):
            finish(server)


@pytest.mark.parametrize("hang", [[1], [0, 1]])
def test_a_silent_node_is_named_with_its_deadline(hang):
    server, release = of_two(join_deadline=0.2), threading.Event()
    for party in hang:
        proxy_of(server, party).make = release.wait
    try:
        with refused(QuorumError, "join-deadline", *(f"node {party + 1}" for party in hang)) as caught:
            finish(server)
    finally:
        release.set()
    assert unnamed(str(caught.value), "round-deadline")


def test_parties_with_little_work_are_asked_one_after_the_other(monkeypatch):
    threads, ask = [], LoopbackProxy.get_properties
    here = threading.current_thread
    monkeypatch.setattr(LoopbackProxy, "get_properties", lambda *a, **b: threads.append(here()) or ask(*a, **b))
    fit("p-cov", cut(rows(60), *[6] * 10), n_components=2)
    assert (len(threads), len(set(threads))) == (10, 1)


def server_before_any_round(parties, method="p-cov", **options):
    """Return a server whose clients must not be asked to compute anything."""
    server = server_of(method, parties, **{"n_components": 2, **options})
    for proxy in server.client_manager().all().values():
        proxy.fit = lambda *_: pytest.fail("a round has begun")
    return server


def error_lines(server, kind):
    with pytest.raises(kind) as caught:
        finish(server)
    return str(caught.value).splitlines()


def test_all_bad_sites_are_named_at_once_and_before_any_round(tmp_path):
    """And what a good site has written in an earlier run stays."""
    server = server_before_any_round([HOLES, rows(30), NARROW])
    context_of(server, 1).node_config["min-rows"] = 50
    missing, few, *_ = error_lines(server, DataError)
    assert not unnamed(missing, "client 0", "NaN")
    assert not unnamed(few, "client 1", "min-rows", 50)
    server = server_before_any_round([rows(30), NARROW, rows(30), NARROW[:, :3]])
    context_of(server, 2).node_config["num-partitions"] = 5
    (tmp_path / "own.npy").write_bytes(b"of an earlier run")
    context_of(server, 0).node_config["scores"] = str(tmp_path / "own.npy")
    lines = error_lines(server, ConfigError)
    assert [line[:8] for line in lines] == ["client 2", "client 1", "client 3"]
    assert not unnamed(lines[0], 5, 4)
    assert not unnamed(lines[1], 4, "client 0", 12)
    for method in ("p-cov", "dp-pca", "personalised"):  # which must be asked whether there are so many components
        with refused(ConfigError, "n-components", 10, 4):
            finish(server_before_any_round([NARROW, NARROW], method, n_components=10))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"own.npy": b"of an earlier run"}


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_files_that_are_not_writable_are_refused_first(method, tmp_path):
    (tmp_path / "file").touch()
    parties = cut(rows(60), 30, 30) if method == "p-cov" else [rows(60)[:, :3], rows(60)[:, 3:]]
    server = server_before_any_round(parties, method, site={"may-show": "inner products"})
    for party, files in enumerate(({"scores": "own.txt"}, {"scores": "file/own.npy", "loadings": ""})):
        context_of(server, party).node_config |= {key: str(tmp_path / name) for key, name in files.items()}
    text = "\n".join(error_lines(server, ConfigError))
    assert not unnamed(text, "client 0", "'scores'", "'.txt'", ".npy", ".csv")
    assert not unnamed(text.split("client 1", 1)[1], "'scores'", "'loadings'")
    assert str(tmp_path) not in text


@pytest.mark.parametrize("begin", [FACTORY.strategy, METHODS.run_config])
def test_faults_of_keys_and_options_are_told_together(begin):
    with pytest.raises(ConfigError) as caught:
        begin({"method": "sub-it tolerance=-1", "seed": -1, "n-components": 0.5})
    assert [line.split("'")[1] for line in str(caught.value).splitlines()] == ["n-components", "tolerance", "seed"]
    with refused(ConfigError, "'clip'", "'honest-parties'"):
        FACTORY.strategy({"method": "dp-pca release=joint trust=distributed", "secure-aggregation": True})


def with_some(present, method="p-cov", **options):
    """Return a run of five parties of which some have a node, and its strategy."""
    options = {"n_components": 2, "minimum": 3, **options}
    grid = LocalGrid(client_app(lambda context: FIVE[context.node_config["partition-id"]], method, **options), 5)
    grid.contexts = {node: context for node, context in grid.contexts.items() if node - 1 in present}
    return grid, FedPCA(method, clients=5, join_deadline=0.1, **options)


@pytest.mark.parametrize(
    ("method", "present"),
    [
        *((method, [0, 2, 3]) for method in ("p-cov", "sub-it", "compressed", "adaptive", "p-cov clusters=2")),
        ("p-cov", [0, 1, 2, 3, 4]),
    ],
)
def test_the_parties_that_come_suffice(method, present):
    grid, pca = with_some(present, method)
    pca.start(grid)
    assert not differences(pca.model, run(method, [FIVE[party] for party in present], n_components=2))
    assert [party["party"] for party in pca.model.log["parties"]] == present
    assert pca.model.n_samples_ == (140 if len(present) == 3 else 225)
    note = "the PCA of 3 of 5 parties: client 1, client 4 did not take part"
    assert (note in pca.model.log["notes"]) == (len(present) == 3)


@pytest.mark.parametrize(
    ("present", "fails_at", "named"),
    [([0, 2], "", (2, 5)), ([0, 1, 2, 3], "train.fedpca", ("client 3", 4)), ([0, 1, 2, 3], "", ())],
)
def test_too_few_parties_or_one_that_fails_later_end_the_run(present, fails_at, named):
    """The others were told that it takes part; one that never says a word takes none."""
    grid, pca = with_some(present)
    answer = grid.app

    def fail_in_a_round(message, context):
        if context.node_config["partition-id"] == 3 and fails_at in message.metadata.message_type:
            raise RuntimeError
        return answer(message, context)

    grid.app = fail_in_a_round
    with refused(QuorumError, *named) if named else nullcontext():
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
    server = server_of("p-cov", FIVE, n_components=2, minimum=3)
    on_config(server, 0, phase, {"parties": members})
    with pytest.raises(ContractError, match=f"client 0.*{named}"):
        server.fit(num_rounds=9, timeout=None)


@pytest.mark.parametrize(
    ("method", "keys", "named"),
    [
        *((name, {}, ["p-cov"]) for name in ("dsa", "dp-pca epsilon=1.0", "robust", "vertical", "streaming state=x")),
        ("p-cov", {"secure_aggregation": True, "bound": 9.0}, [3, "'survivors'"]),
        ("p-cov", {"clients": 2}, [3, "'clients'"]),
    ],
)
def test_a_minimum_that_cannot_be_is_refused(method, keys, named):
    with refused(ConfigError, "'minimum'", *named):
        FedPCA(method, minimum=3, **keys)
