"""Options of DP-PCA with their noise, and a party's half: noisy sums in integers.

The server and the parties compute the same noise from the same options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator
from typing_extensions import override

from fedpca_flwr.config.run_config import refusal
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths import privacy
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.questions import method
from fedpca_flwr.site.rules.policy import permit_privacy
from fedpca_flwr.site.rules.repeats import require_budget
from fedpca_flwr.strategies.dp_pca import integer_sums, private_scatter
from fedpca_flwr.strategies.dp_pca.shells import MAX_SHELLS

MAX_TOTAL_ROWS = 2**34  # rows of all parties, whose products and noise add up in a word of 64 bits
MAX_NOISE_DEVIATIONS = 60.0  # number of standard deviations that no noise reaches (probability 1e-780)

LengthBound = Annotated[float, Limits(ge=1e-150, le=1e150)]

UNBOUNDED_SHARES = {
    "octaves": 0.01,
    "centre": 0.02,
    "nearer_octaves": 0.01,
    "nearer_centre": 0.04,
    "directions": 0.9,
    "variances": 0.02,
}
BUDGET_SHARES: dict[str, dict[str, float]] = {
    "shells": UNBOUNDED_SHARES,
    "directions": UNBOUNDED_SHARES,
    "joint": {"joint": 1.0},
}
"""Phases of each release, and the share of 1 / multiplier^2 that each phase takes."""

FIELD_WEIGHTS: dict[str, dict[str, float]] = {
    "octaves": {"octaves": 1.0},
    "centre": {"rows": 0.0, "sum": 1.0},
    "nearer_octaves": {"octaves": 1.0},
    "nearer_centre": {"rows": 0.0, "sum": 1.0},
    "joint": {"rows": 0.0, "sum": 0.5, "products": 1.0},  # of the sum by the option `sum_weight`
    "directions": {"octaves": 0.1, "energies": 0.1, "products": 1.0},
    "variances": {"rows": 0.0, "squares": 1.0},
}
"""Fields of each phase, for rows of length at most 1, and their weights."""

COUNT_WEIGHT = 0.3  # of a noisy row count next to the other fields, which costs 4 % more noise

FIELD_STEPS = {
    **dict.fromkeys(("rows", "octaves", "sum"), integer_sums.GRID_STEPS),
    **dict.fromkeys(("products", "squares", "energies"), integer_sums.GRID_STEPS**2),
}
"""Integer steps of a single row, or of a row of length 1, by field (`fedpca_flwr.strategies.dp_pca.integer_sums`)."""

REQUIRED_OPTIONS = {
    "clip": "the public bound on the length of a row; longer rows are shortened to it",
    "honest-parties": "how many parties at least add their share of the noise and keep it from the server",
}


class DPOptions(method.Options, method.VariantOptions):
    """Options of DP-PCA: components, the privacy budget, the release, and whom the parties trust.

    A bound, where a release needs a bound, must be public: chosen without a look at the data.
    """

    published: ClassVar[Mapping[str, Any]] = {
        "release": "joint",
        "clip": 5.0,
        "relation": "replace-one",
        "count": "public",
        "calibration": "classical",
        "sum_weight": 0.5**0.5,  # sum and products have noise of the same multiple of their sensitivities
    }

    epsilon: Annotated[
        Annotated[float, Limits(gt=0, le=100)] | Literal["infinity"], Limits(examples=[0.1, 1.0, 100.0, "infinity"])
    ] = 1.0
    """Epsilon of the run, for one row. In simulations, 'infinity' runs without noise and clipping."""
    delta: Annotated[float, Limits(gt=0, lt=0.1)] = 1e-5
    """Delta of the run, for one row."""
    relation: integer_sums.Relation = "add-remove"
    """Relation of neighbouring data sets: one row more or less, or one row replaced."""
    release: Literal["shells", "directions", "joint"] = "shells"
    """Sums that the sites release: see above."""
    clip: LengthBound | None = None
    """Length to which ``joint`` shortens rows; ``joint`` requires this option. Choose it without a look at the data."""
    sum_weight: Annotated[float, Limits(ge=0.01, le=100, examples=[0.5, 2.0])] = 0.5
    """Weight of the sum of rows beside their products, in ``joint``: twice the weight is half of the noise."""
    calibration: Literal["analytic", "classical"] = "analytic"
    """Noise over sensitivity: the smallest (Balle and Wang 2018), or ``sqrt(2 ln(1.25 / delta)) / epsilon`` where this
    is more."""
    trust: Annotated[Literal["local", "distributed"], Limits(examples=[])] = "local"
    """Noise of a site: all noise ('local'), or a share of the noise ('distributed')."""
    honest_parties: Annotated[int, Limits(ge=0)] = 0
    """Smallest number of sites that add their share of the noise and do not show it to the server; ``distributed``
    requires this option."""
    count: Literal["noised", "public"] = "noised"
    """Number of rows that a site sends: noisy, or true ('public'). With ``replace-one`` it is always true."""
    noise_seed: Annotated[int, Limits(ge=0, examples=[1, 2, 3])] = 0
    """Seed of the noise, for simulations only, because such a run is not private. With 0 the noise comes from the
    operating system."""

    @model_validator(mode="before")
    @classmethod
    def _default_count(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Default ``count`` to 'public' for the relation 'replace-one', under which row counts need no noise."""
        return {"count": "public", **values} if values.get("relation") == "replace-one" else values

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        """Raise for missing or contradictory options, and for privacy parameters whose noise would hide any sum."""
        missing = ["clip"] if self.release == "joint" and self.clip is None and self.private else []
        missing += ["honest-parties"] if not self.honest_parties and self.trust == "distributed" else []
        if missing:
            raise refusal("; ".join(f"'{key}' is missing: {REQUIRED_OPTIONS[key]}" for key in missing))
        if self.unbounded and self.clip:
            raise refusal(
                f"'clip' is given, and release='{self.release}' needs no bound: leave it out, or set release='joint'"
            )
        if self.count == "noised" and self.relation == "replace-one":
            raise refusal("count='noised' protects nothing with relation='replace-one', which keeps the number of rows")
        noises = [self.noise(phase) for phase in self.phases] if self.private else []
        if any(max(noise.deviations.values()) > integer_sums.MAX_DEVIATION for noise in noises):
            raise refusal("'epsilon' and 'delta' are so small that their noise would hide any sum")
        return self

    @property
    def private(self) -> bool:
        """True where epsilon is finite, so that parties add noise."""
        return self.epsilon != "infinity"

    @property
    def unbounded(self) -> bool:
        """True for the releases 'shells' and 'directions', which need no bound on the length of rows."""
        return BUDGET_SHARES[self.release] is UNBOUNDED_SHARES

    @property
    def phases(self) -> tuple[str, ...]:
        """Names of the release's questions for noisy sums, in their order; without noise only "moments"."""
        return tuple(BUDGET_SHARES[self.release]) if self.private else ("moments",)

    @property
    def max_shells(self) -> int:
        """Largest number of shells (ranges of distance from the centre) of the release."""
        return MAX_SHELLS if self.release == "shells" else 1

    @property
    def multiplier(self) -> float:
        """Noise multiplier of the whole run, standard deviation over sensitivity; 0 for an infinite epsilon."""
        smallest = privacy.gaussian_multiplier(float(self.epsilon), self.delta)
        if self.calibration == "analytic":
            return smallest
        # the formula holds for epsilon below 1 (Dwork and Roth 2014, appendix A), and far above it is not private
        return max(smallest, math.sqrt(2 * math.log(1.25 / self.delta)) / float(self.epsilon))

    def noise(self, phase: str) -> Noise:
        """Return the noise multiplier of a phase of the release, and the deviations by field that each party adds."""
        multiplier = self.multiplier / math.sqrt(BUDGET_SHARES[self.release][phase])
        party_factor = 1.0 if self.trust == "local" else self.honest_parties**-0.5
        weights = self._field_weights(phase)
        deviation = multiplier * _sensitivity(self.relation, weights) * party_factor
        steps = {name: deviation / weight * FIELD_STEPS[name] if weight else 0.0 for name, weight in weights.items()}
        return Noise(multiplier, {name: integer_sums.integer_deviation(s) if s else 0 for name, s in steps.items()})

    def limits(self, phase: str, d: int, parties: int) -> method.SumLimits:
        """Return public limits, by field in integer steps, on the sums of a phase over all parties and their noise.

        They are below 2^62, so that sums stay integers of 64 bits.
        """
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (),
            "octaves": (private_scatter.OCTAVES,),
            "sum": (d,),
            "products": (packed_size(d),),
            "squares": (self.n_components + 1,),
            "energies": (),
        }
        limits = {}
        for name, deviation in self.noise(phase).deviations.items():
            limit = MAX_TOTAL_ROWS * FIELD_STEPS[name] + MAX_NOISE_DEVIATIONS * parties * deviation
            limits[name] = np.full(shapes[name], limit)
        return limits

    def replacement_epsilon(self) -> float:
        """Return the epsilon, for all phases at the run's delta, of replacing a single row, if row counts are known."""
        multipliers = []
        for phase in self.phases:
            value_weights = {name: w for name, w in self._field_weights(phase).items() if name != "rows"}
            ratio = _sensitivity(self.relation, self._field_weights(phase)) / _sensitivity("replace-one", value_weights)
            multipliers.append(self.noise(phase).multiplier * ratio)
        return privacy.gaussian_epsilon(privacy.compose_multipliers(multipliers), self.delta)

    def _field_weights(self, phase: str) -> dict[str, float]:
        """Return the relative weights of a phase's fields in the noise, including a noisy row count's weight."""
        weights = FIELD_WEIGHTS[phase]
        weights = {**weights, "sum": self.sum_weight} if phase == "joint" else weights
        return {**weights, "rows": COUNT_WEIGHT} if "rows" in weights and self.count == "noised" else weights


