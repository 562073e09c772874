"""Digits of ten kinds, divided among five parties in three ways."""

import numpy as np
from sklearn.datasets import load_digits

DATA, LABELS = (array[:600] for array in load_digits(return_X_y=True))
ROWS = DATA[:, np.flatnonzero(DATA.std(axis=0) > 2)[:20]]


def _dirichlet() -> list[np.ndarray]:
    """Divide each digit's rows in proportions that differ between the parties (Dirichlet 0.1, from 12 rows each)."""
    rng = np.random.default_rng(1)
    while True:
        owners = np.empty(len(LABELS), int)
        for label in range(10):
            owners[label == LABELS] = rng.choice(5, (label == LABELS).sum(), p=rng.dirichlet([0.1] * 5))
        parts = [np.flatnonzero(owners == party) for party in range(5)]
        if min(map(len, parts)) >= 12:
            return parts


PARTITIONS = {
    "iid": np.array_split(np.random.default_rng(0).permutation(len(ROWS)), 5),
    "dirichlet": _dirichlet(),
    "shards": np.array_split(np.argsort(LABELS, kind="stable"), 5),
}
