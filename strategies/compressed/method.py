"""Compressed: the sums of P-COV in 5 to 100 times fewer bytes, with a measured error.

Take the compressed method if the upload of P-COV is too large and a few more rounds do not matter. The option ``codec``
chooses how a site encodes its scatter (`fedpca_flwr.maths.codecs`):

* ``quantise`` sends each value of the packed triangle in ``bits`` bits;
* ``shared-step`` rounds all values to multiples of one step and compresses them without loss. It needs one more round,
  and suits data with many covariances near zero, such as images;
* ``low-rank`` sends the leading ``rank`` eigenvectors, each times the root of its eigenvalue, in ``bits`` bits. With
  ``filler`` the server assumes half of the first omitted eigenvalue in every other direction;
* ``sketch`` sends ``rank`` random products and is for comparison.

With secure aggregation the sites round values to ``bits`` bits, and the bound on the angle assumes the worst
rounding. A certificate for many sites then needs more ``bits`` (21 for 100 sites).

A correction is one more round: the server sends the leading components, and each site returns the error of its
encoding along them (`fedpca_flwr.maths.refine`). With a ``tolerance`` of 1e-6 degrees or less the method is exact.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import codecs, eigen, moments, refine
from fedpca_flwr.maths.sums import MomentsSum
from fedpca_flwr.questions import method
from fedpca_flwr.strategies.compressed import short_words

MAX_CORRECTIONS = 10
SITE_DISCLOSURE = (
    "to how many steps each site's numbers are rounded, with steps that the server chooses. Runs with many different "
    "steps tell the covariances of single sites"
)


class CompressedOptions(method.Options, method.VariantOptions):
    """Options of the compressed method: components, the codec, and corrections."""

    published: ClassVar[Mapping[str, Any]] = {"codec": "low-rank", "wire": "float64", "filler": False}

    codec: Literal["auto", "quantise", "shared-step", "low-rank", "sketch"] = "auto"
    """Encoding of the scatter. 'auto' is 'quantise' in clear, and short words with secure aggregation."""
    bits: Annotated[int, Limits(ge=4, le=32, examples=[4, 8, 16, 32])] = 16
    """Bits of each value. ``shared-step`` does not use this option."""
    step: Annotated[float, Limits(gt=0, le=1, examples=[1e-7, 1e-5, 1e-2, 1.0])] = 1e-5
    """Step of ``shared-step``, as a multiple of the features' mean variance."""
    rank: Annotated[int, Limits(ge=0, examples=[1, "k", "2k", 100])] = 0
    """Number of vectors of ``low-rank`` and ``sketch``. With 0 it is 2 n-components."""
    wire: Literal["bits", "float64"] = "bits"
    """Precision of the vectors of ``low-rank``: rounded to ``bits`` bits, or float64."""
    filler: bool = True
    """Assume half of the first eigenvalue that ``low-rank`` omits in every omitted direction."""
    corrections: Annotated[int, Limits(ge=0, le=MAX_CORRECTIONS, examples=[0, 1, 3])] = 0
    """Number of correction rounds."""
    tolerance: Annotated[float, Limits(ge=0, le=90, examples=[1e-6, 1e-3, 1.0])] = 0.0
    """Certified largest angle in degrees at which corrections end, after ten of them at most unless ``corrections`` is
    set. With 0, all ``corrections`` are made."""

    def block_width(self, d: int) -> int:
        """Return the number of leading eigenvectors in a correction's block: n_components + 10, at most d."""
        return min(self.n_components + 10, d)

    @property
    def max_corrections(self) -> int:
        """Largest number of correction rounds; without ``corrections`` ten if a tolerance is set, else none."""
        return self.corrections or (MAX_CORRECTIONS if self.tolerance else 0)

    @override
    def product_columns(self, public: method.Public) -> int:
        """Return how many vectors a party's scatter is multiplied with; 0 for coded scatters."""
        return self.max_corrections * self.block_width(public.features) if uses_short_words(public.config) else 0

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by rounded secure sums, for any options."""
        return {"compressed": SITE_DISCLOSURE}

    def make_codec(self, d: int, step: float, seed: int) -> codecs.ScatterCodec:
        """Return the codec that the options name, which encodes a party's scatter (d, d) into bytes.

        ``step``, in the unit of the scatter, is for ``shared-step``, and ``seed`` for the products of ``sketch``.
        """
        rank = min(self.rank or 2 * self.n_components, d)
        codecs_by_name: dict[str, codecs.ScatterCodec] = {
            "quantise": codecs.Quantise(self.bits),
            "shared-step": codecs.SharedStep(step),
            "low-rank": codecs.LowRank(rank, 0 if self.wire == "float64" else self.bits, self.filler),
            "sketch": codecs.Sketch(rank, self.bits, seed),
        }
        return codecs_by_name["quantise" if self.codec == "auto" else self.codec]


CODE_FIELDS = (method.Field("code", ("any",), "uint8"), method.Field("scales", ("any",), "float32"))
TRACE_FIELD = method.Field("trace", ("1",), kind="size")
ERROR_FIELD = method.Field("wrong", ("2",), kind="size")
"""Spectral norms of the error of a party's approximation: everywhere, and on the correction's block."""


def uses_short_words(config: method.RunConfig) -> bool:
    """Return whether scatters travel as secure sums in few bits per entry, instead of by a codec in clear."""
    return method.by_transport(config, clear=False, masked=True)


def compressed_script(config: method.RunConfig, options: CompressedOptions) -> method.Questions:
    """Return the questions of the compressed method: variances for a step, coded scatters, corrections, projection."""
    if uses_short_words(config) and options.codec == "auto":
        sums = short_words.short_questions(
            config,
            options.bits,
            lambda public: options.block_width(public.features),
            corrections=options.max_corrections,
        )
        return {**sums, **method.projection_questions(mean_name="centre")}
    scale = method.Question(reply=method.Payload((*method.HEAD, TRACE_FIELD)), answer=_answer_scale)
    encoded = method.Question(
        request=method.Payload((method.Field("step", (), kind="size"),)),
        reply=method.Payload((*CODE_FIELDS, *method.HEAD, TRACE_FIELD, ERROR_FIELD)),
        answer=_answer_encoded,
        work_shape=("d(d+1)/2",),
        suggestion="leave out 'codec' or 'variant': sums travel in short words",
    )
    correction = method.Question(
        request=method.Payload((*CODE_FIELDS, method.Field("bits", (), "int64", kind="size"))),
        reply=method.Payload((*CODE_FIELDS, ERROR_FIELD)),
        answer=_answer_correction,
        work_shape=("d(d+1)/2",),
        times=options.max_corrections,
        optional=options.tolerance > 0,
    )
    return {
        **({"scale": scale} if options.codec == "shared-step" else {}),
        "encoded": encoded,
        **({"correction": correction} if options.max_corrections else {}),
        **method.projection_questions(),
    }


def _answer_scale(party: method.Party, request: method.Fields) -> method.Fields:
    """Return the count and mean of a party's rows, and the ``trace`` (1,) of their scatter."""
    head, diagonal = party.vault.head_and_diagonal()
    return {**method.head_fields(head, diagonal), "trace": np.array([diagonal.sum()])}


