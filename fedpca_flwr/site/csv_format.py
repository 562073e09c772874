"""How a .csv file is written, and all that is wrong in it, told as an editor counts lines and without a cell.

How it is written is its encoding, what separates its cells, and whether decimals have a comma.
"""

import codecs
import csv
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedpca_flwr.errors import DataError

SEPARATORS = (",", ";", "\t", "|")
SAMPLE = 100  # lines by which a file's separator is known

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before that of UTF-16, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""With which files begin that say how they are encoded."""

OTHER_KINDS = (
    (b"PK\x03\x04", "a workbook or an archive (zip): save the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook of Excel: save the sheet as CSV"),
    (b"\x1f\x8b", "compressed (gzip): unpack it"),
    (b"BZh", "compressed (bzip2): unpack it"),
    (b"\xfd7zXZ", "compressed (xz): unpack it"),
    (b"PAR1", "a parquet file: name it .parquet"),
    (b"\x93NUMPY", "an array of NumPy: name it .npy"),
    (b"\x89HDF", "an HDF5 file"),
    (b"%PDF-", "a PDF"),
    *((start, "HTML or XML: save the table as CSV") for start in (b"<!", b"<?", b"<html", b"<HTML", b"<table")),
    *((start, "JSON: save the table as CSV") for start in (b'{"', b"[{", b"[[")),
)
"""How files of other kinds begin, and what to do."""

CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")
"""Bytes that no text has; names of columns may begin as files of other kinds do."""

TEXTS = (b"%", b"<", b"{", b"[")  # how those of the other kinds begin that are texts
NUMBER = r"[+-]?(\d+%s?\d*|%s\d+)([eE][+-]?\d+)?"
POINT, COMMA, EITHER = (re.compile(NUMBER % (sign, sign), re.ASCII) for sign in (r"\.", ",", "[.,]"))
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)

MISSING = {"", "na", "nan", "n/a", "#n/a", "<na>", "null", "none"}
"""Cells in which a value is missing, in small letters."""


@dataclass(frozen=True)
class CsvFormat:
    """How a .csv file is written."""

    encoding: str
    separator: str
    decimal_comma: bool = False
    skipped: int = 0  # lines before the first that holds cells: Excel's ``sep=;``

    def lines(self, file: Path) -> Iterator[str]:
        """The lines that hold cells, and blank ones, each with its end."""
        with open(file, encoding=self.encoding) as stream:
            yield from itertools.islice(stream, self.skipped, None)

    def number(self, cell: str) -> bool:
        """Whether a cell holds a finite number."""
        return bool((COMMA if self.decimal_comma else POINT).fullmatch(cell.strip()))


def format_of(file: Path, left_out: Collection[str]) -> CsvFormat:
    """How a file is written, by all of it but the columns that are no features (their names, or numbers from 0).

    Refused where it is empty, no .csv file, or could be read in two ways.
    """
    plain = CsvFormat(_encoding(file), ",")
    first = next(plain.lines(file), "")
    said = re.fullmatch(r'"?sep=(.)"?', first.strip("\r\n "), re.IGNORECASE)
    skipped = 1 if said else 0
    lines = filter(str.strip, CsvFormat(plain.encoding, ",", skipped=skipped).lines(file))
    sample = list(itertools.islice(lines, max(5, min(SAMPLE, 2**20 // (1 + len(first))))))  # fewer where they are long
    if not sample:
        raise DataError("the .csv file is empty", local=str(file))
    with cells_within_limits():
        separator = said[1] if said else _separator(sample, left_out)
        found = CsvFormat(plain.encoding, separator, skipped=skipped)
        first_row = next(csv.reader(sample, delimiter=separator))
        decimal_comma = separator != "," and _decimal_comma(found, file, first_row, left_out)
    return CsvFormat(plain.encoding, separator, decimal_comma, skipped)


@contextmanager
def cells_within_limits() -> Iterator[None]:
    """Refuse a cell that Python's reader holds for too long, whose own error may quote it."""
    try:
        yield
    except csv.Error as error:
        raise DataError(
            f"the .csv file has a cell of more than {csv.field_size_limit():,} characters: is a quote not closed?",
            local=type(error).__name__,
        ) from None


