"""Values of every method's options that tests draw from: the `examples` of cards, and all values of flags and lists."""

import typing
from collections.abc import Sequence
from typing import Any

from numpy.random import Generator

from fedpca_flwr.strategies import METHODS

ALWAYS = frozenset({"iterations", "noise_seed"})
"""Options that every draw sets: few rounds, and noise that is the same each time."""


def option_values(method: str, k: int, n: int, d: int) -> dict[str, Sequence[Any]]:
    """Return the values to try of each option of a method, for k components of n rows and d features."""
    sizes = {"k": k, "k+1": k + 1, "2k": 2 * k, "d": d, "n": n, "n/2": n // 2}
    fields = METHODS[method].strategy.card.options.model_fields
    examples: dict[str, Sequence[Any] | None] = {name: field.examples for name, field in fields.items()}
    for name, field in fields.items():  # without examples all values that its type lists
        if field.examples is None:
            is_list = typing.get_origin(field.annotation) is typing.Literal
            examples[name] = [True, False] if field.annotation is bool else typing.get_args(field.annotation) * is_list
    return {name: [sizes.get(value, value) for value in values] for name, values in examples.items() if values}


def random_options(rng: Generator, method: str, k: int, n: int, d: int) -> dict[str, Any]:
    """Return some options of the method, each set as often as not."""
    options: dict[str, Any] = {"n_components": k}
    for name, values in option_values(method, k, n, d).items():
        if name in ALWAYS or rng.random() < (0.1 if name == "n_components" else 0.4):
            options[name] = values[int(rng.integers(len(values)))]
    if rng.random() < 0.2:
        options["seed"] = int(rng.integers(100))
    return options
