"""What fields may hold, and who is named where replies do not go together."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import HEADER, Field, Payload, check_together
from tests.refusals import refused

ONE = Payload((Field("values", ("d",), kind="positive"),))
SCATTER = Payload((Field("scatter", ("d(d+1)/2",), kind="scatter"),))
MEAN = Payload((Field("mean", ("d",)),))


def check(payload, *values):
    payload.check({payload.fields[0].name: np.array(values)}, "client 1", {"d": 2})


@pytest.mark.parametrize("low", [0.0, -0.0, -5e-324, -1.0])
def test_what_must_be_positive_is_above_zero(low):
    check(ONE, 1.0, 5e-324)
    with refused(ContractError, "client 1", "'values'", 0):
        check(ONE, 1.0, low)


@pytest.mark.parametrize("entry", [2.0, -2.0])
def test_a_scatter_has_no_entry_larger_than_its_diagonal_whatever_its_sign(entry):
    check(SCATTER, 2.0, entry, 2.0)
    with refused(ContractError, "client 1", "'scatter'"):
        check(SCATTER, 2.0, entry * 1.001, 2.0)


@pytest.mark.parametrize("odd", range(3))
def test_of_several_faults_the_odd_number_of_features_is_named_first(odd):
    """What the others send may be wrong because of it."""
    replies = {f"client {i}": {"mean": np.full(2, np.nan)} for i in range(3)}
    replies[f"client {odd}"] = {"mean": np.zeros(3)}
    with refused(ContractError, f"client {odd}", 3, f"client {int(odd == 0)}", 2):
        check_together(MEAN, replies, {})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_of_every_kind(value):
    for payload in (ONE, MEAN):
        with refused(ContractError, "client 1"):
            check(payload, 1.0, value)


def test_values_are_not_below_zero_nor_missing_where_they_may_not():
    size = Payload((Field("size", ("d",), kind="size"),))
    check(size, 0.0, 1.0)
    with refused(ContractError, "client 1", "'size'"):
        check(size, -5e-324, 1.0)
    with refused(ContractError, "client 1", "'scatter'"):
        check(SCATTER, 2.0, 0.0, -5e-324)
    payload = Payload((Field("remainder", ("d",), optional=True),))
    for length in (0, 2):
        payload.check({"remainder": np.zeros(length)}, "client 1", {"d": 2})
    for allowed, length in ((payload, 1), (MEAN, 0)):
        name = allowed.fields[0].name
        with refused(ContractError, "client 1", f"'{name}'"):
            allowed.check({name: np.zeros(length)}, "client 1", {"d": 2})


V = np.linalg.qr(np.arange(6.0).reshape(3, 2) ** 2 + 1).Q


@pytest.mark.parametrize(("kind", "right"), [("orthonormal columns", V), ("orthonormal rows", V.T)])
def test_vectors_are_orthonormal_in_the_direction_that_is_said(kind, right):
    payload = Payload((Field("block", ("a", "b"), kind=kind),))
    sizes = dict(zip("ab", right.shape, strict=True))
    payload.check({"block": right}, "client 1", sizes)
    payload.check({"block": right.astype(np.float32)}, "client 1", sizes)
    for wrong in (right * (1 + 1e-5), right[..., ::-1] + 1e-4 * right, np.zeros_like(right)):
        with refused(ContractError, "client 1", "'block'"):
            payload.check({"block": wrong}, "client 1", sizes)


@pytest.mark.parametrize("dtype", ["float32", "int64", ">f8"])
def test_numbers_are_of_the_type_that_is_said(dtype):
    MEAN.named([np.zeros(2)], "client 1")
    with refused(ContractError, "client 1", "'mean'"):
        MEAN.named([np.zeros(2, dtype)], "client 1")


def test_lengths_and_bytes_follow_from_the_sizes():
    known = {"n": 4, "d": 3, "k": 2}
    field = Field("all", ("d(d+1)/2", "n(n+1)/2", "n(n-1)/2", "trapezoid", "<=k", "7"))
    assert field.lengths(known) == (6, 10, 6, 6, 2, 7)
    both = Payload((Field("one", ("d",), "float32 or float64"), Field("other", ("k",), optional=True)))
    assert both.nbytes(known) == 2 * HEADER + 4 * 3
    assert both.nbytes(known, whole=True) == 2 * HEADER + 4 * 3 + 8 * 2
