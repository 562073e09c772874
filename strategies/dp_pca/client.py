"""A party's half of DP-PCA: the sums of its rows in whole numbers, with whole noise, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths import noise
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.grid import MOST_ROWS, STEPS, whole_products, whole_sum
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.site.ledger import require_budget
from fedpca_flwr.site.policy import permit_privacy
from fedpca_flwr.statistics.rows_client import RowsClient
from strategies.dp_pca.options import DPOptions


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

        self.journal.note_release(phase, options.relation, multiplier, permit)

    def _noisy(self, phase: str, centre: Array) -> dict[str, Array]:
        """The sums of this party's rows, clipped about a centre (d,), in whole steps with its noise."""
        options, d = self.options, centre.size
        bound, added = options.bound(phase), options.noise(phase)
        source = noise.system()
        if options.noise_seed:
            source = noise.fixed(options.noise_seed, self.site.node.partition_id, options.phases.index(phase))
        reply: dict[str, Array] = {}
        if phase != "products":
            reply["rows"] = np.asarray(float(len(self.data) * STEPS))
            if added.rows:
                reply["rows"] = reply["rows"] + noise.gaussian(1, added.rows, source)[0]
            reply["sum"] = whole_sum(self.data, bound) + noise.gaussian(d, added.sum, source)
        if phase != "centre":
            reply["products"] = whole_products(self.data, centre, bound) + noise.symmetric(d, added.products, source)
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
        permit_privacy(node, float(options.epsilon), options.delta)
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
