"""A party of the personalised method: its own components, which it keeps over the rounds and projects by.

Each pass over the rows has phases of its own; those of the first, which holds rows out, begin with ``held-out``.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import eigh

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.moments import Head, head_and_diagonal
from fedpca_flwr.maths.own_rows import OwnRows, own_rows
from fedpca_flwr.maths.personalised import (
    converged_components,
    distance,
    gradient_step,
    largest_eigenvalue,
    local_components,
    personal_components,
    shared,
)
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.protocol.card import CentreOptions, CountOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, SumLimits
from fedpca_flwr.questions.fields import HEAD, head_fields
from fedpca_flwr.questions.row_limits import FIRST_WORDS, ROWS, product_limits
from fedpca_flwr.questions.rows import centre_phases, projection_phase
from fedpca_flwr.questions.rows_run import RowsClient
from fedpca_flwr.site.fold import require_fold

GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Values of mu to choose from, besides 0 and infinity."""

GLOBAL_ROUNDS = 30
"""At most so many rounds for the PCA of all rows."""

HELD_OUT = "held-out "
"""How the phases of the first of two passes begin."""


class PersonalisedOptions(CountOptions, CentreOptions):
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

    @property
    def grid(self) -> tuple[float, ...]:
        """The values of mu; of one that is given only that."""
        if self.mu == "held-out":
            return GRID
        return (math.inf if self.mu == "infinity" else float(self.mu),)

    def width(self, public: Public) -> int:
        """Columns of a block for the PCA of all rows."""
        return min(self.n_components + 10, public.features)


def phases(config: RunConfig, options: PersonalisedOptions) -> Questions:
    """One pass, or two."""
    choosing = options.mu == "held-out"
    first = _pass(config, options, HELD_OUT, len(GRID)) if choosing else {}
    choose = Question(
        asked=Payload((Field("shared", ("d", "k"), kind="orthonormal columns"), *_centre(config))),
        reply=Payload((Field("errors", ("grid",), kind="size"),)),
        answer=_choose,
        sizes=lambda public: {"k": options.n_components, "grid": len(GRID) + 2},
        limits=lambda asked, public: {
            "errors": np.full(len(GRID) + 2, 4.0 * ROWS * public.features * public.config.bound**2)
        },
        words=FIRST_WORDS,
    )
    report = Question(
        asked=Payload(
            (
                Field("shared", ("d", "k"), kind="orthonormal columns"),
                Field("strengths", ("<=m",), kind="size"),
                *_centre(config),
            )
        ),
        reply=Payload((Field("error", (), kind="size"), Field("distance", ()), Field("gram", ("k", "k")))),
        answer=_report,
        sizes=lambda public: {"k": options.n_components, "m": 1},
        limits=_of_report,
    )
    return {
        **first,
        **({"choose": choose} if choosing else {}),
        **_pass(config, options, "", 1),
        "report": report,
        **projection_phase(),
    }


def _pass(config: RunConfig, options: PersonalisedOptions, prefix: str, strengths: int) -> Questions:
    """Mean and variance of the rows used, their PCA, and the shared components for so many strengths."""
    used = Field("used", (), dtype="int64", kind="count")
    start = Question(
        reply=Payload((used, *HEAD[1:], Field("diagonal", ("d",), kind="size"))),
        answer=lambda party, asked: _start(party, prefix),
    )
    sums = centre_phases(prefix, lambda party: party.used(prefix))
    begin = sums if config.secure_aggregation else {f"{prefix}start": start}
    product = Question(
        asked=Payload((Field("block", ("d", "<=b")), *_centre(config))),
        reply=Payload((Field("product", ("d", "b")),)),
        answer=lambda party, asked: {"product": _about(party, asked, prefix).times_any(asked["block"])},
        sizes=lambda public: {"b": options.width(public)},
        limits=lambda asked, public: product_limits(asked["spread"], asked["block"]),
        times=GLOBAL_ROUNDS,
    )
    share = Question(
        asked=Payload(
            (
                Field("shared", ("m", "d", "k"), kind="orthonormal columns"),
                Field("strengths", ("m",), kind="positive"),
                *_centre(config),
            )
        ),
        reply=Payload((Field("shared", ("m", "d", "k")),)),
        answer=lambda party, asked: _share(party, asked, prefix),
        sizes=lambda public: {"m": strengths, "k": options.n_components},
        limits=lambda asked, public: {"shared": np.full(asked["shared"].shape, 2.0 * public.parties)},
        times=options.iterations,
        optional=True,
    )
    return {**begin, f"{prefix}product": product, f"{prefix}share": share}


def _centre(config: RunConfig) -> tuple[Field, ...]:
    """The mean of the rows used; where only sums are shown their deviations too, from which limits follow."""
    spread = (Field("spread", ("d",), kind="size"),) if config.secure_aggregation else ()
    return (Field("mean", ("d",)), Field("remainder", ("d",)), *spread)


def _of_report(asked: Fields, public: Public) -> SumLimits:
    k, total = asked["shared"].shape[1], float((asked["spread"] ** 2).sum())
    return {
        "error": np.array(total),
        "distance": np.array(2.0 * public.parties * k),
        "gram": np.full((k, k), total),
    }


