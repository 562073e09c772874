"""What clients say of themselves, of an error and in their replies, held against the run and against each other."""

import hashlib
import sys
from collections import Counter

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.protocol import admission
from fedpca_flwr.protocol.admission import MAX_FEATURES, MESSAGES, ErrorReport, PartyInfo, make_reply, parse_info
from fedpca_flwr.protocol.card import method_questions
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.replies import Magnitudes, ReplyCollector, StreamingSum, max_magnitude
from fedpca_flwr.strategies import METHODS
from tests.families import rows
from tests.harness import client_of, server_of
from tests.refusals import refused, unnamed


def make_info(party, **fields):
    statement = {"partition-id": party, "num-partitions": 3, "simulated": True, "features": 4, "messages": MESSAGES}
    return parse_info({**statement, **fields})


def make_result(rows, *arrays, **metrics):
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters([*arrays]), rows, metrics)


def test_a_partition_is_of_one_client_and_no_pairs_are_compared():
    for times in (2, 3):
        (fault,) = admission.duplicate_faults([make_info(0), *[make_info(1)] * times])
        assert "[1]" in str(fault)
    assert not admission.duplicate_faults([make_info(0), make_info(1), make_info(2)])
    surplus = str(admission.surplus_error({str(7 + party): make_info(party) for party in range(3)}, 2))
    assert unnamed(surplus, 3, 2, "client 2 at node 9", "client 0", "client 1") == ["client 0", "client 1"]
    steps, before = Counter[int](), sys.gettrace()

    def count(frame, *_):
        frame.f_trace_opcodes = True
        steps[parties] += 1
        return count

    for parties in (2, 50, 100):  # the first fill caches
        infos = [make_info(i, **{"num-partitions": parties}) for i in range(parties)]
        try:
            sys.settrace(count)
            assert admission.admission_faults(infos, partitions=parties, same_features=True) == []
        finally:
            sys.settrace(before)
    assert 1000 < steps[100] < 2.1 * steps[50]


@pytest.mark.parametrize(
    ("odd", "more", "partitions", "named"),
    [
        # the width of most counts, whoever is first
        *((odd, {"features": 5}, 3, (5, f"client {int(odd == 0)}", 4)) for odd in range(3)),
        *((2, {"num-partitions": said}, expected, (said, 3)) for said, expected in ((4, 3), (2, 3), (4, None))),
        (2, {"covariates": "0 1"}, 3, ()),
        *((odd, {"columns": "ab"}, 3, ()) for odd in (0, 2)),
    ],
)
def test_who_says_otherwise_than_the_run_or_most_is_named(odd, more, partitions, named):
    everyone = [make_info(i, **{"columns": "cd", **(more if i == odd else {})}) for i in range(3)]
    (fault,) = admission.admission_faults(everyone, partitions=partitions, same_features=True)
    assert str(fault).startswith(f"client {odd}")
    assert not unnamed(str(fault).removeprefix(f"client {odd}"), *named)


@pytest.mark.parametrize("simulated", [False, True])
def test_sites_need_names_and_simulations_parts_of_one_number(simulated):
    first, second = make_info(0, columns="cd", simulated=simulated), make_info(1, simulated=simulated)
    assert len(admission.mismatch_faults([first, second], partitions=3)) == (not simulated)
    other = make_info(1, columns="cd", simulated=simulated, **{"num-partitions": 4})
    assert len(admission.mismatch_faults([first, other], partitions=None)) == simulated
    faults = admission.mismatch_faults([make_info(0, simulated=False), second], partitions=3)
    assert [str(fault)[:8] for fault in faults] == ["client 1"] * simulated


@pytest.mark.parametrize("partitions", [3, None])
@pytest.mark.parametrize(("features", "faults"), [(0, 3), (1, 0), (MAX_FEATURES, 0), (MAX_FEATURES + 1, 3)])
def test_a_number_of_features_is_one_that_can_be(features, faults, partitions):
    infos = [make_info(i, columns="cd", features=features) for i in range(3)]
    assert len(admission.admission_faults(infos, partitions=partitions, same_features=True)) == faults


@pytest.mark.parametrize(("node", "party"), [("a", 1), ("b", 2), ("new", 0)])
def test_a_node_speaks_as_the_partition_that_it_said_first(node, party):
    """A node must not speak as another partition, as an unknown partition, or in the place of another node."""
    seats = {"a": 0, "b": 1}
    assert len(admission.impersonation_faults([node], [make_info(party)], seats)) == 1
    assert not admission.impersonation_faults(["a", "b", "new"], [make_info(0), make_info(1), make_info(2)], seats)
    lost = parse_info({"partition-id": -1, "error": "ConfigError", "message": "no partition-id"})
    assert not admission.impersonation_faults(["a", "new"], [lost, lost], seats)


@pytest.mark.parametrize(("version", "place"), [(0, "this site"), (MESSAGES + 1, "the server")])
def test_messages_of_another_version_are_named_with_who_upgrades(version, place):
    """Also where a statement has keys that the server does not know, or the site's own error is of the server's."""
    info = make_info(1, name="west", messages=version)
    (fault,) = admission.admission_faults([make_info(0), info], partitions=3, same_features=True)
    report = {"partition-id": 1, "error": "ConfigError", "message": "unknown key 'new'", "messages": version}
    (error,) = admission.reported_errors([make_info(0), parse_info(report)])
    assert isinstance(error, ConfigError)
    with refused(ContractError, "'newer-key'", "client 1 (west) (node 7)") as caught:
        parse_info({"partition-id": 1, "newer-key": 1, "messages": version}, "client 1 (west) (node 7)")
    for text in (str(fault), str(error), str(caught.value)):
        assert text.endswith(f"version {MESSAGES}: upgrade fedpca-flwr at {place}")


