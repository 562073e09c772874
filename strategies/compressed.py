"""Compressed: the moments of P-COV in fewer bytes, with a measured error.

Count and mean travel as they are, the scatter by a codec (`fedpca_flwr.maths.codecs`):

* ``quantise``: the packed triangle in ``bits`` bits a value, each 128 values by a scale of their own;
* ``shared-step``: whole multiples of one step, the same at every party, compressed without loss. The step is ``step``
  times the mean variance of a feature, which costs a first round with one number from each party. Best on data with
  many near-zero covariances, as images have;
* ``low-rank``: the leading ``rank`` eigenvectors times the roots of their eigenvalues, in ``bits`` bits, with half of
  the first omitted eigenvalue assumed in every other direction;
* ``combined``: ``low-rank``, and what it leaves out by ``shared-step``;
* ``top-k`` (the share ``keep`` of the entries) and ``sketch`` (``rank`` random products): for comparison.

A correction (``corrections``) is one more round: the leading components go down (8 bits a value, 8 more in each further
one), and what each party's encoding still gets wrong about them comes up (8 bits a value). Both sides mend their
approximation by it (`fedpca_flwr.maths.refine.corrected`), so the next correction is smaller, and its rounding too.

With a ``tolerance`` corrections go on until the bound is no larger, or ten were made, and the method is exact where it
is at most 1e-6 degrees.

Each party measures the spectral norm of what its own approximation gets wrong. The model holds the sum, the bound on
the angle that follows, and the ratio to a full float64 covariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.codecs import (
    Coded,
    Combined,
    LowRank,
    Quantise,
    ScatterCodec,
    SharedStep,
    Sketch,
    TopEntries,
    dequantise,
    quantise,
)
from fedpca_flwr.maths.eigen import EXACT, at_most, leading_eigenpairs, spectral_norm
from fedpca_flwr.maths.moments import Head, Moments, head_and_diagonal, pack, pool_heads, unpack
from fedpca_flwr.maths.refine import CORRECTION_BITS, MOST_BITS, SAME, block_bits, corrected, corrected_angle_bound
from fedpca_flwr.maths.stiefel import polar
from fedpca_flwr.maths.sums import MomentsSum
from fedpca_flwr.model.solution import Solution, require_variance
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import CountOptions, MethodCard, Shown
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Ask, Question, Questions
from fedpca_flwr.questions.fields import HEAD, head_fields, head_in
from fedpca_flwr.questions.rows import projection_phase
from fedpca_flwr.questions.rows_run import RowsClient, RowsStrategy

NEAR = 0.1
"""Rounding may change inner products of an orthonormal block's columns by as much."""


def codec_of(options: CompressedOptions, d: int, step: float, seed: int) -> ScatterCodec:
    """The codec that the options name, for ``d`` features; ``step`` is in squared units of the data."""
    rank = min(options.rank or 2 * options.n_components, d)
    low_rank, shared_step = LowRank(rank, options.bits), SharedStep(step)
    codecs: dict[str, ScatterCodec] = {
        "quantise": Quantise(options.bits),
        "shared-step": shared_step,
        "low-rank": low_rank,
        "combined": Combined(low_rank, shared_step),
        "top-k": TopEntries(options.keep, options.bits),
        "sketch": Sketch(rank, options.bits, seed),
    }
    return codecs[options.codec]


def unit_of(trace: float) -> float:
    """The power of two in which a scatter travels: scales are float32, whatever the unit of the data."""
    _, above = np.frexp(trace)
    return float(np.ldexp(1.0, min(int(above), 1023))) if trace > 0 else 1.0


def encoded_block(block: Array, bits: int) -> Coded:
    """A block (d, b), each of its columns by a scale of its own."""
    return quantise(block.T.reshape(-1), bits, len(block))


def decoded_block(coded: Coded, bits: int, shape: tuple[int, int]) -> Array:
    """The block (d, b) of such a code.

    Raises
    ------
    ValueError
        Where it is none.
    """
    d, columns = shape
    return dequantise(coded, bits, d, d * columns).reshape(columns, d).T


def orthonormal_block(coded: Coded, bits: int, shape: tuple[int, int]) -> Array:
    """The orthonormal columns (d, b) next to a block in code: what both sides take for it.

    Raises
    ------
    ValueError
        Where it is the code of no block, or of columns that are far from orthonormal.
    """
    d, columns = shape
    if not 0 < columns <= d:
        raise ValueError(f"a block of {columns} columns, expected 1 to {d}")
    block = decoded_block(coded, bits, shape)
    if not _nearly_orthonormal(block):
        raise ValueError("its columns are far from orthonormal")
    return polar(block)


