"""What fields may hold, and who is named where replies do not go together."""

import io
import math

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import HEADER_BYTES, Field, Payload, check_together, write_array
from tests.refusals import refused

MEAN = Field("mean", ("d",))
POSITIVE = Field("values", ("d",), kind="positive")
SIZE = Field("size", ("d",), kind="size")
COUNT = Field("count", (), "int64", kind="count")
SCATTER = Field("scatter", ("d(d+1)/2",), kind="scatter")
BOUNDED = Field("values", ("<=d",))
OPTIONAL = Field("remainder", ("d",), optional=True)
V = np.linalg.qr(np.arange(6.0).reshape(3, 2) ** 2 + 1).Q
COLUMNS = Field("block", ("n", "d"), kind="orthonormal columns")
ROWS = Field("block", ("d", "n"), kind="orthonormal rows")


def far_from_orthonormal(block):
    """Return blocks that are not orthonormal; the last has inner products that are infinity less infinity."""
    return [block * (1 + 1e-5), block[..., ::-1] + 1e-4 * block, np.zeros_like(block), np.copysign(1e200, block)]


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        (MEAN, [[1.0, -1.0]], [[1.0, np.nan], [1.0, np.inf], [1.0, -np.inf], []]),
        (POSITIVE, [[1.0, 5e-324]], [[1.0, low] for low in (0.0, -0.0, -5e-324, -1.0, np.nan, np.inf, -np.inf)]),
        (COUNT, [1, 2**40], [0, -1]),
        (SIZE, [[0.0, 1.0]], [[-5e-324, 1.0]]),
        (SCATTER, [[2.0, entry, 2.0] for entry in (2.0, -2.0)], [[2.0, entry, 2.0] for entry in (2.002, -2.002)]),
        (SCATTER, [[2.0, 2 + 1e-9, 2.0]], [[2.0, 2 + 4e-9, 2.0]]),
        (BOUNDED, [[], [1.0], [1.0, 1.0]], [[1.0] * 3]),
        (SCATTER, [[2.0, 0.0, 0.0]], [[2.0, 0.0, -5e-324]]),
        (OPTIONAL, [[], [0.0, 0.0]], [[0.0]]),
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


@pytest.mark.parametrize("odd", range(3))
def test_an_odd_number_of_features_is_named_first(odd):
    """A wrong number of features may make the fields of all other replies wrong."""
    replies = {f"client {i}": {"mean": np.zeros(3) if i == odd else np.full(2, np.nan)} for i in range(3)}
    with refused(ContractError, f"client {odd}", 3, f"client {int(odd == 0)}", 2):
        check_together(Payload((MEAN,)), replies, {})


@pytest.mark.parametrize("dtype", ["float32", "int64", ">f8"])
def test_numbers_are_of_the_type_that_is_said(dtype):
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


@pytest.mark.parametrize("shape", [(), (0, 4), (1, 5), (3, 4, 2)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_travel_as_numpy_writes_them(shape, order):
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for array in (numbers.astype(float, order=order), np.stack([numbers] * 4, axis=-1).astype(">u2")[..., ::2]):
        file = io.BytesIO()
        np.save(file, array)
        assert write_array(array) == file.getvalue()