def _sensitivity(relation: integer_sums.Relation, weights: Mapping[str, float]) -> float:
    """Return the joint L2 sensitivity of a phase's weighted fields to adding, removing or replacing a single row."""
    product_weight = math.hypot(*(weights.get(name, 0.0) for name in ("octaves", "products", "squares", "energies")))
    sum_weight, count_weight = weights.get("sum", 0.0), weights.get("rows", 0.0)
    return integer_sums.sensitivity(relation, sums=sum_weight, products=product_weight, count=count_weight)


class Noise(NamedTuple):
    """Noise that a party adds in a phase."""

    multiplier: float  # standard deviation of the phase's total noise over the sensitivity
    deviations: dict[str, int]  # by field in steps (`FIELD_STEPS`), of products on the diagonal; 0 for no noise


REPLY_SHAPES = {"rows": (), "octaves": ("octaves",), "sum": ("d",), "squares": ("k+1",), "energies": ("shells",)}
CENTRE_FIELD, BOUND_FIELD = method.Field("centre", ("d",)), method.Field("bound", (), kind="positive")
SHELLS_FIELD = method.Field("shells", ("<=shells", "3"), kind="size")
COMPONENTS_FIELD = method.Field("components", ("k", "d"), kind="orthonormal rows")
REQUEST_FIELDS = {
    "octaves": (),
    "centre": (BOUND_FIELD,),
    "nearer_octaves": (CENTRE_FIELD,),
    "nearer_centre": (CENTRE_FIELD, BOUND_FIELD),
    "directions": (CENTRE_FIELD, SHELLS_FIELD),
    "variances": (CENTRE_FIELD, BOUND_FIELD, COMPONENTS_FIELD),
    "joint": (),
}


