"""Options of DP-PCA, and the noise that follows from them: server and parties must reckon the same.

A party's half of DP-PCA: the sums of its rows in whole numbers, with whole noise, each once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, model_validator
from pydantic import Field as Limits
from pydantic_core import PydanticCustomError

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths import privacy, private_scatter
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.maths.shells import MOST_SHELLS
from fedpca_flwr.questions import method
from fedpca_flwr.site.policy import permit_privacy
from fedpca_flwr.site.repeats import require_budget

ROWS = 2**34
"""Rows that all parties together may have: their products, and noise, add up in a word of 64 bits."""

FAR = 60.0
"""Standard deviations that no noise reaches (probability 1e-780)."""

Bound = Annotated[float, Limits(ge=1e-150, le=1e150)]

UNBOUNDED = {
    "octaves": 0.01,
    "centre": 0.02,
    "nearer_octaves": 0.01,
    "nearer_centre": 0.04,
    "directions": 0.9,
    "variances": 0.02,
}
SHARES: dict[str, dict[str, float]] = {
    "shells": UNBOUNDED,
    "directions": UNBOUNDED,
    "joint": {"joint": 1.0},
}
"""By release, its phases, and how much of the whole 1 / multiplier^2 each takes."""

WEIGHTS: dict[str, dict[str, float]] = {
    "octaves": {"octaves": 1.0},
    "centre": {"rows": 0.0, "sum": 1.0},
    "joint": {"rows": 0.0, "sum": 0.5, "products": 1.0},
    "directions": {"octaves": 0.1, "energies": 0.1, "products": 1.0},
    "variances": {"rows": 0.0, "squares": 1.0},
}
"""What is told in each phase, of rows of length at most 1, and at which weight; ``nearer_`` phases tell the same."""

COUNT = 0.3
"""Weight of a noisy row count beside the rest: it costs 4 % more noise."""

UNITS = {
    **dict.fromkeys(("rows", "octaves", "sum"), privacy.STEPS),
    **dict.fromkeys(("products", "squares", "energies"), privacy.STEPS**2),
}
"""What one row, or a row of length 1, counts in whole steps (`fedpca_flwr.maths.privacy`)."""

NEEDED = {
    "clip": "the public bound on the length of a row; longer rows are shortened to it",
    "honest-parties": "how many parties at least add their share of the noise and keep it from the server",
}


def _still_there(release: object) -> object:
    if release == "two-stage":
        raise PydanticCustomError(
            "gone",
            "which was taken out in this version, with 'centre-clip': leave 'release' out, which needs no bound, or "
            "take release='joint' with 'clip'",
        )
    return release


class DPOptions(method.Options):
    """Options of DP-PCA. Bounds, where a release needs any, must be public: chosen without a look at the data."""

    epsilon: Annotated[
        Annotated[float, Limits(gt=0, le=100)] | Literal["infinity"], Limits(examples=[0.1, 1.0, 100.0, "infinity"])
    ] = 1.0
    """Of the whole run, for one row. ``infinity``, in simulations only: no noise and no clipping."""
    delta: Annotated[float, Limits(gt=0, lt=0.1)] = 1e-5
    """Of the whole run, for one row."""
    relation: privacy.Relation = "add-remove"
    """Which data sets are neighbours."""
    release: Annotated[Literal["shells", "directions", "joint"], BeforeValidator(_still_there)] = "shells"
    """What a row counts as: see above. Only ``joint`` needs a clip."""
    clip: Bound | None = None
    """Of ``joint``, which requires it: the length to which rows are shortened."""
    trust: Annotated[Literal["local", "distributed"], Limits(examples=[])] = "local"
    """Whether each party adds the whole noise, or its share of it."""
    honest_parties: Annotated[int, Limits(ge=0)] = 0
    """Of ``distributed``, which requires it: parties, at least, that add their share and keep it from the server."""
    count: Literal["noised", "public"] = "noised"
    """Whether a party tells a noisy number of rows or, as with ``replace-one``, its own."""
    noise_seed: Annotated[int, Limits(ge=0, examples=[1, 2, 3])] = 0
    """Simulation only, not private: the same noise each time; 0: the system's randomness."""

    @model_validator(mode="before")
    @classmethod
    def _a_number_that_stays_needs_no_noise(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {"count": "public", **given} if given.get("relation") == "replace-one" else given

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = ["clip"] if self.release == "joint" and self.clip is None and self.private else []
        missing += ["honest-parties"] if not self.honest_parties and self.trust == "distributed" else []
        if missing:
            told = "; ".join(f"'{key}' is missing: {NEEDED[key]}" for key in missing)
            raise PydanticCustomError("needed", "{told}", {"told": told})
        if self.unbounded and self.clip:
            raise PydanticCustomError(
                "bounds",
                "'clip' is given, and release='{release}' needs no bound: leave it out, or set release='joint'",
                {"release": self.release},
            )
        if self.count == "noised" and self.relation == "replace-one":
            raise PydanticCustomError(
                "count", "count='noised' protects nothing with relation='replace-one', which keeps the number of rows"
            )
        if self.private and max(max(self.noise(phase).of.values()) for phase in self.phases) > privacy.LARGEST:
            raise PydanticCustomError("noise", "'epsilon' and 'delta' are so small that their noise would hide any sum")
        return self

    @property
    def private(self) -> bool:
        return self.epsilon != "infinity"

    @property
    def unbounded(self) -> bool:
        """Whether the release needs no bound on the length of rows."""
        return SHARES[self.release] is UNBOUNDED

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(SHARES[self.release]) if self.private else ("moments",)

    @property
    def most_shells(self) -> int:
        return MOST_SHELLS if self.release == "shells" else 1

    @property
    def multiplier(self) -> float:
        """Of the noise of the whole run."""
        return privacy.gaussian_multiplier(float(self.epsilon), self.delta)

    def noise(self, phase: str) -> Noise:
        """The noise that each party adds in a phase."""
        multiplier = self.multiplier / math.sqrt(SHARES[self.release][phase])
        of_party = 1.0 if self.trust == "local" else self.honest_parties**-0.5
        weights = self._weights(phase)
        deviation = multiplier * _sensitivity(self.relation, weights) * of_party
        whole = {name: privacy.whole_deviation(deviation / w * UNITS[name]) if w else 0 for name, w in weights.items()}
        return Noise(multiplier, whole)

    def limits(self, phase: str, d: int, parties: int) -> method.SumLimits:
        """Public limits on the sums of a phase over all parties, in steps: below 2^62, so that whole numbers stay."""
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (),
            "octaves": (private_scatter.OCTAVES,),
            "sum": (d,),
            "products": (packed_size(d),),
            "squares": (self.n_components + 1,),
            "energies": (),
        }
        added = self.noise(phase).of
        return {name: np.full(shapes[name], ROWS * UNITS[name] + FAR * parties * added[name]) for name in added}

    def epsilon_of_a_replacement(self) -> float:
        """What the noise gives where one row is replaced by another, the number of rows being known."""

        def multiplier(phase: str) -> float:
            of_values = {name: weight for name, weight in WEIGHTS[kind(phase)].items() if name != "rows"}
            ratio = _sensitivity(self.relation, self._weights(phase)) / _sensitivity("replace-one", of_values)
            return self.noise(phase).multiplier * ratio

        return privacy.gaussian_epsilon(privacy.composed(multiplier(phase) for phase in self.phases), self.delta)

    def _weights(self, phase: str) -> dict[str, float]:
        weights = WEIGHTS[kind(phase)]
        return {**weights, "rows": COUNT} if "rows" in weights and self.count == "noised" else weights


