"""Errors in the words of who calls `run` from Python: keyword arguments, and no run-config or node-config."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations.loopback import FILES
from fedpca_flwr.site.site import SEE_LOG
from fedpca_flwr.strategies import METHODS

# keys of a node-config that `run` sets for every party
POLICY = ("min-rows", "round-rows", "allowed-methods", "max-reply-bytes", "secure-only", "min-parties", "may-show")
SITE_KEY = re.compile(rf"node-config:? (?='(?:{'|'.join((*POLICY, *FILES))})')")  # how errors name those keys


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Rewrite the texts of errors inside a with statement: keys become Python's keyword arguments."""
    try:
        yield
    except FedPCAError as error:
        raise type(error)(python_words(error.fault), local=error.local, advice=error.advice) from None


def python_words(text: str) -> str:
    """Rewrite an error's text on config keys for callers in Python: underscores, True and False, no config names."""
    from fedpca_flwr.config.explain import keyword_text  # for errors only

    text = SITE_KEY.sub("", text).replace(f"; {SEE_LOG}", "")  # which no run in Python shows
    return keyword_text(text, {*METHODS.run_keys(), *POLICY, *FILES})
