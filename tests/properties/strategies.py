"""Draws of runs: method, transport, rows, cuts and options.

What has a structure (sizes, kinds, options, flags) is drawn by hypothesis, the simplest first, and shrinks; the numbers
in large arrays come from generators of drawn seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import hadamard

from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.simulations.records import card_of
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none
from tests.options import ALWAYS, option_values
from tests.properties.profiles import HUNT

Table = NDArray[Any]
GENERATORS = st.integers(0, 2**16).map(np.random.default_rng)


@dataclass(frozen=True)
class Draw:
    """Run to try: method, transport, keyword arguments of `fedpca_flwr.run`, and description of the data."""

    method: str
    transport: str  # "clear", "secure_aggregation" or "survivors"
    parties: list[Any]  # arrays, of rows or of columns
    options: dict[str, Any]
    description: str

    @property
    def card(self) -> MethodCard:
        return card_of(self.method)

    @property
    def by_columns(self) -> bool:
        return self.card.split == "columns"

    @property
    def pooled(self) -> Table:
        """All rows and columns of all parties (n, d)."""
        return np.hstack(self.parties) if self.by_columns else np.vstack(self.parties)


def with_spectrum(rng: Generator, n: int, d: int, values: Table) -> Table:
    """Return centred rows (n, d) of such singular values, up to rounding; now and then along the axes."""
    r = min(n - 1, d)
    left = rng.standard_normal((n, r))
    left = np.linalg.qr(left - left.mean(axis=0)).Q
    right = np.eye(d) if rng.random() < 0.3 else np.linalg.qr(rng.standard_normal((d, d))).Q
    return np.asarray((left * values[:r]) @ right[:, :r].T)


def _tied(rng: Generator, n: int, d: int) -> Table:
    levels = rng.choice([100.0, 5.0, 3.0, 2.0, 1.0], size=rng.integers(1, 4), replace=False)
    return with_spectrum(rng, n, d, np.sort(rng.choice(levels, size=d))[::-1])


# Rows (n, d) by their kind.
BASES: dict[str, Callable[[Generator, int, int], Table]] = {
    "isotropic": lambda rng, n, d: rng.standard_normal((n, d)),
    "decaying": lambda rng, n, d: with_spectrum(rng, n, d, np.sqrt(n) / np.arange(1.0, d + 1)),
    "tied": _tied,
    "clustered": lambda rng, n, d: with_spectrum(rng, n, d, 1.0 + 10.0 ** -rng.integers(2, 12) * np.arange(d)[::-1]),
    "geometric": lambda rng, n, d: with_spectrum(rng, n, d, 10.0 ** (-rng.uniform(0.1, 2.0) * np.arange(d))),
    "low rank": lambda rng, n, d: rng.normal(size=(n, d)) * (np.arange(d) <= rng.integers(d)) @ rng.normal(size=(d, d)),
    "indicators": lambda rng, n, d: (rng.random((n, d)) < rng.uniform(0.02, 0.6, d)).astype(np.float64),
    "heavy tails": lambda rng, n, d: rng.standard_cauchy((n, d)),
    "one-hot": lambda rng, n, d: np.eye(d)[rng.integers(0, d, n)],
}


def _in_one_column(change: Callable[[Generator, Table], Table]) -> Callable[[Generator, Table], Table]:

    def changed(rng: Generator, X: Table) -> Table:
        X, column = X.copy(), rng.integers(X.shape[1])
        X[:, column] = change(rng, X[:, column])
        return X

    return changed


def _whole_numbers(rng: Generator, X: Table) -> Table:
    kind = str(rng.choice(["int64", "int32", "int8", "uint8", "uint16", "bool"]))
    share = X / (np.abs(X).max() or 1.0)
    if kind == "bool":
        return np.greater(X, np.median(X))
    return np.round(np.abs(share) * 200 if kind[0] == "u" else share * 100).astype(kind)


# What may be done to rows, in this order.
CHANGES: dict[str, Callable[[Generator, Table], Table]] = {
    "units": lambda rng, X: X * 10.0 ** rng.uniform(-12, 12, X.shape[1]),
    "a salary": _in_one_column(lambda rng, x: x * 10.0 ** rng.integers(4, 13)),
    "time stamps": _in_one_column(lambda rng, x: np.round(1.6e18 + 10.0 ** rng.integers(9, 17) * rng.random(len(x)))),
    "constant columns": lambda rng, X: np.where(rng.random(X.shape[1]) < 0.4, rng.choice([0.0, 0.1, -3.0, 1e6]), X),
    "copies": lambda rng, X: X[:, rng.integers(0, X.shape[1], X.shape[1])],
    "another unit": lambda rng, X: X * 10.0 ** rng.integers(-100, 100),
    "offsets": lambda rng, X: X + 10.0 ** rng.uniform(0, 8) * rng.standard_normal(X.shape[1]),
    "whole numbers": _whole_numbers,
    "float32": lambda rng, X: X.astype(np.float32) if np.abs(X).max() < 1e30 else X,
}
ROWS = st.one_of(st.integers(2, 9), st.integers(10, 100))
WIDTHS = [st.integers(1, 5), st.integers(1, 14), st.integers(1, 14), st.integers(20, 70)]
if HUNT:  # of as many as these, eigenvectors are computed in another way
    WIDTHS += [st.integers(1, 14)] * 15 + [st.integers(384, 420)]


@st.composite
def tables(pick: st.DrawFn) -> tuple[Table, str]:
    """Draw rows (n, d), and what they are: of a few whole numbers, or of a kind that breaks codes."""
    kind = pick(st.sampled_from(["small", *BASES]))
    if kind == "small":
        shape = pick(st.tuples(st.integers(2, 8), st.integers(1, 4)))
        X = np.eye(*shape) + pick(hnp.arrays(np.int64, shape, elements=st.integers(-9, 9)))  # the simplest varies
    else:
        X = BASES[kind](pick(GENERATORS), pick(ROWS), pick(st.one_of(WIDTHS)))
    names = pick(st.sets(st.sampled_from(list(CHANGES)), max_size=2))
    for name, change in CHANGES.items():
        X = change(pick(GENERATORS), X) if name in names else X
    return X, ", ".join([f"{X.shape[0]} x {X.shape[1]} {kind}", *(name for name in CHANGES if name in names)])


@st.composite
def row_cuts(pick: st.DrawFn, X: Table) -> tuple[list[Table], str]:
    """Draw parties of rows: alike, sorted, shifted, unequal, single rows."""
    n, rng = len(X), pick(GENERATORS)
    parties = min(n, pick(st.sampled_from([2, 3, 1, 4, 6, 12, 25])))
    way = pick(st.sampled_from(["even", "unequal", "single rows"]))
    description = f"{parties} parties, {way}"
    if pick(st.sampled_from([False, False, True])):
        X, description = X[np.argsort(X[:, 0], kind="stable")], description + ", sorted"
    marks = np.linspace(0, n, parties + 1).astype(int)[1:-1]
    if way == "unequal":
        marks = np.sort(rng.choice(np.arange(1, n), parties - 1, replace=False))
    if way == "single rows":
        marks = np.arange(1, parties)
    parts = np.split(X, marks)
    if X.dtype.kind == "f" and pick(st.sampled_from([False, False, False, True])):
        size = 10.0 ** pick(st.integers(-1, 4)) * X.std(axis=0, dtype=np.float64)
        parts = [(part + size * rng.standard_normal(X.shape[1])).astype(X.dtype) for part in parts]
        description += ", shifted"
    return parts, description


@st.composite
def column_cuts(pick: st.DrawFn, X: Table) -> tuple[list[Table], str]:
    d = X.shape[1]
    parties = min(d, pick(st.sampled_from([2, 3, 1, 4, 8])))
    marks = np.sort(pick(GENERATORS).choice(np.arange(1, max(2, d)), parties - 1, replace=False))
    return np.split(X, marks, axis=1), f"{parties} parties of columns"


@st.composite
def options_of(pick: st.DrawFn, method: str, k: int, n: int, d: int) -> dict[str, Any]:

    values = option_values(method, k, n, d)
    names = ALWAYS | (pick(st.sets(st.sampled_from(list(values)), max_size=4)) if values else set())
    options = {name: pick(st.sampled_from(values[name])) for name in values if name in names}
    options = {"n_components": k, **options}
    return {**options, "seed": 7} if pick(st.sampled_from([False, False, False, True])) else options


def transports(method: str, parties: int, options: dict[str, Any]) -> list[str]:
    settings = {key: value for key, value in options.items() if key in card_of(method).options.model_fields}
    settings = {**card_of(method).examples[0], **settings}
    ways = [("secure_aggregation", "masked"), ("survivors", "surviving")][: parties - 1]  # survivors need three parties
    script = partial(script_or_none, METHODS[method], options=settings)
    return ["clear", *(name for name, way in ways if script(EXAMPLE_CONFIGS[way]) is not None)]


def largest(parties: Sequence[Any]) -> float:
    return max(float(np.abs(np.asarray(part, dtype=np.float64)).max()) for part in parties) or 1.0


@st.composite
def secure_options(pick: st.DrawFn, transport: str, parties: Sequence[Any]) -> dict[str, Any]:
    if transport == "clear":
        return {}
    bound = largest(parties) * pick(st.sampled_from([1.0, 2.0, 1e3, 1e6]))
    options: dict[str, Any] = {"secure_aggregation": True, "bound": bound, "min_parties": 2}
    if transport == "survivors":
        options["survivors"] = pick(st.integers(2 * len(parties) // 3 + 1, len(parties)))
    return options


@st.composite
def private_options(pick: st.DrawFn, method: str, release: str | None, size: float, parties: int) -> dict[str, Any]:
    """Draw options of private methods that have no default: bounds near the data, where the release needs any."""
    if not card_of(method).differentially_private:
        return {}
    options = {"clip": size * pick(st.sampled_from([1.0, 0.1, 10.0]))} if release == "joint" else {}
    trust = {"trust": "distributed", "honest_parties": parties}
    return {**options, **(trust if pick(st.sampled_from([False, False, True])) else {})}


@st.composite
def ordinary(pick: st.DrawFn, method: str) -> Draw:
    """Draw a run on rows of any kind, now and then of a component too many."""
    by_columns = card_of(method).split == "columns"
    X, kind = pick(tables())
    parties, cut = pick(column_cuts(X) if by_columns else row_cuts(X))
    n, d = X.shape
    k = pick(st.one_of(st.just(min(2, n, d)), st.integers(1, min(n, d))))
    k = min(n, d) + 1 if pick(st.sampled_from([False] * 14 + [True])) else k
    options = pick(options_of(method, k, n, d))
    options |= pick(private_options(method, options.get("release"), largest(parties) * d**0.5, len(parties)))
    transport = pick(st.sampled_from(transports(method, len(parties), options)))
    options |= pick(secure_options(transport, parties))
    return Draw(method, transport, parties, options, f"{kind}, {cut}")


@st.composite
def runs(pick: st.DrawFn, method: str) -> Draw:
    """Draw a run of a method on rows of any kind, or on rows that are trouble."""
    card = card_of(method)
    return pick(pick(st.sampled_from([ordinary] * 4 + [repeated] * (card.split == "rows" and card.exact)))(method))


@st.composite
def repeated(pick: st.DrawFn, method: str) -> Draw:
    """Draw a first variance that several directions have, most to the last bit, and blocks narrower than that."""
    rng, n, d = pick(GENERATORS), pick(st.sampled_from([16, 32, 64])), pick(st.sampled_from([4, 8]))
    times = pick(st.integers(2, 4))
    others = np.sort(rng.choice(np.arange(1, 20), d - times))[::-1]
    X = hadamard(n)[:, 1 : d + 1] * np.append(np.full(times, 20 + rng.integers(1, 80)), others).astype(np.float64)
    way = pick(st.sampled_from(["along the axes", "of whole numbers", "turned"]))
    if way != "along the axes":
        X = X @ (hadamard(d) if way == "of whole numbers" else np.linalg.qr(rng.standard_normal((d, d))).Q)
    k = pick(st.one_of(st.integers(1, times - 1), st.integers(1, min(d, times + 2))))
    options = pick(options_of(method, k, n, d))
    if "block_size" in card_of(method).options.model_fields:
        options["block_size"] = pick(st.integers(1, 3))
    marks = np.sort(rng.choice(np.arange(1, n), pick(st.integers(1, 4)), replace=False))
    return pick(_travelling(method, np.split(X[rng.permutation(n)], marks), options, f"first variance {times} times"))


@st.composite
def unfinished(pick: st.DrawFn, method: str) -> Draw:
    """Draw an iteration that is stopped early: of a steep spectrum its certificate is near the true angle."""
    d = pick(st.integers(6, 10))
    X = with_spectrum(pick(GENERATORS), 40, d, 0.3 ** np.arange(d))
    options = {"n_components": 1, "block_size": 1, "max_rounds": pick(st.integers(3, 4)), "tolerance": 1e-12}
    return pick(_travelling(method, np.split(X, [20]), options, "unfinished"))


@st.composite
def _travelling(pick: st.DrawFn, method: str, parties: list[Table], options: dict[str, Any], kind: str) -> Draw:
    transport = pick(st.sampled_from(transports(method, len(parties), options)))
    options = {**options, **pick(secure_options(transport, parties))}
    return Draw(method, transport, parties, options, f"{kind}, {len(parties)} parties")
