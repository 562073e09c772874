"""What tests hold of a refusal: the kind of the error, and the keys and values that it names, not its wording."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def unnamed(text: str, *named: object) -> list[object]:
    """Those of the keys and values that a text does not hold as a whole: 5 is not in '150', nor in '0.5'.

    A key that is an English word is given in its quotes: "'bound'".
    """
    return [
        one for one in named if re.search(rf"(?<![\w.-])(?<!\d,){re.escape(str(one))}(?![\w-]|[.,]\w)", text) is None
    ]


@contextmanager
def refused(
    kind: type[BaseException] | tuple[type[BaseException], ...], *named: object, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error of this kind whose message names each key and value given, in whatever words.

    A message of which nothing is given has no number and nothing in quotes. `match` is for two refusals of one kind
    that name the same.
    """
    with pytest.raises(kind, match=match) as caught:
        yield caught
    text = str(caught.value)
    missing = unnamed(text, *named)
    assert not missing, f"the refusal does not name {missing}: {text}"
    assert named or match or not re.search(r"\d|'[^']+'", text), f"which of its values does the refusal name? {text}"
