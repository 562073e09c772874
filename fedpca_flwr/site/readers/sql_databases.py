"""The rows of a site's own query, from any database for which SQLAlchemy has a driver (extra ``sql``).

Rows arrive as Python objects, slowly. All statements are in one transaction, read-only where there are such, and never
committed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.parse import quote

import numpy as np
import sqlalchemy
from typing_extensions import override

from fedpca_flwr.data.table import INEXACT_INTEGERS
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.readers import databases
from fedpca_flwr.site.readers.columns import INEXACT_ADVICE

NUMBERS = {int, float, bool, Decimal, type(None)}
SELECT = re.compile(r"\s*(?:SELECT|WITH)\b[^;]*", re.IGNORECASE)
READ_ONLY = {
    "sqlite": ["BEGIN"],
    "mysql": ["START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"],
    "mariadb": ["START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"],
    "oracle": ["SET TRANSACTION READ ONLY"],
    "mssql": ["SET TRANSACTION ISOLATION LEVEL SNAPSHOT"],  # it has no read-only transactions
}
"""Statements that begin a transaction which sees a single state of the data, by SQLAlchemy's name of the database."""


@contextmanager
def sql_session(url: str) -> Iterator[SQLDatabase]:
    """Open a transaction with a database, which is rolled back; the driver finds the password in its own places.

    The database's own words, if about the connection or the query, are shown only in the log: others may have values.
    """
    place = sqlalchemy.make_url(url)
    is_sqlite, driver, session = place.get_backend_name() == "sqlite", place.drivername, None
    if is_sqlite:
        file = Path(place.database or "").expanduser().absolute()
        if not file.is_file():
            raise DataError("the SQLite file that node-config 'data' names does not exist", local=str(file))
        place = sqlalchemy.make_url(f"sqlite:///file:{quote(str(file))}?mode=ro&uri=true")
    try:
        engine = sqlalchemy.create_engine(place, poolclass=sqlalchemy.NullPool, hide_parameters=True)
    except (ImportError, sqlalchemy.exc.ArgumentError) as error:
        raise ConfigError(
            f"node-config: 'data' needs a driver of SQLAlchemy for '{driver}', which is not installed: install it "
            "(pip install pymysql, pyodbc or oracledb), and name it in the url ('mysql+pymysql://...')",
            local=str(error),
        ) from None
    try:
        with engine.connect() as connection:
            for statement in READ_ONLY.get(engine.dialect.name, ()):
                connection.exec_driver_sql(statement)
            session, driver_connection = SQLDatabase(connection), connection.connection.dbapi_connection
            stops = (getattr(driver_connection, name, None) for name in ("interrupt", "cancel"))
            timer = Timer(databases.MAX_PASS_SECONDS, next(filter(None, stops), connection.invalidate))
            timer.daemon = True
            timer.start()
            try:
                yield session
            finally:
                timer.cancel()
    except sqlalchemy.exc.SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        message = re.sub(r"\s+", " ", str(cause))
        if session is None:
            if place.username:
                message = re.sub(rf"(?<!\w){re.escape(place.username)}(?!\w)", "...", message)
            raise databases.connection_error(message) from None
        about_query = isinstance(error, sqlalchemy.exc.ProgrammingError) or (is_sqlite and "no such" in message)
        raise databases.query_error(
            type(cause).__name__, too_long=session.is_late(), refusal=message if about_query else ""
        ) from None


class SQLDatabase(databases.Session):
    """Session with a database of SQLAlchemy."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._end = time.monotonic() + databases.MAX_PASS_SECONDS

    def is_late(self) -> bool:
        """Return whether the session has lasted longer than `MAX_PASS_SECONDS`."""
        return time.monotonic() >= self._end

    @override
    def columns(self, query: str) -> list[databases.Column]:
        """Return the columns of a SELECT or WITH, all as numbers; raise ConfigError for another text."""
        if not SELECT.fullmatch(query):  # a driver may run several statements
            raise ConfigError(
                "node-config: 'query' is not a single SELECT; set it to one SELECT, without ';', that returns the "
                "site's rows"
            )
        with self._rows(query) as result:
            names = list(result.keys())
        return [databases.Column(name, "", "{}") for name in names]

    @override
    def ids(self, selection: databases.Selection) -> list[str]:
        """Return the text of each row's id, empty for NULL."""
        with self._rows(_ordered_query(selection)) as result:
            return ["" if row[selection.ids] is None else str(row[selection.ids]) for row in result]

    @override
    def numbers(self, selection: databases.Selection, rows: int) -> Iterator[Array]:
        """Yield blocks of rows (m, d) with float64 values; raise DataError for columns with other values."""
        with self._rows(_ordered_query(selection), rows) as result:
            for part in result.partitions(rows):
                if self.is_late():
                    raise DataError(databases.TOO_LONG_TEXT)
                columns = list(zip(*part, strict=True))
                chosen = [columns[position] for position in selection.features]
                kinds = [set(map(type, column)) - NUMBERS for column in chosen]
                texts = [
                    selection.columns[position]._replace(type_name=", ".join(sorted(kind.__name__ for kind in others)))
                    for position, others in zip(selection.features, kinds, strict=True)
                    if others
                ]
                databases.require_numbers(selection.columns, texts)
                yield np.array([[_to_float(value) for value in column] for column in chosen]).T

    def _rows(self, query: str, rows: int = 1000) -> Any:
        """Run a query, whose rows come in parts, by a cursor at the server where the driver has such cursors."""
        statement = sqlalchemy.text(query.replace(":", r"\:"))  # it has no parameters
        return self.connection.execution_options(yield_per=rows).execute(statement)


def _ordered_query(selection: databases.Selection) -> str:
    """Return the query, ordered by its ids if it has any: databases may forget the order of a query within another."""
    if selection.ids is None:
        return selection.query
    return f"SELECT * FROM ({selection.query}\n) q ORDER BY {selection.ids + 1}"


def _to_float(value: Any) -> float:
    """Return a number as float64, NaN for NULL; raise DataError for a whole number that float64 does not hold."""
    number = np.nan if value is None else float(value)
    if type(value) is int and int(number) != value:
        raise DataError(f"the query gives {INEXACT_INTEGERS}: {INEXACT_ADVICE}")
    return number
