"""Results as tables, which an analysis prints and shows in a notebook."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.data.frames import column_labels, is_table
from fedpca_flwr.errors import ConfigError, printable_text

MAX_TABLE_ROWS = 20  # largest number of rows that a table shows


class Share(float):
    """Number from 0 to 1, displayed as a percentage, with a bar in a notebook."""


class DisplayTable(NamedTuple):
    """Table to display; floats have four digits, and only the first `MAX_TABLE_ROWS` rows are shown."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]


Result = TypeVar("Result")


def display_as(table: Callable[[Any], DisplayTable]) -> Callable[[type[Result]], type[Result]]:
    """Return a class decorator: results of the class print as the table that ``table`` makes, in notebooks as HTML."""

    def decorated(cls: type[Result]) -> type[Result]:
        cls.__repr__ = lambda result: table_to_text(table(result))  # type: ignore[method-assign]
        cls._repr_html_ = lambda result: table_to_html(table(result))  # type: ignore[attr-defined]
        return cls

    return decorated


def table_to_text(shown: DisplayTable) -> str:
    """Write a table as lines of text: title, headers, rows, and how many rows are not shown."""
    columns = []
    for j, header in enumerate(shown.headers):
        cells = [row[j] for row in shown.rows[:MAX_TABLE_ROWS]]
        texts = [header, *map(_cell_text, cells)]
        align = str.ljust if j == 0 or any(isinstance(cell, str) for cell in cells) else str.rjust
        columns.append([align(text, max(map(len, texts))) for text in texts])
    lines = [f"  {'  '.join(line)}".rstrip() for line in zip(*columns, strict=True)]
    if (hidden := len(shown.rows) - MAX_TABLE_ROWS) > 0:
        lines.append(f"  and {hidden} more")
    return "\n".join([printable_text(shown.title), *lines])


def table_to_html(shown: DisplayTable, *, max_rows: int = MAX_TABLE_ROWS) -> str:
    """Write a table as HTML, in the colours of the page, with at most ``max_rows`` rows."""
    headers = "".join(f"<th>{html.escape(name)}</th>" for name in shown.headers)
    lines = []
    for row in shown.rows[:max_rows]:
        cells = []
        for value in row:
            text, style = html.escape(_cell_text(value)), ""
            if isinstance(value, Share) and not np.isnan(value):
                bar_style = f"background:currentColor;opacity:.5;height:.4em;width:{100 * value:.2f}%"
                text, style = f'{text}<div style="{bar_style}"></div>', ' style="min-width:8em"'
            cells.append(f"<td{style}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    hidden = len(shown.rows) - max_rows
    overflow = f"<p>  and {hidden} more</p>" if hidden > 0 else ""
    title, body = html.escape(printable_text(shown.title)), "".join(lines)
    return f"<div><p>{title}</p><table><thead><tr>{headers}</tr></thead><tbody>{body}</tbody></table>{overflow}</div>"


def _cell_text(value: object) -> str:
    """Write a cell: a share in percent, a float with four digits, NaN as unknown."""
    if isinstance(value, float | np.floating) and np.isnan(value):
        return "unknown"
    if isinstance(value, Share):
        return f"{value:.2%}"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else printable_text(str(value))


def component_labels(count: int) -> list[str]:
    """Return the labels of components, ``PC1``, ``PC2`` ..., which also head a site's file of scores."""
    return [f"PC{j + 1}" for j in range(count)]


def feature_rows(names: Sequence[str], *columns: ArrayLike, weight: ArrayLike | None = None) -> list[list[object]]:
    """Return a row for each of d features, its name or position and values; of many, the largest ``weight`` first."""
    arrays = [np.asarray(column) for column in columns]
    d = arrays[0].size
    order: Sequence[int] = range(d)
    if weight is not None and d > MAX_TABLE_ROWS:
        order = np.argsort(-np.asarray(weight), kind="stable").tolist()
    return [[names[j] if len(names) else j, *(array[j].item() for array in arrays)] for j in order]


def largest_features(values: NDArray[Any], names: Sequence[str], count: int = 3) -> str:
    """Write the names (or positions) and values of the ``count`` features with the largest absolute values (d,)."""
    order = np.argsort(-np.abs(values), kind="stable")[:count].tolist()
    return ", ".join(f"{names[j] if len(names) else f'feature {j}'} {values[j]:+.2g}" for j in order)


def tables_by_name(parties: Any, log: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the tables or files by the parties' names: keys of a mapping, the party column of a frame of scores.

    A list takes the names in a model's ``log`` if there are as many, else those of files, or "party 0", "party 1". A
    single table is called "rows".
    """
    if isinstance(parties, Mapping):
        return {str(name): table for name, table in parties.items()}
    if column_labels(parties)[:2] == ("party", "PC1"):
        return {str(name): rows.drop(columns="party") for name, rows in parties.groupby("party", sort=False)}
    if is_table(parties) or not isinstance(parties, list | tuple | Iterator):
        return {"rows": parties}
    tables = list(parties)
    log_names = [party.get("name", "") for party in log.get("parties", [])]
    if len(log_names) == len(tables) and all(log_names):
        return dict(zip(log_names, tables, strict=True))
    is_file = [isinstance(table, str | os.PathLike) for table in tables]
    return {Path(table).stem if is_file[i] else f"party {i}": table for i, table in enumerate(tables)}


def import_pandas() -> Any:
    """Import pandas, which is needed for data frames only, or raise ConfigError if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("data frames need pandas: python -m pip install pandas") from None
    return pandas
