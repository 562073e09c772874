"""Recognition of how a .csv file is written, from the site's keys and the first lines of the file."""

import codecs
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fedpca_flwr.errors import Advice, ConfigError, DataError
from fedpca_flwr.site.readers.columns import ColumnSelection
from fedpca_flwr.site.readers.csv_format import (
    ANY_NUMBER,
    COMMA_NUMBER,
    POINT_NUMBER,
    CsvFormat,
    CsvKeys,
    Opener,
    is_missing,
    refuse_long_cells,
)

SEPARATORS = (",", ";", "\t", "|")
SAMPLE_LINES = 100  # lines that decide the separator and the header
SAMPLE_BYTES = 2**20  # bytes that decide the encoding
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is the beginning of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Beginnings of files that state their encoding, with the encoding."""

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
"""Beginnings of files of other kinds, with advice for the error."""

CONTROL_BYTES = re.compile(rb"[\0-\x08\x0e-\x1f]")  # that no text has, whose names may begin as other files do
TEXT_FILE_STARTS = (b"%", b"<", b"{", b"[")  # of the other kinds that are texts
COMMA_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)
POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", re.ASCII)
BELOW_THOUSAND = re.compile(r"[+-]?\d{1,3}", re.ASCII)


def detect_format(open_: Opener, keys: CsvKeys, selection: ColumnSelection, name: str = "") -> CsvFormat:
    """Detect encoding, separator and decimal sign of a .csv file, as far as the keys and its ``name`` do not say."""
    encoding = _detect_encoding(open_, keys.encoding)
    base = CsvFormat(open_, encoding, ",", comments=keys.comments, missing_marks=keys.missing_marks)
    base = replace(base, separator=keys.separator or ",", skipped=keys.skipped)
    with refuse_long_cells():
        first = next(base.lines(), "")
        excel = re.fullmatch(r'"?sep=(.)"?', first.strip("\r\n "), re.IGNORECASE)
        base = replace(base, skipped=base.skipped | {1} if excel else base.skipped)
        lines = filter(str.strip, base.lines())
        n_lines = max(5, min(SAMPLE_LINES, SAMPLE_BYTES // (1 + len(first))))  # fewer if lines are long
        sample = list(itertools.islice(lines, n_lines))
        if not sample:
            raise DataError("the file is empty", local=name)
        declared = keys.separator or (excel[1] if excel else "")
        separator = declared or _detect_separator(sample, keys, selection)
        if name.lower().endswith((".tsv", ".tsv.gz")) and not declared and separator in (",", ";"):
            advice = Advice({"delimiter": separator})
            raise DataError(f"'{separator}' stands between the cells, and no tab", advice=[advice])
        csv_format = replace(base, separator=separator, decimal=keys.decimal or ".", thousands=keys.thousands)
        if not keys.decimal and separator != ",":
            header = next(csv.reader(sample, delimiter=separator))
            if _has_decimal_commas(csv_format, header, selection):
                csv_format = replace(csv_format, decimal=",")
    return csv_format


def _detect_encoding(open_: Opener, declared: str) -> str:
    """Return the declared encoding, or that of the byte order mark, or the first of UTF-8 and CP1252 to fit."""
    with open_() as stream:
        start = stream.read(SAMPLE_BYTES)
    for magic, kind in OTHER_FILE_STARTS:
        plausible = magic.startswith(TEXT_FILE_STARTS) or CONTROL_BYTES.search(start[:4096])
        if plausible and start.lstrip().startswith(magic):
            raise DataError(f"it is not CSV, but {kind}")
    from_mark = next((name for mark, name in BYTE_ORDER_MARKS if start.startswith(mark)), "")
    if not from_mark and not declared and b"\0" in start[:4096]:
        raise DataError(
            "some bytes are not text; save the file as UTF-8, or name its encoding if it is UTF-16 without its mark",
            advice=[Advice({"encoding": name}) for name in ("utf-16-le", "utf-16-be")],
        )
    candidates = list(filter(None, [declared or from_mark])) or ["utf-8", "cp1252"]
    for name in candidates:
        try:
            codecs.getincrementaldecoder(name)().decode(start, final=len(start) < SAMPLE_BYTES)
        except UnicodeError:
            continue
        return from_mark if from_mark == "utf-8-sig" and codecs.lookup(name).name == "utf-8" else name
    if declared:
        raise ConfigError("the text is not in the encoding that 'encoding' names", local=declared)
    raise DataError("the encoding is unknown; save the file as UTF-8", advice=[Advice({"encoding": "latin-1"})])


def _detect_separator(sample: list[str], keys: CsvKeys, selection: ColumnSelection) -> str:
    """Return the separator with the best score (equally long lines of numbers)."""
    shares = {separator: _separator_score(sample, separator, keys, selection) for separator in SEPARATORS}
    best = [separator for separator in SEPARATORS if shares[separator] == max(shares.values())]
    if len(best) > 1 and "," in (keys.decimal, keys.thousands):
        best = [separator for separator in best if separator != ","]
    if not shares[best[0]]:
        raise csv.Error
    if len(best) > 1:
        advice = [Advice({"delimiter": separator}) for separator in best]
        raise DataError("several signs may stand between the cells, and the numbers depend on which", advice=advice)
    return best[0]


def _separator_score(sample: list[str], separator: str, keys: CsvKeys, selection: ColumnSelection) -> float:
    """Score a separator: share of lines with the usual length, times 1 + share of feature cells that are numbers.

    Missing values are numbers. Lines of a single cell score 0.002 at most, and a sample that is not CSV 0.
    """
    try:
        rows = list(csv.reader(sample, delimiter=separator))
    except csv.Error:  # a whole line is one overlong cell: the line has another separator
        return 0.0
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width == 1:
        # a single column: prefer ';', with which numbers may have decimal commas
        return 1e-3 * count / len(rows) * (2 if separator == ";" else 1)
    cells = list(itertools.chain.from_iterable(feature_cells(rows[1:] or rows, rows[0], selection)))
    csv_format = CsvFormat(io.BytesIO, "", separator, keys.decimal or ".", keys.thousands)
    pattern = {".": POINT_NUMBER, ",": COMMA_NUMBER, "": POINT_NUMBER if separator == "," else ANY_NUMBER}[keys.decimal]
    values = [cell for cell in cells if not (is_missing(cell) or cell in keys.missing_marks)]
    good = len(cells) - sum(not pattern.fullmatch(csv_format.ungroup(cell)) for cell in values)
    return (1 + good / max(1, len(cells))) * count / len(rows)


def feature_cells(rows: Iterable[list[str]], first: Sequence[str], selection: ColumnSelection) -> Iterator[list[str]]:
    """Yield the stripped cells of each row's feature columns, as far as it has them; `first` may hold their names."""
    features = selection.positions([cell.strip() for cell in first], len(first), strict=False)
    for row in rows:
        yield [row[position].strip() for position in features if position < len(row)]


