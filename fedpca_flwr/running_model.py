"""`RunningModel`: the subspace that streams have given so far, in one file: the old one or the new one, always whole.

The file ``subspace`` in a folder that only its owner may read: the SHA-256 of what follows, a line of JSON (counts,
settings, the digests of what was merged already) and the float64 values (little-endian). It is O(d k) however many rows
and parties there were; nobody's contribution can be taken out of it again (`fedpca_flwr.federation` can).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.files import locked, writable, written_whole
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.streaming_pca import Subspace

FORMAT = 1

FILE = "subspace"


@dataclass(frozen=True)
class Content:
    """What the file says.

    Attributes
    ----------
    subspace : Subspace
    rows : int
        How many rows were merged, whatever they weigh now.
    center : bool
        Whether the rows' mean is subtracted.
    columns : str
        Digest of the column names; empty where no party had any.
    merged : tuple of str
        Digest of every party's contribution.
    revision : int
        How many times the model was saved.
    """

    subspace: Subspace
    rows: int
    center: bool
    columns: str = ""
    merged: tuple[str, ...] = field(default=())
    revision: int = 1


class RunningModel:
    """The folder of a running model, as it was when it was loaded.

    Parameters
    ----------
    path : path-like
        Need not exist before the first `save`.

    Attributes
    ----------
    content : Content or None
        None where there is no model yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"a running model is a folder, and {self.path} is a file; name another")
        self._loaded = self._bytes()
        writable(self.path, mode=0o700)
        self.content = _parsed(self._loaded, self.path / FILE) if self._loaded else None

    def save(self, content: Content) -> None:
        """Replace what was loaded.

        Raises
        ------
        ContractError
            If another process has saved since: nothing is changed then.
        """
        with locked(self.path) as folder:
            if self._bytes() != self._loaded:
                raise ContractError(
                    f"another run changed the model in {self.path} after this one had read it; nothing is saved: run "
                    "this one again"
                )
            self._loaded = _rendered(content)
            with written_whole(self.path / FILE, mode=0o600) as stream:
                stream.write(self._loaded)
            os.fsync(folder)
        self.content = content

    def _bytes(self) -> bytes:
        file = self.path / FILE
        return file.read_bytes() if file.exists() else b""


def subspace_digest(subspace: Subspace) -> str:
    """SHA-256 of a subspace, in hexadecimal."""
    return hashlib.sha256(_values(subspace)).hexdigest()


def _values(subspace: Subspace) -> bytes:
    head = subspace.head
    numbers = np.array([head.n, subspace.energy, subspace.omitted])
    parts = (numbers, head.mean, head.remainder, subspace.sigma, subspace.vectors.ravel())
    return np.concatenate(parts).astype("<f8", copy=False).tobytes()


def _rendered(content: Content) -> bytes:
    about: dict[str, Any] = {k: v for k, v in vars(content).items() if k != "subspace"}
    about |= {"format": FORMAT, "features": len(content.subspace.vectors)}
    body = json.dumps(about, sort_keys=True).encode() + b"\n" + _values(content.subspace)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _parsed(content: bytes, file: Path) -> Content:
    digest, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ContractError(
            f"{file} is damaged: it does not fit the digest in it; restore it from a copy, or name another folder"
        )
    line, _, values = body.partition(b"\n")
    about = json.loads(line)
    if about.pop("format") != FORMAT:
        raise ContractError(f"{file}: the model's format is not {FORMAT}; which version wrote it?")
    d = about.pop("features")
    numbers, mean, remainder, rest = np.split(np.frombuffer(values, "<f8").astype(np.float64), np.cumsum([3, d, d]))
    k = rest.size // (d + 1)
    n, energy, omitted = numbers.tolist()
    subspace = Subspace(Head(n, mean, remainder), rest[k:].reshape(d, k), rest[:k], energy, omitted)
    about["merged"] = tuple(about["merged"])
    return Content(subspace=subspace, **about)
