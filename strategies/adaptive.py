"""Adaptive: a cheap survey, a forecast for each method, and then the method that needs the fewest bytes.

Take it where bytes matter and nobody knows the spectrum. First each party tells its count, mean, variances, the
eigenvalues of its own scatter, a small random sketch of the scatter and about how many bytes it takes in coarser and
finer code. The server forecasts the rounds and bytes of every way that reaches the wanted angle
(`fedpca_flwr.maths.forecast`) and goes on with the cheapest.

A run ends by a certified bound. Where the way does not reach the ``target``, the cheapest other way goes on; where a
component is too small beside the first for a covariance to hold, `qr-pca` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import method_text
from fedpca_flwr.maths import eigen, moments, refine
from fedpca_flwr.maths.factors import trapezoid_size
from fedpca_flwr.maths.forecast import CODED_STEPS, Forecast, Survey
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.protocol.transport import relayed
from fedpca_flwr.questions import method

CANDIDATES = ("p-cov", "qr-pca", "sub-it", "compressed")
"""Among which it chooses."""

CORRECTED = "compressed"
"""Of these the one that is no exact method; it goes on until a bound holds."""

FACTORS = "qr-pca"
"""Of these the one that resolves most."""

SKETCH = 4
"""Columns of a sketch: enough to tell alike from different."""

ARRAY = 128
"""Bytes of the header of an array in a message."""

FINEST = 2.0**26
"""Steps in the largest variance; with more the codec refuses."""

STEPS = tuple(float(f"{digit}e{power}") for power in range(-7, -1) for digit in (1, 2, 5))
"""From which the step of a coded covariance is chosen, in units of the mean variance of a feature."""

MOST_CORRECTIONS = 4
"""Where a step needs more, its forecast does not hold."""

LARGEST = 5000
"""Features up to which a party is asked to hold matrices (d, d) for the sake of fewer bytes."""

SPARE = 2
"""Corrections beyond those forecast, before another way goes on."""

REFINEMENTS = 2
"""Products after a warm start by whole factors, which float32 alone has rounded."""


class AdaptiveOptions(method.Options):
    """Options of the adaptive method."""

    target: Annotated[float, Limits(ge=0, le=30, examples=[0.0, 0.01, 0.5, 2.0, 10.0])] = 0.0
    """Largest angle to the exact components, in degrees, which the run certifies; 0: exact."""
    download_weight: Annotated[float, Limits(ge=0, examples=[0.0, 1.0, 10.0])] = 1.0
    """What a byte down costs, where a byte up costs 1."""
    round_bytes: Annotated[float, Limits(ge=0, examples=[0.0, 1e3, 1e6])] = 1e4
    """What a round costs, in bytes up."""

    @property
    def tolerance(self) -> float:
        """The largest angle, in degrees, that a certificate may leave."""
        return self.target or eigen.EXACT

    def cost(self, candidate: Candidate) -> float:
        """What the user says that a way costs, in bytes up."""
        return candidate.up + self.download_weight * candidate.down + candidate.rounds * self.round_bytes


@dataclass(frozen=True)
class Candidate:
    """A way to the components: a method of the registry with its options, and its forecast: bytes are means over the
    parties."""

    method: str
    options: Mapping[str, Any]
    rounds: int
    up: float
    down: float

    @property
    def text(self) -> str:
        """The method with its options, as the run-config has them."""
        return method_text.text_of(self.method, self.options)


def candidates(forecast: Forecast, options: AdaptiveOptions) -> list[Candidate]:
    """Every way that reaches the target, with its forecast, the cheapest first. Means over the parties."""
    ways = [*_at_once(forecast, options), *_by_products(forecast, options), *_corrected(forecast, options)]
    return sorted(ways, key=options.cost)


def _head(forecast: Forecast) -> float:
    """Bytes of a count and a mean."""
    return 8.0 * (forecast.spectrum.size + 1) + 3 * ARRAY


def _at_once(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Whole covariances, and whole factors."""
    d, head = forecast.spectrum.size, _head(forecast) + ARRAY
    factors = float(np.mean([trapezoid_size(int(n), d) for n in forecast.counts]))
    yield Candidate("p-cov", {}, 1, head + 8 * moments.packed_size(d), 0)
    yield Candidate(FACTORS, {}, 1, head + 8 * factors, 0)