def _has_decimal_commas(csv_format: CsvFormat, first: Sequence[str], selection: ColumnSelection) -> bool:
    """Return whether numbers have decimal commas, in a file that is separated by another sign."""
    if csv_format.thousands in (",", "."):
        return csv_format.thousands == "."
    numbered_lines = enumerate(csv_format.lines())
    lines = (line for index, line in numbered_lines if index < SAMPLE_LINES or "," in line or "." in line)
    commas, points = list[str](), list[str]()
    grouped = set[int]()  # columns with numbers such as 1.234, whose point may be a thousands sign
    ungrouped = set[int]()  # columns with integers below 1,000
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
    if csv_format.thousands:
        return len(commas) > len(points)
    if commas and not points and all(map(COMMA_GROUPS.fullmatch, commas)):
        advice = [Advice({"decimal": ","}), Advice({"thousands": ","})]
        raise DataError("commas in the numbers may be decimal commas or separate thousands", advice=advice)
    if points and not commas and grouped & ungrouped and all(map(POINT_GROUPS.fullmatch, points)):
        raise DataError(
            "points in the numbers may be decimal points or separate thousands: three digits follow each point, and "
            "other numbers of these columns have no point",
            advice=[Advice({"decimal": "."}), Advice({"decimal": ",", "thousands": "."})],
        )
    return len(commas) > len(points)
