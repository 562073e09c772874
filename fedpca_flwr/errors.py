"""Errors of a federated run. Their texts may cross the network, so they never hold a value from anyone's rows.

Text that somebody else wrote may be shown in a terminal, a log, a page, or an error that another party reads. A control
character can move a terminal's cursor, a line break forges a line of a log, a mark of writing direction shows a name as
another. So none of these characters is ever shown.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from os import PathLike
from typing import Any

__all__ = ["ConfigError", "ContractError", "DataError", "DisclosureError", "FedPCAError", "PartyError", "QuorumError"]

MAX_VALUE_CHARACTERS = 200  # characters of a value in an error
CLIENT_LINE = re.compile(r"(?:((?:a client|client \d+)(?: \([^:;]*\))?): )?(.*)")
"""Line of an error, with the client that it is of, if any; a client's name has neither ":" nor ";"."""


@dataclass(frozen=True)
class Advice:
    """Keyword arguments that change what an error is about, and when they are right ("if it is a row")."""

    keys: Mapping[str, Any]
    condition: str = ""

    def __str__(self) -> str:
        """Write the keys as they are typed in Python, and the condition."""
        return " ".join([*(f"{key}={value!r}" for key, value in self.keys.items()), self.condition]).strip()

    @property
    def public(self) -> "Advice":
        """The advice for an error that travels: without names of columns, marks in cells and numbers of lines."""
        return Advice({key: value if key in FORMAT_KEYS else "..." for key, value in self.keys.items()}, self.condition)


FORMAT_KEYS = {"header", "delimiter", "decimal", "thousands", "encoding"}


def in_node_config(text: str) -> str:
    """Write keys in a text as a node-config has them: hyphens, and true for True."""
    return re.sub(r"=(True|False)\b", lambda value: value[0].lower(), text.replace("leave_out", "leave-out"))


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
    advice : iterable of Advice, optional
        Alternatives of which each changes the error or ends it. The text of the error lists them after the message.
    """

    def __init__(self, message: str, *, local: str = "", advice: Iterable[Advice] = ()) -> None:
        """Store the message, the advice and the local detail, without characters that do not print."""
        self.fault, self.advice = message, tuple(advice)
        options = ", or ".join(dict.fromkeys(map(str, self.advice)))
        super().__init__(printable_text(f"{message}: set {options}" if options else message, lines=True))
        self.local = printable_text(local, lines=True)
        if local:
            self.add_note(self.local)


def value_text(value: object) -> str:
    """Write a value for an error: a word, a number, or a list of words; of others, perhaps rows, the type."""
    words = isinstance(value, list | tuple) and all(isinstance(word, str | PathLike) for word in value)
    if not (words or value is None or isinstance(value, str | PathLike | Number)):
        return f"of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


class ConfigError(FedPCAError, ValueError):
    """Error of a run-config or node-config: a key or a value is not allowed."""


def name_file(error: FedPCAError, name: str, *, travels: bool) -> FedPCAError:
    """Return the error with the name of its file; if it travels, only the site's own log has all values of advice."""
    fault = f"{name}: {error.fault}"
    if not travels:
        return type(error)(fault, local=error.local, advice=error.advice)
    text = in_node_config(str(FedPCAError(fault, advice=[each.public for each in error.advice])))
    detail = [error.local, *(in_node_config(str(each)) for each in error.advice if each != each.public)]
    return type(error)(text, local="; ".join(filter(None, detail)))


def combine_errors(errors: Sequence[FedPCAError]) -> FedPCAError:
    """Combine several errors into an error of the first error's class, whose text has each line once.

    Equal lines of several clients ("client 3 (name): text") are one line with all names.
    """
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    return type(errors[0])("\n".join(name_sources(CLIENT_LINE.findall(line)[0] for line in lines)))


def name_sources(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line "north; south: text" for each different text, from pairs of a source's name, if any, and text."""
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).extend([name] if name else [])
    return [f"{'; '.join(sources)}: {text}" if sources else text for text, sources in names.items()]


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
    """Replace control characters, line breaks, marks and all others that do not print by "?"; keep `lines`."""
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
    "'identities', the file with all sites' public keys ('fedpca site keys' makes both); set "
    "'ids-secret' to a secret that only salts ids",
}
"""What to take instead of a name of former versions: of an option, of an option's value (``option=value``), of a key of
a run-config or a node-config, of a method or of a command."""


def removal_text(name: str) -> str:
    """Return the end of the error for a name of former versions: what to take instead; empty for any other name."""
    return f"which was removed: {SUBSTITUTES[name]}" if name in SUBSTITUTES else ""
