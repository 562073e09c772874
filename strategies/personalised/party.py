"""A party of the personalised method: its own components, which it keeps over the rounds and projects by.

Each pass over the rows has phases of its own; those of the first, which holds rows out, begin with ``held-out``.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import eigh

from fedpca_flwr.maths import moments, personalised
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.own_rows import OwnRows, own_rows
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.questions import method, row_limits
from fedpca_flwr.questions.rows import centre_phases
from fedpca_flwr.site.fold import require_fold

GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Values of mu to choose from, besides 0 and infinity."""

GLOBAL_ROUNDS = 30
"""At most so many rounds for the PCA of all rows."""

SHARED = method.Field("shared", ("d", "k"), kind="orthonormal columns")

OF_OWN_COMPONENTS = (
    method.Field("error", (), kind="size"),
    method.Field("distance", ()),
    method.Field("gram", ("k", "k")),
)

OF_OWN = (
    "sums of the sites' own projectors times blocks that it chooses, and of a fold of each site's rows; with one block "
    "after another these tell which subspaces the sites have"
)
"""What the sums tell of single sites (`PCAOptions.site_sums`)."""

HELD_OUT = "held-out "
"""How the phases of the first of two passes begin, and the names of its numbers."""


def centre_fields(
    config: method.RunConfig, options: "PersonalisedOptions", prefix: str
) -> tuple[method.Field, method.Field]:
    """Return the fields of the mean of the rows that a pass uses: one in a pass, that which its sums were about."""
    of_sums = method.by_transport(config, clear="mean", masked="centre") if options.center else "mean"
    mean = method.Field("mean", ("d",), fixed=f"{prefix}{of_sums}")
    return mean, method.Field("remainder", ("d",), fixed=f"{prefix}remainder")


class PersonalisedOptions(method.Options, method.CentreOptions):
    """Options of the personalised method."""

    mu: Annotated[
        Literal["held-out", "infinity"] | Annotated[float, Limits(ge=0)],
        Limits(examples=["held-out", "infinity", 0.0, 0.5, 1e6]),
    ] = "held-out"
    """How strongly the shared components draw each party's own; 0: local PCA, ``"infinity"``: PCA of all rows."""
    solver: Literal["closed-form", "stiefel"] = "closed-form"
    """Eigenvectors, or the gradient steps of the paper's Algorithm 1."""
    iterations: Annotated[method.Count, Limits(examples=[1, 5])] = 20
    """At most so many for V, in each pass."""

    @property
    def site_sums(self) -> Mapping[str, str]:
        return {"personalised": OF_OWN}

    @property
    def exposes(self) -> str:
        return "distribution" if self.mu == "held-out" else ""  # two sums: over all rows, and over all but a fifth

    @property
    def grid(self) -> tuple[float, ...]:
        """The values of mu; of one that is given only that."""
        if self.mu == "held-out":
            return GRID
        return (math.inf if self.mu == "infinity" else float(self.mu),)

    def width(self, public: method.Public) -> int:
        """Columns of a block for the PCA of all rows."""
        return min(self.n_components + 10, public.features)


def phases(config: method.RunConfig, options: PersonalisedOptions) -> method.Questions:
    """One pass, or two."""
    choosing = options.mu == "held-out"
    first = _pass(config, options, HELD_OUT, len(GRID)) if choosing else {}
    choose = method.Question(
        asked=method.Payload((SHARED, *centre_fields(config, options, HELD_OUT))),
        reply=method.Payload((method.Field("errors", ("grid",), kind="size"),)),
        answer=_choose,
        sizes=lambda public: {"k": options.n_components, "grid": len(GRID) + 2},
        limits=lambda asked, public: {"errors": np.array(_largest_total(asked, public))},
        words=method.FIRST_WORDS,
    )
    report = method.Question(
        asked=method.Payload(
            (SHARED, method.Field("strengths", ("<=m",), kind="size"), *centre_fields(config, options, ""))
        ),
        reply=method.Payload(OF_OWN_COMPONENTS),
        answer=_report,
        sizes=lambda public: {"k": options.n_components, "m": 1},
        limits=_of_report,
        words=method.FIRST_WORDS,
    )
    return {
        **first,
        **({"choose": choose} if choosing else {}),
        **_pass(config, options, "", 1),
        "report": report,
        **method.projection_phase(about=method.by_transport(config, clear="", masked="centre")),
    }


def _pass(config: method.RunConfig, options: PersonalisedOptions, prefix: str, strengths: int) -> method.Questions:
    """Mean and variance of the rows used, their PCA, and the shared components for so many strengths."""
    used = method.Field("used", (), dtype="int64", kind="count")
    start = method.Question(
        reply=method.Payload((used, *method.HEAD[1:], method.Field("diagonal", ("d",), kind="size"))),
        answer=lambda party, asked: _start(party, prefix),
    )
    centre = centre_fields(config, options, prefix)
    sums = centre_phases(prefix, lambda party: party.vault_of(party.used(prefix)))
    begin = method.by_transport(config, clear={f"{prefix}start": start}, masked=sums)
    product = method.Question(
        asked=method.Payload((method.Field("block", ("d", "<=b")), *centre)),
        reply=method.Payload((method.Field("product", ("d", "b")),)),
        answer=lambda party, asked: {"product": _about(party, asked, prefix).times_any(asked["block"])},
        sizes=lambda public: {"b": options.width(public)},
        limits=_of_product,
        words=method.FIRST_WORDS,
        times=GLOBAL_ROUNDS,
    )
    several = replace(SHARED, shape=("m", "d", "k"))
    share = method.Question(
        asked=method.Payload((several, method.Field("strengths", ("m",), kind="positive"), *centre)),
        reply=method.Payload((method.Field("shared", ("m", "d", "k")),)),
        answer=lambda party, asked: _share(party, asked, prefix),
        sizes=lambda public: {"m": strengths, "k": options.n_components},
        limits=lambda asked, public: {"shared": np.full(asked["shared"].shape, 2.0 * public.parties)},
        times=options.iterations,
        optional=True,
    )
    return {**begin, f"{prefix}product": product, f"{prefix}share": share}


