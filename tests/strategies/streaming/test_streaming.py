"""A federation that lasts, run by run: always the model of the current members, and a failed run changes nothing."""

import shutil
from typing import Any

import numpy as np
import pytest

from fedpca_flwr import FedPCA, LocalGrid, run, site_app
from fedpca_flwr.errors import ContractError, FedPCAError, QuorumError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.federation import Federation, moments_digest
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.questions.pooling import head_fields, read_moments
from fedpca_flwr.strategies.streaming.method import squared_error
from tests.families import cut, rows
from tests.harness import differences, fail_at, finish, identities, proxy_of, say, server_of, sites_of, tamper_arrays
from tests.refusals import refused

A, B, C, D = cut(rows(400), 180, 100, 80, 40)
B = B + 3
SECURE = {"secure_aggregation": True, "bound": 1e3}
OF_C = Moments.from_rows(C)
LIE = read_moments({**head_fields(OF_C.head, OF_C.diagonal()), "scatter": 2 * OF_C.scatter})
LIES_DIGEST = np.frombuffer(bytes.fromhex(moments_digest(LIE)), np.uint8)
FAULTS = {  # the digest that is sent, if another one, and the scatter
    "a lie": (LIES_DIGEST, lambda scatter: LIE.scatter, ContractError, [], "fit"),
    "other moments": (None, lambda scatter: scatter * (1 + 1e-12), ContractError, ["client 1"], "digest"),
    "no scatter": (None, lambda scatter: np.empty(0), ContractError, ["client 1", "'scatter'"], None),
    "dies in the last round": (None, None, QuorumError, ["client 1"], None),
}


@pytest.fixture
def state(tmp_path):
    return str(tmp_path / "federation")


def fit(state, parties, **options):
    return run("streaming", parties, state=state, **{"n_components": 4, **options})


def server_with(state, parties, **options):
    """Return a server of a run without the parties that are None; the others keep their partition."""
    here = [i for i, X in enumerate(parties) if X is not None]
    filled = [rows(20) if X is None else X for X in parties]
    server = server_of("streaming", filled, state=state, clients=len(here), **{"n_components": 4, **options})
    for i in set(range(len(parties))) - set(here):
        server.client_manager().unregister(proxy_of(server, i))
    return server


def is_that_of(model, parties, **options):
    fresh = run("p-cov", parties, **{"n_components": 4, **options})
    assert model.n_samples_ == fresh.n_samples_
    assert not differences(model, fresh)


def changes(model):
    """Return the numbers of the parties by what happened to each."""
    measured, members = model.log["measured"], model.log["members"]
    assert all(measured[f"{word}_members"] == len(names) for word, names in members.items())
    return {word: "".join(name.removeprefix("partition ") for name in names) for word, names in members.items()}


def content(state):
    federation = Federation.open(state)
    return {name: moments_digest(federation.moments_of(name)) for name in federation.members}


def test_a_second_run_sends_no_scatter(state):
    first = fit(state, [A, B, C])
    assert changes(first) == {"joined": "012"}
    assert [entry["phase"] for entry in first.log["rounds"]] == ["digest", "moments", "project"]
    is_that_of(first, [A, B, C])
    second_run = fit(state, [A, B, C], scale=True)
    assert [entry["phase"] for entry in second_run.log["rounds"]] == ["digest", "project"]
    assert second_run.log["rounds"][0]["up"] == [(5 * 128) + 32 + 8 + 8 * 12 + 8] * 3
    assert changes(second_run) == {"unchanged": "012"}
    assert (first.log["measured"]["revision"], second_run.log["measured"]["revision"]) == (1, 2)
    is_that_of(second_run, [A, B, C], scale=True)
    up = fit(state, [A, B, C, D]).log["rounds"][1]["up"]
    assert up[3] == up[0] + 8 * 78
    assert up[:3] == [up[0]] * 3


@pytest.mark.parametrize(
    ("then", "leave", "options", "members", "changed"),
    [
        ([A, B, C, D], "", {}, [A, B, C, D], {"joined": "3", "unchanged": "012"}),
        ([A, D, C], "", {"center": False}, [A, D, C], {"replaced": "1", "unchanged": "02"}),
        ([D, None, C], "", {"scale": True}, [D, B, C], {"replaced": "0", "unchanged": "2", "absent": "1"}),
        ([A, None, C], ' "partition 1" ,', {"n_components": 0.8}, [A, C], {"unchanged": "02", "left": "1"}),
    ],
    ids=["joins", "replaces", "is absent", "leaves"],
)
def test_the_model_is_that_of_the_members_now(state, then, leave, options, members, changed):
    """Also after others have come and gone, of whose rows no bit stays."""
    fit(state, [A, B + 1e8, C])
    fit(state, [A * 1e3, D, C, B + 1e7])
    finish(server_with(state, [D, None, C], leave="partition 1,partition 3"))
    fit(state, [A, B, C])
    model = finish(server_with(state, then, leave=leave, **options))
    is_that_of(model, members, **options)
    assert changes(model) == changed
    here = [i for i, X in enumerate(then) if X is not None]
    assert [party["party"] for party in model.log["parties"]] == here
    counts = [model.log["measured"][name] for name in ("members", "member_rows", "members_here", "revision")]
    assert counts == [len(members), sum(map(len, members)), len(here), 5]
    assert [note[:20] for note in model.log["notes"]] == (["1 members are absent"] if "absent" in changed else [])
    if "absent" in changed:
        assert "220 of 12 features, 120 of them at these sites" in model.summary(full=True)
        assert "3 with 220 rows; 2 took part in this run" in model.summary(full=True)
    assert list(Federation.open(state).members.values()) == [len(part) for part in members]


