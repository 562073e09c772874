"""Tables in Markdown, complete or line by line as results come."""

from collections.abc import Iterable, Sequence

from fedpca_flwr.errors import printable_text


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a table in Markdown, without a newline at the end; cells as in `row`."""
    return "\n".join([head(heads), *map(row, rows)])


def head(heads: Sequence[str]) -> str:
    """Write the header line and the separator line of a table in Markdown."""
    return f"{row(heads)}\n{row(['---'] * len(heads))}"


def row(cells: Iterable[object]) -> str:
    """Write a single line of cells of a table in Markdown, with "?" for characters that are not printable."""
    return f"| {' | '.join(printable_text(str(cell)) for cell in cells)} |"
