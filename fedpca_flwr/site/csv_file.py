"""A .csv file as blocks of rows."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import CACHE_ELEMENTS, Blocks, Rows
from fedpca_flwr.site.columns import LeftOut, column_position


def read_csv(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    """The rows, which are float64, and the names of their columns."""
    with open(file, newline="", encoding="utf-8-sig") as stream:
        first = next(csv.reader(stream), [])
    if not first:
        raise DataError("the .csv file is empty", local=str(file))
    width, names = len(first), _header(first, left_out)
    dropped = {column_position(name, names, width, key) for key, name in left_out.items()}
    kept = [position for position in range(width) if position not in dropped]
    rows = Blocks(lambda: _blocks(file, width, kept, header=bool(names)), len(kept), np.dtype(np.float64))
    return rows, [names[position] for position in kept] if names else []


def _blocks(file: Path, width: int, kept: list[int], *, header: bool) -> Iterator[Array]:
    """Blocks of the columns that are ``kept`` of so many; the others may be no numbers."""
    ignored: Any = {position: lambda cell: 0.0 for position in set(range(width)) - set(kept)} or None
    seen = 0
    with open(file, encoding="utf-8-sig") as stream:
        lines = (line for line in stream if line != "\n")
        if header:
            next(lines)
        for line in lines:
            try:
                rows = np.loadtxt(
                    itertools.chain([line], lines),
                    delimiter=",",
                    max_rows=max(64, CACHE_ELEMENTS // width),
                    converters=ignored,
                    ndmin=2,
                    comments=None,
                    quotechar='"',
                )
            except ValueError as error:
                raise DataError(
                    "the .csv file has cells that are empty or not numbers, or lines of different length "
                    "(the site's log says where)",
                    local=f"{_place(str(error), seen)} of {file}",
                ) from None
            _require_width(rows.shape[1], width, file, header=header, first=not seen)
            yield rows[:, kept] if ignored else rows
            seen += len(rows)


def _place(text: str, before: int) -> str:
    """Row and column in numpy's text about rows that come after others; the rest of it may quote a cell."""
    found = re.findall(r"(row|column) (\d+)", text)
    return ", ".join(f"{what} {int(number) + before * (what == 'row')}" for what, number in found)


def _require_width(found: int, width: int, file: Path, *, header: bool, first: bool) -> None:
    if found == width:
        return
    if header and first:
        raise DataError(
            f"the .csv file has {width} column names but {found} columns; does a column of row numbers have no name? "
            "leave it out",
            local=str(file),
        )
    raise DataError("the .csv file has lines of different length", local=str(file))


def _header(first: list[str], left_out: LeftOut) -> list[str]:
    """The column names of a .csv file, or none where its first line holds rows already.

    Raises
    ------
    DataError
        Where that cannot be told: a row that is taken for names is lost, and names taken for a row are wrong.
    """
    own = [cell for j, cell in enumerate(first) if str(j) not in left_out.values()]
    numbers = sum(map(_is_number, own))
    if numbers == 0:
        names = [cell.strip() for cell in first]
        if "" in names:
            raise DataError("the .csv file has a column without a name; is it an index? leave it out")
        return names
    if numbers < len(own):
        raise DataError("the first line of the .csv file is neither all names nor all numbers")
    if len(own) > 1 and [float(cell) for cell in own] == list(range(len(own))):
        raise DataError("the first line of the .csv file counts its columns; give them names, or leave that line out")
    return []


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))  # "nan" and "inf" may be names
    except ValueError:
        return False
