"""Compressed: the moments of P-COV in fewer bytes, with a measured error.

Take it where the upload of P-COV is too large and a few more rounds are not. Count and mean travel as they are, the
scatter by a codec (`fedpca_flwr.maths.codecs`):

* ``quantise``: the packed triangle in ``bits`` bits a value;
* ``shared-step``: whole multiples of one step, compressed without loss, in one short round more, for data with many
  near-zero covariances, as images have;
* ``low-rank``: the leading ``rank`` eigenvectors times the roots of their eigenvalues, in ``bits`` bits, and half of
  the first omitted eigenvalue in every other direction;
* ``sketch``: ``rank`` random products, for comparison.

In clear each party measures the spectral norm of its encoding's error, and the model holds the bound on the angle that
follows. With secure aggregation the triangle travels in ``bits`` bits a value, several to a word
(`fedpca_flwr.questions.short_words`), and the bound is by the steps and the number of parties alone, the worst case:
where many parties need a certificate, take more ``bits`` (21 for 100 parties). A correction is one more round: the
server sends the leading components, and each party returns what its encoding still gets wrong about them
(`fedpca_flwr.maths.refine`). With a ``tolerance`` of 1e-6 degrees or less the method counts as exact.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator
from pydantic import Field as Limits
from pydantic_core import PydanticCustomError

from fedpca_flwr.maths import codecs, eigen, moments, refine
from fedpca_flwr.maths.sums import MomentsSum
from fedpca_flwr.questions import method, short_words

MOST_CORRECTIONS = 10
SITE_STEPS = (
    "to how many steps each site's numbers are rounded, and it chooses the steps: runs with many different ones tell "
    "single sites' covariances"
)
INSTEAD = "leave out 'codec': sums travel in short words"


def _still_there(codec: object) -> object:
    if codec in ("combined", "top-k"):
        raise PydanticCustomError("gone", "which was taken out in this version: take 'shared-step', which is no worse")
    return codec


class CompressedOptions(method.Options):
    """Options of the compressed method."""

    codec: Annotated[
        Literal["auto", "quantise", "shared-step", "low-rank", "sketch"], BeforeValidator(_still_there)
    ] = "auto"
    """How the scatter travels; 'auto': 'quantise', and with secure aggregation in short words."""
    bits: Annotated[int, Limits(ge=4, le=32, examples=[4, 8, 16, 32])] = 16
    """For each value; of all codecs but ``shared-step``."""
    step: Annotated[float, Limits(gt=0, le=1, examples=[1e-7, 1e-5, 1e-2, 1.0])] = 1e-5
    """Of ``shared-step``: in units of the mean variance of a feature."""
    rank: Annotated[int, Limits(ge=0, examples=[1, "k", "2k", 100])] = 0
    """Of ``low-rank`` and ``sketch``: how many vectors; 0: 2 n-components."""
    corrections: Annotated[int, Limits(ge=0, le=MOST_CORRECTIONS, examples=[0, 1, 3])] = 0
    """Rounds of corrections."""
    tolerance: Annotated[float, Limits(ge=0, le=90, examples=[1e-6, 1e-3, 1.0])] = 0.0
    """Certified largest angle, in degrees, at which corrections end (at most ten without ``corrections``); 0: with
    the last."""

    def block(self, d: int) -> int:
        """Columns of the block of a correction."""
        return min(self.n_components + 10, d)

    @property
    def most_corrections(self) -> int:
        return self.corrections or (MOST_CORRECTIONS if self.tolerance else 0)

    def columns(self, public: method.Public) -> int:
        """How many the scatter is multiplied with: in short words by blocks."""
        return self.most_corrections * self.block(public.features) if in_short_words(public.config) else 0

    @property
    def site_sums(self) -> Mapping[str, str]:
        return {"compressed": SITE_STEPS}

    def coder(self, d: int, step: float, seed: int) -> codecs.ScatterCodec:
        """The codec for ``d`` features; ``step`` is in the unit of the scatter."""
        rank = min(self.rank or 2 * self.n_components, d)
        known: dict[str, codecs.ScatterCodec] = {
            "auto": codecs.Quantise(self.bits),
            "quantise": codecs.Quantise(self.bits),
            "shared-step": codecs.SharedStep(step),
            "low-rank": codecs.LowRank(rank, self.bits),
            "sketch": codecs.Sketch(rank, self.bits, seed),
        }
        return known[self.codec]


CODE = (method.Field("code", ("any",), "uint8"), method.Field("scales", ("any",), "float32"))
TRIANGLE = ("d(d+1)/2",)
TRACE = method.Field("trace", ("1",), kind="size")
ERRORS = method.Field("wrong", ("2",), kind="size")
"""Spectral norms of what a party's approximation gets wrong: everywhere, and on the block of the correction."""