def _reach(asked: method.Fields, public: method.Public) -> method.Array:
    """The largest size of a value (d,) of rows within `bound`, about the mean that is asked."""
    found: method.Array = row_limits.reach(asked, public) + np.abs(asked["remainder"])
    return found


def _largest_total(asked: method.Fields, public: method.Public) -> float:
    """Limit on the sum of squares of all rows about the mean that is asked, and some rounding."""
    reach = _reach(asked, public)
    return 2.0 * row_limits.ROWS * float(reach @ reach)


def _of_product(asked: method.Fields, public: method.Public) -> method.SumLimits:
    reach = _reach(asked, public)
    with np.errstate(over="ignore"):  # what is not finite is refused
        return {"product": 2.0 * row_limits.ROWS * np.outer(reach, reach @ np.abs(asked["block"]))}


def _of_report(asked: method.Fields, public: method.Public) -> method.SumLimits:
    k, total = asked["shared"].shape[1], _largest_total(asked, public)
    return {"error": np.array(total), "distance": np.array(2.0 * public.parties * k), "gram": np.full((k, k), total)}


OWN = "own components"
"""Where they are in a party's state: (m, d, k) for m strengths; those of the first pass with its prefix."""

OWN_MEAN = "own mean of rows"
"""Of so many, likewise, in two floats (2, d)."""


class PersonalisedClient(method.Client):
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

    def projection(self, asked: method.Fields) -> method.Projection:
        """By its own components, where it has any."""
        projection = super().projection(asked)
        return replace(projection, components=self.site.state[OWN][0][0].T) if OWN in self.site.state else projection


# What a party answers


def _start(party: PersonalisedClient, prefix: str) -> method.Fields:
    """Count and mean of the rows used, and their scatter's diagonal."""
    head, diagonal = moments.head_and_diagonal(party.used(prefix))
    fields = method.head_fields(head, diagonal)
    return {"used": fields["count"], "mean": head.mean, "remainder": fields["remainder"], "diagonal": diagonal}


def _about(party: PersonalisedClient, asked: method.Fields, prefix: str) -> OwnRows:
    """The rows used, about the mean that is asked; of more rows than features the own mean is found once in a pass."""
    rows, known = party.used(prefix), None
    (n, d), name = rows.shape, f"{OWN_MEAN} {len(rows)}"
    if n > d:
        if name not in party.site.state:
            head, _ = moments.head_and_diagonal(rows)
            party.site.state[name] = [np.stack([head.mean, head.remainder])]
        known = moments.Head(n, *party.site.state[name][0])
    return own_rows(rows, asked["mean"], asked["remainder"], known)


def _share(party: PersonalisedClient, asked: method.Fields, prefix: str) -> method.Fields:
    """One iteration at each strength; the shared components are (m, d, k)."""
    about, V, strengths, state = _about(party, asked, prefix), asked["shared"], asked["strengths"], party.site.state
    kept = f"{prefix}{OWN}"
    own = state[kept][0] if kept in state else V
    if party.options.solver == "closed-form":
        own = personalised.personal_components(about, V, strengths, own)
        answer = personalised.shared(own, V)
    else:
        if "largest" not in state or kept not in state:
            state["largest"] = [np.array([personalised.largest_eigenvalue(about)])]
        own, answer = personalised.gradient_step(about, own, V, strengths, state["largest"][0])
    state[kept] = [own]
    return {"shared": answer}


def _choose(party: PersonalisedClient, asked: method.Fields) -> method.Fields:
    """Squared errors on the rows held out: of the local components, of each strength's own, of the shared ones."""
    about, V = _about(party, asked, HELD_OUT), asked["shared"]
    held = own_rows(party.data[party.held_out], asked["mean"], asked["remainder"])
    own = party.site.state[f"{HELD_OUT}{OWN}"][0]
    party.site.state.drop(f"{HELD_OUT}{OWN}")
    return {"errors": np.array([held.left_by(U) for U in (personalised.local_components(about, V), *own, V)])}


def _report(party: PersonalisedClient, asked: method.Fields) -> method.Fields:
    """What a party tells of its own components, which stay there; without strength they are the shared ones."""
    about, V, strength, state = _about(party, asked, ""), asked["shared"], asked["strengths"], party.site.state
    if strength.size:
        own = _final_components(party, about, V, float(strength[0]))
        _, rotation = eigh(about.gram(own))
        state[OWN] = [fix_signs(own @ rotation[:, ::-1])[None]]
    own = state[OWN][0][0] if strength.size else V
    return {"error": np.asarray(about.left_by(own)), "distance": personalised.distance(own, V), "gram": about.gram(V)}


def _final_components(party: PersonalisedClient, rows: OwnRows, V: method.Array, strength: float) -> method.Array:
    """A party's own components (d, k) for the final shared ones."""
    if strength == 0:
        return personalised.local_components(rows, V)
    own: method.Array = party.site.state[OWN][0][0]
    return personalised.converged_components(rows, V, strength, own) if party.options.solver == "closed-form" else own
