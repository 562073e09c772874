"""A draw: everything that one run needs, as a pure function of a seed and a number."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.simulations.hunt import data
from fedpca_flwr.simulations.hunt import options as offered
from fedpca_flwr.simulations.hunt.data import Case, case_of
from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none


def vertical(method: str) -> bool:
    """Return True for a method of data split by columns."""
    return card_of(method).split == "columns"


def of_kernel(draw: Draw) -> bool:
    """Return True if the model is that of a kernel between all rows."""
    return draw.card.exact and "kernel" in draw.option_names


@dataclass(frozen=True)
class Draw:
    """Run to try: method, transport, keyword arguments of `fedpca_flwr.run`, and description of the data."""

    method: str
    transport: str
    """One of "clear", "secure_aggregation" and "survivors"."""
    parties: list[Any]
    """Arrays, of rows or of columns; with something hostile maybe no arrays."""
    options: dict[str, Any]
    description: str
    hostile: str = ""
    """What is wrong on purpose."""
    earlier: list[NDArray[Any]] = field(default_factory=list)
    """The parties of the run before, where the method goes on from one: with ``append``, or to project new rows."""
    unit: tuple[int, int] | None = None
    """The party and the feature that are in another unit than the others."""
    orders: list[list[int]] = field(default_factory=list)
    """In which order each party's data frame has the features; empty where parties are arrays."""
    times: list[NDArray[np.int64]] = field(default_factory=list)
    """How often each row of each party counts, by a column of weights; empty where the run has none."""
    levels: dict[str, list[str]] = field(default_factory=dict)
    """Of columns of categories; the parties' last columns are then the indicators of these."""
    turn: int | None = None
    """The seed of a turn of every party's rows that leaves their moments (`fedpca_flwr.simulations.hunt.checks`)."""

    @property
    def card(self) -> MethodCard:
        return card_of(self.method)

    @property
    def option_names(self) -> Container[str]:
        """The names of the method's options."""
        return self.card.options.model_fields

    @property
    def pooled(self) -> NDArray[Any]:
        """All rows and columns of all parties (n, d); only where nothing is `hostile`, or a value is huge."""
        if vertical(self.method):
            return np.hstack(self.parties)
        if self.times:
            return np.repeat(np.vstack(self.parties), np.concatenate(self.times), axis=0)
        return np.vstack([*self.earlier, *self.parties])

    @property
    def indicators(self) -> list[str]:
        """The names of the columns of indicators, which stand after the numbers."""
        return [
            f"{column}={level}" for column, levels in self.levels.items() for level in (*levels, "other", "missing")
        ]

    @property
    def first(self) -> NDArray[Any]:
        """Rows and columns of the first run: after its refusal there is no second."""
        if not self.earlier:
            return self.pooled
        return np.hstack(self.earlier) if vertical(self.method) else np.vstack(self.earlier)


def method_of(seed: int, index: int) -> str:
    """Return the method of a draw."""
    return str(np.random.default_rng((seed, index)).choice(list(METHODS)))


def draw(seed: int, index: int) -> Draw:
    """The draw with this number."""
    rng = np.random.default_rng((seed, index))
    method = str(rng.choice(list(METHODS)))
    case = case_of(rng, method)
    drawn = _ordinary(rng, method) if case is None else _troubled(rng, method, case)
    orders: list[list[int]] = []
    if not vertical(method) and not drawn.hostile and rng.random() < 0.15:
        orders = [rng.permutation(drawn.pooled.shape[1]).tolist() for _ in drawn.parties]
    turn = int(rng.integers(2**31)) if rng.random() < 0.5 and turnable(drawn) else None
    if not orders and turn is None and rng.random() < 0.2 and weighable(drawn):
        times = [np.append(1, rng.integers(0, 4, len(part) - 1)) for part in drawn.parties]
        return replace(drawn, times=times, options={**drawn.options, "weights": WEIGHT})
    if not orders and turn is None and rng.random() < 0.5 and mixable(drawn):
        return _with_categories(rng, drawn)
    return replace(drawn, orders=orders, turn=turn)


def _ordinary(rng: Generator, method: str) -> Draw:
    X, description = data.rows(rng)
    parties, cut = (data.cut_columns if vertical(method) else data.cut_rows)(rng, X)
    n, d = X.shape
    k = int(rng.integers(1, max(2, min(n, d) + 1))) if rng.random() < 0.5 else min(2, n, d)
    if rng.random() < 0.02:
        k = min(n, d) + 1
    chosen = offered.options(rng, method, k, n, d)
    chosen |= _needed(rng, method, chosen, _largest(parties) * d**0.5, len(parties))
    transport = str(rng.choice(_transports(method, len(parties), chosen)))
    if transport != "clear":
        chosen |= _secure(rng, _largest(parties), transport, len(parties))
    earlier: list[NDArray[Any]] = []
    option_names = card_of(method).options.model_fields
    if card_of(method).loadings_source:
        rerun = rng.integers(0, n, rng.integers(1, n + 1))
        earlier, parties = parties, [part[rerun] for part in parties]
    elif "append" in option_names and min(map(len, parties)) > 2 and rng.random() < 0.4:
        earlier, parties = [part[:-1] for part in parties], [part[-1:] for part in parties]
        chosen["append"] = True
    parties, chosen, wrong = _spoilt(rng, method, parties, chosen)
    return Draw(method, transport, parties, chosen, f"{description}, {cut}", wrong, earlier)


