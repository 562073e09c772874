"""A party's journal and privacy ledger in the site's own folder (`fedpca_flwr.state.store`).

A question is written to disk before its answer is computed, in one transaction with the check that it is allowed, so
that a process that dies in between never answers twice. Secrets leave the journal when the run has ended. Questions,
answers, releases, and what later runs over the same rows must know (`fedpca_flwr.site.rules.repeats`), stay as events
in a chain (`fedpca_flwr.site.rules.chain`).
"""

import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path

from typing_extensions import override

from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError, excerpt
from fedpca_flwr.protocol import journal
from fedpca_flwr.protocol.site_log import journal_logger, site_logger
from fedpca_flwr.site.rules.accounts import Release
from fedpca_flwr.site.rules.chain import (
    append_event,
    chain_end,
    counting_event,
    events,
    keyed_digest,
    require_intact,
    require_newer,
)
from fedpca_flwr.state.files import utc_time
from fedpca_flwr.state.store import DamageError, LockedError, Schema, Store, StoreError

SECRETS_TIMEOUT = timedelta(days=1)  # without an event, after which a run loses its secrets when another begins
MAX_SECRETS = 1000  # of all runs, above which the secrets of silent runs are deleted before another is stored
MAX_PHASE_CHARACTERS = 64  # of the name of a refused question in the journal; the server may name any question
SECRET_BLOCK_BYTES = 2**20  # of a secret that are written at once: the last reply may be large
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

COMPLETED_KIND = "completed"
POST_KIND = "post"  # of the event of a run without a deadline
PROGRESS_KINDS = ("question", "answer", "ended")  # kinds of events that tell how far a party is with a question


