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

from fedpca_flwr.errors import ConfigError, printable

MOST = 20
"""So many lines a table shows at most."""


class Share(float):
    """A number of 0 to 1: a percentage, with a bar in a notebook."""


class Shown(NamedTuple):
    """A table as it is shown. Floats have four digits; of more than `MOST` rows the first are shown."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]


Result = TypeVar("Result")


def printed_as(table: Callable[[Any], Shown]) -> Callable[[type[Result]], type[Result]]:
    """Let the results of a class print as ``table`` of them, and show it in a notebook."""

    def decorated(cls: type[Result]) -> type[Result]:
        cls.__repr__ = lambda result: in_text(table(result))  # type: ignore[method-assign]
        cls._repr_html_ = lambda result: in_html(table(result))  # type: ignore[attr-defined]
        return cls

    return decorated


def in_text(shown: Shown) -> str:
    """A table as lines of text."""
    columns = []
    for j, head in enumerate(shown.heads):
        cells = [row[j] for row in shown.rows[:MOST]]
        texts = [head, *map(_cell, cells)]
        place = str.ljust if j == 0 or any(isinstance(cell, str) for cell in cells) else str.rjust
        columns.append([place(text, max(map(len, texts))) for text in texts])
    lines = [f"  {'  '.join(line)}".rstrip() for line in zip(*columns, strict=True)]
    return "\n".join([printable(shown.title), *lines, *_more(shown)])


def in_html(shown: Shown) -> str:
    """A table as HTML, in the colours of the page."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in shown.heads)
    rows = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in shown.rows[:MOST])
    more = "".join(f"<p>{line}</p>" for line in _more(shown))
    title = html.escape(printable(shown.title))
    return f"<div><p>{title}</p><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"


def _more(shown: Shown) -> list[str]:
    left = len(shown.rows) - MOST
    return [f"  and {left} more"] if left > 0 else []


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating) and np.isnan(value):
        return "unknown"
    if isinstance(value, Share):
        return f"{value:.2%}"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else printable(str(value))


def _html_cell(value: object) -> str:
    text = html.escape(_cell(value))
    if not isinstance(value, Share) or np.isnan(value):
        return f"<td>{text}</td>"
    bar = f'<div style="background:currentColor;opacity:.5;height:.4em;width:{100 * value:.2f}%"></div>'
    return f'<td style="min-width:8em">{text}{bar}</td>'


def labels(count: int) -> list[str]:
    """Names of components, as those of the columns of a site's file of scores."""
    return [f"PC{j + 1}" for j in range(count)]


def by_feature(names: Sequence[str], *columns: ArrayLike, weight: ArrayLike | None = None) -> list[list[object]]:
    """Lines of a table, each with the name of a feature, or its place from 0, and its entries (d,) of the columns.

    Of more than `MOST` features those of the largest ``weight`` (d,) stand first.
    """
    arrays = [np.asarray(column) for column in columns]
    d = arrays[0].size
    order = range(d) if weight is None or d <= MOST else np.argsort(-np.asarray(weight), kind="stable").tolist()
    return [[names[j] if len(names) else j, *(array[j].item() for array in arrays)] for j in order]


def largest(values: NDArray[Any], names: Sequence[str], count: int = 3) -> str:
    """The features (d,) with the largest values, with these values."""
    order = np.argsort(-np.abs(values), kind="stable")[:count].tolist()
    return ", ".join(f"{names[j] if len(names) else f'feature {j}'} {values[j]:+.2g}" for j in order)


def by_name(parties: Any, log: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Tables, or files, by the names of the parties that hold them.

    The keys of a mapping are the names. Those of a list are the ones that the parties of a model had, by its ``log``,
    where these are as many, or the names of the files. One table is called ``rows``.
    """
    if isinstance(parties, Mapping):
        return {str(name): one for name, one in parties.items()}
    if not isinstance(parties, list | tuple):
        return {"rows": parties}
    held = list(parties)
    said = [party.get("name", "") for party in log.get("parties", [])]
    own = [Path(one).stem if isinstance(one, str | os.PathLike) else f"party {i}" for i, one in enumerate(held)]
    names = said if len(said) == len(held) and all(said) else own
    return dict(zip(names, held, strict=True))


def pandas_library() -> Any:
    """pandas, which is imported where a data frame is asked for."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("data frames need pandas: python -m pip install pandas") from None
    return pandas
