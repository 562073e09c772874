"""A party's journal and privacy ledger in the site's own folder (`fedpca_flwr.state.store`).

A question is written to disk before its answer is computed, in one transaction with the check that the question is
allowed, so that a process that dies in between never answers twice. Secrets of a run leave the journal when the run has
ended. Questions, answers and releases stay, and so does what later runs over the same rows must know
(`fedpca_flwr.site.repeats`).

The events are a chain: each has the SHA-256 digest of its content and of the digest before. So an event that was
removed, changed or moved is found. Whoever may write the file can make the whole chain anew; that is found only by a
last digest that somebody else has stored.

Whoever starts runs can have them refused without end, and every message looks through the journal. So runs that are
refused before anything was answered have events of their own up to `MAX_REFUSAL_EVENTS`. Further refusals are counted
beside the last of these (`FurtherRefusals`), until the site answers a run again. The count is no link of the chain.
"""

import hashlib
import json
import logging
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.protocol import journal
from fedpca_flwr.site import kept_rows
from fedpca_flwr.site.repeats import Release
from fedpca_flwr.state.store import LockedError, Schema, Store, StoreError

logger = logging.getLogger("fedpca_flwr.client")


class Event(NamedTuple):
    """An event of the journal; its fields are in the order of the digest.

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
    """Yield the events in their order, filtered by values of their fields.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.
    **values : str or int
        Values that the events must have, by field.

    Yields
    ------
    Event
        The next event.
    """
    condition = " AND ".join(f"{name} = :{name}" for name in values) or "TRUE"
    names = ", ".join(Event._fields)
    yield from map(
        Event._make, database.execute(f"SELECT {names} FROM event WHERE {condition} ORDER BY number", values)
    )


class FurtherRefusals(NamedTuple):
    """Count of refused runs after an event, which have no events of their own.

    Parameters
    ----------
    number : int
        Number of the event.
    times : int
        Number of refused runs.
    time, run : str
        Time and run of the last refusal.
    """

    number: int  # of the event
    times: int
    time: str
    run: str


MAX_REFUSAL_EVENTS = 10  # refused runs that have events of their own after the last answer


def further_refusals(database: sqlite3.Connection) -> list[FurtherRefusals]:
    """Return the refused runs that were only counted.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.

    Returns
    -------
    list of FurtherRefusals
        Counts by event; empty if none was counted.
    """
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'further'").fetchone():  # none ever was
        return []
    return list(
        map(FurtherRefusals._make, database.execute("SELECT number, times, time, run FROM further ORDER BY number"))
    )


def counting_event(database: sqlite3.Connection) -> int:
    """Return the number of the event beside which further refusals are counted.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.

    Returns
    -------
    int
        Number of the last refusal, if `MAX_REFUSAL_EVENTS` refusals followed the last answer; else 0: the next refusal
        has an event of its own.
    """
    answers = database.execute("SELECT number FROM event WHERE kind = 'answer' ORDER BY number DESC LIMIT 1").fetchone()
    since = answers[0] if answers else 0
    refusals = database.execute("SELECT number FROM event WHERE kind = 'refused' AND number > ?", (since,)).fetchall()
    return max(refusals)[0] if len(refusals) >= MAX_REFUSAL_EVENTS else 0


def append_event(database: sqlite3.Connection, event: tuple[Any, ...]) -> None:
    """Append an event to the chain, or count the event if very many refusals came before.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal, in a transaction.
    event : tuple
        Time, run, party, kind, about, digest and bytes.
    """
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
    events, last_digest = chain_end(database)
    fields = (events + 1, *event)
    digest = chain_digest(last_digest, fields)
    database.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*fields, digest))
    database.execute("UPDATE chain SET events = ?, last = ?", (events + 1, digest))


def chain_end(database: sqlite3.Connection) -> tuple[int, str]:
    """Return the number of events, and the digest of the last event.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.

    Returns
    -------
    number : int
        Number of events.
    digest : str
        Digest of the last event; empty without events.

    Raises
    ------
    StoreError
        If the journal has lost the digest.
    """
    rows = database.execute("SELECT events, last FROM chain").fetchall()
    if len(rows) != 1:
        raise StoreError(
            "the journal is damaged: it has lost the digest of its last event; restore it from a copy, or name another "
            "folder"
        )
    return int(rows[0][0]), str(rows[0][1])


def require_newer(database: sqlite3.Connection, last_seen: tuple[int, str], file: Path) -> None:
    """Refuse a journal that lacks an event which this run has seen in the journal.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.
    last_seen : tuple of int and str
        Number and digest of the event, as stored elsewhere; number 0: none.
    file : Path
        File of the journal, for the error.

    Raises
    ------
    StoreError
        If the event is missing or has another digest.
    """
    number, digest = last_seen
    chains = database.execute("SELECT chain FROM event WHERE number = ?", (number,)).fetchall()
    if number and chains != [(digest,)]:
        raise StoreError(
            f"{file} lacks its event {number}, which this run has seen in it: an older journal, or another, was put in "
            "its place. Put the newest one back; once no run is under way, begin anew"
        )


def chain_digest(previous: str, fields: tuple[Any, ...]) -> str:
    """Return the digest of an event in the chain.

    Parameters
    ----------
    previous : str
        Digest of the event before.
    fields : tuple
        Fields of the event, without its own `chain`.

    Returns
    -------
    str
        SHA-256 in hexadecimal digits.
    """
    return hashlib.sha256(json.dumps([previous, *fields]).encode()).hexdigest()


def first_gap(database: sqlite3.Connection) -> int:
    """Return the number of the first event that is missing or was changed.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.

    Returns
    -------
    int
        Number of the event; 0 if all events are as they were written.
    """
    previous, number = "", 0
    for event in events(database):
        number += 1
        if chain_digest(previous, event[:-1]) != event.chain:
            return number
        previous = event.chain
    ends = database.execute("SELECT events, last FROM chain").fetchall()
    return 0 if ends == [(number, previous)] else number + 1


def require_intact(database: sqlite3.Connection, file: Path) -> None:
    """Refuse to use a journal in which an event is missing or was changed.

    Parameters
    ----------
    database : sqlite3.Connection
        The journal.
    file : Path
        File of the journal, for the error.

    Raises
    ------
    StoreError
        If the chain has a gap.
    """
    gap = first_gap(database)
    if gap:
        raise StoreError(
            f"{file} is damaged: its event {gap} is missing or was changed; restore it from a copy, or name another "
            "folder"
        )


SECRETS_TIMEOUT = timedelta(
    days=1
)  # a run of which nothing was heard for so long has lost its keys, once another one begins
COPY_TIMEOUT = timedelta(minutes=10)  # the same for its copy of the rows, which it can make again

SCHEMA = Schema(
    name="journal",
    file="site.sqlite",
    application=b"FPCs",
    format=3,
    tables="""
