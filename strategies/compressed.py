"""Compressed: the moments of P-COV in fewer bytes, with a measured error (note 001).

Count and mean travel as they are, the scatter by a codec (`fedpca_flwr.maths.scatter_codecs`):

* ``quantise``: the packed triangle in ``bits`` bits a value, each 128 values by a scale of their own;
* ``shared-step``: whole multiples of one step, the same at every party, compressed without loss. The step is ``step``
  times the mean variance of a feature, which costs a first round with one number from each party. Best on data with
  many near-zero covariances, as images have;
* ``low-rank``: the leading ``rank`` eigenvectors times the roots of their eigenvalues, in ``bits`` bits, with half of
  the first omitted eigenvalue assumed in every other direction;
* ``combined``: ``low-rank``, and what it leaves out by ``shared-step``;
* ``top-k`` (the share ``keep`` of the entries) and ``sketch`` (``rank`` random products): for comparison.

A correction (``corrections``) is one more round: the leading components go down (float32), and what each party's
encoding still gets wrong about them comes up (8 bits a value). Both sides mend their approximation by it
(`fedpca_flwr.maths.refine.corrected`), so the next correction is smaller, and its rounding too.

Each party measures the spectral norm of what its own approximation gets wrong. The model holds the sum, the bound on
the angle that follows, and the ratio to a full float64 covariance.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import eigvalsh

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import rounding, sine_theorem
from fedpca_flwr.maths.codec import Coded, dequantise, quantise
from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs, spectral_norm
from fedpca_flwr.maths.forecast import rounding_angle
from fedpca_flwr.maths.moments import Head, Moments, pack, pool, pool_heads, unpack
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.maths.refine import corrected
from fedpca_flwr.maths.scatter_codecs import (
    Combined,
    LowRank,
    Quantise,
    ScatterCodec,
    SharedStep,
    Sketch,
    TopEntries,
)
from fedpca_flwr.protocol.card import CountOptions, MethodCard
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases
from fedpca_flwr.solution import Solution, require_variance
from fedpca_flwr.statistics.heads import HEAD, head_fields, head_of
from fedpca_flwr.statistics.rows import projection_phase
from fedpca_flwr.statistics.rows_client import RowsClient
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

CORRECTION_BITS = 8


class CompressedOptions(CountOptions):
    """Options of the compressed method."""

    codec: Literal["quantise", "shared-step", "low-rank", "combined", "top-k", "sketch"] = "quantise"
    """How the scatter travels: see above."""
    bits: Annotated[int, Limits(ge=4, le=32)] = 16
    """For each value; of all codecs but ``shared-step``."""
    step: Annotated[float, Limits(gt=0, le=1)] = 1e-5
    """Of ``shared-step`` and ``combined``: in units of the mean variance of a feature."""
    rank: Annotated[int, Limits(ge=0)] = 0
    """Of ``low-rank``, ``combined`` and ``sketch``: how many vectors; 0: 2 n-components."""
    keep: Annotated[float, Limits(gt=0, le=1)] = 0.1
    """Of ``top-k``: which share of the entries."""
    corrections: Annotated[int, Limits(ge=0, le=10)] = 0
    """Rounds in which the parties say what their approximation gets wrong about the leading components."""

    def block(self, d: int) -> int:
        """Columns of the block of a correction."""
        return min(self.n_components + 10, d)

    @property
    def stepped(self) -> bool:
        return self.codec in {"shared-step", "combined"}


CODE = (Field("code", ("any",), "uint8"), Field("scales", ("any",), "float32"))
TRACE = Field("trace", ("1",), kind="size")
WRONG = Field("wrong", ("2",), kind="size")
"""Spectral norms of what a party's approximation gets wrong: everywhere, and on the block of the correction."""


