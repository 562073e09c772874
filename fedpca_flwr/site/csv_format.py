"""How a .csv file is written, from the site's keys and the first lines of the file.

The format is the encoding, the separator of cells, the signs of decimals and thousands, and the beginnings of comments.
"""

import codecs
import csv
import gzip
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from fedpca_flwr.config.run_config import split_names
from fedpca_flwr.data.categories import MISSING_TEXTS
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.columns import ColumnSelection

SEPARATORS = (",", ";", "\t", "|")
SAMPLE_LINES = 100  # lines by which a file's separator is known
SAMPLE_BYTES = 2**20  # bytes by which its encoding is known

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before that of UTF-16, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""With which files begin that say how they are encoded."""

OTHER_FILE_STARTS = (
    (b"PK\x03\x04", "a workbook or an archive (zip): name a workbook .xlsx, or save its sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook of old Excel: name it .xls, or save its sheet as CSV"),
    (b"\x1f\x8b", "compressed (gzip): name it .csv.gz, or unpack it"),
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

CONTROL_BYTES = re.compile(rb"[\0-\x08\x0e-\x1f]")
"""Bytes that no text has; names of columns may begin as files of other kinds do."""

TEXT_FILE_STARTS = (b"%", b"<", b"{", b"[")  # how those of the other kinds begin that are texts
NUMBER_TEMPLATE = r"[+\u2212-]?(\d+%s?\d*|%s\d+)([eE][+\u2212-]?\d+)?"
POINT_NUMBER, COMMA_NUMBER, ANY_NUMBER = (
    re.compile(NUMBER_TEMPLATE % (sign, sign), re.ASCII) for sign in (r"\.", ",", "[.,]")
)
COMMA_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)
POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", re.ASCII)
BELOW_THOUSAND = re.compile(r"[+-]?\d{1,3}", re.ASCII)

BOOLEANS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class CsvKeys:
    """A site's keys about how its file is written; what is empty is recognised from the file.

    Parameters
    ----------
    header : bool, optional
        Whether the first line has the names of the columns.
    delimiter : str
        Character between cells, or ``"tab"``.
    decimal, thousands : str
        Sign before decimals, ``"."`` or ``","``, and sign between thousands.
    encoding : str
        Encoding as Python names encodings: ``"utf-8"``, ``"cp1252"``, ``"utf-16"``.
    comment, missing : str
        Beginnings of lines that are no rows, and marks of missing values (besides `MISSING_TEXTS`), separated by
        commas.
    """

    header: bool | None = None
    delimiter: str = ""
    decimal: str = ""
    thousands: str = ""
    encoding: str = ""
    comment: str = ""
    missing: str = ""

    def __post_init__(self) -> None:
        faults = {
            "header": None if self.header in (None, True, False) else "true or false",
            "delimiter": None
            if not self.delimiter or re.fullmatch(r"[^\w\r\n.+\"-]", self.separator)
            else "a sign, or 'tab'",
            "decimal": None if self.decimal in ("", ".", ",") else "'.' or ','",
            "thousands": None if self.thousands in ("", ".", ",", "'", "\u2019", " ") else "one of . , ' and a space",
            "encoding": None if self.encoding == "" or _is_encoding(self.encoding) else "one that Python knows",
        }
        for key, expected in faults.items():
            if expected:
                raise ConfigError(f"'{key}' is not allowed, expected {expected}", local=repr(getattr(self, key)))
        if self.thousands and (self.thousands == self.decimal or (self.thousands == "." and not self.decimal)):
            raise ConfigError("'decimal' and 'thousands' must be different signs; with thousands='.' say decimal=','")

    @property
    def separator(self) -> str:
        """The delimiter as a character; empty if the site does not name a delimiter."""
        return {"tab": "\t", "\\t": "\t", "space": " "}.get(self.delimiter, self.delimiter)

    @property
    def comments(self) -> tuple[str, ...]:
        """Beginnings of lines that are no rows."""
        return tuple(filter(None, split_names(self.comment)))

    @property
    def missing_marks(self) -> tuple[str, ...]:
        """Cells that stand for missing values."""
        return tuple(filter(None, split_names(self.missing)))

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """The marks of missing values that are numbers."""
        marks = [mark.replace("\u2212", "-") for mark in self.missing_marks]
        return tuple(float(mark) for mark in marks if POINT_NUMBER.fullmatch(mark))

    def require_unset(self, kind: str, *allowed: str) -> None:
        """Refuse keys about how a text is written, for files that are not texts.

        Parameters
        ----------
        kind : str
            Name of the kind of files, for the error.
        *allowed : str
            Keys that apply nevertheless; ``missing`` always does.

        Raises
        ------
        ConfigError
            If another key is set.
        """
        set_keys = [
            key for key, value in asdict(self).items() if value not in (None, "") and key not in ("missing", *allowed)
        ]
        if set_keys:
            raise ConfigError(
                f"'{set_keys[0]}' says how a text is written, as .csv files are, and {kind} are not written so"
            )


def _is_encoding(name: str) -> bool:
    try:
        return codecs.lookup(name)._is_text_encoding  # that of texts, not of base64
    except (LookupError, ValueError):
        return False


Opener = Callable[[], BinaryIO]
"""Opens the bytes of a file anew."""


def file_opener(file: Path) -> Opener:
    """Return a function that opens the bytes of a file, unpacked if its name ends in .gz.

    Parameters
    ----------
    file : Path
        The file.

    Returns
    -------
    callable
        Opens the file anew at each call.
    """
    if file.suffix.lower() == ".gz":
        return lambda: cast(BinaryIO, gzip.open(file, "rb"))
    return lambda: open(file, "rb")


@dataclass(frozen=True)
class CsvFormat:
    """Format of a .csv file: encoding, separators, and signs of numbers, comments and missing values.

    Parameters
    ----------
    open : callable
        Opens the bytes of the file anew.
    encoding : str
        Encoding as Python names encodings.
    separator : str
        Character between cells.
    decimal, thousands : str
        Sign before decimals, and sign between thousands (empty: none).
    comments : tuple of str
        Beginnings of lines that are no rows.
    missing_marks : tuple of str
        Cells that stand for missing values, besides `MISSING_TEXTS`.
    skipped_lines : int
        Number of lines before the first line with cells: 1 if the file begins with Excel's ``sep=;``.
    """

    open: Opener
    encoding: str
    separator: str
    decimal: str = "."
    thousands: str = ""
    comments: tuple[str, ...] = ()
    missing_marks: tuple[str, ...] = ()  # cells without a value, besides `MISSING_TEXTS`
    skipped_lines: int = 0  # lines before the first that holds cells: Excel's ``sep=;``

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file with their ends, and an empty line in place of each comment.

        So lines can be counted. A comment sign inside a quoted cell is part of the cell.

        Yields
        ------
        str
            A line with its end.
        """
        in_quotes = False
        with io.TextIOWrapper(self.open(), self.encoding, errors="replace") as stream:
            for line in itertools.islice(stream, self.skipped_lines, None):
                if self.comments and not in_quotes and line.lstrip().startswith(self.comments):
                    yield "\n"
                    continue
                yield line
                in_quotes ^= bool(self.comments) and line.count('"') % 2 == 1

    def is_number(self, cell: str) -> bool:
        """Check that a cell is a finite number in this format.

        Parameters
        ----------
        cell : str
            Text of the cell.

        Returns
        -------
        bool
            Whether the cell is a number.
        """
        return bool((COMMA_NUMBER if self.decimal == "," else POINT_NUMBER).fullmatch(self.ungroup(cell)))

    def ungroup(self, cell: str) -> str:
        """Strip a cell of surrounding spaces and of the signs between thousands.

        Parameters
        ----------
        cell : str
            Text of the cell.

        Returns
        -------
        str
            The text without spaces and grouping signs.
        """
        cell = cell.strip()
        if self.thousands and re.fullmatch(self.grouped_number_pattern, cell, re.ASCII):
            cell = re.sub(self.group_sign_pattern, "", cell)
        return cell

    @property
    def group_sign_pattern(self) -> str:
        """Pattern of a sign between thousands; a space includes spaces at which no line breaks."""
        return "[ \u00a0\u202f]" if self.thousands == " " else f"[{self.thousands}]"

    @property
    def grouped_number_pattern(self) -> str:
        """Pattern of numbers with signs between thousands, for Python's re and for RE2."""
        return f"[+\u2212-]?[0-9]{{1,3}}({self.group_sign_pattern}[0-9]{{3}})+([{self.decimal}][0-9]*)?"

    def is_missing(self, cell: str) -> bool:
        """Check that a cell has no value by this format.

        Parameters
        ----------
        cell : str
            Text of the cell.

        Returns
        -------
        bool
            Whether the value is missing.
        """
        return is_missing(cell) or cell.strip() in self.missing_marks


