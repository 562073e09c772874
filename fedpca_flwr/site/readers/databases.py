"""The rows of a site's own query, from PostgreSQL, DuckDB or another database, in blocks (extra ``sql``).

The database converts every number to float64 and every NULL to NaN. A column that is not numeric is refused before a
row is read. PostgreSQL sends rows by ``COPY`` in its binary format, so a block is a view of the bytes that arrived:
rows of SQLAlchemy from a cursor at the server take 25 times the CPU time (200,000 x 50: 7.5 s for 0.3 s). Format:
https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-BINARY-FORMAT
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.node_config import DUCKDB, OTHER_DATABASE, POSTGRESQL, database_kind
from fedpca_flwr.data.table import INEXACT_INTEGERS, Table, check_rows, require_same_rows
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Blocks
from fedpca_flwr.site.readers.columns import INEXACT_ADVICE, ColumnSelection, column_positions, require_extra
from fedpca_flwr.site.readers.file_format import require_unique_names

SQL_SESSION = "fedpca_flwr.site.readers.sql_databases:sql_session"  # which needs SQLAlchemy
MAX_PASS_SECONDS = 3600.0  # after which a pass over the rows fails: the database's time, and the site's between blocks
TOO_LONG_TEXT = (
    f"the query's rows took longer than {MAX_PASS_SECONDS:,.0f} s to read; make what it joins and sorts less, or name "
    "a table that holds its result"
)


class Column(NamedTuple):
    """Column of a query's result."""

    name: str
    type_name: str  # in the database
    number_sql: str  # makes float64 of the column {0} and NaN of NULL; empty if the column is not numeric
    is_integer: bool = False  # whether the SQL makes infinity of integers that float64 does not hold


class Selection(NamedTuple):
    """A query, its columns, and the positions of those that are features and of the ids, if any."""

    query: str
    columns: list[Column]
    features: list[int]
    ids: int | None

    @property
    def source(self) -> str:
        """The query as a table, whose columns have names of ours: its own may be any text."""
        names = ", ".join(f"c{position}" for position in range(len(self.columns)))
        return f"FROM ({self.query}\n) AS q({names}){'' if self.ids is None else f' ORDER BY c{self.ids}'}"

    @property
    def numbers(self) -> list[str]:
        """SQL that makes a float64 of each feature."""
        return [self.columns[position].number_sql.format(f"c{position}") for position in self.features]


@dataclass
class Session(ABC):
    """Interface of a read-only database connection, which sees a single state of the data for its whole length."""

    connection: Any  # of the database's driver

    @abstractmethod
    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query, before its rows; raise ConfigError if the text is not a single SELECT."""

    @abstractmethod
    def numbers(self, selection: Selection, rows: int) -> Iterator[Array]:
        """Yield blocks (m, d) of about `rows` rows of d features; whole numbers that float64 lacks are infinite."""

    def ids(self, selection: Selection) -> list[str]:
        """Return the text of each row's id, empty for NULL."""
        select = f"SELECT coalesce(CAST(c{selection.ids} AS VARCHAR), '') {selection.source}"
        return [text for (text,) in self.connection.execute(select).fetchall()]


def connection_error(local: str) -> DataError:
    """Return the error for a database that does not answer; the driver's words go to the site's log only."""
    return DataError(
        "the database that node-config 'data' names cannot be reached, or does not let this site in (the site's log "
        "says which)",
        local=local,
    )


def query_error(local: str, *, too_long: bool = False, refusal: str = "") -> FedPCAError:
    """Return the error for a failed query; the database's own message `refusal` goes to the site's log only."""
    if too_long:
        return DataError(TOO_LONG_TEXT, local=local)
    if refusal:
        text = "node-config: the database refuses the 'query' (the site's log says why)"
        return ConfigError(text, local=f"{local}: {refusal}")
    return DataError("the database fails at the query (the site's log says how)", local=local)


