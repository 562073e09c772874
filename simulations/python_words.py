"""Errors in the words of who calls `run` from Python: keyword arguments, and no run-config or node-config."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations.loopback import FILES
from fedpca_flwr.site.site import SEE_LOG
from fedpca_flwr.strategies import METHODS

POLICY = ("min-rows", "round-rows", "allowed-methods", "max-reply-bytes", "secure-only", "min-parties", "may-show")
"""Keys of a node-config that `run` sets for every party."""

SITE_KEY = re.compile(rf"node-config:? (?='(?:{'|'.join((*POLICY, *FILES))})')")
"""How errors name those keys."""

RUN_KEY = re.compile(r"run-config:? (?=')|run-config: ")


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Rewrite the texts of errors inside a with statement: keys become Python's keyword arguments."""
    try:
        yield
    except FedPCAError as error:
        raise type(error)(python_words(str(error)), local=error.local) from None


def python_words(text: str) -> str:
    """Rewrite an error's text for callers in Python: keys with underscores, True and False, no config names.

    Parameters
    ----------
    text : str
        Text of an error about keys of a run-config or a node-config.

    Returns
    -------
    str
    """
    text = RUN_KEY.sub("", SITE_KEY.sub("", text)).replace(f"; {SEE_LOG}", "")  # which no run in Python shows
    text = re.sub(r"(?:no option|unknown key) '[\w-]+'", lambda match: match[0].replace("-", "_"), text)
    text = _dashed(tuple(METHODS)).sub(lambda match: match[0].replace("-", "_"), text)
    text = text.replace("expected true or false", "expected True or False")
    return re.sub(r"(?<=\w=)(true|false)\b|(?<=' is )(true|false)\b", lambda match: match[0].capitalize(), text)


@cache
def _dashed(methods: tuple[str, ...]) -> re.Pattern[str]:
    """Compile a pattern that finds every option key with dashes, such as ``block-size``, of these methods."""
    keys = {*RunConfig.keys(), *POLICY, *FILES}
    for name in methods:
        keys |= set(METHODS[name].strategy.card.options.keys())
    words = sorted((key for key in keys if "-" in key), key=len, reverse=True)
    return re.compile(rf"(?<![\w./-])(?:{'|'.join(words)})(?![\w./-])")
