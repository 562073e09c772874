"""VERTICAL: the exact PCA of rows whose columns lie at different parties.

With X = [X_1, ..., X_p] centred by columns, scores are eigenvectors U of ``A = X X' = sum X_i X_i'`` times the roots
of their eigenvalues theta. ``solver`` says how the server learns them; a party's loadings ``X_i' U / sqrt(theta)`` stay
at home.

- ``krylov``: in each round the server sends a block Q (n x b) and every party returns ``X_i (X_i' Q)``; only the sum
  over the parties is used. Block Krylov with Rayleigh-Ritz, until a certificate bounds the largest angle to the exact
  scores by ``tolerance`` degrees, or the rank is exhausted: it appends only what exceeds rounding
  (`fedpca_flwr.maths.krylov`). The result does not depend on how the columns are split.
- ``gram``: every party sends ``X_i X_i'``, once: n (n + 1) / 2 values, all inner products of its rows.
- ``merge``: every party sends its leading ``U_i S_i`` (n x ``rank``, 2 k by default), once; a second round measures the
  energies. Exact where ``rank`` is not below any party's number of columns.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits
from scipy.linalg import qr

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.block_iteration import BlockIteration, measured, shortfall_notes
from fedpca_flwr.maths.columns import gram_product, leading_directions, merged_directions, packed_gram
from fedpca_flwr.maths.eigen import frobenius, leading_eigenpairs
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import unpack
from fedpca_flwr.model.solution import check_rounds
from fedpca_flwr.protocol.card import MethodCard, Shown
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Question, Questions, Sum, Total
from fedpca_flwr.questions.columns import (
    bounded,
    energies_phase,
    measured_pairs,
    measures_phase,
    projection_phase,
    rows_and_energy,
    rows_phases,
)
from fedpca_flwr.questions.columns_run import ColumnsClient, ColumnsOptions, ColumnsStrategy, ScoresSolution
from fedpca_flwr.questions.products import require_possible


class VerticalOptions(ColumnsOptions):
    """Options of VERTICAL."""

    solver: Literal["krylov", "gram", "merge"] = "krylov"
    """How the server learns the scores: see above."""
    block_size: Annotated[int, Limits(ge=0, examples=[1, 2, "k", "k+1", 1000])] = 0
    """Columns b of a block of ``krylov``; 0: n-components + 5."""
    tolerance: Annotated[float, Limits(gt=0, le=90, examples=[1e-9, 1e-6, 1e-3, 1.0, 30.0])] = 1e-6
    """Certified largest angle to the exact scores at which ``krylov`` stops, in degrees."""
    max_rounds: Annotated[Count, Limits(examples=[1, 2, 3, 5, 100])] = 100
    """Of ``krylov``."""
    rank: Annotated[int, Limits(ge=0, examples=[1, "k", 100])] = 0
    """Directions that each party sends to ``merge``; 0: 2 n-components."""

    def width(self, rows: int) -> int:
        """Columns of a block of ``krylov``."""
        return min(self.block_size or self.n_components + 5, rows)

    def directions_sent(self, rows: int) -> int:
        """Directions that each party sends to ``merge``."""
        return min(self.rank or 2 * self.n_components, rows)

    def products(self, rows: int) -> int:
        asked = {"krylov": self.max_rounds * self.width(rows), "merge": self.directions_sent(rows), "gram": 0}
        return asked[self.solver]

    @property
    def exposes(self) -> str:
        return "inner products" if self.solver == "gram" else ""


def phases(config: RunConfig, options: VerticalOptions) -> Questions:
    """The questions of the run's solver."""
    if options.solver == "merge" and config.transport != "clear":
        raise ConfigError(
            "run-config: 'solver' is 'merge', which is not a sum over the parties; with secure-aggregation it must "
            "be 'krylov' or 'gram'"
        )
    if options.solver == "krylov":
        check_rounds(options.max_rounds, options.block_size or options.n_components + 5, options.n_components)
    product = Question(
        asked=Payload((Field("block", ("n", "<=b"), kind="orthonormal columns"),)),
        reply=Payload((Field("product", ("n", "b")),)),
        answer=lambda party, asked: {"product": gram_product(party.own_columns, asked["block"])},
        sizes=lambda public: {"b": public.options.width(public.rows)},
        times=options.max_rounds,
    )
    gram = Question(
        reply=Payload((Field("gram", ("n(n+1)/2",), kind="scatter"),)),
        answer=lambda party, asked: {"gram": packed_gram(party.own_columns.X)},
    )
    merge = Question(
        reply=Payload((Field("directions", ("n", "r")),)),
        answer=_own_directions,
        sizes=lambda public: {"r": public.options.directions_sent(public.rows)},
    )
    solvers: dict[str, Questions] = {
        "krylov": {
            "product": bounded(
                product, lambda energy, asked: {"product": energy * np.linalg.norm(asked["block"], axis=0)}
            )
        },
        "gram": {"gram": bounded(gram, lambda energy, asked: {"gram": energy})},
        "merge": {"merge": merge, **energies_phase()},
    }
    return {**rows_phases(config, measures_phase(options)), **solvers[options.solver], **projection_phase()}


