"""How simulated parties share a data set: seeded, every row exactly once, no empty party.

Each function takes the labels (n,) and returns one sorted index array per party.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError

Parts = list[NDArray[np.int64]]

FEWEST_ROWS = 10
"""An uneven draw is topped up from the largest party until every party has so many rows, or an even share if fewer."""


def iid(labels: NDArray, parties: int, *, rng: np.random.Generator) -> Parts:
    """Shuffle, then cut into equal parts."""
    return _sorted(np.array_split(rng.permutation(len(labels)), parties))


def dirichlet(labels: NDArray, parties: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """Each label's rows are shared out by a draw from Dirichlet(alpha): the smaller alpha, the more uneven.

    Hsu, Qi and Brown (2019), arXiv:1909.06335, as in NIID-Bench.
    """
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    pieces = [_cut(rows, rng.dirichlet(np.full(parties, alpha))) for rows in classes]
    return _sorted(_topped_up([np.concatenate(own) for own in zip(*pieces, strict=True)]))


def shards(labels: NDArray, parties: int, *, shards_per_party: int, rng: np.random.Generator) -> Parts:
    """Sort by label, cut into equal shards, deal them out: each party sees a few labels (McMahan et al. 2017)."""
    by_label = rng.permutation(len(labels))
    by_label = by_label[np.argsort(labels[by_label], kind="stable")]
    pieces = np.array_split(by_label, parties * shards_per_party)
    dealt = rng.permutation(len(pieces)).reshape(parties, shards_per_party)
    return _sorted(_topped_up([np.concatenate([pieces[i] for i in hand]) for hand in dealt]))


def quantity(labels: NDArray, parties: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """Sizes from Dirichlet(alpha), rows at random: uneven in number, alike in content."""
    parts = _cut(rng.permutation(len(labels)), rng.dirichlet(np.full(parties, alpha)))
    return _sorted(_topped_up(parts))


PARTITIONS = ("iid", "dirichlet", "shards", "quantity")


def split(
    labels: NDArray, parties: int, *, kind: str, seed: int, alpha: float = 0.1, shards_per_party: int = 2
) -> Parts:
    """Split rows among parties.

    Parameters
    ----------
    labels : ndarray of shape (n,)
    parties : int
        At most n.
    kind : {"iid", "dirichlet", "shards", "quantity"}
    seed : int
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


def _cut(rows: NDArray, shares: NDArray) -> Parts:
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
