"""The levels of categories that sites agree on before a run, by files that each site reads before it hands them on."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedpca_flwr.config.run_config import names_in
from fedpca_flwr.data.categories import found_levels, union, unlike_levels
from fedpca_flwr.errors import DataError
from fedpca_flwr.site.readers import read, read_texts


def of_table(path: str, categories: str, label: str, least: int) -> dict[str, list[str]]:
    """By column the levels that at least so many rows of a site's .csv or .parquet file have."""
    columns = names_in(categories)
    rows = len(read(path, label, texts=columns).rows)
    return {column: found_levels(read_texts(path, column, rows, label), least) for column in columns}


def together(paths: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return all levels in several files of this kind, and notes on files whose levels seem to be named otherwise."""
    told = {path: _told(Path(path)) for path in paths}
    return union(told.values()), unlike_levels(told)


def _told(path: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a file of levels: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(own, list) for own in found.values()):
        raise DataError(f"{path} holds no levels by column, expected what 'site levels FILE --categories' prints")
    return {column: [str(level) for level in own] for column, own in found.items()}
