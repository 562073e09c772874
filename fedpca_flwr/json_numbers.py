"""Measured numbers in JSON, which has none for infinity: there it is a text, spelt as in the methods' options."""

from __future__ import annotations

import math
from collections.abc import Mapping

INFINITY = "infinity"


def to_json(measured: Mapping[str, float]) -> dict[str, float | str]:
    """Numbers by name as JSON can hold them."""
    return {name: INFINITY if value == math.inf else value for name, value in measured.items()}


def from_json(measured: Mapping[str, float | str]) -> dict[str, float]:
    """The numbers that `to_json` was given."""
    return {name: float(value) if value == INFINITY else value for name, value in measured.items()}  # type: ignore[misc]
