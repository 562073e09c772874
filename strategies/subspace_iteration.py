"""SUB-IT: the exact components from products with blocks of vectors; no site sends a covariance.

Take SUB-IT if the rows have too many features d to send d (d + 1) / 2 values, or for secure sums of genotypes. In each
round the server sends a block V (d x b), and site k, with n_k rows, mean m_k and centred scatter S_k, returns S_k V.
With the mean m of all rows, the product with the scatter of all rows is::

    A V = sum S_k V + sum n_k (m_k - m)(m_k - m)^T V

The estimates are the best eigenvectors in the span of all blocks so far (block Krylov with Rayleigh-Ritz,
`fedpca_flwr.maths.krylov`). The run ends when a certificate, which needs no pooled rows, bounds the largest angle to
the exact components by ``tolerance`` degrees (`fedpca_flwr.maths.angle_bounds`). It also ends when rounding keeps the
certificate from falling further, and the model then says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import block_iteration, factors, moments
from fedpca_flwr.maths.columns import order_free_sum
from fedpca_flwr.maths.eigen import frobenius_norm
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.marchenko_pastur import MarchenkoPastur
from fedpca_flwr.maths.refine import RefinedSketch
from fedpca_flwr.model.solution import check_rounds
from fedpca_flwr.questions import method, products
from fedpca_flwr.questions.rows import feature_divisors


class SubspaceOptions(method.Options, method.WeightOptions, method.VariantOptions):
    """Options of SUB-IT: components, scaling, the blocks, and where the iteration ends."""

    published: ClassVar[Mapping[str, Any]] = {"acceleration": "none", "block_size": "n-components"}

    block_size: Annotated[method.Size, Limits(examples=[1, 2, "k", "k+1", "d", 1000])] = 0
    """Columns b of a block, as many as components with 'n-components'. With 0 it is n-components + 10. A smaller block
    needs more rounds and fewer bytes."""
    acceleration: Literal["krylov", "none"] = "krylov"
    """Blocks that an estimate uses: all blocks so far ('krylov'), or the last (plain subspace iteration, 'none')."""
    warm_start: Literal["random", "svd"] = "random"
    """First block: random, or from a truncated factor of each site ('svd'), which saves rounds."""
    warm_rank: Annotated[int, Limits(ge=0, examples=[1, "k", "d"])] = 0
    """Rank of the factors with warm-start='svd'. With 0 it is 4 n-components."""
    wire: Literal["float64", "float32"] = "float64"
    """Precision of the products with warm-start='svd'. The last products are float64 where the certificate needs it."""
    tolerance: Annotated[float, Limits(gt=0, le=90, examples=[1e-9, 1e-6, 1e-3, 1.0, 30.0])] = 1e-6
    """Largest angle to the exact components, in degrees, that must be certified before the run ends."""
    certify: Literal["all", "signal"] = "all"
    """Components that must be certified: all, or those that stand out of the noise ('signal')."""
    max_rounds: Annotated[method.Count, Limits(examples=[1, 2, 3, 5, 100])] = 100
    """Largest number of rounds. A model that stops there states the angle that it reached."""

    @property
    def block_columns(self) -> int:
        """Number of columns of a block, if there are as many features: `block_size`, or n_components + 10."""
        width = self.block_size if isinstance(self.block_size, int) else self.n_components
        return width or self.n_components + 10

    def width(self, public: method.Public) -> int:
        """Return the number of columns of a block: `block_columns`, at most the features."""
        return min(self.block_columns, public.features)

    @override
    def product_columns(self, public: method.Public) -> int:
        """Return about how many vectors a party's scatter is multiplied with in the run."""
        # some ten blocks, or narrow blocks until they span the components several times
        b = self.width(public)
        return min(self.max_rounds * b, max(10 * b, 5 * self.n_components))

    def sketch_rank(self, public: method.Public) -> int:
        """Return the rows of a party's factor in a warm start: `warm_rank`, or 4 n_components; at most the features."""
        return min(self.warm_rank or 4 * self.n_components, public.features)


