"""A party of personalised PCA: options, questions, and local components that the party keeps over the rounds."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits
from scipy.linalg import eigh
from typing_extensions import override

from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.questions import method, row_limits
from fedpca_flwr.questions.rows import centre_questions
from fedpca_flwr.site.rows.selection import Selection
from fedpca_flwr.site.rules.fold import require_fold
from fedpca_flwr.strategies.personalised import mixing as personalised
from fedpca_flwr.strategies.personalised.own_rows import LocalRows, centre_local_moments, centre_local_rows

MU_GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # values of mu to choose from, besides 0 and infinity
MAX_POOLED_ROUNDS = 30  # for the PCA of all rows
HELD_OUT_PREFIX = "held-out "  # of the first pass' phases, and of the names of its constants

SHARED_FIELD = method.Field("shared", ("d", "k"), kind="orthonormal columns")
REPORT_FIELDS = (method.Field("error", (), kind="size"), method.Field("distance", ()), method.Field("gram", ("k", "k")))

Deviation = Annotated[float, Limits(ge=1e-6, le=1e6)]
StepSize = Literal["auto"] | Annotated[float, Limits(gt=0, le=1e6)]

SITE_DISCLOSURE = (
    "sums of the sites' own projectors times blocks that the server chooses, and sums over the rows that each "
    "site held out of its fit. Sums for many blocks tell which subspaces the sites have"
)


def centre_fields(
    config: method.RunConfig, options: "PersonalisedOptions", prefix: str
) -> tuple[method.Field, method.Field]:
    """Return the request fields ``mean`` and ``remainder`` of a pass, constant over its questions."""
    of_sums = method.by_transport(config, clear="mean", masked="centre") if options.center else "mean"
    mean = method.Field("mean", ("d",), constant=f"{prefix}{of_sums}")
    return mean, method.Field("remainder", ("d",), constant=f"{prefix}remainder")


class PersonalisedOptions(method.Options, method.CentreOptions, method.VariantOptions):
    """Options of personalised PCA: components, centring, how strongly parties share, the solver and its steps."""

    published: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("local_step", "server_step"), 0.04),  # tuned by the authors for Figure 2
        "center": False,
        "mu": "sigma",
        "solver": "printed",
        "start": "uniform",
        "tolerance": 0.0,
    }

    mu: Annotated[
        Literal["held-out", "infinity", "sigma"] | Annotated[float, Limits(ge=0)],
        Limits(examples=["held-out", "infinity", "sigma", 0.0, 0.5, 1e6]),
    ] = "held-out"
    """Strength with which the shared components draw each site's own: 0 is local PCA, 'infinity' the PCA of all rows,
    'held-out' lets the run choose, and 'sigma' follows from `sigma_u` and `sigma_eps`."""
    sigma_u: Deviation = 0.2**0.5
    """Deviation of the sites' components from the shared ones, for mu='sigma'."""
    sigma_eps: Deviation = 0.5**0.5
    """Deviation of the noise in rows whose scores have variance 1, for mu='sigma', `local_step` and `server_step`."""
    solver: Literal["closed-form", "stiefel", "printed"] = "closed-form"
    """Way to compute each site's components: by eigenvectors, or by the gradient steps of the paper's Algorithm 1
    ('stiefel'), or by these steps with the gradient of its Fact 1, in which rows have half their weight ('printed')."""
    local_step: StepSize = "auto"
    """Step size of a site's components in Algorithm 1, the paper's alpha; 'auto' is the largest stable size of each
    site."""
    server_step: StepSize = "auto"
    """Step size of the shared components in Algorithm 1, the paper's beta; 'auto' is the largest stable size."""
    start: Literal["pooled", "uniform"] = "pooled"
    """First shared components, from which each site's own start too: the PCA of all rows, or random ones from `seed`,
    uniform among orthonormal columns."""
    iterations: Annotated[method.Count, Limits(examples=[1, 5])] = 20
    """Largest number of iterations for the shared components in each pass."""
    tolerance: Annotated[float, Limits(ge=0, le=90, examples=[0.0, 1.0])] = 0.01812
    """Angle in degrees by which the shared components move at most in the last iteration. A note says if they still
    move by more when `iterations` are over."""

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by summed projectors and held-out errors, for any options."""
        return {"personalised": SITE_DISCLOSURE}

    @property
    @override
    def exposes(self) -> str:
        """Kind of information on rows: "distribution" if mu is chosen by held-out rows, else none."""
        return "distribution" if self.mu == "held-out" else ""  # two sums: over all rows, and over all but a fifth

    @property
    def grid(self) -> tuple[float, ...]:
        """Values of the strength mu to fit: `MU_GRID` if mu is chosen by held-out rows, else the option's value."""
        if self.mu == "held-out":
            return MU_GRID
        if self.mu == "sigma":
            return (personalised.penalty_strength(self.sigma_eps**2, self.sigma_u**2),)
        return (math.inf if self.mu == "infinity" else float(self.mu),)

    @property
    def leaves_out_pooled(self) -> bool:
        """Whether the run needs no PCA of all rows: neither as its start nor as the unit of mu."""
        return self.start == "uniform" and self.mu == "sigma"

    def step_length(self, size: Literal["auto"] | float, stable: method.Array) -> method.Array:
        """Return step lengths (m,) by `local_step` or `server_step`: the paper's in our unit, or the stable ones."""
        noise = self.sigma_eps**2
        return stable if size == "auto" else np.full_like(stable, size / (noise * (1 + noise)))

    def width(self, public: method.Public) -> int:
        """Return the number of columns of the pooled PCA's block: n_components + 10, at most the features."""
        return min(self.n_components + 10, public.features)

    @override
    def product_columns(self, public: method.Public) -> int:
        """Return about how many columns a party's scatter is multiplied with in a pass: ten blocks, then those of V."""
        pooled = 10 * self.width(public)
        return pooled + personalised.KRYLOV_BLOCKS * self.n_components * len(self.grid) * self.iterations