def in_short_words(config: method.RunConfig) -> bool:
    """Whether scatters travel in words that add up."""
    return method.by_transport(config, clear=False, masked=True)


def phases(config: method.RunConfig, options: CompressedOptions) -> method.Questions:
    """The scale of the step, the encoded scatters, the corrections."""
    if in_short_words(config) and options.codec == "auto":
        return {
            **short_words.short_phases(
                config,
                options.bits,
                lambda public: options.block(public.features),
                corrections=options.most_corrections,
            ),
            **method.projection_phase(about="centre"),
        }
    scale = method.Question(reply=method.Payload((*method.HEAD, TRACE)), answer=_own_scale)
    encoded = method.Question(
        asked=method.Payload((method.Field("step", (), kind="size"),)),
        reply=method.Payload((*CODE, *method.HEAD, TRACE, ERRORS)),
        answer=_encoded,
        forms=TRIANGLE,
        instead=INSTEAD,
    )
    correction = method.Question(
        asked=method.Payload((*CODE, method.Field("bits", (), "int64", kind="size"))),
        reply=method.Payload((*CODE, ERRORS)),
        answer=lambda party, asked: _correction(party, _block(party, asked)),
        forms=TRIANGLE,
        times=options.most_corrections,
        optional=options.tolerance > 0,
    )
    return {
        **({"scale": scale} if options.codec == "shared-step" else {}),
        "encoded": encoded,
        **({"correction": correction} if options.most_corrections else {}),
        **method.projection_phase(),
    }


def _own_scale(party: method.Party, asked: method.Fields) -> method.Fields:
    """Count, mean, and the trace of a party's scatter."""
    head, diagonal = party.vault.head_and_diagonal()
    return {**method.head_fields(head, diagonal), "trace": np.array([diagonal.sum()])}


def _encoded(party: method.Party, asked: method.Fields) -> method.Fields:
    """A party's scatter in code, and what that gets wrong."""
    own = party.vault.moments()
    d = own.n_features
    diagonal = own.diagonal()
    unit = codecs.unit_of(float(diagonal.sum()))
    scatter = own.scatter / unit
    codec = party.options.coder(d, float(asked["step"]) / unit, party.public.config.seed)
    try:
        coded = codec.encode(scatter, d)
    except ValueError as error:
        raise method.ConfigError(f"run-config: 'step' is {party.options.step}: {error}") from None
    missing = scatter - codec.decode(coded, d)
    if party.options.most_corrections:
        party.state["missing"] = [missing, unit]
    wrong = unit * eigen.spectral_norm(moments.unpack(missing, d))
    return {
        "code": coded.code,
        "scales": coded.scales,
        **method.head_fields(own.head, diagonal),
        "trace": np.array([diagonal.sum()]),
        "wrong": np.array([wrong, wrong]),
    }


def _block(party: method.Party, asked: method.Fields) -> method.Array:
    """The block (d, b) that is asked about."""
    coded, d = codecs.Coded(asked["scales"], asked["code"]), party.vault.features
    most, bits = party.options.block(d), int(asked["bits"])
    if coded.scales.size > most or not 0 < bits <= refine.MOST_BITS:
        raise method.ContractError(
            f"{method.SERVER}: asked about a block of {coded.scales.size} columns in {bits} bits, expected at most "
            f"{most} columns and {refine.MOST_BITS} bits"
        )
    try:
        return codecs.orthonormal_block(coded, bits, (d, coded.scales.size))
    except ValueError as error:
        raise method.ContractError(f"{method.SERVER}: its block does not decode: {error}") from None


def _correction(party: method.Party, V: method.Array) -> method.Fields:
    """What this party's approximation still gets wrong about the block ``V`` (d, b), rounded; and after it."""
    packed, unit = party.state["missing"]
    lower = moments.unpack(packed, len(V))
    missing = lower + np.tril(lower, -1).T
    coded = codecs.encoded_block(missing @ V, refine.CORRECTION_BITS)
    missing = refine.corrected(missing, V, -codecs.decoded_block(coded, refine.CORRECTION_BITS, V.shape))
    party.state["missing"] = [moments.pack(missing), unit]
    wrong = float(unit) * np.array([eigen.spectral_norm(missing), np.linalg.norm(missing @ V, 2)])
    return {"code": coded.code, "scales": coded.scales, "wrong": wrong}


