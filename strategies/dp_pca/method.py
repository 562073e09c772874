"""DP-PCA: (epsilon, delta)-differentially private components of clipped rows, by the analytic Gaussian mechanism.

``release='two-stage'``: the parties' noisy sums of rows (clipped to ``centre-clip``) give a private centre c, which
costs ``centre-share`` of the privacy. Then each party clips its rows about c to ``clip`` and sends the noisy sum of
``vv'``, v = clip(x - c). Of this second moment the server takes the components, after it has dropped features without
signal, and corrects the eigenvalues for the noise (`fedpca_flwr.maths.denoise`). ``release='joint'``: rows clipped
about zero, sum and second moment at once.

The unit is one row of one party. Each row is in one party's replies only, so each party's epsilon is the run's.

``trust='local'``: each party adds the whole noise and trusts nobody. ``trust='distributed'``: each adds the share
``1 / sqrt(honest-parties)``, and the server must see nothing but the sum. As long as so many parties add their share
and keep it from the server, the sum has at least the whole noise, whatever the others do. A party that drops out ends
the run; a site refuses a run that assumes more honest parties than its own node-config.

Upload per party: ``8 (d + 1)`` bytes, then ``8 d (d + 1) / 2``; joint, both at once. The replies only add up: with
secure aggregation the server opens nothing but the sums of the noisy sums.

What leaves a party is whole numbers, masked or not: rows are rounded to a public grid before they are added
(`fedpca_flwr.maths.grid`), and the noise is drawn from the discrete Gaussian distribution (`fedpca_flwr.maths.noise`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.denoise import Denoised, NoisyCentre, denoised
from fedpca_flwr.maths.grid import STEPS, clip
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases, Sum, Total
from fedpca_flwr.solution import Solution, solve
from fedpca_flwr.statistics.rows import moments_phases, pooled_moments, projection_phase
from fedpca_flwr.statistics.rows_strategy import RowsStrategy
from strategies.dp_pca.options import DPOptions

ROWS, SUM, PRODUCTS = Field("rows", ()), Field("sum", ("d",)), Field("products", ("d(d+1)/2",))
CENTRE = Field("centre", ("d",))


def _noisy(name: str, *reply: Field, asked: tuple[Field, ...] = ()) -> Phase:
    return Phase(
        asked=Payload(asked),
        reply=Payload(reply),
        limits=lambda asked, public: public.options.limits(name, public.features, public.parties),
    )


def phases(config: RunConfig, options: DPOptions) -> Phases:
    """The noisy sums of the release."""
    if not options.private:
        if config.secure_aggregation:
            raise ConfigError(
                "run-config: 'epsilon' is 'infinity', which is p-cov; with secure-aggregation run p-cov itself"
            )
        return {**moments_phases(config), **projection_phase(config, differentially_private=True)}
    if config.survivors and options.trust == "distributed" and options.honest_parties > config.survivors:
        raise ConfigError(
            f"run-config: 'honest-parties' is {options.honest_parties}, at most {config.survivors} = 'survivors': "
            "fewer parties would not add noise enough"
        )
    known = {
        "centre": _noisy("centre", ROWS, SUM),
        "products": _noisy("products", PRODUCTS, asked=(CENTRE,)),
        "joint": _noisy("joint", ROWS, SUM, PRODUCTS),
    }
    return {**{name: known[name] for name in options.phases}, **projection_phase(config, differentially_private=True)}


CARD = MethodCard(
    name="dp-pca",
    title="Differentially private PCA",
    exact=False,
    result="by clipped rows and noise",
    rounds="2; `release='joint'` 1",
    upload="d + 1, then d(d+1)/2",
    server_sees="noisy sums",
    options=DPOptions,
    phases=phases,
    examples=({"clip": 1.0, "centre-clip": 1.0}, {"clip": 1.0, "release": "joint"}, {"epsilon": "infinity"}),
    reference="Dwork, Talwar, Thakurta and Zhang 2014; Balle and Wang 2018",
    differentially_private=True,
)


class DPPCA(RowsStrategy):
    """DP-PCA. Needs only the sum of the replies, and how many there were."""

    card = CARD
    options: DPOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        options = self.options
        if not options.private:
            moments, diagonal = yield from pooled_moments(self)
            solution = solve(moments, diagonal, n_components=options.n_components, center=True, scale=False)
            return solution.extended(notes=["not private: epsilon is infinite, and this is p-cov"])
        first, last = options.phases[0], options.phases[-1]
        sums: Total = yield Sum(first)
        told, added = self._in_units(first, sums)
        centre = self._centre(told, options.bound(first), added)
        if first == "joint":
            products = told["products"] - centre.rows * pack(np.outer(centre.value, centre.value))
            excess = centre.seen_by_subtraction()
        else:
            second: Total = yield Sum("products", {"centre": centre.value})
            told, added = self._in_units(last, second)
            products, excess = told["products"], centre.seen_about(options.bound(last))
        d, k = centre.value.size, options.n_components
        found = denoised(products, d, k, added["products"], drop=options.drop, excess=excess)
        return Solution(
            pairs=found.pairs,
            mean=centre.value,
            total=found.total,
            rows=centre.rows,
            notes=self._notes(found),
            measured=self._measured(found),
        )

    def _centre(self, told: dict[str, Array], bound: float, added: dict[str, float]) -> NoisyCentre:
        """Rows and centre of all parties together."""
        rows = round(float(told["rows"]))
        if self.options.count == "noised":
            rows = max(rows, 2, self.options.n_components)  # a count that noise made too small ends no run
        self.n_components(rows, told["sum"].size)
        shortened = clip(told["sum"][None] / rows, bound)[0]  # the mean of clipped rows is no longer, but its noise is
        return NoisyCentre(shortened, rows, bound, of_rows=added["rows"], of_sum=added["sum"])

    def _in_units(self, phase: str, sums: Total) -> tuple[dict[str, Array], dict[str, float]]:
        """The sums of a phase in units of the data, and the standard deviations of their noise."""
        noise, step = self.options.noise(phase), self.options.bound(phase) / STEPS
        units = {"rows": 1 / STEPS, "sum": step, "products": step**2}
        deviations = {name: getattr(noise, name) * unit * math.sqrt(sums.parties) for name, unit in units.items()}
        return {name: sums[name] * units[name] for name in sums}, deviations

    def _measured(self, found: Denoised) -> dict[str, float]:
        options = self.options
        return {
            "epsilon": float(options.epsilon),
            "delta": options.delta,
            **({} if options.trust == "local" else {"honest_parties": options.honest_parties}),
            **{f"noise_multiplier_{phase}": options.noise(phase).multiplier for phase in options.phases},
            **{f"clipping_norm_{phase}": options.bound(phase) for phase in options.phases},
            "components_above_noise": found.detectable,
            "kept_features": found.kept,
        }

    def _notes(self, found: Denoised) -> list[str]:
        options, k, notes = self.options, self.options.n_components, []
        if options.noise_seed:
            notes.append(f"not private: fixed noise seed {options.noise_seed}")
        if options.trust == "distributed" and not self.config.secure_aggregation:
            notes.append("no secure aggregation: epsilon holds for this model, not against the server of the run")
        if found.detectable < k:
            notes.append(f"components {found.detectable + 1} to {k} do not stand out of the noise")
        notes.append("variances are those of the clipped second moment")
        notes.append("not covered: errors and refusals, timing")
        if options.count == "public":
            held = "" if options.relation == "replace-one" else "; who knows them can tell that a row is there, "
            held += f"but its values at epsilon {options.epsilon_of_a_replacement():.3g} only" if held else ""
            notes.append(f"not covered: the parties' row counts{held}")
        notes.append("epsilon is of this run; a site adds up its runs where its node-config names a journal")
        return notes
