"""Adaptive: a cheap survey, a forecast for several methods, and then the method that needs the fewest bytes.

Take the adaptive method if bytes matter and you do not know how fast the variances of the components fall. After a
survey of all sites, the server forecasts rounds and bytes for `p-cov`, `qr-pca`, `sub-it` and `compressed`
(`fedpca_flwr.maths.forecast`). The run takes the cheapest method that is forecast to reach the angle ``target``,
and the next cheapest if this method does not reach it. If a component is too small beside the first to be computed from
covariances, the run takes `qr-pca`.

With ``rule="divergences"``, as in design note 001, the sites send their moments once. The server averages their
covariances (AP-COV) if the moments differ little (`fedpca_flwr.maths.divergences`), and pools them (P-COV) otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator
from typing_extensions import override

from fedpca_flwr.config import method_text
from fedpca_flwr.config.run_config import refusal
from fedpca_flwr.errors import value_text
from fedpca_flwr.maths import eigen, moments, refine
from fedpca_flwr.maths.divergences import divergences
from fedpca_flwr.maths.factors import trapezoid_size
from fedpca_flwr.maths.forecast import CODED_STEPS, Forecast, Survey
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.protocol.card import method_questions
from fedpca_flwr.protocol.client import PartyClient, PCAClient, RefusingClient
from fedpca_flwr.protocol.question import max_questions
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.protocol.transport import relay
from fedpca_flwr.questions import method
from fedpca_flwr.questions.influence import Contributions

CANDIDATE_METHODS = ("p-cov", "qr-pca", "sub-it", "compressed")  # methods among which a run chooses
CORRECTED_METHOD = "compressed"  # candidate that is no exact method: its corrections go on until a bound holds
FACTOR_METHOD = "qr-pca"  # candidate that resolves the smallest components

SKETCH_COLUMNS = 4  # enough to tell equal scatters from different ones
ARRAY_HEADER_BYTES = 128  # of an array's header in a message
MAX_STEPS_PER_VARIANCE = 2.0**26  # in the largest variance; the codec refuses more
# steps of a coded covariance that are forecast, in units of the mean variance of a feature
STEP_CHOICES = tuple(float(f"{digit}e{power}") for power in range(-7, -1) for digit in (1, 2, 5))
MAX_FORECAST_CORRECTIONS = 4  # up to which the forecast of a step holds
MAX_MATRIX_FEATURES = 5000  # up to which parties hold matrices (d, d) to save bytes
SPARE_CORRECTIONS = 2  # beyond the forecast before another candidate goes on
WARM_START_PRODUCTS = 2  # after a warm start by complete factors, whose only error is the rounding of float32


class AdaptiveOptions(method.Options, method.VariantOptions):
    """Options of the adaptive method: components, the rule, the wanted angle, and prices of downloads and rounds."""

    published: ClassVar[Mapping[str, Any]] = {"rule": "divergences"}

    rule: Literal["forecast", "divergences"] = "forecast"
    """Rule that chooses the method: the fewest bytes by a forecast, or the divergences between the sites' moments."""
    threshold: Annotated[float, Limits(ge=0, le=1, examples=[0.0, 0.35, 1.0])] = 0.35
    """With rule='divergences', largest score with which the run averages covariances (`ap-cov`); above it the run pools
    them (`p-cov`)."""
    target: Annotated[float, Limits(ge=0, le=30, examples=[0.0, 0.01, 0.5, 2.0, 10.0])] = 0.0
    """Largest angle to the exact components, in degrees, that the run must certify. With 0 the result is exact."""
    download_weight: Annotated[float, Limits(ge=0, examples=[0.0, 1.0, 10.0])] = 1.0
    """Price of a byte that a site receives; a byte that it sends has the price 1."""
    round_bytes: Annotated[float, Limits(ge=0, examples=[0.0, 1e3, 1e6])] = 1e4
    """Price of a round, in bytes that a site sends."""

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        """Raise for a `target` by the rule 'divergences'."""
        if self.target and self.rule == "divergences":
            text = "certifies no angle: leave 'target' out, or set rule='forecast'"
            raise refusal(f"'target' is {self.target:g}, and rule='divergences' {text}")
        return self

    @property
    def tolerance(self) -> float:
        """Largest certified angle to the exact components, in degrees, at which a run may end; never 0."""
        return self.target or eigen.EXACT_ANGLE_DEGREES

    def cost(self, candidate: Candidate) -> float:
        """Return a candidate's cost in bytes: bytes up, plus bytes down and rounds times the prices in the options."""
        return candidate.up + self.download_weight * candidate.down + candidate.rounds * self.round_bytes


