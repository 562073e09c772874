"""Keywords of a run in Python, and errors in the words of its caller: keywords and parties, no configs and clients."""

import operator
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, get_type_hints

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.simulations.loopback import FILES
from fedpca_flwr.site.site import SEE_LOG
from fedpca_flwr.strategies import METHODS

# keys of a node-config that `run` sets for every party
POLICY = ("min-rows", "round-rows", "allowed-methods", "max-reply-bytes", "secure-only", "min-parties", "may-show")
PARTY = re.compile(r"\bclient \d+ \(([\w .-]+)\)")  # how errors name a party that has a name
ROLE = re.compile(r"(?<![\w'/.=-])(?:client|site)(s?)(?![\w/-]|\.\w)")  # words for a party elsewhere


@cache
def run_keywords() -> dict[str, Parameter]:
    """Return a run's keywords by name: keys of the run and of sites, and the options of all methods, typed by cards."""
    fields: dict[str, list[tuple[Any, Any]]] = {key: [(Sequence[str | os.PathLike[str]] | None, None)] for key in FILES}
    for kind in (RunConfig, NodeConfig, *(method.strategy.card.options for method in METHODS.values())):
        types = get_type_hints(kind)  # without the limits of values
        for name, field in kind.model_fields.items():
            if kind is not NodeConfig or name.replace("_", "-") in POLICY:
                fields.setdefault(name, []).append((types[name], field.default))
    keywords = {}
    for name, choices in sorted(fields.items()):
        default = choices[0][1] if len({repr(default) for _, default in choices}) == 1 else ...  # the method's own
        annotation = reduce(operator.or_, dict.fromkeys(kind for kind, _ in choices))
        keywords[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
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
        raise type(error)(python_words(str(error)), local=error.local) from None


def python_words(text: str) -> str:
    """Rewrite an error's text for callers in Python: keys as keywords, parties for clients and sites, no configs."""
    from fedpca_flwr.config.explain import keyword_text  # for errors only

    text = re.sub(r"node-config:? (?=')", "", text).replace(f"; {SEE_LOG}", "")  # which no run in Python shows
    text = ROLE.sub(lambda match: "parties" if match[1] else "party", PARTY.sub(r"party '\1'", text))
    return keyword_text(text, {*METHODS.run_keys(), *POLICY, *FILES})