def personalised_script(config: method.RunConfig, options: PersonalisedOptions) -> method.Questions:
    """Return the questions of personalised PCA: to choose mu a pass and errors; a pass, a report, the projection."""
    choose = method.Question(
        request=method.Payload((SHARED_FIELD, *centre_fields(config, options, HELD_OUT_PREFIX))),
        reply=method.Payload((method.Field("errors", ("grid",), kind="size"),)),
        answer=_answer_choose,
        sizes=lambda public: {"k": options.n_components, "grid": len(MU_GRID) + 2},
        limits=lambda request, public: {"errors": np.array(_max_total(request, public))},
        words=method.FIRST_WORDS,
    )
    strengths = method.Field("strengths", ("<=m",), kind="size")
    report = method.Question(
        request=method.Payload((SHARED_FIELD, strengths, *centre_fields(config, options, ""))),
        reply=method.Payload(REPORT_FIELDS),
        answer=_answer_report,
        sizes=lambda public: {"k": options.n_components, "m": 1},
        limits=_report_limits,
        words=method.FIRST_WORDS,
    )
    first = {**_pass_questions(config, options, HELD_OUT_PREFIX, len(MU_GRID)), "choose": choose}
    return {
        **(first if options.mu == "held-out" else {}),
        **_pass_questions(config, options, "", 1),
        "report": report,
        **method.projection_questions(mean_name=method.by_transport(config, clear="", masked="centre")),
    }


def _pass_questions(
    config: method.RunConfig, options: PersonalisedOptions, prefix: str, strengths: int
) -> method.Questions:
    """Return a pass's questions, named from ``prefix`` on: mean and variances, products, and V for all strengths."""
    used = method.Field("used", (), dtype="int64", kind="count")
    start = method.Question(
        reply=method.Payload((used, *method.HEAD[1:], method.Field("diagonal", ("d",), kind="size"))),
        answer=lambda party, request: _answer_start(party, prefix),
    )
    centre = centre_fields(config, options, prefix)
    sums = centre_questions(prefix, lambda party: party.make_vault(party.pass_rows(prefix)))
    begin = method.by_transport(config, clear={f"{prefix}start": start}, masked=sums)
    product = method.Question(
        request=method.Payload((method.Field("block", ("d", "<=b")), *centre)),
        reply=method.Payload((method.Field("product", ("d", "b")),)),
        answer=lambda party, request: {"product": _centred_rows(party, request, prefix).times_scaled(request["block"])},
        sizes=lambda public: {"b": options.width(public)},
        limits=_product_limits,
        words=method.FIRST_WORDS,
        times=0 if options.leaves_out_pooled else MAX_POOLED_ROUNDS,
    )
    stacked_field = replace(SHARED_FIELD, shape=("m", "d", "k"))
    share = method.Question(
        request=method.Payload((stacked_field, method.Field("strengths", ("m",), kind="positive"), *centre)),
        reply=method.Payload((method.Field("shared", ("m", "d", "k")),)),
        answer=lambda party, request: _answer_share(party, request, prefix),
        sizes=lambda public: {"m": strengths, "k": options.n_components},
        limits=lambda request, public: _share_limits(request, public, options),
        times=options.iterations,
        optional=True,
    )
    return {**begin, f"{prefix}product": product, f"{prefix}share": share}