CREATE TABLE event (
    number INTEGER PRIMARY KEY, time TEXT NOT NULL, run TEXT NOT NULL, party INTEGER NOT NULL,
    kind TEXT NOT NULL, about TEXT NOT NULL, digest TEXT NOT NULL, bytes INTEGER NOT NULL, chain TEXT NOT NULL);
CREATE INDEX event_of_run ON event (run, party);
CREATE TABLE chain (events INTEGER NOT NULL, last TEXT NOT NULL);
INSERT INTO chain VALUES (0, '');
CREATE TABLE data_key (value BLOB NOT NULL);
CREATE TABLE secret (
    run TEXT NOT NULL, party INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (run, party, name));
""",
    old_patterns=("journal.sqlite",),
)


MAX_SECRETS = 1000  # of all runs, above which those of silent ones are dropped before another run begins
_ALIVE_RUNS_SQL = (
    "SELECT run, party FROM event WHERE time > ? UNION SELECT ?, ?"  # runs with an event since then, and this one
)


class FileJournal(journal.Journal):
    """A journal in the site's own folder, of a party in a run.

    Parameters
    ----------
    folder : str
        Folder of the journal.
    run : str
        Flower's id of the run.
    party : int
        Partition of the party.
    run_state : StateJournal, optional
        State that Flower has of the same run. The state knows how far the journal was, so an older journal is refused.
    description : str
        Text of which run this is, for the first event of the run.
    """

    rows_folder: Path

    def __init__(
        self, folder: str, run: str, party: int, run_state: journal.StateJournal | None = None, description: str = ""
    ) -> None:
        self.folder = folder
        self.description = description
        self.key = (run, party)
        self.run_state = run_state
        self._lock_error: DisclosureError | None = (
            None  # once the file was found locked: to wait again would help nobody
        )
        self.rows_folder = kept_rows.copy_folder(Path(folder).expanduser().absolute(), self.key)

    def begin(self, phase: str, digest: str, configuration: bytes, permit: journal.PermitQuestion) -> None:
        refusal: Exception | None = None
        with self._transaction() as database:
            if self._run_notes(database, "ended"):
                raise ContractError(journal.ENDED_TEXT)
            answered = self._run_notes(database, "question")
            try:
                if not answered:
                    self._begin_run(database, configuration)
                elif (stored := self._load_value(database, "configuration")) != configuration:
                    raise ContractError(journal.CONFIGURATION_CHANGED_TEXT if stored else journal.RUN_OVER_TEXT)
                permit(answered)
            except Exception as error:
                refusal = error
                if answered or not counting_event(database):  # else `refused` counts it, when the error is reported
                    self._describe_run(database)
                    self._add_event(database, "refused", phase[:64], digest)
                    self._add_event(database, "ended", type(error).__name__)
                self._drop_run(database)
            else:
                self._describe_run(database)
                self._add_event(database, "question", phase, digest)
        if refusal is not None:  # once that it was refused is on disk
            raise refusal

    def has_begun(self) -> bool:
        with self._transaction() as database:
            return bool(self._run_notes(database, "question"))

    def record_answer(self, what: str, nbytes: int) -> None:
        with self._transaction() as database:
            self._add_event(database, "answer", what, "", nbytes)

    def record_release(self, phase: str, relation: str, multiplier: float, permit: journal.PermitRelease) -> None:
        with self._transaction() as database:
            require_intact(database, self._store.file)  # what was spent is never nothing
            run_releases, other_releases = list[Release](), list[Release]()
            for event in events(database, kind=Release.kind):
                (run_releases if (event.run, event.party) == self.key else other_releases).append(
                    Release.parse(event.about)
                )
            if phase in [release.phase for release in run_releases]:
                raise DisclosureError(f"this site has released '{phase}' in this run already; it does so once")
            permit([release.multiplier for release in run_releases], [release.multiplier for release in other_releases])
            self._add_event(database, Release.kind, Release(phase, relation, multiplier).text())

    @cached_property
    def data_key(self) -> bytes:
        with self._transaction() as database:
            if not database.execute("SELECT value FROM data_key").fetchall():
                database.execute("INSERT INTO data_key VALUES (?)", (secrets.token_bytes(32),))
            (value,) = database.execute("SELECT value FROM data_key").fetchone()
        return bytes(value)

    def remember(self, kind: str, data: str, decide: journal.NoteDecision) -> None:
        with self._transaction() as database:
            require_intact(database, self._store.file)  # what was known is never nothing
            noted_events = list(events(database, kind=kind))
            same, other_notes = (
                [_as_note(event) for event in noted_events if (event.digest == data) is is_same]
                for is_same in (True, False)
            )
            text = decide(same, other_notes)
            if text:
                self._add_event(database, kind, text, data)

    def record_refusal(self, why: str) -> None:
        with self._transaction() as database:
            if not self._run_notes(database, "refused"):
                if not counting_event(database):
                    self._describe_run(database)
                self._add_event(database, "refused", why)
            self._drop_run(database)

    def end(self, why: str) -> None:
        with self._transaction() as database:
            self._add_event(database, "ended", why)
            self._drop_run(database)

    def store_secret(self, name: str, value: bytes) -> None:
        with self._transaction() as database:
            if database.execute("SELECT count(*) FROM secret").fetchone()[0] > MAX_SECRETS:
                self._drop_silent(database)  # or runs that never begin would leave what they keep for good
            self._store_value(database, name, value)

    def load_secret(self, name: str) -> bytes | None:
        with self._transaction() as database:
            return self._load_value(database, name)

    def delete_secrets(self) -> None:
        with self._transaction() as database:
            self._drop_run(database)

    # Inside

    @cached_property
    def _store(self) -> Store:
        return Store(self.folder, SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction (`Store.transaction`) of a journal that has all events which this run has seen.

        Its errors name a path in the site's own log only.
        """
        if self._lock_error:
            raise self._lock_error
        last_seen = self.run_state.last_seen_event if self.run_state else (0, "")
        try:
            self._require_present(last_seen)
            with self._store.transaction() as database:
                require_newer(database, last_seen, self._store.file)
                yield database
                latest = chain_end(database)
            if self.run_state:
                self.run_state.last_seen_event = latest
        except (ConfigError, StoreError) as error:
            text = "this site's journal cannot be used, so nothing may be answered"
            fault = DisclosureError(text, local=str(error))
            if isinstance(error, LockedError):  # the error's report looks into the journal, too
                self._lock_error = fault
            raise fault from None

    def _require_present(self, last_seen: tuple[int, str]) -> None:
        """Refuse to begin a new journal in a run that has seen a journal; otherwise warn that a new journal begins."""
        if self._store.exists():
            return
        if last_seen[0]:
            raise StoreError(f"{self._store.file} is gone, and this run has seen it; put it back")
        logger.warning(
            "there is no journal in %s, and a new one begins there: if this site had one, put it back before the next "
            "run, since what it has spent of its privacy and was asked in earlier runs is forgotten without it",
            self._store.folder,
        )

    def _begin_run(self, database: sqlite3.Connection, configuration: bytes) -> None:
        """Store the run's configuration; drop secrets and copied rows of runs that have been silent for too long."""
        self._drop_silent(database)
        unread = _timestamp(datetime.now(UTC) - COPY_TIMEOUT)
        kept_rows.remove_stale_copies(self.rows_folder.parent, database.execute(_ALIVE_RUNS_SQL, (unread, *self.key)))
        self._store_value(database, "configuration", configuration)

    def _drop_silent(self, database: sqlite3.Connection) -> None:
        """Drop the secrets of runs that have no recent event."""
        silent = _timestamp(datetime.now(UTC) - SECRETS_TIMEOUT)
        database.execute(f"DELETE FROM secret WHERE (run, party) NOT IN ({_ALIVE_RUNS_SQL})", (silent, *self.key))

    def _describe_run(self, database: sqlite3.Connection) -> None:
        if self.description and not self._run_notes(database, "run"):
            self._add_event(database, "run", self.description)

    def _store_value(self, database: sqlite3.Connection, name: str, value: bytes) -> None:
        database.execute("INSERT OR REPLACE INTO secret VALUES (?, ?, ?, ?)", (*self.key, name, value))

    def _load_value(self, database: sqlite3.Connection, name: str) -> bytes | None:
        row = database.execute(
            "SELECT value FROM secret WHERE run = ? AND party = ? AND name = ?", (*self.key, name)
        ).fetchone()
        return bytes(row[0]) if row else None

    def _run_notes(self, database: sqlite3.Connection, kind: str) -> list[str]:
        run, party = self.key
        return [event.about for event in events(database, run=run, party=party, kind=kind)]

    def _add_event(self, database: sqlite3.Connection, kind: str, text: str, digest: str = "", nbytes: int = 0) -> None:
        append_event(database, (_timestamp(datetime.now(UTC)), *self.key, kind, text, digest, nbytes))

    def _drop_run(self, database: sqlite3.Connection) -> None:
        """Drop the secrets and the copied rows of this run."""
        database.execute("DELETE FROM secret WHERE run = ? AND party = ?", self.key)
        kept_rows.remove_copy(self.rows_folder)


def _as_note(event: Event) -> journal.Note:
    return journal.Note(event.about, event.run, event.time)


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
