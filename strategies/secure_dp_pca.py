"""DP-PCA with secure aggregation: the server opens only the sums of the parties' noisy sums.

With ``trust='distributed'`` each party adds its share of the noise, and the sum has the whole of it. Fixed point comes
from public numbers alone: clip bounds, noise, and in the second stage the number of rows that the first one told. Its
rounding follows the noise, so it costs no privacy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Payload
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.maths.moments import packed_size
from strategies.dp_options import DPOptions
from strategies.dp_pca import CARD, DPPCA, DPPCAClient
from strategies.secure import SecureStrategy, secure_card
from strategies.secure_client import SERVER, SecureClient
from strategies.sums import FIRST_WORDS, ROWS
from strategies.survivors import SurvivorsStrategy, survivors_card
from strategies.survivors_client import SurvivorsClient

PRODUCTS = Payload((Field("centre", ("d",)), Field("rows", (), "int64", kind="count")))
"""What the server sends with the request for the products."""

FAR = 60.0
"""Standard deviations that no noise reaches (probability 1e-780)."""


class SecureDPPCA(SecureStrategy, DPPCA):
    card = secure_card(CARD, "centre", "products", "joint")

    @property
    def rounds(self) -> int:
        return 1 + len(self.options.phases)

    def ask(self):
        d, parties = self.quorum.features, self.quorum.expected
        phase = self.options.phases[0] if self._centre is None else "products"
        rows = self._centre.rows if self._centre else 0
        arrays = [self._centre.value, np.asarray(rows)] if self._centre else []
        return phase, arrays, layout(self.options, phase, d, parties, rows)

    def aggregate_sum(self, fields, *, last):
        phase = self.options.phases[0] if self._centre is None else "products"
        return self.aggregate(phase, fields, self.quorum.expected)


class SecureDPPCAClient(SecureClient, DPPCAClient):
    """Masks its noisy sums."""

    def summands(self, phase, received):
        payload = PRODUCTS if phase == "products" else Payload(())
        asked = payload.named(received, SERVER)
        payload.check(asked, SERVER, {"d": self.data.shape[1]})
        rows = int(asked.get("rows", 0))
        fields = DPPCAClient.statistics(self, phase, received[:1])
        return fields, layout(self.options, phase, self.data.shape[1], self.node.num_partitions, rows)


class SurvivorsDPPCA(SurvivorsStrategy, DPPCA):
    """The joint release goes on with the survivors, which must be enough for distributed noise."""

    card = survivors_card(CARD, "joint")
    phase = "joint"

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if options.release != "joint":
            raise ConfigError(
                f"run-config: 'release' is '{options.release}', which asks for two sums; with 'survivors' it must be "
                "'joint': the difference of two sums over different parties would show the share of those that left"
            )
        if options.trust == "distributed" and options.honest_parties > config.survivors:
            raise ConfigError(
                f"run-config: 'honest-parties' is {options.honest_parties}, at most {config.survivors} = 'survivors': "
                "fewer parties would not add noise enough"
            )

    def layout(self):
        return layout(self.options, "joint", self.quorum.features, self.quorum.total, 0)

    def aggregate_sum(self, total):
        _, fields = self.layout().decode(total)
        return self.aggregate("joint", fields, len(self.survivors))


class SurvivorsDPPCAClient(SurvivorsClient, DPPCAClient):
    """Masks its noisy sums twice."""

    def parts(self, phase):
        fields = DPPCAClient.statistics(self, phase, [])
        return [fields], layout(self.options, phase, self.data.shape[1], self.node.num_partitions, 0)

    def permit_survivors(self, dropped):
        """Whoever dropped out may have been honest: the others must be as many as the noise is made for."""
        options, node = self.options, self.node
        if node.data and options.trust == "distributed" and options.honest_parties > node.honest_parties - dropped:
            raise DisclosureError(
                f"{dropped} of {node.num_partitions} parties dropped out, and the run needs {options.honest_parties} "
                f"honest ones among the others; this site trusts {node.honest_parties} in all "
                "(node-config 'honest-parties')"
            )


def layout(options: DPOptions, phase: str, d: int, parties: int, rows: int) -> Layout:
    """Of the sums of a phase over all parties; ``rows`` is what the first stage told, 0 before."""
    bound, noise = options.bound(phase), options.noise(phase)
    reach = FAR * parties
    most = ROWS
    if phase == "products":
        told = options.noise(options.phases[0]).rows
        most = max(rows, 0) + int(2 * reach * told) + 1
    limits: dict[str, NDArray] = {}
    if phase != "products":
        limits["rows"] = np.full(1, ROWS + reach * noise.rows)
        limits["sum"] = np.full(d, most * bound + reach * noise.sum)
    if phase != "centre":
        limits["products"] = np.full(packed_size(d), most * bound**2 + reach * noise.products)
    return Layout(limits, words=1 if phase == "products" else FIRST_WORDS)
