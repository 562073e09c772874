"""The file of kept moments: an archive (`fedpca_flwr.archive`) that its owner only may read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr import archive
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.member_moments import checked_moments

TEXT, FORMAT = "second-moments.json", 1
MOST_ROWS = 2**53
"""Whole numbers up to it are what float64 takes them for."""

ARRAYS = ("mean", "remainder", "scatter")


class Kept(NamedTuple):
    """What the file holds; `fedpca_flwr.second_moments.SecondMoments` says what each is."""

    moments: Moments
    features: tuple[str, ...]
    parties: Mapping[str, Moments]
    missed: Array


def write(path: str | os.PathLike[str], kept: Kept) -> Path:
    """Write it whole or not at all; ``.npz`` is appended."""
    target = _file(path)
    arrays = {"missed": kept.missed}
    for prefix, moments in _prefixed(list(kept.parties.values()), kept.moments):
        arrays |= {f"{prefix}{name}": getattr(moments, name) for name in ARRAYS}
    about = {
        "format": FORMAT,
        "features": list(kept.features),
        "parties": list(kept.parties),
        "rows": [moments.count for moments in (kept.moments, *kept.parties.values())],
    }
    archive.write(target, arrays, about, text=TEXT, mode=0o600)
    return target


def read(path: str | os.PathLike[str]) -> Kept:
    """What `write` wrote.

    Raises
    ------
    DataError
        Where there is no such file.
    ContractError
        Where it holds something else.
    """
    target = _file(path)
    if not target.exists():
        raise DataError(f"there are no moments at {target}")
    try:
        arrays, about = archive.read(target, text=TEXT)
        version = about["format"]
        kept = _whole(arrays, about) if version == FORMAT else None
    except archive.TooLargeError:
        raise
    except Exception as error:  # what is in the file may be anything
        raise ContractError(f"{target} is not a whole file of moments ({type(error).__name__})") from None
    if kept is None:
        raise ContractError(f"{target}: the format is {version!r}, not {FORMAT}; which version wrote it?")
    return kept


def _whole(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> Kept:
    names = about["parties"]
    whole, *parties = (
        checked_moments("this file", Moments(_count(rows), *(_floats(arrays[f"{prefix}{name}"]) for name in ARRAYS)))
        for (prefix, _), rows in zip(_prefixed(names, None), about["rows"], strict=True)
    )
    if parties and sum(party.count for party in parties) != whole.count:
        raise ValueError("the parties' rows are not all rows")
    if any(one.count == 1 and one.diagonal().any() for one in (whole, *parties)):
        raise ValueError("a single row does not vary")
    missed = _floats(arrays["missed"])
    if missed.shape != whole.mean.shape or any(party.n_features != whole.n_features for party in parties):
        raise ValueError("its parts are not of the same features")
    features = tuple(map(str, about["features"]))
    return Kept(whole, features, dict(zip(map(str, names), parties, strict=True)), missed)


def _prefixed(parties: list[Any], whole: Any) -> list[tuple[str, Any]]:
    """What the names of the arrays begin with: nothing for all rows, a number for a party."""
    return [("", whole), *((f"party-{i}-", party) for i, party in enumerate(parties))]


def _count(rows: Any) -> int:
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise ValueError("a number of rows is none")
    return rows


def _floats(array: NDArray[Any]) -> Array:
    if array.dtype != np.float64 or array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError("an array is not one of finite float64")
    return array


def _file(path: str | os.PathLike[str]) -> Path:
    target = Path(path).expanduser()
    if target.is_dir() or not target.name:
        raise ConfigError(f"moments are kept in a file, and {target} is a folder; give a name in it")
    return target if target.suffix == ".npz" else target.with_name(target.name + ".npz")
