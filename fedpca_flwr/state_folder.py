"""The state of a federation on disk (`fedpca_flwr.store`): the old one or the new one, whenever the machine stops.

A member's moments are named by their digest (`fedpca_flwr.member_moments`), and removed with the last that names them.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.member_moments import from_bytes, size_in_bytes, to_bytes
from fedpca_flwr.store import Layout, Store

LAYOUT = Layout(
    what="federation",
    file="federation.sqlite",
    application=b"FPCf",
    format=1,
    tables="""
CREATE TABLE federation (revision INTEGER NOT NULL, features INTEGER NOT NULL, columns TEXT NOT NULL);
CREATE TABLE member (key TEXT NOT NULL, rows INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE part (member TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE event (
    revision INTEGER NOT NULL, operation TEXT NOT NULL, member TEXT NOT NULL, rows INTEGER NOT NULL);
""",
    sealed=("federation", "member", "part", "event"),
    old=("federation.json", "*.moments"),
)


class StateFolder:
    """A federation's folder, as it was when it was loaded (`Store` has the errors).

    Parameters
    ----------
    path : path-like
        Need not exist before the first `write`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = Store(path, LAYOUT)
        self.path = self._store.folder
        self.prepare = self._store.prepare
        self._loaded = self._store.nothing

    def load(self) -> dict[str, Any]:
        """The state: ``revision``, ``features``, ``columns``, ``members`` and ``journal`` (see `Federation`)."""
        state: dict[str, Any] = {"revision": 0, "features": 0, "columns": "", "members": {}, "journal": []}
        if not self._store.exists():
            return state
        with self._store.transaction() as database:
            self._loaded = self._store.sealed(database)
            for row in database.execute("SELECT revision, features, columns FROM federation"):
                state.update(zip(("revision", "features", "columns"), row, strict=True))
            for key, rows, sha in database.execute("SELECT key, rows, digest FROM member ORDER BY key"):
                state["members"][key] = {"rows": rows, "digest": sha, "parts": []}
            for key, sha in database.execute("SELECT member, digest FROM part ORDER BY rowid"):
                state["members"][key]["parts"].append(sha)
            for row in database.execute("SELECT revision, operation, member, rows FROM event ORDER BY rowid"):
                state["journal"].append(dict(zip(("revision", "operation", "member", "rows"), row, strict=True)))
        return state

    def read(self, sha: str, features: int) -> Moments:
        """One member's moments."""
        with self._store.transaction() as database:
            content = self._store.get(database, sha, size_in_bytes(features))
        return from_bytes(content, features)

    def write(self, state: dict[str, Any], new: list[Moments]) -> None:
        """Replace the state that was loaded, and add the moments that it names and the folder does not hold yet.

        Raises
        ------
        ContractError
            If another process has written since this one loaded: nothing is changed then.
        """
        with self._store.transaction() as database:
            self._store.require(database, self._loaded)
            _replace(database, state)  # first what goes, whose place in the file others can have
            for moments in new:
                self._store.put(database, to_bytes(moments))
            loaded = self._store.seal(database)
        self._loaded = loaded


def _replace(database: sqlite3.Connection, state: dict[str, Any]) -> None:
    """Write a state in the place of another; of its journal what is new."""
    members = state["members"]
    parts = [(key, sha) for key, member in members.items() for sha in member["parts"]]
    (noted,) = database.execute("SELECT count(*) FROM event").fetchone()
    for table in ("federation", "member", "part"):
        database.execute(f"DELETE FROM {table}")
    database.execute("INSERT INTO federation VALUES (:revision, :features, :columns)", state)
    database.executemany(
        "INSERT INTO member VALUES (?, ?, ?)", [(k, m["rows"], m["digest"]) for k, m in members.items()]
    )
    database.executemany("INSERT INTO part VALUES (?, ?)", parts)
    database.executemany("INSERT INTO event VALUES (:revision, :operation, :member, :rows)", state["journal"][noted:])
    database.execute("DELETE FROM piece WHERE digest NOT IN (SELECT digest FROM member)")