def test_the_version_of_messages_grows_with_them():
    """What servers and sites of two versions would take for something else; the pair changes together."""
    scripts = {
        (card.name, phase): [[str(field) for field in payload.fields] for payload in (question.request, question.reply)]
        for card in (method.strategy.card for method in METHODS.values())
        for phase, question in method_questions(card.script, RunConfig(), card.options()).items()
    }
    statements = [sorted(kind.model_fields) for kind in (PartyInfo, ErrorReport)]
    found = hashlib.sha256(repr((sorted(scripts.items()), statements, sorted(RunConfig.keys()))).encode()).hexdigest()
    assert (MESSAGES, found[:16]) == (4, "e101280e6b259526")


def test_invented_names_are_not_the_models_and_control_characters_do_not_travel():
    named = [make_info(0, columns="cf92326f85f50aa8", names=f"a\0b\0c\0{last}") for last in "de"]
    assert [info.feature_names for info in named] == [tuple("abcd"), ()]
    variants = [f"chr10:{place}:A:G" for place in range(4000)]
    info = make_info(0, features=4000, columns=names_digest(variants), names="\0".join(variants))
    assert list(info.feature_names) == variants
    # Only a line may end: a terminal that shows the text of a stranger does nothing else.
    client = client_of(server_of("p-cov", [rows(30, 4), rows(20, 4)], n_components=2), 0)
    for code in [*range(10), *range(11, 32), 127]:
        report = client.site.report(ConfigError(f"one{chr(code)}two\nthree"))
        assert report["message"] == parse_info(report).message == "one?two\nthree"
        with refused(ContractError, "client 0", match="control"):
            parse_info({**report, "message": f"one{chr(code)}two"})


def test_a_reply_of_another_width_is_named_and_in_no_sum():
    """The wrong reply comes first, when nobody can know yet which reply is wrong."""
    consumed, replies, payload = [], [], Payload((Field("count", (), "int64", kind="count"), Field("product", ("d",))))
    incoming = ReplyCollector(payload, {"d": 2}, lambda fields, who: consumed.append((who, fields["product"].size)))
    for party, width in enumerate((3, 2, 2)):
        metrics = {"partition-id": party, "num-partitions": 3, "simulated": True}
        incoming.receive(arrival := make_result(1, np.asarray(1), np.ones(width), **metrics))
        replies.append(make_reply(arrival, parse_info(metrics)))
    assert consumed == [("client 1", 2), ("client 2", 2)]
    incoming.mark_consumed(replies)
    with refused(ContractError, "client 0", 3, "client 1", 2):
        incoming.check(replies)
    with refused(ContractError, "client 0", 0):
        make_reply(make_result(0), make_info(0))
    added = StreamingSum()
    added.add({"a": np.ones(2)}, "client 0")
    with refused(ContractError, "client 1", "'a'", (3,), (2,)):
        added.add({"a": np.ones(3)}, "client 1")


@pytest.mark.parametrize(
    ("odd", "sums_only", "named"),
    [
        *((odd, False, ["client 1", "'second'", f"{odd:.0e}"]) for odd in (1e150, 1e-150)),
        *((odd, sums_only, []) for odd, sums_only in ((1e9, False), (1e150, True), (1e-150, True))),
    ],
)
def test_whose_numbers_are_out_of_all_proportion_is_named(odd, sums_only, named):
    for real, size in (({"a": np.array([1.0, -5.0]), "empty": np.empty(0)}, 5.0), ({}, 0.0)):
        assert max_magnitude({**real, "count": np.asarray(10**9)}) == size
    magnitudes, sizes = Magnitudes(sums_only=sums_only), {"client 0": 1.0, "client 1": odd, "client 2": 2.0}
    with magnitudes.guard("first", dict.fromkeys(sizes, 1.0)):
        pass
    with refused(ContractError, "'second'", *named) as caught, magnitudes.guard("second", sizes):
        raise ValueError
    assert str(caught.value).startswith("client") == bool(named)


def test_huge_numbers_explain_errors_and_overflow_is_one():
    """A run of usual numbers spends no time on the check."""
    for size, explains in ((1e130, False), (1e150, True)):
        magnitudes, error = Magnitudes(sums_only=False), DataError("its rows are no numbers")
        with magnitudes.guard("first", {"client 0": 1.0, "client 1": size}):
            pass
        assert (magnitudes.explain(error) is not error) is explains
        assert str(magnitudes.explain(error)).startswith("client 1: its reply to 'first'") is explains
    numbers = np.array([1e200])
    with refused(ContractError, "'first'"), Magnitudes(sums_only=False).guard("first", {"client 0": 1e150}):
        numbers * numbers
    with np.errstate(over="ignore"), Magnitudes(sums_only=False).guard("first", {"client 0": 1.0}):
        numbers * numbers
