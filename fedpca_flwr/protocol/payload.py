"""Payloads: named fields with shapes and dtypes, checked on arrival, and by a party before it sends its own."""

import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import factors, moments

Fields = Mapping[str, NDArray[Any]]

HEADER_BYTES = 128
"""Bytes of an array in a message besides its numbers."""

HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufcSUV]\d+)', 'fortran_order': (True|False), "
    rb"'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""Header of a plain array, as NumPy writes it: NumPy's own parser may fail in threads before Python 3.11.8."""

ORTHONORMALITY_TOLERANCE = 1e-5
"""Largest difference of inner products of orthonormal vectors from 0 and 1. It allows for vectors in float32."""


@dataclass(frozen=True)
class Field:
    """Array in a message: its name, shape in symbols such as ``d`` (features), dtype and valid values."""

    name: str
    """Name of the field."""
    shape: tuple[str, ...]
    """Lengths of the axes, in symbols: ``"d"`` features, ``"d(d+1)/2"`` a packed triangle (of ``n`` rows
    ``"n(n+1)/2"``), ``"trapezoid"`` a packed triangular factor of ``n`` rows, ``"any"`` a length that only the decoder
    can judge, ``"<=b"`` at most ``b``, other symbols as the method says, digits a fixed length; ``()`` a scalar."""
    dtype: str = "float64"
    """Allowed dtype, or several: ``"float32 or float64"``."""
    kind: str = "real"
    """Condition on the values, which must be finite: "real" for none, "count" at least 1, "size" not negative,
    "positive", "orthonormal columns" or "rows", or "scatter", a packed matrix that may be positive semidefinite."""
    optional: bool = False
    """Whether an empty array may stand for "all zeros"."""
    constant: str = ""
    """In a request: name of the constant of the run that this field states, with the same value in all questions."""
    constant_or_zero: str = ""
    """In a request: name of the constant of the run that this field equals, unless it is zero."""

    def lengths(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of the array, given the values of its symbols such as ``d`` (features).

        Parameters
        ----------
        sizes : mapping of str to int
            Values of the symbols.

        Returns
        -------
        tuple of int
            0 for a length that only the decoder can judge, the limit for one "at most".
        """
        return tuple(map(_axis_length, self.shape, repeat(sizes)))

    @cached_property
    def dtypes(self) -> list[np.dtype]:
        """Allowed dtypes of the array, the smallest first."""
        return [np.dtype(name) for name in self.dtype.split(" or ")]


@dataclass(frozen=True)
class Payload:
    """Fields of a message, in the order in which their arrays are sent."""

    fields: tuple[Field, ...]

    @cached_property
    def names(self) -> list[str]:
        """Names of the fields, in their order."""
        return [field.name for field in self.fields]

    @cached_property
    def bounded_axes(self) -> list[tuple[str, int, str]]:
        """Field, axis and symbol ``b`` of each axis "<=b", whose length a message sets."""
        axes = [(field.name, axis, symbol) for field in self.fields for axis, symbol in enumerate(field.shape)]
        return [(name, axis, symbol[2:]) for name, axis, symbol in axes if symbol.startswith("<=")]

    def to_arrays(self, values: Fields) -> list[NDArray[Any]]:
        """Return the arrays of the fields in the order in which they are sent; raise KeyError if a value is missing.

        Parameters
        ----------
        values : mapping of str to array_like
            Values by field name.

        Returns
        -------
        list of ndarray
        """
        return [np.asarray(values[name]) for name in self.names]

    def read(self, tensors: Sequence[bytes], sender: str) -> dict[str, NDArray[Any]]:
        """Read serialised arrays (NumPy's file format) into arrays by field name, without a copy.

        Parameters
        ----------
        tensors : sequence of bytes
            Arrays in NumPy's file format.
        sender : str
            Name of the sender in errors.

        Returns
        -------
        dict of str to ndarray

        Raises
        ------
        ContractError
            If a tensor is no whole array, and as of `name_arrays`.
        """
        if len(tensors) != len(self.fields):
            raise self._count_error(len(tensors), sender)
        try:
            arrays = list(map(_array_view, tensors))
        except Exception:  # bytes of an attacker can be wrong in many ways
            raise ContractError(f"{sender}: its reply does not hold whole arrays") from None
        return self.name_arrays(arrays, sender)

    def name_arrays(self, arrays: Sequence[NDArray[Any]], sender: str) -> dict[str, NDArray[Any]]:
        """Check the number, dtypes and numbers of axes of arrays, and return the arrays by field name.

        Parameters
        ----------
        arrays : sequence of ndarray
            Arrays in travelling order.
        sender : str
            Name of the sender in errors.

        Returns
        -------
        dict of str to ndarray

        Raises
        ------
        ContractError
            If the payload declares other arrays; the error names the sender and the field.
        """
        if len(arrays) != len(self.fields):
            raise self._count_error(len(arrays), sender)
        values = {}
        for field, array in zip(self.fields, arrays, strict=True):
            if array.dtype not in field.dtypes:
                raise ContractError(f"{sender}: field '{field.name}' has dtype {array.dtype}, expected {field.dtype}")
            if array.ndim != len(field.shape):
                axes = f"{array.ndim} axes, expected {len(field.shape)}"
                raise ContractError(f"{sender}: field '{field.name}' has {axes}")
            values[field.name] = array
        return values

    def _count_error(self, arrays: int, sender: str) -> ContractError:
        """Return the error for a message whose number of arrays is not the number of declared fields."""
        return ContractError(
            f"{sender}: sent {arrays} arrays, expected {len(self.fields)} ({', '.join(self.names)}); "
            "do all parties run the same version?"
        )

    @cached_property
    def has_fixed_size(self) -> bool:
        """True if all sizes follow from known numbers: no axis is "any", and no dtype is the sender's choice."""
        return not any("any" in field.shape or len(field.dtypes) > 1 for field in self.fields)

    def nbytes(self, sizes: Mapping[str, int], *, with_optional: bool = False) -> int:
        """Return the bytes of a message in the smallest allowed dtypes, with 128 bytes of header an array.

        Fields whose length only the decoder can judge do not count.

        Parameters
        ----------
        sizes : mapping of str to int
            Values of the symbols in shapes.
        with_optional : bool
            Whether optional fields count.

        Returns
        -------
        int
        """
        nbytes = HEADER_BYTES * len(self.fields)
        for field in self.fields:
            if with_optional or not field.optional:
                nbytes += math.prod(map(_axis_length, field.shape, repeat(sizes))) * field.dtypes[0].itemsize
        return nbytes

    def count_features(self, values: Fields) -> int | None:
        """Return the number of features that a message implies: the first axis with the symbol ``d``.

        Parameters
        ----------
        values : mapping of str to ndarray
            Arrays by field name.

        Returns
        -------
        int or None
            Number of features; None if no required field has such an axis.
        """
        for field in self.fields:
            if "d" in field.shape and not field.optional:
                return int(values[field.name].shape[field.shape.index("d")])
        return None

    def check(self, values: Fields, sender: str, sizes: Mapping[str, int], reference: str = "") -> None:
        """Check the shapes and values of a message's arrays against the declared fields.

        Parameters
        ----------
        values : mapping of str to ndarray
            Arrays by field name, as `name_arrays` returns them.
        sender : str
            Name of the sender in errors.
        sizes : mapping of str to int
            Values of the symbols in shapes, for example ``{"d": 784}``. A field "count" sets ``n``.
        reference : str
            Text of an error on where these sizes come from.

        Raises
        ------
        ContractError
            If a shape or a value is wrong; the error names the sender and the field.
        """
        if np.isfinite(values.get("count", np.nan)):
            sizes = {**sizes, "n": int(values["count"])}
        for field in self.fields:
            array, name = values[field.name], f"{sender}: field '{field.name}'"
            expected = tuple(map(_axis_length, field.shape, repeat(sizes), array.shape))
            if array.shape != expected and not (field.optional and array.size == 0):
                raise ContractError(f"{name} has shape {array.shape}, expected {expected}{reference}")
            if array.size == 0:
                continue
            low, high = array.min(), array.max()  # NaN and infinity show in the extremes: no temporary array
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ContractError(f"{name} holds NaN or infinite values")
            if field.kind != "real":
                _check_kind(field, array, low, high, name)


def _array_view(tensor: bytes) -> NDArray[Any]:
    """Return the array in bytes of the .npy format, without a copy; raise ValueError for other formats or objects."""
    # before the header: 6 bytes of magic, 2 of version, 2 with the length of the header
    start = 10 + int.from_bytes(tensor[8:10], "little")
    shape, fortran, dtype = _parse_header(tensor[:start])
    return np.frombuffer(tensor, dtype, offset=start).reshape(shape, order="F" if fortran else "C")


def content_digest(name: str, arrays: Sequence[NDArray[Any]]) -> str:
    """Return the SHA-256, in hexadecimal, of a name and of the dtypes, shapes and contents of arrays in their order."""
    digest = hashlib.sha256(name.encode())
    for array in arrays:
        digest.update(f"|{array.dtype.str}{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def read_array(tensor: bytes) -> NDArray[Any]:
    """Return a copy, which may be changed, of the array in bytes of the .npy format; raise as `_array_view`."""
    return _array_view(tensor).copy("K")


def write_array(array: NDArray[Any]) -> bytes:
    """Return an array as bytes of the .npy format, as NumPy writes them."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    values = np.ascontiguousarray(array.T if fortran else array)
    return b"".join([_header(array.dtype.str, fortran, array.shape), values.data])


@lru_cache(maxsize=64)
def _header(dtype: str, fortran: bool, shape: tuple[int, ...]) -> bytes:
    """Return the header of a plain .npy file; raise ValueError for objects, which are never sent."""
    if np.dtype(dtype).hasobject:
        raise ValueError("objects are no plain array")
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": fortran, "shape": shape})
    return file.getvalue()


@lru_cache(maxsize=64)  # the arrays of all parties have the same headers
def _parse_header(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype of a plain .npy file's header; raise ValueError for any other header."""
    header = HEADER.fullmatch(text)
    if header is None:
        raise ValueError("not the file format of plain arrays")
    dtype, fortran, shape = (group.decode() for group in header.groups())
    return tuple(map(int, shape.replace(",", " ").split())), fortran == "True", np.dtype(dtype)


def check_together(
    payload: Payload,
    replies: Mapping[str, Fields],
    sizes: Mapping[str, int],
    earlier_claims: Mapping[str, int | None] = MappingProxyType({}),
) -> None:
    """Raise ContractError for the first faulty reply, by sender, of a question; `sizes` has no symbols ``d`` and ``n``.

    A number of features other than the most frequent one comes first: it may cause other wrong sizes. `earlier_claims`
    has, by sender, those of replies that were consumed before, None for a reply without.
    """
    if not replies:
        return
    claims = dict(earlier_claims)
    for sender, values in replies.items():
        claims[sender] = payload.count_features(values)
    (features, _), *_ = Counter(claims.values()).most_common(1)
    witness = next(sender for sender, claim in claims.items() if claim == features)
    for sender in sorted(replies, key=lambda sender: claims[sender] == features):
        reference = ""
        if claims[sender] != features:
            reference = f": its data has {claims[sender]} features, {witness} has {features}"
        payload.check(replies[sender], sender, sizes if features is None else {**sizes, "d": features}, reference)


def _axis_length(symbol: str, sizes: Mapping[str, int], present: int | None = None) -> int:
    """Return the expected length of an axis from its symbol ("d", "<=b", "any", "7") and the actual length.

    Without a present length, "<=b" gives its limit, and "any" 0. Raise KeyError for a symbol without a size.
    """
    if symbol == "any":
        return present or 0
    if symbol.startswith("<="):
        limit = _axis_length(symbol[2:], sizes)
        return limit if present is None else min(present, limit)
    if symbol in {"d(d+1)/2", "n(n+1)/2"}:
        side = sizes[symbol[0]]
        return side * (side + 1) // 2
    if symbol == "trapezoid":
        return factors.trapezoid_size(sizes["n"], sizes["d"])
    return int(symbol) if symbol.isdigit() else sizes[symbol]


def _check_kind(field: Field, array: NDArray[Any], low: Any, high: Any, name: str) -> None:
    """Raise ContractError for values between `low` and `high` that a field of its `Field.kind` cannot hold."""
    if field.kind == "count" and low < 1:
        raise ContractError(f"{name} is {int(low)}, expected at least 1 row")
    if field.kind == "size" and low < 0:
        raise ContractError(f"{name} holds {low:.3g}, expected numbers from 0")
    if field.kind == "positive" and low <= 0:
        raise ContractError(f"{name} holds numbers that are not above 0")
    if field.kind.startswith("orthonormal"):
        vectors = np.swapaxes(array.astype(np.float64), -1, -2) if field.kind == "orthonormal columns" else array
        # no vector that is longer than 2 is multiplied: its square may be infinite
        orthonormal = bool(np.abs(vectors).max() <= 2)
        if orthonormal:
            products = vectors @ np.swapaxes(vectors, -1, -2)
            orthonormal = not np.abs(products - np.eye(vectors.shape[-2])).max() > ORTHONORMALITY_TOLERANCE
        if not orthonormal:
            raise ContractError(f"{name} has {field.kind.split()[1]} that are not orthonormal")
    if field.kind == "scatter":
        d = int((np.sqrt(8 * array.size + 1) - 1) / 2)  # the packed triangle has d(d+1)/2 entries
        diagonal = array[moments.diagonal_positions(d)]
        if diagonal.min() < 0:
            raise ContractError(f"{name} has a negative diagonal: it is not a scatter")
        if max(-low, high) > diagonal.max() * (1 + 1e-9):
            raise ContractError(f"{name} has an entry beyond its diagonal: it is not positive semidefinite")
