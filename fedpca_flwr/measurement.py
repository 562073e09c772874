"""`Measurement`: one line of a summary, and the numbers that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpca_flwr import measurement_texts as texts


@dataclass(frozen=True)
class Measurement:
    """A line of a summary.

    Attributes
    ----------
    line : str
        What it is called there.
    numbers : mapping of str to str
        The numbers that it is made of, and what each is. The line is there if any of them is.
    text : callable
        Makes the text of the numbers; from the model it takes what is no measurement: options, names, k.
    """

    line: str
    numbers: Mapping[str, str]
    text: texts.Text


def line(name: str, text: str | texts.Text, **numbers: str) -> Measurement:
    """A row of the table; a text may be a template for the numbers and the run's options."""
    return Measurement(name, numbers, texts.filled(text) if isinstance(text, str) else text)
