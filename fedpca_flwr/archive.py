"""A file of arrays with what is to be said of them: a zip of ``.npy``, which `numpy.load` opens too, and JSON; no
pickle."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.files import written_whole

EXPANDED = 200
"""By how much a member of the file may grow when it is unpacked; `write` does not compress at all."""

LARGEST = 2**33
"""Bytes of all members together, before any is read."""


def write(
    target: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any], *, text: str, mode: int = 0o666
) -> None:
    """Write arrays, and whatever JSON can hold as the member ``text``, whole or not at all.

    ``mode`` is what the file's permissions are at most.
    """
    told = json.dumps(about, indent=2, allow_nan=False)
    with written_whole(target, mode) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())
        archive.writestr(text, told)


def read(target: Path, *, text: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What `write` wrote. A damaged or foreign file can make its readers fail in any way, so any error may come."""
    with zipfile.ZipFile(target) as archive:
        _require_sizes(archive)
        about = json.loads(archive.read(text))
        arrays = {
            name.removesuffix(".npy"): np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
            for name in archive.namelist()
            if name.endswith(".npy")
        }
    return arrays, about


def _require_sizes(archive: zipfile.ZipFile) -> None:
    """Refuse a file that unpacks to far more than it is, before anything of it is read."""
    members = archive.infolist()
    grows = any(member.file_size > EXPANDED * max(member.compress_size, 1) for member in members)
    if grows or sum(member.file_size for member in members) > LARGEST:
        raise ValueError("its members unpack to more than such a file holds")
