"""What a run of the personalised method may ask: its options, and its phases.

Each pass over the rows has phases of its own; those of the first, which holds rows out, begin with ``held-out``.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config import Count, RunConfig
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Phase, Phases, Public, SumLimits
from fedpca_flwr.statistics.moment_fields import HEAD
from fedpca_flwr.statistics.row_limits import FIRST_WORDS, ROWS, product_limits
from fedpca_flwr.statistics.rows import centre_phases, projection_phase

GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Values of mu to choose from, besides 0 and infinity."""

GLOBAL_ROUNDS = 30
"""At most so many rounds for the PCA of all rows."""

HELD_OUT = "held-out "
"""How the phases of the first of two passes begin."""


class PersonalisedOptions(CountOptions):
    """Options of the personalised method."""

    mu: Annotated[
        Literal["held-out", "infinity"] | Annotated[float, Limits(ge=0)],
        Limits(examples=["held-out", "infinity", 0.0, 0.5, 1e6]),
    ] = "held-out"
    """How strongly the shared components draw each party's own; 0: local PCA, ``"infinity"``: PCA of all rows."""
    solver: Literal["closed-form", "stiefel"] = "closed-form"
    """Eigenvectors, or the gradient steps of the paper's Algorithm 1."""
    iterations: Annotated[Count, Limits(examples=[1, 5])] = 20
    """At most so many for V, in each pass."""
    center: bool = True
    """Subtract the pooled mean."""

    @property
    def grid(self) -> tuple[float, ...]:
        """The values of mu; of one that is given only that."""
        if self.mu == "held-out":
            return GRID
        return (math.inf if self.mu == "infinity" else float(self.mu),)

    def width(self, public: Public) -> int:
        """Columns of a block for the PCA of all rows."""
        return min(self.n_components + 10, public.features)


def phases(config: RunConfig, options: PersonalisedOptions) -> Phases:
    """One pass, or two."""
    choosing = options.mu == "held-out"
    first = _pass(config, options, HELD_OUT, len(GRID)) if choosing else {}
    choose = Phase(
        asked=Payload((Field("shared", ("d", "k"), kind="orthonormal columns"), *_centre(config))),
        reply=Payload((Field("errors", ("grid",), kind="size"),)),
        sizes=lambda public: {"k": options.n_components, "grid": len(GRID) + 2},
        limits=lambda asked, public: {
            "errors": np.full(len(GRID) + 2, 4.0 * ROWS * public.features * public.config.bound**2)
        },
        words=FIRST_WORDS,
    )
    report = Phase(
        asked=Payload(
            (
                Field("shared", ("d", "k"), kind="orthonormal columns"),
                Field("strengths", ("<=m",), kind="size"),
                *_centre(config),
            )
        ),
        reply=Payload((Field("error", (), kind="size"), Field("distance", ()), Field("gram", ("k", "k")))),
        sizes=lambda public: {"k": options.n_components, "m": 1},
        limits=_of_report,
    )
    return {
        **first,
        **({"choose": choose} if choosing else {}),
        **_pass(config, options, "", 1),
        "report": report,
        **projection_phase(config),
    }


def _pass(config: RunConfig, options: PersonalisedOptions, prefix: str, strengths: int) -> Phases:
    """Mean and variance of the rows used, their PCA, and the shared components for so many strengths."""
    used = Field("used", (), dtype="int64", kind="count")
    start = Phase(reply=Payload((used, *HEAD[1:], Field("diagonal", ("d",), kind="size"))))
    begin = {f"{prefix}start": start} if config.transport == "clear" else centre_phases(prefix)
    product = Phase(
        asked=Payload((Field("block", ("d", "<=b")), *_centre(config))),
        reply=Payload((Field("product", ("d", "b")),)),
        sizes=lambda public: {"b": options.width(public)},
        limits=lambda asked, public: product_limits(asked["spread"], asked["block"]),
        times=GLOBAL_ROUNDS,
    )
    share = Phase(
        asked=Payload(
            (
                Field("shared", ("m", "d", "k"), kind="orthonormal columns"),
                Field("strengths", ("m",), kind="positive"),
                *_centre(config),
            )
        ),
        reply=Payload((Field("shared", ("m", "d", "k")),)),
        sizes=lambda public: {"m": strengths, "k": options.n_components},
        limits=lambda asked, public: {"shared": np.full(asked["shared"].shape, 2.0 * public.parties)},
        times=options.iterations,
        optional=True,
    )
    return {**begin, f"{prefix}product": product, f"{prefix}share": share}


def _centre(config: RunConfig) -> tuple[Field, ...]:
    """The mean of the rows used; where only sums are shown their deviations too, from which limits follow."""
    spread = (Field("spread", ("d",), kind="size"),) if config.transport != "clear" else ()
    return (Field("mean", ("d",)), Field("remainder", ("d",)), *spread)


def _of_report(asked: Fields, public: Public) -> SumLimits:
    k, total = asked["shared"].shape[1], float((asked["spread"] ** 2).sum())
    return {
        "error": np.array(total),
        "distance": np.array(2.0 * public.parties * k),
        "gram": np.full((k, k), total),
    }