def is_missing(cell: str) -> bool:
    """Check that a cell has no value by the marks that every site has (`MISSING_TEXTS`).

    Parameters
    ----------
    cell : str
        Text of the cell.

    Returns
    -------
    bool
        Whether the value is missing.
    """
    return cell.strip().lower() in MISSING_TEXTS


def detect_format(open_: Opener, keys: CsvKeys, selection: ColumnSelection, name: str = "") -> CsvFormat:
    """Recognise how a .csv file is written, from the site's keys and the first lines.

    Parameters
    ----------
    open_ : callable
        Opens the bytes of the file anew.
    keys : CsvKeys
        The site's own keys.
    selection : ColumnSelection
        Keys that select the features.
    name : str
        Name of the file, whose ending may tell the separator.

    Returns
    -------
    CsvFormat
        How the file is written.

    Raises
    ------
    ConfigError
        If a key of the site does not fit the file.
    DataError
        If the file is empty, is no .csv file, or could be read in two ways.
    """
    encoding = _detect_encoding(open_, keys.encoding)
    base = CsvFormat(open_, encoding, ",", comments=keys.comments, missing_marks=keys.missing_marks)
    with refuse_long_cells():
        first = next(base.lines(), "")
        excel = re.fullmatch(r'"?sep=(.)"?', first.strip("\r\n "), re.IGNORECASE)
        base = replace(base, skipped_lines=1 if excel else 0)
        lines = filter(str.strip, base.lines())
        sample = list(
            itertools.islice(lines, max(5, min(SAMPLE_LINES, SAMPLE_BYTES // (1 + len(first)))))
        )  # fewer of long ones
    if not sample:
        raise DataError("the .csv file is empty", local=name)
    declared = keys.separator or (excel[1] if excel else "")
    with refuse_long_cells():
        separator = declared or _detect_separator(sample, keys, selection)
        if name.lower().endswith((".tsv", ".tsv.gz")) and not declared and separator in (",", ";"):
            raise DataError(
                f"the .tsv file has '{separator}' between its cells, and no tab: say delimiter='{separator}'"
            )
        csv_format = replace(base, separator=separator, decimal=keys.decimal or ".", thousands=keys.thousands)
        if (
            not keys.decimal
            and separator != ","
            and _has_decimal_commas(csv_format, next(csv.reader(sample, delimiter=separator)), selection)
        ):
            csv_format = replace(csv_format, decimal=",")
    return csv_format


@contextmanager
def refuse_long_cells() -> Iterator[None]:
    """Turn the csv module's error about an overlong cell, which may quote the cell, into an error without content.

    Yields
    ------
    None

    Raises
    ------
    DataError
        If the csv module refuses a cell within the context.
    """
    try:
        yield
    except csv.Error as error:
        raise DataError(
            f"the .csv file has a cell of more than {csv.field_size_limit():,} characters: is a quote not closed?",
            local=type(error).__name__,
        ) from None


def _detect_encoding(open_: Opener, declared: str) -> str:
    with open_() as stream:
        start = stream.read(SAMPLE_BYTES)
    for magic, kind in OTHER_FILE_STARTS:
        if start.lstrip().startswith(magic) and (
            magic.startswith(TEXT_FILE_STARTS) or CONTROL_BYTES.search(start[:4096])
        ):
            raise DataError(f"the .csv file is no CSV, but {kind}")
    from_mark = next((name for mark, name in BYTE_ORDER_MARKS if start.startswith(mark)), "")
    if not from_mark and not declared and b"\0" in start[:4096]:
        raise DataError(
            "the .csv file holds bytes that are no text; if it is UTF-16 without its mark, say encoding='utf-16-le' or "
            "'utf-16-be', or save it as UTF-8"
        )
    for name in [declared or from_mark] if declared or from_mark else ["utf-8", "cp1252"]:
        try:
            codecs.getincrementaldecoder(name)().decode(start, final=len(start) < SAMPLE_BYTES)
        except UnicodeError:
            continue
        return from_mark if from_mark == "utf-8-sig" and codecs.lookup(name).name == "utf-8" else name
    if declared:
        raise ConfigError("the .csv file is not in the encoding that its site says ('encoding')", local=declared)
    raise DataError(
        "the .csv file is in an encoding that is not known: say which (encoding='cp1250'), or save it as UTF-8"
    )


def _detect_separator(sample: list[str], keys: CsvKeys, selection: ColumnSelection) -> str:
    """Return the separator by which lines have equal length, and most cells of features are numbers or missing.

    By a separator that does not occur, each line is a single cell. Several equally good separators are refused, since
    the numbers would differ between readings.
    """
    shares = {separator: _separator_score(sample, separator, keys, selection) for separator in SEPARATORS}
    best = [separator for separator in SEPARATORS if shares[separator] == max(shares.values())]
    if len(best) > 1 and "," in (keys.decimal, keys.thousands):
        best = [separator for separator in best if separator != ","]
    if not shares[best[0]]:
        raise csv.Error
    if len(best) > 1:
        raise DataError(
            f"the .csv file may be separated by {' or '.join(map(repr, best))}, and its numbers would be others: say "
            "which (delimiter=';'), or write it with one of them only, and with decimal points"
        )
    return best[0]


def _separator_score(sample: list[str], separator: str, keys: CsvKeys, selection: ColumnSelection) -> float:
    """Score how well a separator divides the lines, from 0 to 2."""
    try:
        rows = list(csv.reader(sample, delimiter=separator))
    except csv.Error:  # so long is a line of many columns that something else separates
        return 0.0
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width == 1:
        return 1e-3 * count / len(rows) * (2 if separator == ";" else 1)  # with which its decimals may have commas
    cells = list(itertools.chain.from_iterable(feature_cells(rows[1:] or rows, rows[0], selection)))
    csv_format = CsvFormat(io.BytesIO, "", separator, keys.decimal or ".", keys.thousands)
    pattern = {".": POINT_NUMBER, ",": COMMA_NUMBER, "": POINT_NUMBER if separator == "," else ANY_NUMBER}[keys.decimal]
    good = sum(
        bool(pattern.fullmatch(csv_format.ungroup(cell))) or is_missing(cell) or cell in keys.missing_marks
        for cell in cells
    )
    return (1 + good / max(1, len(cells))) * count / len(rows)


def feature_cells(rows: Iterable[list[str]], first: Sequence[str], selection: ColumnSelection) -> Iterator[list[str]]:
    """Yield the cells of the features in each row, without surrounding spaces.

    Parameters
    ----------
    rows : iterable of list of str
        Rows of cells.
    first : sequence of str
        First row of the file, which may have the names of the columns.
    selection : ColumnSelection
        Keys that select the features.

    Yields
    ------
    list of str
        Cells of the features of one row.
    """
    features = selection.positions([cell.strip() for cell in first], len(first), strict=False)
    for row in rows:
        yield [row[position].strip() for position in features if position < len(row)]


def _has_decimal_commas(csv_format: CsvFormat, first: Sequence[str], selection: ColumnSelection) -> bool:
    """Decide whether decimals have a comma, in a file whose cells no comma separates.

    Raises
    ------
    DataError
        If all commas, or all points, may as well stand between thousands.
    """
    if csv_format.thousands in (",", "."):
        return csv_format.thousands == "."
    lines = (
        line for index, line in enumerate(csv_format.lines()) if index < SAMPLE_LINES or "," in line or "." in line
    )
    commas: list[str] = []
    points: list[str] = []
    grouped, ungrouped = (
        set[int](),
        set[int](),
    )  # columns with points as between thousands, and with whole numbers below
    for row in feature_cells(csv.reader(lines, delimiter=csv_format.separator), first, selection):
        for column, cell in enumerate(row):
            if ("," in cell and COMMA_NUMBER.fullmatch(cell)) or COMMA_GROUPS.fullmatch(cell):
                commas.append(cell)
            elif ("." in cell and POINT_NUMBER.fullmatch(cell)) or POINT_GROUPS.fullmatch(cell):
                points.append(cell)
                grouped.add(column)
            elif BELOW_THOUSAND.fullmatch(cell):
                ungrouped.add(column)
        if len(commas) + len(points) >= SAMPLE_LINES:
            break
    if commas and not points and not csv_format.thousands and all(map(COMMA_GROUPS.fullmatch, commas)):
        raise DataError(
            "the .csv file has commas in its numbers that may be decimal ones or stand between thousands: say which "
            "(decimal=',' or thousands=','), or write numbers with a decimal point"
        )
    if (
        points
        and not commas
        and not csv_format.thousands
        and grouped & ungrouped
        and all(map(POINT_GROUPS.fullmatch, points))
    ):
        raise DataError(
            "the .csv file has points in its numbers that may be decimal ones or stand between thousands: three digits "
            "follow each of them, and other numbers of these columns have none. Say which (decimal='.', or decimal=',' "
            "and thousands='.')"
        )
    return len(commas) > len(points)
