"""Faults of a .csv file: kinds, keys that treat them, and lines and columns for the site's own log, but no cell."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fedpca_flwr.errors import Advice, DataError
from fedpca_flwr.site.readers.columns import ColumnSelection, join_items
from fedpca_flwr.site.readers.csv_format import COMMA_NUMBER, POINT_NUMBER, CsvFormat, CsvKeys, plural
from fedpca_flwr.site.readers.csv_header import holds_cells

COMMENT_STARTS = ("#", "%", "//")
MAX_LINES_NAMED = 5  # for each fault
NUMBER_WORDS = {"true", "false", "inf", "-inf", "infinity", "-infinity"}

MISSING_MARK_PATTERN = re.compile(
    r"[^\w\s]{1,3}|#(div/0|n/a|name|null|num|ref|value)[!?]?|n\.?[ad]\.?|n/[dr]|nil|void|blank|empty|missing|unk|unknown|undefined|refused|"
    r"not (applicable|asked|available|detected|determined|done|known|measured|recorded|reported|tested)|"
    r"no answer|do(n't| not) know|b\.?d\.?l\.?|1\.#(ind|inf|qnan)",
    re.IGNORECASE,
)
"""Marks of missing values: a fixed vocabulary, so that an error may quote the mark that it has seen."""

TOTALS_PATTERN = re.compile(
    r"((sub|grand) ?)?(total|sum|mean|average|median|summe|gesamt|mittelwert)s?:?", re.IGNORECASE
)
GROUP_SIGN = re.compile("[.,'\u2019 \u00a0\u202f]")

FAULT_KINDS = (
    ("decimal commas beside decimal points", COMMA_NUMBER, "write all numbers with the same sign"),
    (
        "signs between thousands",
        re.compile(r"[+-]?\d{1,3}([.,'\u2019 \u00a0\u202f]\d{3})+([.,]\d+)?", re.ASCII),
        "write numbers without them, or name the sign",
    ),
    ("decimal points beside decimal commas", POINT_NUMBER, "write all numbers with the same sign"),
    (
        "dates or times",
        re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}.*|\d{1,2}:\d\d.*"),
        "turn them into numbers, such as days since a date",
    ),
    ("several numbers", re.compile(r"[\d.,+-]+(\s+[\d.,+-]+)+"), "name what separates cells"),
    (
        "numbers with units or signs",
        re.compile(r"[<>~$€£≤≥ ]*[+-]?[\d.,]+\s*[^\d\s].{0,8}|[<>~$€£≤≥ ]+[+-]?[\d.,]+"),
        "write the numbers alone",
    ),
    ("lines of totals", TOTALS_PATTERN, "remove them, or skip them"),
    ("marks for missing values", MISSING_MARK_PATTERN, "name them, or leave these cells empty"),
    (
        "texts",
        re.compile(r".*", re.DOTALL),
        "encode them as numbers, declare 'levels' of a run for them, or name one as 'label'",
    ),
    (
        "words among numbers",
        re.compile(r"(?!)"),
        "correct them, or name them as 'missing' if they mark what is missing, as 'comment' if their lines are no rows",
    ),
    ("a line of units or of more names", re.compile(r"(?!)"), "remove it, or skip it"),
)
"""Kinds of cells that are not numbers, patterns and advice: the first that fits. Columns tell of the last two kinds."""

COLUMN_KINDS = ("dates or times", "numbers with units or signs", "texts", "words among numbers")


@dataclass
class CsvFaults:
    """Collection of the faults of a .csv file: lines of wrong length, and cells that are not numbers."""

    width: int  # cells that each line must have
    names: Sequence[str]  # of the columns; empty without a header
    format: CsvFormat
    keys: CsvKeys
    selection: ColumnSelection
    cells: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # line numbers by column and kind
    lengths: dict[int, list[int]] = field(default_factory=dict)  # line numbers by number of cells
    numbers: Counter[int] = field(default_factory=Counter)  # cells that are numbers, by column
    rows: int = 0  # lines that have all their cells
    first_line: int = 0  # number of the first such line
    comments: set[str] = field(default_factory=set)  # beginnings of lines of another length, as comments have
    marks: set[str] = field(default_factory=set)  # cells that mark missing values
    signs: set[str] = field(default_factory=set)  # signs between thousands

    def add_line(self, line: int, row: Sequence[str], features: Sequence[int]) -> None:
        """Record a line if its length is wrong, or else its cells of the ``features`` that are not numbers."""
        if len(row) != self.width:
            if holds_cells(row):
                self.lengths.setdefault(len(row), []).append(line)
                self.comments |= {start for start in COMMENT_STARTS if row[0].lstrip().startswith(start)}
            return
        self.rows += 1
        self.first_line = self.first_line or line
        for position in features:
            cell = row[position].strip()
            if self.format.is_number(cell) or cell.lower() in NUMBER_WORDS:
                self.numbers[position] += 1
            elif not self.format.is_missing(cell):
                kind = next(kind for kind, sign, _ in FAULT_KINDS if sign.fullmatch(cell))
                self.cells.setdefault((position, kind), []).append(line)
                if kind == "marks for missing values" and '"' not in cell:
                    self.marks.add(cell)
                elif kind == "signs between thousands" and (sign := GROUP_SIGN.search(cell)):
                    self.signs.add(sign[0] if sign[0] in ".,'\u2019" else " ")

    def error(self) -> DataError:
        """Return an error with all kinds of faults; lines and columns go only to the site's own log."""
        if not self.lengths and not self.cells:
            return DataError("it cannot be read: it is damaged, or in another encoding than it seems")
        texts, locations, advice = list[str](), list[str](), list[Advice]()
        if self.lengths:
            text, length_advice = self._length_fault()
            texts.append(text)
            advice += length_advice
            for n, lines in self.lengths.items():
                locations.append(f"{_line_numbers(lines)} with {plural(n, 'cell')} instead of {self.width}")
        cells = self._by_column()
        kinds = {kind for _, kind in cells}
        if kinds:
            listing = "; ".join(f"{kind} ({what_to_do})" for kind, _, what_to_do in FAULT_KINDS if kind in kinds)
            texts.append(f"cells that are not numbers: {listing}")
            advice += self._cell_advice(cells)
        for (column, kind), lines in sorted(cells.items()):
            name = f" ({self.names[column]!r})" if self.names else ""
            locations.append(f"{_line_numbers(lines)}, column {column + 1}{name}: {kind}")
        return DataError(" and ".join(texts), local="; ".join(locations), advice=advice)

    def _cell_advice(self, cells: dict[tuple[int, str], list[int]]) -> Iterator[Advice]:
        """Yield the keys that treat cells that are not numbers, unless a key was set to no avail."""
        lines: dict[str, list[int]] = {}
        for (_, kind), numbers in cells.items():
            lines.setdefault(kind, []).extend(numbers)
        signs = {"decimal commas beside decimal points": ",", "decimal points beside decimal commas": "."}
        for kind, sign in signs.items():
            if kind in lines and not self.keys.decimal:
                yield Advice({"decimal": sign})
        for sign in sorted(self.signs) if not self.keys.thousands else ():
            decimal = {".": {"decimal": ","}, ",": {"decimal": "."}}.get(sign, {})
            yield Advice({"thousands": sign, **decimal})
        if "several numbers" in lines and self.format.separator != " ":
            yield Advice({"delimiter": "space"})
        if "marks for missing values" in lines and self.marks:
            yield Advice({"missing": join_items(self.keys.missing, sorted(self.marks))})
        skipped = [*lines.get("lines of totals", ()), *lines.get("a line of units or of more names", ())]
        if 0 < len({*skipped}) <= MAX_LINES_NAMED:
            yield Advice({"skip": join_items(self.keys.skip, sorted({*skipped}))})
        if self.keys.delimiter and self.width == 1:
            yield Advice({"delimiter": ""}, "so that it is detected")
        columns = sorted({column for column, kind in cells if kind in COLUMN_KINDS})
        if columns and (self.numbers.keys() - columns):
            labels = [self.names[column] if self.names else column for column in columns]
            yield Advice({"leave_out": join_items(self.selection.leave_out, labels)}, "if they are no features")

    def _by_column(self) -> dict[tuple[int, str], list[int]]:
        """Return line numbers by (column from 0, kind of fault), with kinds corrected by the rest of the column."""
        lines_by_column: dict[int, list[int]] = {}
        for (column, _), lines in self.cells.items():
            lines_by_column.setdefault(column, []).extend(lines)
        first = [self.first_line]
        headed = [column for column, lines in lines_by_column.items() if self.numbers[column] and lines == first]
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

    def _length_fault(self) -> tuple[str, list[Advice]]:
        """Return a likely reason why lines have different numbers of cells, and the keys that treat it."""
        start = next((start for start in COMMENT_STARTS if self.names and self.names[0].startswith(start)), "")
        if comments := sorted({*self.comments, start} - {""}):
            text = "lines of different length, of which some begin as comments do"
            return text, [Advice({"comment": join_items(self.keys.comment, comments)})]
        counts = Counter({n: len(lines) for n, lines in self.lengths.items()}) + Counter({self.width: self.rows})
        usual = max(counts, key=counts.__getitem__)
        advice, others = list[Advice](), sorted(line for lines in self.lengths.values() for line in lines)
        if self.names and not self.rows and {*self.lengths} == {self.width + 1}:
            left_out = join_items("0", [self.selection.leave_out] if self.selection.leave_out else [])
            advice.append(Advice({"leave_out": left_out}, "if the first column has names of rows"))
        elif usual != self.width:
            last = min(self.lengths[usual]) - 1
            advice.append(Advice({"skip": "1" if last == 1 else f"1-{last}"}, "if what stands above is no name or row"))
        elif len(others) <= MAX_LINES_NAMED:
            advice.append(Advice({"skip": join_items(self.keys.skip, others)}, "if such lines are no rows"))
        names = f"{plural(self.width, 'column name')} but {plural(usual, 'column')}"
        reason = (
            "perhaps by separators within texts (put these into quotes), or by decimal commas between cells that "
            "commas separate (write decimal points)"
        )
        return f"{names if self.names and not self.rows else 'lines of different length'}, {reason}", advice


