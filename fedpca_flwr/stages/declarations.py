"""Declarations of the stages of the core: options, fitting methods, and what the stages disclose.

The module of a stage (`Stage.implementation`) is imported when a run selects the stage.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.protocol.card import MethodCard, MomentsOptions, PCAOptions, Stage
from fedpca_flwr.questions.rows import WITHIN_DISCLOSURE

HARMONY_DISCLOSURE = "how many of each site's rows are in each cluster, and the sums of these rows' scores"
"""Text on what Harmony's sums tell about single sites (`PCAOptions.sum_disclosures`)."""

COUNTS_DISCLOSURE = "which counts of a site are below the site's `min-rows`, because the sum leaves these counts out"
"""Text on what the sum of counts tells about single sites (`PCAOptions.sum_disclosures`)."""


class Weights(Stage):
    """Declaration of the stage for weighted rows."""

    option_names = ("weights",)
    implementation = "fedpca_flwr.stages.weights:WeightsStage"

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        return card.weighted


class AdjustOptions(PCAOptions):
    """Options of the adjustment stage: covariates and differences between parties to remove before the method."""

    adjust_for: str = ""
    """Columns (names, or numbers from 0, with commas between them) that the run first regresses out of all other
    columns. A column of `levels` stands for all its indicators."""
    numbers: str = ""
    """Covariates that are amounts although they look like codes of classes, so that no note asks what they are."""
    harmonise: Annotated[Literal["nothing", "means", "variances"], Limits(examples=[])] = "nothing"
    """Differences between sites to remove: those of their means, or those of their means and variances
    ('variances')."""

    @property
    @override
    def covariates(self) -> list[str]:
        """Names or numbers of the covariates, split from the option ``adjust_for``."""
        return [name.strip() for name in self.adjust_for.split(",") if name.strip()]

    @property
    def within(self) -> bool:
        """True if each party's own mean is subtracted from its rows."""
        return self.harmonise != "nothing"


class Adjust(Stage):
    """Declaration of the stage that adjusts the moments for covariates and for differences between the parties."""

    Options = AdjustOptions
    option_names = ("adjust_for", "harmonise", "numbers")
    examples = ({"harmonise": "variances"},)
    implementation = "fedpca_flwr.stages.adjust:AdjustStage"

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        """Return whether the method pools rows by their moments, so that the stage can adjust the moments."""
        return card.pools_rows and issubclass(card.options, MomentsOptions)

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by sums of scatters about own means, if means are harmonised."""
        if not self.options.within:
            return {}
        deviations = ". It also learns a scatter that each site has divided by its own deviations"
        return {"harmonise": WITHIN_DISCLOSURE + deviations * (self.options.harmonise == "variances")}


class ClusterOptions(PCAOptions):
    """Options of the clustering stage: the number of clusters, and the algorithm."""

    clusters: Annotated[int, Limits(ge=0, le=1000, examples=[2, 3])] = 0
    """Number of clusters to find among the scores of all rows, if sites allow it (docs/mixed.md). 0 finds none."""
    clustering: Literal["k-means", "mixture", "harmony"] = "k-means"
    """Algorithm: k-means, a mixture of normal distributions, or Harmony (docs/single-cells.md)."""


class Clusters(Stage):
    """Declaration of the stage that clusters the scores of all rows after a method's fit."""

    Options = ClusterOptions
    needs = ("rows",)
    option_names = ("clusters",)
    examples = ({"clusters": 2, "clustering": "mixture"}, {"clusters": 2, "clustering": "harmony"})
    implementation = "fedpca_flwr.stages.clusters:ClustersStage"
    options: ClusterOptions

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        """Return whether all parties project their rows, or what is expected of these, with the same components."""
        return card.pools_rows or card.incomplete

    @property
    @override
    def exposes(self) -> str:
        """Kind of information that clustering can show of single rows: their scores."""
        return "scores"

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by Harmony's sums; nothing for other clusterings."""
        return {"harmony": HARMONY_DISCLOSURE} if self.options.clustering == "harmony" else {}


class OddRowOptions(PCAOptions):
    """Options of the outlier stage: limits for single rows, and fourth moments of the scores."""

    outliers: Literal["nothing", "sites", "counts"] = "nothing"
    """Outlier statistics (docs/statistics.md): each site with `scores` writes T squared, SPE and their limits for its
    rows ('sites'), and also tells the server how many rows exceed the limits ('counts')."""
    fourth_moments: bool = False
    """Compute the scores' fourth moments, for confidence intervals that allow for heavy tails (docs/statistics.md)."""


class OddRows(Stage):
    """Declaration of the stage for outliers: limits for each row, counts of rows beyond, and kurtosis."""

    Options = OddRowOptions
    option_names = ("outliers", "fourth_moments")
    implementation = "fedpca_flwr.stages.odd_rows:OddRowsStage"
    options: OddRowOptions

    @property
    @override
    def exposes(self) -> str:
        """Kind of information on rows: "distribution" if counts of outliers or fourth moments are sent, else none."""
        return "distribution" if self.options.outliers == "counts" or self.options.fourth_moments else ""

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of single sites by the summed counts of outliers, if a run asks for counts."""
        return {"outliers": COUNTS_DISCLOSURE} if self.options.outliers == "counts" else {}