def encoded_components(vectors: Array, bits: int) -> tuple[Coded, int]:
    """Orthonormal columns (d, b) in ``bits`` for each value, or in the fewest more bytes that keep them nearly so.

    A column of many features that has one large entry is far from itself in 8 bits: all small entries become zero.
    """
    coded = encoded_block(vectors, bits)
    while bits < MOST_BITS and not _nearly_orthonormal(decoded_block(coded, bits, vectors.shape)):
        bits += 8
        coded = encoded_block(vectors, bits)
    return coded, bits


def _nearly_orthonormal(block: Array) -> bool:
    return bool(np.abs(block).max() <= 2 and np.abs(block.T @ block - np.eye(block.shape[1])).max() <= NEAR)


MOST_CORRECTIONS = 10


class CompressedOptions(CountOptions):
    """Options of the compressed method."""

    codec: Literal["quantise", "shared-step", "low-rank", "combined", "top-k", "sketch"] = "quantise"
    """How the scatter travels."""
    bits: Annotated[int, Limits(ge=4, le=32, examples=[4, 8, 16, 32])] = 16
    """For each value; of all codecs but ``shared-step``."""
    step: Annotated[float, Limits(gt=0, le=1, examples=[1e-7, 1e-5, 1e-2, 1.0])] = 1e-5
    """Of ``shared-step`` and ``combined``: in units of the mean variance of a feature."""
    rank: Annotated[int, Limits(ge=0, examples=[1, "k", "2k", 100])] = 0
    """Of ``low-rank``, ``combined`` and ``sketch``: how many vectors; 0: 2 n-components."""
    keep: Annotated[float, Limits(gt=0, le=1, examples=[0.01, 0.1, 1.0])] = 0.1
    """Of ``top-k``: which share of the entries."""
    corrections: Annotated[int, Limits(ge=0, le=MOST_CORRECTIONS, examples=[0, 1, 3])] = 0
    """Rounds in which the parties say what their approximation gets wrong about the leading components."""
    tolerance: Annotated[float, Limits(ge=0, le=90, examples=[1e-6, 1e-3, 1.0])] = 0.0
    """Certified largest angle to the exact components, in degrees, at which corrections end; 0: with the last of them.
    Without ``corrections``, there are at most ten."""

    def block(self, d: int) -> int:
        """Columns of the block of a correction."""
        return min(self.n_components + 10, d)

    @property
    def most_corrections(self) -> int:
        return self.corrections or (MOST_CORRECTIONS if self.tolerance else 0)

    @property
    def stepped(self) -> bool:
        return self.codec in {"shared-step", "combined"}


BITS = Field("bits", (), "int64", kind="count")
CODE = (Field("code", ("any",), "uint8"), Field("scales", ("any",), "float32"))
TRIANGLE = ("d(d+1)/2",)
TRACE = Field("trace", ("1",), kind="size")
ERRORS = Field("wrong", ("2",), kind="size")
"""Spectral norms of what a party's approximation gets wrong: everywhere, and on the block of the correction."""


def phases(config: RunConfig, options: CompressedOptions) -> Questions:
    """The scale of the step, the encoded scatters, the corrections."""
    step = Field("step", (), kind="size")
    scale = {"scale": Question(reply=Payload((*HEAD, TRACE)), answer=_own_scale)}
    reply = Payload((*CODE, *HEAD, TRACE, ERRORS))
    encoded = {"encoded": Question(asked=Payload((step,)), reply=reply, answer=_encoded, forms=TRIANGLE)}
    correction = {
        "correction": Question(
            asked=Payload((*CODE, BITS)),
            reply=Payload((*CODE, ERRORS)),
            answer=lambda party, asked: _correction(party, _block(party, asked)),
            forms=TRIANGLE,
            times=options.most_corrections,
            optional=options.tolerance > 0,
        )
    }
    return {
        **(scale if options.stepped else {}),
        **encoded,
        **(correction if options.most_corrections else {}),
        **projection_phase(),
    }


def _own_scale(party: RowsClient, asked: Fields) -> Fields:
    """Count, mean, and the trace of a party's scatter."""
    head, diagonal = head_and_diagonal(party.data)
    return {**head_fields(head, diagonal), "trace": np.array([diagonal.sum()])}