def kind(phase: str) -> str:
    """What is asked in a phase, whichever time."""
    return phase.removeprefix("nearer_")


def _sensitivity(relation: privacy.Relation, weights: Mapping[str, float]) -> float:
    """Of all that is told in a phase together."""
    of_products = math.hypot(*(weights.get(name, 0.0) for name in ("octaves", "products", "squares", "energies")))
    of_sum, of_count = weights.get("sum", 0.0), weights.get("rows", 0.0)
    return privacy.sensitivity(relation, sums=of_sum, products=of_products, count=of_count)


class Noise(NamedTuple):
    """The noise that one party adds in one phase: the whole of it, or with ``trust='distributed'`` its share."""

    multiplier: float
    """Standard deviation of the whole over the sensitivity."""
    of: dict[str, int]
    """By field, standard deviations in whole steps (`UNITS`), of products those on the diagonal; 0 for none."""


REPLIES = {
    "rows": method.Field("rows", ()),
    "octaves": method.Field("octaves", ("octaves",)),
    "sum": method.Field("sum", ("d",)),
    "products": method.Field("products", ("d(d+1)/2",)),
    "squares": method.Field("squares", ("k+1",)),
    "energies": method.Field("energies", ("shells",)),
}
BY_SHELL = {**REPLIES, "products": method.Field("products", ("shells", "d(d+1)/2"))}
CENTRE, BOUND = method.Field("centre", ("d",)), method.Field("bound", (), kind="positive")
SHELLS = method.Field("shells", ("<=shells", "3"), kind="size")
COMPONENTS = method.Field("components", ("k", "d"), kind="orthonormal rows")
ASKED = {
    "octaves": (),
    "centre": (BOUND,),
    "nearer_octaves": (CENTRE,),
    "nearer_centre": (CENTRE, BOUND),
    "directions": (CENTRE, SHELLS),
    "variances": (CENTRE, BOUND, COMPONENTS),
    "joint": (),
}