def require_enough_rows(k: int, rows: int) -> None:
    """Refuse more components than there are rows, while some are held out.

    Raises
    ------
    ConfigError
    """
    if k > rows:
        raise ConfigError(
            f"run-config: 'n-components' is {k}, and all parties together have {rows} rows while some are held out to "
            "choose 'mu'; ask for so many at most, or set 'mu'"
        )


def best_mu(errors: Array, total: float) -> tuple[tuple[float], int]:
    """The mu of the least error on the rows held out, and its place; of equals the one that shares most."""
    best = int(np.flatnonzero(errors <= errors.min() + 1e-9 * total)[-1])
    return ((0.0, *GRID, math.inf)[best],), best


def held_out_errors(errors: Array, held: int) -> dict[str, float]:
    """What the rows held out say of the local, the personal and the pooled components."""
    local, personal, pooled = map(float, errors / max(held, 1))
    return {
        "held_out_rows": held,
        "held_out_squared_error_per_row": personal,
        "local_held_out_squared_error_per_row": local,
        "global_held_out_squared_error_per_row": pooled,
    }


OWN = "own components"
"""Where they are in a party's state: (m, d, k) for m strengths; those of the first pass with its prefix."""


OWN_MEAN = "own mean of rows"
"""Of so many, likewise, in two floats (2, d)."""


class PersonalisedClient(RowsClient):
    """Keeps its own components, and projects its rows by them."""

    options: PersonalisedOptions

    def require_ready(self) -> None:
        super().require_ready()
        if self.options.mu == "held-out":
            require_fold(self.site.node, len(self.data))

    @cached_property
    def held_out(self) -> NDArray[np.bool_]:
        """Which of this party's rows it holds out while mu is chosen (n,)."""
        return self.site.held_out(self.card.split)

    def used(self, prefix: str) -> Rows:
        """The rows that it uses in a pass: those of the first, which has a ``prefix``, are not held out."""
        return self.data[~self.held_out] if prefix else self.data

    def loadings(self, asked: Fields) -> Array:
        """Its own components, where it has any."""
        return self.site.state[OWN][0][0].T if OWN in self.site.state else asked["components"]


# What a party answers


def _start(party: PersonalisedClient, prefix: str) -> Fields:
    """Count and mean of the rows used, and their scatter's diagonal."""
    head, diagonal = head_and_diagonal(party.used(prefix))
    fields = head_fields(head, diagonal)
    return {"used": fields["count"], "mean": head.mean, "remainder": fields["remainder"], "diagonal": diagonal}


def _about(party: PersonalisedClient, asked: Fields, prefix: str) -> OwnRows:
    """The rows used, about the mean that is asked; of more rows than features the own mean is found once in a pass."""
    rows, known = party.used(prefix), None
    (n, d), name = rows.shape, f"{OWN_MEAN} {len(rows)}"
    if n > d:
        if name not in party.site.state:
            head, _ = head_and_diagonal(rows)
            party.site.state[name] = [np.stack([head.mean, head.remainder])]
        known = Head(n, *party.site.state[name][0])
    return own_rows(rows, asked["mean"], asked["remainder"], known)


def _share(party: PersonalisedClient, asked: Fields, prefix: str) -> Fields:
    """One iteration at each strength; the shared components are (m, d, k)."""
    about, V, strengths, state = _about(party, asked, prefix), asked["shared"], asked["strengths"], party.site.state
    kept = f"{prefix}{OWN}"
    own = state[kept][0] if kept in state else V
    if party.options.solver == "closed-form":
        own = personal_components(about, V, strengths, own)
        answer = shared(own, V)
    else:
        if "largest" not in state or kept not in state:
            state["largest"] = [np.array([largest_eigenvalue(about)])]
        own, answer = gradient_step(about, own, V, strengths, state["largest"][0])
    state[kept] = [own]
    return {"shared": answer}


def _choose(party: PersonalisedClient, asked: Fields) -> Fields:
    """Squared errors on the rows held out: of the local components, of each strength's own, of the shared ones."""
    about, V = _about(party, asked, HELD_OUT), asked["shared"]
    held = own_rows(party.data[party.held_out], asked["mean"], asked["remainder"])
    own = party.site.state[f"{HELD_OUT}{OWN}"][0]
    party.site.state.drop(f"{HELD_OUT}{OWN}")
    return {"errors": np.array([held.left_by(U) for U in (local_components(about, V), *own, V)])}


def _report(party: PersonalisedClient, asked: Fields) -> Fields:
    """What a party tells of its own components, which stay there; without strength they are the shared ones."""
    about, V, strength, state = _about(party, asked, ""), asked["shared"], asked["strengths"], party.site.state
    if strength.size:
        own = _final_components(party, about, V, float(strength[0]))
        _, rotation = eigh(about.gram(own))
        state[OWN] = [fix_signs(own @ rotation[:, ::-1])[None]]
    own = state[OWN][0][0] if strength.size else V
    return {"error": np.asarray(about.left_by(own)), "distance": distance(own, V), "gram": about.gram(V)}


def _final_components(party: PersonalisedClient, rows: OwnRows, V: Array, strength: float) -> Array:
    """A party's own components (d, k) for the final shared ones."""
    if strength == 0:
        return local_components(rows, V)
    own: Array = party.site.state[OWN][0][0]
    return converged_components(rows, V, strength, own) if party.options.solver == "closed-form" else own
