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
secure aggregation the server opens nothing but the sums of the noisy sums. Their fixed point comes from public numbers
alone (clip bounds, noise, the number of rows that the first stage told), and its rounding follows the noise.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths import noise
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.denoise import Denoised, NoisyCentre, denoised
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.privacy import clip, clipped_products, clipped_sum
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import SERVER, Ask, Phase, Phases, Sum, Total
from fedpca_flwr.site.ledger import require_budget
from fedpca_flwr.solution import Solution, solve
from fedpca_flwr.statistics.rows import moments_phases, pooled_moments, projection_phase
from fedpca_flwr.statistics.rows_client import RowsClient
from fedpca_flwr.statistics.rows_strategy import RowsStrategy
from strategies.dp_pca_options import SUM_WORDS, DPOptions, Noise

ROWS, SUM, PRODUCTS = Field("rows", ()), Field("sum", ("d",)), Field("products", ("d(d+1)/2",))
CENTRE = Field("centre", ("d",))


def _noisy(name: str, *reply: Field, asked: tuple[Field, ...] = ()) -> Phase:
    return Phase(
        asked=Payload(asked),
        reply=Payload(reply),
        limits=lambda asked, public: public.options.limits(
            name, public.features, public.parties, int(asked.get("rows", 0))
        ),
        words=1 if name == "products" else SUM_WORDS,
    )


def phases(config: RunConfig, options: DPOptions) -> Phases:
    """The noisy sums of the release."""
    if not options.private:
        if config.secure_aggregation:
            raise ConfigError(
                "run-config: 'epsilon' is 'infinity', which is p-cov; with secure-aggregation run p-cov itself"
            )
        return {**moments_phases(config), **projection_phase(config, noised=True)}
    if config.survivors and options.trust == "distributed" and options.honest_parties > config.survivors:
        raise ConfigError(
            f"run-config: 'honest-parties' is {options.honest_parties}, at most {config.survivors} = 'survivors': "
            "fewer parties would not add noise enough"
        )
    rows = (Field("rows", (), "int64", kind="count"),) if config.secure_aggregation else ()  # fixed point needs them
    known = {
        "centre": _noisy("centre", ROWS, SUM),
        "products": _noisy("products", PRODUCTS, asked=(CENTRE, *rows)),
        "joint": _noisy("joint", ROWS, SUM, PRODUCTS),
    }
    return {**{name: known[name] for name in options.phases}, **projection_phase(config, noised=True)}


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
    examples=({"clip": 1.0, "centre-clip": 1.0}, {"clip": 1.0, "release": "joint"}),
    reference="Dwork, Talwar, Thakurta and Zhang 2014; Balle and Wang 2018",
    noised=True,
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
            return solution.with_told(notes=["not private: epsilon is infinite, and this is p-cov"])
        first, last = options.phases[0], options.phases[-1]
        sums: Total = yield Sum(first)
        added = self._noise(first, sums.parties)
        centre = self._centre(sums, options.bound(first), added)
        if first == "joint":
            products = sums["products"] - centre.rows * pack(np.outer(centre.value, centre.value))
            excess = centre.seen_by_subtraction()
        else:
            rows = {"rows": np.asarray(centre.rows)} if self.config.secure_aggregation else {}
            second: Total = yield Sum("products", {"centre": centre.value, **rows})
            products, added = second["products"], self._noise(last, second.parties)
            excess = centre.seen_about(options.bound(last))
        d, k = centre.value.size, options.n_components
        found = denoised(products, d, k, added.products, drop=options.drop, excess=excess)
        return Solution(
            pairs=found.pairs,
            mean=centre.value,
            total=found.total,
            rows=centre.rows,
            notes=self._notes(found),
            measured=self._measured(found),
        )

    def _centre(self, sums: Total, bound: float, added: Noise) -> NoisyCentre:
        """Rows and centre of all parties together."""
        rows = round(float(sums["rows"]))
        if self.options.count == "noised":
            rows = max(rows, 2, self.options.n_components)  # a count that noise made too small ends no run
        self.n_components(rows, sums["sum"].size)
        shortened = clip(sums["sum"][None] / rows, bound)[0]  # the mean of clipped rows is no longer, but its noise is
        return NoisyCentre(shortened, rows, bound, of_rows=added.rows, of_sum=added.sum)

    def _noise(self, phase: str, parties: int) -> Noise:
        """Of the sums over so many parties."""
        options = self.options
        root = math.sqrt(parties if options.trust == "local" else parties / options.honest_parties)
        each = options.noise(phase)
        return Noise(each.multiplier, rows=each.rows * root, sum=each.sum * root, products=each.products * root)

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
        notes.append("not covered: errors and refusals, timing, rounding of floating point")
        if options.count == "public":
            held = "" if options.relation == "replace-one" else "; who knows them can tell that a row is there, "
            held += f"but its values at epsilon {options.epsilon_of_a_replacement():.3g} only" if held else ""
            notes.append(f"not covered: the parties' row counts{held}")
        notes.append("epsilon is of this run; a site adds up its runs where its node-config names a journal")
        return notes


