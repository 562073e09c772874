"""Hostile or broken replies at the server: each a named error, whatever they hold."""

import io
import operator
import re

import numpy as np
import pytest
from flwr.common import Code, Parameters, Status

from fedpca_flwr.errors import ContractError, DataError, FedPCAError
from tests.families import cut, rows
from tests.harness import finish, peak_of, proxy_of, say, server_of, tamper, tamper_arrays
from tests.refusals import refused


def of(*sizes, **options):
    return server_of("p-cov", cut(rows(90), *sizes), n_components=2, **options)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


OTHERS = [{"simulated": False}, {"covariates": "1"}, {"name": "a\x1b[2J"}, {"stranger": 1}, {"messages": -1}]
STATEMENTS = [
    *({"partition-id": wrong} for wrong in (None, "abc", 1.9, -1, 7, 0, 2**70)),
    *({"num-partitions": wrong} for wrong in (None, 2.0, 9)),
    *(*OTHERS, {"simulated": "yes"}, {"columns": "a,b"}, {"journal": "?"}, {"error": "ContractError"}),
    *({"error": name, "message": text} for name, text in (("ContractError", "no"), ("X", "no"), ("X", "\x1b[2J"))),
]
TENSORS = [b"\x93NUMPY garbage", b"", *map(npy, (np.array([{}], dtype=object), np.array(["a"]), np.ones((2, 3, 4))))]
PAYLOADS = [
    lambda reply: reply.parameters.tensors.clear(),
    lambda reply: reply.parameters.tensors.append(npy(np.ones(3))),
    lambda reply: setattr(reply, "num_examples", 0),
    lambda reply: setattr(reply, "status", Status(Code.FIT_NOT_IMPLEMENTED, "within its deadline")),
    *(
        lambda reply, place=place, content=content: operator.setitem(reply.parameters.tensors, place, content)
        for place in (0, 1)
        for content in TENSORS
    ),
]


@pytest.mark.parametrize("phase", ["moments", "project"])
@pytest.mark.parametrize("fault", [*STATEMENTS, *PAYLOADS])
def test_every_fault_of_one_reply_names_its_sender(fault, phase):
    """In every line of the error, also before the reply is read."""
    server = of(30, 30, 30)
    if isinstance(fault, dict):
        say(server, 1, phase, **fault)
    else:
        tamper(server, 1, lambda reply: fault(reply) or reply, phase)
    with pytest.raises(FedPCAError) as caught:
        finish(server)
    for line in str(caught.value).splitlines():
        assert re.search(r"client 1\b", line), line


def claim(server, party, statement):
    """Let a party say something else of itself before the first round; None: say nothing."""
    proxy = proxy_of(server, party)
    honest = proxy.get_properties

    def get_properties(*question, **limits):
        reply = honest(*question, **limits)
        reply.properties = {key: value for key, value in {**reply.properties, **statement}.items() if value is not None}
        return reply

    proxy.get_properties = get_properties


@pytest.mark.parametrize("statement", STATEMENTS, ids=str)
def test_every_fault_of_a_first_statement_names_its_sender(statement):
    server = of(30, 30, 30)
    claim(server, 1, statement)
    with pytest.raises(FedPCAError) as caught:
        finish(server)
    named = rf"client 1\b|node 2\b|client {statement.get('partition-id')}\b|\[0\]"
    assert re.search(named, str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        *((1, wrong, ["'squared'", "NaN"]) for wrong in (np.nan, np.inf)),
        (1, -1.0, ["'squared'", -1, 0]),
        (0, -30, ["'count'", -30, 1]),
        (0, 29, [29, 30]),
    ],
)
def test_the_last_round_is_checked_too(place, value, named):
    server = of(60, 30)

    def change(arrays):
        arrays[place] = np.asarray(value, arrays[place].dtype)
        return arrays

    tamper_arrays(server, 1, change, "project")
    with refused(ContractError, "client 1", *named):
        finish(server)
    with refused(ContractError, "p-cov", "num_rounds=strategy.rounds"):
        server.strategy.model  # noqa: B018


