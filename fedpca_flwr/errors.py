"""The errors of a federated run. Their texts may cross the network, so they never hold a value from anyone's rows.

Text that somebody else wrote, as it may be shown: in a terminal, a log, a page, an error that another party reads.

A control character can move a terminal's cursor, a line break forges a line of a log, a mark of writing direction
shows a name as another. So none of them is ever shown.
"""

from collections.abc import Sequence
from numbers import Number
from os import PathLike

MAX_VALUE_CHARACTERS = 200  # characters of a value in an error


class FedPCAError(Exception):
    """Base of every error that this project raises on purpose.

    Parameters
    ----------
    message : str
        What was wrong, the value, what is allowed, what to do. Safe to send to other parties. Values in it may come
        from anyone: of what does not print, only line feeds stay.
    local : str, optional
        Detail that only the site's own log, and a traceback in this process, may show (a path, a column number). Never
        sent.
    """

    def __init__(self, message: str, *, local: str = "") -> None:
        super().__init__(printable_text(message, lines=True))
        self.local = printable_text(local, lines=True)
        if local:
            self.add_note(self.local)


def value_text(value: object) -> str:
    """A value that was given, as an error tells it: a word, a number, a list of words; of anything else only the type.

    What was given in the wrong place may be a table of rows.
    """
    words = isinstance(value, list | tuple) and all(isinstance(word, str | PathLike) for word in value)
    if not (words or value is None or isinstance(value, str | PathLike | Number)):
        return f"of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


class ConfigError(FedPCAError, ValueError):
    """A run-config or node-config key or value is not allowed."""


def combine_errors(errors: Sequence[FedPCAError]) -> FedPCAError:
    """Several errors as one, of the kind of the first; each is a line or more, and none is told twice."""
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    return type(errors[0])("\n".join(lines))


class TravelError(ConfigError):
    """A method's answers cannot travel as the run-config says."""


class DataError(FedPCAError, ValueError):
    """A party's own data cannot be used: missing, empty, not numeric, not finite."""


class ContractError(FedPCAError):
    """A payload or a result is not what the method's contract says."""


class QuorumError(FedPCAError):
    """Not exactly the expected parties took part, or one did not reply in time."""


class DisclosureError(FedPCAError):
    """A site's own policy refuses to release what the run asks for."""


class PartyError(FedPCAError):
    """A party failed for a reason that its own log explains; the text names only the kind of failure."""


ERRORS_BY_NAME: dict[str, type[FedPCAError]] = {
    cls.__name__: cls for cls in (ConfigError, DataError, ContractError, QuorumError, DisclosureError, PartyError)
}
"""How a party's error, named on the wire, becomes the same error at the server."""


def printable_text(text: str, *, lines: bool = False) -> str:
    """The text, with "?" for every character that does not show as itself, but line feeds in a text of several lines.

    These are control characters, line breaks, marks of writing direction, what has no width, halves of surrogate
    pairs, and what Unicode does not know.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or (lines and character == "\n") else "?" for character in text)
