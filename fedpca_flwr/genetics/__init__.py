"""Genotypes: .bed files, allele counts, linkage, relatives, the stage that standardises calls, and the command."""

from typing import Annotated

from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Stage


class GenotypeOptions(PCAOptions):
    """Options of the genotype stage: whether rows are genotypes, and how variants are pruned by linkage."""

    genotypes: Annotated[bool, Limits(examples=[])] = False
    """Whether the values are genotypes: 0, 1 or 2 copies of an allele, or missing (docs/genotypes.md)."""

    prune: Annotated[float, Limits(ge=0, lt=1, examples=[])] = 0.0
    """With `genotypes`: largest squared correlation of two neighbouring variants. The run leaves out one of two that
    exceed it. 0 keeps all variants."""
    prune_window: Annotated[int, Limits(ge=2, le=10_000, examples=[])] = 200
    """Number of variants in a window. All pairs of variants in a window are compared."""
    prune_step: Annotated[int, Limits(ge=1, examples=[])] = 25
    """Number of variants by which the window moves, at most `prune-window`."""


class Genotypes(Stage):
    """Declaration of the stage that standardises genotypes by the allele counts of all rows."""

    Options = GenotypeOptions
    needs = ("groups",)
    option_names = ("genotypes", "prune", "prune_window", "prune_step")
    accepts_missing = True
    examples = ({"genotypes": True}, {"genotypes": True, "prune": 0.2})
    implementation = "fedpca_flwr.genetics.stage:GenotypesStage"

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        """Return whether the method pools rows and is exact."""
        return card.pools_rows and card.exact
