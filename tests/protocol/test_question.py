"""What fields hold, who is named where replies do not go together, the order and cost of questions, and who asks."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import HEADER_BYTES, Field, Payload, check_together, write_array
from fedpca_flwr.protocol.question import Public, Question, Round, SumRound, answer_cost, max_reply_cost, require_next
from fedpca_flwr.protocol.transport import relay
from tests.refusals import refused

MEAN = Field("mean", ("d",))
POSITIVE = Field("values", ("d",), kind="positive")
SCATTER = Field("scatter", ("d(d+1)/2",), kind="scatter")
OPTIONAL = Field("remainder", ("d",), optional=True)
V = np.linalg.qr(np.arange(6.0).reshape(3, 2) ** 2 + 1).Q
COLUMNS = Field("block", ("n", "d"), kind="orthonormal columns")
ROWS = Field("block", ("d", "n"), kind="orthonormal rows")
PUBLIC = Public(RunConfig(), None, parties=3, features=5)
VALUES = Payload((Field("values", ("d",)),))
SCRIPT = {
    "first": Question(reply=VALUES),
    "twice": Question(reply=VALUES, times=2),
    "or not": Question(reply=VALUES, optional=True),
    "never": Question(reply=VALUES, times=lambda public: public.parties - 3),
    "last": Question(reply=VALUES),
}


def far_from_orthonormal(block):
    """Return blocks that are not orthonormal; the last has inner products that are infinity less infinity."""
    return [block * (1 + 1e-5), block[..., ::-1] + 1e-4 * block, np.zeros_like(block), np.copysign(1e200, block)]


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        (MEAN, [[1.0, -1.0]], [[1.0, np.nan], [1.0, np.inf], [1.0, -np.inf], []]),
        (POSITIVE, [[1.0, 5e-324]], [[1.0, low] for low in (0.0, -0.0, -5e-324, -1.0, np.nan, np.inf, -np.inf)]),
        (Field("count", (), "int64", kind="count"), [1, 2**40], [0, -1]),
        (Field("size", ("d",), kind="size"), [[0.0, 1.0]], [[-5e-324, 1.0]]),
        (SCATTER, [[2.0, entry, 2.0] for entry in (2.0, -2.0)], [[2.0, entry, 2.0] for entry in (2.002, -2.002)]),
        (SCATTER, [[2.0, 2 + 1e-9, 2.0]], [[2.0, 2 + 4e-9, 2.0]]),
        (Field("values", ("<=d",)), [[], [1.0], [1.0, 1.0]], [[1.0] * 3]),
        *((SCATTER, [[2.0, 0.0, 0.0]], [[2.0, 0.0, -5e-324]]), (OPTIONAL, [[], [0.0, 0.0]], [[0.0]])),
        (COLUMNS, [V, V.astype(np.float32)], far_from_orthonormal(V)),
        (ROWS, [V.T, V.T.astype(np.float32)], far_from_orthonormal(V.T)),
    ],
    ids=str,
)
def test_a_field_holds_numbers_of_its_kind_and_length(field, right, wrong):
    for values in right:
        Payload((field,)).check({field.name: np.array(values)}, "client 1", {"d": 2, "n": 3})
    for values in wrong:
        with refused(ContractError, "client 1", f"'{field.name}'"):
            Payload((field,)).check({field.name: np.array(values)}, "client 1", {"d": 2, "n": 3})


@pytest.mark.parametrize(("odd", "dtype"), list(enumerate(["float32", "int64", ">f8"])))
def test_an_odd_number_of_features_is_named_first_and_an_odd_type(odd, dtype):
    """A wrong number of features may make the fields of all other replies wrong."""
    replies = {f"client {i}": {"mean": np.zeros(3) if i == odd else np.full(2, np.nan)} for i in range(3)}
    with refused(ContractError, f"client {odd}", 3, f"client {int(odd == 0)}", 2):
        check_together(Payload((MEAN,)), replies, {})
    Payload((MEAN,)).name_arrays([np.zeros(2)], "client 1")
    with refused(ContractError, "client 1", "'mean'"):
        Payload((MEAN,)).name_arrays([np.zeros(2, dtype)], "client 1")


def test_lengths_and_bytes_follow_from_the_sizes():
    sizes = {"n": 4, "d": 3, "k": 2}
    assert Field("all", ("d(d+1)/2", "n(n+1)/2", "trapezoid", "<=k", "7")).lengths(sizes) == (6, 10, 6, 2, 7)
    payload = Payload((Field("one", ("d",), "float32 or float64"), Field("other", ("k",), optional=True)))
    assert payload.nbytes(sizes) == 2 * HEADER_BYTES + 4 * 3
    assert payload.nbytes(sizes, with_optional=True) == 2 * HEADER_BYTES + 4 * 3 + 8 * 2
    assert Payload((OPTIONAL, MEAN)).count_features({"remainder": np.zeros(0), "mean": np.zeros(3)}) == 3
    summed = Question(reply=VALUES, words=3, plain_reply=Payload((*VALUES.fields, Field("count", ()))))
    assert summed.nbytes({"d": 5}) == HEADER_BYTES + 8 * (1 + 3 * (5 + 1))
    shared = replace(summed, words=lambda sizes: {"values": (1, sizes["d"] - 2)})  # the second digits of three a word
    assert shared.nbytes({"d": 5}) == HEADER_BYTES + 8 * (1 + 5 + 2 + 1)
    assert answer_cost(SCRIPT["first"], {"d": 5})[1] == HEADER_BYTES + 8 * 5
    assert answer_cost(Question(reply=VALUES, work_shape=("d", "d")), {"d": 5})[1] == HEADER_BYTES + 8 * 5**2
    wide = Question(reply=Payload((Field("wide", ("d", "d")),)), optional=True)
    assert max_reply_cost({**SCRIPT, "wide": wide}, PUBLIC, 7) == (HEADER_BYTES + 8 * 5, HEADER_BYTES + 8 * 5)


@pytest.mark.parametrize("shape", [(), (0, 4), (1, 5), (3, 4, 2)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_travel_as_numpy_writes_them(shape, order):
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for array in (numbers.astype(float, order=order), np.stack([numbers] * 4, axis=-1).astype(">u2")[..., ::2]):
        file = io.BytesIO()
        np.save(file, array)
        assert write_array(array) == file.getvalue()
    array, field = numbers.astype(float, order=order), Field("values", tuple(map(str, shape)))
    np.testing.assert_array_equal(Payload((field,)).read([write_array(array)], "client 0")["values"], array)


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


def test_a_relayed_question_may_bring_another():
    def program():
        return (yield Round("first")), (yield SumRound("second"))

    def put(question):
        if not isinstance(question, SumRound):
            return (yield question)
        return (yield Round("keys")), (yield question)

    def answered(question):
        return None if isinstance(question, SumRound) else (yield question)

    for ask, answers, result in ((put, "abc", ("a", ("b", "c"))), (answered, "a", ("a", None))):
        run = relay(program(), ask)
        phases = [next(run).phase, *(run.send(answer).phase for answer in answers[:-1])]
        assert phases == ["first", "keys", "second"][: len(answers)]
        with pytest.raises(StopIteration) as end:
            run.send(answers[-1])
        assert end.value.value == result