def require_pooled(model, parties, rtol, **options):
    truth = pooled_pca(np.vstack(parties), 4, **options)
    assert principal_angles(model, truth).max <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=rtol)


@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}], ids=str)
def test_appended_rows_are_added_once_to_those_sent_before(state, options):
    assert changes(fit(state, [A, B], append=True)) == {"joined": "01"}
    fit(state, [A, B])
    model = fit(state, [C, D], append=True, **options)
    require_pooled(model, [A, B, C, D], 1e-12, **options)
    assert changes(model) == {"appended": "01"}
    repeated = fit(state, [C, B], append=True)  # as after a run whose model was not written; 1 has nothing new
    assert changes(repeated) == {"unchanged": "01"}
    assert repeated.n_samples_ == model.n_samples_ == 400
    assert Federation.open(state).members == {"partition 0": 260, "partition 1": 140}


def test_the_prediction_is_for_the_rows_that_take_part():
    X, model = rows(90) * 2 + 5, pooled_pca(rows(300), 3, scale=True)
    residual = (X - model.mean_) / model.scale_
    residual -= residual @ model.components_.T @ model.components_
    np.testing.assert_allclose(squared_error(model, Moments.from_rows(X)), (residual**2).sum() / 90, rtol=1e-10)


@pytest.mark.parametrize(("digest", "change", "error", "named", "match"), FAULTS.values(), ids=FAULTS)
def test_a_run_that_fails_leaves_the_state(state, digest, change, error, named, match):
    fit(state, [A, B])
    before, server = content(state), server_of("streaming", [A, C], state=state, n_components=4)
    if change:
        tamper_arrays(server, 1, lambda arrays: [arrays[0] if digest is None else digest, *arrays[1:]], "digest")
        tamper_arrays(server, 1, lambda arrays: [*arrays[:-1], change(arrays[-1])], "moments")
    else:
        fail_at(server, 1, "project")
    with refused(error, *named, match=match):
        finish(server)
    assert (content(state), Federation.open(state).revision) == (before, 1)


def test_two_runs_at_once_and_python_share_a_federation(state):
    fit(state, [A, B])
    slow = server_where(state, {}, {})
    fit(state, [A, B, D])
    with pytest.raises(ContractError, match="change"):
        finish(slow)
    federation = Federation.open(state)
    assert federation.members == {"partition 0": 180, "partition 1": 100, "partition 2": 40}
    federation.leave("partition 1")
    federation.leave("partition 2")
    federation.join("partition 7", D)
    federation.save()
    assert changes(fit(state, [A])) == {"unchanged": "0", "absent": "7"}
    pooled = pool([Moments.from_rows(A), Moments.from_rows(D)])
    np.testing.assert_allclose(Federation.open(state).moments().scatter, pooled.scatter, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "parties", "options", "named"),
    [
        ({}, [A, B, C], {"state": ""}, ["'state'"]),
        ({}, [A, B, C], {"leave": "partition 1"}, ["'leave'", "partition 1", "party 1"]),
        ({}, [A, B, C], {"leave": "partitio 1"}, ["partitio 1", "partition 1"]),
        ({}, [A[:, :5], B[:, :5], C[:, :5]], {}, ["partition 0", 5, 12]),
        ({}, [A, B, C], {"append": "yes"}, ["'append'", "'yes'"]),
        ({}, [A, B, C], SECURE, ["secure_aggregation", "True"]),
        (SECURE, [A, B, C], {}, ["secure_aggregation", "False"]),
        (SECURE, [A, B, C], {**SECURE, "leave": "partition 1"}, ["'leave'", "partition 1", "secure_aggregation"]),
        (SECURE, [A, B, C], {**SECURE, "survivors": 2}, ["secure_aggregation", "'streaming'", "p-cov", "ap-cov"]),
    ],
)
def test_what_cannot_be_done_is_named_and_changes_nothing(state, first, parties, options, named):
    fit(state, [A, B, C], **first)
    before = content(state)
    with refused(FedPCAError, *named):
        fit(**{"state": state, "parties": parties, **options})
    assert content(state) == before


def server_where(state, *infos, rows=A):
    """Return a run in which each party says this of itself, the first of other rows."""
    server = server_of("streaming", [rows, B], state=state, n_components=4)
    for party, words in enumerate(infos):
        say(server, party, **words)
    return server