def _noisy_question(phase: str, options: DPOptions) -> method.Question:
    """Return the question for the noisy sums of a single phase, with its limits in integer steps."""
    k, triangles = options.n_components, ("shells", "d(d+1)/2") if phase == "directions" else ("d(d+1)/2",)
    shapes: dict[str, tuple[str, ...]] = {**REPLY_SHAPES, "products": triangles}
    sizes = {"octaves": private_scatter.OCTAVES, "shells": options.max_shells, "k": k, "k+1": k + 1}
    return method.Question(
        request=method.Payload(REQUEST_FIELDS[phase]),
        reply=method.Payload(tuple(method.Field(name, shapes[name]) for name in FIELD_WEIGHTS[phase])),
        answer=lambda party, request: party.release(phase, request),
        sizes=lambda public: sizes,
        differentially_private=True,
        limits=lambda request, public: public.options.limits(phase, public.features, public.parties),
    )


def dp_script(config: method.RunConfig, options: DPOptions) -> method.Questions:
    """Return the questions of DP-PCA: the noisy sums of the release's phases, and the projection of rows.

    With infinite epsilon the sums are those of P-COV in clear. Raise ConfigError for more honest parties than a sum is
    sure to have.
    """
    projection = method.projection_questions(differentially_private=True)
    if not options.private:
        as_p_cov = "with epsilon='infinity' this is p-cov: run p-cov itself"
        moments = method.moments_questions(method.RunConfig())["moments"]
        return {"moments": replace(moments, suggestion=as_p_cov), **projection}
    if options.trust == "distributed" and options.honest_parties > config.min_summed_parties:
        raise method.ConfigError(
            f"run-config: 'honest-parties' is {options.honest_parties}, at most {config.min_summed_parties} = "
            "'survivors': fewer parties would not add noise enough"
        )
    return {**{name: _noisy_question(name, options) for name in options.phases}, **projection}


