"""Partition of a data set among simulated parties: seeded, every row or feature exactly once, no empty party."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths.arrays import Array

Parts = list[NDArray[np.int64]]

MIN_PARTY_ROWS = 10  # of a party, or an even share if fewer, to which an uneven draw is topped up from the largest


def split_columns(features: int, parties: int, how: str, names: Sequence[str] = ()) -> Parts:
    """Split features: ``how`` is "even", sizes ("20 20 24"), or names of columns ("a, b; c, d"); else ConfigError."""
    if how == "even":
        if parties > features:
            raise ConfigError(f"{parties} parties cannot share {features} features: use at most {features} parties")
        return np.array_split(np.arange(features), parties)
    if re.fullmatch(r"[\s,]*(\d{1,9}[\s,]+)*(\d{1,9})?", how):
        sizes = [int(size) for size in how.replace(",", " ").split()]
        if len(sizes) != parties or sum(sizes) != features or min(sizes) < 1:
            raise ConfigError(
                f"run-config: 'columns' is {value_text(how)}, expected {parties} sizes from 1 (one a party) that add "
                f"up to the {features} features"
            )
        return np.split(np.arange(features), np.cumsum(sizes)[:-1])
    groups = [[name.strip() for name in group.split(",")] for group in how.split(";")]
    every = [name for group in groups for name in group]
    if not names or len(groups) != parties or sorted(every) != sorted(names):
        faults = sorted(set(every) ^ set(names)) or sorted({name for name in every if every.count(name) > 1})
        fault = f"; at fault: {value_text(faults[:5])}" if names and faults else ""
        nameless = "sizes, or 'even': the data set's columns have no names"
        expected = "every name of the data set once" if names else nameless
        raise ConfigError(
            f"run-config: 'columns' names {len(every)} columns in {len(groups)} groups, expected {parties} groups "
            f"(separated by ';') with {expected}{fault}"
        )
    return [np.array([list(names).index(name) for name in group]) for group in groups]


PARTITIONS = ("iid", "dirichlet", "shards", "quantity")

WITH_ALPHA = ("dirichlet", "quantity")  # partitions that have an alpha


def split(
    labels: NDArray[Any], parties: int, *, kind: str, seed: int, alpha: float = 0.1, shards_per_party: int = 2
) -> Parts:
    """Split rows among parties at random; raise ConfigError for more parties than rows, or another ``kind``.

    ``iid``: equal parts. ``dirichlet``: the rows of each label by a draw from Dirichlet(alpha) (Hsu, Qi and Brown 2019,
    arXiv:1909.06335). ``shards``: equal shards of sorted labels (McMahan et al. 2017). ``quantity``: sizes from
    Dirichlet(alpha), and rows at random.
    """
    if parties > len(labels):
        raise ConfigError(f"{parties} parties cannot share {len(labels)} rows: use at most {len(labels)} parties")
    rng = np.random.default_rng(seed)
    match kind:
        case "iid":
            parts = np.array_split(rng.permutation(len(labels)), parties)
        case "dirichlet":
            classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
            pieces = [_cut_by_shares(rows, rng.dirichlet(np.full(parties, alpha))) for rows in classes]
            parts = [np.concatenate(party_pieces) for party_pieces in zip(*pieces, strict=True)]
        case "shards":
            by_label = rng.permutation(len(labels))
            by_label = by_label[np.argsort(labels[by_label], kind="stable")]
            shards = np.array_split(by_label, parties * shards_per_party)
            hands = rng.permutation(len(shards)).reshape(parties, shards_per_party)
            parts = [np.concatenate([shards[i] for i in hand]) for hand in hands]
        case "quantity":
            parts = _cut_by_shares(rng.permutation(len(labels)), rng.dirichlet(np.full(parties, alpha)))
        case _:
            raise ConfigError(f"the partition is {value_text(kind)}, expected one of: {', '.join(PARTITIONS)}")
    return [np.sort(part) for part in _top_up(parts)]


def _cut_by_shares(rows: NDArray[np.int64], shares: Array) -> Parts:
    """Cut rows into consecutive pieces, in proportion to ``shares``."""
    return np.split(rows, np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int))


def _top_up(parts: Parts) -> Parts:
    """Move rows from the largest parties to parties with fewer than `MIN_PARTY_ROWS` (or an even share of) rows."""
    min_rows = min(MIN_PARTY_ROWS, sum(map(len, parts)) // len(parts))
    for i in range(len(parts)):
        while (short := min_rows - len(parts[i])) > 0:
            largest = max(range(len(parts)), key=lambda j: len(parts[j]))
            take = min(short, len(parts[largest]) - min_rows)
            parts[i] = np.concatenate([parts[i], parts[largest][-take:]])
            parts[largest] = parts[largest][:-take]
    return parts
