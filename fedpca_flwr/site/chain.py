"""The chain of a journal's events: appending, counting and checking events in the site's database.

The events are a chain: each has the SHA-256 digest of its content and of the digest before. So an event that was
removed, changed or moved is found. Whoever may write the file can make the whole chain anew; that is found only by a
last digest that somebody else has stored.

Whoever starts runs can have them refused without end, and every message looks through the journal. So runs that are
refused before anything was answered have events of their own up to `MAX_REFUSAL_EVENTS`. Further refusals are counted
beside the last of these (`FurtherRefusals`), until the site answers a run again. The count is no link of the chain.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpca_flwr.state.store import StoreError


class Event(NamedTuple):
    """Event of a site's journal (a question, an answer, a refusal ...), in a chain of SHA-256 digests.

    Parameters
    ----------
    number : int
        Number of the event from 1.
    time : str
        Time of the event (ISO 8601, UTC).
    run, party : str, int
        Flower's id of the run, and the partition.
    kind : str
        Kind of the event: run, question, answer, refused, ended, release, ...
    about : str
        Content of the event, by its kind.
    digest : str
        Digest of the data that the event is about; empty without data.
    bytes : int
        Bytes that left the site.
    chain : str
        Digest of the event and of the `chain` before.
    """

    number: int
    time: str
    run: str
    party: int
    kind: str
    about: str
    digest: str
    bytes: int
    chain: str


def events(database: sqlite3.Connection, **values: str | int) -> Iterator[Event]:
    """Yield in order the journal's events whose fields have the given values."""
    condition = " AND ".join(f"{name} = :{name}" for name in values) or "TRUE"
    names = ", ".join(Event._fields)
    yield from map(
        Event._make, database.execute(f"SELECT {names} FROM event WHERE {condition} ORDER BY number", values)
    )


class FurtherRefusals(NamedTuple):
    """Number of refused runs after an event that the journal counts without an event for each.

    Parameters
    ----------
    number : int
        Number of the event.
    times : int
        Number of refused runs.
    time, run : str
        Time and run of the last refusal.
    """

    number: int
    times: int
    time: str
    run: str


MAX_REFUSAL_EVENTS = 10
"""Refused runs that have events of their own after the last answer; further refusals are counted."""


def further_refusals(database: sqlite3.Connection) -> list[FurtherRefusals]:
    """Return the counts of refused runs that have no events of their own."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'further'").fetchone():  # none ever was
        return []
    return list(
        map(FurtherRefusals._make, database.execute("SELECT number, times, time, run FROM further ORDER BY number"))
    )


def counting_event(database: sqlite3.Connection) -> int:
    """Return the number of the event beside which refusals are only counted; 0 while each has an event."""
    answers = database.execute("SELECT number FROM event WHERE kind = 'answer' ORDER BY number DESC LIMIT 1").fetchone()
    since = answers[0] if answers else 0
    refusals = database.execute("SELECT number FROM event WHERE kind = 'refused' AND number > ?", (since,)).fetchall()
    return max(refusals)[0] if len(refusals) >= MAX_REFUSAL_EVENTS else 0


def append_event(database: sqlite3.Connection, event: tuple[Any, ...]) -> None:
    """Append an event to the chain of digests; after ten refusals since the last answer, only count."""
    if event[3] == "refused" and (number := counting_event(database)):
        database.execute(
            "CREATE TABLE IF NOT EXISTS further (number INTEGER PRIMARY KEY, times INTEGER, time TEXT, run TEXT)"
        )
        database.execute(
            "INSERT INTO further VALUES (?, 1, ?, ?) "
            "ON CONFLICT (number) DO UPDATE SET times = times + 1, time = excluded.time, run = excluded.run",
            (number, *event[:2]),
        )
        return
    count, last_digest = chain_end(database)
    fields = (count + 1, *event)
    digest = chain_digest(last_digest, fields)
    database.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*fields, digest))
    database.execute("UPDATE chain SET events = ?, last = ?", (count + 1, digest))


def chain_end(database: sqlite3.Connection) -> tuple[int, str]:
    """Return the number of events that the journal states, and the digest of the last event."""
    rows = database.execute("SELECT events, last FROM chain").fetchall()
    if len(rows) != 1:
        raise StoreError(
            "the journal is damaged: the digest of its last event is missing; restore the journal from a copy, or "
            "name another folder"
        )
    return int(rows[0][0]), str(rows[0][1])


def require_newer(database: sqlite3.Connection, last_seen: tuple[int, str], file: Path) -> None:
    """Refuse a journal that lacks the event last seen by this run: an older copy was put in its place."""
    number, digest = last_seen
    chains = database.execute("SELECT chain FROM event WHERE number = ?", (number,)).fetchall()
    if number and chains != [(digest,)]:
        raise StoreError(
            f"{file} lacks its event {number}, which this run has read before: somebody replaced the journal by an "
            "older or another one. Put the newest journal back. Once no run is under way, you may start a new one"
        )


def chain_digest(previous: str, fields: tuple[Any, ...]) -> str:
    """Return the SHA-256 of an event's fields together with the digest of the event before."""
    return hashlib.sha256(json.dumps([previous, *fields]).encode()).hexdigest()


def first_wrong_link(chain: Sequence[Event]) -> int:
    """Return the number of the first event whose digest does not follow from its content and the event before."""
    previous = ""
    for number, event in enumerate(chain, start=1):
        if chain_digest(previous, event[:-1]) != event.chain:
            return number
        previous = event.chain
    return 0


def first_gap(database: sqlite3.Connection) -> int:
    """Return the number of the first event whose digest is wrong or which is missing; 0 if all are right."""
    chain = list(events(database))
    if number := first_wrong_link(chain):
        return number
    ends = database.execute("SELECT events, last FROM chain").fetchall()
    return 0 if ends == [(len(chain), chain[-1].chain if chain else "")] else len(chain) + 1


def require_intact(database: sqlite3.Connection, file: Path) -> None:
    """Refuse a journal whose chain of digests shows a missing or changed event."""
    if gap := first_gap(database):
        raise StoreError(
            f"{file} is damaged: its event {gap} is missing or was changed; restore the journal from a copy, or name "
            "another folder"
        )
