"""VERTICAL-KERNEL: the exact kernel PCA of rows whose columns lie at different parties.

Squared distances (``rbf``) and inner products (``sigmoid``, ``polynomial``, ``linear``) of rows are sums over parties.
The server adds them, applies the kernel, centres it in feature space and takes its leading eigenpairs: what kernel PCA
on all columns gives. Only positive eigenvalues count (``sigmoid`` has negative ones).

With ``landmarks`` = c > 0 every party sends them to c rows only, n c values instead of n (n + 1) / 2, and the result is
Nystrom's approximation, for kernels without negative eigenvalues.

``gamma`` 0 is ``1 / (m var X)`` of all columns together. There are no loadings, and no scores of new rows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import (
    KERNEL_ROUNDING,
    Kernel,
    Name,
    centred,
    columns_of,
    default_gamma,
    kernel_pairs,
    nystrom_pairs,
    packed_distances,
    packed_gram,
    to_landmarks,
)
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import MethodCard, Shown
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Program, Question, Questions, Sum, Total
from fedpca_flwr.questions.columns import (
    DIRECTIONS,
    ENERGY,
    SINGULAR,
    Saying,
    aligned_rows,
    bounded,
    finite_kernel,
    keeping_phase,
    measures_phase,
    own_energy,
    require_distances,
    resolved,
    rows_phases,
    total_energy,
)
from fedpca_flwr.questions.columns_run import ColumnsClient, ColumnsOptions, ColumnsStrategy, ScoresSolution


class KernelOptions(ColumnsOptions):
    """Options of VERTICAL-KERNEL."""

    kernel: Name = "rbf"
    """``rbf``: exp(-gamma |x - y|^2); ``sigmoid``: tanh(gamma x'y + coef0); ``polynomial``: (gamma x'y + coef0)^degree;
    ``linear``: x'y."""
    gamma: Annotated[float, Limits(ge=0, examples=[0.0, 0.01, 1.0])] = 0.0
    """0: 1 / (m var X)."""
    coef0: Annotated[float, Limits(examples=[0.0, 1.0, -1.0])] = 1.0
    """Of ``sigmoid`` and ``polynomial``."""
    degree: Annotated[Count, Limits(examples=[1, 2, 3])] = 3
    """Of ``polynomial``."""
    center: bool = False
    """Each party subtracts the means of its own columns first; the kernel is centred in any case."""
    landmarks: Annotated[int, Limits(ge=0, examples=[0, "k+1", "n/2", "n"])] = 0
    """Rows to which distances are taken; 0: all."""

    @property
    def function(self) -> Kernel:
        """The kernel, with ``gamma`` where it is given."""
        return Kernel(self.kernel, self.gamma, self.coef0, self.degree)

    @property
    def asked(self) -> Literal["distances", "products", "landmarks"]:
        """What the parties add up: the phase, and its field."""
        if self.landmarks:
            return "landmarks"
        return "distances" if self.function.of_distances else "products"


def phases(config: RunConfig, options: KernelOptions) -> Questions:
    """The questions of the run's kernel."""
    if options.landmarks and not options.function.semidefinite:
        raise ConfigError(
            f"run-config: 'landmarks' is {options.landmarks}, but the kernel '{options.kernel}' may have negative "
            "eigenvalues, for which the approximation is wrong without notice; set landmarks=0"
        )
    known = {
        "distances": bounded(
            Question(
                reply=Payload((Field("distances", ("n(n-1)/2",)),)),
                answer=lambda party, asked: {"distances": packed_distances(_compared(party))},
            ),
            lambda energy, asked: {"distances": 2 * energy},
        ),
        "products": bounded(
            Question(
                reply=Payload((Field("products", ("n(n+1)/2",), kind="scatter"),)),
                answer=lambda party, asked: {"products": packed_gram(party.own_columns.X)},
            ),
            lambda energy, asked: {"products": energy},
        ),
        "landmarks": bounded(
            Question(
                asked=Payload((Field("places", ("c",), "int64", kind="size"),)),
                reply=Payload((Field("landmarks", ("n", "c")),)),
                answer=_to_landmarks,
                sizes=lambda public: {"c": public.options.landmarks},
            ),
            lambda energy, asked: {"landmarks": 2 * energy},
        ),
    }
    measures = (ENERGY, Field("level", ()), Field("spread", (), kind="size"))
    sums = ("energy",) if options.gamma else ("energy", "sum")
    centred = ["energy"] * options.function.of_distances
    energy = measures_phase(options, names=sums, answer=_energy_and_sum, centred=centred)
    begin = rows_phases(config, energy, measures=Saying(measures, _of_entries))
    if "energy" in begin and not options.gamma:
        begin = {**begin, "spread": measures_phase(options, Field("level", ()), names=("spread",), answer=_spread)}
    last = keeping_phase(lambda asked: asked["directions"] * asked["singular"], DIRECTIONS, SINGULAR)
    return {**begin, options.asked: known[options.asked], **last}