EXACT_TYPES = {"BOOLEAN", "FLOAT", "DOUBLE"} | {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL")}
EXACT_TYPES |= {"INTEGER", "UINTEGER"}
"""Types that DuckDB itself rounds correctly. HUGEINT it does not, nor DECIMAL in 1.5: these go through their text."""

LARGE_INTEGER_TYPES = re.compile(r"U?(BIG|HUGE)INT|DECIMAL\(\d+,0\)")
"""Types of DuckDB with whole numbers that float64 may not represent, and that then become infinite."""

LARGE_INTEGER_SQL = (
    "CASE WHEN {0} IS NULL THEN CAST('NaN' AS DOUBLE) WHEN TRY_CAST(%s AS HUGEINT) = {0} THEN %s "
    "ELSE CAST('Infinity' AS DOUBLE) END"
).replace("%s", "CAST(CAST({0} AS VARCHAR) AS DOUBLE)")

MEMORY_PATH = ":memory:"
DUCKDB_CONFIG = {
    "autoinstall_known_extensions": "false",  # nothing is downloaded
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no table is a variable of this program
    "lock_configuration": "true",
    "memory_limit": "512MB",  # larger sorts use a folder beside the file
    "threads": "1",  # sums in one order, so the same bits
}


@contextmanager
def duckdb_session(url: str) -> Iterator[DuckDB]:
    """Open a read-only session with a DuckDB file, or with DuckDB in memory to query other files.

    The session is interrupted after `MAX_PASS_SECONDS`. DuckDB's own words about the query appear in the site's own
    log only.
    """
    with require_extra("sql", "DuckDB needs duckdb"):
        import duckdb
    import pyarrow as pa  # by which its rows come

    path = url.removeprefix("duckdb:///")
    file = Path(path).expanduser()
    if path != MEMORY_PATH and not file.is_file():
        raise DataError("the DuckDB file that node-config 'data' names does not exist", local=str(file))
    is_connected = False
    try:
        config: dict[str, Any] = dict(DUCKDB_CONFIG)
        with duckdb.connect(MEMORY_PATH if path == MEMORY_PATH else file, path != MEMORY_PATH, config) as connection:
            is_connected = True
            timer = Timer(MAX_PASS_SECONDS, connection.interrupt)
            timer.daemon = True
            timer.start()
            try:
                yield DuckDB(connection)
            finally:
                timer.cancel()
    except (duckdb.Error, pa.ArrowException) as error:
        local = f"{type(error).__name__} in {file}"
        if not is_connected:
            raise DataError(
                "the DuckDB file cannot be opened: it is damaged, of another version, or written to by another program",
                local=local,
            ) from None
        text_errors = duckdb.CatalogException | duckdb.BinderException | duckdb.ParserException | duckdb.IOException
        raise query_error(
            local,
            too_long=isinstance(error, duckdb.InterruptException),
            refusal=str(error).partition("\n")[0] if isinstance(error, text_errors) else "",  # of files too, no values
        ) from None


class DuckDB(Session):
    """Session with DuckDB."""

    @override
    def columns(self, query: str) -> list[Column]:
        """Return the columns of a single SELECT, with no SQL if not numeric; raise ConfigError for another text."""
        select = f"SELECT * FROM ({query}\n) AS q LIMIT 0"
        statements = self.connection.extract_statements(select)
        if [statement.type.name for statement in statements] != ["SELECT"]:  # `sql` would run each
            raise ConfigError(
                "node-config: 'query' is not a single SELECT; set it to one SELECT that returns the site's rows"
            )
        relation = self.connection.sql(select)
        columns = []
        for name, type_name in zip(relation.columns, map(str, relation.types), strict=True):
            large, number = bool(LARGE_INTEGER_TYPES.fullmatch(type_name)), ""
            if large:
                number = LARGE_INTEGER_SQL
            elif type_name in EXACT_TYPES:
                number = "coalesce(CAST({} AS DOUBLE), 'NaN')"
            elif type_name.startswith("DECIMAL("):
                number = "coalesce(CAST(CAST({} AS VARCHAR) AS DOUBLE), 'NaN')"
            columns.append(Column(name, type_name, number, large))
        return columns

    @override
    def numbers(self, selection: Selection, rows: int) -> Iterator[Array]:
        """Yield blocks of about `rows` rows (m, d) with float64 values, selected as a list for each row."""
        select = f"SELECT [{', '.join(selection.numbers)}] {selection.source}"  # a list of numbers for each row
        for batch in self.connection.sql(select).to_arrow_reader(rows):
            yield np.asarray(batch.column(0).flatten()).reshape(-1, len(selection.features))


POSTGRESQL_NUMBER_SQL = {
    16: "{0}::int::float8",
    20: "CASE WHEN {0}::float8::int8 = {0} THEN {0}::float8 WHEN {0} IS NOT NULL THEN 'infinity' END",
    **dict.fromkeys((21, 23, 700, 701, 1700), "{0}::float8"),
}
"""How a type becomes float64, by its OID: bool, int8 (inexact: infinite), int2, int4, float4, float8, numeric."""

COPY_HEADER, COPY_TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"

# seconds, seconds and times after which a connection is lost where nothing comes any more; else it may be hours
KEEPALIVE_OPTIONS = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


@contextmanager
def postgresql_session(url: str) -> Iterator[PostgreSQL]:
    """Open a read-only transaction with PostgreSQL; libpq finds the password in its own places.

    The server's own words are shown if they are about the connection (without the user's name) or the query itself, and
    only in the site's own log: other texts of the server may contain values.
    """
    with require_extra("sql", "PostgreSQL needs psycopg"):
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    try:
        parameters = conninfo_to_dict("postgresql://" + url.partition("://")[2])
    except psycopg.Error:  # its text may quote the user
        raise ConfigError("node-config: 'data' is a url that libpq does not accept; try the url with psql") from None
    connection = None
    try:
        options = {**KEEPALIVE_OPTIONS, "client_encoding": "utf8", **parameters}
        with psycopg.connect(**options) as connection:  # type: ignore[arg-type]
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")  # sums in one order, so the same bits
            connection.execute(f"SET LOCAL statement_timeout = {int(1000 * MAX_PASS_SECONDS)}")  # milliseconds
            yield PostgreSQL(connection)
    except psycopg.Error as error:
        if connection is None:
            message = re.sub(r"\s+", " ", str(error))
            if user := str(parameters.get("user") or ""):
                message = re.sub(rf"(?<!\w){re.escape(user)}(?!\w)", "...", message)
            raise connection_error(message) from None
        code = error.sqlstate or ""
        local = f"{type(error).__name__} {code}".strip()
        if connection.broken:
            raise DataError(
                "the connection to the database was lost while the site read the query's result; check that the "
                "database runs and can be reached, and run again",
                local=local,
            ) from None
        # class 42: syntax or access errors, raised before any row is read
        refusal = str(error.diag.message_primary) if code.startswith("42") else ""
        raise query_error(local, too_long=code == "57014", refusal=refusal) from None


class PostgreSQL(Session):
    """Session with PostgreSQL, in a single read-only transaction."""

    @override
    def columns(self, query: str) -> list[Column]:
        """Return the columns of a SELECT with the SQL that converts each to float64; "" if not numeric."""
        select = f"SELECT * FROM ({query}\n) AS q LIMIT 0"
        # in the extended protocol, which takes one statement: so no text that holds several ever comes to `numbers`
        description = self.connection.execute(select.encode(), binary=True).description
        columns = []
        for name, oid, display in ((column.name, column.type_code, column.type_display) for column in description):
            number_sql = f"coalesce({POSTGRESQL_NUMBER_SQL[oid]}, 'NaN')" if oid in POSTGRESQL_NUMBER_SQL else ""
            columns.append(Column(name, display, number_sql, oid == 20))
        return columns

    @override
    def numbers(self, selection: Selection, rows: int) -> Iterator[Array]:
        """Yield blocks of about `rows` rows (m, d) with float64 values, parsed from binary COPY."""
        width = len(selection.features)
        # a row has the number of its fields (int16), then of each field the size (int32) and the value (float64)
        row = np.dtype([("width", ">i2"), ("values", [("size", ">i4"), ("value", ">f8")], (width,))])
        buffer = bytearray()
        copy = f"COPY (SELECT {', '.join(selection.numbers)} {selection.source}) TO STDOUT (FORMAT BINARY)"
        with self.connection.cursor().copy(copy.encode()) as parts:
            buffer += parts.read()
            _require_copy_format(buffer.startswith(COPY_HEADER))
            del buffer[: len(COPY_HEADER)]
            for part in parts:
                if len(buffer) >= rows * row.itemsize:
                    yield _copied_values(buffer, row)
                    buffer = bytearray()
                buffer += part
        _require_copy_format(buffer.endswith(COPY_TRAILER))
        yield _copied_values(buffer[: -len(COPY_TRAILER)], row)


def _copied_values(buffer: bytearray, row: np.dtype[Any]) -> Array:
    """Return numbers (m, d) from PostgreSQL's COPY rows; raise DataError unless each has d fields of 8 bytes."""
    _require_copy_format(len(buffer) % row.itemsize == 0)
    records = np.frombuffer(buffer, row)
    widths_fit = (records["width"] == row["values"].shape[0]).all()
    _require_copy_format(bool(widths_fit and (records["values"]["size"] == 8).all()))
    return records["values"]["value"].astype(np.float64)


def _require_copy_format(is_valid: bool) -> None:
    """Raise DataError unless the bytes from the database have the expected COPY format."""
    if not is_valid:
        raise DataError("the database does not answer as PostgreSQL does (COPY in its binary format)")


def _sql_session(url: str) -> AbstractContextManager[Session]:
    """Open a session with a database of SQLAlchemy."""
    with require_extra("sql", "this database needs SQLAlchemy"):
        sql_session: Callable[[str], AbstractContextManager[Session]] = load_entry(SQL_SESSION)
    return sql_session(url)


SESSIONS: dict[str, Callable[[str], AbstractContextManager[Session]]] = {
    POSTGRESQL: postgresql_session,
    DUCKDB: duckdb_session,
    OTHER_DATABASE: _sql_session,
}


def require_numbers(columns: Sequence[Column], texts: Sequence[Column]) -> None:
    """Raise DataError if any of the columns are texts."""
    if texts:
        raise DataError(
            f"of the query's {len(columns)} columns, {len(texts)} are not numbers (the site's log names them): leave "
            "them out, or convert them to numbers in the query; 'label' may name one of them",
            local=", ".join(f"{column.name} ({column.type_name})" for column in texts),
        )


class Query:
    """Rows of a database query, read anew in each pass; refuse a pass whose rows differ from the first.

    No error has a value, a name or the url in its text, which travels to the server. ``label`` and ``ids`` are columns
    that are no features, by name or number from 0; empty: none. With ``ids``, rows are in the order of that column,
    which is the same in each pass if no id occurs twice.
    """

    def __init__(self, url: str, query: str, label: str = "", ids: str = "") -> None:
        """Read the columns of the query, and choose the features."""
        self._open_session, self._url = SESSIONS[database_kind(url)], url
        query = query.strip().rstrip(";")
        with self._open_session(url) as session:
            columns = session.columns(query)
        column_names = [column.name for column in columns]
        features = ColumnSelection(label, ids).positions(column_names, len(columns))
        id_column = column_positions(ids, column_names, len(columns), "ids")[0] if ids else None
        self._selection = Selection(query, columns, features, id_column)
        self.names = [column_names[position] for position in features]
        self.ids: list[str] = []  # as the last pass found them, without surrounding spaces
        self.digest = ""  # SHA-256 of the rows and ids of the first pass, from the end of it on
        if not features:
            raise DataError("the query returns no column that is a feature")
        require_numbers(columns, [columns[position] for position in features if not columns[position].number_sql])
        require_unique_names(self.names, "the query returns several columns with the same name: give each its own name")

    def blocks(self) -> Iterator[Array]:
        """Yield blocks (m, d) of all rows, and compare the digest of the rows with the first pass."""
        digest = hashlib.sha256()
        with self._open_session(self._url) as session:
            if self._selection.ids is not None:
                self.ids = [text.strip() for text in session.ids(self._selection)]
                digest.update("\0".join(self.ids).encode())
            features = self._selection.features
            integers = [i for i, position in enumerate(features) if self._selection.columns[position].is_integer]
            for block in session.numbers(self._selection, max(64, CACHE_ELEMENTS // len(features))):
                if np.isinf(block[:, integers]).any():
                    raise DataError(f"the query gives {INEXACT_INTEGERS}: {INEXACT_ADVICE}")
                digest.update(np.ascontiguousarray(block).data)
                yield block
        self.digest = self.digest or digest.hexdigest()
        require_same_rows(self.digest, digest.hexdigest())


def read_query(url: str, query: str, label: str = "", ids: str = "") -> tuple[Table, list[str]]:
    """Return the checked table of a query's rows, with their digest, and the ids if `ids` names a column."""
    reader = Query(url, query, label, ids)
    table = check_rows(Blocks(reader.blocks, len(reader.names), np.dtype(np.float64)), reader.names)
    return table._replace(digest=reader.digest), reader.ids
