"""Rows of many kinds, and their cuts into parties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Base = Callable[[Generator, int, int], NDArray[Any]]
Change = Callable[[Generator, NDArray[Any]], NDArray[Any]]


def with_spectrum(rng: Generator, n: int, d: int, values: NDArray[Any]) -> NDArray[Any]:
    """Centred rows (n, d) with these singular values, up to rounding; along the axes as often as not."""
    r = min(n - 1, d)
    left = rng.standard_normal((n, r))
    left, _ = np.linalg.qr(left - left.mean(axis=0))
    right = np.eye(d) if rng.random() < 0.3 else np.linalg.qr(rng.standard_normal((d, d))).Q
    rows: NDArray[Any] = (left * values[:r]) @ right[:, :r].T
    return rows


def _decaying(rng: Generator, n: int, d: int) -> NDArray[Any]:
    falling = rng.standard_normal((n, d)) / np.arange(1, d + 1)
    rows: NDArray[Any] = falling @ np.linalg.qr(rng.standard_normal((d, d))).Q
    return rows


def _tied(rng: Generator, n: int, d: int) -> NDArray[Any]:
    levels = np.sort(rng.choice([100.0, 5.0, 3.0, 2.0, 1.0], size=rng.integers(1, 4), replace=False))[::-1]
    return with_spectrum(rng, n, d, np.sort(rng.choice(levels, size=d))[::-1])


def _clustered(rng: Generator, n: int, d: int) -> NDArray[Any]:
    return with_spectrum(rng, n, d, 1.0 + 10.0 ** -rng.integers(2, 12) * np.arange(d)[::-1])


def _geometric(rng: Generator, n: int, d: int) -> NDArray[Any]:
    return with_spectrum(rng, n, d, 10.0 ** (-rng.uniform(0.1, 2.0) * np.arange(d)))


def _low_rank(rng: Generator, n: int, d: int) -> NDArray[Any]:
    rank = int(rng.integers(1, d + 1))
    return rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))


def _indicators(rng: Generator, n: int, d: int) -> NDArray[Any]:
    return (rng.random((n, d)) < rng.uniform(0.02, 0.6, d)).astype(np.float64)


BASES: dict[str, Base] = {
    "decaying": _decaying,
    "isotropic": lambda rng, n, d: rng.standard_normal((n, d)),
    "tied": _tied,
    "clustered": _clustered,
    "geometric": _geometric,
    "low rank": _low_rank,
    "indicators": _indicators,
    "heavy tails": lambda rng, n, d: rng.standard_cauchy((n, d)),
    "one-hot": lambda rng, n, d: np.eye(d)[rng.integers(0, d, n)],
}
"""Rows (n, d)."""


def _units(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    scaled: NDArray[Any] = X * 10.0 ** rng.uniform(-12, 12, X.shape[1])
    return scaled


def _salary(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    X = X.copy()
    X[:, rng.integers(X.shape[1])] *= 10.0 ** rng.integers(4, 13)
    return X


def _time_stamps(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    X = X.copy()
    X[:, rng.integers(X.shape[1])] = np.round(1.6e18 + 10.0 ** rng.integers(9, 17) * rng.random(len(X)))
    return X


def _constant_columns(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    X = X.copy()
    X[:, rng.random(X.shape[1]) < 0.4] = rng.choice([0.0, 0.1, -3.0, 1e6])
    return X


def _copies(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    return X[:, rng.integers(0, X.shape[1], X.shape[1])]


def _whole_numbers(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    kind = rng.choice(["int64", "int32", "int8", "uint8", "uint16", "bool"])
    size = np.abs(X).max() or 1.0
    numbers: NDArray[Any]
    if kind == "bool":
        numbers = np.greater(X, np.median(X))
    elif kind[0] == "u":
        numbers = np.round(np.abs(X) / size * 200).astype(kind)
    else:
        numbers = np.round(X / size * 100).astype(kind)
    return numbers


def _narrow(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
    return X.astype(np.float32) if np.abs(X).max() < 1e30 else X


CHANGES: dict[str, Change] = {
    "units": _units,
    "a salary": _salary,
    "time stamps": _time_stamps,
    "constant columns": _constant_columns,
    "copies": _copies,
    "another unit": lambda rng, X: X * 10.0 ** rng.integers(-100, 100),
    "offsets": lambda rng, X: X + 10.0 ** rng.uniform(0, 8) * rng.standard_normal(X.shape[1]),
    "whole numbers": _whole_numbers,
    "float32": _narrow,
}
"""What may be done to rows, in this order, each now and then."""


WIDTHS = (1, 14), (20, 70), (384, 420)
"""Ranges of the number of columns; of so many as in the last one, eigenvectors are had in another way."""


def rows(rng: Generator) -> tuple[NDArray[Any], str]:
    """Rows (n, d), and what they are."""
    n = int(rng.choice([2, 3, 5, 8, 20, 40, 60, 100], p=[0.03, 0.05, 0.06, 0.1, 0.2, 0.26, 0.2, 0.1]))
    least, below = WIDTHS[int(rng.choice(3, p=[0.85, 0.145, 0.005]))]
    d = int(rng.integers(least, below))
    base = str(rng.choice(list(BASES)))
    X, about = BASES[base](rng, n, d), [base]
    for name, change in CHANGES.items():
        if rng.random() < 0.12:
            X = change(rng, X)
            about.append(name)
    return X, f"{n} x {d} {', '.join(about)}"


def cut_rows(rng: Generator, X: NDArray[Any]) -> tuple[list[NDArray[Any]], str]:
    """Parties of rows: alike, sorted, shifted, unequal, single rows."""
    n = len(X)
    parties = int(rng.choice([1, 2, 3, 4, 6, 12, 25], p=[0.1, 0.2, 0.25, 0.2, 0.15, 0.06, 0.04]))
    parties = min(parties, n)
    way = str(rng.choice(["even", "unequal", "single rows"]))
    about = f"{parties} parties, {way}"
    if rng.random() < 0.3:
        X, about = X[np.argsort(X[:, 0], kind="stable")], about + ", sorted"
    marks = np.linspace(0, n, parties + 1).astype(int)[1:-1]
    if way == "unequal":
        marks = np.sort(rng.choice(np.arange(1, n), parties - 1, replace=False))
    if way == "single rows":
        marks = np.arange(1, parties)
    parts = np.split(X, marks)
    if X.dtype.kind == "f" and rng.random() < 0.25:
        about += ", shifted"
        size = 10.0 ** rng.integers(-1, 5) * X.std(axis=0, dtype=np.float64)
        parts = [(part + size * rng.standard_normal(X.shape[1])).astype(X.dtype) for part in parts]
    return parts, about


def cut_columns(rng: Generator, X: NDArray[Any]) -> tuple[list[NDArray[Any]], str]:
    """Parties of columns of the same rows."""
    d = X.shape[1]
    parties = min(d, int(rng.choice([1, 2, 3, 4, 8], p=[0.1, 0.3, 0.35, 0.15, 0.1])))
    marks = np.sort(rng.choice(np.arange(1, max(2, d)), parties - 1, replace=False))
    return np.split(X, marks, axis=1), f"{parties} parties of columns"