def _encoded(party: RowsClient, asked: Fields) -> Fields:
    """A party's scatter in code, and what that gets wrong."""
    moments = Moments.of(party.data)
    d = moments.n_features
    diagonal = moments.diagonal()
    unit = unit_of(float(diagonal.sum()))
    scatter = moments.scatter / unit
    codec = codec_of(party.options, d, float(asked["step"]) / unit, party.site.config.seed)
    try:
        coded = codec.encode(scatter, d)
    except ValueError as error:
        raise ConfigError(f"run-config: 'step' is {party.options.step}: {error}") from None
    missing = scatter - codec.decode(coded, d)
    if party.options.most_corrections:
        party.site.state["missing"] = [missing, unit]
    wrong = unit * spectral_norm(unpack(missing, d))
    return {
        "code": coded.code,
        "scales": coded.scales,
        **head_fields(moments.head, diagonal),
        "trace": np.array([diagonal.sum()]),
        "wrong": np.array([wrong, wrong]),
    }


def _block(party: RowsClient, asked: Fields) -> Array:
    """The block (d, b) that is asked about."""
    coded, d = Coded(asked["scales"], asked["code"]), party.data.shape[1]
    most, bits = party.options.block(d), int(asked["bits"])
    if coded.scales.size > most or bits > MOST_BITS:
        raise ContractError(
            f"{SERVER}: asked about a block of {coded.scales.size} columns in {bits} bits, expected at most {most} "
            f"columns and {MOST_BITS} bits"
        )
    try:
        return orthonormal_block(coded, bits, (d, coded.scales.size))
    except ValueError as error:
        raise ContractError(f"{SERVER}: its block does not decode: {error}") from None


def _correction(party: RowsClient, V: Array) -> Fields:
    """What this party's approximation still gets wrong about the block ``V`` (d, b), rounded; and after it."""
    packed, unit = party.site.state["missing"]
    lower = unpack(packed, len(V))
    missing = lower + np.tril(lower, -1).T
    coded = encoded_block(missing @ V, CORRECTION_BITS)
    missing = corrected(missing, V, -decoded_block(coded, CORRECTION_BITS, V.shape))
    party.site.state["missing"] = [pack(missing), unit]
    wrong = float(unit) * np.array([spectral_norm(missing), np.linalg.norm(missing @ V, 2)])
    return {"code": coded.code, "scales": coded.scales, "wrong": wrong}


CARD = MethodCard(
    name="compressed",
    title="Compressed covariance",
    exact=False,
    result="with a measured bound, or exact to a certified angle (`tolerance`)",
    rounds="1; with `step` 2; and `corrections`",
    upload="5 to 100 times less than d²",
    server_sees="each party's approximate covariance",
    shows=Shown(
        "number of rows, mean, total variance, its covariance to the precision asked (`low-rank`: its leading "
        "components)",
        network="sizes and times of messages; a compressed size depends a little on the covariance",
    ),
    options=CompressedOptions,
    phases=phases,
    reference="this project; `fedpca_flwr.maths.codecs` and `fedpca_flwr.maths.refine` derive it",
    examples=({}, {"codec": "shared-step", "corrections": 10}),
)


