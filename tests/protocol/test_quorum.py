"""Who takes part: exactly the expected parties, from the first round to the last."""

import threading
from unittest.mock import Mock

import pytest

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, QuorumError
from fedpca_flwr.protocol import quorum
from fedpca_flwr.simulations.loopback import LoopbackProxy
from tests.families import cut, rows
from tests.harness import Clock, context_of, finish, fit, proxy_of, server_of
from tests.refusals import refused, unnamed

PARTIES = cut(rows(90), 60, 30)
METHOD = {"block_size": 3, "n_components": 2, "max_rounds": 6}


def of_two(**options):
    return server_of("sub-it", PARTIES, **METHOD, **options)


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


def of_three(**options):
    return server_of("p-cov", cut(rows(90), 30, 30, 30), n_components=2, **options)


def test_one_client_too_many_is_refused():
    server = of_two()
    for more in (1, 2):
        server.client_manager().register(twin(server, 1, f"{6999 + more}"))
        with refused(QuorumError, 2 + more, 2, "client 1", 2, "7000") as caught:
            finish(server)
        assert unnamed(str(caught.value), "client 0"), "it has its partition for itself"


def test_most_clients_say_the_number_of_clients():
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


def test_a_node_that_is_needed_by_nobody_may_die():
    server = of_two()
    dead = twin(server, 1)
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
    assert finish(server).n_samples_ == 90
    assert [line.endswith("missing: client 1") for line in lines] == [True]  # once, however often it looks
    assert "; 40 s are left" in lines[0]
    assert len(sleeps) == 3


def test_a_line_names_ten_parties_and_counts_the_others():
    parties = quorum.Quorum(RunConfig())
    assert parties.name_parties(reversed(range(13))).endswith("client 9 and 3 others")
    assert parties.name_parties(range(10)).endswith("client 9")


def test_those_that_never_join_are_named(monkeypatch):
    monkeypatch.setattr(quorum, "time", Clock())
    server = of_three(join_deadline=30.0)
    for party in (0, 2):
        server.client_manager().unregister(proxy_of(server, party))
    with refused(QuorumError, 1, 3, "join-deadline", 30, "client 0", "client 2") as caught:
        finish(server)
    assert unnamed(str(caught.value), "client 1", "round-deadline") == ["client 1", "round-deadline"]


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
    threads, honest = [], LoopbackProxy.get_properties

    def noted(*asked, **named):
        threads.append(threading.current_thread())
        return honest(*asked, **named)

    monkeypatch.setattr(LoopbackProxy, "get_properties", noted)
    fit("p-cov", cut(rows(60), *[6] * 10), n_components=2)
    assert (len(threads), len(set(threads))) == (10, 1)
