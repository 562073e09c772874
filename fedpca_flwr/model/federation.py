"""`Federation`, of the method `streaming`: members join, leave, replace their rows or append rows.

Nothing is ever subtracted. The federation stores each member's own moments, so the pooled moments are those of a fresh
start with the current members, bit for bit, whatever happened before. A single sum would need d^2 values instead of
K d^2, but to subtract a member that leaves would lose digits, and would need the member's moments once more.

An update costs O(d^2); the members are pooled, O(K d^2), only when a model is made. The state is a folder on disk
(`fedpca_flwr.state.store`), which holds the old state or the new state, whenever the machine stops. The state names a
member's moments by their digest, and removes them with the last member of that digest.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import secrets
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.config.run_config import NAME_CHARACTERS
from fedpca_flwr.data.frames import column_labels
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, ContractError, DataError, value_text
from fedpca_flwr.maths.moments import Moments, packed_size
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import validate_moments
from fedpca_flwr.state.files import require_writable_folder, utc_time
from fedpca_flwr.state.store import Schema, Store

UPGRADE_OF_1 = (  # statements that make format 2
    "ALTER TABLE federation ADD COLUMN id TEXT NOT NULL DEFAULT ''",
    "UPDATE federation SET id = lower(hex(randomblob(16)))",
    *(f"ALTER TABLE event ADD COLUMN {x} TEXT NOT NULL DEFAULT ''" for x in ("time", "run", "digest")),
)
SCHEMA = Schema(
    name="federation",
    file="federation.sqlite",
    application=b"FPCf",
    format=2,
    tables="""
CREATE TABLE federation (
    revision INTEGER NOT NULL, features INTEGER NOT NULL, columns TEXT NOT NULL, id TEXT NOT NULL);
