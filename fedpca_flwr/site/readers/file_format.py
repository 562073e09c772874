"""Formats of files: the entries of `fedpca_flwr.site.readers.files.FORMATS`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpca_flwr.data.frames import labels_text
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Rows


@dataclass(frozen=True)
class FileFormat:
    """Kind of file (such as .csv): functions that read its rows, and its ids, and keys that apply.

    ``read_rows`` returns the rows and the names of their columns, given a path, a `ColumnSelection` and the
    ``settings`` by name. Rows that need no memory for all of them are `Blocks` whose ``read`` opens the file anew.
    ``read_ids`` returns the cells of a column without surrounding spaces, given a path, a column, the number of rows
    and the column of labels, and of a text also ``csv_keys`` and ``selection``; None: files of this kind have no texts.
    ``settings`` are arguments that only this kind of file has: keys of the node-config; ``csv_keys``, the `CsvKeys` of
    a text; ``notes``, a list for what a reader of the rows must know.
    """

    read_rows: Callable[..., tuple[Rows, list[str]]]
    read_ids: Callable[..., list[str]] | None = None
    settings: tuple[str, ...] = ()


def require_unique_names(names: Sequence[str], fault: str) -> None:
    """Raise DataError with the text `fault` if a name occurs twice; the names go to the site's own log."""
    duplicates = [name for name, times in Counter(names).items() if times > 1]
    if duplicates:
        raise DataError(fault, local=labels_text(duplicates))
