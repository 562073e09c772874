"""What a driver of a database does for a query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from fedpca_flwr.maths.arrays import Array

PASS_SECONDS = 3600.0
"""After so long a pass over the rows of a query is given up: what the database takes, and this site between blocks."""

TOO_LONG = (
    f"the query's rows took longer than {PASS_SECONDS:,.0f} s to read; make what it joins and sorts less, or name a "
    "table that holds its result"
)


class Column(NamedTuple):
    """A column of a query.

    Attributes
    ----------
    name, kind : str
        Its name, and that of its type.
    number : str
        The SQL that makes float64 of a value, NaN of NULL, with ``{}`` for the column; empty where it is no number.
    text : str
        The SQL that makes a text of a value, an empty one of NULL.
    """

    name: str
    kind: str
    number: str
    text: str


class Session(Protocol):
    """A connection that reads one state of the database, and writes nothing."""

    def columns(self, select: str) -> list[Column]:
        """Of what a SELECT would give; refuses a text of several statements before it runs any."""

    def numbers(self, columns: list[str], source: str, rows: int) -> Iterator[Array]:
        """What a SELECT of these, all float64, gives from a source (``FROM ...``), in blocks of about so many rows."""

    def texts(self, column: str, source: str) -> list[str]:
        """What a SELECT of one column of texts gives."""