def _noisy(phase: str, options: DPOptions) -> method.Question:
    k, replies = options.n_components, BY_SHELL if phase == "directions" else REPLIES
    sizes = {"octaves": private_scatter.OCTAVES, "shells": options.most_shells, "k": k, "k+1": k + 1}
    return method.Question(
        asked=method.Payload(ASKED[phase]),
        reply=method.Payload(tuple(replies[name] for name in WEIGHTS[kind(phase)])),
        answer=lambda party, asked: party.release(phase, asked),
        sizes=lambda public: sizes,
        differentially_private=True,
        limits=lambda asked, public: public.options.limits(phase, public.features, public.parties),
    )


def phases(config: method.RunConfig, options: DPOptions) -> method.Questions:
    """The noisy sums of the release."""
    if not options.private:
        as_p_cov = "with epsilon='infinity' this is p-cov: run p-cov itself"
        moments = method.moments_phases(method.RunConfig())["moments"]
        return {"moments": replace(moments, instead=as_p_cov), **method.projection_phase(differentially_private=True)}
    if options.trust == "distributed" and options.honest_parties > config.fewest:
        raise method.ConfigError(
            f"run-config: 'honest-parties' is {options.honest_parties}, at most {config.fewest} = 'survivors': "
            "fewer parties would not add noise enough"
        )
    return {
        **{name: _noisy(name, options) for name in options.phases},
        **method.projection_phase(differentially_private=True),
    }


