"""The data of a comparison: a data set by its name, or tables that somebody handed over, a table for each party."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.data import datasets
from fedpca_flwr.data.frames import as_array
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.simulations.parties import Parties, parties_of, read_parties
from fedpca_flwr.site.readers.file_format import FORMATS, file_suffix

HELD_TABLES: dict[str, Parties] = {}  # tables of this process by the name of their data set, which has their digest


def hand_over(parties: Any) -> str:
    """Store the parties' tables in this process as a data set, and return its name, with a digest of the tables."""
    parties_data = parties_of(read_parties(parties), "rows")
    digest = hashlib.sha256()
    for rows in (as_array(part, "a table") for part in parties_data.rows):
        digest.update(repr((rows.shape, rows.dtype.str)).encode() + np.ascontiguousarray(rows).tobytes())
    name = f"{len(parties_data.rows)} tables ({digest.hexdigest()[:8]})"
    HELD_TABLES[name] = parties_data
    return name


def files_of(paths: Sequence[str]) -> list[str]:
    """Return the absolute paths of the parties' files; a folder stands for the readable files inside, ordered by name.

    Raise ConfigError if a path does not exist, or a folder holds no readable file.
    """
    if missing := [text for text in paths if not Path(text).expanduser().exists()]:
        raise ConfigError(f"there is no file or folder {', '.join(missing)}; name those that hold the parties' rows")
    files: list[str] = []
    for path in (Path(text).expanduser().resolve() for text in paths):
        inside = (
            [file for file in sorted(path.iterdir()) if file_suffix(file)]
            if path.is_dir() and not file_suffix(path)
            else [path]
        )
        if not inside:
            raise ConfigError(f"the folder {path} holds no file of rows, expected: {', '.join(FORMATS)}")
        files += map(str, inside)
    return files


def name_parties(dataset: str, parties: Sequence[Any]) -> Any:
    """Return the parties' rows by name if the data set has as many tables with names, else the rows unchanged."""
    keys = HELD_TABLES[dataset].keys if dataset in HELD_TABLES else []
    return dict(zip(keys, parties, strict=True)) if len(keys) == len(parties) else parties


def load(dataset: str, root: str) -> datasets.Dataset:
    """Load a data set by name, or tables that `hand_over` stored or ``root`` lists, with party numbers as labels.

    Raise ConfigError if the tables are not there, or have changed.
    """
    if dataset in datasets.DATASETS:
        return datasets.load(dataset, root)
    if dataset not in HELD_TABLES and root != ".":
        hand_over(root.split(os.pathsep))
    if dataset not in HELD_TABLES:
        missing = "the files hold other rows now" if root != "." else "they were handed over in another process"
        raise ConfigError(f"the rows of '{dataset}' are not there: {missing}; compare again")
    parties_data = HELD_TABLES[dataset]
    rows = np.vstack([as_array(part, "a table") for part in parties_data.rows])
    labels = np.repeat(np.arange(len(parties_data.rows)), [part.shape[0] for part in parties_data.rows])
    return datasets.Dataset(labels, lambda indices: rows[indices], names=parties_data.names[0])