@dataclass(frozen=True)
class Candidate:
    """Method that the adaptive run may choose: its name, its options, and the forecast of rounds and bytes."""

    method: str
    options: Mapping[str, Any]  # those that differ from their defaults, by their keys in the run-config
    rounds: int  # after the survey
    up: float  # bytes that a party sends, in the mean over the parties
    down: float  # bytes that a party receives, in the mean over the parties

    @property
    def text(self) -> str:
        """Method and options as the text of the run-config key ``method``."""
        return method_text.format_method(self.method, self.options)


def rank_candidates(forecast: Forecast, options: AdaptiveOptions) -> list[Candidate]:
    """Return the candidates that are forecast to reach the target angle, the cheapest first; two or more are exact."""
    d, head = forecast.spectrum.size, _head_bytes(forecast) + ARRAY_HEADER_BYTES
    factor_size = float(np.mean([trapezoid_size(int(n), d) for n in forecast.counts]))
    candidates = [
        Candidate("p-cov", {}, 1, head + 8 * moments.packed_size(d), 0),
        Candidate(FACTOR_METHOD, {}, 1, head + 8 * factor_size, 0),
        *_product_candidates(forecast, options),
        *_corrected_candidates(forecast, options),
    ]
    return sorted(candidates, key=options.cost)


def _head_bytes(forecast: Forecast) -> float:
    """Return the bytes of the message arrays that hold a count and a mean (d,), with array headers."""
    return 8.0 * (forecast.spectrum.size + 1) + 3 * ARRAY_HEADER_BYTES