def _by_products(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Block Krylov, from random blocks of two widths or from whole factors in float32."""
    d, k, tolerance = forecast.spectrum.size, options.n_components, options.tolerance
    head = _head(forecast)
    for block in sorted({min(max(5, k // 5), k + 10, d), min(k + 10, d)}):
        rounds = forecast.krylov_rounds(k, block, tolerance)
        up = head + 8 * d + ARRAY + (8 * d * block + ARRAY) * rounds
        down = ((8 if block < k else 4) * d * block + ARRAY) * (rounds - 1)
        yield Candidate("sub-it", {"block-size": block, "tolerance": tolerance}, rounds, up, down)
    rank = int(forecast.counts.max())
    if rank < d:
        products = REFINEMENTS * (4 * d * min(k + 10, d) + ARRAY)
        warm = {"warm-start": "svd", "warm-rank": rank, "wire": "float32", "tolerance": tolerance}
        yield Candidate("sub-it", warm, 1 + REFINEMENTS, head + 4 * rank * d + 3 * ARRAY + products, products)


def _corrected(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Covariances in multiples of a step and their corrections; of all steps the cheapest."""
    d, k, ways = forecast.spectrum.size, options.n_components, []
    width, parties = min(k + 10, d), len(forecast.counts)
    for step in STEPS if k < d <= min(LARGEST, forecast.head.n) else ():
        if d * forecast.variances.max() / forecast.total >= FINEST * step:
            continue
        corrections = refine.Corrections(forecast.spectrum, k, width, parties, step * forecast.total / d)
        number = corrections.needed(options.tolerance, MOST_CORRECTIONS)
        if number is None:
            continue
        up = forecast.coded_bytes(step) + 2 * _head(forecast) + 5 * ARRAY
        up += number * (d * width * refine.coded_bits(refine.CORRECTION_BITS) / 8 + 3 * ARRAY)
        down = sum(d * width * refine.coded_bits(refine.block_bits(i)) / 8 + 3 * ARRAY for i in range(number))
        coded = {"codec": "shared-step", "step": step, "tolerance": options.tolerance, "corrections": number + SPARE}
        ways.append(Candidate(CORRECTED, coded, 2 + number, up, down))
    if ways:
        yield min(ways, key=options.cost)


def _own_survey(party: method.Party, asked: method.Fields) -> method.Fields:
    """Count, mean and variances of a party's rows, the eigenvalues of its scatter, a sketch, and its bytes in code."""
    first = random_block(party.vault.features, SKETCH, party.public.config.seed)
    own = party.vault.survey(first, LARGEST)
    unit = own.variances.sum() or 1.0  # float32 holds shares of the variance, whatever the unit of the data
    return {
        **method.head_fields(own.head, own.variances),
        "spectrum": (own.spectrum / unit).astype(np.float32),
        "sketch": (own.sketch / unit).astype(np.float32),
        "variances": own.variances,
        "coded": own.coded.astype(np.float32),
    }


SURVEYED = (
    *method.HEAD,
    method.Field("spectrum", ("d",), dtype="float32"),
    method.Field("sketch", ("d", "s"), dtype="float32"),
    method.Field("variances", ("d",)),
    method.Field("coded", (str(CODED_STEPS.size),), dtype="float32", kind="size"),
)

SURVEY = method.Question(reply=method.Payload(SURVEYED), answer=_own_survey, sizes=lambda public: {"s": SKETCH})

CARD = method.MethodCard(
    name="adaptive",
    title="Adaptive selection",
    exact=True,
    result="or within an angle (`target`)",
    rounds="1, then as chosen",
    upload="4d + 1, then the least of four methods",
    server_sees="variances, local eigenvalues, a small sketch; then as chosen",
    shows=method.Shown(
        "number of rows, mean, variances, the eigenvalues of its covariance, four random products of it and its length "
        "in code; then as the chosen method",
        "the pooled components and mean, and which method was chosen",
    ),
    options=AdaptiveOptions,
    phases=lambda config, options: {"survey": SURVEY},
    goes_on_as=CANDIDATES,
    reference="this project; `fedpca_flwr.maths.forecast` derives it",
)


class AdaptiveClient(method.Client):
    """Answers the survey, and then as the chosen method's client."""

    options: AdaptiveOptions
    others: ClassVar[Mapping[str, Method]] = {}
    """As the strategy's."""

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        if "method" not in config:
            return super().fit(parameters, config)
        try:
            inner = self._chosen(str(config["method"]))
        except Exception as error:
            return [], 0, self._report(error)
        return inner.fit(parameters, config)

    def _chosen(self, text: str) -> PCAClient:
        """The chosen method's client, with this party's own policy, data and memory.

        A run chooses once, and once more where that did not suffice: an exact method.
        """
        name, _ = method_text.words_of(text)
        if name not in CANDIDATES:
            raise method.ContractError(f"the server chose '{name[:20]}', expected one of: {', '.join(CANDIDATES)}")
        before = self._before(text, name)
        site = self.site.running({**self.site.config.model_dump(by_alias=True), "method": text})
        other = self.others[name]
        inner = other.client(other.strategy.card, site, self._transport_of)
        inner.go_on_from(self, before)
        return inner

    def _before(self, text: str, name: str) -> method.Questions:
        """The questions that come before those of the chosen method."""
        kept = [self.journal.recall(name) for name in ("chosen", "chosen then")]
        if kept[0] is None:
            self.journal.keep("chosen", text.encode())
        elif text.encode() not in kept:
            if kept[1] is not None or name == CORRECTED:
                raise method.ContractError("the server chose a method twice in one run")
            self.journal.keep("chosen then", text.encode())
        if kept[0] is None or text.encode() == kept[0]:
            return self.card.phases(self.site.config, self.options)
        script = self._chosen(kept[0].decode()).script
        after_the_fit = {"rows", "files"}  # what stages ask of a model, and the last round
        return {phase: question for phase, question in script.items() if question.needs not in after_the_fit}


class Adaptive(method.Strategy):
    """Adaptive; ``measured`` holds the choice, what it was forecast to cost, and what it cost."""

    card = CARD
    party = AdaptiveClient
    options: AdaptiveOptions
    others: ClassVar[Mapping[str, Method]] = {}
    """All methods, which the registry gives it: it imports none, and goes on as one of `CANDIDATES`."""

    _inner: method.Strategy | None = None
    _chosen: Candidate
    _candidates: list[Candidate]

    @property
    def exact(self) -> bool:
        return self._inner.exact if self._inner else not self.options.target

    def aggregate(self) -> method.Fitting:
        forecast = Forecast.of([_survey(reply) for reply in (yield method.Ask("survey"))])
        self.n_components(forecast.head.n, forecast.head.mean.size)
        method.require_variance(forecast.variances, forecast.head.n, forecast.head.mean)
        self._candidates = self._with_stages(candidates(forecast, self.options))
        before, script = len(self.rounds_so_far), dict(self.phases)
        solution: method.Solution = yield from self._go_on_as(self._candidates[0], script)
        notes: list[str] = []
        missed = self._shortfall(solution)
        if missed:
            further, why = missed
            solution = yield from self._go_on_as(further, script)
            notes.append(f"{why}, so {further.method} went on")
        self.certificate = self.inner.certificate
        spent = self.rounds_so_far[before:]
        up, down = (sum(map(sum, (entry[way] for entry in spent))) / len(spent[0]["up"]) for way in ("up", "down"))
        measured = {
            **{f"heterogeneity_{name}": value for name, value in forecast.heterogeneity.named().items()},
            "forecast_rounds": self._chosen.rounds,
            "forecast_bytes_up_per_party": self._chosen.up,
            "forecast_bytes_down_per_party": self._chosen.down,
            "spent_rounds": len(spent),
            "spent_bytes_up_per_party": up,
            "spent_bytes_down_per_party": down,
        }
        return replace(solution, measured={**measured, **solution.measured}, notes=[*solution.notes, *notes])

    def _with_stages(self, ways: list[Candidate]) -> list[Candidate]:
        """The ways that there are and that can have the stages of this run, with the options of these."""
        keys = {key for stage in self.card.stages for key in method_text.own_keys(stage.Options)}
        shared = {key: value for key, value in method_text.non_defaults(self.options).items() if key in keys}
        return [
            replace(way, options={**way.options, **shared})
            for way in ways
            if way.method in self.others
            and shared.keys() <= set(method_text.own_keys(self.others[way.method].strategy.card.options))
        ]

    def _shortfall(self, solution: method.Solution) -> tuple[Candidate, str] | None:
        """Where the components are not as wanted: who goes on, and why."""
        chosen, certificate = self._chosen, self.inner.certificate
        pairs = solution.pairs.of_rank(int(solution.rows) - 1)
        if chosen.method != FACTORS and self.inner.certainty(pairs).resolved is not None:
            factors = next(way for way in self._candidates if way.method == FACTORS)
            return factors, f"{chosen.method} cannot resolve components so small beside the first"
        if chosen.method == CORRECTED and not self.inner.exact and not certificate <= self.options.target:
            further = next(way for way in self._candidates if way.method != CORRECTED)
            came = "has no bound" if certificate >= 90 else f"came within {eigen.at_most(certificate)} degrees only"
            return further, f"{chosen.method} {came}"
        return None

    @property
    def inner(self) -> method.Strategy:
        """The strategy of the method that was chosen."""
        assert self._inner is not None
        return self._inner

    def _go_on_as(self, chosen: Candidate, script: dict[str, method.Question]) -> method.Program:
        """Go on as another method, whose questions follow those of the ``script`` so far."""
        self._chosen = chosen
        kind = self.others[chosen.method].strategy
        options = method_text.options_of(chosen.text, kind.card.options, {"n-components": self.options.n_components})
        inner = kind.of(self.config, options, self.transport)
        assert isinstance(inner, method.Strategy)
        inner.go_on_from(self)
        inner.stages = self.stages
        self._inner = inner
        script |= inner.phases
        self.phases = dict(script)
        return (yield from _with_method(inner.aggregate(), chosen.text))

    def modelled(self, solution: method.Solution) -> method.PCAModel:
        """The chosen method's model, which says of itself what that method knows, and how it was chosen."""
        model = self.inner.modelled(solution)
        model.log["method"], model.log["options"] = self.card.name, self.options.model_dump(by_alias=True)
        model.log["chosen"] = {"method": self._chosen.method, "options": dict(self._chosen.options)}
        model.log["candidates"] = [vars(candidate) for candidate in self._candidates]
        return model

    def closed(self, model: method.PCAModel, solution: method.Solution) -> method.Program:
        return (yield from _with_method(super().closed(model, solution), self._chosen.text))

    def projected(self, model: method.PCAModel, asked: method.Fields) -> method.Program:
        return self.inner.projected(model, asked)


def _with_method(program: method.Program, name: str) -> method.Program:
    """The same questions, as those of the method that was chosen."""

    def put(question: method.Ask) -> method.Program:
        return (yield replace(question, method=name))

    return relayed(program, put)


def _survey(reply: method.Reply) -> Survey:
    fields = reply.fields
    unit = float(fields["variances"].sum()) or 1.0
    values = unit * np.sort(fields["spectrum"].astype(np.float64))[::-1].clip(min=0.0)
    sketch, coded = unit * fields["sketch"].astype(np.float64), fields["coded"].astype(np.float64)
    return Survey(method.head_in(fields), fields["variances"], values, sketch, coded)