def _encoding(file: Path) -> str:
    with open(file, "rb") as stream:
        start = stream.read(4096)
    for magic, kind in OTHER_KINDS:
        if start.lstrip().startswith(magic) and (magic.startswith(TEXTS) or CONTROL.search(start)):
            raise DataError(f"the .csv file is no CSV, but {kind}", local=str(file))
    marked = next((name for mark, name in MARKS if start.startswith(mark)), "")
    if not marked and b"\0" in start:
        raise DataError(
            "the .csv file holds bytes that are no text; if it is UTF-16 without its mark, save it as UTF-8",
            local=str(file),
        )
    for name in [marked] if marked else ["utf-8", "cp1252"]:
        if _decodes(file, name):
            return name
    raise DataError("the .csv file is in an encoding that is not known: save it as UTF-8", local=str(file))


def _decodes(file: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with open(file, "rb") as stream:
            while piece := stream.read(2**16):
                decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


def _separator(sample: list[str], left_out: Collection[str]) -> str:
    """That by which lines are of one length, and most cells of features are numbers, or missing.

    By one that does not occur, all lines are of one cell. Refused where several are as good: the numbers would be
    others.
    """
    shares = {separator: _share(sample, separator, left_out) for separator in SEPARATORS}
    best = [separator for separator in SEPARATORS if shares[separator] == max(shares.values())]
    if not shares[best[0]]:
        raise csv.Error
    if len(best) > 1:
        raise DataError(
            f"the .csv file may be separated by {' or '.join(map(repr, best))}, and its numbers would be others: write "
            "it with one of them only, and with decimal points"
        )
    return best[0]


def _share(sample: list[str], separator: str, left_out: Collection[str]) -> float:
    """How well lines are separated so: 0 to 2."""
    try:
        rows = list(csv.reader(sample, delimiter=separator))
    except csv.Error:  # so long is a line of many columns that something else separates
        return 0.0
    width, times = Counter(map(len, rows)).most_common(1)[0]
    if width == 1:
        return 1e-3 * times / len(rows) * (2 if separator == ";" else 1)  # with which its decimals may have commas
    cells = list(itertools.chain.from_iterable(_of_features(rows[1:] or rows, rows[0], left_out)))
    number = POINT if separator == "," else EITHER
    good = sum(bool(number.fullmatch(cell)) or is_missing(cell) for cell in cells)
    return (1 + good / max(1, len(cells))) * times / len(rows)


def _of_features(rows: Iterable[list[str]], first: list[str], left_out: Collection[str]) -> Iterator[list[str]]:
    """The cells of rows, without spaces around them, that are not of a column that is left out."""
    names = [cell.strip() for cell in first]
    dropped = {names.index(key) if key in names else int(key) if key.isdecimal() else -1 for key in left_out}
    for row in rows:
        yield [cell.strip() for place, cell in enumerate(row) if place not in dropped]


def _decimal_comma(found: CsvFormat, file: Path, first: list[str], left_out: Collection[str]) -> bool:
    """Whether the first cells of features with decimals have a comma; refused where it may stand between thousands."""
    seen: list[str] = []
    lines = (line for line in found.lines(file) if "," in line or "." in line)
    for row in _of_features(csv.reader(lines, delimiter=found.separator), first, left_out):
        cells = [cell for cell in row if "," in cell or "." in cell]
        if any(POINT.fullmatch(cell) for cell in cells):
            break
        seen += [cell for cell in cells if COMMA.fullmatch(cell) or THOUSANDS.fullmatch(cell)]
        if len(seen) >= SAMPLE:
            break
    if seen and all(map(THOUSANDS.fullmatch, seen)):
        raise DataError(
            "the .csv file has commas in its numbers that may be decimal commas or stand between thousands: write "
            "numbers with a decimal point, and without signs between thousands",
            local=str(file),
        )
    return bool(seen)


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


LINES_NAMED = 5  # lines that are named of each fault

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
        "leave the columns out, encode them as numbers, name them as node-config 'categories', or one as 'label'",
    ),
)
"""What cells hold that are no numbers, how that is known, and what to do."""


def kind_of(cell: str) -> str:
    """What a cell holds that is no number."""
    return next(kind for kind, sign, _ in KINDS if sign.fullmatch(cell.strip()))


@dataclass
class Faults:
    """What is wrong in one file."""

    width: int  # cells that its lines must have
    names: Sequence[str]  # of its columns, where it has a header
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
    more = f" and {len(lines) - LINES_NAMED} more" if len(lines) > LINES_NAMED else ""
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:LINES_NAMED]))}{more}"