def _troubled(rng: Generator, method: str, case: Case) -> Draw:
    allowed = _transports(method, len(case.parties), case.options)
    allowed = [way for way in allowed if case.masked in (None, way != "clear")] or ["secure_aggregation"]
    transport, chosen = str(rng.choice(allowed)), case.options
    if transport != "clear":
        chosen = chosen | _secure(rng, _largest(case.parties), transport, len(case.parties))
    return Draw(method, transport, case.parties, chosen, case.description, unit=case.unit)


WEIGHT = "weight"
"""How data frames call the column of weights."""


def weighable(drawn: Draw) -> bool:
    """Return True if rows may have weights in a run, and no value is spoilt."""
    if not drawn.card.weighted or drawn.hostile or drawn.earlier or drawn.unit:
        return False
    settings = {key.replace("_", "-"): value for key, value in drawn.options.items() if key in drawn.option_names}
    return script_or_none(METHODS.parse_method(drawn.method), RunConfig(weights=WEIGHT), settings) is not None


def mixable(drawn: Draw) -> bool:
    """Return True if columns may be categories in a run, and no value is spoilt."""
    scaled = drawn.options.get("scale") is True and drawn.options.get("center", True)
    return drawn.card.mixed and scaled and not (drawn.hostile or drawn.earlier or drawn.unit)


def _with_categories(rng: Generator, drawn: Draw) -> Draw:
    """Return the draw with up to three columns of categories: rare and undeclared levels, empty cells."""
    levels = {f"c{column}": list("abcde"[: rng.integers(1, 6)]) for column in range(rng.integers(1, 4))}
    shares = [rng.dirichlet(np.full(len(settings) + 2, 0.5)) for settings in levels.values()]
    parties = []
    for part in drawn.parties:
        settings = [np.eye(len(share))[rng.choice(len(share), len(part), p=share)] for share in shares]
        parties.append(np.hstack([np.asarray(part, dtype=np.float64), *settings]))
    options = {**drawn.options, "levels": levels}
    if "bound" in options:
        options["bound"] = max(options["bound"], 1.0)
    description = f"{drawn.description}, indicators of {len(levels)} columns"
    return replace(drawn, parties=parties, levels=levels, options=options, description=description)


def turnable(drawn: Draw) -> bool:
    """Return True if answers are functions of moments, and variances move little with the moments."""
    settings = drawn.options
    if drawn.transport != "clear" or drawn.hostile or not isinstance(settings["n_components"], int):
        return False
    settled = not re.search("tied|clustered|copies|one-hot|first variance|indicators", drawn.description)
    smooth = settings.get("tolerance", 1e-6) <= 1e-3 and settings.get("max_rounds", 100) == 100
    smooth &= "codec" not in drawn.option_names or settings.get("codec") in {"low-rank", "sketch"}
    card = drawn.card
    if vertical(drawn.method) or card.beyond_moments or card.local_components or card.successors:
        return False
    return (card.pools_moments and not settings.get("rank")) or (settled and smooth)


def _needed(rng: Generator, method: str, chosen: dict[str, Any], size: float, parties: int) -> dict[str, Any]:
    """Options of private methods that have no default: bounds near the data, where the release needs any."""
    if not card_of(method).differentially_private:
        return {}
    bounds = {"clip": size * float(rng.choice([0.1, 1.0, 10.0]))} if chosen.get("release") == "joint" else {}
    return {**bounds, "trust": "distributed", "honest_parties": parties} if rng.random() < 0.3 else bounds


def _largest(parties: list[Any]) -> float:
    return max(float(np.abs(np.asarray(part, dtype=np.float64)).max()) for part in parties) or 1.0


def _transports(method: str, parties: int, chosen: dict[str, Any]) -> list[str]:
    """Return the transports of a method with given options."""
    settings = {key: value for key, value in chosen.items() if key in card_of(method).options.model_fields}
    settings = {**card_of(method).examples[0], **settings}

    def travels(way: str) -> bool:
        return script_or_none(METHODS[method], EXAMPLE_CONFIGS[way], settings) is not None

    masked = ["secure_aggregation"] if parties > 1 and travels("masked") else []
    return ["clear", *masked, *(["survivors"] if parties > 2 and travels("surviving") else [])]


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
        key, value = offered.hostile_option(rng, card_of(method).options.keys())
        return parties, {**chosen, key: value}, f"{key}={value!r}"
    if luck < 0.08:
        kinds = offered.UNUSABLE if rng.random() < 0.7 else offered.HUGE
        name = str(rng.choice(list(kinds)))
        parties[place] = kinds[name](rng, parties[place])
        return parties, chosen, f"{name} at party {place}"
    if luck < 0.1:
        key = str(rng.choice(list(offered.SITE)))
        value = offered.SITE[key](len(parties))
        return parties, {**chosen, key: value}, f"{key}={value!r}"
    return parties, chosen, ""
