"""Hostile, broken or false replies at the server: each a named error of ours or a finite model, whatever they hold."""

import io
import operator
import re
import warnings
from functools import partial
from itertools import count, cycle, product

import numpy as np
import pytest
from flwr.common import Code, Status

from fedpca_flwr.errors import ConfigError, ContractError, DataError, FedPCAError
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports import encoding, masked, surviving
from fedpca_flwr.transports.recommendation import transports_of
from tests.families import cut, rows
from tests.harness import finish, fit, own, peak_of, proxy_of, say, server_of, tamper, tamper_arrays
from tests.refusals import refused, unnamed

SECURE = {"secure_aggregation": True, "bound": 50.0}
OTHERS = [{"simulated": False}, {"covariates": "1"}, {"name": "a\x1b[2J"}, {"stranger": 1}, {"messages": -1}]
STATEMENTS = [
    *({"partition-id": wrong} for wrong in (None, "abc", 1.9, -1, 7, 0, 2**70)),
    *({"num-partitions": wrong} for wrong in (None, 2.0, 9)),
    *(*OTHERS, {"simulated": "yes"}, {"columns": "a,b"}, {"journal": "?"}, {"error": "ContractError"}),
    *({"error": name, "message": text} for name, text in (("ContractError", "no"), ("X", "no"), ("X", "\x1b[2J"))),
]
CARDS = {name: method.strategy.card for name, method in METHODS.items()}
FITTING = [name for name, card in CARDS.items() if not card.loadings_source]
"""Methods that compute a model of what parties reply."""
CASES = [(name, n) for name in FITTING for n in range(len(CARDS[name].examples))]
"""Every method with each set of options of its card; what is false takes turns."""
SUMMED = {**SECURE, "bound": 100.0, "min_parties": 2}
WAYS = {"masked": SUMMED, "surviving": {**SUMMED, "survivors": 3}}
HUGE = {
    **{f"times {factor}": partial(np.multiply, factor) for factor in (1e300, 1e200)},
    "up to 1e308": lambda values: values * (1e308 / (np.abs(values).max(initial=0.0) or 1.0)),
    "all 1e308": lambda values: np.full_like(values, 1e308),
}
FALSE = {
    **HUGE,
    **{f"times {factor}": partial(np.multiply, factor) for factor in (1e150, 1e-300)},
    "zero": np.zeros_like,
    "negative": np.negative,
}
ARRAYS = [("times 1e+300", place) for place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0))]
"""Places are questions and fields, by their number."""
RANDOM = np.random.default_rng(0).integers(0, 2**64, 10**5, np.uint64)
SHARES = {
    "random words": lambda words: np.append(words[:1], RANDOM[1 : words.size]),
    "half random": lambda words: np.append(words[: words.size // 2], RANDOM[words.size // 2 : words.size]),
    "negative": lambda words: np.append(words[:1], -words[1:]),
}
SUMS = [(name, way) for name in FITTING for way in transports_of(METHODS[name]) if way in WAYS]


def of(*sizes, **options):
    return server_of("p-cov", cut(rows(90), *sizes), n_components=2, **options)


def npy(array):
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


def header(shape, dtype="'<f8'"):
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


ODD = [
    *(header(shape) + bytes(64) for shape in ("(1099511627776,)", "(-1, -1)", "(" * 3000 + ")" * 3000)),
    *(header("(1,)", "[('a', '<f8')]") + bytes(8), header("(4611686018427387904,)", "'|V0'"), bytes(100)),
    *(b"\x93NUMPY\x01\x00v\x00" + text.ljust(117) + b"\n" + bytes(8) for text in (b"(((", b"{[]:1}")),
]
TENSORS = [b"\x93NUMPY garbage", b"", *map(npy, (np.array([{}], dtype=object), np.array(["a"]), np.ones((2, 3, 4))))]
PAYLOADS = [
    *(lambda reply: reply.parameters.tensors.clear(), lambda reply: reply.parameters.tensors.append(npy(np.ones(3)))),
    lambda reply: setattr(reply, "num_examples", 0),
    lambda reply: setattr(reply, "status", Status(Code.FIT_NOT_IMPLEMENTED, "within its deadline")),
    *(
        lambda reply, place=place, content=content: operator.setitem(reply.parameters.tensors, place, content)
        for place, content in [*product((0, 1), TENSORS), *((1, odd) for odd in ODD)]
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
    ("reply", "named"),
    [
        *(([30, wrong], ["'squared'", "NaN"]) for wrong in (np.nan, np.inf)),
        *(([30, -1.0], ["'squared'", -1, 0]), ([-30, 1.0], ["'count'", -30, 1])),
    ],
)
def test_the_last_round_is_checked_too(reply, named):
    server = of(60, 30)
    tamper_arrays(server, 1, lambda _: [np.asarray(reply[0]), np.asarray(reply[1])], "project")
    with refused(ContractError, "client 1", *named):
        finish(server)
    with refused(ContractError, "p-cov", "num_rounds=strategy.rounds"):
        server.strategy.model  # noqa: B018


def test_what_its_message_says_is_checked_in_every_round_and_its_arrays_counted():
    for phase, number, what in (("", 31, "30.*31"), ("project", -30, "-30 rows"), ("project", 29, "changed")):
        server = of(60, 30)
        tamper(server, 1, lambda reply, said=number: setattr(reply, "num_examples", said) or reply, phase)
        with refused(ContractError, "client 1", match=what):
            finish(server)
    server = of(30, 30, 30)  # none of these is an array: to read one is another refusal
    tamper(server, 0, lambda reply: setattr(reply.parameters, "tensors", [b""] * 100_000) or reply)
    with refused(ContractError, "client 0", 100000, 4):
        finish(server)


@pytest.mark.parametrize("way", [{}, SECURE], ids=["clear", "masked"])
@pytest.mark.parametrize("phases", [["moments"], ["project"], ["moments", "project"]], ids=str)
@pytest.mark.parametrize("partitions", [{1: 2, 2: 1}, {1: 2}, {1: 2, 2: 0, 0: 1}, {1: 7}], ids=str)
def test_a_node_speaks_as_its_own_partition_in_every_round(phases, partitions, way):
    """The fault: two nodes exchanged their partitions unnoticed, so that the acts of each counted as the other's."""
    server = of(30, 30, 30, **way)
    for phase in phases:
        for party, partition in partitions.items():
            say(server, party, phase, **{"partition-id": partition})
    with refused(ContractError, "client 1", f"partition {partitions[1]}"):
        finish(server)


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
    server = of(30, 30, 30, **secure)
    claim(server, 0, {"features": features})

    def named():
        with refused(DataError, "client 0", features, "client 1", 12):
            finish(server)

    assert peak_of(named) < 2**26
    claim(server, 1, {"features": 2**62})
    with refused(ContractError, "client 1", 2**62):
        finish(server)


def in_turn(every, times):
    """Return each case with values from a cycle; a method's first options get several values."""
    drawn = cycle(every)
    return [(*case, *next(drawn)) for case in CASES for _ in range(1 if case[1] else times)]


def parties_of_three(method, example):
    if CARDS[method].split == "columns":
        return np.split(rows(60), [6, 10], axis=1)
    parties = cut(rows(300), 180, 100, 20)
    return [np.digitize(part, [-0.1, 0.1]) * 1.0 for part in parties] if example.get("genotypes") else parties


def run_to_end(server):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            model = finish(server)
        except FedPCAError as error:
            return str(error)
    unknown = model.log["measured"].get("components_above_noise") == 0  # then no variance is told
    variances = () if unknown else (model.explained_variance_, model.explained_variance_ratio_)
    for values in (model.components_, model.scores_, *variances):
        assert values is None or np.isfinite(values).all()
    return ""


@pytest.mark.parametrize(("method", "number", "kind", "place"), in_turn(product(FALSE, [()]), 3) + in_turn(ARRAYS, 2))
def test_a_false_reply_ends_in_our_words_or_in_a_model(method, number, kind, place):
    """False are all real numbers of client 1, or only those of an array in the reply to a question."""
    example, asked = CARDS[method].examples[number], count()
    # what a run needs here, as a state of its own, comes last
    server = server_of(method, parties_of_three(method, example), **{"n_components": 2, **example, **own(method)})

    def changed(arrays):
        question = next(asked)
        with np.errstate(all="ignore"):
            return [
                FALSE[kind](array).astype(array.dtype)
                if array.dtype.kind == "f" and place in {(), (question, field)}
                else array
                for field, array in enumerate(arrays)
            ]

    tamper_arrays(server, 1, changed)
    error_text = run_to_end(server)
    assert kind not in HUGE or not error_text or "client 1: " in error_text.split("\n")[0]


@pytest.mark.parametrize(
    ("method", "way", "share"),
    [(*one, share) for i, one in enumerate(SUMS) for share in (list(SHARES)[i % 3], list(SHARES)[(i + 1) % 3])],
)
def test_a_false_share_of_a_secure_sum_does_too(method, way, share, monkeypatch):
    """Client 1 follows all rules and counts itself once, but adds words that are no part of anything."""
    honest = encoding.encode_answer

    def encoded(party, *arguments):
        vector = honest(party, *arguments)
        return SHARES[share](vector) if party.site.node.partition_id == 1 else vector

    for module in (masked, surviving):
        monkeypatch.setattr(module, "encode_answer", encoded)
    assert "client 1" not in run_to_end(server_of(method, parties_of_three(method, {}), n_components=2, **WAYS[way]))


def test_false_numbers_are_told_and_a_failure_that_no_size_explains_names_nobody(monkeypatch):
    server = server_of("spca", parties_of_three("spca", {}), n_components=2)
    tamper_arrays(server, 1, lambda arrays: [a * 1e300 if a.dtype.kind == "f" else a for a in arrays])
    with refused(ContractError, "client 1", "'summary'", "1.39e+302", "85.2") as caught:
        finish(server)
    assert isinstance(caught.value.__cause__, FloatingPointError)
    # The fault: a party in a large unit was blamed for the value of an option.
    with pytest.raises(ConfigError) as caught:
        fit("vertical", [rows(10, 3), rows(10, 3, seed=1) * 1e90], n_components=3, solver="merge", rank=1)
    option, sizes = str(caught.value).splitlines()
    assert not unnamed(option, "'rank'", 1, "n_components", 3)
    assert not unnamed(sizes, "party 1", "'rows'")
    server = of(30, 30, 30)
    strategy = type(server.strategy)
    honest = strategy.program

    def failing(self):
        yield next(honest(self))
        raise np.linalg.LinAlgError("of the library")

    monkeypatch.setattr(strategy, "program", failing)
    with refused(ContractError, "'moments'", "LinAlgError") as caught:
        finish(server)
    assert "of the library" not in str(caught.value)
    monkeypatch.setattr(strategy, "program", honest)
    monkeypatch.setattr(strategy, "squared_error", lambda self, model: np.nan)
    with refused(ContractError, "nan"):
        finish(of(30, 30, 30))
