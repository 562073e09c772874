"""Names of the features of a run, as its run-config has them."""

from __future__ import annotations

import csv
from collections import Counter

from pydantic_core import PydanticCustomError


def names_in(text: str) -> tuple[str, ...]:
    """The names in a text, separated by commas; one that holds a comma stands in double quotes.

    >>> names_in('age, "height, cm"')
    ('age', 'height, cm')
    """
    cells = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(cell.strip() for cell in cells)


def distinct(text: str) -> str:
    """The text, if all names in it are there and differ.

    Raises
    ------
    PydanticCustomError
    """
    try:
        names = names_in(text)
    except csv.Error:
        raise PydanticCustomError("features", "expected names, separated by commas") from None
    if "" in names:
        raise PydanticCustomError("features", "a name is empty; expected names, separated by commas")
    doubled = ", ".join(repr(name) for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise PydanticCustomError("features", "{names} stand there twice; expected each once", {"names": doubled})
    return text
