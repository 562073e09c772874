"""Rows from DuckDB: a database in a file, or files that its SQL reads (.parquet, .csv)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.session import PASS_SECONDS, TOO_LONG, Column

EXACT = {"BOOLEAN", "FLOAT", "DOUBLE"} | {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG")}
EXACT |= {"INTEGER", "UINTEGER"}
"""Types that DuckDB itself rounds correctly. HUGEINT it does not, nor DECIMAL in 1.5: these go through their text."""

MEMORY = ":memory:"

CONFIG = {
    "autoinstall_known_extensions": "false",  # nothing is downloaded
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no table is a variable of this program
    "lock_configuration": "true",
    "memory_limit": "512MB",  # what is sorted beyond it goes to a folder beside the file
    "threads": "1",  # sums in one order, so the same bits
}


@contextmanager
def opened(url: str) -> Iterator[DuckDB]:
    """A session with the file of ``url``, or with none (``duckdb:///:memory:``), which reads files only.

    Raises
    ------
    ConfigError, DataError
        What DuckDB says is shown where it is about the query itself, and only in the site's own log.
    """
    try:
        import duckdb
        import pyarrow as pa  # by which its rows come
    except ImportError:
        raise ConfigError("DuckDB needs duckdb and pyarrow; pip install '.[sql]' in the repository") from None
    path = url.removeprefix("duckdb:///")
    file = Path(path).expanduser()
    if path != MEMORY and not file.is_file():
        raise DataError("the DuckDB file that node-config 'data' names does not exist", local=str(file))
    connected = False
    try:
        config: dict[str, Any] = dict(CONFIG)
        with duckdb.connect(MEMORY if path == MEMORY else file, path != MEMORY, config) as connection:
            connected = True
            with _ended_after(PASS_SECONDS, connection.interrupt):
                yield DuckDB(connection)
    except (duckdb.Error, pa.ArrowException) as error:
        raise _worded(error, duckdb, connected=connected, file=file) from None


@contextmanager
def _ended_after(seconds: float, end: Callable[[], None]) -> Iterator[None]:
    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _worded(error: Exception, duckdb: Any, *, connected: bool, file: Path) -> FedPCAError:
    local = f"{type(error).__name__} in {file}"
    if not connected:
        return DataError(
            "the DuckDB file cannot be opened: it is damaged, of another version, or written to by another program",
            local=local,
        )
    if isinstance(error, duckdb.InterruptException):
        return DataError(TOO_LONG, local=local)
    own = duckdb.CatalogException | duckdb.BinderException | duckdb.ParserException
    if isinstance(error, own | duckdb.IOException):  # of names and files, no values
        text = "node-config: the database refuses the 'query' (the site's log says why)"
        return ConfigError(text, local=f"{local}: {str(error).partition(chr(10))[0]}")
    return DataError("the database fails at the query (the site's log says how)", local=local)


class DuckDB:
    """A connection that reads.

    Parameters
    ----------
    connection : duckdb.DuckDBPyConnection
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def columns(self, select: str) -> list[Column]:
        statements = self.connection.extract_statements(select)
        if [statement.type.name for statement in statements] != ["SELECT"]:  # `sql` would run each
            raise ConfigError("node-config: 'query' is not one SELECT; a site's rows are what one gives")
        found = self.connection.sql(select)
        text = "coalesce(CAST({} AS VARCHAR), '')"
        kinds = map(str, found.types)
        return [Column(name, kind, _number(kind), text) for name, kind in zip(found.columns, kinds, strict=True)]

    def numbers(self, columns: list[str], source: str, rows: int) -> Iterator[Array]:
        select = f"SELECT [{', '.join(columns)}] {source}"  # whose values are the rows, one behind the other
        for batch in self.connection.sql(select).to_arrow_reader(rows):
            yield np.asarray(batch.column(0).flatten()).reshape(-1, len(columns))

    def texts(self, column: str, source: str) -> list[str]:
        return [found for (found,) in self.connection.sql(f"SELECT {column} {source}").fetchall()]


def _number(kind: str) -> str:
    if kind in EXACT:
        return "coalesce(CAST({} AS DOUBLE), 'NaN')"
    if kind in {"HUGEINT", "UHUGEINT"} or kind.startswith("DECIMAL("):
        return "coalesce(CAST(CAST({} AS VARCHAR) AS DOUBLE), 'NaN')"
    return ""
