"""Compressed: the moments of P-COV in fewer bytes, for a bounded error (note 001).

Every codec sends the count and mean as they are, and an encoding of the scatter:

* ``quantise``: the packed triangle in ``bits`` bits a value, each 128 values by a scale of their own;
* ``shared-step``: whole multiples of one step, the same at every party, compressed without loss. The step is ``step``
  times the mean variance of a feature, which costs a first round with one number from each party. Best on data with
  many near-zero covariances, as images have;
* ``low-rank``: the leading ``rank`` eigenvectors times the roots of their eigenvalues, in ``bits`` bits, with half of
  the first omitted eigenvalue assumed in every other direction.

A correction (``corrections=1``) is one more round: the leading components go down (float32), and what each party's
encoding gets wrong about them comes up (8 bits a value). The sum is then nearly right on their span, and the angle
falls about ten times or more (`fedpca_flwr.maths.refine`).

The model holds the ratio to a full float64 covariance, and a bound on the spectral norm of the error.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from scipy.linalg import blas

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.codec import Coded, dequantise, from_step, quantise, round_to_step
from fedpca_flwr.maths.eigen import angle_bound, leading_eigenpairs
from fedpca_flwr.maths.factors import Factor, truncated
from fedpca_flwr.maths.moments import Head, Moments, diagonal_positions, pack, packed_size, pool, pool_heads, unpack
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.maths.refine import RefinedSketch
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, MethodCard, PCAClient, PCAStrategy, Reply, Request, Solution
from strategies.moments import HEAD, head_fields, head_of

BLOCK = 128
CORRECTION_BITS = 8


class CompressedOptions(CountOptions):
    """Options of the compressed method."""

    codec: Literal["quantise", "shared-step", "low-rank"] = "quantise"
    bits: Annotated[int, Limits(ge=4, le=32)] = 16
    step: Annotated[float, Limits(gt=0, le=1)] = 1e-5
    """Of ``shared-step``: in units of the mean variance of a feature."""
    rank: Annotated[int, Limits(ge=0)] = 0
    """Of ``low-rank``: how many eigenvectors; 0: 2 n-components."""
    corrections: Annotated[int, Limits(ge=0, le=1)] = 0
    """Rounds in which the parties say what their encoding gets wrong about the leading components."""


HEADER = (*HEAD, Field("totals", ("2",)))
"""Count and mean; the trace of the scatter, and the first eigenvalue that the encoding leaves out."""

CODE = (Field("code", ("any",), "uint8"), Field("scales", ("any",), "float32"))

CARD = MethodCard(
    name="compressed",
    title="Compressed covariance",
    exact=False,
    summable=False,
    rounds=3,
    options=CompressedOptions,
    payloads={
        "scale": Payload(HEADER),
        "encoded": Payload((*CODE, *HEADER)),
        "correction": Payload(CODE),
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
        self._query: NDArray | None = None

    def request(self) -> Request:
        if self.options.codec == "shared-step" and not self._step:
            return Request("scale", sizes={"2": 2})
        rank = min(self.options.rank or 2 * self.options.n_components, self.quorum.features)
        sizes = {"2": 2, "r": rank}
        if self._query is None:
            return Request("encoded", [np.asarray(self._step)], sizes)
        return Request("correction", [np.asarray(self._step), self._query], sizes)

    def aggregate_fit(self, server_round, results, failures):
        request = self.request()
        replies = self.collect(server_round, results, failures)
        self._uploaded += sum(reply.nbytes for reply in replies) / len(replies)
        if request.phase == "correction":
            return self._corrected(replies)
        pooled, total = _pooled(replies)
        wanted = self.n_components(pooled.n, pooled.mean.size)
        require_variance(total, pooled.n, pooled.mean)
        if request.phase == "scale":
            self._step = self.options.step * total / pooled.mean.size
            return None, {}
        parts = [self._decoded(reply, request.sizes["r"]) for reply in replies]
        moments, error = pool(part for part, _ in parts), math.fsum(error for _, error in parts)
        matrix = unpack(moments.scatter, moments.n_features)
        pairs = leading_eigenpairs(matrix, wanted)
        self._solution = Solution(pairs=pairs, mean=pooled.mean, total=total, rows=pooled.n)
        self._error = error
        if not self.options.corrections:
            return self._end(angle_bound(error, pairs))
        if self.options.n_components + 2 > moments.n_features:
            raise ConfigError("run-config: 'corrections' need at least two features more than n-components")
        whole = matrix + np.tril(matrix, -1).T
        self._refined = RefinedSketch(lambda V: whole @ V, moments.n_features, error)
        self._order = sorted(range(len(replies)), key=lambda i: (replies[i].rows, replies[i].fields["mean"].tobytes()))
        self._query = self._refined.next_block(self.options.n_components + 10).astype(np.float32)
        return None, {}

    def _corrected(self, replies: list[Reply]):
        """Make the sum right on the span of the block that was asked."""
        assert self._query is not None
        V, k = self._query.astype(np.float64), self.options.n_components
        AV, error = self._refined.product(V), 0.0
        for i in self._order:
            fields = replies[i].fields
            try:
                decoded = dequantise(Coded(fields["scales"], fields["code"]), CORRECTION_BITS, len(V), V.size)
            except ValueError as fault:
                raise ContractError(f"{replies[i].sender}: its code does not decode: {fault}") from None
            AV = AV + decoded.values.reshape(V.T.shape).T
            error += float(np.linalg.norm(decoded.error))
        self._refined.known.add(V, AV, error=error)
        self._solution = replace(self._solution, pairs=self._refined.leading(k))
        return self._end(self._refined.certificate(self._refined.known.ritz(), k))

    def _decoded(self, reply: Reply, rank: int) -> tuple[Moments, float]:
        """The approximate moments of a party, and a bound on the spectral norm of the error of its scatter."""
        fields, head = reply.fields, head_of(reply)
        try:
            return decode(
                self.options, Coded(fields["scales"], fields["code"]), head, fields["totals"], rank, self._step
            )
        except ValueError as error:
            raise ContractError(f"{reply.sender}: its code does not decode: {error}") from None

    def _end(self, bound: float):
        d = self._solution.mean.size
        ratio = 8 * (d * d + d + 1) / self._uploaded
        return self.finish(
            self._solution,
            measured={
                "compression": f"{ratio:.1f} times less than a full float64 covariance, on average",
                "scatter error": f"{self._error / self._solution.total:.1e} of the variance at most (spectral norm)",
                "angle bound": f"{bound:.2g} degrees (Davis and Kahan: the worst case)",
            },
        )


class CompressedClient(PCAClient):
    """Returns an encoding of its own scatter."""

    def statistics(self, phase, received) -> Fields:
        if phase == "scale":
            own_head, diagonal = head_and_diagonal(self.data)
            return {**head_fields(own_head, diagonal), "totals": np.array([diagonal.sum(), 0.0])}
        moments = Moments.of(self.data)
        head = head_fields(moments.head, moments.diagonal())
        trace = float(moments.diagonal().sum())
        rank, step = self.sizes["r"], float(received[0])
        coded, omitted = encode(self.options, moments, rank, step)
        if phase == "correction":
            V = received[1].astype(np.float64)
            own, _ = decode(self.options, coded, moments.head, np.array([trace, omitted]), rank, step)
            missed = _times(moments, V) - _times(own, V)
            correction = quantise(missed.T.reshape(-1), CORRECTION_BITS, len(V))
            return {"code": correction.code, "scales": correction.scales}
        return {**head, "totals": np.array([trace, omitted]), "code": coded.code, "scales": coded.scales}


def _times(moments: Moments, V: NDArray) -> NDArray:
    matrix = unpack(moments.scatter, moments.n_features)
    return blas.dsymm(1.0, matrix, np.asfortranarray(V), lower=1)


def encode(options: CompressedOptions, moments: Moments, rank: int, step: float) -> tuple[Coded, float]:
    """The encoded scatter, and the first eigenvalue left out."""
    if options.codec == "quantise":
        return quantise(moments.scatter, options.bits, BLOCK), 0.0
    if options.codec == "shared-step":
        try:
            return round_to_step(moments.scatter, step, moments.n_features), 0.0
        except ValueError as error:
            raise ConfigError(f"run-config: 'step' is {options.step}: {error}") from None
    factor = truncated(moments, rank)
    return quantise(factor.rows.reshape(-1), options.bits, factor.rows.shape[1]), factor.omitted


def decode(
    options: CompressedOptions, coded: Coded, head: Head, totals: NDArray, rank: int, step: float
) -> tuple[Moments, float]:
    """What `encode` encoded, as moments, and a bound on the spectral norm of the error of their scatter.

    Raises
    ------
    ValueError
        If the code is not that of a scatter of this size.
    """
    d = head.mean.size
    if options.codec != "low-rank":
        size = packed_size(d)
        triangle = (
            dequantise(coded, options.bits, BLOCK, size) if options.codec == "quantise" else from_step(coded, step, d)
        )
        squares = np.broadcast_to(np.square(triangle.error), size)
        # the Frobenius norm of the error: every entry off the diagonal stands twice
        error = np.sqrt(2 * squares.sum() - squares[diagonal_positions(d)].sum())
        return Moments(*head, scatter=triangle.values), float(error)
    decoded = dequantise(coded, options.bits, d, rank * d)
    rows, slack = decoded.values.reshape(rank, d), float(np.linalg.norm(decoded.error))
    factor = Factor(head, rows, float(totals[0]), float(totals[1])).filled()
    scatter = blas.dsyrk(1.0, np.ascontiguousarray(factor.rows).T, lower=1)
    np.einsum("ii->i", scatter)[:] += factor.floor
    error = factor.error + 2 * float(np.linalg.norm(rows, 2)) * slack + slack**2
    return Moments(*head, scatter=pack(scatter)), error


def _pooled(replies: list[Reply]) -> tuple[Head, float]:
    """Count and mean of all rows, and the trace of their scatter; in an order that the data fix."""
    parts = sorted(
        ((head_of(reply), float(reply.fields["totals"][0])) for reply in replies),
        key=lambda part: (part[0].n, part[0].mean.tobytes(), part[1]),
    )
    pooled, deviations = pool_heads([head for head, _ in parts])
    between = (head.n * float(dev @ dev) for (head, _), dev in zip(parts, deviations, strict=True))
    return pooled, math.fsum([*(trace for _, trace in parts), *between])