def name_fault(names: Sequence[str], positions: Sequence[int], left_out: str) -> DataError | None:
    """Return an error if features have an empty name or the same name twice, else None; the log has their positions."""
    nameless = [position for name, position in zip(names, positions, strict=True) if not name]
    columns: dict[str, list[int]] = {}
    for name, position in zip(names, positions, strict=True):
        columns.setdefault(name, []).append(position)
    duplicates = {name: numbers for name, numbers in columns.items() if len(numbers) > 1}
    if nameless:
        advice = Advice({"leave_out": join_items(left_out, nameless)}, "if it is an index, or if separators end lines")
        local = f"columns {', '.join(str(position + 1) for position in nameless)}"
        return DataError("a column has no name; give it one, or leave it out", local=local, advice=[advice])
    if duplicates:
        repeats = sorted(position for numbers in duplicates.values() for position in numbers[1:])
        local = "; ".join(f"{name!r} in columns {', '.join(str(n + 1) for n in at)}" for name, at in duplicates.items())
        advice = Advice({"leave_out": join_items(left_out, repeats)}, "if it is there twice")
        return DataError("columns have the same name; give each a name of its own", local=local, advice=[advice])
    return None


def _line_numbers(lines: Sequence[int]) -> str:
    """Return "lines 3, 4, 5 and 7 more" from line numbers, with at most five named."""
    rest = f" and {len(lines) - MAX_LINES_NAMED} more" if len(lines) > MAX_LINES_NAMED else ""
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:MAX_LINES_NAMED]))}{rest}"