def _product_candidates(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Yield block Krylov candidates: random starts of two widths, and a warm start from complete factors."""
    d, k, tolerance = forecast.spectrum.size, options.n_components, options.tolerance
    head = _head_bytes(forecast)
    for block in sorted({min(max(5, k // 5), k + 10, d), min(k + 10, d)}):
        rounds = forecast.krylov_rounds(k, block, tolerance)
        up = head + 8 * d + ARRAY_HEADER_BYTES + (8 * d * block + ARRAY_HEADER_BYTES) * rounds
        down = ((8 if block < k else 4) * d * block + ARRAY_HEADER_BYTES) * (rounds - 1)
        yield Candidate("sub-it", {"block-size": block, "tolerance": tolerance}, rounds, up, down)
    rank = int(forecast.counts.max())
    if rank < d:
        products = WARM_START_PRODUCTS * (4 * d * min(k + 10, d) + ARRAY_HEADER_BYTES)
        warm = {"warm-start": "svd", "warm-rank": rank, "wire": "float32", "tolerance": tolerance}
        up = head + 4 * rank * d + 3 * ARRAY_HEADER_BYTES + products
        yield Candidate("sub-it", warm, 1 + WARM_START_PRODUCTS, up, products)


def _corrected_candidates(forecast: Forecast, options: AdaptiveOptions) -> Iterator[Candidate]:
    """Yield the cheapest candidate with covariances rounded to a step of `STEP_CHOICES` and corrected, or none."""
    d, k, candidates = forecast.spectrum.size, options.n_components, []
    width, parties = min(k + 10, d), len(forecast.counts)
    for step in STEP_CHOICES if k < d <= min(MAX_MATRIX_FEATURES, forecast.head.n) else ():
        if d * forecast.variances.max() / forecast.total >= MAX_STEPS_PER_VARIANCE * step:
            continue
        corrections = refine.Corrections(forecast.spectrum, k, width, parties, step * forecast.total / d)
        number = corrections.count_needed(options.tolerance, MAX_FORECAST_CORRECTIONS)
        if number is None:
            continue
        headers = 3 * ARRAY_HEADER_BYTES
        up = forecast.coded_bytes(step) + 2 * _head_bytes(forecast) + 5 * ARRAY_HEADER_BYTES
        up += number * (d * width * refine.entropy_bits(refine.CORRECTION_BITS) / 8 + headers)
        down = sum(d * width * refine.entropy_bits(refine.block_bits(i)) / 8 + headers for i in range(number))
        coded = {"codec": "shared-step", "step": step, "tolerance": options.tolerance}
        coded["corrections"] = number + SPARE_CORRECTIONS
        candidates.append(Candidate(CORRECTED_METHOD, coded, 2 + number, up, down))
    if candidates:
        yield min(candidates, key=options.cost)


def _answer_survey(party: method.Party, request: method.Fields) -> method.Fields:
    """Return count, mean, variances, spectrum (d,) and sketch (d, s) as shares of the variance, and coded sizes."""
    first = random_block(party.vault.features, SKETCH_COLUMNS, party.public.config.seed)
    local = party.vault.survey(first, MAX_MATRIX_FEATURES)
    unit = local.variances.sum() or 1.0  # float32 holds shares of the variance, whatever the unit of the data
    return {
        **method.head_fields(local.head, local.variances),
        "spectrum": (local.spectrum / unit).astype(np.float32),
        "sketch": (local.sketch / unit).astype(np.float32),
        "variances": local.variances,
        "coded": local.coded.astype(np.float32),
    }


SURVEY_FIELDS = (
    *method.HEAD,
    method.Field("spectrum", ("d",), dtype="float32"),
    method.Field("sketch", ("d", "s"), dtype="float32"),
    method.Field("variances", ("d",)),
    method.Field("coded", (str(CODED_STEPS.size),), dtype="float32", kind="size"),
)
SURVEY = method.Question(
    reply=method.Payload(SURVEY_FIELDS), answer=_answer_survey, sizes=lambda public: {"s": SKETCH_COLUMNS}
)


def adaptive_script(config: method.RunConfig, options: AdaptiveOptions) -> method.Questions:
    """Return the survey; or by the rule 'divergences' the questions of P-COV, in clear; ConfigError for stages then."""
    if options.rule == "forecast":
        return {"survey": SURVEY}
    if names := ", ".join(sorted(options.non_defaults & options.stage_option_names)):
        raise method.ConfigError(f"run-config: {value_text(names)} goes with rule='forecast', or with p-cov itself")
    hidden = "rule='divergences' compares the parties' moments, which sums hide: take p-cov, which is exact by sums"
    moments_question = method.moments_questions(method.RunConfig())["moments"]
    return {"moments": replace(moments_question, suggestion=hidden), **method.projection_questions()}


CARD = method.MethodCard(
    name="adaptive",
    title="Adaptive selection",
    exact=True,
    result="With `target`, exact to this angle. With `rule='divergences'`, averaged covariances are not exact",
    rounds="1, then those of the chosen method; 1 with `rule='divergences'`",
    upload="about 4d + 1 for d features, then those of the chosen method; with `rule='divergences'` d(d+1)/2 + d + 1",
    server_sees="variances, local eigenvalues, a small sketch; then what the chosen method shows",
    disclosure=method.Disclosure(
        "its number of rows, mean, variances, the eigenvalues of its covariance, four random products of its "
        "covariance, and the size of its encoded covariance; then what the chosen method shows. With "
        "`rule='divergences'`, its number of rows, mean and covariance matrix",
        "the pooled components and mean, and which method was chosen",
    ),
    options=AdaptiveOptions,
    script=adaptive_script,
    examples=({}, {"rule": "divergences"}),
    successors=CANDIDATE_METHODS,
    reference="this project; `fedpca_flwr.maths.forecast` has the derivation",
    differences="The publication, the unpublished design note 001, chooses by `rule='divergences'`: it averages "
    "covariances if the sites' moments differ little, and pools them otherwise. By default this project forecasts "
    "bytes and errors instead, and the result is exact. On digits, with 10 equal sites in random order and 10 "
    "components, `variant=paper` averages covariances, and is 0.6 degrees from exact. The default with `target=1.0` "
    "sends half as many bytes, and is 0.04 degrees from exact. The note gives no scales and weights of its "
    "divergences: `variant=paper` limits each to 1, and weighs them equally.",
)


class AdaptiveClient(method.Client):
    """Client of the adaptive method: answers the survey, and then delegates to the chosen method's client."""

    options: AdaptiveOptions
    registry: ClassVar[Mapping[str, Method]] = {}  # all methods by name, as the strategy's

    @property
    @override
    def ends_run(self) -> bool:
        """True by the rule 'divergences', whose choice asks nothing more."""
        return self.options.rule == "divergences"

    @override
    def responder(self, config: Mapping[str, Any]) -> PartyClient:
        """Return this client, or that of the config's ``method``; if there can be none, one that reports the error."""
        if "method" not in config or self.ends_run:
            return self
        try:
            return self._chosen_client(str(config["method"]))
        except Exception as error:
            return RefusingClient(self._report_error(error))

    def _chosen_client(self, text: str) -> PCAClient:
        """Return a client of the method that the server chose, for this site; raise ContractError for no candidate."""
        name, _ = method_text.split_method_text(text)
        if name not in CANDIDATE_METHODS:
            raise method.ContractError(
                f"the server chose {value_text(name)}, expected one of: {', '.join(CANDIDATE_METHODS)}"
            )
        earlier = self._earlier_questions(text, name)
        site = self.site.with_run_config({**self.site.config.model_dump(by_alias=True), "method": text})
        chosen = self.registry[name]
        inner = chosen.client(chosen.strategy.card, site, self._make_transport)
        inner.continue_from(self, earlier)
        return inner

    def _earlier_questions(self, text: str, name: str) -> method.Questions:
        """Record the server's choice in the journal, and return the questions asked before the chosen method's.

        A run chooses once, and once more where the first choice did not suffice. Raise ContractError for a third
        choice, and for `compressed` as the second.
        """
        choices = [self.journal.load_secret(name) for name in ("chosen", "chosen then")]
        if choices[0] is None:
            self.journal.store_secret("chosen", text.encode())
        elif text.encode() not in choices:
            if choices[1] is not None or name == CORRECTED_METHOD:
                raise method.ContractError("the server chose a method twice in one run")
            self.journal.store_secret("chosen then", text.encode())
        if choices[0] is None or text.encode() == choices[0]:
            return self.card.script(self.site.config, self.options)
        script = self._chosen_client(choices[0].decode()).script
        after_the_fit = {"rows", "files"}  # questions of stages about a fitted model, and the projection
        return {phase: question for phase, question in script.items() if question.needs not in after_the_fit}


class Adaptive(method.Strategy):
    """Strategy of the adaptive method: a survey, a choice, and the chosen method's strategy.

    The forecast takes the mean spectrum of the surveys for that of the pooled scatter. Candidates are covariances and
    factors in one round, block Krylov iterations, and covariances in multiples of a step with corrections. Each
    candidate ends with a certified bound of at most ``target`` degrees, or counts as exact.
    """

    card = CARD
    party = AdaptiveClient
    options: AdaptiveOptions
    registry: ClassVar[Mapping[str, Method]] = {}  # set by the registry, so that this module imports no other method
    _inner: method.Strategy | None = None
    _choice: Candidate
    _candidates: list[Candidate]
    _averages = False  # whether the rule 'divergences' chose averaged covariances

    @property
    @override
    def exact(self) -> bool:
        """True if the chosen method's run is exact; before the choice, if no target angle is set."""
        if self.options.rule == "divergences":
            return not self._averages
        return self._inner.exact if self._inner else not self.options.target

    @property
    @override
    def rounds(self) -> int:
        """Largest number of rounds: before the choice, those of the survey and of any two methods."""
        if self._inner is not None or self.options.rule == "divergences":
            return super().rounds
        keys = {"n-components": self.options.n_components}
        cards = [self.registry[name].strategy.card for name in CANDIDATE_METHODS]
        scripts = [
            method_questions(card.script, self.config, method_text.parse_options(card.name, card.options, keys))
            for card in cards
        ]
        return super().rounds + sum(sorted(max_questions(script, self.public) for script in scripts)[-2:])

    @override
    def aggregate(self) -> method.Fitting:
        """Ask for the survey, run the cheapest method, and another if it is too inexact; raise as the methods."""
        if self.options.rule == "divergences":
            return (yield from self._solve_by_divergences())
        forecast = Forecast.from_surveys([_read_survey(reply) for reply in (yield method.Round("survey"))])
        self.n_components(forecast.head.n, forecast.head.mean.size)
        method.require_variance(forecast.variances, forecast.head.n, forecast.head.mean)
        self._candidates = self._with_stage_options(rank_candidates(forecast, self.options))
        first_round, script = len(self.round_log), dict(self.script)
        solution: method.Solution = yield from self._continue_as(self._candidates[0], script)
        notes: list[str] = []
        shortfall = self._shortfall(solution)
        if shortfall:
            successor, reason = shortfall
            solution = yield from self._continue_as(successor, script)
            notes.append(f"{reason}, so {successor.method} went on")
        self.certificate = self.inner.certificate
        spent = self.round_log[first_round:]
        parties = len(spent[0]["up"])
        up, down = (sum(sum(entry[way]) for entry in spent) / parties for way in ("up", "down"))
        measured = {
            **{f"heterogeneity_{name}": value for name, value in forecast.heterogeneity.as_dict().items()},
            "forecast_rounds": self._choice.rounds,
            "forecast_bytes_up_per_party": self._choice.up,
            "forecast_bytes_down_per_party": self._choice.down,
            "spent_rounds": len(spent),
            "spent_bytes_up_per_party": up,
            "spent_bytes_down_per_party": down,
        }
        return replace(solution, measurements={**measured, **solution.measurements}, notes=[*solution.notes, *notes])

    def _solve_by_divergences(self) -> method.Fitting:
        """Ask for the parties' moments, and solve them pooled, or averaged if the parties differ little."""
        pooling = yield from method.pooled_moments(self, retain_all=True)
        solved, parts = pooling.moments, list(pooling.parts.values())
        measured, averaged = divergences(parts), pool(parts, within=True)
        # averaged covariances of identical rows at every party have no components
        self._averages = measured["score"] <= self.options.threshold and bool(averaged.diagonal().any())
        evidence, notes = pooling.evidence, list[str]()
        if self._averages:
            solved, evidence = averaged, replace(evidence, contributions=Contributions(pooling.parts, between=False))
            notes.append(f"covariances were averaged: the score of divergence is at most {self.options.threshold:g}")
        k = self.options.n_components
        solution = method.solve(solved, pooling.diagonal, n_components=k, center=True, scale=False)
        # of what is left out between the parties the averaged scatter tells no directions
        measurements = {} if self._averages else solution.measurements
        solution = replace(solution, evidence=evidence, measurements=measurements)
        measured = {f"divergence_{name}": value for name, value in measured.items()}
        return solution.with_details(notes=notes, measurements=measured)

    def _with_stage_options(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates whose methods support the run's stages, with the stages' options added."""
        keys = {key for stage in self.card.stages for key in method_text.method_option_keys(stage.Options)}
        shared = {key: value for key, value in method_text.non_defaults(self.options).items() if key in keys}
        usable = []
        for candidate in candidates:
            if candidate.method in self.registry:
                card = self.registry[candidate.method].strategy.card
                if shared.keys() <= set(method_text.method_option_keys(card.options)):
                    usable.append(replace(candidate, options={**candidate.options, **shared}))
        return usable

    def _shortfall(self, solution: method.Solution) -> tuple[Candidate, str] | None:
        """Return a successor candidate and the reason if the chosen method's solution is too inexact, else None."""
        chosen, certificate = self._choice, self.inner.certificate
        pairs = solution.pairs.with_rank_bound(int(solution.rows) - 1)
        if chosen.method != FACTOR_METHOD and self.inner.certainty(pairs).resolved is not None:
            factors = next(candidate for candidate in self._candidates if candidate.method == FACTOR_METHOD)
            return factors, f"{chosen.method} cannot resolve components so small beside the first"
        if chosen.method == CORRECTED_METHOD and not self.inner.exact and not certificate <= self.options.target:
            successor = next(candidate for candidate in self._candidates if candidate.method != CORRECTED_METHOD)
            bound = f"came within {eigen.format_upper_bound(certificate)} degrees only"
            return successor, f"{chosen.method} {'has no bound' if certificate >= 90 else bound}"
        return None

    @property
    def inner(self) -> method.Strategy:
        """Strategy of the method that was chosen; there is none before the choice."""
        assert self._inner is not None
        return self._inner

    def _continue_as(self, candidate: Candidate, script: dict[str, method.Question]) -> method.Program:
        """Run a candidate's strategy in this run, its questions added to ``script`` in place; return its solution."""
        self._choice = candidate
        strategy = self.registry[candidate.method].strategy
        keys = {"n-components": self.options.n_components}
        options = method_text.parse_options(candidate.text, strategy.card.options, keys)
        inner = strategy.from_config(self.config, options, self.transport)
        assert isinstance(inner, method.Strategy)
        inner.continue_from(self)
        inner.stages = self.stages
        self._inner = inner
        script |= inner.script
        self.script = dict(script)
        return (yield from _address_to_method(inner.aggregate(), candidate.text))

    @override
    def build_model(self, solution: method.Solution) -> method.PCAModel:
        """Build the chosen method's model, and log the choice and, by the forecast, all candidates."""
        if self.options.rule == "divergences":
            model = super().build_model(solution)
            model.log["chosen"] = {"method": "ap-cov" if self._averages else "p-cov", "options": {}}
            return model
        model = self.inner.build_model(solution)
        self.influence, self.inner.influence = self.inner.influence, ()
        model.log["method"], model.log["options"] = self.card.name, self.options.model_dump(by_alias=True)
        model.log["chosen"] = {"method": self._choice.method, "options": dict(self._choice.options)}
        model.log["candidates"] = [vars(candidate) for candidate in self._candidates]
        return model

    @override
    def run_closing(self, model: method.PCAModel, solution: method.Solution) -> method.Program:
        """Run stages' questions and projection, addressed to the chosen method's clients."""
        if self.options.rule == "divergences":
            return (yield from super().run_closing(model, solution))
        return (yield from _address_to_method(super().run_closing(model, solution), self._choice.text))

    @override
    def run_projection(self, model: method.PCAModel, request: method.Fields) -> method.Program:
        """Run the chosen method's projection round."""
        if self.options.rule == "divergences":
            return super().run_projection(model, request)
        return self.inner.run_projection(model, request)


def _address_to_method(program: method.Program, name: str) -> method.Program:
    """Return the program, and its result, with every round's ``method`` set to ``name``, to which clients delegate."""

    def put(question: method.Round) -> method.Program:
        return (yield replace(question, method=name))

    return relay(program, put)


def _read_survey(reply: method.Reply) -> Survey:
    """Return the survey in a reply, in units of the data, with eigenvalues descending and from 0 on."""
    fields = reply.fields
    unit = float(fields["variances"].sum()) or 1.0
    values = unit * np.sort(fields["spectrum"].astype(np.float64))[::-1].clip(min=0.0)
    sketch, coded = unit * fields["sketch"].astype(np.float64), fields["coded"].astype(np.float64)
    return Survey(method.read_head(fields), fields["variances"], values, sketch, coded)
