"""The state of a federation on disk: the old one or the new one, whenever the machine stops.

In the folder, which only its owner may read (a member's file holds its covariance):

* ``<SHA-256>.moments``: count, mean, remainder and packed scatter of one member as float64 (little-endian), named by
  the digest of its bytes;
* ``federation.json``: the state, with a digest of itself. It is renamed into place after the members' files are on
  disk, and before those that it no longer names are removed.

The digests show damage. They do not stop someone who may write to the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.files import locked, writable, written_whole
from fedpca_flwr.maths.moments import Moments, packed_size

FORMAT = 1

MANIFEST = "federation.json"

EMPTY: dict[str, Any] = {
    "format": FORMAT,
    "revision": 0,
    "features": 0,
    "columns": "",
    "members": {},
    "journal": [],
}

OURS = re.compile(r"[0-9a-f]{64}\.moments|\.([0-9a-f]{64}\.moments|federation\.json)\.\d+\.tmp")
"""Members' files, and what a process that was stopped while it wrote leaves behind."""


class StateFolder:
    """A federation's folder, as it was when it was loaded.

    Parameters
    ----------
    path : path-like
        Need not exist before the first `write`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        try:
            if self.path.is_file():
                raise ConfigError(f"a federation is a folder, and {self.path} is a file; name another")
            self._loaded = self._manifest()
        except OSError as error:
            raise self._unusable(error) from None

    def prepare(self) -> None:
        """Make the folder where there is none, so that what cannot be written to is known before anything is computed.

        Raises
        ------
        ConfigError
        """
        writable(self.path, mode=0o700)

    def load(self) -> dict[str, Any]:
        """The state, of the form of `EMPTY`.

        Raises
        ------
        ContractError
            If ``federation.json`` is not whole, or missing while members' files are there.
        """
        target = self.path / MANIFEST
        if not self._loaded and any(self.path.glob("*.moments")):
            raise ContractError(
                f"{target} is missing, but members' files are there; restore it, or name another folder"
            )
        state: dict[str, Any]
        if not self._loaded:
            state = json.loads(json.dumps(EMPTY))
            return state
        try:
            state = json.loads(self._loaded)["state"]
            whole = _rendered(state) == self._loaded
        except Exception:  # a damaged file can make its reader fail in any way
            whole = False
        if not whole:
            raise ContractError(f"{target} is damaged: it does not fit the digest in it; restore it from a copy")
        if state["format"] != FORMAT:
            raise ContractError(f"{target}: the state's format is not {FORMAT}; which version wrote it?")
        return state

    def read(self, sha: str, features: int) -> Moments:
        """One member's moments.

        Raises
        ------
        ContractError
            If the file is missing, or not what its name says.
        """
        file = self.path / f"{sha}.moments"
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            raise ContractError(
                f"{file} is missing; did another run change the federation? run this one again"
            ) from None
        whole = len(content) == 8 * (1 + 2 * features + packed_size(features))
        if hashlib.sha256(content).hexdigest() != sha or not whole:
            raise ContractError(
                f"{file} is damaged: its digest is not its name, or its size another; restore it from a copy, or let "
                "its member leave and join again"
            )
        values = np.frombuffer(content, "<f8").astype(np.float64, copy=False)
        _, mean, remainder, scatter = np.split(values, np.cumsum([1, features, features]))
        return Moments(int(values[0]), mean, remainder, scatter)

    def write(self, state: Mapping[str, Any], new: Mapping[str, Moments]) -> None:
        """Replace the state that was loaded.

        Parameters
        ----------
        state : mapping
            Of the form of `EMPTY`.
        new : mapping of str to Moments
            What the folder does not hold yet, by digest.

        Raises
        ------
        ContractError
            If another process has written since this one loaded: nothing is changed then.
        """
        self.prepare()
        with locked(self.path) as folder:
            if self._manifest() != self._loaded:
                raise ContractError(
                    f"another run changed the federation in {self.path} after this one had read it; nothing is saved: "
                    "run this one again"
                )
            if not self._loaded:
                self._put(EMPTY)  # so that members' files never stand alone
            for sha, moments in new.items():
                with written_whole(self.path / f"{sha}.moments", mode=0o600) as stream:
                    stream.write(_packed(moments))
            os.fsync(folder)
            self._put(state)
            os.fsync(folder)
            self._sweep({member["digest"] for member in state["members"].values()})

    # Inside

    def _unusable(self, error: Exception) -> ConfigError:
        return ConfigError(f"the folder {self.path} cannot be used ({type(error).__name__}); name another")

    def _manifest(self) -> bytes:
        file = self.path / MANIFEST
        return file.read_bytes() if file.exists() else b""

    def _put(self, state: Mapping[str, Any]) -> None:
        content = _rendered(state)
        with written_whole(self.path / MANIFEST, mode=0o600) as stream:
            stream.write(content)
        self._loaded = content

    def _sweep(self, named: set[str]) -> None:
        """Remove members' files that nothing names any more; what cannot be removed is left to the next time."""
        for file in self.path.iterdir():
            if OURS.fullmatch(file.name) and file.stem not in named:
                with contextlib.suppress(OSError):
                    file.unlink()


def digest(moments: Moments) -> str:
    """SHA-256 of moments, in hexadecimal: the same for a party and for the server that received them."""
    return hashlib.sha256(_packed(moments)).hexdigest()


def _packed(moments: Moments) -> bytes:
    d = moments.n_features
    assert moments.scatter.size == packed_size(d)
    parts = ([float(moments.count)], moments.mean, moments.remainder, moments.scatter)
    return np.concatenate(parts).astype("<f8", copy=False).tobytes()


def _rendered(state: Mapping[str, Any]) -> bytes:
    text = json.dumps(state, sort_keys=True)
    return json.dumps({"digest": hashlib.sha256(text.encode()).hexdigest(), "state": state}, indent=1).encode()
