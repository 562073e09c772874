"""The order in which questions may come, numbers of the run that stay, and what an answer takes."""

import numpy as np
import pytest

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.memory import largest
from fedpca_flwr.protocol.payload import HEADER, Field, Payload
from fedpca_flwr.protocol.question import ROUNDING, Public, Question, require_as_told, require_next
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


@pytest.mark.parametrize("asked", [["first", "twice", "twice", "or not", "last"], ["first", "twice", "last"]])
def test_a_script_is_asked_in_its_order(asked):
    for i, phase in enumerate(asked):
        require_next(SCRIPT, asked[:i], phase, PUBLIC)


@pytest.mark.parametrize(
    ("answered", "phase"),
    [
        ([], "twice"),
        (["first"], "first"),
        (["first"], "or not"),
        (["first"], "last"),
        (["first", "twice", "twice"], "twice"),
        (["first", "twice", "or not"], "twice"),
        (["first", "twice", "or not"], "or not"),
        (["first", "twice", "last"], "or not"),
        (["first", "twice", "last"], "last"),
        (["first", "twice"], "never"),
        (["first", "twice"], "another"),
    ],
)
def test_nothing_is_left_out_repeated_or_asked_again(answered, phase):
    with refused(ContractError, phase):
        require_next(SCRIPT, answered, phase, PUBLIC)


TOLD = Payload((Field("centre", ("d",), fixed="centre"), Field("spread", ("d",), fixed="spread")))
NEAR = Payload((Field("mean", ("d",), near="centre"),))
CENTRE, SPREAD = np.array([1000.0, 0.0]), np.array([1.0, 2.0])


@pytest.fixture
def told():
    state: dict[str, list] = {}
    require_as_told(TOLD, {"centre": CENTRE, "spread": SPREAD}, state)
    return state


@pytest.mark.parametrize("changed", ["centre", "spread"])
def test_a_number_of_the_run_stays_to_the_last_bit(changed, told):
    asked = {"centre": CENTRE, "spread": SPREAD}
    require_as_told(TOLD, asked, told)
    with refused(ContractError, f"'{changed}'"):
        require_as_told(TOLD, {**asked, changed: np.nextafter(asked[changed], 2000)}, told)


def test_a_mean_is_the_centre_but_for_its_rounding_or_zero(told):
    off = ROUNDING * (CENTRE + SPREAD)
    for mean in (CENTRE, CENTRE + off / 2, CENTRE - off / 2, np.zeros(2)):
        require_as_told(NEAR, {"mean": mean}, told)
    for mean in (CENTRE + [2 * off[0], 0], CENTRE - [0, 2 * off[1]]):
        with refused(ContractError, "'mean'"):
            require_as_told(NEAR, {"mean": mean}, told)
    assert ROUNDING <= 1e-12


def test_bytes_and_memory_of_questions_and_answers():
    summed = Question(reply=VALUES, words=3, summed=Payload((*VALUES.fields, Field("count", ()))))
    assert summed.nbytes({"d": 5}) == HEADER + 8 * (1 + 3 * (5 + 1))
    assert SCRIPT["first"].memory({"d": 5}) == HEADER + 8 * 5
    assert Question(reply=VALUES, forms=("d", "d")).memory({"d": 5}) == HEADER + 8 * 5**2
    wide = Question(reply=Payload((Field("wide", ("d", "d")),)), optional=True)
    assert largest({**SCRIPT, "wide": wide}, PUBLIC, 7) == (HEADER + 8 * 5, HEADER + 8 * 5)
