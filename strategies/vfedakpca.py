"""VFedAKPCA: as VFedPCA, with the leading eigenvector of each party's own kernel matrix (Cheung et al. 2022).

The merged vector mixes rows: ``X_i' u`` is the authors' "extraction", one value a column. For comparison:
`vertical-kernel` gives the kernel PCA of all columns.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Count
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import Kernel, Name, centred, default_gamma, kernel_pairs, packed_distances, packed_gram
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.questions.columns import finite_kernel
from fedpca_flwr.questions.merging import BEYOND_MOMENTS, SHOWS, MergeOptions, MergeStrategy, merge_phases


class VFedAKPCAOptions(MergeOptions):
    """Options of VFedAKPCA."""

    kernel: Name = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0, examples=[0.0, 0.01, 1.0])] = 0.0
    """0: 1 / (f var X) of each party's own columns."""
    coef0: Annotated[float, Limits(examples=[0.0, 1.0, -1.0])] = 1.0
    """Of ``sigmoid`` and ``polynomial``."""
    degree: Annotated[Count, Limits(examples=[1, 2, 3])] = 3
    """Of ``polynomial``."""
    center: bool = False
    """Each party subtracts the means of its own columns first; the kernel is centred in any case."""
    periods: Annotated[Count, Limits(examples=[1, 2, 4])] = 1
    """Communication periods for each component."""

    def local(self, X: Array, start: Array) -> tuple[float, Array]:
        """Of its own kernel matrix, weighted by the root of the eigenvalue (the authors')."""
        entries = np.array([float(X.shape[1])]), np.array([X.mean()]), np.array([X.var()])
        kernel = Kernel(self.kernel, self.gamma or default_gamma(*entries), self.coef0, self.degree)
        packed = packed_distances(X) if kernel.of_distances else packed_gram(X)
        K = finite_kernel(kernel.matrix(packed, len(X)))
        pairs, _, _ = kernel_pairs(centred(K), 1)
        rounding = len(X) * np.finfo(np.float64).eps * float(np.abs(K).max())
        value = float(pairs.values[0]) if pairs.values[0] > rounding else 0.0
        return value**0.5, pairs.vectors[:, 0]


CARD = MethodCard(
    name="vfedakpca",
    title="VFedAKPCA",
    exact=False,
    result="for comparison",
    rounds="2 + k `periods`; with `graph` 3 + k `periods`",
    upload="n + 1 in each period",
    server_sees="each party's leading scores",
    shows=SHOWS,
    options=VFedAKPCAOptions,
    phases=merge_phases,
    reference="Cheung et al. 2022, section 3.3, algorithms 1 and 2",
    examples=({}, {"graph": "ring"}),
    split="columns",
    exposes="scores",
    own_total="that of the kernels",
    beyond_moments=BEYOND_MOMENTS,
)


class VFedAKPCA(MergeStrategy):
    """VFedAKPCA."""

    card = CARD
