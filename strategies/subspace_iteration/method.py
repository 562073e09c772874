"""SUB-IT: the components of all rows from products with blocks of vectors; no covariance is formed or sent.

In each round the server sends a block V (d x b) and every party k returns S_k V, with S_k its own centred scatter: d b
values up and down. The server adds the parties' products and the scatter between their means, which it knows::

    A V = sum S_k V + sum n_k (m_k - m)(m_k - m)^T V

and takes the best eigenvectors in the span of everything asked so far (block Krylov with Rayleigh-Ritz). It stops when
a certificate, which needs no ground truth, bounds the largest angle to the exact components by ``tolerance`` degrees.

A block of more than n-components columns misses nothing; narrower ones look three more rounds for variances that
occur more often than they have columns (`fedpca_flwr.maths.iteration`). Where the precision of the products, in float64
or on the wire, keeps the certificate above ``tolerance``, the run ends and says so.

With ``certify="signal"`` it stops as soon as those components are certified that stand out of the noise, and says so:
the others have directions that other rows would not confirm, and gaps that cost most rounds.

``acceleration="none"`` is plain subspace iteration, which keeps only the last block. ``warm_start="svd"`` lets
each party send a truncated factor first, which saves rounds (`fedpca_flwr.maths.refine`). With ``scale=True`` a round
of variances comes first, so that blocks are random in the scaled features.

Blocks go down in float32 at no loss (but for the plain iteration, and for narrow blocks until the gap shows): the
server computes with the rounded block that it sent.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import frobenius
from fedpca_flwr.maths.columns import added
from fedpca_flwr.maths.factors import Factor, stack, truncated, truncated_moments
from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.refine import RefinedSketch
from fedpca_flwr.maths.scaling import safe_deviation
from fedpca_flwr.maths.standing_out import Noise
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.solution import Solution, require_variance
from fedpca_flwr.statistics.moment_fields import head_fields, head_of
from fedpca_flwr.statistics.products import ScatterProducts
from fedpca_flwr.statistics.rows_client import RowsClient
from fedpca_flwr.statistics.rows_strategy import RowsStrategy
from strategies.subspace_iteration.script import SubspaceOptions, phases

CARD = MethodCard(
    name="sub-it",
    title="Subspace iteration",
    exact=True,
    result="to a certified angle (`tolerance`)",
    rounds="until certified, some 10; `scale` 1 more",
    upload="d b in each round, b = k + 10",
    server_sees="each party's products with d x b blocks",
    options=SubspaceOptions,
    phases=phases,
    reference="Golub and Underwood 1977 (block Lanczos); Musco and Musco 2015 (block Krylov)",
    examples=({}, {"scale": True}, {"warm-start": "svd"}, {"genotypes": True}),
)


class SubspaceIteration(RowsStrategy):
    """SUB-IT; ``measured`` holds the certificate."""

    card = CARD
    options: SubspaceOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        random = self.options.warm_start == "random"
        return (yield from (self._from_random_block() if random else self._from_sketch()))

    def _from_random_block(self) -> Generator[Ask, Any, Solution]:
        options, A, d = self.options, ScatterProducts(self), self.public.features
        first = random_block(d, options.width(self.public), self.config.seed)
        if options.scale:
            yield from A.variances()
        else:
            AV, missed = yield from A.start(first)
        head, mean = A.head, A.head.mean + A.head.remainder
        self.n_components(head.n, d)
        scale = safe_deviation(A.diagonal, head.n, head.mean) if options.scale else np.ones(d)
        diagonal = (A.diagonal if options.center else A.diagonal + head.n * mean**2) / scale**2
        total, centre = float(diagonal.sum()), head.mean if options.center else np.zeros(d)
        require_variance(diagonal, head.n, centre / scale)
        krylov = options.acceleration == "krylov"
        found = BlockIteration(
            first,
            options.n_components,
            trace=total,
            tolerance=options.tolerance,
            accelerated=krylov,
            noise=self._noise(head.n - options.center, d),
        )
        V: NDArray[Any] = first
        if options.scale:
            V = _next_block(found, scale)
            AV, missed = yield from A.times(V)
        while True:
            block = V.astype(np.float64)
            if not options.center:
                AV = AV + head.n * np.outer(mean, mean @ block)
            error = frobenius(missed / scale[:, None])
            error += float(
                np.sum(self.missed / scale**2) * frobenius(block * scale[:, None])
            )  # of the mean and the scale
            done = found.add(block * scale[:, None], AV / scale[:, None], error=error)
            if done or found.asked == options.max_rounds:
                break
            V = _next_block(found, scale)
            AV, missed = yield from A.times(V)
        return self._solution(found, Head(head.n, centre, head.remainder), total, scale)

    def _from_sketch(self) -> Generator[Ask, Any, Solution]:
        options = self.options
        replies = yield Ask("sketch")
        pooled = stack([_factor(reply) for reply in replies])
        head, total = pooled.head, pooled.trace
        self.n_components(head.n, head.mean.size)
        require_variance(pooled.diagonal(), head.n, head.mean)
        sketch, k = RefinedSketch(pooled), options.n_components
        units = {reply.party: _root_unit(float(reply.fields["trace"])) ** 2 for reply in replies}
        found = BlockIteration(
            sketch,
            k,
            width=options.width(self.public),
            trace=total,
            tolerance=options.tolerance,
            noise=self._noise(head.n - 1, head.mean.size),
        )
        for _ in range(options.max_rounds - 1):
            block = found.block.astype(np.float32)
            replies = yield Ask("refine", {"block": block})
            products = {reply.party: reply.fields["product"].astype(np.float64) for reply in replies}
            V = block.astype(np.float64)
            AV = sketch.product(V) + added([units[party] * product for party, product in products.items()])
            lost = [units[party] * _float32_error(product) for party, product in products.items()]
            error = math.fsum(lost) if options.wire == "float32" else 0.0
            if found.add(V, AV, error=error):
                break
        return self._solution(found, head, total, np.ones(head.mean.size))

    def _noise(self, freedom: int, features: int) -> Noise | None:
        return Noise(freedom, features) if self.options.certify == "signal" else None

    def _solution(self, found: BlockIteration, head: Head, total: float, scale: Array) -> Solution:
        self.certificate = found.certificate
        notes = found.shortfall_notes(f"max-rounds = {self.options.max_rounds}")
        if found.limited and self.options.wire == "float32":
            notes.append("products travelled in float32; with wire='float64' the angle can be certified to less")
        pairs, claimed = found.pairs, float(found.pairs.values.sum())
        if claimed > total * (1 + 1e-9):  # of a sketch, before its first corrections
            pairs = replace(pairs, values=pairs.values * (total / claimed))
        return Solution(
            pairs=pairs,
            mean=head.mean,
            total=total,
            rows=head.n,
            scale=scale if self.options.scale else None,
            notes=notes,
            measured=found.measured,
        )


class SubspaceIterationClient(RowsClient):
    """Returns products of its own scatter with the blocks that it receives."""

    options: SubspaceOptions

    def statistics(self, phase: str, asked: Fields) -> Any:
        if phase == "sketch":
            return self._sketch()
        if phase == "refine":
            return {"product": self._correction(asked["block"].astype(np.float64)).astype(self.options.wire)}
        return super().statistics(phase, asked)

    def first_block(self) -> Array:
        return random_block(self.data.shape[1], self.options.width(self.public), self.site.config.seed)

    @property
    def columns(self) -> int:
        return self.options.columns(self.public)

    def _sketch(self) -> Fields:
        rank = self.options.sketch_rank(self.public)
        factor = truncated_moments(self.own.moments(), rank) if self.own.formed else truncated(self.data, rank)
        factor = factor.filled()
        root = _root_unit(factor.trace)
        rows, floor = (factor.rows / root).astype(np.float32), np.asarray(factor.floor)
        self.site.state["sketch"] = [rows, floor, root]
        head = head_fields(*self.own.head_and_diagonal())
        return {**head, "trace": np.asarray(factor.trace), "floor": floor, "rows": rows}

    def _correction(self, V: Array) -> Array:
        """What the sketch of this party's scatter gets wrong about a block, in the unit of that scatter."""
        kept, floor, root = self.site.state["sketch"]
        rows = kept.astype(np.float64) * root
        missed = self.own.times(V) - rows.T @ (rows @ V) - float(floor) * V
        return np.asarray(missed / float(root) ** 2)


def _next_block(found: BlockIteration, scale: Array) -> NDArray[Any]:
    """The next block, which was chosen for features divided by their scale, in float32 where that loses nothing."""
    block = found.block / scale[:, None]
    sizes = np.abs(block[block != 0])
    narrow = found.allows_float32 and sizes.min() > 1e-30 and sizes.max() < 1e30
    return block.astype(np.float32 if narrow else np.float64)


def _factor(reply: Reply) -> Factor:
    fields, floor, trace = reply.fields, float(reply.fields["floor"]), float(reply.fields["trace"])
    return Factor(head_of(reply), fields["rows"].astype(np.float64) * _root_unit(trace), trace, 2 * floor, floor)


def _root_unit(trace: float) -> float:
    """The power of two in which the root of a scatter travels: float32 holds it, whatever the unit of the data."""
    return float(2.0 ** (np.frexp(trace)[1] // 2))


def _float32_error(product: Array) -> float:
    """Bound on what float32 rounded off a product, which came in it (Frobenius norm)."""
    limits = np.finfo(np.float32)
    size = float(np.linalg.norm(product))
    return size * float(limits.eps) / 2 + float(limits.smallest_subnormal) * math.sqrt(product.size)
