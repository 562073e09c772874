"""Compressed: the moments of P-COV in fewer bytes, with a measured error.

Count and mean travel as they are, the scatter by a codec (`fedpca_flwr.maths.scatter_codecs`):

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
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import EXACT, at_most
from fedpca_flwr.maths.codec import Coded
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.moments import Head, Moments, pool_heads, unpack
from fedpca_flwr.maths.pooling import MomentsSum
from fedpca_flwr.maths.refine import CORRECTION_BITS, SAME, block_bits, corrected, corrected_angle_bound
from fedpca_flwr.protocol.card import MethodCard, Shown
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.solution import Solution, require_variance
from fedpca_flwr.statistics.moment_fields import head_of
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

from .codec import (
    codec_of,
    decoded_block,
    encoded_components,
    orthonormal_block,
    unit_of,
)
from .script import CompressedOptions, phases

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
    reference="this project; `fedpca_flwr.maths.scatter_codecs` and `fedpca_flwr.maths.refine` derive it",
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
        added = MomentsSum(d)
        for reply in replies:
            unit = unit_of(float(reply.fields["trace"][0]))
            codec = codec_of(self.options, d, step / unit, self.config.seed)
            scatter = _scaled(reply, unit, partial(codec.decode, d=d))
            added.add(Moments(*head_of(reply), scatter=scatter))
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
