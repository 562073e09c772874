"""Text that somebody else wrote, as it may be shown: in a terminal, a log, a page, an error that another party reads.

A control character can move a terminal's cursor, a line break forges a line of a log, a mark of writing direction
shows a name as another. So none of them is ever shown.
"""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """The text, with "?" for every character that does not show as itself.

    These are control characters, line breaks, marks of writing direction, what has no width, halves of surrogate
    pairs, and what Unicode does not know.

    Parameters
    ----------
    text : str
    lines : bool
        Whether line feeds may stay, in a text of several lines.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or (lines and one == "\n") else "?" for one in text)
