"""What a run of SUB-IT may ask: its options, and its phases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field as Limits

from fedpca_flwr.config import Count, RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Phase, Phases, Public
from fedpca_flwr.solution import check_rounds
from fedpca_flwr.statistics.genotypes import GenotypeOptions, genotype_phases
from fedpca_flwr.statistics.moment_fields import HEAD
from fedpca_flwr.statistics.products import product_phases
from fedpca_flwr.statistics.rows import projection_phase


class SubspaceOptions(CountOptions, GenotypeOptions):
    """Options of SUB-IT."""

    block_size: Annotated[int, Limits(ge=0, examples=[1, 2, "k", "k+1", "d", 1000])] = 0
    """Columns b of a block; 0: n-components + 10. Fewer cost more rounds and fewer bytes."""
    acceleration: Literal["krylov", "none"] = "krylov"
    """Whether all blocks so far are used, or only the last (plain subspace iteration)."""
    warm_start: Literal["random", "svd"] = "random"
    """Whether the first block is random, or each party sends a truncated factor first: fewer rounds."""
    warm_rank: Annotated[int, Limits(ge=0, examples=[1, "k", "d"])] = 0
    """Rank of the factors of the warm start; 0: 4 n-components."""
    wire: Literal["float64", "float32"] = "float64"
    """Precision of the products after a warm start; where float32 is not enough, those with the components are asked
    again in float64."""
    tolerance: Annotated[float, Limits(gt=0, le=90, examples=[1e-9, 1e-6, 1e-3, 1.0, 30.0])] = 1e-6
    """Certified largest angle to the exact components at which to stop, in degrees."""
    certify: Literal["all", "signal"] = "all"
    """Whether to go on until all components are certified, or until those are that stand out of the noise."""
    max_rounds: Annotated[Count, Limits(examples=[1, 2, 3, 5, 100])] = 100
    """At most so many; the model says which angle was certified."""
    center: bool = True
    """Subtract the pooled mean."""
    scale: bool = False
    """Divide each feature by its pooled standard deviation."""

    def width(self, public: Public) -> int:
        """Columns of a block."""
        return min(self.block_size or self.n_components + 10, public.features)

    def columns(self, public: Public) -> int:
        """About how many columns a run asks for: some ten blocks, or narrow ones until they span the components
        several times."""
        b = self.width(public)
        return min(self.max_rounds * b, max(10 * b, 5 * self.n_components))

    def sketch_rank(self, public: Public) -> int:
        """Rows of a party's factor, in a warm start."""
        return min(self.warm_rank or 4 * self.n_components, public.features)


def phases(config: RunConfig, options: SubspaceOptions) -> Phases:
    """The script of products, of genotypes with allele counts first."""
    return genotype_phases(config, options, _phases)


def _phases(config: RunConfig, options: SubspaceOptions) -> Phases:
    """Products with blocks; in a warm start what a first sketch gets wrong about them."""
    if options.acceleration == "none" and 0 < options.block_size < options.n_components:
        raise ConfigError(
            f"run-config: 'block-size' is {options.block_size}, but acceleration='none' keeps the last block only, "
            f"which must hold n-components = {options.n_components}; raise it, or set acceleration='krylov'"
        )
    if options.warm_start == "random":
        check_rounds(options.max_rounds, options.block_size or options.n_components + 10, options.n_components)
        products = product_phases(config, options.width, rounds=options.max_rounds, variances_first=options.scale)
        return {**products, **projection_phase(config, about="" if options.genotypes else "centre")}
    if options.scale or not options.center or options.acceleration == "none":
        raise ConfigError(
            "run-config: 'warm-start' is 'svd', which goes only with center=true, scale=false and acceleration='krylov'"
        )
    if config.secure_aggregation:
        raise ConfigError(
            "run-config: 'warm-start' is 'svd', which is not a sum over the parties; with secure-aggregation it must "
            "be 'random'"
        )
    factor = (Field("trace", ()), Field("floor", ()), Field("rows", ("r", "d"), dtype="float32"))
    sketch = Phase(reply=Payload((*HEAD, *factor)), sizes=lambda public: {"r": options.sketch_rank(public)})
    asked = [Field("block", ("d", "<=b"), "float32", kind="orthonormal columns")]
    reply = [Field("product", ("d", "b"), options.wire)]
    if options.wire == "float32":
        asked.append(Field("vectors", ("d", "<=k"), kind="orthonormal columns"))
        reply.append(Field("again", ("d", "k")))
    refine = Phase(
        asked=Payload(tuple(asked)),
        reply=Payload(tuple(reply)),
        sizes=lambda public: {"b": options.width(public), "k": options.n_components},
        times=options.max_rounds,
        optional=True,
    )
    return {"sketch": sketch, "refine": refine, **projection_phase(config)}
