"""Format of a .csv file: encoding, separator of cells, signs of decimals and thousands, beginnings of comments."""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fedpca_flwr.config.run_config import split_names
from fedpca_flwr.data.categories import MISSING_TEXTS
from fedpca_flwr.errors import Advice, ConfigError, DataError
from fedpca_flwr.site.readers.unpacking import open_gzip

NUMBER_TEMPLATE = r"[+\u2212-]?(\d+%s?\d*|%s\d+)([eE][+\u2212-]?\d+)?"
POINT_NUMBER, COMMA_NUMBER, ANY_NUMBER = (
    re.compile(NUMBER_TEMPLATE % (sign, sign), re.ASCII) for sign in (r"\.", ",", "[.,]")
)
LINE_NUMBERS = re.compile(r"[1-9]\d{0,6}(-[1-9]\d{0,6})?", re.ASCII)


@dataclass(frozen=True)
class CsvKeys:
    """Keys of a node-config for the format of a .csv file. The value of an empty key is detected from the file."""

    header: bool | None = None  # whether the first line has the names of the columns
    delimiter: str = ""  # character between cells, "tab" or "space"
    decimal: str = ""  # sign before decimals, "." or ","
    thousands: str = ""  # sign between thousands
    encoding: str = ""  # as Python names encodings: "utf-8", "cp1252", "utf-16"
    comment: str = ""  # beginnings of lines that are no rows, separated by commas
    missing: str = ""  # marks of missing values, besides `MISSING_TEXTS`, separated by commas
    skip: str = ""  # numbers of lines, from 1, that are no rows, such as "1-3, 5"
    sheet: str = ""  # sheet of a workbook, by name or number from 1; empty: the first

    def __post_init__(self) -> None:
        """Raise ConfigError for values that are not allowed, and equal signs for decimals and thousands."""
        for key, is_allowed, expected in (
            ("header", self.header in (None, True, False), "true or false"),
            ("delimiter", not self.delimiter or re.fullmatch(r"[^\w\r\n.+\"-]", self.separator), "a sign, or 'tab'"),
            ("decimal", self.decimal in ("", ".", ","), "'.' or ','"),
            ("thousands", self.thousands in ("", ".", ",", "'", "\u2019", " "), "one of . , ' and a space"),
            ("encoding", self.encoding == "" or _is_encoding(self.encoding), "one that Python knows"),
            ("skip", all(map(LINE_NUMBERS.fullmatch, split_names(self.skip))), "lines from 1, as in '1-3, 5'"),
        ):
            if not is_allowed:
                raise ConfigError(f"'{key}' is not allowed, expected {expected}", local=repr(getattr(self, key)))
        if self.thousands and (self.thousands == self.decimal or (self.thousands == "." and not self.decimal)):
            advice = Advice({"decimal": "," if self.thousands == "." else "."})
            raise ConfigError("'decimal' and 'thousands' must be different characters", advice=[advice])

    @property
    def separator(self) -> str:
        """Separator of cells as a character, with "tab" and "space" replaced; empty if the key is not set."""
        return {"tab": "\t", "\\t": "\t", "space": " "}.get(self.delimiter, self.delimiter)

    @property
    def comments(self) -> tuple[str, ...]:
        """Texts with which a line begins that is a comment, not a row."""
        return tuple(filter(None, split_names(self.comment)))

    @property
    def skipped(self) -> frozenset[int]:
        """Numbers, from 1, of the lines that are no rows."""
        ends = [item.partition("-")[::2] for item in split_names(self.skip)]
        return frozenset(line for first, last in ends for line in range(int(first), int(last or first) + 1))

    @property
    def missing_marks(self) -> tuple[str, ...]:
        """Texts of cells that mean a missing value, besides the usual ones such as NA."""
        return tuple(filter(None, split_names(self.missing)))

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """Marks of missing values that are numbers, such as -999."""
        marks = [mark.replace("\u2212", "-") for mark in self.missing_marks]
        return tuple(float(mark) for mark in marks if POINT_NUMBER.fullmatch(mark))

    def require_unset(self, kind: str, *allowed: str) -> None:
        """Raise ConfigError if a key is set besides `allowed` and 'missing', which files of `kind` do not have."""
        for key, value in asdict(self).items():
            if value not in (None, "") and key not in ("missing", *allowed):
                raise ConfigError(f"'{key}' is no key of {kind}")


