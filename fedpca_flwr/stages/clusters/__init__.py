"""Clusters of the scores of all rows, and Harmony."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Stage

HARMONY_DISCLOSURE = "how many of each site's rows are in each cluster, and the sums of these rows' scores"
"""Text on what Harmony's sums tell about single sites (`PCAOptions.sum_disclosures`)."""


class ClusterOptions(PCAOptions):
    """Options of the clustering stage: the number of clusters, and the algorithm."""

    clusters: Annotated[int, Limits(ge=0, le=1000, examples=[2, 3])] = 0
    """Number of clusters to find among the scores of all rows, if sites allow it (docs/clusters.md). 0 finds none."""
    clustering: Literal["k-means", "mixture", "harmony"] = "k-means"
    """Algorithm: k-means, a mixture of normal distributions, or Harmony (docs/single-cells.md)."""


class Clusters(Stage):
    """Declaration of the stage that clusters the scores of all rows after a method's fit."""

    Options = ClusterOptions
    needs = ("rows",)
    option_names = ("clusters",)
    examples = ({"clusters": 2, "clustering": "mixture"}, {"clusters": 2, "clustering": "harmony"})
    implementation = "fedpca_flwr.stages.clusters.stage:ClustersStage"
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