CARD = method.MethodCard(
    name="compressed",
    title="Compressed covariance",
    exact=False,
    result="with a measured bound, or exact to a certified angle (`tolerance`)",
    rounds="1; with `step` 2; and `corrections`",
    upload="5 to 100 times less than d²",
    server_sees="each party's approximate covariance",
    shows=method.Shown(
        "number of rows, mean, total variance, its covariance to the precision asked (`low-rank`: its leading "
        "components)",
        network="sizes and times of messages; a compressed size depends a little on the covariance",
    ),
    shows_summed=method.Shown(
        "number of rows, mean, variances, scatter in `bits` bits, its products with the corrected vectors, "
        "squared error",
        "mean, variances and number of rows of all; the pooled components so far",
    ),
    options=CompressedOptions,
    phases=phases,
    weighted=True,
    reference="this project; `fedpca_flwr.maths.codecs` and `fedpca_flwr.maths.refine` derive it",
    examples=({}, {"codec": "shared-step", "corrections": 10}, {"corrections": 10}),
)


class Compressed(method.Strategy):
    """Compressed; ``measured`` holds the ratio and the error bounds."""

    card = CARD
    options: CompressedOptions
    proven_angle, values_hold = 90.0, False

    def aggregate(self) -> method.Fitting:
        options, wanted = self.options, self.options.n_components
        scatter = short_words.ShortScatter(self) if in_short_words(self.config) else CodedScatters(self)
        yield from scatter.ask()
        head, total = scatter.head, scatter.total
        self.n_components(head.n, head.mean.size)
        method.require_variance(total, head.n, head.mean)
        width = options.block(head.mean.size)
        for number in range(options.most_corrections + 1):
            several = eigen.leading_eigenpairs(scatter.matrix, width)
            worst, value_error = refine.corrected_angle_bound(
                several, wanted, scatter.wrong, scatter.on_block, scatter.block, scatter.on_first
            )
            last = max(0.0, float(several.values[wanted - 1]))
            self.proven_angle, self.values_hold = worst, value_error <= refine.SAME * last
            if number == options.most_corrections or self._done:
                break
            yield from scatter.correct(several.vectors, number)
        pairs = several.first(wanted)
        pairs = replace(pairs, values=scatter.unit * pairs.values, following=scatter.unit * pairs.following)
        if pairs.values[0] <= 0:
            raise method.ConfigError(
                f"run-config: 'codec' is '{options.codec}', and what it leaves of this scatter has no positive "
                "eigenvalue; take another codec, or 'p-cov'"
            )
        self.certificate = worst
        excess, d = float(pairs.values.sum()) / total, head.mean.size
        return method.Solution(
            pairs=pairs,
            mean=head.mean,
            total=total,
            rows=head.n,
            evidence=scatter.evidence,
            notes=[
                *([f"rounding makes the variances add up to {excess:.1%} of the total"] if excess > 1 else []),
                *self._shortfall(number),
            ],
            measured={
                "compression_ratio": 8 * (d * d + d + 1) / self._uploaded(),
                "scatter_error_variance_share": scatter.unit * scatter.wrong / total,
                "angle_bound_degrees": worst,
            },
        )

    @property
    def exact(self) -> bool:
        """Where a run goes on until a bound holds, and it says so of the components and of each variance."""
        return self.options.tolerance > 0 and self.proven_angle <= eigen.EXACT and self.values_hold

    @property
    def _done(self) -> bool:
        """Whether what was wanted holds; who wants exact components wants their variances too."""
        tolerance = self.options.tolerance
        return self.proven_angle <= tolerance and (tolerance > eigen.EXACT or self.values_hold)

    def _shortfall(self, corrections: int) -> list[str]:
        tolerance = self.options.tolerance
        if not tolerance or self.proven_angle <= tolerance:
            return []
        bounded = f"{eigen.at_most(self.proven_angle)} degrees at most"
        angle = bounded if self.proven_angle < 90 else "no bound on the angle"
        return [f"stopped after {corrections} corrections with {angle}; wanted {tolerance:.2g} degrees"]

    def _uploaded(self) -> float:
        """Bytes that a party has sent so far, on average."""
        return math.fsum(sum(entry["up"]) / len(entry["up"]) for entry in self.rounds_so_far)


