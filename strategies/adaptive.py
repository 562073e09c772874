"""Adaptive: a cheap first round, a forecast for each method, and then the one that needs the fewest bytes.

In the first round each party tells its count, mean, variances, the eigenvalues of its own scatter and a small random
sketch of it: about 32 bytes a feature. From these the server forecasts, for every way that reaches the wanted angle,
rounds and bytes (`fedpca_flwr.maths.forecast`), and goes on with the cheapest: its strategy, found by name in the
registry, with the same parties and the same log.

``target=0`` asks for the exact components. With a larger ``target`` (degrees, largest angle) rounded covariances
compete as well: the step is chosen so that the forecast angle times `SAFETY` stays below the target. The gap that the
forecast takes may not be there (isotropic data have none), so the rounded covariance is asked again what angle its
step may cost; where that is above the target, the cheapest exact way goes on.

The heterogeneity score of the note is reported and decides nothing: the two methods between which it chose there cost
the same, and one of them is exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import Annotated, Any

import numpy as np
from flwr.common import FitIns
from flwr.common.logger import log
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import eigvalsh

import strategies
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.certificate import EXACT
from fedpca_flwr.maths.factors import trapezoid_size, triangular
from fedpca_flwr.maths.forecast import Forecast, Survey
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Moments, packed_size, unpack
from fedpca_flwr.maths.products import head_and_diagonal, scatter_product
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, MethodCard, PCAClient, PCAStrategy, Reply, Request
from strategies.moments import HEAD, head_fields, head_of

SKETCH = 4
"""Columns of a sketch: enough to tell alike from different."""

SAFETY = 4.0
"""By what the true angle may exceed its forecast; 3.2 was the most seen (images, four partitions, three targets)."""

ARRAY = 128
"""Bytes of the header of an array in a message."""

FINEST = 2.0**26
"""Steps in the largest variance; with more the codec refuses."""

VALID = 3.0
"""Degrees up to which the forecast of an angle holds."""


class AdaptiveOptions(CountOptions):
    """Options of the adaptive method."""

    target: Annotated[float, Limits(ge=0, le=30)] = 0.0
    """Wanted largest angle to the exact components, in degrees; 0: exact."""
    download_weight: Annotated[float, Limits(ge=0)] = 1.0
    """What a byte down costs, where a byte up costs 1."""
    round_bytes: Annotated[float, Limits(ge=0)] = 0.0
    """What a round costs, in bytes up."""


@dataclass(frozen=True)
class Candidate:
    """A way to the components: a method of the registry with its options, and its forecast for one party.

    Attributes
    ----------
    method : str
    options : mapping
        Keys as in the run-config.
    rounds : int
    up, down : float
        Bytes, the mean over the parties.
    angle : float
        Forecast largest angle in degrees; 0 for an exact method.
    """

    method: str
    options: Mapping[str, Any]
    rounds: int
    up: float
    down: float
    angle: float = 0.0

    def __str__(self) -> str:
        told = " ".join(f"{key}={value}" for key, value in self.options.items())
        angle = f", about {self.angle:.1g} degrees" if self.angle else ""
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        cost = f"{rounds}, {self.up / 1e6:.3g} MB up and {self.down / 1e6:.3g} MB down per party{angle}"
        return f"{self.method} {told}".rstrip() + f": {cost}"


CARD = MethodCard(
    name="adaptive",
    title="Adaptive selection",
    exact=True,
    result="or within a forecast angle (`target`)",
    rounds=104,
    in_rounds="1, then as chosen",
    upload="4d + 1, then the least of four methods",
    server_sees="variances, local eigenvalues, a small sketch; then as chosen",
    options=AdaptiveOptions,
    payloads={
        "survey": Payload(
            (
                *HEAD,
                Field("spectrum", ("d",), dtype="float32"),
                Field("sketch", ("d", "s"), dtype="float32"),
                Field("variances", ("d",)),
            )
        )
    },
    reference="note 001, adaptive method selection",
)


class Adaptive(PCAStrategy):
    """Adaptive; ``measured`` holds the choice, what it was forecast to cost, and what it cost."""

    card = CARD
    options: AdaptiveOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._inner: PCAStrategy | None = None
        self._before = 1  # rounds before those of the inner strategy
        self._missed = ""

    @property
    def exact(self) -> bool:
        return self._inner.exact if self._inner else not self.options.target

    def request(self) -> Request:
        return Request("survey", sizes={"s": SKETCH})

    def configure_fit(self, server_round, parameters, client_manager):
        if self._inner is None or self.model is not None:
            return super().configure_fit(server_round, parameters, client_manager)
        instructions = self._inner.configure_fit(server_round, parameters, client_manager)
        about = {"method": self._chosen.method, "options": json.dumps(self._chosen.options)}
        return [(client, FitIns(ins.parameters, {**ins.config, **about})) for client, ins in instructions]

    def aggregate_fit(self, server_round, results, failures):
        if self._inner is None:
            self._choose(self.collect(server_round, results, failures))
            return None, {}
        answer = self._inner.aggregate_fit(server_round - self._before, results, failures)
        if self._inner.model is None:
            return answer
        if self._inner.certificate > self.options.target and self._chosen.angle:
            self._missed = f"{self._chosen.method} came within {self._inner.certificate:.2g} degrees only"
            self._before = server_round
            self._go_on(next(candidate for candidate in self._candidates if not candidate.angle))
            return None, {}
        self._report(self._inner)
        return answer

    def _choose(self, replies: list[Reply]) -> None:
        forecast = Forecast.of([_survey(reply) for reply in replies])
        self.n_components(forecast.head.n, forecast.head.mean.size)
        require_variance(forecast.variances, forecast.head.n, forecast.head.mean)
        self._candidates = sorted(candidates(forecast, self.options), key=self._cost)
        self._heterogeneity = forecast.heterogeneity
        for candidate in self._candidates:
            log(INFO, "adaptive: %s%s", candidate, " (chosen)" if candidate is self._candidates[0] else "")
        self._go_on(self._candidates[0])

    def _go_on(self, chosen: Candidate) -> None:
        self._chosen = chosen
        inner = {"method": self._chosen.method, "n-components": self.options.n_components, **self._chosen.options}
        self._inner = strategies.build_strategy({**self.config.model_dump(by_alias=True), **inner})
        self._inner.go_on_from(self)

    def _cost(self, candidate: Candidate) -> float:
        options = self.options
        return candidate.up + options.download_weight * candidate.down + candidate.rounds * options.round_bytes

    def _report(self, inner: PCAStrategy) -> None:
        model = inner.model
        assert model is not None
        spent = [entry for entry in model.log["rounds"] if entry["phase"] not in {"survey", "project"}]
        up, down = (sum(map(sum, (entry[way] for entry in spent))) / len(spent[0]["up"]) for way in ("up", "down"))
        measured = {
            "heterogeneity": str(self._heterogeneity),
            "chosen": str(self._chosen),
            "spent": f"{len(spent)} rounds, {up / 1e6:.3g} MB up and {down / 1e6:.3g} MB down per party",
            **model.log["measured"],
        }
        model.log.update(
            method=self.card.name,
            options=self.options.model_dump(by_alias=True),
            candidates=[vars(candidate) for candidate in self._candidates],
            measured=measured,
        )
        if self._missed:
            model.log["notes"].append(f"{self._missed}, so {self._chosen.method} went on: the gap was not as forecast")
        if self._chosen.angle:
            model.log["notes"].append(
                f"the angle is within {inner.certificate:.2g} degrees but for a probability of 3e-4, if the errors of "
                "rounding are independent"
            )
        self.model = model


class AdaptiveClient(PCAClient):
    """Answers the survey, and then as the chosen method's client."""

    def fit(self, parameters, config):
        if "method" not in config:
            return super().fit(parameters, config)
        try:
            inner = self._inner(str(config["method"]), json.loads(str(config["options"])))
        except Exception as error:
            return [], 0, self._report(error)
        return inner.fit(parameters, {k: v for k, v in config.items() if k not in {"method", "options"}})

    def statistics(self, phase, received) -> Fields:
        head, diagonal = head_and_diagonal(self.data)
        unit = diagonal.sum() or 1.0  # float32 holds shares of the variance, whatever the unit of the data
        first = random_block(self.data.shape[1], self.sizes["s"], self.config.seed)
        return {
            **head_fields(head, diagonal),
            "spectrum": (spectrum(self.data) / unit).astype(np.float32),
            "sketch": (scatter_product(self.data, head, first) / unit).astype(np.float32),
            "variances": diagonal,
        }

    def _inner(self, method: str, options: dict[str, Any]) -> PCAClient:
        """The chosen method's client, with this party's own policy, data and state."""
        if method == self.card.name:
            raise ContractError(f"the server chose the method '{method}', which only chooses")
        common = {**self.config.model_dump(by_alias=True), "n-components": self.options.n_components}
        context = replace(self.context, run_config={**common, **options, "method": method})
        return strategies.build_client(context, self.load)


