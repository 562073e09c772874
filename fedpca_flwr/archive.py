"""A file of arrays with what is to be said of them: a zip of ``.npy``, which `numpy.load` opens too, and JSON; no
pickle."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.files import written_whole

GROWTH = 4
"""By how much a file may grow when it is unpacked: `write` does not compress at all, so that its own never do."""

SMALL = 2**30
"""Bytes that any file may unpack to: one that somebody has compressed may be far smaller."""


class TooLargeError(ContractError):
    """A file unpacks to more than is read."""


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


def read(
    target: Path, *, text: str, names: Collection[str] | None = None, most_bytes: int | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What `write` wrote. A damaged or foreign file can make its readers fail in any way, so any error may come.

    Parameters
    ----------
    target : Path
    text : str
        The member that is JSON.
    names : collection of str, optional
        Of the arrays that there may be; any, by default.
    most_bytes : int, optional
        Of all members together, unpacked; by default `GROWTH` times the file, or `SMALL` where that is more.

    Raises
    ------
    TooLargeError
        Where the members are larger than that, before any is read.
    ValueError
        Where there are others, likewise.
    """
    with zipfile.ZipFile(target) as archive:
        if names is not None and not {*archive.namelist()} <= {text, *(f"{name}.npy" for name in names)}:
            raise ValueError("members that are none of its own")
        _require_size(archive, target, most_bytes)
        about = json.loads(archive.read(text))
        arrays = {
            name.removesuffix(".npy"): _array(archive, name) for name in archive.namelist() if name.endswith(".npy")
        }
    return arrays, about


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array, which is in memory once and not beside its file's bytes."""
    with archive.open(name) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _require_size(archive: zipfile.ZipFile, target: Path, most_bytes: int | None) -> None:
    """Refuse a file that unpacks to far more than it is; zipfile reads no more of a member than the file says."""
    size, packed = sum(member.file_size for member in archive.infolist()), target.stat().st_size
    most = max(GROWTH * packed, SMALL) if most_bytes is None else most_bytes
    if size > most:
        raise TooLargeError(
            f"{target} has {packed:,} bytes and says that it unpacks to {size:,}, at most {most:,} are read: if you "
            f"know who made it, allow more, as in PCAModel.load(path, most_bytes={size})"
        )