def test_members_have_names_and_columns_or_partitions(state):
    for info in ({}, {"columns": "ab" * 8}):  # by who replaces what it sent before, too
        server = server_where(state, *({"name": f"hospital {party}", **info} for party in (0, 1)), rows=A + len(info))
        finish(server)
    strategy: Any = server.strategy
    assert strategy.federation.members == {"hospital 0": 180, "hospital 1": 100}
    assert strategy.federation.columns == "ab" * 8
    with refused(QuorumError, "'hospital'"):
        finish(server_where(state, {"name": "hospital"}, {"name": "hospital"}))
    with refused(FedPCAError, "client 1", "'sum of '"):
        finish(server_where(state, {}, {"name": "sum of 2 parties"}))
    infos = [{"num-partitions": partitions, "simulated": False} for partitions in (2, 7)]  # on which none need agree
    (note,) = finish(server_where(f"{state} of partitions", *infos)).log["notes"]
    assert note.startswith("parties without a name are known by their partition-id")
    server = server_with(f"{state} of partitions", [A, None, C])
    fail_at(server, 2, "digest")
    with refused(QuorumError, 1, 2):
        finish(server)


def test_a_sum_over_all_parties_replaces_what_they_had_before(state):
    first, repeated = (fit(state, [A, B, C], **SECURE) for _ in range(2))
    model = fit(state, [A, D, C], scale=True, **SECURE)
    require_pooled(model, [A, D, C], 1e-9, scale=True)
    assert first.components_.tobytes() == repeated.components_.tobytes()
    assert [list(changes(m)) for m in (first, repeated, model)] == [["joined"], ["unchanged"], ["replaced"]]
    assert [party["rows"] for party in model.log["parties"]] == [None] * 3
    assert list(Federation.open(state).members.values()) == [300]
    # Of others the server refuses before it asks for a sum, whose difference to the last would be somebody's share.
    before, server = content(state), server_of("streaming", [A, B], state=state, n_components=4, **SECURE)
    with refused(FedPCAError, state):
        finish(server)
    assert [entry["phase"] for entry in server.strategy.round_log] == ["members"]
    assert content(state) == before


@pytest.mark.parametrize("scale", [False, True])
def test_a_sum_over_appended_rows_is_added_once(state, scale):
    """A fault: equal rows next to the bound were said to have no variance; they need none of their own."""
    fit(state, [A, B[:50], B[50:]], scale=scale, **SECURE)
    model = fit(state, [C[:30], C[30:], D], scale=scale, append=True, **SECURE)
    require_pooled(model, [A, B, C, D], 1e-9, scale=scale)
    assert "fixed_point_variance_share" not in model.log["measured"]  # that of the first sum is not known any more
    repeated = fit(state, [C[:30], C[30:], D], scale=scale, append=True, **SECURE)
    assert list(changes(repeated)) == ["unchanged"]
    assert repeated.n_samples_ == model.n_samples_ == 400
    equal = [np.repeat(rows(1), 10, axis=0)] * 3
    require_pooled(fit(state, equal, scale=scale, append=True, **SECURE), [A, B, C, D, *equal], 1e-9, scale=scale)


def sites_run(folder, state, **options):
    nodes = sites_of(folder, (A, B, C), repeat="allow")
    for party, identity in enumerate(identities(3)):
        nodes[party] |= {"name": f"hospital {party}", **identity}
    strategy = FedPCA("streaming", state=str(state), n_components=2, clients=3, **options)
    keys = {key.replace("_", "-"): value for key, value in options.items()}
    config = {"method": f"streaming state={state}", "n-components": 2, "clients": 3, **keys}
    strategy.start(LocalGrid(site_app.app, nodes, config))
    return strategy.model


@pytest.mark.parametrize("options", [{}, pytest.param(SECURE, marks=pytest.mark.nightly)], ids=["clear", "masked"])
def test_sites_notice_a_state_that_was_put_back(tmp_path, options):
    state = tmp_path / "federation"

    def told():
        return [note for note in sites_run(tmp_path, state, **options).log["notes"] if "put back" in note]

    assert not told()
    shutil.copytree(state, tmp_path / "copy")
    assert not told()
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "copy", state)
    (note,) = told()
    assert "revision 1, and hospital 0, hospital 1, hospital 2 took part in a later one" in note
    shutil.rmtree(state)  # a new federation is not an old one
    assert not told()


def test_the_federation_names_runs_times_and_digests(tmp_path):
    entry = sites_run(tmp_path, tmp_path / "federation").log["provenance"]
    federation = Federation.open(tmp_path / "federation")
    *joined, last = federation.journal
    assert [event["operation"] for event in joined] == ["join"] * 3
    assert [event["digest"] for event in joined] == [moments_digest(federation.moments_of(e["member"])) for e in joined]
    assert (last["operation"], last["digest"]) == ("run", entry["settings"])
    assert {event["run"] for event in [*joined, last]} == {entry["run"]}
    assert entry["began"] <= joined[0]["time"] <= last["time"]