class DPPCAClient(method.Client):
    """Returns noisy sums, each once: the journal sees to that, and keeps what they spend."""

    options: DPOptions

    def require_ready(self) -> None:
        self._permit_noise()
        if self.options.private and len(self.data) > privacy.MOST_ROWS:
            raise method.DataError(
                f"this site has more than {privacy.MOST_ROWS:,} rows, the most that a party's sums in whole numbers "
                "can have; split them over two nodes"
            )

    def release(self, phase: str, asked: method.Fields) -> method.Fields:
        """What a phase tells of this party's rows, with noise."""
        self._require_possible(phase, asked)
        self._spend(phase)
        return self._noisy(phase, asked)

    def _spend(self, phase: str) -> None:
        """Note a release, if the site's budget allows it."""
        options, node, multiplier = self.options, self.site.node, self.options.noise(phase).multiplier

        def permit(of_run: Sequence[float], of_others: Sequence[float]) -> None:
            if node.epsilon_budget is not None:
                budget = {"epsilon": node.epsilon_budget, "delta": node.delta_budget}
                require_budget(multiplier, of_run, of_others, whole_run=options.multiplier, **budget)

        self.journal.note_release(phase, options.relation, multiplier, permit)

    def _noisy(self, phase: str, asked: method.Fields) -> dict[str, method.Array]:
        """What a phase tells of this party's rows, in whole steps, with its noise."""
        options, d = self.options, self.data.shape[1]
        source = privacy.system()
        if options.noise_seed:
            source = privacy.fixed(options.noise_seed, self.site.node.partition_id, options.phases.index(phase))
        reply: dict[str, method.Array] = {}
        for name, deviation in options.noise(phase).of.items():
            whole = self._whole(name, phase, asked)
            if name == "products":
                noise = [privacy.symmetric(d, deviation, source) for _ in range(whole.size // packed_size(d))]
                whole = whole + np.reshape(noise, whole.shape)
            elif deviation:
                whole = whole + privacy.gaussian(whole.size, deviation, source).reshape(whole.shape)
            reply[name] = whole
        return reply

    def _whole(self, name: str, phase: str, asked: method.Fields) -> method.Array:
        """What one field tells, without noise. Whatever the server asks about, one row changes it by no more."""
        data, centre = self.data, asked.get("centre", np.zeros(self.data.shape[1]))
        if name == "rows":
            return np.asarray(float(len(data) * privacy.STEPS))
        if name == "octaves":
            return privacy.whole_octaves(data, centre)
        if phase == "directions":
            told = privacy.whole_energies if name == "energies" else privacy.whole_shells
            return told(data, centre, asked["shells"])
        bound = float(self.options.clip or asked["bound"])
        if name == "squares":
            return privacy.whole_squares(data, centre, asked["components"], bound)
        return privacy.whole_sum(data, centre, bound) if name == "sum" else privacy.whole_products(data, centre, bound)

    def _require_possible(self, phase: str, asked: method.Fields) -> None:
        """Refuse distances that no number of rows gives."""
        least, most = 2.0**private_scatter.LOWEST, 2.0**private_scatter.HIGHEST
        shells = asked.get("shells", np.zeros((0, 3)))
        for name, distances in (("bound", asked.get("bound", least)), ("shells", shells[:, private_scatter.TO])):
            for distance in np.ravel(distances):
                if not least <= distance <= most:
                    raise method.ContractError(
                        f"{method.SERVER}: field '{name}' is {distance:g}, expected {least:g} to {most:g}"
                    )

    def permit_survivors(self, dropped: int) -> None:
        """Whoever dropped out may have been honest: the others must be as many as the noise is made for."""
        options, node = self.options, self.site.node
        if node.data and options.trust == "distributed" and options.honest_parties > node.honest_parties - dropped:
            raise DisclosureError(
                f"{dropped} of {node.num_partitions} parties dropped out, and the run needs {options.honest_parties} "
                f"honest ones among the others; this site trusts {node.honest_parties} in all "
                "(node-config 'honest-parties')"
            )

    def _permit_noise(self) -> None:
        """Refuse what would make the noise too small or known."""
        options, node = self.options, self.site.node
        site = bool(node.data)
        if site and not options.private:
            raise method.ConfigError(
                "run-config: 'epsilon' is 'infinity': that is for simulations, and this site has data of its own"
            )
        permit_privacy(node, float(options.epsilon), options.delta)
        if site and options.private and options.count == "public" and not node.public_count:
            run = "count='noised'" if options.relation == "add-remove" else "relation='add-remove'"
            raise DisclosureError(
                f"the run tells this site's number of rows as it is (relation='{options.relation}', count='public'), "
                f"which this site does not allow (node-config 'public-count' is false); run with {run}"
            )
        if node.round_rows > 1 and options.private and options.relation == "add-remove":
            raise DisclosureError(
                f"this site leaves rows out so that their number is round (node-config 'round-rows' = "
                f"{node.round_rows}): one row more may bring in {node.round_rows}, and the noise is made for one; set "
                "it to 1, dp-pca tells a noisy number, or run with relation='replace-one' where 'public-count' is true"
            )
        if options.noise_seed and site:
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
        if site and options.honest_parties > node.honest_parties:
            raise DisclosureError(
                f"the run assumes {options.honest_parties} honest parties, this site {node.honest_parties} "
                "(node-config 'honest-parties')"
            )
        seen = (
            "run-config: trust='distributed' needs secure-aggregation=true: without it the server sees each party's "
            "small share of the noise; use trust='local'"
        )
        if site and method.by_transport(self.site.config, clear=seen, masked=""):
            raise method.ConfigError(seen)