def subspace_script(config: method.RunConfig, options: SubspaceOptions) -> method.Questions:
    """Return the questions of SUB-IT: products with blocks, or a sketch with corrections in a warm start.

    Raise ConfigError for blocks or rounds too few for the components, and for a warm start with scaling, without
    centring or without acceleration.
    """
    if options.acceleration == "none" and options.block_columns < options.n_components:
        raise method.ConfigError(
            f"run-config: 'block-size' is {options.block_size}, but acceleration='none' keeps the last block only, "
            f"which must hold n-components = {options.n_components}; raise it, or set acceleration='krylov'"
        )
    if options.warm_start == "random":
        check_rounds(options.max_rounds, options.block_columns, options.n_components)
        rounds, scale = options.max_rounds, options.divided
        questions = products.product_questions(config, options.width, rounds=rounds, variances_first=scale)
        return {**questions, **method.projection_questions(mean_name="centre")}
    if options.divided or not options.center or options.acceleration == "none":
        raise method.ConfigError(
            "run-config: 'warm-start' is 'svd', which goes only with center=true, scale=false, column-weights='' and "
            "acceleration='krylov'"
        )
    factor = (method.Field("trace", ()), method.Field("floor", ()), method.Field("rows", ("r", "d"), dtype="float32"))
    sketch = method.Question(
        reply=method.Payload((*method.HEAD, *factor)),
        answer=lambda party, request: _answer_sketch(party, options.sketch_rank(party.public)),
        sizes=lambda public: {"r": options.sketch_rank(public)},
        suggestion="set warm-start='random'",
    )
    in_float32 = options.wire == "float32"
    request = method.Field("block", ("d", "<=b"), "float32", kind="orthonormal columns")
    reply = method.Field("product", ("d", "b"), options.wire)
    vectors = method.Field("vectors", ("d", "<=k"), kind="orthonormal columns")
    component_product = method.Field("again", ("d", "k"))
    refine = method.Question(
        request=method.Payload((request, vectors) if in_float32 else (request,)),
        reply=method.Payload((reply, component_product) if in_float32 else (reply,)),
        answer=_answer_refine,
        sizes=lambda public: {"b": options.width(public), "k": options.n_components},
        times=options.max_rounds,
        optional=True,
    )
    return {"sketch": sketch, "refine": refine, **method.projection_questions()}


def _answer_sketch(party: method.Party, rank: int) -> method.Fields:
    """Return and store a factor (r, d) of a party's scatter in float32, over `root_unit`; also head, trace, floor."""
    factor = party.vault.truncated(rank).with_floor()
    root = root_unit(factor.trace)
    rows, floor = (factor.rows / root).astype(np.float32), np.asarray(factor.floor)
    party.state["sketch"] = [rows, floor, root]
    head = method.head_fields(*party.vault.head_and_diagonal())
    return {**head, "trace": np.asarray(factor.trace), "floor": floor, "rows": rows}


def _answer_refine(party: method.Party, request: method.Fields) -> method.Fields:
    """Return the product of a party's sketch error (scatter minus sketch) with the block, as ``product``.

    With the request's ``vectors`` also ``again``, the product with these in float64. Both are over `root_unit` squared.
    """
    reply = {"product": _sketch_residual(party, request["block"].astype(np.float64)).astype(party.options.wire)}
    if "vectors" in request:
        reply["again"] = _sketch_residual(party, request["vectors"])
    return reply


def _sketch_residual(party: method.Party, V: method.Array) -> method.Array:
    """Return ``(S - R'R - floor I) V / root^2`` (d, b) for a party's scatter S and stored sketch: R, floor and root."""
    float32_rows, floor, root = party.state["sketch"]
    rows = float32_rows.astype(np.float64) * root
    residual = party.vault.times(V) - rows.T @ (rows @ V) - float(floor) * V
    return np.asarray(residual / float(root) ** 2)