def _answer_encoded(party: method.Party, request: method.Fields) -> method.Fields:
    """Return a party's encoded scatter, count and mean, and the error's spectral norm, twice, as ``wrong``.

    Store the error for corrections. Raise ConfigError if ``step`` is too small for the codec.
    """
    local_moments = party.vault.moments()
    d = local_moments.n_features
    diagonal = local_moments.diagonal()
    unit = codecs.power_of_two_unit(float(diagonal.sum()))
    scatter = local_moments.scatter / unit
    codec = party.options.make_codec(d, float(request["step"]) / unit, party.public.config.seed)
    try:
        coded, rounded = codec.encode(scatter, d)
    except ValueError as error:
        raise method.ConfigError(f"run-config: 'step' is {party.options.step}: {error}") from None
    residual = scatter - rounded
    if party.options.max_corrections:
        party.state["missing"] = [residual, unit]
    error_norm = unit * eigen.spectral_norm(moments.unpack(residual, d))
    return {
        "code": coded.code,
        "scales": coded.scales,
        **method.head_fields(local_moments.head, diagonal),
        "trace": np.array([diagonal.sum()]),
        "wrong": np.array([error_norm, error_norm]),
    }


def _answer_correction(party: method.Party, request: method.Fields) -> method.Fields:
    """Return the encoding error's product with the requested block (d, b), rounded, and the remaining error norms.

    Store the remaining error. Raise ContractError for a block that is too large or does not decode.
    """
    coded, d = codecs.Coded(request["scales"], request["code"]), party.vault.features
    max_columns, bits = party.options.block_width(d), int(request["bits"])
    if coded.scales.size > max_columns or not 0 < bits <= refine.MAX_BITS:
        raise method.ContractError(
            f"{method.SERVER}: asked about a block of {coded.scales.size} columns in {bits} bits, expected at most "
            f"{max_columns} columns and {refine.MAX_BITS} bits"
        )
    try:
        V = codecs.decode_orthonormal_block(coded, bits, (d, coded.scales.size))
    except ValueError as error:
        raise method.ContractError(f"{method.SERVER}: its block does not decode: {error}") from None
    packed, unit = party.state["missing"]
    residual = moments.unpack_symmetric(packed, d)
    answer, rounded = codecs.encode_block(residual @ V, refine.CORRECTION_BITS)
    residual = refine.correct_on_block(residual, V, -rounded)
    party.state["missing"] = [moments.pack(residual), unit]
    error_norms = float(unit) * np.array([eigen.spectral_norm(residual), np.linalg.norm(residual @ V, 2)])
    return {"code": answer.code, "scales": answer.scales, "wrong": error_norms}


