"""What DSA and FAST-PCA share: parties that talk only to their neighbours in a graph, which Flower's server simulates.

Flower has a hub, so the server relays: what a party sends goes unchanged to its neighbours, and the server adds nothing
up. It is a simulated network, and the server sees all that passes.

Centring is exact. In the first rounds every party forwards all heads (count, mean, trace of the scatter) that it knows;
after as many rounds as the graph's diameter each knows all K of them, hence the pooled mean ``m`` and the total
variance. Then party i works with::

    A_i = K (S_i + n_i (m_i - m)(m_i - m)^T) / trace of the pooled scatter

whose mean over the parties is the pooled scatter with trace one, so that ``step-size`` has no unit. With ``auto`` it
follows from the largest eigenvalue that any A_i may have, and from how fast the graph mixes (`sanger.safe_step`). Heads
bring a bound on it, the largest eigenvalue of S_i and ``n_i |m_i - m|^2``: one number a party, and no further round.

The end is for the reader. Each party reports its own estimate, made orthonormal, and the energies of its rows in it.
The server averages the estimates to the model's components and adds the energies to its eigenvalues. The parties
project their rows with their own estimates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field as Limits

from fedpca_flwr.config import Count, RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.graph import Adjacency, diameter, graph_of, metropolis_weights, mixing_rate
from fedpca_flwr.maths.heads import Heads
from fedpca_flwr.maths.sanger import safe_step
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Phase, Phases, Public
from fedpca_flwr.statistics.rows import projection_phase

LONGEST = 10_000
"""Rounds of passing heads on, allowed for while the number of parties is not known yet."""


class GraphOptions(CountOptions):
    """Options of the decentralised methods."""

    graph: Literal["ring", "star", "complete", "erdos-renyi"] = "ring"
    """Who is whose neighbour."""
    edge_probability: Annotated[float, Limits(gt=0, le=1, examples=[0.5, 1.0])] = 0.5
    """Of an Erdős-Rényi graph, which `seed` draws."""
    iterations: Annotated[Count, Limits(examples=[1, 5, 20])] = 500
    """One round each."""
    step_size: Annotated[
        Annotated[float, Limits(gt=0, le=100)] | Literal["auto"], Limits(examples=["auto", 0.05, 0.2, 1.0])
    ] = "auto"
    """Against the pooled scatter with trace one: a number as published, or 'auto', from the parties' largest eigenvalue
    and the graph."""


def network(options: GraphOptions, parties: int, seed: int) -> Adjacency:
    """The graph of a run: every party makes the same.

    Raises
    ------
    ConfigError
    """
    try:
        return graph_of(options.graph, parties, probability=options.edge_probability, seed=seed)
    except ValueError as error:
        raise ConfigError(
            f"run-config: 'edge-probability' is {options.edge_probability:g}: {error}; raise it, or take another graph"
        ) from None


def step_size(options: GraphOptions, heads: Heads, graph: Adjacency) -> float:
    """The step of all iterations, which every party takes from all heads."""
    if options.step_size != "auto":
        return options.step_size
    return safe_step(heads.steepest(), mixing_rate(metropolis_weights(graph)))


def rounds_between(graph: Adjacency) -> int:
    """So often are heads passed on, after each party has told its own, until their neighbours' make them complete."""
    return max(1, diameter(graph)) - 1


HEADS = Payload(
    (
        Field("counts", ("parties",), "int64", kind="size"),  # 0: not known yet
        Field("traces", ("parties",), kind="size"),
        Field("tops", ("parties",), kind="size"),
        Field("means", ("parties", "d")),
        Field("remainders", ("parties", "d")),
    )
)
"""The heads that a party knows (`fedpca_flwr.maths.heads`)."""

REPORT = Payload(
    (
        Field("mean", ("d",)),
        Field("trace", (), kind="size"),
        Field("direction", (), kind="size"),
        Field("energies", ("k",)),
        Field("estimate", ("d", "k"), kind="orthonormal columns"),
    )
)


def graph_phases(config: RunConfig, options: GraphOptions, exchanged: tuple[str, ...]) -> Phases:
    """The phases of a method whose parties exchange (d, k) blocks of these names with their neighbours."""
    blocks = Payload(tuple(Field(name, ("d", "k")) for name in exchanged))

    def phase(relayed: Payload, reply: Payload, **rest: Any) -> Phase:
        return Phase(asked=_of_neighbours(relayed), reply=reply, sizes=_sizes, **rest)

    def passed_on(public: Public) -> int:
        return rounds_between(network(options, public.parties, config.seed)) if public.parties else LONGEST

    step = {"step": phase(blocks, blocks, times=options.iterations - 1)} if options.iterations > 1 else {}
    return {
        "head": phase(Payload(()), HEADS),
        "heads": phase(HEADS, HEADS, times=passed_on, optional=True),
        "start": phase(HEADS, blocks),
        **step,
        "report": phase(blocks, REPORT),
        "project": _projection(config),
    }


def _of_neighbours(payload: Payload) -> Payload:
    """What neighbours sent, one beside the other."""
    return Payload(tuple(replace(field, shape=("<=neighbours", *field.shape)) for field in payload.fields))


def _sizes(public: Public) -> dict[str, int]:
    return {"parties": public.parties, "neighbours": max(0, public.parties - 1), "k": public.options.n_components}


def _projection(config: RunConfig) -> Phase:
    """The last question: parties project with their own estimates, whose columns come in the model's order."""
    known = projection_phase(config)["project"]
    components, *others = known.asked.fields
    order = Field("order", ("k",), "int64", kind="size")
    asked = Payload((replace(components, shape=("k", "d")), *others, order))
    return replace(known, asked=asked, sizes=_sizes, limits=None)