def spectrum(data: NDArray) -> NDArray:
    """Eigenvalues (d,), descending, of the scatter of ``data`` (n, d): through the smaller of the two Gram matrices."""
    n, d = data.shape
    values = np.zeros(d)
    if n <= d:
        _, R = triangular(data)
        some = eigvalsh(R @ R.T, check_finite=False) if len(R) else np.zeros(0)
    else:
        some = eigvalsh(unpack(Moments.of(data).scatter, d), lower=True, check_finite=False)
    values[: some.size] = some[::-1].clip(min=0.0)
    return values


def candidates(forecast: Forecast, options: AdaptiveOptions) -> list[Candidate]:
    """Every way that reaches the target, with its forecast. Means over the parties."""
    d, k = forecast.spectrum.size, options.n_components
    head = 8.0 * (d + 1) + 3 * ARRAY
    factors = float(np.mean([trapezoid_size(int(n), d) for n in forecast.counts]))
    tolerance = options.target or EXACT
    ways = [
        Candidate("p-cov", {}, 1, head + 8 * packed_size(d) + ARRAY, 0),
        Candidate("qr-pca", {}, 1, head + 8 * factors + ARRAY, 0),
    ]
    for block in sorted({min(max(5, k // 5), k + 10, d), min(k + 10, d)}):
        rounds = forecast.krylov_rounds(k, block, tolerance)
        up = head + 8 * d + ARRAY + (8 * d * block + ARRAY) * rounds
        down = ((8 if block < k else 4) * d * block + ARRAY) * (rounds - 1)
        ways.append(Candidate("sub-it", {"block-size": block, "tolerance": tolerance}, rounds, up, down))
    if options.target and k < d:
        angle = min(options.target / SAFETY, VALID)
        step = float(f"{min(forecast.step_for(k, angle), 1.0):.2g}")
        up = forecast.coded_bytes(step) + 2 * head + 5 * ARRAY
        if d * forecast.variances.max() / forecast.total < FINEST * step:
            ways.append(Candidate("compressed", {"codec": "shared-step", "step": step}, 2, up, 0, angle))
    return ways


def _survey(reply: Reply) -> Survey:
    fields = reply.fields
    unit = float(fields["variances"].sum()) or 1.0
    values = unit * np.sort(fields["spectrum"].astype(np.float64))[::-1].clip(min=0.0)
    return Survey(head_of(reply), fields["variances"], values, unit * fields["sketch"].astype(np.float64))
