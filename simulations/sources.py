"""The data of a comparison: a data set by its name, or tables that somebody handed over: of each party, or of all."""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.frames import as_array, column_labels, pop_column
from fedpca_flwr.data.table import labels_text
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.simulations.parties import parties_of, read_parties
from fedpca_flwr.site.readers.file_format import FORMATS, file_suffix

# data sets of this process and the names of their parties, by the name of the data set, which has the tables' digest
HELD_TABLES: dict[str, tuple[datasets.Dataset, list[str]]] = {}


def hand_over(parties: Any) -> str:
    """Store the parties' tables in this process as a data set, and return its name; ConfigError for other widths."""
    parties_data = parties_of(read_parties(parties), "rows", complete=True)
    tables = [as_array(part, "a table") for part in parties_data.rows]
    if len(widths := {table.shape[1] for table in tables}) > 1:
        raise ConfigError(
            f"comparison: the parties' tables have {', '.join(map(str, sorted(widths)))} columns, expected the same "
            "columns at every party. For methods of columns, give one table of all columns, which the parties share: "
            "compare(table=X, methods='vertical', clients=2)"
        )
    labels = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return _hold(f"{len(tables)} tables", np.vstack(tables), labels, parties_data.names[0], parties_data.keys)


def hand_over_table(table: Any, label: Any) -> str:
    """Store a table in this process as a data set with labels, and return its name; or raise ConfigError."""
    labels: Any = label
    if isinstance(label, str):
        popped = pop_column(table, label)
        if popped is None:
            names = labels_text(column_labels(table)) or "none: read a file by pandas.read_csv"
            raise ConfigError(f"comparison: 'label' is {value_text(label)}, expected a column of the table ({names})")
        labels, table = popped
    parties_data = parties_of({"table": table}, "rows", complete=True)
    rows = as_array(parties_data.rows[0], "the table")
    texts = np.array(list(map(str, labels))) if label is not None else np.zeros(len(rows), int)
    if len(texts) != len(rows):
        raise ConfigError(f"comparison: 'label' has {len(texts)} values, expected one for each of the {len(rows)} rows")
    return _hold(f"{len(rows)} rows", rows, texts, parties_data.names[0], [])


def scale(dataset: str, root: str) -> str:
    """Store a data set with features divided by their deviations (1 if constant), and return its name."""
    source = load(dataset, root)
    rows = np.asarray(source.all_rows(), dtype=np.float64)
    unit = np.where(np.ptp(rows, axis=0) > 0, rows.std(axis=0), 1.0)
    scaled = rows / unit
    test = partial(_divided, source.test, unit) if source.test else None
    held = datasets.Dataset(source.labels, scaled.__getitem__, test, source.names)
    HELD_TABLES[f"{dataset}, scaled"] = held, HELD_TABLES[dataset][1] if dataset in HELD_TABLES else []
    return f"{dataset}, scaled"


def _divided(read: Callable[[], tuple[NDArray[Any], NDArray[Any]]], unit: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of a test set, divided by units (d,), and their labels."""
    rows, labels = read()
    return rows / unit, labels


def _hold(what: str, rows: NDArray[Any], labels: NDArray[Any], names: tuple[str, ...], parties: list[str]) -> str:
    """Store rows and labels as a data set, and return its name: what it is, and a digest of both."""
    digest = hashlib.sha256(repr((rows.shape, rows.dtype.str, labels.tolist())).encode())
    digest.update(np.ascontiguousarray(rows).tobytes())
    name = f"{what} ({digest.hexdigest()[:8]})"
    HELD_TABLES[name] = datasets.Dataset(labels, rows.__getitem__, names=names), parties
    return name


def files_of(paths: Sequence[str]) -> list[str]:
    """Return the absolute paths of the parties' files; a folder stands for the readable files inside, by name."""
    if missing := [text for text in paths if not Path(text).expanduser().exists()]:
        raise ConfigError(f"there is no file or folder {', '.join(missing)}; name those that hold the parties' rows")
    files: list[str] = []
    for path in (Path(text).expanduser().resolve() for text in paths):
        is_folder = path.is_dir() and not file_suffix(path)
        inside = [file for file in sorted(path.iterdir()) if file_suffix(file)] if is_folder else [path]
        if not inside:
            raise ConfigError(f"the folder {path} holds no file of rows, expected: {', '.join(FORMATS)}")
        files += map(str, inside)
    return files


def name_parties(dataset: str, parties: Sequence[Any]) -> Any:
    """Return the parties' rows by name if the data set has as many tables with names, else the rows unchanged."""
    keys = HELD_TABLES[dataset][1] if dataset in HELD_TABLES else []
    return dict(zip(keys, parties, strict=True)) if len(keys) == len(parties) else parties


def load(dataset: str, root: str) -> datasets.Dataset:
    """Load a data set by name, or tables that are held or that ``root`` lists; ConfigError if they have changed."""
    if dataset in datasets.DATASETS:
        return datasets.load(dataset, root)
    if dataset not in HELD_TABLES and root != ".":
        hand_over(root.split(os.pathsep))
    if dataset not in HELD_TABLES:
        missing = "the files hold other rows now" if root != "." else "they were handed over in another process"
        raise ConfigError(f"the rows of '{dataset}' are not there: {missing}; compare again")
    return HELD_TABLES[dataset][0]
