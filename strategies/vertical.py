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

from typing import Annotated, Literal

from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Count
from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.columns import gram_product, leading_directions, merged_directions, packed_gram
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import unpack
from fedpca_flwr.solution import check_rounds
from strategies.base import MethodCard
from strategies.columns import ENERGIES, ROWS, ColumnsClient, ColumnsOptions, ColumnsStrategy, summed


class VerticalOptions(ColumnsOptions):
    """Options of VERTICAL."""

    solver: Literal["krylov", "gram", "merge"] = "krylov"
    """How the server learns the scores: see above."""
    block_size: Annotated[int, Limits(ge=0)] = 0
    """Columns b of a block of ``krylov``; 0: n-components + 5."""
    tolerance: Annotated[float, Limits(gt=0, le=90)] = 1e-6
    """Certified largest angle to the exact scores at which ``krylov`` stops, in degrees."""
    max_rounds: Count = 100
    """Of ``krylov``."""
    rank: Annotated[int, Limits(ge=0)] = 0
    """Directions that each party sends to ``merge``; 0: 2 n-components."""


CARD = MethodCard(
    name="vertical",
    title="Exact vertical PCA",
    exact=True,
    result="to a certified angle (`tolerance`); `solver='merge'` approximate",
    rounds=101,
    in_rounds="1 + until certified; `gram` 2, `merge` 3",
    upload="3, then n b in each round, b = k + 5; `gram` n(n+1)/2; `merge` n `rank` + k",
    server_sees="scores of all rows; `gram` their inner products",
    options=VerticalOptions,
    payloads={
        "rows": ROWS,
        "product": Payload((Field("product", ("n", "b")),)),
        "gram": Payload((Field("gram", ("n(n+1)/2",), kind="scatter"),)),
        "merge": Payload((Field("directions", ("n", "r")),)),
        "energies": ENERGIES,
    },
    reference="paper 004, section 3.1, equations 1 and 2; Golub and Underwood 1977; Musco and Musco 2015",
    split="columns",
    exposes="scores",
)


class Vertical(ColumnsStrategy):
    """VERTICAL; ``measured`` holds the certificate of ``krylov``."""

    card = CARD
    options: VerticalOptions

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        if options.solver == "krylov":
            check_rounds(options.max_rounds, options.block_size or options.n_components + 5, options.n_components)
        self._found: BlockIteration | None = None
        self._merged: NDArray | None = None

    @property
    def rounds(self) -> int:
        return 1 + {"krylov": self.options.max_rounds, "gram": 1, "merge": 2}[self.options.solver]

    @property
    def exact(self) -> bool:
        return super().exact if self.options.solver != "merge" else max(self._widths) <= self._rank

    def met(self, replies):
        k, widths = self.options.n_components, [int(reply.fields["features"]) for reply in replies]
        directions = sum(min(self._rank, width) for width in widths)
        if self.options.solver == "merge" and directions < k:
            raise ConfigError(
                f"run-config: 'rank' is {self.options.rank}: the {len(widths)} parties send {directions} directions in "
                f"all, fewer than n-components = {k}; raise 'rank' (0: 2 n-components)"
            )

    def ask(self):
        options = self.options
        if options.solver == "gram":
            return "gram", [], {}
        if self._merged is not None:
            return "energies", [self._merged], {"k": options.n_components}
        if options.solver == "merge":
            return "merge", [], {"r": self._rank}
        block = self._iteration().block
        return "product", [block], {"b": block.shape[1]}

    def aggregate(self, replies, *, last):
        if self.options.solver != "merge":
            return self.take(summed(replies), last=last)
        if self._merged is not None:
            return self.conclude_measured(self._merged, replies)
        blocks = sorted((reply.fields["directions"] for reply in replies), key=lambda block: block.tobytes())
        self._merged = merged_directions(blocks, self.options.n_components)
        return None, {}

    def take(self, fields: Fields, *, last: bool, error: float = 0.0):
        """Go on from a sum over the parties, of which ``error`` bounds the Frobenius norm of what is wrong in it."""
        if self.options.solver == "gram":
            return self._solve(fields["gram"])
        return self._iterate(fields["product"], error, last=last)

    # Inside

    @property
    def _rank(self) -> int:
        return min(self.options.rank or 2 * self.options.n_components, self.n_rows)

    def _solve(self, packed: NDArray):
        return self.conclude(leading_eigenpairs(unpack(packed, self.n_rows), self.options.n_components), self._total)

    def _iteration(self) -> BlockIteration:
        if self._found is None:
            b = min(self.options.block_size or self.options.n_components + 5, self.n_rows)
            self._found = BlockIteration(
                random_block(self.n_rows, b, self.config.seed),
                self.options.n_components,
                trace=self._total,
                tolerance=self.options.tolerance,
            )
        return self._found

    def _iterate(self, product: NDArray, error: float, *, last: bool):
        """The next block, or the end, from ``A`` times the block that was asked for, (n, b)."""
        found = self._iteration()
        if not (found.add(found.block, product, error=error) or last):
            return None, {}
        self.certificate = found.certificate
        notes = found.shortfall(f"max-rounds = {self.options.max_rounds}")
        return self.conclude(found.pairs, self._total, notes=notes, measured={"certified angle": found.told})


class VerticalClient(ColumnsClient):
    """Returns its part of what the solver adds."""

    @property
    def exposes(self) -> str:
        return "inner products" if self.options.solver == "gram" else self.card.exposes

    def part(self, phase: str, received: list[NDArray]) -> Fields:
        X = self.block.X
        if phase == "gram":
            return {"gram": packed_gram(X)}
        if phase == "merge":
            return {"directions": leading_directions(X, self.sizes["r"])}
        return {"product": gram_product(X, received[0])}