def _own_directions(party: ColumnsClient, asked: Fields) -> Fields:
    """The leading directions of a party's rows over its own columns, times their singular values."""
    return {"directions": leading_directions(party.own_columns.X, party.options.directions_sent(len(party.data)))}


CARD = MethodCard(
    name="vertical",
    title="Exact vertical PCA",
    exact=True,
    result="to a certified angle (`tolerance`); `solver='merge'` approximate",
    rounds="1 + until certified; `gram` 2, `merge` 3",
    upload="3, then n b in each round, b = k + 5; `gram` n(n+1)/2; `merge` n `rank` + k",
    server_sees="scores of all rows; `gram` their inner products",
    shows=Shown(
        "number of rows and of columns, energy of its columns, its part of each product `X X' Q` (`merge`: its "
        "leading local scores; `gram`: all inner products of rows over its columns); in the last round the energy "
        "that is left",
        "the scores of all rows on the pooled components, and blocks that span them so far",
        "sizes and times of messages, number of rounds",
    ),
    shows_summed=Shown(
        "energy of the columns, each product `X X' Q` (`gram`: all inner products of rows) and the energy that is "
        "left; of each its numbers of rows and of columns, and a digest of its ids",
        "the scores of all rows on the pooled components, and blocks that span them so far",
        "sizes and times of messages, number of rounds",
    ),
    options=VerticalOptions,
    phases=phases,
    reference="Cheung et al. 2022, section 3.1, equations 1 and 2; Golub and Underwood 1977; Musco and Musco 2015",
    examples=({}, {"solver": "gram"}, {"solver": "merge"}),
    split="columns",
    exposes="scores",
)


class Vertical(ColumnsStrategy):
    """VERTICAL; ``measured`` holds the certificate of ``krylov``."""

    card = CARD
    options: VerticalOptions

    @property
    def exact(self) -> bool:
        return (
            super().exact
            if self.options.solver != "merge"
            else max(self.widths) <= self.options.directions_sent(self.n_rows)
        )

    def aggregate(self) -> Generator[Ask, Any, ScoresSolution]:
        yield from rows_and_energy(self)
        solvers = {"krylov": self._krylov, "gram": self._gram, "merge": self._merge}
        return (yield from solvers[self.options.solver]())

    def _gram(self) -> Generator[Ask, Any, ScoresSolution]:
        sums: Total = yield Sum("gram", self.with_energy({}))
        pairs = leading_eigenpairs(unpack(sums["gram"], self.n_rows), self.options.n_components)
        return ScoresSolution(pairs=pairs, total=self.total)

    def _merge(self) -> Generator[Ask, Any, ScoresSolution]:
        k, kept = self.options.n_components, self.options.directions_sent(self.n_rows)
        sent = sum(min(kept, width) for width in self.widths)
        if sent < k:
            raise ConfigError(
                f"run-config: 'rank' is {self.options.rank}: the {len(self.widths)} parties send {sent} "
                f"directions in all, fewer than n-components = {k}; raise 'rank' (0: 2 n-components)"
            )
        replies = yield Ask("merge")
        blocks = sorted((reply.fields["directions"] for reply in replies), key=lambda block: block.tobytes())
        directions, following = merged_directions(blocks, k)
        pairs = yield from measured_pairs(directions)
        return ScoresSolution(pairs=replace(pairs, following=following), total=self.total)

    def _krylov(self) -> Generator[Ask, Any, ScoresSolution]:
        options, n, enough = self.options, self.n_rows, False
        start = random_block(n, options.width(n), self.config.seed)
        found = BlockIteration(start, options.n_components, trace=self.total, tolerance=options.tolerance)
        while not enough and found.asked < options.max_rounds:
            Q, R = qr(found.block, mode="economic")  # parties answer orthonormal blocks only
            sums: Total = yield Sum("product", self.with_energy({"block": Q}))
            require_possible(sums["product"], Q, self.total)
            error = frobenius(sums.missed.get("product", np.zeros(1))) * float(np.linalg.norm(R, 2))
            enough = found.add(found.block, sums["product"] @ R, error=error)
        self.certificate = found.certificate
        return ScoresSolution(
            pairs=found.pairs,
            total=self.total,
            notes=shortfall_notes(found, f"max-rounds = {options.max_rounds}"),
            measured=measured(found),
        )
