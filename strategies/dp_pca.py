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

Upload per party: ``8 (d + 1)`` bytes, then ``8 d (d + 1) / 2``; joint, both at once. The replies only add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.ledger import Entry, digest, ledger_of
from fedpca_flwr.maths import noise
from fedpca_flwr.maths.denoise import Denoised, NoisyCentre, denoised
from fedpca_flwr.maths.moments import pack, pool
from fedpca_flwr.maths.privacy import clip, clipped_products, clipped_sum
from fedpca_flwr.solution import solve
from strategies.base import MethodCard, PCAStrategy, Request, Solution
from strategies.dp_options import DPOptions, Noise
from strategies.moments import MOMENTS, MomentsClient, moments_of

ROWS, SUM, PRODUCTS = Field("rows", ("1",)), Field("sum", ("d",)), Field("products", ("d(d+1)/2",))

CARD = MethodCard(
    name="dp-pca",
    title="Differentially private PCA",
    exact=False,
    result="by clipped rows and noise",
    rounds=2,
    in_rounds="2; `release='joint'` 1",
    upload="d + 1, then d(d+1)/2",
    server_sees="noisy sums",
    options=DPOptions,
    payloads={
        "centre": Payload((ROWS, SUM)),
        "products": Payload((PRODUCTS,)),
        "joint": Payload((ROWS, SUM, PRODUCTS)),
        "moments": MOMENTS,
    },
    reference="Dwork, Talwar, Thakurta and Zhang 2014; Balle and Wang 2018",
    private=True,
    noised=True,
)


