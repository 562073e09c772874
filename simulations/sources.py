"""The data of a comparison: a data set by its name, or tables that somebody handed over, one for each party."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.data import datasets
from fedpca_flwr.data.frames import as_array
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.simulations.parties import Parties, parties_of
from fedpca_flwr.site import readers

HANDED: dict[str, Parties] = {}
"""The tables of this process by the name of their data set, which has a digest of them."""


def hand_over(parties: Any) -> str:
    """Keep the parties' tables for this process: the name of their data set."""
    given = parties_of(parties, "rows")
    digest = hashlib.sha256()
    for rows in (as_array(part, "a table") for part in given.rows):
        digest.update(repr((rows.shape, rows.dtype.str)).encode() + np.ascontiguousarray(rows).tobytes())
    name = f"{len(given.rows)} tables ({digest.hexdigest()[:8]})"
    HANDED[name] = given
    return name


def files_of(paths: Sequence[str]) -> list[str]:
    """The files that are the parties': those named, and of a folder all whose kind a site can read, by their names."""
    if gone := [text for text in paths if not Path(text).expanduser().exists()]:
        raise ConfigError(f"there is no file or folder {', '.join(gone)}; name those that hold the parties' rows")
    found: list[str] = []
    for path in (Path(text).expanduser().resolve() for text in paths):
        inside = [file for file in sorted(path.iterdir()) if readers.file_suffix(file)] if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"the folder {path} holds no file of rows, expected: {', '.join(readers.FORMATS)}")
        found += map(str, inside)
    return found


def tables_of(files: Sequence[str]) -> dict[str, Any]:
    """The table in each file, by the file's name without its ending; the faults of all files at once."""
    tables: dict[str, Any] = {}
    faults = []
    for file in map(Path, files):
        stem = file.name[: -len(readers.file_suffix(file))] or file.stem
        name = stem if stem not in tables else f"{stem} {len(tables)}"
        try:
            tables[name] = readers.read(str(file))
        except FedPCAError as error:
            faults.append(f"{file}: {error}{f' ({error.local})' if error.local else ''}")
    if faults:
        raise ConfigError("\n".join(faults))
    return tables


def by_party(dataset: str, parties: Sequence[Any]) -> Any:
    """The parties of a run by their names, where those of these tables have any and are as many."""
    keys = HANDED[dataset].keys if dataset in HANDED else []
    return dict(zip(keys, parties, strict=True)) if len(keys) == len(parties) else parties


def load(dataset: str, root: str) -> datasets.Dataset:
    """A data set; of tables that were handed over, the label of a row is its party's number."""
    if dataset in datasets.DATASETS:
        return datasets.load(dataset, root)
    if dataset not in HANDED and root != ".":
        hand_over(tables_of(root.split(os.pathsep)))
    if dataset not in HANDED:
        gone = "the files hold other rows now" if root != "." else "they were handed over in another process"
        raise ConfigError(f"the rows of '{dataset}' are not there: {gone}; compare again")
    given = HANDED[dataset]
    rows = np.vstack([as_array(part, "a table") for part in given.rows])
    labels = np.repeat(np.arange(len(given.rows)), [part.shape[0] for part in given.rows])
    return datasets.Dataset(labels, lambda indices: rows[indices], names=given.names[0])
