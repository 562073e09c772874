"""Levels of categories that sites agree on before a run, by files that each site checks before handing its file on."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig, split_names
from fedpca_flwr.data.categories import (
    append_indicators,
    differing_level_notes,
    frequent_levels,
    level_notes,
    union_of_levels,
)
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import DataError
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site.readers.files import holds_texts, read, read_texts


def add_levels(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return a file's table with indicators of the run's levels, and log a warning on unlike levels."""
    if not holds_texts(node.data):
        return table
    levels = config.levels_by_column
    keys = {"ids": node.ids, "texts": node.category_names, **node.file_keys}
    cells = {column: read_texts(node.data, column, len(table.rows), node.label, **keys) for column in levels}
    encoded = append_indicators(table, cells, levels, node.min_rows, node.round_rows)
    for note in level_notes({"this site": encoded}, levels):
        site_logger.warning("%s", note)
    return encoded._replace(split=table.split, digest=table.digest)


def table_levels(path: str, categories: str, label: str, min_rows: int) -> dict[str, list[str]]:
    """Return, for each column of texts that `categories` names, the levels that at least `min_rows` rows have."""
    columns = split_names(categories)
    rows = len(read(path, label, texts=columns, site=True).rows)
    return {column: frequent_levels(read_texts(path, column, rows, label), min_rows) for column in columns}


def merge_levels(paths: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the union of the levels that files have, and notes on unlike names; raise DataError for other files."""
    levels_by_file: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{Path(path)} cannot be read as a file of levels: {error}") from None
        if not isinstance(content, dict) or not all(isinstance(levels, list) for levels in content.values()):
            raise DataError(
                f"{Path(path)} holds no levels by column, expected what 'site levels FILE --categories' prints"
            )
        levels_by_file[path] = {column: list(map(str, levels)) for column, levels in content.items()}
    return union_of_levels(levels_by_file.values()), differing_level_notes(levels_by_file)