CREATE TABLE member (key TEXT NOT NULL, rows INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE part (member TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE event (
    revision INTEGER NOT NULL, operation TEXT NOT NULL, member TEXT NOT NULL, rows INTEGER NOT NULL,
    time TEXT NOT NULL, run TEXT NOT NULL, digest TEXT NOT NULL);
""",
    sealed_tables=("federation", "member", "part", "event"),
    old_patterns=("federation.json", "*.moments"),
    upgrades=((1, UPGRADE_OF_1),),
)
# columns of the table of events, with their types
EVENT_COLUMNS = {"revision": int, "operation": str, "member": str, "rows": int, "time": str, "run": str, "digest": str}


def moments_digest(moments: Moments) -> str:
    """Compute the SHA-256 of moments, in hexadecimal, equal at a party and at the server that received its moments."""
    return hashlib.sha256(moments_to_bytes(moments)).hexdigest()


def moments_to_bytes(moments: Moments) -> bytes:
    """Serialise moments as little-endian float64: count, mean (d,), remainder (d,) and packed scatter."""
    d = moments.n_features
    assert moments.scatter.size == packed_size(d)
    parts = ([float(moments.count)], moments.mean, moments.remainder, moments.scatter)
    return np.concatenate(parts).astype("<f8", copy=False).tobytes()


MEMBER_KEY_PATTERN = re.compile(rf"(?! ){NAME_CHARACTERS}{{1,64}}(?<! )")


class Federation:
    """Federation whose members' moments are stored in a folder; changes stay in memory until `save`.

    Parameters
    ----------
    path : str or path
        Folder of the state. A new folder stands for a federation without members.

    Attributes
    ----------
    revision : int
        How many times the state was saved.
    features : int
        Number of features of the members' rows; 0 without members.
    columns : str
        Digest of the column names; empty if no member has names.
    id : str
        Random name of the federation (32 hexadecimal digits), by which members recognise its state.
    run : str
        Flower's number of the run that changes the federation; empty outside Flower.
    journal : list of dict
        Entries of all operations: ``revision``, ``operation``, ``member``, ``rows`` (number of rows added or removed),
        ``time``, ``run``, and ``digest`` of the moments. The operation "run" stands for a run that used the federation,
        with the digest of the run's settings.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from fedpca_flwr.model.federation import Federation
    >>> rows = np.random.default_rng(0).standard_normal((300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> federation = Federation.open(tempfile.mkdtemp())
    >>> federation.join("north", rows[:200])
    >>> federation.join("south", rows[200:280])
    >>> federation.append("south", rows[280:])
    >>> federation.leave("north")
    >>> federation.save()
    >>> federation.members
    {'south': 100}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read members, digests and journal from the folder if it has a federation; raise errors as `open`."""
        self._store = Store(path, SCHEMA)
        self._loaded_seal = self._store.empty_digest
        self.revision, self.features, self.columns, self.id, self.run = 0, 0, "", secrets.token_hex(16), ""
        self.journal: list[dict[str, Any]] = []
        self._members: dict[str, dict[str, Any]] = {}
        self._unsaved_moments: dict[str, Moments] = {}  # by member
        if self._store.exists():
            with self._store.transaction() as database:
                self._loaded_seal = self._store.verified_digest(database)
                rows_of = partial(self._store.rows, database)
                for row in rows_of("SELECT revision, features, columns, id FROM federation", int, int, str, str):
                    self.revision, self.features, self.columns, self.id = row
                for key, rows, sha in rows_of("SELECT key, rows, digest FROM member ORDER BY key", str, int, str):
                    if not MEMBER_KEY_PATTERN.fullmatch(key) or key in self._members:
                        raise self._store.damaged_error()
                    self._members[key] = {"rows": rows, "digest": sha, "parts": []}
                for key, sha in rows_of("SELECT member, digest FROM part ORDER BY rowid", str, str):
                    if key not in self._members:
                        raise self._store.damaged_error()
                    self._members[key]["parts"].append(sha)
                query = f"SELECT {', '.join(EVENT_COLUMNS)} FROM event ORDER BY rowid"
                for row in rows_of(query, *EVENT_COLUMNS.values()):
                    self.journal.append(dict(zip(EVENT_COLUMNS, row, strict=True)))

    def __repr__(self) -> str:
        """Write the members with their numbers of rows, the number of features, and the revision."""
        members = ", ".join(f"{key!r}: {rows} rows" for key, rows in self.members.items()) or "no members"
        return f"{type(self).__name__}({members}; {self.features} features; revision {self.revision})"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Federation:
        """Open the federation in a folder, or a new federation if the folder holds none.

        Parameters
        ----------
        path : str or path

        Returns
        -------
        Federation

        Raises
        ------
        ConfigError, ContractError
            If the path is a file; if the state is damaged.
        """
        return cls(path)

    def prepare(self) -> None:
        """Create the folder of the stored state, or raise ConfigError if that is impossible."""
        require_writable_folder(self._store.folder)

    # Contents

    @property
    def members(self) -> dict[str, int]:
        """Number of rows of each member, by its key."""
        return {key: member["rows"] for key, member in self._members.items()}

    @property
    def changed(self) -> bool:
        """True if there are changes that are not saved."""
        return bool(self.journal) and self.journal[-1]["revision"] > self.revision

    def has(self, key: str, sha: str) -> bool:
        """Return whether the stored moments of a member have this digest; False without such a member.

        Parameters
        ----------
        key : str
        sha : str
            Digest of moments (`moments_digest`).

        Returns
        -------
        bool
        """
        return key in self._members and self._members[key]["digest"] == sha

    def has_part(self, key: str, sha: str) -> bool:
        """Return whether a member joined with, or appended, moments that have this digest.

        Parameters
        ----------
        key, sha
            As `has`.

        Returns
        -------
        bool
        """
        return key in self._members and sha in self._members[key]["parts"]

    def moments_of(self, key: str) -> Moments:
        """Read and check the moments (count, mean, scatter) of a member's rows.

        Parameters
        ----------
        key : str

        Returns
        -------
        Moments

        Raises
        ------
        ConfigError, ContractError
            If there is no such member; if the state is damaged.
        """
        member, d = self._find_member(key), self.features
        if key in self._unsaved_moments:
            return self._unsaved_moments[key]
        with self._store.transaction() as database:
            content = self._store.get(database, member["digest"], 8 * (1 + 2 * d + packed_size(d)))
        try:
            values = np.frombuffer(content, "<f8").astype(np.float64, copy=False)
            count, mean, remainder, scatter = np.split(values, np.cumsum([1, d, d]))
            moments = Moments(int(count[0]), mean, remainder, scatter)
        except (ValueError, OverflowError):  # a count that is no number
            raise self._store.damaged_error() from None
        if moments.count != member["rows"]:
            raise self._store.damaged_error()
        return validate_moments(key, moments)

    def parts(self) -> dict[str, Moments]:
        """Return the moments of each member's rows, by the member's key.

        Returns
        -------
        dict of str to Moments

        Raises
        ------
        DataError, ContractError
            If the federation has no members; if the state is damaged.
        """
        if not self._members:
            raise DataError(f"the federation in {self._store.folder} has no members; let one join")
        return {key: self.moments_of(key) for key in self._members}

    def moments(self) -> Moments:
        """Pool the moments of all members' rows; raise errors as `parts`.

        Returns
        -------
        Moments
        """
        return pool(self.parts().values())

    def model(self, n_components: int | float = 10, *, center: bool = True, scale: bool = False) -> PCAModel:
        """Compute the PCA of all members' rows from their pooled moments.

        Parameters
        ----------
        n_components : int or float, default 10
            Number of components, or the fraction of the variance that the components must exceed.
        center : bool, default True
            Subtract the mean of all rows.
        scale : bool, default False
            Divide each feature by its standard deviation (divisor n).

        Returns
        -------
        PCAModel

        Raises
        ------
        ConfigError, DataError
            As `fedpca_flwr.model.solution.solve`.
        """
        log_entries = {
            "method": "streaming",
            "columns": self.columns,
            "parties": [{"party": i, "name": key, "rows": rows} for i, (key, rows) in enumerate(self.members.items())],
            "measured": {
                "revision": self.revision,
                "unsaved_changes": sum(entry["revision"] > self.revision for entry in self.journal),
            },
        }
        return PCAModel.of_moments(self.moments(), log_entries, n_components=n_components, center=center, scale=scale)

    # Changes

    def join(self, key: str, data: ArrayLike | Moments, columns: str = "") -> None:
        """Add a new member with the moments of its rows.

        Parameters
        ----------
        key : str
            1 to 64 letters, digits, spaces (not at an end), dashes or any of ``_ . , ' & ( )``.
        data : array-like of shape (n, d), or Moments
            The member's rows, or their moments.
        columns : str, optional
            Digest of the column names; by default that of a data frame's names.

        Raises
        ------
        ConfigError
            If the key is not such a text or a member's already, or the columns have other names than the federation's.
        ContractError, DataError
            If the rows have another number of features, or given moments are impossible; if rows are no finite numbers.
        """
        if not isinstance(key, str) or not MEMBER_KEY_PATTERN.fullmatch(key):
            raise ConfigError(
                f"a member's key is {value_text(key)}, expected 1 to 64 letters, digits, inner spaces, dashes or "
                "any of _ . , ' & ( )"
            )
        if key in self._members:
            raise ConfigError(f"'{key}' is a member already; replace its rows or append to them")
        self._update("join", key, data, columns)

    def replace(self, key: str, data: ArrayLike | Moments, columns: str = "") -> None:
        """Replace the moments of a member by the moments of new rows.

        Parameters
        ----------
        key, data, columns
            As `join`.

        Raises
        ------
        ConfigError, ContractError, DataError
            As `join`, but for another key: if there is no such member.
        """
        self._find_member(key)
        self._update("replace", key, data, columns)

    def append(self, key: str, data: ArrayLike | Moments, columns: str = "") -> None:
        """Add the moments of further rows to a member's moments.

        Parameters
        ----------
        key, data, columns
            As `join`.

        Raises
        ------
        ConfigError, ContractError, DataError
            As `replace`, and if the member brought exactly these rows before: they would count twice.
        """
        self._find_member(key)
        self._update("append", key, data, columns)

    def leave(self, key: str) -> None:
        """Remove a member and its rows; the member's own client need not be connected.

        Parameters
        ----------
        key : str

        Raises
        ------
        ConfigError
            If there is no such member.
        """
        rows = self._find_member(key)["rows"]
        del self._members[key]
        self._unsaved_moments.pop(key, None)
        if not self._members:
            self.features, self.columns = 0, ""
        self._log_operation("leave", key, rows)

    def log_run(self, settings: str) -> None:
        """Log that a run used the federation, so that every run is a revision of its own.

        Parameters
        ----------
        settings : str
            Digest of the settings of the run; empty outside Flower.
        """
        self._log_operation("run", "", 0, settings)

    def save(self) -> None:
        """Write all changes to the folder in a single transaction.

        Raises
        ------
        ContractError
            If another process saved changes since this process opened the folder.
        """
        if not self.changed:
            return
        with self._store.transaction() as database:
            self._store.require_digest(database, self._loaded_seal)
            (stored_events,) = database.execute("SELECT count(*) FROM event").fetchone()
            for table in ("federation", "member", "part"):
                database.execute(f"DELETE FROM {table}")
            header = (self.revision + 1, self.features, self.columns, self.id)
            database.execute("INSERT INTO federation VALUES (?, ?, ?, ?)", header)
            members = [(key, member["rows"], member["digest"]) for key, member in self._members.items()]
            database.executemany("INSERT INTO member VALUES (?, ?, ?)", members)
            parts = [(key, sha) for key, member in self._members.items() for sha in member["parts"]]
            database.executemany("INSERT INTO part VALUES (?, ?)", parts)
            new_events = self.journal[stored_events:]
            values = ", ".join(f":{name}" for name in EVENT_COLUMNS)
            database.executemany(f"INSERT INTO event VALUES ({values})", new_events)
            # before the new moments, which can then have the place of the old moments in the file
            database.execute("DELETE FROM piece WHERE digest NOT IN (SELECT digest FROM member)")
            for moments in self._unsaved_moments.values():
                self._store.put(database, moments_to_bytes(moments))
            loaded = self._store.seal(database)
        self._loaded_seal = loaded
        self.revision += 1
        self._unsaved_moments.clear()

    def _find_member(self, key: str) -> dict[str, Any]:
        """Return a member's stored entry (rows, digest, parts), or raise a `ConfigError` for an unknown key."""
        if key in self._members:
            return self._members[key]
        matches = difflib.get_close_matches(key, self._members, n=1)
        hint = f"did you mean '{matches[0]}'?" if matches else f"members: {', '.join(self._members) or 'none'}"
        raise ConfigError(f"'{key}' is not a member of the federation; {hint}")

    def _update(self, operation: str, key: str, data: ArrayLike | Moments, columns: str) -> None:
        """Apply the operation "join", "replace" or "append" with a member's new data; raise errors as these methods."""
        new, columns = validate_moments(key, data), columns or names_digest(column_labels(data))
        if self.features not in (0, new.n_features):
            expected = f"those of the federation have {self.features}"
            raise ContractError(f"the rows of '{key}' have {new.n_features} features, {expected}")
        if columns and self.columns not in ("", columns):
            raise ConfigError(f"the column names of '{key}', or their order, differ from those of the federation")
        sha, parts, total = moments_digest(new), list[str](), new
        if operation == "append":
            parts = self._members[key]["parts"]
            if sha in parts:
                raise ConfigError(f"'{key}' has brought exactly these {new.count} rows before; append only new ones")
            total = pool([self.moments_of(key), new])
        self.features, self.columns = total.n_features, self.columns or columns
        self._members[key] = {"rows": total.count, "digest": moments_digest(total), "parts": [*parts, sha]}
        self._unsaved_moments[key] = total
        self._log_operation(operation, key, new.count, sha)

    def _log_operation(self, operation: str, key: str, rows: float, digest: str = "") -> None:
        """Append an operation to the journal, with its member, number of rows and digest of the moments received."""
        values = (self.revision + 1, operation, key, rows, utc_time(), self.run, digest)
        self.journal.append(dict(zip(EVENT_COLUMNS, values, strict=True)))
