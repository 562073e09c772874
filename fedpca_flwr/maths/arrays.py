"""The array type of the package's signatures, and a digest of arrays."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]  # double precision; its shape stands in the docstring of what takes or returns it


def content_digest(name: str, arrays: Sequence[NDArray[Any]]) -> str:
    """Return the SHA-256, in hexadecimal, of a name and of the dtypes, shapes and contents of arrays in their order."""
    digest = hashlib.sha256(name.encode())
    for array in arrays:
        digest.update(f"|{array.dtype.str}{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
