"""Rows of many kinds, their cuts into parties, and cases of trouble: ties, constant features under masks, units."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import hadamard

from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.simulations.hunt.options import options
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of

Base = Callable[[Generator, int, int], NDArray[Any]]
Change = Callable[[Generator, NDArray[Any]], NDArray[Any]]


def with_spectrum(rng: Generator, n: int, d: int, values: NDArray[Any]) -> NDArray[Any]:
    """Draw centred rows (n, d) with given singular values, up to rounding; in half of the draws along the axes."""
    r = min(n - 1, d)
    residual = rng.standard_normal((n, r))
    residual, _ = np.linalg.qr(residual - residual.mean(axis=0))
    right = np.eye(d) if rng.random() < 0.3 else np.linalg.qr(rng.standard_normal((d, d))).Q
    return np.asarray((residual * values[:r]) @ right[:, :r].T)


def _decaying(rng: Generator, n: int, d: int) -> NDArray[Any]:
    falling = rng.standard_normal((n, d)) / np.arange(1, d + 1)
    return np.asarray(falling @ np.linalg.qr(rng.standard_normal((d, d))).Q)


def _tied(rng: Generator, n: int, d: int) -> NDArray[Any]:
    levels = np.sort(rng.choice([100.0, 5.0, 3.0, 2.0, 1.0], size=rng.integers(1, 4), replace=False))[::-1]
    return with_spectrum(rng, n, d, np.sort(rng.choice(levels, size=d))[::-1])


def _low_rank(rng: Generator, n: int, d: int) -> NDArray[Any]:
    rank = int(rng.integers(1, d + 1))
    return rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))


BASES: dict[str, Base] = {
    "decaying": _decaying,
    "isotropic": lambda rng, n, d: rng.standard_normal((n, d)),
    "tied": _tied,
    "clustered": lambda rng, n, d: with_spectrum(rng, n, d, 1.0 + 10.0 ** -rng.integers(2, 12) * np.arange(d)[::-1]),
    "geometric": lambda rng, n, d: with_spectrum(rng, n, d, 10.0 ** (-rng.uniform(0.1, 2.0) * np.arange(d))),
    "low rank": _low_rank,
    "indicators": lambda rng, n, d: (rng.random((n, d)) < rng.uniform(0.02, 0.6, d)).astype(np.float64),
    "heavy tails": lambda rng, n, d: rng.standard_cauchy((n, d)),
    "one-hot": lambda rng, n, d: np.eye(d)[rng.integers(0, d, n)],
}
"""Rows (n, d)."""


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


CHANGES: dict[str, Change] = {
    "units": lambda rng, X: X * 10.0 ** rng.uniform(-12, 12, X.shape[1]),
    "a salary": _salary,
    "time stamps": _time_stamps,
    "constant columns": _constant_columns,
    "copies": lambda rng, X: X[:, rng.integers(0, X.shape[1], X.shape[1])],
    "another unit": lambda rng, X: X * 10.0 ** rng.integers(-100, 100),
    "offsets": lambda rng, X: X + 10.0 ** rng.uniform(0, 8) * rng.standard_normal(X.shape[1]),
    "whole numbers": _whole_numbers,
    "float32": lambda rng, X: X.astype(np.float32) if np.abs(X).max() < 1e30 else X,
}
"""What may be done to rows, in this order, each now and then."""

WIDTHS = (1, 14), (20, 70), (384, 420)
"""Ranges of the number of columns; of so many as in the last one, eigenvectors are had in another way."""


def rows(rng: Generator) -> tuple[NDArray[Any], str]:
    """Rows (n, d), and what they are."""
    n = int(rng.choice([2, 3, 5, 8, 20, 40, 60, 100], p=[0.03, 0.05, 0.06, 0.1, 0.2, 0.26, 0.2, 0.1]))
    smallest, below = WIDTHS[int(rng.choice(3, p=[0.85, 0.145, 0.005]))]
    d = int(rng.integers(smallest, below))
    base = str(rng.choice(list(BASES)))
    X, description = BASES[base](rng, n, d), [base]
    for name, change in CHANGES.items():
        if rng.random() < 0.12:
            X = change(rng, X)
            description.append(name)
    return X, f"{n} x {d} {', '.join(description)}"


def cut_rows(rng: Generator, X: NDArray[Any]) -> tuple[list[NDArray[Any]], str]:
    """Parties of rows: alike, sorted, shifted, unequal, single rows."""
    n = len(X)
    parties = int(rng.choice([1, 2, 3, 4, 6, 12, 25], p=[0.1, 0.2, 0.25, 0.2, 0.15, 0.06, 0.04]))
    parties = min(parties, n)
    way = str(rng.choice(["even", "unequal", "single rows"]))
    description = f"{parties} parties, {way}"
    if rng.random() < 0.3:
        X, description = X[np.argsort(X[:, 0], kind="stable")], description + ", sorted"
    marks = np.linspace(0, n, parties + 1).astype(int)[1:-1]
    if way == "unequal":
        marks = np.sort(rng.choice(np.arange(1, n), parties - 1, replace=False))
    if way == "single rows":
        marks = np.arange(1, parties)
    parts = np.split(X, marks)
    if X.dtype.kind == "f" and rng.random() < 0.25:
        description += ", shifted"
        size = 10.0 ** rng.integers(-1, 5) * X.std(axis=0, dtype=np.float64)
        parts = [(part + size * rng.standard_normal(X.shape[1])).astype(X.dtype) for part in parts]
    return parts, description


def cut_columns(rng: Generator, X: NDArray[Any]) -> tuple[list[NDArray[Any]], str]:
    """Parties of columns of the same rows."""
    d = X.shape[1]
    parties = min(d, int(rng.choice([1, 2, 3, 4, 8], p=[0.1, 0.3, 0.35, 0.15, 0.1])))
    marks = np.sort(rng.choice(np.arange(1, max(2, d)), parties - 1, replace=False))
    return np.split(X, marks, axis=1), f"{parties} parties of columns"


@dataclass(frozen=True)
class Case:
    """Rows, parties and description of a draw; `unit` is as in a `Draw`."""

    parties: list[Any]
    options: dict[str, Any]
    description: str
    masked: bool | None = None
    """Whether its transport must be a masked one, or must not; None where either will do."""
    unit: tuple[int, int] | None = None


def case_of(rng: Generator, method: str) -> Case | None:
    """Draw a case, now and then of the kinds that trouble a method."""
    method_of = METHODS[method]
    by_rows = method_of.strategy.card.split == "rows"
    kinds = [kind for kind, troubled in TROUBLES.items() if by_rows and troubled(method_of)]
    if rng.random() >= 0.2 * len(kinds):
        return None
    return kinds[int(rng.integers(len(kinds)))](rng, method)


def _repeated(rng: Generator, method: str) -> Case:
    """A first variance that several directions have, to the last bit as often as not, and blocks narrower than that."""
    n, d, times = int(rng.choice([16, 32, 64])), int(rng.choice([4, 8])), int(rng.integers(2, 5))
    peers = np.sort(rng.choice(np.arange(1, 20), d - times))[::-1]
    X = hadamard(n)[:, 1 : d + 1] * np.append(np.full(times, 20 + rng.integers(1, 80)), peers).astype(np.float64)
    turn = str(rng.choice(["along the axes", "of whole numbers", "turned"]))
    if turn == "of whole numbers":
        X = X @ hadamard(d)
    elif turn == "turned":
        X = X @ np.linalg.qr(rng.standard_normal((d, d))).Q
    chosen = options(rng, method, int(rng.integers(1, min(d, times + 2) + 1)), n, d)
    chosen["block_size"] = int(rng.integers(1, 4))
    parties = _cut(rng, X[rng.permutation(n)], 1)
    return Case(parties, chosen, f"{n} x {d} first variance {times} times, {turn}, {len(parties)} parties")


def _constant(rng: Generator, method: str) -> Case:
    """Features without variance, of any size beside the others, under masks and scaled."""
    n, d = int(rng.integers(20, 80)), int(rng.integers(3, 12))
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-1, 1, d) + rng.standard_normal(d)
    still = rng.random(d) < 0.4
    still[int(rng.integers(d))], still[int(rng.integers(d))] = True, False
    sizes = rng.choice([0.0, 0.1, 1 / 3, -3.0, 100.7, 1e-5, 1e4, 12345.678], d)
    X = np.where(still, sizes, X)
    within = min(n, int((~still).sum()))
    chosen = options(rng, method, int(rng.integers(1, within + 1)), n, d)
    chosen["scale"] = True
    for other in ("warm_start", "keep", "outliers", "fourth_moments"):  # refused with it
        chosen.pop(other, None)
    parties = _cut(rng, X, 2)
    return Case(parties, chosen, f"{n} x {d} constant features, {len(parties)} parties", masked=True)


def _other_unit(rng: Generator, method: str) -> Case:
    """Draw parties of which a single party has a feature in another unit, with means beyond deviations."""
    d, count = int(rng.integers(2, 8)), int(rng.integers(2, 6))
    parties = [rng.standard_normal((int(rng.integers(12, 30)), d)) for _ in range(count)]
    place, feature = int(rng.integers(count)), int(rng.integers(d))
    mean, share = 10.0 ** rng.uniform(-3, 3) * rng.choice([-1, 1]), 10.0 ** rng.uniform(-2, -0.5)
    for part in parties:
        column = part[:, feature]
        part[:, feature] = mean * (1 + share * (column - column.mean()) / column.std())
    factor = float(rng.choice([1000.0, 0.01]))
    parties[place][:, feature] *= factor
    chosen = options(rng, method, int(rng.integers(1, d + 1)), sum(map(len, parties)), d)
    for truncating in ("rank", "filler", "warm_start", "warm_rank"):  # of a site's factor nobody sees deviations
        chosen.pop(truncating, None)
    description = f"{d} features, {count} parties, of which party {place} has feature {feature} times {factor:g}"
    return Case(parties, chosen, description, masked=False, unit=(place, feature))


def _has(method: Method, *options: str) -> bool:
    return set(options) <= method.strategy.card.options.model_fields.keys()


TROUBLES: dict[Callable[[Generator, str], Case], Callable[[Method], bool]] = {
    _repeated: lambda method: _has(method, "block_size", "max_rounds"),
    _constant: lambda method: _has(method, "scale") and "masked" in transports_of(method),
    _other_unit: lambda method: method.strategy.card.exact and _has(method, "scale"),
}
"""Which methods for rows each kind is drawn for; those that are exact and can scale know every site's deviations."""


def _cut(rng: Generator, X: NDArray[Any], smallest: int) -> list[NDArray[Any]]:
    """Two to five parties, of at least so many rows."""
    parties = int(rng.integers(2, min(5, len(X) // smallest) + 1))
    spare = rng.multinomial(len(X) - parties * smallest, np.full(parties, 1 / parties))
    return np.split(X, np.cumsum(spare + smallest)[:-1])
