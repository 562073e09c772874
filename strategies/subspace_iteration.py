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

import math
from typing import Annotated, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.factors import Factor, stack, truncated
from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head, pool_heads, safe_deviation
from fedpca_flwr.maths.products import head_and_diagonal, scatter_product
from fedpca_flwr.maths.refine import RefinedSketch
from fedpca_flwr.solution import check_rounds, require_variance
from strategies.base import CountOptions, MethodCard, PCAClient, PCAStrategy, Reply, Request, Solution
from strategies.moments import HEAD, head_fields, head_of


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
        "variances": Payload((*HEAD, Field("diagonal", ("d",)))),
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
        if options.warm_start == "random":
            check_rounds(options.max_rounds, options.block_size or options.n_components + 10, options.n_components)
        self._found: BlockIteration | None = None
        self._query: NDArray | None = None  # the block that is asked
        self._order: list[int] = []

    @property
    def rounds(self) -> int:
        return self.options.max_rounds + self.options.scale

    def request(self) -> Request:
        d, k = self.quorum.features, self.options.n_components
        if self._query is not None:
            wire = "" if self.options.wire == "float64" else "-float32"
            phase = "product" if self.options.warm_start == "random" else f"refine{wire}"
            return Request(phase, [self._query], {"b": self._query.shape[1]})
        if self.options.warm_start == "svd":
            return Request("sketch", sizes={"r": min(self.options.warm_rank or 4 * k, d)})
        return Request("variances") if self.options.scale else Request("start", sizes={"b": self._width(d)})

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        if not self._order:
            self._order = sorted(range(len(replies)), key=lambda i: _identity(replies[i]))
        replies = [replies[i] for i in self._order]  # fixed by the data: permuting the parties changes no bit
        last = server_round == self.rounds
        if self.options.warm_start == "svd":
            return self._refine(replies, last=last)
        if self._found is None:
            self._begin(replies)
            if self.options.scale:
                return self._ask()
        product = np.sum([reply.fields["product"] for reply in replies], axis=0)
        product += self._between.T @ (self._between @ self.block())
        return self.iterate(product, last=last)

    # From a random start

    def block(self) -> NDArray:
        """The block V (d, b) that the parties multiply in this round, in the units of the data."""
        return self.found.block if self._query is None else self._query.astype(np.float64)

    def iterate(self, product: NDArray, *, last: bool, error: float = 0.0):
        """The next block, or the end, from the pooled scatter (about its mean) times the block, (d, b).

        ``error`` bounds the Frobenius norm of what is wrong in it, with features divided by their scale.
        """
        V, AV = self.block(), product
        if not self.options.center:
            AV = AV + self._rows * np.outer(self._offset, self._offset @ V)
        divisor = self._scale[:, None]
        if self.found.add(V * divisor, AV / divisor, error=error) or last:
            return self._end()
        return self._ask()

    def _ask(self):
        """Ask for the next block, which was chosen for features divided by their scale."""
        block = self.found.block / self._scale[:, None]
        sizes = np.abs(block[block != 0])
        narrow = self.found.forgiving and sizes.min() > 1e-30 and sizes.max() < 1e30
        self._query = block.astype(np.float32 if narrow else np.float64)
        return None, {}

    @property
    def found(self) -> BlockIteration:
        """The iteration, once the pooled variances are known."""
        assert self._found is not None
        return self._found

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
        self._found = BlockIteration(
            random_block(mean.size, self._width(mean.size), self.config.seed),
            self.options.n_components,
            trace=self._total,
            tolerance=self.options.tolerance,
            accelerated=self.options.acceleration == "krylov",
        )

    # From truncated factors

    def _refine(self, replies: list[Reply], *, last: bool):
        if self._query is None:
            sketch = stack([_factor(reply) for reply in replies])
            self.n_components(sketch.head.n, sketch.head.mean.size)
            require_variance(sketch.diagonal(), sketch.head.n, sketch.head.mean)
            self._rows, self._mean, self._total = sketch.head.n, sketch.head.mean, sketch.trace
            self._scale = np.ones_like(self._mean)
            self._sketch = RefinedSketch(sketch)
            self._found = BlockIteration(
                self._sketch,
                self.options.n_components,
                width=self._width(self._mean.size),
                trace=self._total,
                tolerance=self.options.tolerance,
            )
            enough = False
        else:
            V = self.block()
            products = [reply.fields["product"] for reply in replies]
            AV = self._sketch.product(V) + np.sum(products, axis=0, dtype=np.float64)
            error = math.fsum(map(_lost, products)) if self.options.wire == "float32" else 0.0
            enough = self.found.add(V, AV, error=error)
        if enough or last:
            return self._end()
        self._query = self.found.block.astype(np.float32)
        return None, {}

    # Both

    def _end(self):
        self.certificate = self.found.certificate
        notes = self.found.shortfall(f"max-rounds = {self.options.max_rounds}")
        if self.found.limited and self.options.wire == "float32":
            notes.append("products travelled in float32; with wire='float64' the angle can be certified to less")
        solution = Solution(
            pairs=self.found.pairs,
            mean=self._mean,
            total=self._total,
            rows=self._rows,
            scale=self._scale if self.options.scale else None,
        )
        return self.finish(solution, notes=notes, measured={"certified angle": self.found.told})

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
        if phase == "variances":
            return {**head_fields(head, diagonal), "diagonal": diagonal}
        if phase == "product":
            return {"product": scatter_product(self.data, head, received[0].astype(np.float64))}
        first = random_block(self.data.shape[1], self.sizes["b"], self.config.seed)
        return {
            **head_fields(head, diagonal),
            "diagonal": diagonal,
            "product": scatter_product(self.data, head, first),
        }

    def _sketch(self) -> Fields:
        factor = truncated(self.data, self.sizes["r"]).filled()
        rows, floor = factor.rows.astype(np.float32), np.asarray(factor.floor)
        self.context.state.array_records["sketch"] = ArrayRecord([rows, floor])
        return {
            **head_fields(*head_and_diagonal(self.data)),
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


def _lost(product: NDArray) -> float:
    """Bound on what float32 rounded off a product, which came in it (Frobenius norm)."""
    limits = np.finfo(np.float32)
    size = float(np.linalg.norm(product.astype(np.float64)))
    return size * float(limits.eps) / 2 + float(limits.smallest_subnormal) * math.sqrt(product.size)


def _identity(reply: Reply) -> tuple[int, bytes, bytes]:
    return reply.rows, reply.fields["mean"].tobytes(), reply.fields["remainder"].tobytes()
