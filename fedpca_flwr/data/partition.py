"""How simulated parties share a data set: seeded, every row (or every feature) exactly once, no empty party.

Each function that splits rows takes the labels (n,) and returns one sorted index array per party.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array

Parts = list[NDArray[np.int64]]

FEWEST_ROWS = 10
"""An uneven draw is topped up from the largest party until every party has so many rows, or an even share if fewer."""


def iid(labels: NDArray[Any], parties: int, *, rng: np.random.Generator) -> Parts:
    """Shuffle, then cut into equal parts."""
    return _sorted(np.array_split(rng.permutation(len(labels)), parties))


def dirichlet(labels: NDArray[Any], parties: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """Each label's rows are shared out by a draw from Dirichlet(alpha): the smaller alpha, the more uneven.

    Hsu, Qi and Brown (2019), arXiv:1909.06335, as in NIID-Bench.
    """
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    pieces = [_cut(rows, rng.dirichlet(np.full(parties, alpha))) for rows in classes]
    return _sorted(_topped_up([np.concatenate(own) for own in zip(*pieces, strict=True)]))


def shards(labels: NDArray[Any], parties: int, *, shards_per_party: int, rng: np.random.Generator) -> Parts:
    """Sort by label, cut into equal shards, deal them out: each party sees a few labels (McMahan et al. 2017)."""
    by_label = rng.permutation(len(labels))
    by_label = by_label[np.argsort(labels[by_label], kind="stable")]
    pieces = np.array_split(by_label, parties * shards_per_party)
    dealt = rng.permutation(len(pieces)).reshape(parties, shards_per_party)
    return _sorted(_topped_up([np.concatenate([pieces[i] for i in hand]) for hand in dealt]))


def quantity(labels: NDArray[Any], parties: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """Sizes from Dirichlet(alpha), rows at random: uneven in number, alike in content."""
    parts = _cut(rng.permutation(len(labels)), rng.dirichlet(np.full(parties, alpha)))
    return _sorted(_topped_up(parts))


def split_columns(features: int, parties: int, how: str, names: Sequence[str] = ()) -> Parts:
    """Split features among parties, each exactly once.

    Parameters
    ----------
    how : str
        ``"even"`` (consecutive, sizes that differ by one at most), a size for each party (``"20 20 24"``), or the
        names of each party's columns (``"a, b; c, d"``).
    names : sequence of str
        Of the features, where the data set has any.

    Raises
    ------
    ConfigError
    """
    if how == "even":
        if parties > features:
            raise ConfigError(f"{parties} parties cannot share {features} features: use at most {features} parties")
        return np.array_split(np.arange(features), parties)
    if re.fullmatch(r"[\s,]*(\d{1,9}[\s,]+)*(\d{1,9})?", how):
        sizes = [int(size) for size in how.replace(",", " ").split()]
        if len(sizes) != parties or sum(sizes) != features or min(sizes) < 1:
            raise ConfigError(
                f"run-config: 'columns' is '{how}', expected {parties} sizes from 1 (one a party) that add up to the "
                f"{features} features"
            )
        return np.split(np.arange(features), np.cumsum(sizes)[:-1])
    return _named(how, parties, names)


def _named(how: str, parties: int, names: Sequence[str]) -> Parts:
    wanted = [[name.strip() for name in group.split(",")] for group in how.split(";")]
    every = [name for group in wanted for name in group]
    if not names or len(wanted) != parties or sorted(every) != sorted(names):
        faults = sorted(set(every) ^ set(names)) or sorted({name for name in every if every.count(name) > 1})
        said = f"; at fault: {', '.join(faults[:5])}" if names and faults else ""
        known = "every name of the data set once" if names else "sizes, or 'even': the data set's columns have no names"
        raise ConfigError(
            f"run-config: 'columns' names {len(every)} columns in {len(wanted)} groups, expected {parties} groups "
            f"(separated by ';') with {known}{said}"
        )
    return [np.array([list(names).index(name) for name in group]) for group in wanted]


PARTITIONS = ("iid", "dirichlet", "shards", "quantity")


def split(
    labels: NDArray[Any], parties: int, *, kind: str, seed: int, alpha: float = 0.1, shards_per_party: int = 2
) -> Parts:
    """Split rows among parties.

    Parameters
    ----------
    labels : ndarray of shape (n,)
    parties : int
        At most n.
    kind : {"iid", "dirichlet", "shards", "quantity"}
    alpha : float
        For ``dirichlet`` and ``quantity``.
    shards_per_party : int
        For ``shards``.

    Returns
    -------
    list of ndarray
        Sorted row indices of each party; together every row exactly once.
    """
    if parties > len(labels):
        raise ConfigError(f"{parties} parties cannot share {len(labels)} rows: use at most {len(labels)} parties")
    kinds: dict[str, Callable[..., Parts]] = {
        "iid": iid,
        "dirichlet": partial(dirichlet, alpha=alpha),
        "shards": partial(shards, shards_per_party=shards_per_party),
        "quantity": partial(quantity, alpha=alpha),
    }
    return kinds[kind](labels, parties, rng=np.random.default_rng(seed))


def _cut(rows: NDArray[np.int64], shares: Array) -> Parts:
    """Consecutive pieces of ``rows``, in proportion to ``shares``."""
    return np.split(rows, np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int))


def _topped_up(parts: Parts) -> Parts:
    wanted = min(FEWEST_ROWS, sum(map(len, parts)) // len(parts))
    for i in range(len(parts)):
        while (short := wanted - len(parts[i])) > 0:
            largest = max(range(len(parts)), key=lambda j: len(parts[j]))
            take = min(short, len(parts[largest]) - wanted)
            parts[i] = np.concatenate([parts[i], parts[largest][-take:]])
            parts[largest] = parts[largest][:-take]
    return parts


def _sorted(parts: Parts) -> Parts:
    return [np.sort(part) for part in parts]
