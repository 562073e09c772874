"""A party's half of DP-PCA: the sums of its rows in whole numbers, with whole noise, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths import noise
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.grid import (
    MOST_ROWS,
    STEPS,
    whole_directions,
    whole_octaves,
    whole_products,
    whole_squares,
    whole_sum,
)
from fedpca_flwr.maths.spherical import HIGHEST, LOWEST
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.site.ledger import require_budget
from fedpca_flwr.site.policy import permit_privacy
from fedpca_flwr.statistics.rows_client import RowsClient

from .options import DPOptions


class DPPCAClient(RowsClient):
    """Returns noisy sums, each once: the journal sees to that, and keeps what they spend."""

    options: DPOptions

    def require_ready(self) -> None:
        self._permit_noise()
        if self.options.private and len(self.data) > MOST_ROWS:
            raise DataError(
                f"this site has more than {MOST_ROWS:,} rows, the most that a party's sums in whole numbers can have; "
                "split them over two nodes"
            )

    def statistics(self, phase: str, asked: Fields) -> Any:
        if not self.options.private or phase == "project":
            return super().statistics(phase, asked)
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

    def _noisy(self, phase: str, asked: Fields) -> dict[str, Array]:
        """What a phase tells of this party's rows, in whole steps, with its noise."""
        options, d = self.options, self.data.shape[1]
        source = noise.system()
        if options.noise_seed:
            source = noise.fixed(options.noise_seed, self.site.node.partition_id, options.phases.index(phase))
        reply: dict[str, Array] = {}
        for name, deviation in options.noise(phase).of.items():
            whole = self._whole(name, phase, asked)
            if name == "products":
                reply[name] = whole + noise.symmetric(d, deviation, source)
            elif deviation:
                reply[name] = whole + noise.gaussian(whole.size, deviation, source).reshape(whole.shape)
            else:
                reply[name] = whole
        return reply

    def _whole(self, name: str, phase: str, asked: Fields) -> Array:
        """What one field tells, without noise. Whatever the server asks about, one row changes it by no more."""
        data, centre = self.data, asked.get("centre", np.zeros(self.data.shape[1]))
        if name == "rows":
            return np.asarray(float(len(data) * STEPS))
        if name == "octaves":
            return whole_octaves(data, centre)
        if phase == "directions":
            return whole_directions(data, centre)
        bound = float(asked["bound"]) if "bound" in asked else self.options.bound(phase)
        if name == "squares":
            return whole_squares(data, centre, asked["components"], bound)
        return whole_sum(data, centre, bound) if name == "sum" else whole_products(data, centre, bound)

    def _require_possible(self, phase: str, asked: Fields) -> None:
        """Refuse a bound that no number of rows gives, and a centre that is not the mean of rows clipped to one."""
        if "bound" in asked and not 2.0**LOWEST <= float(asked["bound"]) <= 2.0**HIGHEST:
            raise ContractError(
                f"{SERVER}: field 'bound' is {float(asked['bound']):g}, expected {2.0**LOWEST:g} to {2.0**HIGHEST:g}"
            )
        if phase == "products":
            bound, centre = self.options.bound("centre"), asked["centre"]
            largest = float(np.abs(centre).max())  # before its square is taken
            if largest > bound or float(np.linalg.norm(centre)) > bound * (1 + 1e-9):
                raise ContractError(f"{SERVER}: field 'centre' is longer than 'centre-clip' = {bound:g}")

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