def phases(config: RunConfig, options: CompressedOptions) -> Phases:
    """The scale of the step, the encoded scatters, the corrections."""
    step = Field("step", (), kind="size")
    block = Field("block", ("d", "<=b"), "float32", kind="orthonormal columns")
    scale = {"scale": Phase(reply=Payload((*HEAD, TRACE)))}
    encoded = {"encoded": Phase(asked=Payload((step,)), reply=Payload((*CODE, *HEAD, TRACE, WRONG)))}
    correction = {
        "correction": Phase(
            asked=Payload((block,)),
            reply=Payload((*CODE, WRONG)),
            sizes=lambda public: {"b": options.block(public.features)},
            times=options.corrections,
        )
    }
    return {
        **(scale if options.stepped else {}),
        **encoded,
        **(correction if options.corrections else {}),
        **projection_phase(config),
    }


CARD = MethodCard(
    name="compressed",
    title="Compressed covariance",
    exact=False,
    result="with a measured bound",
    rounds="1; with `step` 2; and `corrections`",
    upload="5 to 100 times less than d²",
    server_sees="each party's approximate covariance",
    options=CompressedOptions,
    phases=phases,
    reference="note 001, communication compression",
)


class Compressed(RowsStrategy):
    """Compressed; ``measured`` holds the ratio and the error bounds."""

    card = CARD
    options: CompressedOptions

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
        for _ in range(options.corrections):
            block = leading_eigenpairs(matrix, options.block(d)).vectors.astype(np.float32)
            replies = yield Ask("correction", {"block": block})
            uploaded += self._mean_upload()
            V = block.astype(np.float64)
            missed = [_decoded_block(reply, V, units[reply.party]) for reply in sorted(replies, key=self._place)]
            matrix = corrected(matrix, V, np.sum(missed, axis=0))
        wrong, on_block = (math.fsum(reply.fields["wrong"][i] for reply in replies) for i in (0, 1))
        pairs = leading_eigenpairs(matrix, wanted)
        if pairs.values[0] <= 0:
            raise ConfigError(
                f"run-config: 'codec' is '{options.codec}', and what it leaves of this scatter has no positive "
                "eigenvalue; take another codec, or 'p-cov'"
            )
        worst = bound(pairs, wrong, on_block, block)
        self.certificate = min(worst, self._likely(matrix, step, wrong, len(replies)))
        excess = float(pairs.values.sum()) / total
        return Solution(
            pairs=pairs,
            mean=head.mean,
            total=total,
            rows=head.n,
            notes=[f"rounding makes the variances add up to {excess:.1%} of the total"] if excess > 1 else [],
            measured={
                "compression_ratio": 8 * (d * d + d + 1) / uploaded,
                "scatter_error_variance_share": wrong / total,
                "angle_bound_degrees": worst,
            },
        )

    def _likely(self, matrix: Array, step: float, wrong: float, parties: int) -> float:
        """The angle, in degrees, that rounding to multiples of one step exceeds with a probability of 3e-4.

        If the errors are as independent as they look: a random symmetric matrix of them has a norm of 2 sqrt(d)
        deviations. Larger ones are not.
        """
        if self.options.codec != "shared-step" or self.options.corrections:
            return 90.0
        common = max(1.0, wrong / (parties * step * math.sqrt(len(matrix) / 3)))
        spectrum = eigvalsh(matrix, check_finite=False)[::-1]
        return rounding_angle(spectrum, self.options.n_components, common * step, parties)

    def _pooled(self, replies: Sequence[Reply]) -> tuple[Head, float]:
        """Count and mean of all rows, and the trace of their scatter; in an order that the data fix."""
        ordered = sorted(replies, key=lambda reply: (reply.rows, reply.fields["mean"].tobytes()))
        self._order = [reply.party for reply in ordered]
        pooled, deviations = pool_heads([head_of(reply) for reply in ordered])
        between = (
            head_of(reply).n * float(deviation @ deviation)
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
        parts = []
        for reply in replies:
            unit = unit_of(float(reply.fields["trace"][0]))
            codec = codec_of(self.options, d, step / unit, self.config.seed)
            try:
                scatter = unit * codec.decode(Coded(reply.fields["scales"], reply.fields["code"]), d)
            except ValueError as error:
                raise ContractError(f"{reply.sender}: its code does not decode: {error}") from None
            parts.append(Moments(*head_of(reply), scatter=scatter))
        lower = unpack(pool(parts).scatter, d)
        return lower + np.tril(lower, -1).T


def bound(pairs: Eigenpairs, error: float, on_block: float, block: NDArray[np.float32] | None) -> float:
    """Bound on the angle, in degrees (Davis and Kahan, with the residual of the exact scatter).

    Parameters
    ----------
    pairs : Eigenpairs
        Of the approximate scatter.
    error, on_block : float
        Spectral norms of what it gets wrong, everywhere and on the block of the last correction.
    block : ndarray of shape (d, b), optional
    """
    rounded = rounding(len(pairs.vectors)) * float(pairs.values[0])
    residual = error = error + rounded
    if block is not None:
        V = block.astype(np.float64)
        inside = V.T @ pairs.vectors
        outside = float(np.linalg.norm(pairs.vectors - V @ inside, 2))
        residual = min(residual, (on_block + rounded) * float(np.linalg.norm(inside, 2)) + error * outside)
    return sine_theorem(residual, float(pairs.values[-1]) - pairs.following - error)


class CompressedClient(RowsClient):
    """Returns an encoding of its own scatter, and what that gets wrong."""

    options: CompressedOptions

    def statistics(self, phase: str, asked: Fields) -> Any:
        if phase == "project":
            return super().statistics(phase, asked)
        if phase == "scale":
            head, diagonal = head_and_diagonal(self.data)
            return {**head_fields(head, diagonal), "trace": np.array([diagonal.sum()])}
        if phase == "correction":
            return self._correction(asked["block"].astype(np.float64))
        moments = Moments.of(self.data)
        d = moments.n_features
        diagonal = moments.diagonal()
        unit = unit_of(float(diagonal.sum()))
        scatter = moments.scatter / unit
        codec = codec_of(self.options, d, float(asked["step"]) / unit, self.site.config.seed)
        try:
            coded = codec.encode(scatter, d)
        except ValueError as error:
            raise ConfigError(f"run-config: 'step' is {self.options.step}: {error}") from None
        missing = scatter - codec.decode(coded, d)
        if self.options.corrections:
            self.site.state["missing"] = [missing, unit]
        wrong = unit * spectral_norm(unpack(missing, d))
        return {
            "code": coded.code,
            "scales": coded.scales,
            **head_fields(moments.head, diagonal),
            "trace": np.array([diagonal.sum()]),
            "wrong": np.array([wrong, wrong]),
        }

    def _correction(self, V: Array) -> Fields:
        """What this party's approximation still gets wrong about the block ``V`` (d, b), rounded; and after it."""
        packed, unit = self.site.state["missing"]
        lower = unpack(packed, len(V))
        missing = lower + np.tril(lower, -1).T
        coded = quantise((missing @ V).T.reshape(-1), CORRECTION_BITS, len(V))
        told = dequantise(coded, CORRECTION_BITS, len(V), V.size).reshape(V.T.shape).T
        missing = corrected(missing, V, -told)
        self.site.state["missing"] = [pack(missing), unit]
        wrong = float(unit) * np.array([spectral_norm(missing), np.linalg.norm(missing @ V, 2)])
        return {"code": coded.code, "scales": coded.scales, "wrong": wrong}


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
    return float(2.0 ** np.frexp(trace)[1]) if trace > 0 else 1.0


def _units(replies: Sequence[Reply]) -> dict[int, float]:
    """By partition, the unit in which a party's scatter travels."""
    return {reply.party: unit_of(float(reply.fields["trace"][0])) for reply in replies}


def _decoded_block(reply: Reply, V: Array, unit: float) -> Array:
    coded = Coded(reply.fields["scales"], reply.fields["code"])
    try:
        return unit * dequantise(coded, CORRECTION_BITS, len(V), V.size).reshape(V.T.shape).T
    except ValueError as error:
        raise ContractError(f"{reply.sender}: its code does not decode: {error}") from None
