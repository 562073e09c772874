"""VERTICAL-KERNEL: the exact kernel PCA of rows whose columns lie at different parties.

Squared distances (``rbf``) and inner products (``sigmoid``, ``polynomial``, ``linear``) of rows are sums over parties.
The server adds them, applies the kernel, centres it in feature space and takes its leading eigenpairs: what kernel PCA
on all columns gives. Only positive eigenvalues count (``sigmoid`` has negative ones).

With ``landmarks`` = c > 0 every party sends them to c rows only, n c values instead of n (n + 1) / 2, and the result is
Nystrom's approximation, for kernels without negative eigenvalues.

``gamma`` 0 is ``1 / (m var X)`` of all columns together. There are no loadings, and no scores of new rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.columns import packed_gram
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.maths.kernels import (
    Kernel,
    Name,
    centred,
    inverse_spread,
    kernel_pairs,
    nystrom_pairs,
    packed_distances,
    to_landmarks,
)
from strategies.base import MethodCard, Reply
from strategies.columns import ROWS, ColumnsClient, ColumnsOptions, ColumnsStrategy, summed


class KernelOptions(ColumnsOptions):
    """Options of VERTICAL-KERNEL."""

    kernel: Name = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0)] = 0.0
    """0: 1 / (m var X)."""
    coef0: float = 1.0
    """Of ``sigmoid`` and ``polynomial``."""
    degree: Count = 3
    """Of ``polynomial``."""
    center: bool = False
    """Each party subtracts the means of its own columns first; the kernel is centred in any case."""
    landmarks: Annotated[int, Limits(ge=0)] = 0
    """Rows to which distances are taken; 0: all."""


CARD = MethodCard(
    name="vertical-kernel",
    title="Exact vertical kernel PCA",
    exact=True,
    result="a kernel PCA; with `landmarks` approximate",
    rounds=2,
    upload="n(n-1)/2 or n(n+1)/2; `landmarks` c: n c",
    server_sees="all distances or inner products of rows",
    options=KernelOptions,
    payloads={
        "rows": Payload((*ROWS.fields, Field("level", ()), Field("spread", ()))),
        "distances": Payload((Field("distances", ("n(n-1)/2",)),)),
        "products": Payload((Field("products", ("n(n+1)/2",), kind="scatter"),)),
        "landmarks": Payload((Field("landmarks", ("n", "c")),)),
    },
    reference="paper 004, section 3.3, equations 7 to 12; Schölkopf, Smola, Müller 1998; Williams and Seeger 2001",
    split="columns",
    exposes="inner products",
)


class VerticalKernel(ColumnsStrategy):
    """VERTICAL-KERNEL."""

    card = CARD
    options: KernelOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._kernel = Kernel(options.kernel, options.gamma, options.coef0, options.degree)
        if options.landmarks and not self._kernel.semidefinite:
            raise ConfigError(
                f"run-config: 'landmarks' is {options.landmarks}, but the kernel '{options.kernel}' may have negative "
                "eigenvalues, for which the approximation is wrong without notice; set landmarks=0"
            )

    @property
    def exact(self) -> bool:
        return not self.options.landmarks

    def met(self, replies: list[Reply]) -> None:
        self.choose_landmarks()
        told = [np.array([reply.fields[name] for reply in replies]) for name in ("features", "level", "spread")]
        self.settle(inverse_spread(*told))

    def choose_landmarks(self) -> None:
        n, c = self.n_rows, self.options.landmarks
        if c and not self.options.n_components < c <= n:
            raise ConfigError(
                f"run-config: 'landmarks' is {c}, expected more than n-components = {self.options.n_components} and at "
                f"most {n}, the rows"
            )
        self._landmarks = np.sort(np.random.default_rng(self.config.seed).choice(n, c, replace=False))

    def settle(self, gamma: float) -> None:
        """Take ``gamma`` where the run does not give one."""
        self._kernel = replace(self._kernel, gamma=self.options.gamma or gamma)

    def ask(self):
        if self.options.landmarks:
            return "landmarks", [self._landmarks], {"c": self.options.landmarks}
        return ("distances" if self._kernel.of_distances else "products"), [], {}

    def aggregate(self, replies, *, last):
        return self.take(summed(replies))

    def take(self, fields: Fields):
        """The model, from a sum over the parties."""
        (sums,), k = fields.values(), self.options.n_components
        if self.options.landmarks:
            found = nystrom_pairs(self._finite(self._kernel(sums)), self._landmarks, k)
        else:
            found = kernel_pairs(centred(self._finite(self._kernel.matrix(sums, self.n_rows))), k)
        return self._end(*found)

    def projected(self, replies: list[Reply]) -> None:
        return None  # nobody can tell the error in feature space at home

    # Inside

    def _finite(self, K: NDArray) -> NDArray:
        if not np.isfinite(K).all():
            raise DataError("the kernel of the rows is outside the range of float64: lower 'gamma' or 'degree'")
        self._size = float(np.abs(K).max())
        return K

    def _end(self, pairs: Eigenpairs, total: float, positive: int):
        n, k = self.n_rows, self.options.n_components
        if total <= n * np.finfo(np.float64).eps * self._size:
            raise DataError(
                "there is no variance to explain: the kernel of any two rows is the same, up to rounding. The rows are "
                "identical, or it cannot tell them apart: set center=true, or another 'gamma' (it is "
                f"{self._kernel.gamma:.2g})"
            )
        if positive < k:
            raise ConfigError(
                f"run-config: 'n-components' is {k}, but the kernel '{self.options.kernel}' of these rows has "
                f"{positive} positive eigenvalues; ask for so many at most, or change 'gamma' and 'coef0'"
            )
        notes = []
        if pairs.values[0] * (n - 1) < 3 * total:
            notes.append("the kernel matrix is nearly the identity, and its components mean little: lower 'gamma'")
        return self.conclude(pairs, total, notes=notes, measured={"gamma": f"{self._kernel.gamma:.6g}"})


class VerticalKernelClient(ColumnsClient):
    """Returns distances or inner products of rows over its own columns."""

    def measures(self) -> Fields:
        X = self.block.X
        return {**super().measures(), "level": np.asarray(X.mean()), "spread": np.asarray(X.var())}

    def part(self, phase: str, received: list[NDArray]) -> Fields:
        X = self.block.X
        if phase == "distances":
            return {"distances": packed_distances(X)}
        if phase == "products":
            return {"products": packed_gram(X)}
        return {"landmarks": to_landmarks(X, received[0], distances=self.options.kernel == "rbf")}

    def project(self, received: list[NDArray]) -> float:
        U, singular = received[:2]
        self.keep_scores(U * singular)
        return 0.0