CARD = method.MethodCard(
    name="compressed",
    title="Compressed covariance",
    exact=False,
    result="The model states a measured bound. With `tolerance`, corrections go on until that angle is certified",
    rounds="1; 2 with `codec='shared-step'`; 1 more for each correction",
    upload="5 to 100 times fewer bytes than P-COV",
    server_sees="each party's approximate covariance",
    disclosure=method.Disclosure(
        "its number of rows, mean, total variance, and its covariance to the precision of the codec (with `low-rank` "
        "its leading components)",
        network="sizes and times of messages; the size of a compressed message depends a little on the covariance",
    ),
    summed_disclosure=method.Disclosure(
        "the number of rows, mean, variances, scatter in `bits` bits, products of the scatter with the corrected "
        "vectors, and squared error",
        "the number, mean and variances of all rows; the pooled components of each round",
    ),
    options=CompressedOptions,
    script=compressed_script,
    weighted=True,
    reference="this project; `fedpca_flwr.maths.codecs` and `fedpca_flwr.maths.refine` have the derivations",
    examples=({}, {"codec": "shared-step", "corrections": 10}, {"corrections": 10}),
    differences="By default each value of a scatter is sent in 16 bits, with a scale for each 128 values. "
    "`variant='paper'` is the low rank of the unpublished design note 001: 2k eigenvectors in float64 for k "
    "components, without `filler`. On the digits (10 sites, Dirichlet 0.1, seed 42, 10 components) "
    "`variant='paper'` is up to 1.5 degrees from exact (0.7 with `filler`), and the default up to 0.002.",
)


