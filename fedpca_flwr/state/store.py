"""`Store`: an SQLite file in a folder, on disk when a transaction ends, and complete whenever the machine stops.

A federation, a running model and a site's journal declare their tables. Only the owner of the folder may read the file,
one transaction at a time over all processes; nothing that was deleted stays in it. SQLite notices a broken file, not a
changed value: so large values are named by their SHA-256, and sealed tables have one digest. That shows damage, and
does not stop someone who may write to the file.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.state.files import make_folder

LOCK_TIMEOUT_SECONDS = 20.0  # seconds that a transaction waits for that of another process, which takes milliseconds
PIECE_BYTES = 2**24  # bytes of a large value in one row: SQLite allows 10^9
MAX_TABLE_INTEGER = 2**53  # whole number in a table; float64 rounds larger ones
REMEDY = "restore it from a copy, or name another folder"  # at the end of an error about a damaged file

STORE_TABLES = """
CREATE TABLE seal (digest TEXT NOT NULL);
CREATE TABLE piece (digest TEXT NOT NULL, number INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (digest, number));
"""


class StoreError(ContractError):
    """Error for a store's SQLite file that is damaged, foreign or cannot be used."""


class DamageError(Exception):
    """Fault in the rows of a store ("event 3: 'bytes' is 'x'"), to which `Store.transaction` adds file and remedy."""


class LockedError(StoreError):
    """Error for a store's SQLite file that another process keeps locked."""


@dataclass(frozen=True)
class Schema:
    """Declaration of a kind of store: its file name, SQL tables, format number and sealed tables."""

    name: str  # how errors name it
    file: str  # its name in the folder
    application: bytes  # four bytes, by which SQLite's files are told apart
    format: int  # version of the tables; another one is refused unless it is among the upgrades
    tables: str  # SQL that makes them, statements separated by semicolons
    sealed_tables: tuple[str, ...] = ()  # the tables in which no value may change unnoticed
    old_patterns: tuple[str, ...] = ()  # patterns of the files in which versions before 0.1.0 kept the same
    upgrades: tuple[tuple[int, tuple[str, ...]], ...] = ()  # older formats, and SQL that makes the present one