class Compressed(RowsStrategy):
    """Compressed; ``measured`` holds the ratio and the error bounds."""

    card = CARD
    options: CompressedOptions
    proven_angle, values_hold = 90.0, False

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        options, step, uploaded = self.options, 0.0, 0.0
        if options.stepped:
            replies = yield Ask("scale")
            uploaded += self._mean_upload()
            head, total = self._pooled(replies)
            step = options.step * total / head.mean.size
        replies = yield Ask("encoded", {"step": np.asarray(step)})
        uploaded += self._mean_upload()
        head, total = self._pooled(replies)
        d, wanted, block = head.mean.size, options.n_components, None
        matrix, units = self._decoded(replies, d, step), _units(replies)
        several = leading_eigenpairs(matrix, options.block(d))
        for number in range(options.most_corrections + 1):
            wrong, on_block = (math.fsum(reply.fields["wrong"][i] for reply in replies) for i in (0, 1))
            worst, value_error = corrected_angle_bound(several, wanted, wrong, on_block, block)
            last = max(0.0, float(several.values[wanted - 1]))
            self.proven_angle, self.values_hold = worst, value_error <= SAME * last
            if number == options.most_corrections or self._done:
                break
            coded, bits = encoded_components(several.vectors, block_bits(number))
            block = orthonormal_block(coded, bits, several.vectors.shape)
            replies = yield Ask("correction", {"code": coded.code, "scales": coded.scales, "bits": np.asarray(bits)})
            uploaded += self._mean_upload()
            missed = [_missed(reply, block.shape, units[reply.party]) for reply in sorted(replies, key=self._place)]
            matrix = corrected(matrix, block, np.sum(missed, axis=0))
            several = leading_eigenpairs(matrix, options.block(d))
        pairs = several.first(wanted)
        if pairs.values[0] <= 0:
            raise ConfigError(
                f"run-config: 'codec' is '{options.codec}', and what it leaves of this scatter has no positive "
                "eigenvalue; take another codec, or 'p-cov'"
            )
        self.certificate = worst
        excess = float(pairs.values.sum()) / total
        return Solution(
            pairs=pairs,
            mean=head.mean,
            total=total,
            rows=head.n,
            notes=[
                *([f"rounding makes the variances add up to {excess:.1%} of the total"] if excess > 1 else []),
                *self._shortfall(number),
            ],
            measured={
                "compression_ratio": 8 * (d * d + d + 1) / uploaded,
                "scatter_error_variance_share": wrong / total,
                "angle_bound_degrees": worst,
            },
        )

    @property
    def exact(self) -> bool:
        """Where a run goes on until a bound holds, and it says so of the components and of each variance."""
        return self.options.tolerance > 0 and self.proven_angle <= EXACT and self.values_hold

    @property
    def _done(self) -> bool:
        """Whether what was wanted holds; who wants exact components wants their variances too."""
        tolerance = self.options.tolerance
        return self.proven_angle <= tolerance and (tolerance > EXACT or self.values_hold)

    def _shortfall(self, corrections: int) -> list[str]:
        tolerance = self.options.tolerance
        if not tolerance or self.proven_angle <= tolerance:
            return []
        angle = "no bound on the angle" if self.proven_angle >= 90 else f"{at_most(self.proven_angle)} degrees at most"
        return [f"stopped after {corrections} corrections with {angle}; wanted {tolerance:.2g} degrees"]

    def _pooled(self, replies: Sequence[Reply]) -> tuple[Head, float]:
        """Count and mean of all rows, and the trace of their scatter; in an order that the data fix."""
        ordered = sorted(replies, key=lambda reply: (reply.rows, reply.fields["mean"].tobytes()))
        self._order = [reply.party for reply in ordered]
        pooled, deviations = pool_heads([head_in(reply.fields) for reply in ordered])
        between = (
            head_in(reply.fields).n * float(deviation @ deviation)
            for reply, deviation in zip(ordered, deviations, strict=True)
        )
        total = math.fsum([*(float(reply.fields["trace"][0]) for reply in ordered), *between])
        self.n_components(pooled.n, pooled.mean.size)
        require_variance(total, pooled.n, pooled.mean)
        return pooled, total

    def _place(self, reply: Reply) -> int:
        return self._order.index(reply.party)

    def _mean_upload(self) -> float:
        """Bytes that a party has sent in the last round, on average."""
        up = self.rounds_so_far[-1]["up"]
        return float(sum(up)) / len(up)

    def _decoded(self, replies: Sequence[Reply], d: int, step: float) -> Array:
        """The approximate scatter (d, d) of all rows."""
        added = MomentsSum(d)
        for reply in replies:
            unit = unit_of(float(reply.fields["trace"][0]))
            codec = codec_of(self.options, d, step / unit, self.config.seed)
            scatter = _scaled(reply, unit, partial(codec.decode, d=d))
            added.add(Moments(*head_in(reply.fields), scatter=scatter))
        lower = unpack(added.pooled().scatter, d)
        return lower + np.tril(lower, -1).T


def _units(replies: Sequence[Reply]) -> dict[int, float]:
    """By partition, the unit in which a party's scatter travels."""
    return {reply.party: unit_of(float(reply.fields["trace"][0])) for reply in replies}


def _missed(reply: Reply, shape: tuple[int, int], unit: float) -> Array:
    """What a party's approximation gets wrong about a block of that shape."""
    return _scaled(reply, unit, lambda coded: decoded_block(coded, CORRECTION_BITS, shape))


def _scaled(reply: Reply, unit: float, decode: Callable[[Coded], Array]) -> Array:
    """What a party's code says, in the unit of the data.

    Raises
    ------
    ContractError
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found: Array = unit * decode(Coded(reply.fields["scales"], reply.fields["code"]))
    except ValueError as error:
        raise ContractError(f"{reply.sender}: its code does not decode: {error}") from None
    if not np.isfinite(found).all():
        raise ContractError(f"{reply.sender}: its code, with the trace that it says, is of numbers beyond float64")
    return found