class DPPCA(PCAStrategy):
    """DP-PCA. Needs only the sum of the replies, and how many there were."""

    card = CARD
    options: DPOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if config.secure_aggregation and not options.private:
            raise ConfigError(
                "run-config: 'epsilon' is 'infinity', which is p-cov; with secure-aggregation run p-cov itself"
            )
        self._centre: NoisyCentre | None = None

    @property
    def rounds(self) -> int:
        return len(self.options.phases)

    def request(self) -> Request:
        if self._centre is None:
            return Request(self.options.phases[0], sizes={"1": 1} if self.options.private else {})
        return Request("products", [self._centre.value], sizes={"d": self._centre.value.size})

    def aggregate_fit(self, server_round, results, failures):
        phase = self.request().phase
        replies = self.collect(server_round, results, failures)
        if not self.options.private:
            moments = pool(moments_of(reply) for reply in replies)
            k = self.options.n_components
            solution = solve(moments, moments.diagonal(), n_components=k, center=True, scale=False)
            return self.finish(solution, notes=["not private: epsilon is infinite, and this is p-cov"])
        sums = {name: np.sum([reply.fields[name] for reply in replies], axis=0) for name in replies[0].fields}
        return self.aggregate(phase, sums, len(replies))

    def aggregate(self, phase: str, sums: Mapping[str, NDArray], parties: int):
        """The aggregation, of the sums over so many parties."""
        added = self._noise(phase, parties)
        if phase != "products":
            self._centre = self._begin(sums["sum"], round(float(sums["rows"][0])), self.options.bound(phase), added)
        if phase == "centre":
            return None, {}
        centre, products = self._centre, sums["products"]
        assert centre is not None
        excess = centre.seen_about(self.options.bound(phase))
        if phase == "joint":
            products = products - centre.rows * pack(np.outer(centre.value, centre.value))
            excess = centre.seen_by_subtraction()
        return self._end(products, centre, added.products, excess)

    def _begin(self, total: NDArray, rows: int, bound: float, added: Noise) -> NoisyCentre:
        """Rows and centre of all parties together."""
        if self.options.count == "noised":
            rows = max(rows, 2, self.options.n_components)  # a count that noise made too small ends no run
        self.n_components(rows, total.size)
        shortened = clip(total[None] / rows, bound)[0]  # the mean of clipped rows is no longer, but its noise is
        return NoisyCentre(shortened, rows, bound, of_rows=added.rows, of_sum=added.sum)

    def _noise(self, phase: str, parties: int) -> Noise:
        """Of the sums over so many parties."""
        options = self.options
        root = math.sqrt(parties if options.trust == "local" else parties / options.honest_parties)
        each = options.noise(phase)
        return Noise(each.multiplier, rows=each.rows * root, sum=each.sum * root, products=each.products * root)

    def _end(self, products: NDArray, centre: NoisyCentre, deviation: float, excess: float):
        k, d = self.options.n_components, centre.value.size
        found = denoised(products, d, k, deviation, drop=self.options.drop, excess=excess)
        solution = Solution(pairs=found.pairs, mean=centre.value, total=found.total, rows=centre.rows)
        return self.finish(solution, measured=self._measured(found, d), notes=self._notes(found))

    def _measured(self, found: Denoised, d: int) -> dict[str, str]:
        options, k = self.options, self.options.n_components
        honest = "" if options.trust == "local" else f", {options.honest_parties} honest parties"
        each = ", ".join(f"{options.noise(phase).multiplier:.6g} ({phase})" for phase in options.phases)
        clips = ", ".join(f"{options.bound(phase):g} ({phase})" for phase in options.phases)
        return {
            "privacy": f"epsilon {options.epsilon:g}, delta {options.delta:g}, {options.relation}, of one row",
            "trust": options.trust + honest,
            "noise / sensitivity": each,
            "rows clipped to": clips,
            "above the noise": f"{found.detectable} of {k} components; {found.kept} of {d} features kept",
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
        notes.append("epsilon is of this run; a site adds up its runs where its node-config names a ledger")
        return notes


class DPPCAClient(MomentsClient):
    """Returns noisy sums, each once: the ledger keeps them."""

    options: DPOptions

    def statistics(self, phase, received) -> Fields:
        self._permit_noise(phase)
        options, node = self.options, self.node
        if not options.private:
            return MomentsClient.statistics(self, phase, received)
        asked = Entry(
            run=str(self.context.run_id),
            party=node.partition_id,
            phase=phase,
            relation=options.relation,
            multiplier=options.noise(phase).multiplier,
            question=digest(received, options.model_dump_json()),
            reply="none yet",
        )
        ledger = ledger_of(node.ledger, self.context.state)
        with ledger.locked():
            reply = ledger.recall(asked)
            if reply is None:
                if node.epsilon_budget is not None:
                    ledger.permit(asked, options.multiplier, node.epsilon_budget, node.delta_budget)
                reply = self._noisy(phase, received)
                ledger.record(asked.model_copy(update={"reply": digest(reply)}), reply)
        names = (field.name for field in CARD.payloads[phase].fields)
        return dict(zip(names, reply, strict=True))

    def _noisy(self, phase: str, received: list[NDArray]) -> list[NDArray]:
        """The sums of this party's clipped rows with its noise, in the order of the payload."""
        options, d, reply = self.options, self.data.shape[1], []
        bound, whole = options.bound(phase), options.noise(phase)
        share = 1.0 if options.trust == "local" else options.honest_parties**-0.5
        source = noise.system()
        if options.noise_seed:
            source = noise.fixed(options.noise_seed, self.node.partition_id, options.phases.index(phase))
        if phase != "products":
            reply.append(len(self.data) + share * whole.rows * noise.gaussian(1, source))
            reply.append(clipped_sum(self.data, bound) + share * whole.sum * noise.gaussian(d, source))
        if phase != "centre":
            centre = _centre(received, d) if phase == "products" else np.zeros(d)
            products = clipped_products(self.data, centre, bound)
            reply.append(products + share * whole.products * noise.symmetric(d, source))
        return reply

    def _permit_noise(self, phase: str) -> None:
        """Refuse what would make the noise too small or known."""
        options, node, site = self.options, self.node, bool(self.node.data)
        if phase not in options.phases:
            raise ContractError(f"phase '{phase}' is not one of release='{options.release}'")
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
        if site and not self.config.secure_aggregation:
            raise ConfigError(
                "run-config: trust='distributed' needs secure-aggregation=true: without it the server sees each "
                "party's small share of the noise; use trust='local'"
            )


def _centre(received: list[NDArray], d: int) -> NDArray:
    """The centre that the server sends (d,), checked."""
    if len(received) != 1 or received[0].shape != (d,) or not np.isfinite(received[0]).all():
        raise ContractError(f"the server's centre is not one finite array of shape ({d},)")
    return received[0]
