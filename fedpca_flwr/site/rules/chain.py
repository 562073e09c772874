"""The chain of a journal's events: appending, counting and checking events in the site's database.

Each event has the SHA-256 digest of its content and of the digest before, so an event that was removed, changed or
moved is found. Whoever may write the file can make the whole chain anew; that is found only by a last digest that
somebody else has stored.

Whoever starts runs can have them refused without end, and every message looks through the journal. So refused runs have
events of their own up to `MAX_REFUSAL_EVENTS`. Further refusals are counted beside the last of these
(`FurtherRefusals`), until the site answers a run again. The count is no link of the chain.
"""

import hashlib
import hmac
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedpca_flwr.config.explain import explain_entry
from fedpca_flwr.errors import value_text
from fedpca_flwr.state.store import DamageError, StoreError

Number = Annotated[int, Field(ge=0, le=2**62)]
Word = Annotated[str, Field(max_length=200)]
Row = TypeVar("Row", bound=tuple[Any, ...])


class Event(NamedTuple):
    """Event of a site's journal, in a chain of SHA-256 digests."""

    number: Annotated[int, Field(ge=1, le=2**62)]  # from 1
    time: Word  # ISO 8601, UTC
    run: Word  # Flower's id
    party: Number  # partition
    kind: Word  # run, question, answer, refused, ended, release, ...
    about: Annotated[str, Field(max_length=2**24)]  # content, by its kind
    digest: Word  # of the data that the event is about; empty without data
    bytes: Number  # that left the site
    chain: Word  # digest of the event and of the `chain` before


@cache
def _row_type(kind: type[Row]) -> TypeAdapter[Row]:
    """Return the validator of a row's class, which converts nothing."""
    return TypeAdapter(kind, config=ConfigDict(strict=True))


def parse_row(kind: type[Row], values: object, place: str) -> Row:
    """Return values as a row of the class; raise DamageError, which names `place`, for other types or sizes."""
    if not isinstance(values, dict):
        raise DamageError(f"{place} is not a JSON object")
    try:
        row: Row = _row_type(kind).validate_python(values)
        return row
    except ValidationError as error:
        raise DamageError(explain_entry(kind, error.errors(), place)) from None


def _read_rows(
    database: sqlite3.Connection, kind: type[Row], table: str, place: str, values: Mapping[str, str | int]
) -> Iterator[Row]:
    """Yield the rows of a table that have the given values, in order of their numbers; raise DamageError at a fault."""
    names = list(kind._fields)  # type: ignore[attr-defined]
    condition = " AND ".join(f"{name} = :{name}" for name in values) or "TRUE"
    query = f"SELECT {', '.join(names)} FROM {table} WHERE {condition} ORDER BY number"
    # SQLite takes any bytes for a text; half a surrogate pair stands for a byte that is no UTF-8, and is refused
    database.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    for row in database.execute(query, values):
        yield parse_row(kind, dict(zip(names, row, strict=True)), f"{place} {value_text(row[0])}")


def events(database: sqlite3.Connection, **values: str | int) -> Iterator[Event]:
    """Yield in order the journal's events whose fields have the given values; raise DamageError at a damaged one."""
    return _read_rows(database, Event, "event", "event", values)


class FurtherRefusals(NamedTuple):
    """Number of refused runs after an event that the journal counts without an event for each."""

    number: Number  # of the event
    times: Number  # refused runs
    time: Word  # of the last refusal, as is the run
    run: Word


MAX_REFUSAL_EVENTS = 10  # refused runs with events of their own after the last answer; others are counted


def further_refusals(database: sqlite3.Connection) -> list[FurtherRefusals]:
    """Return the counts, by event, of refused runs that have no events of their own; empty if there are none."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'further'").fetchone():  # none ever was
        return []
    return list(_read_rows(database, FurtherRefusals, "further", "refusals after event", {}))


def counting_event(database: sqlite3.Connection) -> int:
    """Return the number of the last refusal if `MAX_REFUSAL_EVENTS` refusals followed the last answer, else 0.

    Beside that event, further refusals are only counted; with 0 the next refusal has an event of its own.
    """
    answers = database.execute("SELECT number FROM event WHERE kind = 'answer' ORDER BY number DESC LIMIT 1").fetchone()
    since = answers[0] if answers else 0
    refusals = database.execute("SELECT number FROM event WHERE kind = 'refused' AND number > ?", (since,)).fetchall()
    return max(refusals)[0] if len(refusals) >= MAX_REFUSAL_EVENTS else 0


def append_event(database: sqlite3.Connection, event: tuple[Any, ...]) -> None:
    """Append an event (time, run, party, kind, about, digest, bytes); only count a refusal after a `counting_event`."""
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


class ChainEnd(NamedTuple):
    """Number of events that a journal states, and the digest of the last one; empty without events."""

    events: Number
    last: Word


def chain_end(database: sqlite3.Connection) -> ChainEnd:
    """Return the journal's own number of events and last digest; raise DamageError if these are missing."""
    rows = database.execute("SELECT events, last FROM chain").fetchall()
    if len(rows) != 1:
        raise DamageError("the digest of its last event is missing")
    return parse_row(ChainEnd, dict(zip(ChainEnd._fields, rows[0], strict=True)), "the end of its chain of digests")


def require_newer(database: sqlite3.Connection, last_seen: tuple[int, str], file: Path) -> None:
    """Raise StoreError if the journal lacks the event (number, digest) that this run saw last; number 0: none."""
    number, digest = last_seen
    chains = database.execute("SELECT chain FROM event WHERE number = ?", (number,)).fetchall()
    if number and chains != [(digest,)]:
        raise StoreError(
            f"{file} lacks its event {number}, which this run has read before: somebody replaced the journal by an "
            "older or another one. Put the newest journal back. Once no run is under way, you may start a new one"
        )


def chain_digest(previous: str, fields: tuple[Any, ...]) -> str:
    """Return the SHA-256 (hexadecimal) of the digest before and an event's fields without its own `chain`."""
    return hashlib.sha256(json.dumps([previous, *fields]).encode()).hexdigest()


def keyed_digest(key: bytes, chain: str) -> str:
    """Return the HMAC-SHA-256 (hexadecimal) of an event's `chain`, by which only the key's owner finds the event."""
    return hmac.new(key, chain.encode(), "sha256").hexdigest()


def first_wrong_link(chain: Sequence[Event]) -> int:
    """Return the number, from 1, of the first event whose `chain` is not its `chain_digest`; 0 if all are right."""
    previous = ""
    for number, event in enumerate(chain, start=1):
        if chain_digest(previous, event[:-1]) != event.chain:
            return number
        previous = event.chain
    return 0


def first_gap(database: sqlite3.Connection) -> int:
    """Return the number, from 1, of the first event whose digest is wrong or which is missing; 0 if all are right."""
    chain = list(events(database))
    if number := first_wrong_link(chain):
        return number
    ends = database.execute("SELECT events, last FROM chain").fetchall()
    return 0 if ends == [(len(chain), chain[-1].chain if chain else "")] else len(chain) + 1


def require_intact(database: sqlite3.Connection) -> None:
    """Raise DamageError if the chain of digests shows a missing or changed event."""
    if gap := first_gap(database):
        raise DamageError(f"event {gap} is missing or was changed")
