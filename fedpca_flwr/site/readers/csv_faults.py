"""Faults of a .csv file: kinds, keys that treat them, and lines and columns for the site's own log, but no cell."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedpca_flwr.errors import DataError
from fedpca_flwr.site.readers.csv_format import COMMA_NUMBER, POINT_NUMBER, CsvFormat
from fedpca_flwr.site.readers.csv_header import holds_cells

COMMENT_STARTS = ("#", "%", "//")
MAX_LINES_NAMED = 5  # for each fault
NUMBER_WORDS = {"true", "false", "inf", "-inf", "infinity", "-infinity"}

MISSING_MARK_PATTERN = re.compile(
    r"[^\w\s]{1,3}|#[\w/]+[!?]?|n\.?[ad]\.?|n/[dr]|nil|void|blank|empty|missing|unk|unknown|undefined|not .{2,12}|"
    r"b\.?d\.?l\.?|1\.#\w+",
    re.IGNORECASE,
)
TOTALS_PATTERN = re.compile(
    r"((sub|grand) ?)?(total|sum|mean|average|median|summe|gesamt|mittelwert)s?:?", re.IGNORECASE
)

FAULT_KINDS = (
    (
        "decimal commas beside decimal points",
        COMMA_NUMBER,
        "write all numbers with a decimal point, or say decimal=','",
    ),
    (
        "signs between thousands",
        re.compile(r"[+-]?\d{1,3}([.,'\u2019 \u00a0\u202f]\d{3})+([.,]\d+)?", re.ASCII),
        "say which (thousands=','), or write numbers without them",
    ),
    (
        "decimal points beside decimal commas",
        POINT_NUMBER,
        "write all numbers with a decimal point, or say decimal='.'",
    ),
    (
        "dates or times",
        re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}.*|\d{1,2}:\d\d.*"),
        "turn them into numbers, such as days since a date, or leave the columns out ('leave-out')",
    ),
    ("several numbers", re.compile(r"[\d.,+-]+(\s+[\d.,+-]+)+"), "say what separates cells (delimiter='space')"),
    (
        "numbers with units or signs",
        re.compile(r"[<>~$€£≤≥ ]*[+-]?[\d.,]+\s*[^\d\s].{0,8}|[<>~$€£≤≥ ]+[+-]?[\d.,]+"),
        "write the numbers alone",
    ),
    ("lines of totals", TOTALS_PATTERN, "remove them, or say how they begin (comment='Total')"),
    ("marks for missing values", MISSING_MARK_PATTERN, "say which (missing='?, -'), or leave these cells empty"),
    (
        "texts",
        re.compile(r".*", re.DOTALL),
        "leave the columns out ('leave-out'), encode them as numbers, name them as node-config 'categories' (in Python "
        "give `run` the frame of pandas.read_csv, and 'levels'), or name one as 'label'",
    ),
    (
        "words among numbers",
        re.compile(r"(?!)"),
        "correct them, say missing='...' if they mark what is missing, comment='...' if lines that begin so are no "
        "rows, or leave the columns out ('leave-out')",
    ),
    ("a line of units or of more names", re.compile(r"(?!)"), "remove it, or say how it begins (comment='...')"),
)
"""Kinds of cells that are not numbers, patterns and advice. The last two kinds are recognised by their columns."""


def fault_kind(cell: str) -> str:
    """Return the first kind in `FAULT_KINDS` that a cell matches, such as "dates or times", at the end "texts"."""
    return next(kind for kind, sign, _ in FAULT_KINDS if sign.fullmatch(cell.strip()))


@dataclass
class CsvFaults:
    """Collection of the faults of a .csv file: lines of wrong length, and cells that are not numbers."""

    width: int  # cells that each line must have
    names: Sequence[str]  # of the columns; empty without a header
    cells: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # line numbers by column and kind
    lengths: dict[int, list[int]] = field(default_factory=dict)  # line numbers by number of cells
    empty_ends: set[bool] = field(default_factory=set)  # whether too long lines end with an empty cell
    numbers: Counter[int] = field(default_factory=Counter)  # cells that are numbers, by column
    rows: int = 0  # lines that have all their cells
    first_line: int = 0  # number of the first such line
    comments: bool = False  # whether a line of another length begins as comments do

    def add_line(self, line: int, row: Sequence[str], features: Sequence[int], csv_format: CsvFormat) -> None:
        """Record line number `line` if its length is wrong, or else its feature cells that are not numbers.

        Blank lines and missing values are no faults. ``features`` are the positions of columns, from 0.
        """
        if len(row) != self.width:
            if holds_cells(row):
                self.lengths.setdefault(len(row), []).append(line)
                self.comments |= row[0].lstrip().startswith(COMMENT_STARTS)
                if len(row) > self.width:
                    self.empty_ends.add(not row[-1].strip())
            return
        self.rows += 1
        self.first_line = self.first_line or line
        for position in features:
            cell = row[position]
            if csv_format.is_number(cell) or cell.strip().lower() in NUMBER_WORDS:
                self.numbers[position] += 1
            elif not csv_format.is_missing(cell):
                self.cells.setdefault((position, fault_kind(cell)), []).append(line)

    def error(self) -> DataError:
        """Return an error with all kinds of faults; lines and columns go only to the site's own log."""
        if not self.lengths and not self.cells:
            return DataError("the .csv file cannot be read: it is damaged, or in another encoding than it seems")
        texts, locations = [], []
        if self.lengths:
            texts.append(self._lengths_text())
            for n, lines in self.lengths.items():
                locations.append(f"{_line_numbers(lines)} with {_plural(n, 'cell')} instead of {self.width}")
        cells = self._by_column()
        kinds = {kind for _, kind in cells}
        if kinds:
            advice = "; ".join(f"{kind} ({what_to_do})" for kind, _, what_to_do in FAULT_KINDS if kind in kinds)
            texts.append(f"cells that are not numbers: {advice}")
        for (column, kind), lines in sorted(cells.items()):
            name = f" ({self.names[column]!r})" if self.names else ""
            locations.append(f"{_line_numbers(lines)}, column {column + 1}{name}: {kind}")
        return DataError(f"the .csv file has {' and '.join(texts)}", local="; ".join(locations))

    def _by_column(self) -> dict[tuple[int, str], list[int]]:
        """Return line numbers by (column from 0, kind of fault), with kinds corrected by the rest of the column."""
        lines_by_column: dict[int, list[int]] = {}
        for (column, _), lines in self.cells.items():
            lines_by_column.setdefault(column, []).extend(lines)
        headed = [
            column for column, lines in lines_by_column.items() if self.numbers[column] and lines == [self.first_line]
        ]
        second_header = len(headed) > 1 and len(headed) > (len(lines_by_column) + len(self.numbers)) / 4
        by_column: dict[tuple[int, str], list[int]] = {}
        for (column, kind), lines in self.cells.items():
            if second_header and column in headed:
                kind = "a line of units or of more names"
            elif kind == "texts" and self.numbers[column] > len(lines):
                kind = "words among numbers"
            elif kind == "lines of totals" and not self.numbers[column]:
                kind = "texts"
            by_column.setdefault((column, kind), []).extend(lines)
        return by_column

    def _lengths_text(self) -> str:
        """Return a likely reason why lines have different numbers of cells, with advice."""
        if self.comments or (self.names and self.names[0].startswith(COMMENT_STARTS)):
            return "lines of different length, of which some begin as comments do: say how (comment='#')"
        length = next(iter(self.lengths)) if len(self.lengths) == 1 and not self.rows else 0
        if length == self.width + 1 and self.empty_ends == {True}:
            return "lines that end with a separator, but the first does not: remove it from the ends"
        if length and self.names:
            return (
                f"{_plural(self.width, 'column name')} but {_plural(length, 'column')}; does a column of row numbers "
                "have no name (give it one, or leave it out), is a title above the names (say how it begins: "
                "comment='...'), or are there decimal commas between cells that commas separate (write decimal points)?"
            )
        return (
            "lines of different length; are there separators within texts (put these into quotes), or decimal commas "
            "between cells that commas separate (write decimal points)?"
        )


