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
from typing import Annotated, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import eigvalsh

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.certificate import rounding, sine_theorem
from fedpca_flwr.maths.codec import Coded, dequantise, quantise
from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs, spectral_norm
from fedpca_flwr.maths.forecast import rounding_angle
from fedpca_flwr.maths.moments import Moments, pack, pool, pool_heads, unpack
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
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, MethodCard, PCAClient, PCAStrategy, Reply, Request, Solution
from strategies.moments import HEAD, head_fields, head_of

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

    @property
    def stepped(self) -> bool:
        return self.codec in {"shared-step", "combined"}


CODE = (Field("code", ("any",), "uint8"), Field("scales", ("any",), "float32"))
TRACE = Field("trace", ("1",), kind="size")
WRONG = Field("wrong", ("2",), kind="size")
"""Spectral norms of what a party's approximation gets wrong: everywhere, and on the block of the correction."""

CARD = MethodCard(
    name="compressed",
    title="Compressed covariance",
    exact=False,
    result="with a measured bound",
    rounds=2,
    in_rounds="1; with `step` 2; and `corrections`",
    upload="5 to 100 times less than d²",
    server_sees="each party's approximate covariance",
    options=CompressedOptions,
    payloads={
        "scale": Payload((*HEAD, TRACE)),
        "encoded": Payload((*CODE, *HEAD, TRACE, WRONG)),
        "correction": Payload((*CODE, WRONG)),
    },
    reference="note 001, communication compression",
)


class Compressed(PCAStrategy):
    """Compressed; ``measured`` holds the ratio and the error bounds."""

    card = CARD
    options: CompressedOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._step = 0.0
        self._uploaded = 0.0
        self._block: NDArray | None = None

    @property
    def rounds(self) -> int:
        return 1 + self.options.stepped + self.options.corrections

    def request(self) -> Request:
        sizes = {"1": 1, "2": 2}
        if self.options.stepped and not self._step:
            return Request("scale", sizes=sizes)
        if self._block is None:
            return Request("encoded", [np.asarray(self._step)], sizes)
        return Request("correction", [self._block], sizes)

    def aggregate_fit(self, server_round, results, failures):
        phase = self.request().phase
        replies = self.collect(server_round, results, failures)
        self._uploaded += sum(reply.nbytes for reply in replies) / len(replies)
        if phase == "correction":
            self._correct(replies)
        else:
            self._begin(replies)
        if phase == "scale":
            self._step = self.options.step * self._total / self._pooled.mean.size
            return None, {}
        if phase == "encoded":
            self._decode(replies)
        self._error, self._on_block = (math.fsum(r.fields["wrong"][i] for r in replies) for i in (0, 1))
        k, last = self.options.n_components, server_round == self.rounds
        pairs = leading_eigenpairs(self._matrix, k if last else min(k + 10, len(self._matrix)))
        if last:
            return self._end(pairs)
        self._block = pairs.vectors.astype(np.float32)
        return None, {}

    def _begin(self, replies: list[Reply]) -> None:
        """Count and mean of all rows, and the trace of their scatter; in an order that the data fix."""
        self._order = sorted(range(len(replies)), key=lambda i: (replies[i].rows, replies[i].fields["mean"].tobytes()))
        self._units = [unit_of(float(reply.fields["trace"][0])) for reply in replies]
        parts = [(head_of(replies[i]), float(replies[i].fields["trace"][0])) for i in self._order]
        self._pooled, deviations = pool_heads([head for head, _ in parts])
        between = (head.n * float(dev @ dev) for (head, _), dev in zip(parts, deviations, strict=True))
        self._total = math.fsum([*(trace for _, trace in parts), *between])
        self.n_components(self._pooled.n, self._pooled.mean.size)
        require_variance(self._total, self._pooled.n, self._pooled.mean)

    def _decode(self, replies: list[Reply]) -> None:
        d = self._pooled.mean.size
        parts = [Moments(*head_of(reply), scatter=self._decoded(reply, d)) for reply in replies]
        lower = unpack(pool(parts).scatter, d)
        self._matrix = lower + np.tril(lower, -1).T

    def _decoded(self, reply: Reply, d: int) -> NDArray:
        unit = unit_of(float(reply.fields["trace"][0]))
        codec = codec_of(self.options, d, self._step / unit, self.config.seed)
        try:
            return unit * codec.decode(Coded(reply.fields["scales"], reply.fields["code"]), d)
        except ValueError as error:
            raise ContractError(f"{reply.sender}: its code does not decode: {error}") from None

    def _correct(self, replies: list[Reply]) -> None:
        assert self._block is not None
        V = self._block.astype(np.float64)
        missed = [_decoded_block(replies[i], V, self._units[i]) for i in self._order]
        self._matrix = corrected(self._matrix, V, np.sum(missed, axis=0))

    def _bound(self, pairs: Eigenpairs) -> float:
        """Bound on the angle, in degrees (Davis and Kahan, with the residual of the exact scatter)."""
        rounded = rounding(len(pairs.vectors)) * float(pairs.values[0])
        error = self._error + rounded
        residual, U = error, pairs.vectors
        if self._block is not None:
            V = self._block.astype(np.float64)
            inside = V.T @ U
            outside = float(np.linalg.norm(U - V @ inside, 2))
            on_block = self._on_block + rounded
            residual = min(residual, on_block * float(np.linalg.norm(inside, 2)) + error * outside)
        return sine_theorem(residual, float(pairs.values[-1]) - pairs.following - error)

    def _likely(self) -> float:
        """The angle, in degrees, that rounding to multiples of one step exceeds with a probability of 3e-4.

        If the errors are as independent as they look: a random symmetric matrix of them has a norm of 2 sqrt(d)
        deviations. Larger ones are not.
        """
        if self.options.codec != "shared-step" or self.options.corrections:
            return 90.0
        parties, d = len(self._order), len(self._matrix)
        common = max(1.0, self._error / (parties * self._step * math.sqrt(d / 3)))
        spectrum = eigvalsh(self._matrix, check_finite=False)[::-1]
        return rounding_angle(spectrum, self.options.n_components, common * self._step, parties)

    def _end(self, pairs: Eigenpairs):
        d = self._pooled.mean.size
        bound = self._bound(pairs)
        self.certificate = min(bound, self._likely())
        ratio = 8 * (d * d + d + 1) / self._uploaded
        excess = float(pairs.values.sum()) / self._total
        notes = [f"rounding makes the variances add up to {excess:.1%} of the total"] if excess > 1 else []
        return self.finish(
            Solution(pairs=pairs, mean=self._pooled.mean, total=self._total, rows=self._pooled.n),
            notes=notes,
            measured={
                "compression": f"{ratio:.1f} times less than a full float64 covariance, on average",
                "scatter error": f"{self._error / self._total:.1e} of the variance at most (spectral norm)",
                "angle bound": f"{bound:.2g} degrees (Davis and Kahan: the worst case)",
            },
        )


