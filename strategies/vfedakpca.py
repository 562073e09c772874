"""VFedAKPCA: VFedPCA with the leading eigenvector of each party's own kernel matrix (Cheung et al. 2022).

VFedAKPCA averages the parties' own kernel PCAs, and is not the kernel PCA of all columns. In each period a party sends
a vector u, with one value for each row, and a weight. The merged vector mixes rows: ``X_i' u``, one value for each
column, is the authors' "extraction".
"""

from typing import Annotated

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import columns as algebra
from fedpca_flwr.maths.eigen import largest_eigenpair
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions import merging


class VFedAKPCAOptions(merging.MergeOptions):
    """Options of VFedAKPCA: the kernel, and the merging of directions."""

    kernel: algebra.KernelName = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0, examples=[0.0, 0.01, 1.0])] = 0.0
    """Scale of the kernel. With 0 it is 1 / (f var X) of each party's own f columns."""
    coef0: Annotated[float, Limits(examples=[0.0, 1.0, -1.0])] = 1.0
    """Constant of the kernels ``sigmoid`` and ``polynomial``."""
    degree: Annotated[method.Count, Limits(examples=[1, 2, 3])] = 3
    """Degree of the kernel ``polynomial``."""
    center: bool = False
    """Each party subtracts the means of its own columns first. The kernel matrix is always centred."""
    periods: Annotated[method.Count, Limits(examples=[1, 2, 4])] = 1
    """Communication periods for each component."""

    @override
    def local_direction(self, X: method.Array, start: method.Array) -> tuple[float, method.Array]:
        """Return the root of the leading eigenvalue of the columns' centred kernel matrix, and its eigenvector (n,).

        The root is 0 for an eigenvalue within rounding; ``start`` is not used. Raise DataError for a kernel beyond
        float64.
        """
        # the authors weight a vector by the root of its eigenvalue
        kernel = algebra.Kernel(self.kernel, self.gamma or algebra.default_gamma(X), self.coef0, self.degree)
        K = _require_finite(kernel.matrix(X))
        value, vector = largest_eigenpair(algebra.centre_kernel(K))
        rounding = len(X) * np.finfo(np.float64).eps * float(np.abs(K).max())
        return (value**0.5 if value > rounding else 0.0), vector


def _require_finite(K: method.Array) -> method.Array:
    """Return the kernel matrix (n, n); raise DataError if float64 cannot hold its sums and eigenvalues."""
    with np.errstate(over="ignore"):
        max_sum = np.abs(K).max() * float(len(K)) ** 2  # no sum of entries or eigenvalues is larger
    if not np.isfinite(max_sum):
        raise method.DataError("the kernel of the rows is outside the range of float64: lower 'gamma' or 'degree'")
    return K


CARD = method.MethodCard(
    name="vfedakpca",
    title="VFedAKPCA",
    exact=False,
    result="",
    rounds="2 + k `periods`; 1 more with `graph`",
    upload="n + 1 in each period, for n rows",
    server_sees="each party's leading scores",
    disclosure=merging.MERGE_DISCLOSURE,
    options=VFedAKPCAOptions,
    script=merging.merge_questions,
    reference="Cheung et al. 2022, section 3.3, algorithms 1 and 2",
    examples=({}, {"graph": "ring"}),
    split="columns",
    exposes="scores",
    variance_base="the squares of all columns, about zero unless center=true",
    beyond_moments=merging.BEYOND_MOMENTS,
)


class VFedAKPCA(merging.MergeStrategy):
    """Strategy of VFedAKPCA, which merges the leading eigenvectors of the parties' kernels.

    Party i centres its kernel matrix ``K_i[r, s] = k(x_r, x_s)`` of the rows over its own columns in feature space, and
    sends the leading eigenvector, weighted by the root of its eigenvalue (Cheung et al. 2022, Vertical Federated
    Principal Component Analysis and Its Kernel Extension on Feature-wise Distributed Data, section 3.3).
    """

    card = CARD