class Compressed(method.Strategy):
    """Strategy of the compressed method: eigenvectors of an approximate scatter that corrections improve.

    Let A be the scatter of all rows, M its approximation, and F = A - M with the spectral norms e everywhere and
    e_B on the block B (d x b) of the last correction. The bound on the angle between the leading k eigenvectors of M
    and A follows from e, e_B and the gaps of M's eigenvalues (`fedpca_flwr.maths.refine.corrected_angle_bound`). A
    correction with ``D = A B - M B`` makes M agree with A on B::

        M <- M + D B' + B D' - B (B' D) B'
    """

    card = CARD
    options: CompressedOptions
    proven_angle_degrees, variances_certified = 90.0, False

    @override
    def aggregate(self) -> method.Fitting:
        """Fetch an approximate scatter, and correct the approximation on leading eigenvectors until a bound holds.

        Raise as `CodedScatters.ask`, and ConfigError if the codec leaves no positive eigenvalue.
        """
        options, k = self.options, self.options.n_components
        scatter = short_words.ShortScatter(self) if uses_short_words(self.config) else CodedScatters(self)
        yield from scatter.ask()
        head, total = scatter.head, scatter.total
        self.n_components(head.n, head.mean.size)
        method.require_variance(total, head.n, head.mean)
        width = options.block_width(head.mean.size)
        for number in range(options.max_corrections + 1):
            block_pairs = eigen.leading_eigenpairs(scatter.matrix, width)
            bounds = scatter.error_bound, scatter.block_error_bound, scatter.block, scatter.leading_error_bound
            angle_bound, value_error = refine.corrected_angle_bound(block_pairs, k, *bounds)
            max_error = refine.EXACT_ERROR_SHARE * max(0.0, float(block_pairs.values[k - 1]))
            self.proven_angle_degrees, self.variances_certified = angle_bound, value_error <= max_error
            if number == options.max_corrections or self._reached_tolerance:
                break
            yield from scatter.correct(block_pairs.vectors, number)
        pairs = block_pairs.leading(k)
        pairs = replace(pairs, values=scatter.unit * pairs.values, following=scatter.unit * pairs.following)
        if pairs.values[0] <= 0:
            raise method.ConfigError(
                f"run-config: 'codec' is '{options.codec}', and what it leaves of this scatter has no positive "
                "eigenvalue; take another codec, or 'p-cov'"
            )
        self.certificate = angle_bound
        excess, d = float(pairs.values.sum()) / total, head.mean.size
        uploaded = math.fsum(sum(entry["up"]) / len(entry["up"]) for entry in self.round_log)  # by a party on average
        return method.Solution(
            pairs=pairs,
            mean=head.mean,
            total=total,
            rows=head.n,
            evidence=scatter.evidence,
            notes=[
                *([f"rounding makes the variances add up to {excess:.1%} of the total"] if excess > 1 else []),
                *self._shortfall_notes(number),
            ],
            measurements={
                "compression_ratio": 8 * (d * d + d + 1) / uploaded,  # to a full covariance, mean and count in float64
                "scatter_error_variance_share": scatter.unit * scatter.error_bound / total,
                "angle_bound_degrees": angle_bound,
            },
        )

    @property
    @override
    def exact(self) -> bool:
        """True if a tolerance is set, and the certified angle and variances count as exact."""
        return (
            self.options.tolerance > 0
            and self.proven_angle_degrees <= eigen.EXACT_ANGLE_DEGREES
            and self.variances_certified
        )

    @property
    def _reached_tolerance(self) -> bool:
        """True if the certified angle is within the tolerance (and for exact runs the variances are certified)."""
        tolerance = self.options.tolerance
        return self.proven_angle_degrees <= tolerance and (
            tolerance > eigen.EXACT_ANGLE_DEGREES or self.variances_certified
        )

    def _shortfall_notes(self, corrections: int) -> list[str]:
        """Return a note if the corrections ended with a certified angle above the tolerance."""
        tolerance = self.options.tolerance
        if not tolerance or self.proven_angle_degrees <= tolerance:
            return []
        bounded = f"{eigen.format_upper_bound(self.proven_angle_degrees)} degrees at most"
        angle = bounded if self.proven_angle_degrees < 90 else "no bound on the angle"
        return [f"stopped after {corrections} corrections with {angle}; wanted {tolerance:.2g} degrees"]


