"""Rows from PostgreSQL, by ``COPY`` in its binary format.

Where every value is a float64 and none is NULL, all rows of that format have one length, so a block is a view of the
bytes that came. That takes less memory than Arrow batches (ADBC) and no more CPU; a cursor of Python rows, as
SQLAlchemy has it, takes 20 times the CPU (``python -m simulations.benchmarks databases``).
Format: https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-BINARY-FORMAT
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.session import PASS_SECONDS, TOO_LONG, Column

AS_NUMBER = {16: "{}::int::float8", **dict.fromkeys((20, 21, 23, 700, 701, 1700), "{}::float8")}
"""How a type becomes float64, by its OID: booleans; int8, int2, int4, float4, float8 and numeric, rounded correctly."""

HEADER, TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"

NOTICED = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Seconds, seconds and times after which a connection is lost where nothing comes any more; else it may be hours."""


@contextmanager
def opened(url: str) -> Iterator[PostgreSQL]:
    """A session with the server of ``url``, whose password libpq finds in its environment and files.

    Raises
    ------
    ConfigError, DataError
        What the server says is shown where it is about the connection (without the user's name) or the query itself,
        and only in the site's own log: other texts of it may hold values.
    """
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ConfigError(
            "PostgreSQL needs psycopg, which is not installed; pip install '.[sql]' in the repository"
        ) from None
    try:
        given = conninfo_to_dict("postgresql://" + url.partition("://")[2])
    except psycopg.Error:  # its text may quote the user
        raise ConfigError("node-config: 'data' is a url that libpq does not take; try it with psql") from None
    connection = None
    try:
        with psycopg.connect(**{**NOTICED, "client_encoding": "utf8", **given}) as connection:  # type: ignore[arg-type]
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")  # sums in one order, so the same bits
            connection.execute(f"SET LOCAL statement_timeout = {int(1000 * PASS_SECONDS)}")  # milliseconds
            yield PostgreSQL(connection)
    except psycopg.Error as error:
        if connection is None:
            raise _unconnected(error, given.get("user")) from None
        raise _worded(error, lost=connection.broken) from None


def _unconnected(error: Exception, user: Any) -> DataError:
    said = re.sub(r"\s+", " ", str(error))
    if user:
        said = re.sub(rf"(?<!\w){re.escape(str(user))}(?!\w)", "...", said)
    return DataError(
        "the database that node-config 'data' names cannot be reached, or does not let this site in (the site's log "
        "says which)",
        local=said,
    )


def _worded(error: Any, *, lost: bool) -> FedPCAError:
    code = error.sqlstate or ""
    local = f"{type(error).__name__} {code}".strip()
    if lost:
        return DataError(
            "the connection to the database was lost while the query was read; see that it runs and can be reached, "
            "then run again",
            local=local,
        )
    if code == "57014":
        return DataError(TOO_LONG, local=local)
    if code.startswith("42"):  # of the text of the query, before any row
        text = "node-config: the database refuses the 'query' (the site's log says why)"
        return ConfigError(text, local=f"{local}: {error.diag.message_primary}")
    return DataError("the database fails at the query (the site's log says how)", local=local)


class PostgreSQL:
    """A transaction that reads one state of the database.

    Parameters
    ----------
    connection : psycopg.Connection
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def columns(self, select: str) -> list[Column]:
        # in the extended protocol, which takes one statement: so no text that holds several ever comes to `numbers`
        found = self.connection.execute(select.encode(), binary=True).description
        text = "coalesce({}::text, '')"
        return [Column(column.name, column.type_display, _number(column.type_code), text) for column in found]

    def numbers(self, columns: list[str], source: str, rows: int) -> Iterator[Array]:
        width = len(columns)
        row = np.dtype([("width", ">i2"), ("values", [("size", ">i4"), ("value", ">f8")], (width,))])
        held = bytearray()
        copy = f"COPY (SELECT {', '.join(columns)} {source}) TO STDOUT (FORMAT BINARY)"
        with self.connection.cursor().copy(copy.encode()) as parts:
            held += parts.read()
            _require(held.startswith(HEADER))
            del held[: len(HEADER)]
            for part in parts:
                if len(held) >= rows * row.itemsize:
                    yield _values(held, row)
                    held = bytearray()
                held += part
        _require(held.endswith(TRAILER))
        yield _values(held[: -len(TRAILER)], row)

    def texts(self, column: str, source: str) -> list[str]:
        return [found for (found,) in self.connection.execute(f"SELECT {column} {source}".encode())]


def _number(oid: int) -> str:
    return f"coalesce({AS_NUMBER[oid]}, 'NaN')" if oid in AS_NUMBER else ""


def _values(held: bytearray, row: np.dtype[Any]) -> Array:
    _require(len(held) % row.itemsize == 0)
    found = np.frombuffer(held, row)
    _require(bool((found["width"] == row["values"].shape[0]).all() and (found["values"]["size"] == 8).all()))
    return found["values"]["value"].astype(np.float64)


def _require(expected: bool) -> None:
    if not expected:
        raise DataError("the database does not answer as PostgreSQL does (COPY in its binary format)")
