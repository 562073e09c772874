"""Draws of one kind of trouble each, of the methods that it troubles: ties, constant features under masks, units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import hadamard

from fedpca_flwr.packages import strategies
from fedpca_flwr.protocol.registry import Method

from .options import options


@dataclass(frozen=True)
class Case:
    """What a draw of rows is made of.

    Attributes
    ----------
    parties : list of ndarray
    options : dict
    about : str
    masked : bool or None
        Whether its transport must be a masked one, or must not; None where either will do.
    unit : tuple of int, or None
        The party and the feature that are in another unit than the others.
    """

    parties: list[Any]
    options: dict[str, Any]
    about: str
    masked: bool | None = None
    unit: tuple[int, int] | None = None


def case_of(rng: Generator, method: str) -> Case | None:
    """A case of those that trouble this method, now and then."""
    method_of = strategies.METHODS[method]
    by_rows = method_of.strategy.card.split == "rows"
    kinds = [kind for kind, troubled in TROUBLES.items() if by_rows and troubled(method_of)]
    if rng.random() >= 0.2 * len(kinds):
        return None
    return kinds[int(rng.integers(len(kinds)))](rng, method)


def _repeated(rng: Generator, method: str) -> Case:
    """A first variance that several directions have, to the last bit as often as not, and blocks narrower than that."""
    n, d, times = int(rng.choice([16, 32, 64])), int(rng.choice([4, 8])), int(rng.integers(2, 5))
    others = np.sort(rng.choice(np.arange(1, 20), d - times))[::-1]
    X = hadamard(n)[:, 1 : d + 1] * np.append(np.full(times, 20 + rng.integers(1, 80)), others).astype(np.float64)
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
    """One site's feature in another unit than all others have it, its mean beyond its deviation in each."""
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
    about = f"{d} features, {count} parties, of which party {place} has feature {feature} times {factor:g}"
    return Case(parties, chosen, about, masked=False, unit=(place, feature))


def _has(method: Method, *options: str) -> bool:
    return set(options) <= method.strategy.card.options.model_fields.keys()


TROUBLES: dict[Callable[[Generator, str], Case], Callable[[Method], bool]] = {
    _repeated: lambda method: _has(method, "block_size", "max_rounds"),
    _constant: lambda method: _has(method, "scale") and "masked" in strategies.transports_of(method),
    _other_unit: lambda method: method.strategy.card.exact and _has(method, "scale"),
}
"""Which methods for rows each kind is drawn for; those that are exact and can scale know every site's deviations."""


def _cut(rng: Generator, X: NDArray[Any], least: int) -> list[NDArray[Any]]:
    """Two to five parties, of at least so many rows."""
    parties = int(rng.integers(2, min(5, len(X) // least) + 1))
    spare = rng.multinomial(len(X) - parties * least, np.full(parties, 1 / parties))
    return np.split(X, np.cumsum(spare + least)[:-1])
