"""Levels of categories that sites agree on before a run, by files that each site checks before handing its file on."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedpca_flwr.config.run_config import split_names
from fedpca_flwr.data.categories import differing_level_notes, frequent_levels, union_of_levels
from fedpca_flwr.errors import DataError
from fedpca_flwr.site.readers.files import read, read_texts


def table_levels(path: str, categories: str, label: str, min_rows: int) -> dict[str, list[str]]:
    """Return, for each column of categories (separated by commas), the levels that at least `min_rows` rows have.

    Raise ConfigError or DataError if the file cannot be read, or has no such column of texts.
    """
    columns = split_names(categories)
    rows = len(read(path, label, texts=columns).rows)
    return {column: frequent_levels(read_texts(path, column, rows, label), min_rows) for column in columns}


def merge_levels(paths: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the union of several sites' levels by column, and notes on levels that sites seem to name differently.

    The files are what ``site levels FILE --categories`` prints. Raise DataError if a file cannot be read as levels.
    """
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
