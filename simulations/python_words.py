"""Keywords of a run in Python, and errors in the words of its caller: keywords and parties, no configs and clients."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import Parameter, Signature
from types import MappingProxyType

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import Config, RunConfig
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations.loopback import FILES
from fedpca_flwr.site.site import SEE_LOG
from fedpca_flwr.strategies import METHODS

# keys of a node-config that `run` sets for every party
POLICY = ("min-rows", "round-rows", "allowed-methods", "max-reply-bytes", "secure-only", "min-parties", "may-show")
PARTY = re.compile(r"\bclient \d+ \(([\w .-]+)\)")  # how errors name a party that has a name
ROLE = re.compile(r"(?<!\w)'[^'\n]*'|(?<![\w/.=-])(?:client|site)(s?)(?![\w/-]|\.\w)")  # quotes, or words for a party


@cache
def run_keywords() -> dict[str, Parameter]:
    """Return a run's keywords by name, typed by cards, with the default ``...`` where methods have others."""
    paths = Sequence[str | os.PathLike[str]] | None
    keywords = {key: Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=paths) for key in FILES}
    site = {name: keyword for name, keyword in NodeConfig.keywords().items() if name.replace("_", "-") in POLICY}
    kinds: list[type[Config]] = [RunConfig, *(method.strategy.card.options for method in METHODS.values())]
    for kind in kinds:
        for name, keyword in (kind.keywords() | site).items():
            other = keywords.setdefault(name, keyword)
            default = keyword.default if keyword.default == other.default else ...
            keywords[name] = keyword.replace(default=default, annotation=other.annotation | keyword.annotation)
    return keywords


class RunSignature(Signature):
    """Signature of a callable with ``**options`` of a run, which lists them when it is read: methods are imported."""

    @property
    def parameters(self) -> MappingProxyType[str, Parameter]:
        """Parameters by name: the callable's own, the run's keywords, and ``options``."""
        own = dict(super().parameters)
        last = own.pop("options")
        return MappingProxyType({**own, **run_keywords(), **own, "options": last})


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Rewrite the texts of errors inside a with statement: keys become Python's keyword arguments."""
    try:
        yield
    except FedPCAError as error:
        raise type(error)(python_words(error.fault), local=error.local, advice=error.advice) from None


def python_words(text: str) -> str:
    """Rewrite an error's text for callers in Python: keys as keywords, parties for clients and sites, no configs."""
    from fedpca_flwr.config.explain import keyword_text  # for errors only

    text = re.sub(r"node-config:? (?=')", "", text).replace(f"; {SEE_LOG}", "")  # which no run in Python shows
    text = PARTY.sub(r"party '\1'", text)
    text = ROLE.sub(lambda role: role[0] if role[0][0] == "'" else "parties" if role[1] else "party", text)
    return keyword_text(text, {*METHODS.run_keys(), *POLICY, *FILES})