def _of_entries(party: ColumnsClient, asked: Fields) -> Fields:
    """Energy of a party's columns, and mean and variance of all their entries together."""
    X = party.own_columns.X
    return {**own_energy(party, asked), "level": np.asarray(X.mean()), "spread": np.asarray(X.var())}


def _energy_and_sum(party: ColumnsClient, asked: Fields) -> Fields:
    """Energy of what is compared, and the sum of all entries."""
    compared = _compared(party)
    return {"energy": np.asarray(np.vdot(compared, compared)), "sum": np.asarray(party.own_columns.X.sum())}


def _spread(party: ColumnsClient, asked: Fields) -> Fields:
    """Squares of all entries less a level: of their own mean it is subtracted, and of no single entry."""
    X = party.own_columns.X
    mean = X.mean()
    deviation = X - mean
    return {"spread": np.asarray(np.vdot(deviation, deviation) + X.size * (mean - asked["level"]) ** 2)}


def _compared(party: ColumnsClient) -> Array:
    """What distances and inner products are of: distances do not change when the columns are centred, but lose fewer
    digits, and their limit is the less."""
    of_distances = party.options.function.of_distances
    return columns_of(party.data, scale=party.options.scale).X if of_distances else party.own_columns.X


def _to_landmarks(party: ColumnsClient, asked: Fields) -> Fields:
    """Distances of the rows from landmarks, or inner products with them."""
    places, rows = asked["places"], len(party.data)
    if places.max() >= rows or len(set(places.tolist())) < places.size:
        raise ContractError(f"the server's {places.size} landmarks are not different ones of the {rows} rows")
    return {"landmarks": to_landmarks(_compared(party), places, distances=party.options.function.of_distances)}


CARD = MethodCard(
    name="vertical-kernel",
    title="Exact vertical kernel PCA",
    exact=True,
    result="a kernel PCA; with `landmarks` approximate",
    rounds="2",
    upload="n(n-1)/2 or n(n+1)/2; `landmarks` c: n c",
    server_sees="all distances or inner products of rows",
    shows=Shown(
        "number of rows and of columns, mean and spread of all its entries together, all distances or inner "
        "products of rows over its columns (`landmarks`: those to some rows)",
        "the scores of all rows, number and choice of landmarks",
    ),
    shows_summed=Shown(
        "energy of the columns, mean and spread of all entries, all distances or inner products of rows "
        "(`landmarks`: those to some rows); of each its numbers of rows and of columns, and a digest of its ids",
        "the scores of all rows, number and choice of landmarks",
    ),
    options=KernelOptions,
    phases=phases,
    reference="Cheung et al. 2022, equations 7 to 12; Schölkopf, Smola, Müller 1998; Williams and Seeger 2001",
    split="columns",
    examples=({}, {"kernel": "linear"}, {"landmarks": 20}),
    exposes="inner products",
    own_total="that of the kernel",
)


