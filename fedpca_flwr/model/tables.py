"""Results as tables: what an analysis prints and shows in a notebook."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.errors import ConfigError, printable_text

MAX_TABLE_ROWS = 20
"""So many lines a table shows at most."""


class Share(float):
    """A number of 0 to 1: a percentage, with a bar in a notebook."""


class DisplayTable(NamedTuple):
    """A table as it is shown. Floats have four digits; of more than `MOST` rows the first are shown."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]


Result = TypeVar("Result")


def display_as(table: Callable[[Any], DisplayTable]) -> Callable[[type[Result]], type[Result]]:
    """Let the results of a class print as ``table`` of them, and show it in a notebook."""

    def decorated(cls: type[Result]) -> type[Result]:
        cls.__repr__ = lambda result: table_to_text(table(result))  # type: ignore[method-assign]
        cls._repr_html_ = lambda result: table_to_html(table(result))  # type: ignore[attr-defined]
        return cls

    return decorated


def table_to_text(shown: DisplayTable) -> str:
    """A table as lines of text."""
    columns = []
    for j, header in enumerate(shown.headers):
        cells = [row[j] for row in shown.rows[:MAX_TABLE_ROWS]]
        texts = [header, *map(_cell_text, cells)]
        align = str.ljust if j == 0 or any(isinstance(cell, str) for cell in cells) else str.rjust
        columns.append([align(text, max(map(len, texts))) for text in texts])
    lines = [f"  {'  '.join(line)}".rstrip() for line in zip(*columns, strict=True)]
    return "\n".join([printable_text(shown.title), *lines, *_overflow_lines(shown)])


def table_to_html(shown: DisplayTable) -> str:
    """A table as HTML, in the colours of the page."""
    headers = "".join(f"<th>{html.escape(name)}</th>" for name in shown.headers)
    rows = "".join(f"<tr>{''.join(map(_cell_html, row))}</tr>" for row in shown.rows[:MAX_TABLE_ROWS])
    overflow = "".join(f"<p>{line}</p>" for line in _overflow_lines(shown))
    title = html.escape(printable_text(shown.title))
    return f"<div><p>{title}</p><table><thead><tr>{headers}</tr></thead><tbody>{rows}</tbody></table>{overflow}</div>"


def _overflow_lines(shown: DisplayTable) -> list[str]:
    hidden = len(shown.rows) - MAX_TABLE_ROWS
    return [f"  and {hidden} more"] if hidden > 0 else []


def _cell_text(value: object) -> str:
    if isinstance(value, float | np.floating) and np.isnan(value):
        return "unknown"
    if isinstance(value, Share):
        return f"{value:.2%}"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else printable_text(str(value))


def _cell_html(value: object) -> str:
    text = html.escape(_cell_text(value))
    if not isinstance(value, Share) or np.isnan(value):
        return f"<td>{text}</td>"
    bar = f'<div style="background:currentColor;opacity:.5;height:.4em;width:{100 * value:.2f}%"></div>'
    return f'<td style="min-width:8em">{text}{bar}</td>'


def component_labels(count: int) -> list[str]:
    """Names of components, as those of the columns of a site's file of scores."""
    return [f"PC{j + 1}" for j in range(count)]


def feature_rows(names: Sequence[str], *columns: ArrayLike, weight: ArrayLike | None = None) -> list[list[object]]:
    """Lines of a table, each with the name of a feature, or its place from 0, and its entries (d,) of the columns.

    Of more than `MOST` features those of the largest ``weight`` (d,) stand first.
    """
    arrays = [np.asarray(column) for column in columns]
    d = arrays[0].size
    order = (
        range(d) if weight is None or d <= MAX_TABLE_ROWS else np.argsort(-np.asarray(weight), kind="stable").tolist()
    )
    return [[names[j] if len(names) else j, *(array[j].item() for array in arrays)] for j in order]


def largest_features(values: NDArray[Any], names: Sequence[str], count: int = 3) -> str:
    """The features (d,) with the largest values, with these values."""
    order = np.argsort(-np.abs(values), kind="stable")[:count].tolist()
    return ", ".join(f"{names[j] if len(names) else f'feature {j}'} {values[j]:+.2g}" for j in order)


def tables_by_name(parties: Any, log: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Tables, or files, by the names of the parties that hold them.

    The keys of a mapping are the names. Those of a list are the ones that the parties of a model had, by its ``log``,
    where these are as many, or the names of the files. One table is called ``rows``.
    """
    if isinstance(parties, Mapping):
        return {str(name): table for name, table in parties.items()}
    if not isinstance(parties, list | tuple):
        return {"rows": parties}
    tables = list(parties)
    log_names = [party.get("name", "") for party in log.get("parties", [])]
    default_names = [
        Path(table).stem if isinstance(table, str | os.PathLike) else f"party {i}" for i, table in enumerate(tables)
    ]
    names = log_names if len(log_names) == len(tables) and all(log_names) else default_names
    return dict(zip(names, tables, strict=True))


def import_pandas() -> Any:
    """pandas, which is imported where a data frame is asked for."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("data frames need pandas: python -m pip install pandas") from None
    return pandas
