"""VFedPCA: sites with different columns average their leading left singular vectors (Cheung et al. 2022).

VFedPCA is for comparison: `vertical` is exact, and with ``solver="merge"`` more accurate with fewer bytes. In each
period a site takes some steps of the power method with its columns, and sends a vector, with one value for each row,
and its eigenvalue. The server averages the vectors, weighted by the eigenvalues. ``variant="paper"`` is the paper's
algorithm, and ``variant="faithful"`` the authors' program, which centres rows instead of columns.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import columns as algebra
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions import merging


class VFedPCAOptions(merging.MergeOptions):
    """Options of VFedPCA: the merging of directions, and the power method of each party."""

    published: ClassVar[Mapping[str, Any]] = {
        "center": False,
        "party_weights": "mean",
        "start": "own",
        "align_signs": False,
    }

    local_iterations: Annotated[method.Count, Limits(examples=[1, 10])] = 10
    """Steps L of the power method in each period."""
    party_weights: Literal["total", "mean"] = "total"
    """Weight of a site's vector: the eigenvalue of ``X_i X_i'``, or that divided by the number of the site's columns
    (the paper's ``A_i = X_i X_i' / f_i``, section 3.2)."""

    @property
    @override
    def needs_products_only(self) -> bool:
        """True unless the number of columns counts, or the authors' program centres each row over its columns."""
        return not self.faithful and self.party_weights == "total"

    @override
    def local_direction(self, X: method.Array, start: method.Array) -> tuple[float, method.Array]:
        """Run `local_iterations` steps of the power method on ``X X'``; return eigenvalue and unit vector (n,).

        With the variant "faithful" the matrix is the covariance of the rows over the party's columns. Both results are
        zero if a product is zero. Shapes: X (n, f), start (n,).
        """
        factor = algebra.row_covariance_factor(X) if self.faithful else X
        value, vector = algebra.gram_power_iteration(factor, start, self.local_iterations)
        return value / (X.shape[1] if self.party_weights == "mean" and not self.faithful else 1), vector


CARD = method.MethodCard(
    name="vfedpca",
    title="VFedPCA",
    exact=False,
    result="It is 4 to 65 degrees from exact",
    rounds="2 + k `periods`; 1 more with `graph`",
    upload="n + 1 in each period, for n rows",
    server_sees="each party's leading scores",
    disclosure=merging.MERGE_DISCLOSURE,
    options=VFedPCAOptions,
    script=merging.merge_questions,
    reference="Cheung et al. 2022, algorithms 2 to 5",
    differences="The angles in brackets say how far each difference from the paper turns the first component. Each "
    "party centres its columns (70 degrees). A site's weight is the eigenvalue of `X_i X_i'`, and not divided by "
    "the number of its columns (11 degrees). Signs are aligned, because vectors of opposite signs cancel (64 "
    "degrees). All sites start from the same random vector, so that their order changes nothing (0.001 degrees). "
    "All differences together: 78 degrees, and 0 to 77 with other seeds. " + merging.DIFFERENCES,
    examples=({}, {"graph": "ring"}),
    split="columns",
    exposes="scores",
    beyond_moments=merging.BEYOND_MOMENTS,
)


class VFedPCA(merging.MergeStrategy):
    """Strategy of VFedPCA, which merges the leading left singular vectors of the parties' own columns.

    One step of the power method at party i is ``u <- X_i X_i' u / |X_i X_i' u|``. The merged direction is ``sum_i
    w_i u_i`` with ``w_i = theta_i / sum_j theta_j``, of length 1. Later components come from the columns without the
    earlier directions (Cheung et al. 2022, Vertical Federated Principal Component Analysis and Its Kernel Extension on
    Feature-wise Distributed Data, algorithms 2 to 5).
    """

    card = CARD