class VerticalKernel(ColumnsStrategy):
    """VERTICAL-KERNEL."""

    card = CARD
    options: KernelOptions

    @property
    def exact(self) -> bool:
        return not self.options.landmarks

    def aggregate(self) -> Generator[Ask, Any, ScoresSolution]:
        replies = yield from aligned_rows(self)
        places = self._places()
        kernel = replace(self.options.function, gamma=(yield from self._gamma(replies)))
        asked = {"places": places} if self.options.landmarks else {}
        sums: Total = yield Sum(self.options.asked, self.with_energy(asked))
        added, k = sums[self.options.asked], self.options.n_components
        missed = float(np.max(sums.missed.get(self.options.asked, 0.0)))
        if kernel.of_distances:
            require_distances(added, missed)
        if self.options.landmarks:
            K = finite_kernel(kernel(added))
            found = nystrom_pairs(K, places, k)
        else:
            K = finite_kernel(kernel.matrix(added, self.n_rows))
            pairs, total, positive = kernel_pairs(centred(K), k)
            found = replace(pairs, error=kernel.error(added, self.n_rows, missed)), total, positive
        return self._solution(*found, kernel=kernel, size=float(np.abs(K).max()))

    def projected(self, model: PCAModel, solution: ScoresSolution) -> Program:
        # nobody can tell the error in feature space at home
        yield Ask("project", {"directions": solution.pairs.vectors, "singular": model.singular_values_})

    # Inside

    def _places(self) -> NDArray[np.int64]:
        """The rows that are landmarks."""
        n, c = self.n_rows, self.options.landmarks
        if c and not self.options.n_components < c <= n:
            raise ConfigError(
                f"run-config: 'landmarks' is {c}, expected more than n-components = {self.options.n_components} and at "
                f"most {n}, the rows"
            )
        return np.sort(np.random.default_rng(self.config.seed).choice(n, c, replace=False))

    def _gamma(self, replies: list[Reply]) -> Generator[Ask, Any, float]:
        """The run's, or ``1 / (m var X)``; and the energy of all columns."""
        sums = yield from total_energy(self, replies)
        if self.options.gamma:
            return self.options.gamma
        if sums is None:
            received = [np.array([reply.fields[name] for reply in replies]) for name in ("features", "level", "spread")]
            return default_gamma(*received)
        level = float(sums["sum"]) / (self.n_rows * self.columns)
        spread: Total = yield Sum("spread", {"columns": np.asarray(self.columns), "level": np.asarray(level)})
        return self.n_rows / resolved(self, spread, "spread")

    def _solution(
        self, pairs: Eigenpairs, total: float, positive: int, *, kernel: Kernel, size: float
    ) -> ScoresSolution:
        n, k = self.n_rows, self.options.n_components
        if total <= n * np.finfo(np.float64).eps * size:
            raise DataError(
                "there is no variance to explain: the kernel of any two rows is the same, up to rounding. The rows are "
                "identical, or it cannot tell them apart: set center=true, or another 'gamma' (it is "
                f"{kernel.gamma:.2g})"
            )
        may_be = pairs.values[k - 1 : k].sum() + pairs.error > KERNEL_ROUNDING * pairs.values[0]
        if positive < k < n and may_be and self.transport.sums_only:
            raise ConfigError(
                f"run-config: 'n-components' is {k}, but beside their largest value the fixed point of secure sums "
                "does not tell these rows apart well enough: set scale=true, lower 'gamma', or run in clear"
            )
        if positive < k:
            few = self.options.landmarks
            change = f"'landmarks' = {few}, of which some are alike" if few else "'gamma' and 'coef0'"
            raise ConfigError(
                f"run-config: 'n-components' is {k}, but the kernel '{kernel.name}' of these rows has "
                f"{positive} positive eigenvalues; ask for so many at most, or change {change}"
            )
        notes = []
        if pairs.values[0] * (n - 1) < 3 * total:
            notes.append("the kernel matrix is nearly the identity, and its components mean little: lower 'gamma'")
        return ScoresSolution(pairs=pairs, total=total, notes=notes, measured={"gamma": kernel.gamma})