class CodedScatters:
    """An approximation ``matrix`` (d, d) of the scatter of all rows, from each party's code, which corrections mend.

    Its attributes are those of `fedpca_flwr.questions.short_words.ShortScatter`.
    """

    head: moments.Head
    total: float
    unit = 1.0
    matrix: method.Array
    block: method.Array | None = None
    wrong: float
    on_block: float
    on_first: float | None = None

    def __init__(self, run: Compressed) -> None:
        self.run, self.evidence = run, method.Evidence()

    def ask(self) -> method.Program:
        """Ask for the scale of the step, where there is one, and for each scatter in code."""
        options, step = self.run.options, 0.0
        if options.codec == "shared-step":
            self._pool((yield method.Ask("scale")))
            step = options.step * self.total / self.head.mean.size
        replies = yield method.Ask("encoded", {"step": np.asarray(step)})
        self._pool(replies)
        self._take_errors(replies)
        self._units = {reply.party: _unit_of(reply) for reply in replies}
        self.matrix = self._decoded(replies, self.head.mean.size, step)

    def correct(self, vectors: method.Array, number: int) -> method.Program:
        """Ask what is wrong about the leading ``vectors`` (d, b), and mend it."""
        coded, bits = codecs.encoded_components(vectors, refine.block_bits(number))
        block = codecs.orthonormal_block(coded, bits, vectors.shape)
        replies = yield method.Ask("correction", {"code": coded.code, "scales": coded.scales, "bits": np.asarray(bits)})
        self._take_errors(replies)
        sent = {reply.party: reply for reply in replies}
        missed = [_missed(sent[party], block.shape, self._units[party]) for party in self._order]
        self.matrix, self.block = refine.corrected(self.matrix, block, np.sum(missed, axis=0)), block

    def _take_errors(self, replies: Sequence[method.Reply]) -> None:
        self.wrong, self.on_block = (math.fsum(reply.fields["wrong"][i] for reply in replies) for i in (0, 1))

    def _pool(self, replies: Sequence[method.Reply]) -> None:
        """Count and mean of all rows, and the trace of their scatter; in an order that the data fix."""
        ordered = sorted(replies, key=lambda reply: (reply.rows, reply.fields["mean"].tobytes()))
        self._order = [reply.party for reply in ordered]
        heads = [method.head_in(reply.fields) for reply in ordered]
        self.head, deviations = moments.pool_heads(heads)
        between = (head.n * float(deviation @ deviation) for head, deviation in zip(heads, deviations, strict=True))
        self.total = math.fsum([*(float(reply.fields["trace"][0]) for reply in ordered), *between])
        self.run.n_components(self.head.n, self.head.mean.size)
        method.require_variance(self.total, self.head.n, self.head.mean)

    def _decoded(self, replies: Sequence[method.Reply], d: int, step: float) -> method.Array:
        """The approximate scatter (d, d) of all rows."""
        added = MomentsSum(d)
        for reply in replies:
            unit = _unit_of(reply)
            codec = self.run.options.coder(d, step / unit, self.run.config.seed)
            scatter = _scaled(reply, unit, partial(codec.decode, d=d))
            added.add(moments.Moments(*method.head_in(reply.fields), scatter=scatter))
        return moments.symmetric(added.pooled().scatter, d)


def _unit_of(reply: method.Reply) -> float:
    return codecs.unit_of(float(reply.fields["trace"][0]))


def _missed(reply: method.Reply, shape: tuple[int, int], unit: float) -> method.Array:
    """What a party's approximation gets wrong about a block of that shape."""
    return _scaled(reply, unit, lambda coded: codecs.decoded_block(coded, refine.CORRECTION_BITS, shape))


def _scaled(reply: method.Reply, unit: float, decode: Callable[[codecs.Coded], method.Array]) -> method.Array:
    """What a party's code says, in the unit of the data."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found: method.Array = unit * decode(codecs.Coded(reply.fields["scales"], reply.fields["code"]))
    except ValueError as error:
        raise method.ContractError(f"{reply.sender}: its code does not decode: {error}") from None
    if not np.isfinite(found).all():
        raise method.ContractError(
            f"{reply.sender}: its code, with the trace that it says, is of numbers beyond float64"
        )
    return found