def root_unit(trace: float) -> float:
    """Return a power of two near the root of a trace, by which factors are divided to fit float32; 1 for zero."""
    return float(2.0 ** (np.frexp(trace)[1] // 2))  # half the exponent: the root


CARD = method.MethodCard(
    name="sub-it",
    title="Subspace iteration",
    exact=True,
    result="The run certifies an angle of at most `tolerance`",
    rounds="about 10, until certified; 1 more with `scale`",
    upload="d b in each round, for d features and b = k + 10",
    server_sees="each party's products with d x b blocks",
    disclosure=method.Disclosure(
        "its number of rows, mean, variances, products of its covariance with blocks of vectors, and with "
        "`warm-start='svd'` its leading components",
        "the pooled components, mean and scales; the blocks, which span the components of each round",
    ),
    summed_disclosure=method.Disclosure(
        "the number of rows, mean, variances, products of the scatter with the blocks, and squared error",
        "the number, mean and variances of all rows; the blocks, which span the components of each round",
    ),
    options=SubspaceOptions,
    script=subspace_script,
    weighted=True,
    mixed=True,
    reference="Golub and Underwood 1977 (block Lanczos); Musco and Musco 2015 (block Krylov)",
    examples=({}, {"scale": True}, {"warm-start": "svd"}, {"warm-start": "svd", "wire": "float32"}),
    differences="By default each estimate uses all blocks so far, and a block has 10 columns more than there are "
    "components. The unpublished design notes use only the last block, with as many columns as components "
    "(`variant='paper'`); the seed, the number of rounds and the tolerance are this project's. On the digits (10 "
    "sites, Dirichlet 0.1, seed 42, 10 components) `variant='paper'` is up to 14 degrees off after 20 rounds and "
    "1e-8 after 100. By default the run ends after 4 rounds, with an error bound of 1e-10 degrees.",
)


class SubspaceIteration(method.Strategy):
    """Strategy of SUB-IT: Ritz vectors of the pooled scatter in a block Krylov space, with a certificate.

    Let A be the scatter of all rows, divided by the features' scales where there are any. With an orthonormal
    basis Q of all blocks so far, the eigenpairs of ``Q' A Q`` give Ritz values t and Ritz vectors ``u = Q y``; their
    residuals ``A u - t u`` need no further product. The next block is the residuals' span (Golub and Underwood 1977),
    so that after i rounds Q spans ``[V, A V, ..., A^(i-1) V]`` (Musco and Musco 2015). The residuals, the trace of A
    and the gaps between Ritz values bound the angle to the leading eigenvectors (`fedpca_flwr.maths.angle_bounds`).

    With ``warm-start="svd"`` the server begins with the stacked truncated factors of all parties, and asks each party
    for the error of its own factor on the leading vectors (`fedpca_flwr.maths.refine`).
    """

    card = CARD
    options: SubspaceOptions

    @override
    def aggregate(self) -> method.Fitting:
        """Run from a random block, or from low-rank sketches with ``warm-start="svd"``, and raise as these two."""
        random = self.options.warm_start == "random"
        return (yield from (self._from_random_block() if random else self._from_sketch()))

    def _from_random_block(self) -> method.Fitting:
        """Run block Krylov rounds from a random block until the angle to the exact components is certified.

        Without a certificate the run ends after `max_rounds`, with a note. Raise ConfigError for more components than
        the rows allow, and DataError for rows without variance.
        """
        options, A, d = self.options, products.ScatterProducts(self), self.public.features
        first = random_block(d, options.width(self.public), self.config.seed)
        if options.divided:
            yield from A.variances()
        else:
            AV, error_bounds = yield from A.start(first)
        head, mean = A.head, A.head.mean + A.head.remainder
        self.n_components(head.n, d)
        divisors = feature_divisors(self, A.diagonal, head)
        scale = np.ones(d) if divisors is None else divisors
        diagonal = (A.diagonal if options.center else A.diagonal + head.n * mean**2) / scale**2
        total, centre = float(diagonal.sum()), head.mean if options.center else np.zeros(d)
        method.require_variance(diagonal, head.n, centre / scale)
        iteration = block_iteration.BlockIteration(
            first,
            options.n_components,
            trace=total,
            tolerance=options.tolerance,
            accelerated=options.acceleration == "krylov",
            noise=self._noise_model(head.n - options.center, d),
        )
        V: NDArray[Any] = first
        if options.divided:
            V, A.scale = _next_block(iteration, scale), scale
            AV, error_bounds = yield from A.times(V)
        while True:
            block = V.astype(np.float64)
            if not options.center:
                AV = AV + head.n * np.outer(mean, mean @ block)
            centring_error = float(np.sum(A.evidence.error_bound / scale**2) * frobenius_norm(block * scale[:, None]))
            error = frobenius_norm(error_bounds / scale[:, None]) + centring_error
            converged = iteration.add(block * scale[:, None], AV / scale[:, None], error=error)
            if converged or iteration.product_count == options.max_rounds:
                break
            V = _next_block(iteration, scale)
            AV, error_bounds = yield from A.times(V)
        solution = self._solution(iteration, moments.Head(head.n, centre, head.remainder), total, scale)
        return replace(solution, evidence=A.evidence)

    def _from_sketch(self) -> method.Fitting:
        """Correct the parties' low-rank sketches until certified; end and raise as `_from_random_block`."""
        options = self.options
        replies = yield method.Round("sketch")
        pooled = factors.stack_factors([_read_factor(reply) for reply in replies])
        head, total = pooled.head, pooled.trace
        self.n_components(head.n, head.mean.size)
        method.require_variance(pooled.diagonal(), head.n, head.mean)
        sketch = RefinedSketch(pooled)
        units = {reply.party: root_unit(float(reply.fields["trace"])) ** 2 for reply in replies}
        in_float32 = options.wire == "float32"
        iteration = block_iteration.BlockIteration(
            sketch,
            options.n_components,
            width=options.width(self.public),
            trace=total,
            tolerance=options.tolerance,
            noise=self._noise_model(head.n - 1, head.mean.size),
            rounded=in_float32,
        )
        for _ in range(options.max_rounds - 1):
            block, components = iteration.block.astype(np.float32), iteration.renewal_vectors
            vectors = {"vectors": np.empty((len(block), 0)) if components is None else components} if in_float32 else {}
            replies = yield method.Round("refine", {"block": block, **vectors})
            V = block.astype(np.float64)
            residual, rounding_bound = _sum_residuals("product", replies, units)
            AV = sketch.product(V) + residual
            AU = None if components is None else sketch.product(components) + _sum_residuals("again", replies, units)[0]
            if iteration.add(V, AV, error=rounding_bound if in_float32 else 0.0, renewal_product=AU):
                break
        return self._solution(iteration, head, total, np.ones(head.mean.size))

    def _noise_model(self, freedom: float, features: int) -> MarchenkoPastur | None:
        """Return the Marchenko-Pastur spectrum of pure noise, or None if all components must be certified."""
        return MarchenkoPastur(freedom, features) if self.options.certify == "signal" else None

    def _solution(
        self, iteration: block_iteration.BlockIteration, head: moments.Head, total: float, scale: method.Array
    ) -> method.Solution:
        """Return the solution of a finished block iteration, with its angle certificate and notes if it fell short."""
        self.certificate = iteration.certificate
        notes = block_iteration.shortfall_notes(iteration, f"max-rounds = {self.options.max_rounds}")
        pairs, claimed = iteration.pairs, float(iteration.pairs.values.sum())
        if claimed > total * (1 + 1e-9):  # happens if an uncorrected sketch overstates the variances
            pairs = replace(pairs, values=pairs.values * (total / claimed))
        return method.Solution(
            pairs=pairs,
            mean=head.mean,
            total=total,
            rows=head.n,
            scale=scale if self.options.divided else None,
            notes=notes,
            measurements=block_iteration.certificate_measurements(iteration),
        )


def _next_block(iteration: block_iteration.BlockIteration, scale: method.Array) -> NDArray[Any]:
    """Return the next block (d, b) over the scales (d,), in float32 if the iteration and its numbers allow that."""
    block = iteration.block / scale[:, None]
    sizes = np.abs(block[block != 0])
    fits_float32 = iteration.allows_float32 and sizes.min() > 1e-30 and sizes.max() < 1e30
    return block.astype(np.float32 if fits_float32 else np.float64)


def _read_factor(reply: method.Reply) -> factors.Factor:
    """Return the low-rank sketch in a party's reply as a factor in float64, in units of the data."""
    fields, floor, trace = reply.fields, float(reply.fields["floor"]), float(reply.fields["trace"])
    rows = fields["rows"].astype(np.float64) * root_unit(trace)
    return factors.Factor(method.read_head(fields), rows, trace, 2 * floor, floor)


def _sum_residuals(name: str, replies: Sequence[method.Reply], units: dict[int, float]) -> tuple[method.Array, float]:
    """Return the sum (d, b) of the replies' field ``name``, products of sketch errors, and a bound on its rounding.

    The bound is on the Frobenius norm and supposes float32; ``units`` are by party, in squared units of the data.
    """
    residuals = [units[reply.party] * reply.fields[name].astype(np.float64) for reply in replies]
    rounding_bounds = [
        _float32_error_bound(residual, units[reply.party]) for residual, reply in zip(residuals, replies, strict=True)
    ]
    return order_free_sum(residuals), math.fsum(rounding_bounds)


def _float32_error_bound(product: method.Array, unit: float) -> float:
    """Return a bound on the Frobenius norm of the rounding of a product that is sent in float32, over ``unit``."""
    limits = np.finfo(np.float32)
    size = float(np.linalg.norm(product / unit))
    return unit * (size * float(limits.eps) / 2 + float(limits.smallest_subnormal) * math.sqrt(product.size))