class FileJournal(journal.Journal):
    """Journal of a party in an SQLite file of the site's own folder, which outlasts the run.

    ``run_state``, Flower's state of the run, knows how far the journal was, so an older journal is refused. The run's
    first event has its ``description``, and the digest of shared ``settings``. Secrets of a run ``by_post`` stay until
    its end.
    """

    def __init__(
        self,
        folder: str,
        run: str,
        party: int,
        run_state: journal.StateJournal | None = None,
        description: str = "",
        settings: str = "",
        *,
        by_post: bool = False,
    ) -> None:
        """Set the folder and the run; the file is opened by each transaction."""
        self.folder = folder
        self.description = description
        self.settings = settings
        self.by_post = by_post
        self.key = (run, party)
        self.run_state = run_state
        self._lock_error: DisclosureError | None = None  # of a locked file, raised again instead of a second wait

    @override
    def begin(self, phase: str, digest: str, configuration: bytes, permit: journal.PermitQuestion) -> None:
        """Record a question in the same transaction in which `permit` accepts the phase; record and raise a refusal."""
        refusal: Exception | None = None
        with self._transaction() as database:
            if self._run_notes(database, "ended"):
                raise ContractError(journal.ENDED_TEXT)
            answered = self._run_notes(database, "question")
            try:
                if not answered:
                    self._drop_silent(database)
                    for copied in Path(self.folder).expanduser().glob("rows." + "[0-9a-f]" * 16 + "*"):  # before 0.3
                        shutil.rmtree(copied, ignore_errors=True)
                    self._store_value(database, "configuration", configuration)
                elif (stored := self._load_value(database, "configuration")) != configuration:
                    raise ContractError(journal.CONFIGURATION_CHANGED_TEXT if stored else journal.RUN_OVER_TEXT)
                permit(answered)
            except Exception as error:
                refusal = error
                if answered or not counting_event(database):  # else `record_refusal` counts it with the report
                    self._describe_run(database)
                    self._add_event(database, "refused", excerpt(phase, MAX_PHASE_CHARACTERS), digest)
                    self._add_event(database, "ended", type(error).__name__)
                self._drop_run(database)
            else:
                self._describe_run(database)
                self._add_event(database, "question", phase, digest)
                values = (*self.key, journal.REPLY_NAME)
                database.execute("DELETE FROM secret WHERE run = ? AND party = ? AND name = ?", values)
        if refusal is not None:  # after the transaction, so that the refusal is on disk
            raise refusal

    @override
    def progress(self, digest: str, configuration: bytes) -> journal.Progress:
        """Return whether the last question of this run, if it is the same, is "computing" or "answered"; else "new"."""
        run, party = self.key
        with self._transaction() as database:
            notes = [event for event in events(database, run=run, party=party) if event.kind in PROGRESS_KINDS]
            stored = self._load_value(database, "configuration")
        digests = [event.digest for event in notes if event.kind == "question"]
        has_ended = any(event.kind == "ended" for event in notes)
        if has_ended or digests[-1:] != [digest] or stored not in (configuration, None):
            return "new"
        return "answered" if notes[-1].kind == "answer" else "computing"

    @override
    def has_begun(self) -> bool:
        """Return whether this party has accepted any question of this run."""
        with self._transaction() as database:
            return bool(self._run_notes(database, "question"))

    @override
    def record_answer(self, what: str, nbytes: int, digest: Callable[[], str]) -> None:
        """Add an event with the names of the fields, the bytes and the digest of an answer."""
        content = digest()
        with self._transaction() as database:
            self._add_event(database, "answer", what, content, nbytes)

    @override
    def record_release(self, phase: str, relation: str, multiplier: float, permit: journal.PermitRelease) -> None:
        """Add a noise multiplier to the journal before the noise is drawn, unless `permit` raises an error.

        Raise DisclosureError for a phase released before, or a damaged journal.
        """
        with self._transaction() as database:
            require_intact(database)  # a changed journal must not lower the privacy budget that was spent
            run_releases, other_releases = list[Release](), list[Release]()
            for event in events(database, kind=Release.kind):
                releases = run_releases if (event.run, event.party) == self.key else other_releases
                releases.append(Release.parse(event.about))
            if phase in [release.phase for release in run_releases]:
                raise DisclosureError(f"this site has released '{phase}' in this run already; it does so once")
            permit([release.multiplier for release in run_releases], [release.multiplier for release in other_releases])
            self._add_event(database, Release.kind, Release(phase, relation, multiplier).text())

    @override
    @cached_property
    def data_key(self) -> bytes:
        """Random 32-byte key of this journal for keyed digests of data, created at first use."""
        with self._transaction() as database:
            if not stored_key(database):
                database.execute("INSERT INTO data_key VALUES (?)", (secrets.token_bytes(32),))
            return stored_key(database)

    @override
    def remember(self, kind: str, data: str, decide: journal.NoteDecision) -> None:
        """Add the note that `decide` returns given the notes on the same and on other data; an empty text adds none."""
        with self._transaction() as database:
            require_intact(database)  # a changed journal must not hide notes of earlier runs
            same, other_notes = list[journal.Note](), list[journal.Note]()
            for event in events(database, kind=kind):
                notes = same if event.digest == data else other_notes
                notes.append(journal.Note(event.about, event.run, event.time))
            if text := decide(same, other_notes):
                self._add_event(database, kind, text, data)

    @override
    def record_refusal(self, why: str) -> None:
        """Record or count that this run was refused, and drop its secrets."""
        with self._transaction() as database:
            if not self._run_notes(database, "refused"):
                if not counting_event(database):
                    self._describe_run(database)
                self._add_event(database, "refused", why)
            self._drop_run(database)

    @override
    def end(self, why: str) -> None:
        """Record why this party ended the run, and drop the run's secrets."""
        with self._transaction() as database:
            self._add_event(database, "ended", why)
            self._drop_run(database)

    @override
    def store_secret(self, name: str, value: bytes) -> None:
        """Store or replace a secret of this run; above a limit, drop secrets of runs silent for a day first."""
        with self._transaction() as database:
            if database.execute("SELECT count(*) FROM secret").fetchone()[0] > MAX_SECRETS:
                self._drop_silent(database)  # otherwise the secrets of runs that never begin would stay for ever
            self._store_value(database, name, value)

    @override
    def load_secret(self, name: str) -> bytes | None:
        """Return the secret of this run with this name, or None if there is none."""
        with self._transaction() as database:
            return self._load_value(database, name)

    @override
    def complete(self) -> None:
        """Record that the last question is answered, and drop the run's secrets."""
        with self._transaction() as database:
            self._add_event(database, COMPLETED_KIND, "the last question of the run is answered")
            self._drop_run(database)

    @override
    def end_digest(self) -> str:
        key = self.data_key
        with self._transaction() as database:
            return keyed_digest(key, chain_end(database).last)

    # Inside

    @cached_property
    def _store(self) -> Store:
        """SQLite store of the journal in the site's folder."""
        return Store(self.folder, SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction if the journal has the last event that this run saw; DisclosureError if it is unusable."""
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
            if isinstance(error, LockedError):  # the error report will open the journal too, and must not wait again
                self._lock_error = fault
            raise fault from None

    def _require_present(self, last_seen: tuple[int, str]) -> None:
        """Raise StoreError for a missing journal that this run has seen; otherwise log that a new journal begins."""
        if self._store.exists():
            return
        if last_seen[0]:
            raise StoreError(f"{self._store.file} is gone, and this run has seen it; put it back")
        site_logger.warning(
            "there is no journal in %s, and a new one begins there: if this site had one, put it back before the next "
            "run, since what it has spent of its privacy and was asked in earlier runs is forgotten without it",
            self._store.folder,
        )

    def _drop_silent(self, database: sqlite3.Connection) -> None:
        """Delete the secrets of all runs without an event in the last day, except this run and runs by post."""
        ended = "SELECT run, party FROM event WHERE kind IN ('ended', ?)"
        by_post = f"SELECT * FROM (SELECT run, party FROM event WHERE kind = ? EXCEPT {ended})"
        alive_runs = f"SELECT run, party FROM event WHERE time > ? UNION SELECT ?, ? UNION {by_post}"
        values = (utc_time(SECRETS_TIMEOUT), *self.key, POST_KIND, COMPLETED_KIND)
        database.execute(f"DELETE FROM secret WHERE (run, party) NOT IN ({alive_runs})", values)

    def _describe_run(self, database: sqlite3.Connection) -> None:
        """Add an event that describes the run (method, app), once a run."""
        if self.description and not self._run_notes(database, "run"):
            self._add_event(database, "run", self.description, self.settings)
            if self.by_post:
                self._add_event(database, POST_KIND, "this run has no deadline: `site forget` ends it here")

    def _store_value(self, database: sqlite3.Connection, name: str, value: bytes) -> None:
        """Insert or replace a secret of this run in the open transaction, by blocks: SQLite copies a bound value."""
        command = "INSERT OR REPLACE INTO secret VALUES (?, ?, ?, zeroblob(?))"
        row = database.execute(command, (*self.key, name, len(value))).lastrowid
        assert row is not None
        with database.blobopen("secret", "value", row) as blob:
            for start in range(0, len(value), SECRET_BLOCK_BYTES):
                blob.write(value[start : start + SECRET_BLOCK_BYTES])

    def _load_value(self, database: sqlite3.Connection, name: str) -> bytes | None:
        """Return a secret of this run in the open transaction, or None."""
        query = "SELECT value FROM secret WHERE run = ? AND party = ? AND name = ?"
        row = database.execute(query, (*self.key, name)).fetchone()
        return _blob(row, f"its secret '{name}'") if row else None

    def _run_notes(self, database: sqlite3.Connection, kind: str) -> list[str]:
        """Return the texts of this run's events of a kind, such as "question"."""
        run, party = self.key
        return [event.about for event in events(database, run=run, party=party, kind=kind)]

    def _add_event(self, database: sqlite3.Connection, kind: str, text: str, digest: str = "", nbytes: int = 0) -> None:
        """Append an event of this run, with the present time, to the chain of digests."""
        append_event(database, (utc_time(), *self.key, kind, text, digest, nbytes))
        journal_logger.info("run %s, party %s: %s '%s', %s bytes", *self.key, kind, text, nbytes)

    def _drop_run(self, database: sqlite3.Connection) -> None:
        """Delete the secrets of this run."""
        database.execute("DELETE FROM secret WHERE run = ? AND party = ?", self.key)


def stored_key(database: sqlite3.Connection) -> bytes:
    """Return the key of a journal's digests; empty if it has none yet."""
    row = database.execute("SELECT value FROM data_key").fetchone()
    return _blob(row, "the key of its digests") if row else b""


def _blob(row: tuple[object], name: str) -> bytes:
    """Return the bytes that a row of the journal holds; raise DamageError for a value of another type."""
    (value,) = row
    if not isinstance(value, bytes):
        raise DamageError(f"{name} is of type {type(value).__name__}, expected bytes")
    return value
