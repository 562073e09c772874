"""The events of a journal as a chain: each holds the SHA-256 of its content and of the digest before.

So a line that was removed, changed or moved is found. Whoever may write the file can make the whole chain anew: that is
found only by the last digest, where somebody else has kept it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from fedpca_flwr.store import StoreError

TABLES = """
CREATE TABLE event (
    number INTEGER PRIMARY KEY, time TEXT NOT NULL, run TEXT NOT NULL, party INTEGER NOT NULL,
    kind TEXT NOT NULL, about TEXT NOT NULL, digest TEXT NOT NULL, bytes INTEGER NOT NULL, chain TEXT NOT NULL);
CREATE INDEX event_of_run ON event (run, party);
CREATE TABLE chain (events INTEGER NOT NULL, last TEXT NOT NULL);
INSERT INTO chain VALUES (0, '');
"""


def append(database: sqlite3.Connection, event: tuple[Any, ...]) -> None:
    """Add an event: time, run, party, kind, about, digest, bytes.

    Raises
    ------
    StoreError
    """
    events, last = end(database)
    line = (events + 1, *event)
    digest = following(last, line)
    database.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*line, digest))
    database.execute("UPDATE chain SET events = ?, last = ?", (events + 1, digest))


def end(database: sqlite3.Connection) -> tuple[int, str]:
    """How many events there are, and the digest of the last one.

    Raises
    ------
    StoreError
    """
    kept = database.execute("SELECT events, last FROM chain").fetchall()
    if len(kept) != 1:
        raise StoreError(
            "the journal is damaged: it has lost the digest of its last event; restore it from a copy, or name another "
            "folder"
        )
    return int(kept[0][0]), str(kept[0][1])


def require_beyond(database: sqlite3.Connection, seen: tuple[int, str], file: Path) -> None:
    """Refuse a journal without an event that was in it, whose number and digest were kept elsewhere.

    Raises
    ------
    StoreError
    """
    number, digest = seen
    found = database.execute("SELECT chain FROM event WHERE number = ?", (number,)).fetchall()
    if number and found != [(digest,)]:
        raise StoreError(
            f"{file} lacks its event {number}, which this run has seen in it: an older journal, or another, was put in "
            "its place. Put the newest one back; once no run is under way, begin anew"
        )


def following(last: str, line: tuple[Any, ...]) -> str:
    """The digest of a line, after that of the one before."""
    return hashlib.sha256(json.dumps([last, *line]).encode()).hexdigest()


def first_gap(database: sqlite3.Connection) -> int:
    """The number of the first event that is not as it was written; 0 where all are."""
    last, number = "", 0
    for *line, digest in database.execute("SELECT * FROM event ORDER BY number"):
        number += 1
        if following(last, tuple(line)) != digest:
            return number
        last = digest
    kept = database.execute("SELECT events, last FROM chain").fetchall()
    return 0 if kept == [(number, last)] else number + 1


def require_whole(database: sqlite3.Connection, file: Path) -> None:
    """Refuse to go on where an event is not as it was written.

    Raises
    ------
    StoreError
    """
    gap = first_gap(database)
    if gap:
        raise StoreError(
            f"{file} is damaged: its event {gap} is missing or was changed; restore it from a copy, or name another "
            "folder"
        )
