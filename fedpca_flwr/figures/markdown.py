"""Tables in Markdown, whole or line by line as results come."""

from collections.abc import Iterable, Sequence

from fedpca_flwr.errors import printable_text


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table."""
    return "\n".join([head(heads), *map(row, rows)])


def head(heads: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"{row(heads)}\n{row(['---'] * len(heads))}"


def row(cells: Iterable[object]) -> str:
    """One line of a table."""
    return f"| {' | '.join(printable_text(str(cell)) for cell in cells)} |"
