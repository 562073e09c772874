"""Recommendation of other methods: transports of their answers, and methods with smaller replies."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.question import Public, Questions
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.transports.choice import server_transport

EXAMPLE_CONFIGS = {
    "clear": RunConfig(),
    "masked": RunConfig(secure_aggregation=True, bound=1.0),
    "surviving": RunConfig(secure_aggregation=True, bound=1.0, survivors=3),
}
"""A run-config for each transport."""

SHARED_CARD_FIELDS = ("split", "differentially_private", "incomplete", "exposes")
"""What two methods must have in common for one to do instead of the other, on their cards."""


def alternatives(methods: Mapping[str, Method], card: MethodCard, public: Public, rows: int, max_bytes: int) -> str:
    """Return the end of an error: exact methods for such data with replies of at most `max_bytes`, smallest first."""
    candidates = []
    for name, method in methods.items():
        other = method.strategy.card
        options = {**other.examples[0], "n-components": public.config.n_components}
        script = script_or_none(method, public.config, options)
        differs = any(getattr(card, field) != getattr(other, field) for field in SHARED_CARD_FIELDS)
        if script is None or differs or other.successors or other.loadings_source or not other.exact:
            continue
        method_public = replace(public, options=other.options.parse(options))
        costs = [(phase, {"n": rows, **phase.request_sizes(method_public)}) for phase in script.values()]
        nbytes = max(phase.nbytes(sizes, with_optional=True) for phase, sizes in costs)
        if nbytes <= max_bytes:
            candidates.append((nbytes, f"{name} ({nbytes:,} bytes; rounds: {other.rounds.replace('`', '')})"))
    listing = ", ".join(text for _, text in sorted(candidates))
    return f". Exact methods whose largest reply is smaller: {listing or 'none'}"


def transports_of(method: Method) -> tuple[str, ...]:
    """Return the transports (clear, masked, surviving) by which a method can run with any of its example options."""
    pairs = itertools.product(EXAMPLE_CONFIGS, method.strategy.card.examples)
    names = [name for name, options in pairs if script_or_none(method, EXAMPLE_CONFIGS[name], options) is not None]
    return tuple(dict.fromkeys(names))


def script_or_none(method: Method, config: RunConfig, options: Mapping[str, Any]) -> Questions | None:
    """Return all questions of a run, in order, or None if the run's transport or an option is refused."""
    card = method.strategy.card
    try:
        return server_transport(config).script(card.name, card.script(config, card.options.parse(options)))
    except ConfigError:
        return None
