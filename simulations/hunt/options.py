"""Options of every method, of which a draw takes some, and values that no run can take: each must be refused."""

import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic.fields import FieldInfo

from fedpca_flwr.strategies import METHODS

ALWAYS = frozenset({"iterations", "noise_seed"})
"""What a draw always sets: few rounds, and noise that is the same each time."""


def option_values(method: str, k: int, n: int, d: int) -> dict[str, Sequence[Any]]:
    """Return the values to try of each option of a method, for k components of n rows and d features."""
    sizes = {"k": k, "k+1": k + 1, "2k": 2 * k, "d": d, "n": n, "n/2": n // 2}
    fields = METHODS[method].strategy.card.options.model_fields
    values = {name: [sizes.get(value, value) for value in _values(field)] for name, field in fields.items()}
    return {name: tried for name, tried in values.items() if tried}


def _values(field: FieldInfo) -> Sequence[Any]:
    """The examples of a field, else all values that its type lists."""
    if field.examples is not None:
        return field.examples
    if field.annotation is bool:
        return [True, False]
    return typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()


def options(rng: Generator, method: str, k: int, n: int, d: int) -> dict[str, Any]:
    """Some options of the method, each set as often as not."""
    chosen: dict[str, Any] = {"n_components": k}
    for name, values in option_values(method, k, n, d).items():
        if name in ALWAYS or rng.random() < (0.1 if name == "n_components" else 0.4):
            chosen[name] = values[int(rng.integers(len(values)))]
    if rng.random() < 0.2:
        chosen["seed"] = int(rng.integers(100))
    return chosen


def _with_cell(value: float) -> Callable[[Generator, NDArray[Any]], NDArray[Any]]:
    def spoilt(rng: Generator, X: NDArray[Any]) -> NDArray[Any]:
        X = X.astype(np.float64)
        X[rng.integers(X.shape[0]), rng.integers(X.shape[1])] = value
        return X

    return spoilt


UNUSABLE: dict[str, Callable[[Generator, NDArray[Any]], Any]] = {
    "a NaN": _with_cell(np.nan),
    "an infinity": _with_cell(-np.inf),
    "text": lambda rng, X: X.astype(str),
    "complex numbers": lambda rng, X: X.astype(np.complex128),
    "objects": lambda rng, X: np.full(X.shape, {}, dtype=object),
    "dates": lambda rng, X: np.zeros(X.shape, "datetime64[s]"),
    "one axis": lambda rng, X: np.asarray(X)[:, 0],
    "three axes": lambda rng, X: np.asarray(X)[None],
    "no rows": lambda rng, X: X[:0],
    "no columns": lambda rng, X: X[:, :0],
    "a row too short": lambda rng, X: [list(row[: len(row) - (i == 0)]) for i, row in enumerate(X.tolist())],
    "a number": lambda rng, X: 3.0,
    "nothing": lambda rng, X: None,
}
"""What becomes of one party's array."""

HUGE: dict[str, Callable[[Generator, NDArray[Any]], Any]] = {
    "a marker for missing values": _with_cell(-1.797e308),
    "a huge value": _with_cell(1e200),
}
"""Finite, but its square is not: a right answer, or one refusal that says so."""

ABSURD: Sequence[Any] = ("certainly", [1, 2], float("nan"), float("inf"), {"a": 1}, -1, 1e400, (1,), b"1")
"""Values that no option allows but those of `FREE`."""

FREE = frozenset({"state", "leave", "coef0"})


def hostile_option(rng: Generator, keys: Sequence[str]) -> tuple[str, Any]:
    """Draw a key with a value that is not allowed; now and then an unknown key."""
    if rng.random() < 0.1:
        return str(rng.choice(["n_component", "centre", "blocksize", "method_", "X"])), 3
    option_names = [key.replace("-", "_") for key in keys if key not in FREE]
    return str(rng.choice(option_names)), ABSURD[int(rng.integers(len(ABSURD)))]


SITE: dict[str, Callable[[int], Any]] = {
    "min_rows": lambda parties: [1] * (parties + 1),
    "round_rows": lambda parties: [],
    "allowed_methods": lambda parties: ["p-cov"] * (parties - 1),
    "max_reply_bytes": lambda parties: "much",
    "secure_only": lambda parties: "no",
    "min_parties": lambda parties: -3,
    "may_show": lambda parties: "everything",
    "scores": lambda parties: ["scores.npy"] * (parties + 2),
    "loadings": lambda parties: 7,
}
"""Keys of the sites' policy with values that they do not allow; a list has an entry for each party."""
