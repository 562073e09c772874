"""The order of questions, numbers of the run that stay, what an answer takes, and who drives a program."""

from dataclasses import replace

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import HEADER_BYTES, Field, Payload
from fedpca_flwr.protocol.question import (
    Public,
    Question,
    Round,
    SumRound,
    answer_cost,
    max_reply_cost,
    require_next,
    require_unchanged,
)
from fedpca_flwr.protocol.transport import relay
from tests.refusals import refused

PUBLIC = Public(RunConfig(), None, parties=3, features=5)
VALUES = Payload((Field("values", ("d",)),))
SCRIPT = {
    "first": Question(reply=VALUES),
    "twice": Question(reply=VALUES, times=2),
    "or not": Question(reply=VALUES, optional=True),
    "never": Question(reply=VALUES, times=lambda public: public.parties - 3),
    "last": Question(reply=VALUES),
}


def test_a_script_is_asked_in_its_order():
    for names in (["first", "twice", "twice", "or not", "last"], ["first", "twice", "last"]):
        for i, phase in enumerate(names):
            require_next(SCRIPT, names[:i], phase, PUBLIC)
    before, after = ["", "first", "first, twice", "first, twice, twice"], ["first, twice, or not", "first, twice, last"]
    wrongs = ["twice", "first, or not, last", "never, another", "twice", "twice, or not", "or not, last"]
    for answered, wrong in zip(before + after, wrongs, strict=True):
        for phase in wrong.split(", "):
            with refused(ContractError, phase):
                require_next(SCRIPT, answered.split(", ") if answered else [], phase, PUBLIC)


CONSTANTS = Payload((Field("centre", ("d",), constant="centre"), Field("spread", ("d",), constant="spread")))
CONSTANT_OR_ZERO = Payload((Field("mean", ("d",), constant_or_zero="centre"),))
CENTRE, SPREAD = np.array([1000.0, 0.0]), np.array([1.0, 2.0])
REQUEST = {"centre": CENTRE, "spread": SPREAD}


def test_numbers_of_the_run_stay_and_a_mean_is_theirs_or_zero():
    """To the last bit."""
    told: dict[str, list] = {}
    for _ in range(2):
        require_unchanged(CONSTANTS, REQUEST, told)
    for mean in (CENTRE, np.zeros(2)):
        require_unchanged(CONSTANT_OR_ZERO, {"mean": mean}, told)
    changes = (
        (CONSTANTS, REQUEST, "centre"),
        (CONSTANTS, REQUEST, "spread"),
        (CONSTANT_OR_ZERO, {"mean": CENTRE}, "mean"),
    )
    for payload, request, name in changes:
        with refused(ContractError, f"'{name}'"):
            require_unchanged(payload, {**request, name: np.nextafter(request[name], 2000)}, told)


def test_bytes_and_memory_of_questions_and_answers():
    summed = Question(reply=VALUES, words=3, plain_reply=Payload((*VALUES.fields, Field("count", ()))))
    assert summed.nbytes({"d": 5}) == HEADER_BYTES + 8 * (1 + 3 * (5 + 1))
    shared = replace(summed, words=lambda sizes: {"values": (1, sizes["d"] - 2)})  # the second digits of three a word
    assert shared.nbytes({"d": 5}) == HEADER_BYTES + 8 * (1 + 5 + 2 + 1)
    assert answer_cost(SCRIPT["first"], {"d": 5})[1] == HEADER_BYTES + 8 * 5
    assert answer_cost(Question(reply=VALUES, work_shape=("d", "d")), {"d": 5})[1] == HEADER_BYTES + 8 * 5**2
    wide = Question(reply=Payload((Field("wide", ("d", "d")),)), optional=True)
    assert max_reply_cost({**SCRIPT, "wide": wide}, PUBLIC, 7) == (HEADER_BYTES + 8 * 5, HEADER_BYTES + 8 * 5)


def drive(ask):
    """Return the phases that a relayed program asks, each answered by its name, and what the program returns."""

    def program():
        return (yield Round("first")), (yield SumRound("second"))

    run, phases, answer = relay(program(), ask), [], None
    while True:
        try:
            answer = run.send(answer).phase
        except StopIteration as end:
            return phases, end.value
        phases.append(answer)


def test_a_relayed_question_may_bring_another():
    def put(question):
        if not isinstance(question, SumRound):
            return (yield question)
        return (yield Round("keys")), (yield question)

    def answered(question):
        return None if isinstance(question, SumRound) else (yield question)

    assert drive(put) == (["first", "keys", "second"], ("first", ("keys", "second")))
    assert drive(answered) == (["first"], ("first", None))
