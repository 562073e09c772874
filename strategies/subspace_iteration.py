"""SUB-IT: the components of all rows from products with blocks of vectors; no covariance is formed or sent (note 001).

In each round the server sends a block V (d x b) and every party k returns S_k V, with S_k its own centred scatter: d b
values up and down. The server adds the parties' products and the scatter between their means, which it knows::

    A V = sum S_k V + sum n_k (m_k - m)(m_k - m)^T V

and takes the best eigenvectors in the span of everything asked so far (block Krylov with Rayleigh-Ritz). It stops when
a certificate, which needs no ground truth, bounds the largest angle to the exact components by ``tolerance`` degrees.

A block of more than n-components columns misses nothing; narrower ones look three more rounds for variances that
occur more often than they have columns (`fedpca_flwr.maths.iteration`).

``acceleration="none"`` is the plain iteration of the note, which keeps only the last block. ``warm_start="svd"`` lets
each party send a truncated factor first, which saves rounds (`fedpca_flwr.maths.refine`).

Blocks go down in float32 at no loss (but for the plain iteration, and for narrow blocks until the gap shows): the
server computes with the rounded block that it sent.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.eigen import Eigenpairs, angle_bound
from fedpca_flwr.maths.factors import Factor, stack, truncated
from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head, Moments, pool_heads, safe_deviation
from fedpca_flwr.maths.products import head_and_diagonal, scatter_product
from fedpca_flwr.maths.refine import RefinedSketch
from fedpca_flwr.solution import require_variance
from strategies.base import CountOptions, MethodCard, PCAClient, PCAStrategy, Reply, Request, Solution
from strategies.moments import HEAD, head_fields, head_of

EXACT = 1e-6
"""Certified degrees up to which a model is called exact."""

ROUNDING = 1e-13
"""What float64 may add to a product, relative to the largest eigenvalue: no certificate is stated below it."""


class SubspaceOptions(CountOptions):
    """Options of SUB-IT."""

    block_size: Annotated[int, Limits(ge=0)] = 0
    """Columns b of a block; 0: n-components + 10. Fewer cost more rounds and fewer bytes."""
    acceleration: Literal["krylov", "none"] = "krylov"
    """Whether all blocks so far are used, or only the last (the note's iteration, without certificate)."""
    warm_start: Literal["random", "svd"] = "random"
    """Whether the first block is random, or each party sends a truncated factor first: fewer rounds."""
    warm_rank: Annotated[int, Limits(ge=0)] = 0
    """Rank of the factors of the warm start; 0: 4 n-components."""
    wire: Literal["float64", "float32"] = "float64"
    """Precision of the products after a warm start, where float32 suffices for about 1e-6 degrees."""
    tolerance: Annotated[float, Limits(gt=0, le=90)] = 1e-6
    """Certified largest angle to the exact components at which to stop, in degrees."""
    max_rounds: Count = 100
    """At most so many; the model says which angle was certified."""
    center: bool = True
    """Subtract the pooled mean."""
    scale: bool = False
    """Divide each feature by its pooled standard deviation."""


CARD = MethodCard(
    name="sub-it",
    title="Subspace iteration",
    exact=True,
    result="to a certified angle (`tolerance`)",
    rounds=100,
    in_rounds="until certified, some 10",
    upload="d b in each round, b = k + 10",
    server_sees="each party's products with d x b blocks",
    options=SubspaceOptions,
    payloads={
        "start": Payload((*HEAD, Field("diagonal", ("d",)), Field("product", ("d", "b")))),
        "product": Payload((Field("product", ("d", "b")),)),
        "sketch": Payload(
            (
                *HEAD,
                Field("trace", ()),
                Field("floor", ()),
                Field("rows", ("r", "d"), dtype="float32"),
            )
        ),
        "refine": Payload((Field("product", ("d", "b")),)),
        "refine-float32": Payload((Field("product", ("d", "b"), dtype="float32"),)),
    },
    reference="note 001; Golub and Underwood 1977; Musco and Musco 2015",
)


class SubspaceIteration(PCAStrategy):
    """SUB-IT; ``measured`` holds the certificate."""

    card = CARD
    options: SubspaceOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if options.warm_start == "svd" and (options.scale or not options.center or options.acceleration == "none"):
            raise ConfigError(
                "run-config: 'warm-start' is 'svd', which goes only with center=true, scale=false and "
                "acceleration='krylov'"
            )
        self._converged = True
        self._query: NDArray | None = None
        self._order: list[int] = []

    @property
    def rounds(self) -> int:
        return self.options.max_rounds

    def request(self) -> Request:
        d, k = self.quorum.features, self.options.n_components
        if self._query is None and self.options.warm_start == "svd":
            return Request("sketch", sizes={"r": min(self.options.warm_rank or 4 * k, d)})
        if self._query is None:
            return Request("start", sizes={"b": self._width(d)})
        wire = "" if self.options.wire == "float64" else "-float32"
        phase = "product" if self.options.warm_start == "random" else f"refine{wire}"
        return Request(phase, [self._query], {"b": self._query.shape[1]})

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        if self._query is None:
            self._order = sorted(range(len(replies)), key=lambda i: _identity(replies[i]))
        replies = [replies[i] for i in self._order]  # fixed by the data: permuting the parties changes no bit
        if self.options.warm_start == "svd":
            return self._refine(replies, last=server_round == self.rounds)
        if self._query is None:
            self._begin(replies)
        product = np.sum([reply.fields["product"] for reply in replies], axis=0)
        product += self._between.T @ (self._between @ self.block())
        return self.iterate(product, last=server_round == self.rounds)

    # From a random start

    def block(self) -> NDArray:
        """The block V (d, b) that the parties multiply in this round."""
        d = self.quorum.features
        return (
            random_block(d, self._width(d), self.config.seed) if self._query is None else self._query.astype(np.float64)
        )

    def iterate(self, product: NDArray, *, last: bool):
        """The next block, or the end, from the pooled scatter (about its mean) times the block, (d, b)."""
        V, AV = self.block(), product
        if not self.options.center:
            AV = AV + self._rows * np.outer(self._offset, self._offset @ V)
        divisor, iteration = self._scale[:, None], self._iteration
        if iteration.add(V * divisor, AV / divisor) or last:
            return self._end(self._enough(), iteration.certificate, last)
        self._query = (iteration.block / divisor).astype(np.float32 if iteration.forgiving else np.float64)
        return None, {}

    def _enough(self) -> Eigenpairs:
        k, ritz = self.options.n_components, self._iteration.ritz
        if ritz.values.size < k:
            raise ConfigError(
                f"run-config: 'max-rounds' is {self.options.max_rounds}, in which blocks of {self._iteration.width} "
                f"columns span {ritz.values.size} directions, too few for n-components = {k}; allow more rounds"
            )
        return ritz.pairs(k)

    def _begin(self, replies: list[Reply]) -> None:
        heads = [head_of(reply) for reply in replies]
        pooled, deviations = pool_heads(heads)
        self._between = np.array([np.sqrt(h.n) * dev for h, dev in zip(heads, deviations, strict=True)])
        diagonal = np.sum([reply.fields["diagonal"] for reply in replies], axis=0)
        self.begin(pooled, diagonal + np.einsum("ij,ij->j", self._between, self._between))

    def begin(self, pooled: Head, diagonal: NDArray) -> None:
        """Prepare for products, from the pooled head and the ``diagonal`` (d,) of the pooled scatter."""
        self.n_components(pooled.n, pooled.mean.size)
        mean = self._offset = pooled.mean + pooled.remainder
        ones = np.ones_like(mean)
        self._scale = safe_deviation(diagonal, pooled.n, pooled.mean) if self.options.scale else ones
        if not self.options.center:
            diagonal = diagonal + pooled.n * mean**2
        self._rows, self._mean = pooled.n, pooled.mean if self.options.center else np.zeros_like(mean)
        diagonal = diagonal / self._scale**2
        require_variance(diagonal, pooled.n, self._mean / self._scale)
        self._total = float(diagonal.sum())
        self._iteration = BlockIteration(
            mean.size,
            self.options.n_components,
            width=self._width(mean.size),
            trace=self._total,
            tolerance=self.options.tolerance,
            accelerated=self.options.acceleration == "krylov",
        )

    # From truncated factors

    def _refine(self, replies: list[Reply], *, last: bool):
        k = self.options.n_components
        if self._query is None:
            sketch = stack([_factor(reply) for reply in replies])
            self.n_components(sketch.head.n, sketch.head.mean.size)
            require_variance(sketch.diagonal(), sketch.head.n, sketch.head.mean)
            self._rows, self._mean, self._total = sketch.head.n, sketch.head.mean, sketch.trace
            self._scale = np.ones_like(self._mean)
            self._sketch = RefinedSketch.of_factor(sketch)
            if k + 2 > self._mean.size:
                raise ConfigError(f"run-config: 'n-components' is {k}; a warm start needs at most features - 2")
            certificate = 90.0
        else:
            V = self._query.astype(np.float64)
            products = [reply.fields["product"] for reply in replies]
            error = sum(float(np.linalg.norm(product)) for product in products) * 2.0**-24
            AV = self._sketch.product(V) + np.sum(products, axis=0, dtype=np.float64)
            self._sketch.known.add(V, AV, error=error if self.options.wire == "float32" else 0.0)
            certificate = self._sketch.certificate(self._sketch.known.ritz(), k)
        room = self._mean.size - self._sketch.known.Q.shape[1]
        if certificate <= self.options.tolerance or last or room <= 2:
            return self._end(self._sketch.leading(k), certificate, last)
        self._query = self._sketch.next_block(self._width(self._mean.size)).astype(np.float32)
        return None, {}

    # Both

    @property
    def exact(self) -> bool:
        return self._converged and self.options.tolerance <= EXACT

    def _end(self, pairs: Eigenpairs, certificate: float, last: bool):
        notes = []
        if certificate > self.options.tolerance:
            self._converged = False
            reason = f"max-rounds = {self.options.max_rounds}" if last else "asking for all directions"
            notes.append(
                f"stopped after {reason} with a certified angle of {certificate:.2g} degrees "
                f"instead of {self.options.tolerance:.2g}"
            )
        solution = Solution(
            pairs=pairs,
            mean=self._mean,
            total=self._total,
            rows=self._rows,
            scale=self._scale if self.options.scale else None,
        )
        rounding = angle_bound(ROUNDING * float(pairs.values[0]), pairs)
        told = f"{max(certificate, rounding):.2g} degrees at most"
        if self.options.warm_start == "random" and not self._iteration.proven:
            told += f", if no variance occurs more than {self._iteration.width} times"
        return self.finish(solution, notes=notes, measured={"certified angle": told})

    def _width(self, d: int) -> int:
        return min(self.options.block_size or self.options.n_components + 10, d)


class SubspaceIterationClient(PCAClient):
    """Returns products of its own scatter with the blocks that it receives."""

    def statistics(self, phase, received) -> Fields:
        if phase == "sketch":
            return self._sketch()
        if phase.startswith("refine"):
            return {"product": self._correction(received[0]).astype(phase.partition("-")[2] or "float64")}
        head, diagonal = head_and_diagonal(self.data)
        if phase == "product":
            return {"product": scatter_product(self.data, head, received[0].astype(np.float64))}
        first = random_block(self.data.shape[1], self.sizes["b"], self.config.seed)
        return {
            **head_fields(head, diagonal),
            "diagonal": diagonal,
            "product": scatter_product(self.data, head, first),
        }

    def _sketch(self) -> Fields:
        moments = Moments.of(self.data)
        factor = truncated(moments, self.sizes["r"]).filled()
        rows, floor = factor.rows.astype(np.float32), np.asarray(factor.floor)
        self.context.state.array_records["sketch"] = ArrayRecord([rows, floor])
        return {
            **head_fields(moments.head, moments.diagonal()),
            "trace": np.asarray(factor.trace),
            "floor": floor,
            "rows": rows,
        }

    def _correction(self, block: NDArray) -> NDArray:
        """What the sketch of this party's scatter gets wrong about a block."""
        rows, floor = self.context.state.array_records["sketch"].to_numpy_ndarrays()
        V, rows = block.astype(np.float64), rows.astype(np.float64)
        head, _ = head_and_diagonal(self.data)
        return scatter_product(self.data, head, V) - rows.T @ (rows @ V) - floor * V


def _factor(reply: Reply) -> Factor:
    fields = reply.fields
    floor = float(fields["floor"])
    return Factor(head_of(reply), fields["rows"].astype(np.float64), float(fields["trace"]), 2 * floor, floor)


def _identity(reply: Reply) -> tuple[int, bytes, bytes]:
    return reply.rows, reply.fields["mean"].tobytes(), reply.fields["remainder"].tobytes()