class CodedScatters:
    """Approximate scatter of all rows from the parties' encoded scatters, which corrections improve.

    The attributes are those of `fedpca_flwr.strategies.compressed.short_words.ShortScatter`.
    """

    head: moments.Head  # count and mean of all rows
    total: float  # trace of their scatter
    unit = 1.0  # of the matrix and of all bounds
    matrix: method.Array  # (d, d) approximate scatter
    block: method.Array | None = None  # (d, b) of the last correction
    error_bound: float  # on the spectral norm of the matrix's error
    block_error_bound: float  # on that of the error on the block
    leading_error_bound: float | None = None  # on that of the error on the block's leading columns

    def __init__(self, run: Compressed) -> None:
        """Keep the run; `ask` sets the scatter and the error bounds."""
        self.run, self.evidence = run, method.Evidence()

    def ask(self) -> method.Program:
        """Set the attributes by encoded scatters, after a round for a step if needed; raise as `_pool_heads`."""
        options, step = self.run.options, 0.0
        if options.codec == "shared-step":
            self._pool_heads((yield method.Round("scale")))
            step = options.step * self.total / self.head.mean.size
        replies = yield method.Round("encoded", {"step": np.asarray(step)})
        self._pool_heads(replies)
        self._add_error_norms(replies)
        traces = {reply.party: float(reply.fields["trace"][0]) for reply in replies}
        self._units = {party: codecs.power_of_two_unit(trace) for party, trace in traces.items()}
        d = self.head.mean.size
        scatter_sum = MomentsSum(d)
        for reply in replies:
            unit = self._units[reply.party]
            codec = options.make_codec(d, step / unit, self.run.config.seed)
            scatter = _decode_in_units(reply, unit, partial(codec.decode, d=d))
            scatter_sum.add(moments.Moments(*method.read_head(reply.fields), scatter=scatter))
        self.matrix = moments.unpack_symmetric(scatter_sum.pooled().scatter, d)

    def correct(self, vectors: method.Array, number: int) -> method.Program:
        """Ask for the encoding errors' products with orthonormal leading eigenvectors (d, b), and correct the matrix.

        The ``number`` of corrections before decides the bits of the block. Raise as `_decode_in_units`.
        """
        coded, bits, block = codecs.encode_components(vectors, refine.block_bits(number))
        request: method.Fields = {"code": coded.code, "scales": coded.scales, "bits": np.asarray(bits)}
        replies = yield method.Round("correction", request)
        self._add_error_norms(replies)
        replies_by_party = {reply.party: reply for reply in replies}
        decode = partial(codecs.decode_block, bits=refine.CORRECTION_BITS, shape=block.shape)
        corrections = [_decode_in_units(replies_by_party[party], self._units[party], decode) for party in self._order]
        self.matrix, self.block = refine.correct_on_block(self.matrix, block, np.sum(corrections, axis=0)), block

    def _add_error_norms(self, replies: Sequence[method.Reply]) -> None:
        """Set the bounds on the pooled scatter's error to the sums of the parties' error norms."""
        norms = [reply.fields["wrong"] for reply in replies]
        self.error_bound, self.block_error_bound = map(math.fsum, zip(*norms, strict=True))

    def _pool_heads(self, replies: Sequence[method.Reply]) -> None:
        """Pool counts, means and traces in an order of their own; raise as `n_components`, `require_variance`."""
        ordered = sorted(replies, key=lambda reply: (reply.rows, reply.fields["mean"].tobytes()))
        self._order = [reply.party for reply in ordered]
        heads = [method.read_head(reply.fields) for reply in ordered]
        self.head, deviations = moments.pool_heads(heads)
        between = (head.n * float(deviation @ deviation) for head, deviation in zip(heads, deviations, strict=True))
        self.total = math.fsum([*(float(reply.fields["trace"][0]) for reply in ordered), *between])
        self.run.n_components(self.head.n, self.head.mean.size)
        method.require_variance(self.total, self.head.n, self.head.mean)


def _decode_in_units(reply: method.Reply, unit: float, decode: Callable[[codecs.Coded], method.Array]) -> method.Array:
    """Return the values of a reply times its unit; raise ContractError if they do not decode or are not finite."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            values: method.Array = unit * decode(codecs.Coded(reply.fields["scales"], reply.fields["code"]))
    except ValueError as error:
        raise method.ContractError(f"{reply.sender}: its code does not decode: {error}") from None
    if not np.isfinite(values).all():
        raise method.ContractError(
            f"{reply.sender}: its code, with the trace that it says, is of numbers beyond float64"
        )
    return values