def name_fault(names: Sequence[str], positions: Sequence[int]) -> DataError | None:
    """Return an error if features have an empty name or the same name twice, else None; the log has their positions."""
    nameless = [position + 1 for name, position in zip(names, positions, strict=True) if not name]
    if nameless:
        return DataError(
            "the .csv file has a column without a name; leave it out by its number from 0 (leave-out='0') if it is an "
            "index, or if lines end with a separator; else give it a name",
            local=f"columns {', '.join(map(str, nameless))}",
        )
    columns: dict[str, list[str]] = {}
    for name, position in zip(names, positions, strict=True):
        columns.setdefault(name, []).append(str(position + 1))
    duplicates = {name: numbers for name, numbers in columns.items() if len(numbers) > 1}
    if duplicates:
        return DataError(
            "the .csv file has columns of the same name; give each a name of its own, or leave out what is there twice "
            "by its number from 0 ('leave-out')",
            local="; ".join(f"{name!r} in columns {', '.join(numbers)}" for name, numbers in duplicates.items()),
        )
    return None


def _plural(number: int, what: str) -> str:
    """Return a number with its noun, as "1 cell" or "2 cells"."""
    return f"{number} {what}{'s' * (number != 1)}"


def _line_numbers(lines: Sequence[int]) -> str:
    """Return "lines 3, 4, 5 and 7 more" from line numbers, with at most five named."""
    rest = f" and {len(lines) - MAX_LINES_NAMED} more" if len(lines) > MAX_LINES_NAMED else ""
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:MAX_LINES_NAMED]))}{rest}"
