"""What another method would do instead: how its answers can travel, and whether its replies are smaller."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.question import Public, Questions
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.transports.choice import server_transport

TRAVEL = {
    "clear": RunConfig(),
    "masked": RunConfig(secure_aggregation=True, bound=1.0),
    "surviving": RunConfig(secure_aggregation=True, bound=1.0, survivors=3),
}
"""A run-config for each transport."""

ALIKE = ("split", "differentially_private", "incomplete", "exposes")
"""What two methods must have in common for one to do instead of the other, on their cards."""


def alternatives(methods: Mapping[str, Method], card: MethodCard, public: Public, rows: int, most: int) -> str:
    """The exact methods for the same data whose replies have at most so many bytes, as the end of an error."""
    found = []
    for name, method in methods.items():
        other = method.strategy.card
        own = {**other.examples[0], "n-components": public.config.n_components}
        script = script_of(method, public.config, own)
        unlike = any(getattr(card, what) != getattr(other, what) for what in ALIKE)
        if script is None or unlike or other.goes_on_as or other.after or not other.exact:
            continue
        known = replace(public, options=other.options.parse(own))
        asked = [(phase, {"n": rows, **phase.asked_sizes(known)}) for phase in script.values()]
        nbytes = max(phase.nbytes(sizes, whole=True) for phase, sizes in asked)
        if nbytes <= most:
            found.append((nbytes, f"{name} ({nbytes:,} bytes; rounds: {other.rounds.replace('`', '')})"))
    told = ", ".join(text for _, text in sorted(found))
    return f". Exact methods whose largest reply is smaller: {told}" if told else ". No exact method's are smaller"


def transports_of(method: Method) -> tuple[str, ...]:
    """How a method's answers can travel: what its phases allow."""
    examples = method.strategy.card.examples
    return tuple(
        name for name, config in TRAVEL.items() if any(script_of(method, config, own) is not None for own in examples)
    )


def script_of(method: Method, config: RunConfig, options: Mapping[str, Any]) -> Questions | None:
    """All that a run may ask, in its order; None where the method's answers cannot travel so."""
    card = method.strategy.card
    try:
        return server_transport(config).script(card.name, card.phases(config, card.options.parse(options)))
    except ConfigError:
        return None
