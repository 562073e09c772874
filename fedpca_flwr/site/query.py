"""The rows of a site's own query, from PostgreSQL or DuckDB, in blocks (extra ``sql``).

The database makes float64 of every number and NaN of every NULL, so that a block is what the server sent, seen as an
array. A value that is no number is refused by its column before a row is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np

from fedpca_flwr.database_url import DUCKDB, POSTGRESQL, kind_of
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import CACHE_ELEMENTS, Blocks
from fedpca_flwr.site import duckdb_file, postgresql
from fedpca_flwr.site.columns import LeftOut, column_position
from fedpca_flwr.site.session import Session
from fedpca_flwr.table import Table, check

OPENED: dict[str, Callable[[str], AbstractContextManager[Session]]] = {
    POSTGRESQL: postgresql.opened,
    DUCKDB: duckdb_file.opened,
}


class Query:
    """The rows that a query gives, read anew in each pass: those of the first pass, or an error.

    Parameters
    ----------
    url : str
        Without a password: the driver finds credentials where it always does.
    query : str
        One SELECT.
    label, ids : str, optional
        Columns that are no features: the name of each, or its number from 0. With ``ids``, rows are in the order of
        that column, which is the same in each pass if no id occurs twice.

    Attributes
    ----------
    names : list of str
        Of the features.
    ids : list of str
        As the last pass found them, without surrounding spaces.
    digest : str
        SHA-256 of the rows and ids of the first pass, from the end of it on.

    Raises
    ------
    ConfigError, DataError
        Without a value, a name or the url in the text: it travels to the server.
    """

    def __init__(self, url: str, query: str, label: str = "", ids: str = "") -> None:
        self._opened = OPENED[kind_of(url)]
        self._url, self._query = url, query.strip().rstrip(";")
        with self._opened(url) as session:
            columns = session.columns(f"SELECT * FROM ({self._query}\n) AS q LIMIT 0")
        every = [column.name for column in columns]
        left_out: LeftOut = {key: name for key, name in (("label", label), ("ids", ids)) if name}
        places = {key: column_position(name, every, len(every), key) for key, name in left_out.items()}
        self._kept = [position for position in range(len(every)) if position not in places.values()]
        self._columns, self._ids = columns, places.get("ids")
        self.names = [every[position] for position in self._kept]
        self.ids: list[str] = []
        self.digest = ""
        self._require_features()

    def blocks(self) -> Iterator[Array]:
        """All rows, each time it is called; an error after the last of them where they are others than before."""
        digest = hashlib.sha256()
        with self._opened(self._url) as session:
            if self._ids is not None:
                text = self._columns[self._ids].text.format(f"c{self._ids}")
                self.ids = [found.strip() for found in session.texts(text, self._source)]
                digest.update("\0".join(self.ids).encode())
            numbers = [self._columns[position].number.format(f"c{position}") for position in self._kept]
            few = max(64, CACHE_ELEMENTS // len(numbers))
            for block in session.numbers(numbers, self._source, few):
                digest.update(np.ascontiguousarray(block).data)
                yield block
        self.digest = self.digest or digest.hexdigest()
        require_same(self.digest, digest.hexdigest())

    @property
    def _source(self) -> str:
        """The query as a table, whose columns have names of ours: its own may be any text."""
        names = ", ".join(f"c{position}" for position in range(len(self._columns)))
        return f"FROM ({self._query}\n) AS q({names})" + ("" if self._ids is None else f" ORDER BY c{self._ids}")

    def _require_features(self) -> None:
        if not self._kept:
            raise DataError("the query gives no column that is a feature")
        other = [self._columns[position] for position in self._kept if not self._columns[position].number]
        if other:
            raise DataError(
                f"of the query's {len(self._columns)} columns, {len(other)} are not numbers (the site's log names "
                "them): leave them out, or make numbers of them in the query; one may be named as 'label'",
                local=", ".join(f"{column.name} ({column.kind})" for column in other),
            )
        doubled = sorted({name for name in self.names if self.names.count(name) > 1})
        if doubled:
            raise DataError("the query gives several columns of one name: name each anew", local=", ".join(doubled))


def require_same(earlier: str, now: str) -> None:
    """Refuse rows that are not those of a pass before, by the digests of both.

    Raises
    ------
    DataError
    """
    if earlier != now:
        raise DataError(
            "the data are other rows, or the same in another order, than before in this run. A file must not be "
            "written while a run lasts; order a query by a key that no two rows share (ORDER BY), and ask for a "
            "table that stands still, such as a materialised view or a copy"
        )


def read_query(url: str, query: str, label: str = "", ids: str = "") -> tuple[Table, list[str]]:
    """The rows of a query, checked, and the ids where a column of them is named (see `Query`)."""
    asked = Query(url, query, label, ids)
    table = check(Blocks(asked.blocks, len(asked.names), np.dtype(np.float64)), asked.names)
    return table._replace(digest=asked.digest), asked.ids