class Store:
    """SQLite file in a folder, whose sealed tables and large values are checked by SHA-256 digests."""

    def __init__(self, folder: str | os.PathLike[str], schema: Schema) -> None:
        """Set the folder and the file, create nothing; raise ConfigError for a folder that is a file or unusable."""
        self.folder = Path(folder).expanduser().absolute()
        self.file = self.folder / schema.file
        self.schema = schema
        try:
            no_folder = self.folder.is_file()
            self.file.exists()
        except OSError as error:
            raise ConfigError(f"the folder {self.folder} cannot be used ({error.strerror}); name another") from None
        if no_folder:
            raise ConfigError(f"a {schema.name} is a folder, and {self.folder} is a file; name another")
        self._application = int.from_bytes(schema.application, "big")
        self.empty_digest = self._digest(None)  # digest of sealed tables without rows

    def exists(self) -> bool:
        """Return whether the store's file exists; raise StoreError for remains of a lost or an old version's file."""
        if self.file.exists():
            return True
        for file in self.folder.glob(f"{self.schema.file}-*"):
            if self.file.exists():  # another process has made it meanwhile, and is in its first transaction
                return True
            raise StoreError(f"{file} stands alone: the {self.schema.name} beside it is missing; put it back")
        for file in (file for pattern in self.schema.old_patterns for file in self.folder.glob(pattern)):
            raise StoreError(
                f"{file} was written by a version of fedpca-flwr before 0.1.0, whose files this version does not read: "
                "once no run is under way, move it away or name another folder, and begin anew"
            )
        return False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open an SQLite transaction: committed at the end of the with statement, rolled back on an error.

        A missing file is created, and an older format upgraded. Raise LockedError if another process keeps the file
        locked, and StoreError if the file is damaged, foreign or of another format.
        """
        try:
            if not self.exists():
                self._create()
            uri = f"{self.file.as_uri()}?mode=rw"  # SQLite itself makes no file
            database = sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise self._unusable_error(error) from None
        try:
            with closing(database):
                database.execute("PRAGMA synchronous = EXTRA")  # with FULL, a power cut may undo the last transaction
                database.execute("PRAGMA secure_delete = ON")
                database.execute("BEGIN IMMEDIATE")
                (application,) = database.execute("PRAGMA application_id").fetchone()
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if application != self._application:
                    raise self.damaged_error()
                for statement in (upgrades := dict(self.schema.upgrades)).get(version, ()):
                    database.execute(statement)
                if version in upgrades:
                    self.seal(database)
                    database.execute(f"PRAGMA user_version = {self.schema.format}")
                elif version != self.schema.format:
                    raise StoreError(
                        f"{self.file} has format {version}, and this version of fedpca-flwr reads format "
                        f"{self.schema.format}; use the version that wrote it, or name another folder"
                    )
                yield database
                database.execute("COMMIT")  # after an error, SQLite rolls the transaction back
        except sqlite3.Error as error:
            raise self._unusable_error(error) from None
        except DamageError as error:
            raise StoreError(f"{self.file} is damaged ({error}); {REMEDY}") from None

    # Sealed tables

    def verified_digest(self, database: sqlite3.Connection) -> str:
        """Return the digest of the sealed tables; raise StoreError if the tables were changed by other means."""
        digest = self._digest(database)
        if database.execute("SELECT digest FROM seal").fetchall() != [(digest,)]:
            raise self.damaged_error()
        return digest

    def seal(self, database: sqlite3.Connection) -> str:
        """Compute, store and return the digest of the sealed tables, for later checks."""
        digest = self._digest(database)
        database.execute("UPDATE seal SET digest = ?", (digest,))
        return digest

    def require_digest(self, database: sqlite3.Connection, digest: str) -> None:
        """Raise ContractError if another run changed the sealed tables since this digest, or StoreError for damage."""
        if self.verified_digest(database) != digest:
            raise ContractError(
                f"another run changed the {self.schema.name} in {self.folder} after this one had read it; nothing is "
                "saved: run this one again"
            )

    def rows(self, database: sqlite3.Connection, query: str, *kinds: type[int] | type[str]) -> list[tuple[Any, ...]]:
        """Return rows whose columns are of `kinds` (`str`, or `int` to `MAX_TABLE_INTEGER`); else raise StoreError."""
        rows = database.execute(query).fetchall()
        for row in rows:
            for value, kind in zip(row, kinds, strict=True):
                if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= MAX_TABLE_INTEGER):
                    raise self.damaged_error()
        return rows

    # Large values

    def put(self, database: sqlite3.Connection, content: bytes) -> str:
        """Store bytes in pieces, and return their SHA-256 in hexadecimal digits, by which `get` finds the bytes."""
        digest, view = hashlib.sha256(content).hexdigest(), memoryview(content)
        starts = range(0, len(view), PIECE_BYTES)
        pieces = ((digest, number, view[start : start + PIECE_BYTES]) for number, start in enumerate(starts))
        database.executemany("INSERT OR REPLACE INTO piece VALUES (?, ?, ?)", pieces)
        return digest

    def get(self, database: sqlite3.Connection, digest: str, size: int) -> bytearray:
        """Return the `size` bytes with a SHA-256 digest; raise StoreError if they are missing or damaged."""
        content = bytearray()
        for (value,) in database.execute("SELECT value FROM piece WHERE digest = ? ORDER BY number", (digest,)):
            content += value if isinstance(value, bytes) else b""
        if not content:
            raise StoreError(
                f"{self.file} holds no more what this run has read of it; did another run change it? run this one again"
            )
        if hashlib.sha256(content).hexdigest() != digest or len(content) != size:
            raise self.damaged_error()
        return content

    # Inside

    def _create(self) -> None:
        """Create the file with its tables, atomically, since an empty one would count as damaged; keep a faster one."""
        make_folder(self.folder)
        descriptor, name = mkstemp(prefix=f".{self.file.name}.", suffix=".tmp", dir=self.folder)  # for its owner only
        os.close(descriptor)
        try:
            with closing(sqlite3.connect(name, isolation_level=None)) as database:
                database.executescript(
                    f"BEGIN; PRAGMA application_id = {self._application}; PRAGMA user_version = {self.schema.format};"
                    f"{STORE_TABLES} {self.schema.tables} INSERT INTO seal VALUES ('{self.empty_digest}'); COMMIT"
                )
            with suppress(FileExistsError):  # another process was faster
                self.file.hardlink_to(name)
        finally:
            Path(name).unlink()

    def _digest(self, database: sqlite3.Connection | None) -> str:
        """Return the SHA-256 of all rows of the sealed tables; without a database, of empty tables."""
        sha = hashlib.sha256()
        for table in self.schema.sealed_tables:
            sha.update(f"{table}\n".encode())
            for row in database.execute(f"SELECT * FROM {table} ORDER BY rowid") if database else ():
                sha.update(f"{row!r}\n".encode())
        return sha.hexdigest()

    def damaged_error(self) -> StoreError:
        """Return the error for a file that is damaged or belongs to another program."""
        return StoreError(f"{self.file} is damaged, or not a {self.schema.name}; {REMEDY}")

    def _unusable_error(self, error: Exception) -> StoreError:
        """Return the StoreError for an error of SQLite or the system, without its text, which may quote stored data."""
        reason = getattr(error, "strerror", None) or getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
        if reason in {"SQLITE_CORRUPT", "SQLITE_NOTADB"}:
            return self.damaged_error()
        if str(reason).startswith("SQLITE_BUSY"):
            return LockedError(
                f"{self.file} was locked by another process for {LOCK_TIMEOUT_SECONDS:g} s; end the program that "
                "has it open (a backup, a viewer), and run again"
            )
        return StoreError(f"{self.file} cannot be used ({reason}); see to it, or name another folder")
