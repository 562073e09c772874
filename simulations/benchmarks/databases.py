"""Reading of rows from databases: CPU and peak memory beside other ways."""

import importlib.util
from collections.abc import Callable, Iterable
from tempfile import TemporaryDirectory

import numpy as np

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines, Rows, Usage
from fedpca_flwr.site.databases import Query, read_query

WARM_UP_ROWS = 50
Reader = Callable[[str, str], Iterable[Rows]]


@harness.benchmark("docs/databases.md", rows=1000, features=3)
def _databases(url: harness.Required, rows: int = 1_000_000, features: int = 20) -> Lines:
    """Measure CPU and peak memory of reading a query from PostgreSQL and DuckDB, beside other ways.

    --url postgresql://USER@HOST:PORT/DATABASE gets a table 'visit'; its password is in PGPASSFILE. Each program has a
    process of its own and reads all rows, in their order, block by block: as sites do, by SQLAlchemy's server-side
    cursor (psycopg) and by ADBC (adbc-driver-postgresql, where it is installed). CPU is that of this process, without
    the server's, against the first; memory is what each takes beyond its libraries, in MB and as a share of the rows'
    size as float64. The last lines are sites: rows that are read, checked, and read again to answer p-cov's question.
    """
    with TemporaryDirectory() as folder:
        usages = _compare(url, f"{folder}/cohort.duckdb", rows, features)
    first, size = next(iter(usages.values())), 8e-6 * rows * features
    yield f"{rows:,} rows of {features} features: {size:.0f} MB as float64\n"
    yield "from", "CPU", "peak", "of the rows' size"
    for name, usage in usages.items():
        yield name, f"{usage.cpu / first.cpu:.1f}", f"{usage.peak_mb:.0f}", f"{usage.peak_mb / size:.2f}"


def _compare(url: str, file: str, rows: int, features: int) -> dict[str, Usage]:
    """Measure CPU and memory of each reader on PostgreSQL and DuckDB, by the reader's name."""
    harness.isolate(_write, url, file, rows, features)
    readers: dict[str, tuple[Reader, str]] = {
        "PostgreSQL": (_read_query, url),
        "PostgreSQL, SQLAlchemy's cursor": (_read_cursor, url),
        "PostgreSQL, ADBC": (_read_adbc, url),
        "DuckDB": (_read_query, f"duckdb:///{file}"),
        "a site with PostgreSQL": (_answer, url),
        "a site with DuckDB": (_answer, f"duckdb:///{file}"),
    }
    if not importlib.util.find_spec("adbc_driver_postgresql"):
        del readers["PostgreSQL, ADBC"]
    columns = ", ".join(f"x{j}" for j in range(features))
    warm_up_query, query = (f"SELECT {columns} FROM visit WHERE id <= {n} ORDER BY id" for n in (WARM_UP_ROWS, rows))
    return {
        name: harness.isolate(_sum, *reader, query, warm_up=[*reader, warm_up_query])
        for name, reader in readers.items()
    }


def _write(url: str, file: str, rows: int, features: int) -> None:
    """Write the same rows to a table 'visit' in PostgreSQL and in a DuckDB file."""
    import duckdb
    import psycopg

    columns = ", ".join(f"sin(i * {j + 1}.0) * {features - j} AS x{j}" for j in range(features))
    create = f"CREATE TABLE visit AS SELECT i AS id, {columns} FROM"
    with psycopg.connect(url) as connection:
        connection.execute(f"{create} generate_series(1, {rows}) i".encode())
        connection.execute("ALTER TABLE visit ADD PRIMARY KEY (id)")
    with duckdb.connect(file) as duck:
        duck.execute(f"{create} range(1, {rows} + 1) r(i)")


def _sum(reader: Reader, place: str, select: str) -> float:
    """Return the sum of all numbers that a reader reads by a query (``select``) from a database (``place``)."""
    return sum(float(block.sum()) for block in reader(place, select))


def _read_query(url: str, select: str) -> Iterable[Rows]:
    """Yield blocks of a query's rows as a site reads rows."""
    return Query(url, select).blocks()


def _read_cursor(url: str, select: str) -> Iterable[Rows]:
    """Yield blocks of a query's rows by SQLAlchemy's server-side cursor."""
    from sqlalchemy import create_engine, text

    with create_engine(url.replace("postgresql", "postgresql+psycopg")).connect() as connection:
        result = connection.execution_options(stream_results=True, max_row_buffer=10_000).execute(text(select))
        for part in result.partitions(10_000):
            yield np.array(part, dtype=np.float64)


def _read_adbc(url: str, select: str) -> Iterable[Rows]:
    """Yield blocks of a query's rows by the driver ADBC."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(select)
        for batch in cursor.fetch_record_batch():
            yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])


def _answer(url: str, select: str) -> Iterable[Rows]:
    """Read and check the rows as a site does, read the file again for their moments, and yield the mean."""
    yield Moments.from_rows(read_query(url, select)[0].rows).mean