class CompressedClient(PCAClient):
    """Returns an encoding of its own scatter, and what that gets wrong."""

    def statistics(self, phase, received) -> Fields:
        if phase == "scale":
            head, diagonal = head_and_diagonal(self.data)
            return {**head_fields(head, diagonal), "trace": np.array([diagonal.sum()])}
        if phase == "correction":
            return self._correction(received[0].astype(np.float64))
        moments = Moments.of(self.data)
        d = moments.n_features
        diagonal = moments.diagonal()
        unit = unit_of(float(diagonal.sum()))
        scatter = moments.scatter / unit
        codec = codec_of(self.options, d, float(received[0]) / unit, self.config.seed)
        try:
            coded = codec.encode(scatter, d)
        except ValueError as error:
            raise ConfigError(f"run-config: 'step' is {self.options.step}: {error}") from None
        missing = scatter - codec.decode(coded, d)
        if self.options.corrections:
            self.context.state.array_records["missing"] = ArrayRecord([missing, np.asarray(unit)])
        wrong = unit * spectral_norm(unpack(missing, d))
        return {
            "code": coded.code,
            "scales": coded.scales,
            **head_fields(moments.head, diagonal),
            "trace": np.array([diagonal.sum()]),
            "wrong": np.array([wrong, wrong]),
        }

    def _correction(self, V: NDArray) -> Fields:
        """What this party's approximation still gets wrong about the block ``V`` (d, b), rounded; and after it."""
        packed, unit = self.context.state.array_records["missing"].to_numpy_ndarrays()
        lower = unpack(packed, len(V))
        missing = lower + np.tril(lower, -1).T
        coded = quantise((missing @ V).T.reshape(-1), CORRECTION_BITS, len(V))
        told = dequantise(coded, CORRECTION_BITS, len(V), V.size).reshape(V.T.shape).T
        missing = corrected(missing, V, -told)
        self.context.state.array_records["missing"] = ArrayRecord([pack(missing), unit])
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


def _decoded_block(reply: Reply, V: NDArray, unit: float) -> NDArray:
    coded = Coded(reply.fields["scales"], reply.fields["code"])
    try:
        return unit * dequantise(coded, CORRECTION_BITS, len(V), V.size).reshape(V.T.shape).T
    except ValueError as error:
        raise ContractError(f"{reply.sender}: its code does not decode: {error}") from None