def _share_limits(request: method.Fields, public: method.Public, options: PersonalisedOptions) -> method.SumLimits:
    """Return the limit ``shared`` (m, d, k) on sums of projections of V, or of V moved by a step of at most 1 / c."""
    c = request["strengths"]
    moves = max(1.0, float((c * options.step_length(options.server_step, 1 / c)).max()))
    return {"shared": np.full(request["shared"].shape, (1.0 + moves) * public.parties)}


def _max_deviation(request: method.Fields, public: method.Public) -> method.Array:
    """Return each feature's largest deviation of a value within `bound` from the request's mean."""
    return np.asarray(row_limits.reach(request, public) + np.abs(request["remainder"]))


def _max_total(request: method.Fields, public: method.Public) -> float:
    """Return a limit on the total sum of squares of all rows about the request's mean, doubled to allow rounding."""
    reach = _max_deviation(request, public)
    return 2.0 * row_limits.MAX_ROWS * float(reach @ reach)


def _product_limits(request: method.Fields, public: method.Public) -> method.SumLimits:
    """Return the limit ``product`` (d, b) on the summed scatters' product with the requested block, or infinity."""
    reach = _max_deviation(request, public)
    with np.errstate(over="ignore"):  # what is not finite is refused
        return {"product": 2.0 * row_limits.MAX_ROWS * np.outer(reach, reach @ np.abs(request["block"]))}


def _report_limits(request: method.Fields, public: method.Public) -> method.SumLimits:
    """Return limits on the summed reports: ``error``, ``distance`` and ``gram`` (k, k)."""
    k, total = request["shared"].shape[1], _max_total(request, public)
    return {"error": np.array(total), "distance": np.array(2.0 * public.parties * k), "gram": np.full((k, k), total)}


# keys in a party's state: of its own components (m, d, k) for m strengths, in the first pass after its prefix, and of
# the packed mask of the rows that it holds out, whose drawing hashes every row
COMPONENTS_KEY, HELD_OUT_KEY = "own components", "own rows held out"


class PersonalisedClient(method.Client):
    """Client of personalised PCA, which stores its own components and projects its rows by its own components."""

    options: PersonalisedOptions

    @override
    def require_ready(self) -> None:
        """Raise as the base class, and as `require_fold` if mu is chosen by held-out rows; select these rows."""
        super().require_ready()
        if self.options.mu == "held-out":
            require_fold(self.site.node, len(self.selection))
            self.fold(held_out=False)
            self.fold(held_out=True)

    def fold(self, *, held_out: bool) -> Selection:
        """Return the rows held out while mu is chosen, drawn and stored once in a run, or all other rows."""
        state = self.site.state
        if HELD_OUT_KEY not in state:
            state[HELD_OUT_KEY] = [np.packbits(self.site.held_out(self.card.split))]
        mask = np.unpackbits(state[HELD_OUT_KEY][0], count=len(self.selection)).astype(bool)
        name = "held out" if held_out else "not held out"
        return self.site.select(self.card.split, self.needs, name, mask if held_out else ~mask)

    def pass_rows(self, prefix: str) -> Selection:
        """Return the rows that a pass uses: in the first pass, which has a prefix, all but the rows held out."""
        return self.fold(held_out=False) if prefix else self.selection

    @override
    def projection(self, request: method.Fields) -> method.Projection:
        """Return the projection with the party's own components, or if none are stored with the request's."""
        projection = super().projection(request)
        if COMPONENTS_KEY not in self.site.state:
            return projection
        return replace(projection, components=self.site.state[COMPONENTS_KEY][0][0].T)


