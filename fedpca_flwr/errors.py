"""Errors of a federated run. Their texts may cross the network, so they never hold a value from anyone's rows.

Text that somebody else wrote may be shown in a terminal, a log, a page, or an error that another party reads. A control
character can move a terminal's cursor, a line break forges a line of a log, a mark of writing direction shows a name as
another. So none of these characters is ever shown.
"""

from collections.abc import Sequence
from numbers import Number
from os import PathLike

__all__ = ["ConfigError", "ContractError", "DataError", "DisclosureError", "FedPCAError", "PartyError", "QuorumError"]

MAX_VALUE_CHARACTERS = 200  # characters of a value in an error


class FedPCAError(Exception):
    """Base of every error that this project raises on purpose.

    Parameters
    ----------
    message : str
        Text that says what was wrong, the value, what is allowed, and what to do. It is safe to send to other parties.
        Because values in it may come from anyone, characters that do not print are replaced, except line feeds.
    local : str, optional
        Detail, such as a path or a column number, that only the site's own log and a traceback in this process may
        show. It is never sent.
    """

    def __init__(self, message: str, *, local: str = "") -> None:
        """Store the message and the local detail, without characters that do not print."""
        super().__init__(printable_text(message, lines=True))
        self.local = printable_text(local, lines=True)
        if local:
            self.add_note(self.local)


def value_text(value: object) -> str:
    """Write a value for an error: a word, a number, or a list of words; of anything else, maybe rows, only the type."""
    words = isinstance(value, list | tuple) and all(isinstance(word, str | PathLike) for word in value)
    if not (words or value is None or isinstance(value, str | PathLike | Number)):
        return f"of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


class ConfigError(FedPCAError, ValueError):
    """Error of a run-config or node-config: a key or a value is not allowed."""


def combine_errors(errors: Sequence[FedPCAError]) -> FedPCAError:
    """Combine errors, at least one, into an error of the first one's class, whose text has each line once."""
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    return type(errors[0])("\n".join(lines))


class TravelError(ConfigError):
    """Error of a transport that cannot carry a method's replies."""


class DataError(FedPCAError, ValueError):
    """Error of a party's data, which the run cannot use: they are missing, empty, not numeric, or not finite."""


class ContractError(FedPCAError):
    """Error of a message, state or result that does not have the declared fields, shapes or values."""


class QuorumError(FedPCAError):
    """Error of a run in which an expected party is absent or did not reply in time."""


class DisclosureError(FedPCAError):
    """Error of a site whose own policy refuses the run."""


class PartyError(FedPCAError):
    """Error of a party, which only the party's own log explains. The text names the kind of failure."""


ERRORS_BY_NAME: dict[str, type[FedPCAError]] = {
    cls.__name__: cls for cls in (ConfigError, DataError, ContractError, QuorumError, DisclosureError, PartyError)
}
"""How a party's error, named on the wire, becomes the same error at the server."""


def excerpt(text: str, max_characters: int = MAX_VALUE_CHARACTERS) -> str:
    """Return the beginning of a text that somebody else wrote, as a part of one printable line."""
    return printable_text(text[:max_characters])


def printable_text(text: str, *, lines: bool = False) -> str:
    """Replace characters that do not print, with ``lines`` all but line feeds, by "?".

    These are control characters, line breaks, marks of writing direction, characters without width, halves of surrogate
    pairs, and code points that Unicode does not assign.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or (lines and character == "\n") else "?" for character in text)


SUBSTITUTES = {
    **dict.fromkeys(
        ("associate", "phenotype", "phenotype-covariates", "phenotypes"),
        "let each site take its scores as covariates of PLINK 2's --glm, then combine the sites' tables by a "
        "meta-analysis (docs/genotypes.md)",
    ),
    **dict.fromkeys(
        ("receipt", "verify"), "the command `audit` compares a model's log with the sites' journals of the run"
    ),
    **dict.fromkeys(("codec=combined", "codec=top-k"), "take 'shared-step', which is no worse"),
    "run-options": "give each option as a keyword, as in FederatedPCA(2, scale=True)",
    "monitor": "call analyses.outliers(model, rows) and analyses.drift(model, rows) of fedpca_flwr in Python",
    "rehearse": "run 'site rehearse'",
    **dict.fromkeys(
        ("vertical-kernel", "VerticalKernel"),
        "take 'vfedakpca', which averages the parties' own kernel PCAs and is approximate, or without a kernel "
        "'vertical', which is exact",
    ),
    "release=two-stage": "leave out 'release', which needs no bound, and 'centre-clip', or take release='joint' with "
    "'clip'",
    "ledger": "set 'journal' to a folder, in which the site also records the epsilon that it has spent; the site does "
    "not read the old file, so lower 'epsilon-budget' by the amounts that it lists",
    "group-secret": "sites recognise each other by 'identity', the file with a site's own private key, and "
    "'identities', the file with all sites' public keys ('python -m fedpca_flwr site keys' makes both); set "
    "'ids-secret' to a secret that only salts ids",
}
"""What to take instead of a name of former versions: of an option, of an option's value (``option=value``), of a key of
a run-config or a node-config, of a method or of a command."""


def removal_text(name: str) -> str:
    """Return the end of the error for a name that `SUBSTITUTES` has, with what to take instead; else an empty text."""
    return f"which was removed: {SUBSTITUTES[name]}" if name in SUBSTITUTES else ""
