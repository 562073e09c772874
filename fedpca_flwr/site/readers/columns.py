"""The columns of a site's data: those that the node-config selects, and the features in the order of the run."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig, split_names
from fedpca_flwr.data.frames import match_labels
from fedpca_flwr.data.table import Table, columns_text, labels_text
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Rows, select_columns

# in an error about whole numbers that float64 cannot represent
INEXACT_ADVICE = "subtract a whole number near all of them first, or leave the column out if it is an identifier"


@contextmanager
def require_extra(name: str, requirement: str) -> Iterator[None]:
    """Replace an ImportError inside a with statement by a ConfigError: the requirement, and the extra to install."""
    try:
        yield
    except ImportError:
        advice = f"run pip install '.[{name}]' in the repository"
        raise ConfigError(f"{requirement}, which is not installed; {advice}") from None


@dataclass(frozen=True)
class ColumnSelection:
    """Keys of a node-config that decide which columns of a file are features, by name or number from 0.

    ``columns`` and ``leave_out`` are lists with commas, patterns (``gene_*``), and quotes around names with a comma.
    """

    label: str = ""  # no feature; empty: none
    ids: str = ""  # no feature; empty: none
    texts: Sequence[str] = ()  # columns of categories, which are no features either
    columns: str = ""  # the only features; empty: all others
    leave_out: str = ""  # no features

    @property
    def keys(self) -> dict[str, str]:
        """Keys of the selection that are set, as texts."""
        values = {"label": self.label, "ids": self.ids, "categories": ", ".join(self.texts)}
        values |= {"columns": self.columns, "leave_out": self.leave_out}
        return {key: text for key, text in values.items() if text}

    def positions(self, names: list[str], width: int, *, strict: bool = True) -> list[int]:
        """Return the ascending positions, from 0, of the features among ``width`` columns, named or with no names."""
        by_name: dict[str, list[int]] = {}  # a look-up, as a site may name thousands of columns
        for position, name in enumerate(names):
            by_name.setdefault(name, []).append(position)
        selected: list[int] = []
        excluded: set[int] = set()
        for key, text in self.keys.items():
            is_single = key in ("label", "ids")
            items = [text] if is_single else self.texts if key == "categories" else split_names(text)
            for item in items:
                try:
                    matches = by_name.get(item) or column_positions(item, names, width, key)
                except ConfigError:
                    if strict:
                        raise
                    continue
                if key == "columns":
                    selected += matches
                else:
                    excluded.update(matches[:1] if is_single else matches)
        included = set(selected) if self.columns and (strict or selected) else set(range(width))
        features = sorted(included - excluded)
        if strict and width and not features:
            raise DataError("every column is left out, expected at least one feature")
        return features


def join_items(previous: str, items: Iterable[object]) -> str:
    """Join the value of a key with further items, names with a comma in quotes."""
    return ", ".join([previous] * bool(previous) + [f'"{item}"' if "," in str(item) else str(item) for item in items])


def column_positions(item: str, names: list[str], width: int, key: str) -> list[int]:
    """Return the positions of all columns that an item selects: by name, else by number from 0, else by pattern."""
    if item in names:
        return [position for position, name in enumerate(names) if name == item]
    if item.isdecimal() and int(item) < width:
        return [int(item)]
    positions = [position for position, name in enumerate(names) if fnmatchcase(name, item)]
    if item and positions and key not in ("label", "ids", "weights"):
        return positions
    raise ConfigError(
        f"'{key}' names no column of the data (expected a column's name, or its number from 0"
        f"{'' if key in ('label', 'ids', 'weights') else ', or a pattern such as gene_*'})",
        local=f"{key} '{item}'; {columns_text(np.ones(width, dtype=bool), names)}",
    )


def order_features(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table with columns in the order of the run-config's `features`, or raise DataError if they differ.

    A run that could choose among a site's columns could ask about the same rows in parts: all must be the run's.
    """
    local_names, features = [name.strip() for name in table.names], config.feature_names
    if local_names == list(features):
        return table
    if not local_names:
        raise DataError(
            "the run names its features (run-config 'features'), but the columns of this site's data have no names; "
            "give it names: a data frame, or a file such as .csv with a header"
        )
    lacking, surplus, order = match_labels(local_names, features)
    if lacking or surplus or len(local_names) > len(features):
        raise DataError(
            f"this site's data lack {len(lacking)} of the run's {len(features)} features (run-config 'features'), and "
            f"have {len(local_names) - len(features) + len(lacking)} other columns: rename columns, or leave out "
            "those that the run does not name",
            local=f"lacking: {labels_text(lacking) or 'none'}; besides: {labels_text(surplus) or 'none'}",
        )
    positions = np.array(order)
    rows, missing = select_columns(table.rows, positions), table.missing[positions]
    return table._replace(rows=rows, missing=missing, names=tuple(features), order=positions)


def restore_column_order(table: Table, rows: Rows) -> Rows:
    """Return rows (n, d) of a reordered table with columns in the order of the site's file."""
    return rows if table.order is None else select_columns(rows, np.argsort(table.order))
