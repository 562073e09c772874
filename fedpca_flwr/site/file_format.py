"""What a kind of file is: an entry of `fedpca_flwr.site.readers.FORMATS`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpca_flwr.data.frames import labels_text
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Rows


@dataclass(frozen=True)
class FileFormat:
    """A kind of file.

    Parameters
    ----------
    rows : callable
        Makes of a path, a `Selection` of the columns and the ``settings`` by name the rows, and the names of their
        columns. What needs no memory for all rows gives `Blocks` whose ``read`` opens the file anew.
    ids : callable, optional
        Makes of a path, a column, the number of rows and the column of labels the cells of the column, without spaces
        around them; of a text also of the ``written`` and the ``selection``.
    settings : tuple of str
        What only this kind of file has: keys of the node-config; ``written``, the `CsvKeys` of a text; ``notes``, a
        list for what a reader of the rows must know.
    """

    read_rows: Callable[..., tuple[Rows, list[str]]]
    read_ids: Callable[..., list[str]] | None = None
    settings: tuple[str, ...] = ()


def require_unique_names(names: Sequence[str], fault: str) -> None:
    """Refuse names of which one occurs twice, by the text of the ``fault``."""
    duplicates = [name for name, times in Counter(names).items() if times > 1]
    if duplicates:
        raise DataError(fault, local=labels_text(duplicates))
