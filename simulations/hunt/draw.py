"""A draw: everything that one run needs, as a pure function of a seed and a number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedpca_flwr.packages import strategies

from . import data, hostile
from .options import options


def vertical(method: str) -> bool:
    """Whether a method is for data split by columns."""
    return strategies.METHODS[method].strategy.card.split == "columns"


@dataclass(frozen=True)
class Draw:
    """What is run.

    Attributes
    ----------
    method : str
    transport : {"clear", "secure_aggregation", "survivors"}
    parties : list
        Arrays, of rows or of columns; with something `hostile` maybe no arrays.
    options : dict
        Keyword arguments of `simulations.run`.
    about : str
        What the data are.
    hostile : str
        What is wrong on purpose; empty where nothing is.
    earlier : list of ndarray
        The parties of the run before, where the method goes on from one (``streaming`` with ``append``,
        ``vertical-scores``).
    """

    method: str
    transport: str
    parties: list[Any]
    options: dict[str, Any]
    about: str
    hostile: str = ""
    earlier: list[NDArray[Any]] = field(default_factory=list)

    @property
    def pooled(self) -> NDArray[Any]:
        """All rows and columns of all parties (n, d); only where nothing is `hostile`, or a value is huge."""
        if vertical(self.method):
            return np.hstack(self.parties)
        return np.vstack([*self.earlier, *self.parties])


def method_of(seed: int, index: int) -> str:
    """The method of a draw, without the rest of it."""
    return str(_generator(seed, index).choice(list(strategies.METHODS)))


def draw(seed: int, index: int) -> Draw:
    """The draw with this number."""
    rng = _generator(seed, index)
    method = str(rng.choice(list(strategies.METHODS)))
    X, about = data.rows(rng)
    parties, cut = (data.cut_columns if vertical(method) else data.cut_rows)(rng, X)
    n, d = X.shape
    k = int(rng.integers(1, max(2, min(n, d) + 1))) if rng.random() < 0.5 else min(2, n, d)
    if rng.random() < 0.02:
        k = min(n, d) + 1
    largest = max(float(np.abs(np.asarray(part, dtype=np.float64)).max()) for part in parties) or 1.0
    chosen = options(rng, method, k, n, d)
    chosen |= _needed(rng, method, chosen, largest * d**0.5, len(parties))
    transport = _transport(rng, method, len(parties), chosen)
    if transport != "clear":
        chosen |= _secure(rng, largest, transport, len(parties))
    earlier: list[NDArray[Any]] = []
    if method == "vertical-scores":
        again = rng.integers(0, n, rng.integers(1, n + 1))
        earlier, parties = parties, [part[again] for part in parties]
    elif method == "streaming" and min(map(len, parties)) > 2 and rng.random() < 0.4:
        earlier, parties = [part[:-1] for part in parties], [part[-1:] for part in parties]
        chosen["append"] = True
    parties, chosen, wrong = _spoilt(rng, method, parties, chosen)
    return Draw(method, transport, parties, chosen, f"{about}, {cut}", wrong, earlier)


def _generator(seed: int, index: int) -> Generator:
    return np.random.default_rng((seed, index))


def _needed(rng: Generator, method: str, chosen: dict[str, Any], size: float, parties: int) -> dict[str, Any]:
    """Options of DP-PCA that have no default: bounds near the data, where its release needs any."""
    if method != "dp-pca":
        return {}
    bounds = {"clip": size * float(rng.choice([0.1, 1.0, 10.0])), "centre_clip": size}
    bounds = bounds if chosen.get("release", "directions") != "directions" else {}
    return {**bounds, "trust": "distributed", "honest_parties": parties} if rng.random() < 0.3 else bounds


def _transport(rng: Generator, method: str, parties: int, chosen: dict[str, Any]) -> str:
    """A transport that the method has."""
    known = ["clear"]
    allowed = strategies.transports_of(strategies.METHODS[method])
    if "masked" in allowed and parties > 1 and chosen.get("solver") != "merge":
        known.append("secure_aggregation")
    one_sum = method != "dp-pca" or chosen.get("release") == "joint" or chosen.get("epsilon") == "infinity"
    if "surviving" in allowed and parties > 2 and one_sum:
        known.append("survivors")
    return str(rng.choice(known))


def _secure(rng: Generator, largest: float, transport: str, parties: int) -> dict[str, Any]:
    bound = largest * float(rng.choice([1.0, 2.0, 1e3, 1e6]))
    chosen: dict[str, Any] = {"secure_aggregation": True, "bound": bound, "min_parties": 2}
    if transport == "survivors":
        chosen["survivors"] = int(rng.integers(2 * parties // 3 + 1, parties + 1))
    return chosen


def _spoilt(
    rng: Generator, method: str, parties: list[Any], chosen: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], str]:
    """Now and then something that must be refused."""
    luck, parties = rng.random(), list(parties)
    place = int(rng.integers(len(parties)))
    if luck < 0.04:
        key, value = hostile.option(rng, strategies.METHODS[method].strategy.card.options.keys())
        return parties, {**chosen, key: value}, f"{key}={value!r}"
    if luck < 0.08:
        kinds = hostile.UNUSABLE if rng.random() < 0.7 else hostile.HUGE
        name = str(rng.choice(list(kinds)))
        parties[place] = kinds[name](rng, parties[place])
        return parties, chosen, f"{name} at party {place}"
    if luck < 0.1:
        key = str(rng.choice(list(hostile.SITE)))
        value = hostile.SITE[key](len(parties))
        return parties, {**chosen, key: value}, f"{key}={value!r}"
    return parties, chosen, ""