@pytest.mark.parametrize(
    ("phase", "rows_said", "what"), [("", 31, "30.*31"), ("project", -30, "-30 rows"), ("project", 29, "changed")]
)
def test_what_its_message_says_is_checked_in_every_round(phase, rows_said, what):
    server = of(60, 30)
    tamper(server, 1, lambda reply: setattr(reply, "num_examples", rows_said) or reply, phase)
    with refused(ContractError, "client 1", match=what):
        finish(server)


@pytest.mark.parametrize("phases", [["moments"], ["project"], ["moments", "project"]], ids=str)
@pytest.mark.parametrize("partitions", [{1: 2, 2: 1}, {1: 2}, {1: 2, 2: 0, 0: 1}, {1: 7}], ids=str)
def test_a_node_speaks_as_its_own_partition_in_every_round(phases, partitions):
    """The fault: two nodes exchanged their partitions unnoticed, so that the acts of each counted as the other's."""
    server = of(30, 30, 30)
    for phase in phases:
        for party, partition in partitions.items():
            say(server, party, phase, **{"partition-id": partition})
    with refused(ContractError, "client 1", f"partition {partitions[1]}"):
        finish(server)


SECURE = {"secure_aggregation": True, "bound": 50.0}


@pytest.mark.parametrize("way", [{}, SECURE], ids=["clear", "masked"])
def test_an_error_in_the_name_of_another_blames_who_sent_it(way):
    server = of(30, 30, 30, **way)
    lie = {"partition-id": 0, "error": "DataError", "message": "my rows are no numbers"}
    tamper(server, 2, lambda reply: setattr(reply, "metrics", lie) or reply)
    with refused(ContractError, "client 2", "partition 0") as caught:
        finish(server)
    assert "client 0" not in str(caught.value)


@pytest.mark.engine
@pytest.mark.parametrize("secure", [{}, SECURE, {**SECURE, "survivors": 3}], ids=["clear", "masked", "surviving"])
@pytest.mark.parametrize("features", [50_000, 10**6])
def test_one_partys_claim_of_many_features_is_not_believed(secure, features):
    """Nor does the claim cost the server memory."""
    server = of(30, 30, 30, **secure)
    claim(server, 0, {"features": features})

    def named():
        with refused(DataError, "client 0", features, "client 1", 12):
            finish(server)

    assert peak_of(named) < 2**26
    claim(server, 1, {"features": 2**62})
    with refused(ContractError, "client 1", 2**62):
        finish(server)


def header(shape, dtype="'<f8'"):
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


ODD = {
    "huge shape": header("(1099511627776,)") + bytes(64),
    "negative shape": header("(-1, -1)") + bytes(64),
    "deep header": header("(" * 3000 + ")" * 3000),
    "structured": header("(1,)", "[('a', '<f8')]") + bytes(8),
    "zero itemsize": header("(4611686018427387904,)", "'|V0'"),
    "no array": b"\x00" * 100,
    "no header": b"\x93NUMPY\x01\x00v\x00" + b"(((".ljust(117) + b"\n" + bytes(8),
    "no hash": b"\x93NUMPY\x01\x00v\x00" + b"{[]:1}".ljust(117) + b"\n" + bytes(8),
    "too few bytes": header("(9999999999,)") + b"x" * 8,
    "objects": header("(1,)", "'|O'") + b"x" * 8,
    "text": b"garbage",
}


def refuse_tensors(party, change, *named):
    def changed(reply):
        reply.parameters = Parameters(change(reply.parameters.tensors), "numpy.ndarray")
        return reply

    server = of(30, 30, 30)
    tamper(server, party, changed)
    with refused(ContractError, f"client {party}", *named):
        finish(server)


@pytest.mark.parametrize("tensor", ODD.values(), ids=ODD)
def test_odd_arrays_are_refused_by_name(tensor):
    refuse_tensors(1, lambda _: [tensor] * 4)


def test_a_hundred_thousand_arrays_are_not_read(monkeypatch):
    monkeypatch.setattr("fedpca_flwr.protocol.payload._array_view", lambda _: pytest.fail("an array was read"))
    refuse_tensors(0, lambda tensors: tensors[:1] * 100_000, 100000, 4)


def test_a_variance_of_nan_does_not_fit_what_the_parties_measure(monkeypatch):
    server = of(30, 30, 30)
    monkeypatch.setattr(type(server.strategy), "squared_error", lambda self, model: np.nan)
    with refused(ContractError, "nan"):
        finish(server)
