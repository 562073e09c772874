"""Rows of a query: CPU and peak memory of reading them, from PostgreSQL and DuckDB, and other ways."""

import importlib.util
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.rows import Blocks
from fedpca_flwr.simulations.benchmarks.harness import Lines, Rows, alone, benchmark, peak_mb
from fedpca_flwr.simulations.benchmarks.postgresql_server import Server, running
from fedpca_flwr.site.columns import ColumnSelection
from fedpca_flwr.site.csv_file import open_csv
from fedpca_flwr.site.csv_format import CsvKeys, file_opener
from fedpca_flwr.site.databases import Query, read_query

FEW = 50
"""Rows that are read before, so that libraries are loaded."""


class Measured(NamedTuple):
    """Seconds of this process, MB at the peak, and the sum of all values."""

    cpu: float
    peak: float
    total: float


def make(url: str, folder: str, rows: int, features: int) -> None:
    """The same rows in a table of each database, and a file."""
    import duckdb
    import psycopg

    columns = ", ".join(f"sin(i * {j + 1}.0) * {features - j} AS x{j}" for j in range(features))
    with psycopg.connect(url) as connection:
        select = f"SELECT i AS id, {columns} FROM generate_series(1, {rows}) i"
        connection.execute(f"CREATE TABLE visit AS {select}".encode())
        connection.execute("ALTER TABLE visit ADD PRIMARY KEY (id)")
    with duckdb.connect(f"{folder}/cohort.duckdb") as duck:
        duck.execute(f"CREATE TABLE visit AS SELECT i AS id, {columns} FROM range(1, {rows} + 1) r(i)")
        for name, few in (("few", FEW), ("all", rows)):
            some = f"SELECT * EXCLUDE (id) FROM visit ORDER BY id LIMIT {few}"
            duck.execute(f"COPY ({some}) TO '{folder}/{name}.csv' (HEADER)")


def query(features: int, rows: int) -> str:
    return f"SELECT {', '.join(f'x{j}' for j in range(features))} FROM visit WHERE id <= {rows} ORDER BY id"


def our_query(url: str, select: str) -> Iterable[Rows]:
    return Query(url, select).blocks()


def cursor(url: str, select: str) -> Iterable[Rows]:
    from sqlalchemy import create_engine, text

    with create_engine(url.replace("postgresql", "postgresql+psycopg")).connect() as connection:
        found = connection.execution_options(stream_results=True, max_row_buffer=10_000).execute(text(select))
        for part in found.partitions(10_000):
            yield np.array(part, dtype=np.float64)


def adbc(url: str, select: str) -> Iterable[Rows]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url) as connection, connection.cursor() as found:
        found.execute(select)
        for batch in found.fetch_record_batch():
            yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])


def our_csv(path: str, select: str) -> Iterable[Rows]:
    rows = open_csv(file_opener(Path(path)), CsvKeys(), ColumnSelection()).rows
    assert isinstance(rows, Blocks)
    return rows.read()


def site(url: str, select: str) -> Iterable[Rows]:
    yield Moments.from_rows(read_query(url, select)[0].rows).mean


def measured(program: Callable[[str, str], Iterable[Rows]], few: list[str], every: list[str]) -> Measured:
    """A program's second run, whose url or path and query are in a list."""
    for _ in program(few[0], few[1]):
        pass
    before, start, total = peak_mb(), time.process_time(), 0.0
    for block in program(every[0], every[1]):
        total += float(block.sum())
    return Measured(time.process_time() - start, peak_mb() - before, total)


def compare(server: Server, folder: str, rows: int, features: int) -> dict[str, Measured]:
    """What each way needs."""
    os.environ["PGPASSFILE"] = str(server.passfile)
    alone(make, server.url, folder, rows, features)
    duck = f"duckdb:///{folder}/cohort.duckdb"
    ways: dict[str, tuple[Callable[[str, str], Iterable[Rows]], str]] = {
        "PostgreSQL": (our_query, server.url),
        "PostgreSQL, SQLAlchemy's cursor": (cursor, server.url),
        "PostgreSQL, ADBC": (adbc, server.url),
        "DuckDB": (our_query, duck),
        ".csv": (our_csv, f"{folder}/NAME.csv"),
        "a site with PostgreSQL": (site, server.url),
        "a site with DuckDB": (site, duck),
    }
    if not importlib.util.find_spec("adbc_driver_postgresql"):
        del ways["PostgreSQL, ADBC"]
    few, every = query(features, FEW), query(features, rows)
    return {
        name: alone(measured, program, [place.replace("NAME", "few"), few], [place.replace("NAME", "all"), every])
        for name, (program, place) in ways.items()
    }


@benchmark(rows=1_000_000, features=20)
def databases(args: Namespace) -> Lines:
    """Rows of a query: CPU and peak memory of reading them, from PostgreSQL and DuckDB, beside other ways and a .csv.

    A PostgreSQL server is started on loopback, in a temporary folder (Debian's package 'postgresql'). Each program has
    a process of its own and reads all rows, in their order, block by block: as sites do, by SQLAlchemy's server-side
    cursor (psycopg) and by ADBC (adbc-driver-postgresql, where it is installed). CPU is that of this process, without
    the server's, against the first; memory is what each takes beyond its libraries, in MB and as a share of the rows'
    size as float64. The last lines are whole sites: rows that are read, checked, and read again for the answer to
    p-cov's question.
    """
    with TemporaryDirectory() as folder, running() as server:
        found = compare(server, folder, args.rows, args.features)
    first, size = next(iter(found.values())), 8e-6 * args.rows * args.features
    yield f"{args.rows:,} rows of {args.features} features: {size:.0f} MB as float64\n"
    yield "from", "CPU", "peak", "of the rows' size"
    for name, one in found.items():
        yield name, f"{one.cpu / first.cpu:.1f}", f"{one.peak:.0f}", f"{one.peak / size:.2f}"
