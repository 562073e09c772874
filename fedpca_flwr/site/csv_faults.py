"""What is wrong in a .csv file: all of it, told as an editor counts lines, and without a cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedpca_flwr.errors import DataError
from fedpca_flwr.site.csv_format import COMMA, POINT

FIRST = 5
"""Lines that are named of each fault."""

KINDS = (
    ("decimal commas beside decimal points", COMMA, "write all numbers with a decimal point"),
    (
        "signs between thousands",
        re.compile(r"[+-]?\d{1,3}([.,' \u00a0\u202f]\d{3})+([.,]\d+)?", re.ASCII),
        "write numbers without them",
    ),
    ("decimal points beside decimal commas", POINT, "write all numbers with a decimal point"),
    (
        "dates or times",
        re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}.*|\d{1,2}:\d\d.*"),
        "turn them into numbers, such as days since a date",
    ),
    ("several numbers", re.compile(r"[\d.,+-]+(\s+[\d.,+-]+)+"), "separate cells by commas, semicolons or tabs"),
    (
        "numbers with units or signs",
        re.compile(r"[<>~$€£ ]*[+-]?[\d.,]+\s*[^\d\s].{0,8}|[<>~$€£ ]+[+-]?[\d.,]+"),
        "write the numbers alone",
    ),
    (
        "texts",
        re.compile(r".*", re.DOTALL),
        "leave the columns out, encode them as numbers, or name one as node-config 'label'",
    ),
)
"""What cells hold that are no numbers, how that is known, and what to do."""


def kind_of(cell: str) -> str:
    """What a cell holds that is no number."""
    return next(kind for kind, sign, _ in KINDS if sign.fullmatch(cell.strip()))


@dataclass
class Faults:
    """What is wrong in one file.

    Parameters
    ----------
    width : int
        Cells that its lines must have.
    names : sequence of str
        Of its columns, where it has a header.
    """

    width: int
    names: Sequence[str]
    cells: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # lines by column and kind
    lengths: dict[int, list[int]] = field(default_factory=dict)  # lines by their number of cells
    ending: set[bool] = field(default_factory=set)  # whether lines with a cell too many end with an empty one
    good: bool = False  # whether any line had all its cells

    def __bool__(self) -> bool:
        return bool(self.cells or self.lengths)

    def cell(self, line: int, column: int, cell: str) -> None:
        self.cells.setdefault((column, kind_of(cell)), []).append(line)

    def length(self, line: int, cells: Sequence[str]) -> None:
        self.lengths.setdefault(len(cells), []).append(line)
        if len(cells) > self.width:
            self.ending.add(not cells[-1].strip())

    def error(self) -> DataError:
        """All faults: what they are, and for the site's own log where."""
        texts, places = [], []
        if self.lengths:
            texts.append(self._about_lengths())
            places += [
                f"{_lines(lines)} with {_count(n, 'cell')} instead of {self.width}" for n, lines in self.lengths.items()
            ]
        found = {kind for _, kind in self.cells}
        if found:
            advice = "; ".join(f"{kind} ({what_to_do})" for kind, _, what_to_do in KINDS if kind in found)
            texts.append(f"cells that are not numbers: {advice}")
        for (column, kind), lines in sorted(self.cells.items()):
            named = f" ({self.names[column]!r})" if self.names else ""
            places.append(f"{_lines(lines)}, column {column + 1}{named}: {kind}")
        return DataError(f"the .csv file has {' and '.join(texts)}", local="; ".join(places))

    def _about_lengths(self) -> str:
        one = next(iter(self.lengths)) if len(self.lengths) == 1 and not self.good else 0
        if one == self.width + 1 and self.ending == {True}:
            return "lines that end with a separator, but the first does not: remove it from the ends"
        if one and self.names:
            known, found = _count(self.width, "column name"), _count(one, "column")
            return (
                f"{known} but {found}; does a column of row numbers have no name (leave it out), or are there decimal "
                "commas between cells that commas separate (write decimal points)?"
            )
        return (
            "lines of different length; are there separators within texts (put these into quotes), or decimal commas "
            "between cells that commas separate (write decimal points)?"
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _lines(lines: Sequence[int]) -> str:
    more = f" and {len(lines) - FIRST} more" if len(lines) > FIRST else ""
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:FIRST]))}{more}"