class DPPCAClient(RowsClient):
    """Returns noisy sums, each once: the journal sees to that, and keeps what they spend."""

    options: DPOptions

    def ready(self) -> None:
        self._permit_noise()

    def statistics(self, phase: str, asked: Fields) -> Any:
        if not self.options.private or phase == "project":
            return super().statistics(phase, asked)
        centre = self._centre(asked["centre"]) if phase == "products" else np.zeros(self.data.shape[1])
        self._spend(phase)
        return self._noisy(phase, centre)

    def _spend(self, phase: str) -> None:
        """Note a release, if the site's budget allows it."""
        options, node, multiplier = self.options, self.site.node, self.options.noise(phase).multiplier

        def permit(of_run: Sequence[float], of_others: Sequence[float]) -> None:
            if node.epsilon_budget is not None:
                budget = {"epsilon": node.epsilon_budget, "delta": node.delta_budget}
                require_budget(multiplier, of_run, of_others, whole_run=options.multiplier, **budget)

        self.journal.release(phase, options.relation, multiplier, permit)

    def _noisy(self, phase: str, centre: Array) -> dict[str, Array]:
        """The sums of this party's rows, clipped about a centre (d,), with its noise."""
        options, d = self.options, centre.size
        bound, whole = options.bound(phase), options.noise(phase)
        share = 1.0 if options.trust == "local" else options.honest_parties**-0.5
        source = noise.system()
        if options.noise_seed:
            source = noise.fixed(options.noise_seed, self.site.node.partition_id, options.phases.index(phase))
        reply: dict[str, Array] = {}
        if phase != "products":
            reply["rows"] = np.asarray(len(self.data) + (share * whole.rows * noise.gaussian(1, source))[0])
            reply["sum"] = clipped_sum(self.data, bound) + share * whole.sum * noise.gaussian(d, source)
        if phase != "centre":
            products = clipped_products(self.data, centre, bound)
            reply["products"] = products + share * whole.products * noise.symmetric(d, source)
        return reply

    def _centre(self, centre: Array) -> Array:
        """The centre that the server sends (d,), checked: it is the mean of rows clipped to a bound."""
        bound = self.options.bound("centre")
        largest = float(np.abs(centre).max())  # before its square is taken
        if largest > bound or float(np.linalg.norm(centre)) > bound * (1 + 1e-9):
            raise ContractError(f"{SERVER}: field 'centre' is longer than 'centre-clip' = {bound:g}")
        return centre

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
            raise ConfigError(
                "run-config: 'epsilon' is 'infinity': that is for simulations, and this site has data of its own"
            )
        if options.noise_seed and site:
            raise ConfigError(
                f"run-config: 'noise-seed' is {options.noise_seed}: fixed noise is for simulations, and this site has "
                "data of its own; leave it out"
            )
        if options.trust == "local" or not options.private:
            return
        if options.honest_parties > node.num_partitions:
            raise ConfigError(
                f"run-config: 'honest-parties' is {options.honest_parties}, at most {node.num_partitions} = all parties"
            )
        if site and options.honest_parties > node.honest_parties:
            raise DisclosureError(
                f"the run assumes {options.honest_parties} honest parties, this site {node.honest_parties} "
                "(node-config 'honest-parties')"
            )
        if site and not self.site.config.secure_aggregation:
            raise ConfigError(
                "run-config: trust='distributed' needs secure-aggregation=true: without it the server sees each "
                "party's small share of the noise; use trust='local'"
            )