class DPPCAClient(method.Client):
    """Client of DP-PCA: adds noise to its sums, and records each release and its privacy budget in the journal."""

    options: DPOptions

    @override
    def require_ready(self) -> None:
        """Raise as `_check_noise`, and DataError for more rows than integer sums can hold."""
        self._check_noise()
        if self.options.private and len(self.selection) > integer_sums.MAX_ROWS:
            raise method.DataError(
                f"this site has more than {integer_sums.MAX_ROWS:,} rows, the most that a party's sums in whole "
                "numbers can have; split them over two nodes"
            )

    def release(self, phase: str, request: method.Fields) -> method.Fields:
        """Return the noisy sums of a phase over this party's rows, in integer steps, after recording it in the journal.

        Raise as `_require_possible`, and DisclosureError if the release would exceed the site's budget.
        """
        self._require_possible(request)
        options, node, multiplier = self.options, self.site.node, self.options.noise(phase).multiplier

        def permit(run_multipliers: Sequence[float], other_multipliers: Sequence[float]) -> None:
            """Raise DisclosureError if the release, with the journal's earlier ones, exceeds the site's budget."""
            if node.epsilon_budget is not None:
                budget = {"epsilon": node.epsilon_budget, "delta": node.delta_budget}
                total = options.multiplier
                require_budget(multiplier, run_multipliers, other_multipliers, total_multiplier=total, **budget)

        self.journal.record_release(phase, options.relation, multiplier, permit)
        return self._noisy_sums(phase, request)

    def _noisy_sums(self, phase: str, request: method.Fields) -> dict[str, method.Array]:
        """Return a phase's sums over this party's rows by field, with discrete Gaussian noise, in integer steps."""
        options, d = self.options, self.selection.shape[1]
        source = integer_sums.system_randomness()
        if options.noise_seed:
            place = options.phases.index(phase)
            source = integer_sums.seeded_randomness(options.noise_seed, self.site.node.partition_id, place)
        reply: dict[str, method.Array] = {}
        for name, deviation in options.noise(phase).deviations.items():
            values = self._integer_sum(name, phase, request)
            if name == "products":
                noise = [
                    integer_sums.symmetric_noise(d, deviation, source) for _ in range(values.size // packed_size(d))
                ]
                values = values + np.reshape(noise, values.shape)
            elif deviation:
                values = values + integer_sums.discrete_gaussian(values.size, deviation, source).reshape(values.shape)
            reply[name] = values
        return reply

    def _integer_sum(self, name: str, phase: str, request: method.Fields) -> method.Array:
        """Return a field's noiseless sum over this party's rows in integer steps, with bounded sensitivity."""
        data = self.selection.rows
        centre = request.get("centre", np.zeros(data.shape[1]))
        if name == "rows":
            return np.asarray(float(len(data) * integer_sums.GRID_STEPS))
        if name == "octaves":
            return integer_sums.integer_octave_counts(data, centre)
        if phase == "directions":
            if name == "energies":
                return integer_sums.integer_energies(data, centre, request["shells"])
            return integer_sums.integer_shell_products(data, centre, request["shells"])
        bound = float(self.options.clip or request["bound"])
        if name == "squares":
            return integer_sums.integer_score_squares(data, centre, request["components"], bound)
        statistic = integer_sums.integer_sum if name == "sum" else integer_sums.integer_products
        return statistic(data, centre, bound)

    def _require_possible(self, request: method.Fields) -> None:
        """Raise ContractError for a bound, or an end of a shell, outside the public range of lengths."""
        minimum, maximum = 2.0**private_scatter.MIN_EXPONENT, 2.0**private_scatter.MAX_EXPONENT
        ends = request.get("shells", np.zeros((0, 3)))[:, private_scatter.SHELL_END]
        for name, distances in (("bound", request.get("bound", minimum)), ("shells", ends)):
            for distance in np.ravel(distances):
                if not minimum <= distance <= maximum:
                    raise method.ContractError(
                        f"{method.SERVER}: field '{name}' is {distance:g}, expected {minimum:g} to {maximum:g}"
                    )

    @override
    def permit_survivors(self, dropped: int) -> None:
        """Raise DisclosureError if too few honest parties remain to make the noise of a sum large enough."""
        # whoever dropped out may have been honest: the others must be as many as the noise is made for
        options, node = self.options, self.site.node
        if node.data and options.trust == "distributed" and options.honest_parties > node.honest_parties - dropped:
            raise DisclosureError(
                f"{dropped} of {node.num_partitions} parties dropped out, and the run needs {options.honest_parties} "
                f"honest ones among the others; this site trusts {node.honest_parties} in all "
                "(node-config 'honest-parties')"
            )

    def _check_noise(self) -> None:
        """Raise ConfigError or DisclosureError if noise would be absent, too small or known, or the site forbids it."""
        options, node = self.options, self.site.node
        has_data = bool(node.data)
        if has_data and not options.private:
            raise method.ConfigError(
                "run-config: 'epsilon' is 'infinity': that is for simulations, and this site has data of its own"
            )
        permit_privacy(node, float(options.epsilon), options.delta)
        if has_data and options.private and options.count == "public" and not node.public_count:
            alternative = "count='noised'" if options.relation == "add-remove" else "relation='add-remove'"
            raise DisclosureError(
                f"the run tells this site's number of rows as it is (relation='{options.relation}', count='public'), "
                f"which this site does not allow (node-config 'public-count' is false); run with {alternative}"
            )
        if node.round_rows > 1 and options.private and options.relation == "add-remove":
            raise DisclosureError(
                f"this site leaves rows out so that their number is round (node-config 'round-rows' = "
                f"{node.round_rows}): one row more may bring in {node.round_rows}, and the noise is made for one; set "
                "it to 1, dp-pca tells a noisy number, or run with relation='replace-one' where 'public-count' is true"
            )
        if options.noise_seed and has_data:
            raise method.ConfigError(
                f"run-config: 'noise-seed' is {options.noise_seed}: fixed noise is for simulations, and this site has "
                "data of its own; leave it out"
            )
        if options.trust == "local" or not options.private:
            return
        if options.honest_parties > node.num_partitions:
            raise method.ConfigError(
                f"run-config: 'honest-parties' is {options.honest_parties}, at most {node.num_partitions} = all parties"
            )
        if has_data and options.honest_parties > node.honest_parties:
            raise DisclosureError(
                f"the run assumes {options.honest_parties} honest parties, this site {node.honest_parties} "
                "(node-config 'honest-parties')"
            )
        refusal = (
            "run-config: trust='distributed' needs secure-aggregation=true: without it the server sees each party's "
            "small share of the noise; use trust='local'"
        )
        if has_data and method.by_transport(self.site.config, clear=refusal, masked=""):
            raise method.ConfigError(refusal)