def _answer_start(party: PersonalisedClient, prefix: str) -> method.Fields:
    """Return the ``used`` count, ``mean``, ``remainder`` and scatter's ``diagonal`` of a party's rows in a pass."""
    head, diagonal = party.make_vault(party.pass_rows(prefix)).head_and_diagonal()
    fields = method.head_fields(head, diagonal)
    return {"used": fields["count"], "mean": head.mean, "remainder": fields["remainder"], "diagonal": diagonal}


def _centred_rows(party: PersonalisedClient, request: method.Fields, prefix: str) -> LocalRows:
    """Return a party's rows of a pass about the request's mean, or their scatter where that may be formed."""
    selection = party.pass_rows(prefix)
    vault = party.make_vault(selection)
    n, d = selection.shape
    mean, remainder = request["mean"], request["remainder"]
    # fewer rows have a smaller Gram matrix, but at a site with its own file they never meet the server's columns
    if vault.formed and (party.site.node.data or 2 * (n + party.options.n_components) > d):
        return centre_local_moments(vault.moments(), mean, remainder)
    return centre_local_rows(selection.rows, mean, remainder, vault.head_and_diagonal()[0] if n > d else None)


def _answer_share(party: PersonalisedClient, request: method.Fields, prefix: str) -> method.Fields:
    """Update and store the party's components at each strength, and return their projectors times V (m, d, k)."""
    rows, state = _centred_rows(party, request, prefix), party.site.state
    V, strengths = request["shared"], request["strengths"]
    key = f"{prefix}{COMPONENTS_KEY}"
    local, options = state[key][0] if key in state else V, party.options
    if options.solver == "closed-form":
        local = personalised.personal_components(rows, V, strengths, local)
        answer = personalised.project_components(local, V)
    else:
        if "largest" not in state or key not in state:
            state["largest"] = [np.array([personalised.largest_eigenvalue(rows)])]
        weight = 0.5 if options.solver == "printed" else 1.0
        steps = options.step_length(options.local_step, 1 / (weight * state["largest"][0] + strengths))
        server_steps = options.step_length(options.server_step, 1 / strengths)
        local, answer = personalised.gradient_step(rows, local, V, strengths, steps, server_steps, weight)
    state[key] = [local]
    return {"shared": answer}


def _answer_choose(party: PersonalisedClient, request: method.Fields) -> method.Fields:
    """Return ``errors`` on held-out rows: of local PCA, of the components at each strength (then dropped), and of V."""
    rows, V = _centred_rows(party, request, HELD_OUT_PREFIX), request["shared"]
    held_out = centre_local_rows(party.fold(held_out=True).rows, request["mean"], request["remainder"])
    local = party.site.state[f"{HELD_OUT_PREFIX}{COMPONENTS_KEY}"][0]
    party.site.state.drop(f"{HELD_OUT_PREFIX}{COMPONENTS_KEY}")
    candidates = (personalised.local_components(rows, V), *local, V)
    return {"errors": np.array([held_out.residual_energy(U) for U in candidates])}


def _answer_report(party: PersonalisedClient, request: method.Fields) -> method.Fields:
    """Return ``error`` and ``distance`` from V of a party's components, which it stores, and ``gram``, V'Y'Y V."""
    rows, state = _centred_rows(party, request, ""), party.site.state
    V, strength = request["shared"], request["strengths"]
    local = V
    if strength.size:
        if strength[0] == 0:
            local = personalised.local_components(rows, V)
        else:
            local = state[COMPONENTS_KEY][0][0]
            if party.options.solver == "closed-form":
                local = personalised.converged_components(rows, V, float(strength[0]), local)
        _, rotation = eigh(rows.gram(local))
        state[COMPONENTS_KEY] = [fix_signs(local @ rotation[:, ::-1])[None]]
        local = state[COMPONENTS_KEY][0][0]
    error, distance = rows.residual_energy(local), personalised.subspace_distance(local, V)
    return {"error": np.asarray(error), "distance": distance, "gram": rows.gram(V)}
