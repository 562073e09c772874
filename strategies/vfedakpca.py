"""VFedAKPCA: VFedPCA with the leading eigenvector of each site's own kernel matrix (Cheung et al. 2022).

VFedAKPCA averages the sites' own kernel PCAs, and is not the kernel PCA of all columns. In each period a site sends
a vector u, with one value for each row, and a weight. The merged vector has one value for each row, too, and ``X_i' u``
one for each column. ``variant="paper"`` is the paper's algorithm: power iterations on kernel matrices without centring.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import columns as algebra
from fedpca_flwr.maths.eigen import largest_eigenpair
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions import merging


class VFedAKPCAOptions(merging.MergeOptions):
    """Options of VFedAKPCA: the kernel, and the merging of directions."""

    published: ClassVar[Mapping[str, Any]] = {
        "center_kernel": False,
        "sigmoid_sign": "minus",
        "party_weights": "eigenvalue",
        "periods": 10,
        "local_iterations": 10,
        "start": "own",
        "warm_start": "previous",
        "align_signs": False,
    }

    kernel: algebra.KernelName = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0, examples=[0.0, 0.01, 1.0])] = 0.0
    """Scale of the kernel. With 0 it is 1 / (f var X) of each site's own f columns. The paper has 1 / (2 sigma^2), and
    no value of sigma."""
    coef0: Annotated[float, Limits(examples=[0.0, 1.0, -1.0])] = 1.0
    """Constant of the kernels ``sigmoid`` and ``polynomial``."""
    degree: Annotated[method.Count, Limits(examples=[1, 2, 3])] = 3
    """Degree of the kernel ``polynomial``."""
    sigmoid_sign: Literal["plus", "minus"] = "plus"
    """Sign of gamma in the kernel ``sigmoid``. The paper prints a minus (equation 12); the authors' program has a
    plus."""
    center: bool = False
    """Each site subtracts the means of its own columns first."""
    center_kernel: bool = True
    """Each site centres its kernel matrix in feature space. The paper does not (equation 9)."""
    party_weights: Literal["root", "eigenvalue"] = "root"
    """Weight of a site's vector: the root of the eigenvalue, as in the authors' program, and 0 if that is negative; or
    the eigenvalue with its sign (equation 13)."""
    local_iterations: Annotated[int, Limits(ge=0, examples=[0, 1, 10])] = 0
    """Steps L of the power method in each period (equation 5). With 0 the eigenvector is exact."""
    periods: Annotated[method.Count, Limits(examples=[1, 2, 4])] = 1
    """Communication periods for each component."""

    @override
    def local_direction(self, X: method.Array, start: method.Array) -> tuple[float, method.Array]:
        """Return the weight and the leading eigenvector (n,) of the columns' kernel matrix.

        The weight is 0 for an eigenvalue within rounding. Power iterations begin at ``start``; an exact eigenvector has
        no use for it. Raise DataError for a kernel beyond float64.
        """
        gamma = self.gamma or algebra.default_gamma(X)
        signed = -gamma if (self.kernel, self.sigmoid_sign) == ("sigmoid", "minus") else gamma
        K = algebra.Kernel(self.kernel, signed, self.coef0, self.degree).matrix(X)
        rounding = len(X) * np.finfo(np.float64).eps * _finite_size(K)
        K = algebra.centre_kernel(K) if self.center_kernel else K
        steps = self.local_iterations
        value, vector = algebra.power_iteration(K.dot, start, steps) if steps else largest_eigenpair(K)
        weight = max(0.0, value) ** 0.5 if self.party_weights == "root" else value
        return (weight if abs(value) > rounding else 0.0), vector


def _finite_size(K: method.Array) -> float:
    """Return a kernel matrix's largest entry in size; raise DataError if float64 cannot hold sums and eigenvalues."""
    size = max(float(K.max()), -float(K.min()))
    if not math.isfinite(size * float(len(K)) ** 2):  # no sum of entries or eigenvalues is larger
        raise method.DataError("the kernel of the rows is outside the range of float64: lower 'gamma' or 'degree'")
    return size


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
    reference="Cheung et al. 2022, section 3.3, algorithms 1 to 5",
    differences="The angles in brackets say how far each difference from the paper turns the first component. Each "
    "party centres its kernel matrix, as kernel PCA does (73 degrees). There is one period, because a later period "
    "has rows in one dimension (9 degrees). Eigenvectors are exact, and not from 10 power iterations (0.8 degrees). "
    "They are weighted by the roots of the eigenvalues, as in the authors' program (0.8 degrees), and signs are "
    "aligned (0 degrees). The sigmoid kernel has +gamma, as in the authors' program, and not -gamma as printed (90 "
    "degrees with gamma 0.05). All differences together: 77 degrees. " + merging.DIFFERENCES,
    examples=({}, {"graph": "ring"}),
    split="columns",
    exposes="scores",
    variance_base="the squares of all columns, about zero unless center=true",
    beyond_moments=merging.BEYOND_MOMENTS,
)


class VFedAKPCA(merging.MergeStrategy):
    """Strategy of VFedAKPCA, which merges the leading eigenvectors of the parties' kernels.

    Party i centres its kernel matrix ``K_i[r, s] = k(x_r, x_s)`` of the rows over its own columns in feature space, and
    sends the leading eigenvector, weighted by the root of its eigenvalue; options give the paper's choices (Cheung et
    al. 2022, Vertical Federated Principal Component Analysis and Its Kernel Extension on Feature-wise Distributed Data,
    sections 3.3 to 3.9).
    """

    card = CARD