def _is_encoding(name: str) -> bool:
    """Return whether Python knows a text encoding of this name."""
    try:
        return codecs.lookup(name)._is_text_encoding  # codecs such as base64 do not encode texts
    except (LookupError, ValueError):
        return False


Opener = Callable[[], BinaryIO]  # opens the bytes of a file anew


def file_opener(file: Path) -> Opener:
    """Return a function that opens a file for reading bytes, decompressed if its name ends in .gz."""
    if file.suffix.lower() == ".gz":
        return lambda: open_gzip(file)
    return lambda: open(file, "rb")


@dataclass(frozen=True)
class CsvFormat:
    """Format of a .csv file, and its bytes."""

    open: Opener  # opens the bytes anew
    encoding: str  # as Python names encodings
    separator: str  # character between cells
    decimal: str = "."  # sign before decimals
    thousands: str = ""  # sign between thousands; empty: none
    comments: tuple[str, ...] = ()  # beginnings of lines that are no rows
    missing_marks: tuple[str, ...] = ()  # cells without a value, besides `MISSING_TEXTS`
    skipped: frozenset[int] = frozenset()  # numbers of lines, from 1, that are no rows

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes of the file, a mebibyte at a time."""
        with self.open() as stream:
            yield from iter(partial(stream.read, 2**20), b"")

    def lines(self, dropped: list[int] | None = None, errors: str = "replace") -> Iterator[str]:
        """Yield the lines of the file with runs of separating spaces as one; comments and skipped lines become empty.

        A line that is a row of numbers is no comment, and neither is one inside a quoted cell. The numbers of the lines
        that become empty are appended to ``dropped``. ``errors`` says what becomes of bytes that are no text.
        """
        in_quotes = False
        with io.TextIOWrapper(self.open(), self.encoding, errors=errors) as stream:
            for number, line in enumerate(stream, 1):
                is_comment = self.comments and not in_quotes and line.lstrip().startswith(self.comments)
                if number in self.skipped or (is_comment and not self.is_row(line)):
                    if dropped is not None:
                        dropped.append(number)
                    yield "\n"
                    continue
                yield " ".join(line.split()) + "\n" if self.separator == " " else line
                in_quotes ^= bool(self.comments) and line.count('"') % 2 == 1

    def is_row(self, line: str) -> bool:
        """Check that all cells of a line are numbers or missing values."""
        return all(self.is_number(cell) or self.is_missing(cell) for cell in line.split(self.separator))

    def is_number(self, cell: str) -> bool:
        """Check that a cell is a finite number with this format's decimal sign."""
        return bool((COMMA_NUMBER if self.decimal == "," else POINT_NUMBER).fullmatch(self.ungroup(cell)))

    def ungroup(self, cell: str) -> str:
        """Return a cell without surrounding spaces, and without thousands signs if it is a number with such signs."""
        cell = cell.strip()
        if self.thousands and re.fullmatch(self.grouped_number_pattern, cell, re.ASCII):
            cell = re.sub(self.group_sign_pattern, "", cell)
        return cell

    @property
    def group_sign_pattern(self) -> str:
        """Regular expression of the thousands sign; for a space, also no-break spaces."""
        return "[ \u00a0\u202f]" if self.thousands == " " else f"[{self.thousands}]"

    @property
    def grouped_number_pattern(self) -> str:
        """Regular expression of a number with thousands signs, valid in Python's re and in RE2."""
        return f"[+\u2212-]?[0-9]{{1,3}}({self.group_sign_pattern}[0-9]{{3}})+([{self.decimal}][0-9]*)?"

    def is_missing(self, cell: str) -> bool:
        """Check that a cell means a missing value: empty, NA and the like, or a mark of the site's."""
        return is_missing(cell) or cell.strip() in self.missing_marks


def plural(number: int, what: str) -> str:
    """Return a number with its noun, as "1 cell" or "2 cells"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def is_missing(cell: str) -> bool:
    """Check that a cell means a missing value at every site: empty, NA, null and the like."""
    return cell.strip().lower() in MISSING_TEXTS


@contextmanager
def refuse_long_cells() -> Iterator[None]:
    """Replace a csv.Error about an overlong cell by a DataError that does not quote the cell."""
    try:
        yield
    except csv.Error as error:
        fault = f"a cell has more than {csv.field_size_limit():,} characters: is a closing quote missing?"
        raise DataError(fault, local=type(error).__name__) from None
