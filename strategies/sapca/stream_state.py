"""`RunningModel`, of the method `sapca`: the subspace that streams have given so far, on disk, never half written.

The state is O(d k) however many rows and parties there were; no party's contribution can be taken out of it
(`fedpca_flwr.model.federation` can).
"""

import hashlib
import os
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedpca_flwr.maths.moments import Head
from fedpca_flwr.state.files import require_writable_folder
from fedpca_flwr.state.store import Schema, Store
from fedpca_flwr.strategies.sapca.streams import Subspace

SCHEMA = Schema(
    name="running model",
    file="running-model.sqlite",
    application=b"FPCr",
    format=1,
    tables="""
CREATE TABLE model (
    revision INTEGER NOT NULL, rows INTEGER NOT NULL, center INTEGER NOT NULL, columns TEXT NOT NULL,
    features INTEGER NOT NULL, directions INTEGER NOT NULL, subspace TEXT NOT NULL);
CREATE TABLE merged (digest TEXT NOT NULL);
""",
    sealed_tables=("model", "merged"),
    old_patterns=("subspace",),
)


@dataclass(frozen=True)
class RunningContent:
    """Content of a running model, to which each run adds rows: tracked subspace, row count, digests of merged parts."""

    subspace: Subspace
    rows: int  # number of rows that were merged, whatever they weigh now
    center: bool  # whether the rows' mean is subtracted
    columns: str = ""  # digest of the column names; empty if no party had names
    merged: tuple[str, ...] = ()  # digest of every party's contribution
    revision: int = 1  # number of times that the model was saved


class RunningModel:
    """Folder on disk that stores a running model, and its `content`, None while there is no model yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the folder, or make it, and load its content if there is any; raise ContractError if it is damaged.

        Raise ConfigError if there can be no such folder.
        """
        self._store = Store(path, SCHEMA)
        require_writable_folder(self._store.folder)
        self.path = self._store.folder
        self._loaded_seal = self._store.empty_digest
        self.content: RunningContent | None = None
        if self._store.exists():
            with self._store.transaction() as database:
                self._loaded_seal = self._store.verified_digest(database)
                rows_of = partial(self._store.rows, database)
                merged = tuple(sha for (sha,) in rows_of("SELECT digest FROM merged ORDER BY rowid", str))
                models = rows_of("SELECT * FROM model", int, int, int, str, int, int, str)
                if models:
                    revision, rows, center, columns, d, k, subspace_sha = models[0]
                    content = self._store.get(database, subspace_sha, 8 * (3 + 2 * d + k + d * k))
                    values = np.frombuffer(content, "<f8").astype(np.float64, copy=False)
                    if not np.isfinite(values).all():
                        raise self._store.damaged_error()
                    first, mean, remainder, sigma, vectors = np.split(values, np.cumsum([3, d, d, k]))
                    n, energy, omitted = first.tolist()
                    subspace = Subspace(Head(n, mean, remainder), vectors.reshape(d, k), sigma, energy, omitted)
                    self.content = RunningContent(subspace, rows, bool(center), columns, merged, revision)

    def save(self, content: RunningContent) -> None:
        """Replace the stored content; change nothing, and raise ContractError, if another process has saved since."""
        d, k = content.subspace.vectors.shape
        header = (content.revision, content.rows, content.center, content.columns, d, k)
        with self._store.transaction() as database:
            self._store.require_digest(database, self._loaded_seal)
            for table in ("model", "merged", "piece"):
                database.execute(f"DELETE FROM {table}")
            subspace_sha = self._store.put(database, _subspace_to_bytes(content.subspace))
            database.execute("INSERT INTO model VALUES (?, ?, ?, ?, ?, ?, ?)", (*header, subspace_sha))
            database.executemany("INSERT INTO merged VALUES (?)", [(sha,) for sha in content.merged])
            loaded = self._store.seal(database)
        self._loaded_seal, self.content = loaded, content


def subspace_digest(subspace: Subspace) -> str:
    """Compute the SHA-256, in hexadecimal, of a subspace: its counts, mean, singular values and directions."""
    return hashlib.sha256(_subspace_to_bytes(subspace)).hexdigest()


def _subspace_to_bytes(subspace: Subspace) -> bytes:
    """Serialise a subspace's counts, mean, singular values and directions as little-endian float64."""
    head = subspace.head
    numbers = np.array([head.n, subspace.energy, subspace.omitted])
    parts = (numbers, head.mean, head.remainder, subspace.sigma, subspace.vectors.ravel())
    return np.concatenate(parts).astype("<f8", copy=False).tobytes()
