"""VERTICAL: the exact PCA of rows whose columns lie at different sites.

Take VERTICAL if each site knows different things about the same people. Site i has the columns X_i of the n rows
X = [X_1, ..., X_p], centred. The scores are the eigenvectors U of ``A = X X' = sum X_i X_i'``, times the roots of
their eigenvalues theta. A site's loadings ``X_i' U / sqrt(theta)`` stay at that site. The option ``solver`` chooses
how the server computes the scores:

- ``krylov``: in each round the server sends a block Q (n x b), and uses only the sum of the products
  ``X_i (X_i' Q)``. The run ends when a certificate bounds the largest angle to the exact scores, or when the blocks
  span the rank of the data (`fedpca_flwr.maths.krylov`).
- ``gram``: every site sends all inner products of its rows, ``X_i X_i'``, once.
- ``merge``: every site sends its leading scores ``U_i S_i`` (n x ``rank``) once, and a second round measures
  their sums of squares. The result is exact if ``rank`` is at least the number of columns of every site.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Limits
from scipy.linalg import qr
from typing_extensions import override

from fedpca_flwr.maths import block_iteration, eigen
from fedpca_flwr.maths import columns as algebra
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import unpack
from fedpca_flwr.model.solution import check_rounds
from fedpca_flwr.questions import columns
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions.digits import digits_questions
from fedpca_flwr.questions.products import require_possible_product


class VerticalOptions(method.Options):
    """Options of VERTICAL: components, centring and scaling, and the solver."""

    solver: Literal["krylov", "gram", "merge"] = "krylov"
    """Way in which the server computes the scores: see above."""
    block_size: Annotated[int, Limits(ge=0, examples=[1, 2, "k", "k+1", 1000])] = 0
    """Columns b of a block of ``krylov``. With 0 it is n-components + 5."""
    tolerance: Annotated[float, Limits(gt=0, le=90, examples=[1e-9, 1e-6, 1e-3, 1.0, 30.0])] = 1e-6
    """Largest angle to the exact components, in degrees, that must be certified before the run ends."""
    max_rounds: Annotated[method.Count, Limits(examples=[1, 2, 3, 5, 100])] = 100
    """Largest number of rounds. A model that stops there states the angle that it reached."""
    rank: Annotated[int, Limits(ge=0, examples=[1, "k", 100])] = 0
    """Directions that each site sends with ``merge``. With 0 it is 2 n-components."""

    def width(self, rows: int) -> int:
        """Return the number of columns of the Krylov block: `block_size`, or n_components + 5, but at most rows."""
        return min(self.block_size or self.n_components + 5, rows)

    def directions_sent(self, rows: int) -> int:
        """Return how many directions each party sends for merging: `rank`, or 2 n_components; at most rows."""
        return min(self.rank or 2 * self.n_components, rows)

    @override
    def max_gram_columns(self, rows: int) -> int:
        """Return the largest number of columns of products with X X' that the solver requests; 0 for "gram"."""
        if self.solver == "merge":
            return self.directions_sent(rows)
        return self.max_rounds * self.width(rows) if self.solver == "krylov" else 0

    @property
    @override
    def exposes(self) -> str:
        """Kind of information on rows beyond scores: "inner products" with the Gram solver, else none."""
        return "inner products" if self.solver == "gram" else ""


def vertical_script(config: method.RunConfig, options: VerticalOptions) -> method.Questions:
    """Return the questions of VERTICAL: row ids, sum of squares, the solver's questions, and the projection.

    Raise ConfigError if all Krylov blocks have fewer columns than n-components, or for a secure sum without `bound`.
    """
    if options.solver == "krylov":
        check_rounds(options.max_rounds, options.block_size or options.n_components + 5, options.n_components)
    product = method.Question(
        request=method.Payload((method.Field("block", ("n", "<=b"), kind="orthonormal columns"),)),
        reply=method.Payload((method.Field("product", ("n", "b")),)),
        answer=_answer_product,
        sizes=lambda public: {"b": public.options.width(public.rows)},
        limits=lambda request, public: {"product": np.sqrt(public.rows) * columns.product_limit(options, public)},
        times=options.max_rounds,
    )
    gram = method.Question(
        reply=method.Payload((method.Field("gram", ("n(n+1)/2",), kind="scatter"),)),
        answer=lambda party, request: {"gram": algebra.packed_gram(party.local_columns.X)},
        limits=lambda request, public: {"gram": columns.product_limit(options, public)},
    )
    merge = method.Question(
        reply=method.Payload((method.Field("directions", ("n", "r")),)),
        answer=_answer_merge,
        sizes=lambda public: {"r": public.options.directions_sent(public.rows)},
        suggestion="set solver='krylov' or 'gram'",
    )
    solvers: dict[str, method.Questions] = {
        "krylov": digits_questions(config, "product", product),
        "gram": digits_questions(config, "gram", gram),
        "merge": {"merge": merge, **columns.energies_questions()},
    }
    begin = columns.rows_questions(config, columns.energy_question(options))
    return {**begin, **solvers[options.solver], **columns.projection_questions()}


def _answer_product(party: method.Client, request: method.Fields) -> method.Fields:
    """Return ``X (X' Q)`` (n, b) for a party's columns X (n, f) and the requested block Q."""
    return {"product": algebra.gram_product(party.local_columns, request["block"])}


def _answer_merge(party: method.Client, request: method.Fields) -> method.Fields:
    """Return the leading left singular vectors of a party's columns, times their singular values (n, r)."""
    rank = party.options.directions_sent(len(party.selection))
    return {"directions": algebra.leading_directions(party.local_columns.X, rank)}


CARD = method.MethodCard(
    name="vertical",
    title="Exact vertical PCA",
    exact=True,
    result="The run certifies an angle of at most `tolerance`. With `solver='merge'`, approximate",
    rounds="1, then until certified; 2 with `gram`, 3 with `merge`",
    upload="3, then n b in each round for n rows and b = k + 5; with `gram` n(n+1)/2, with `merge` n `rank` + k",
    server_sees="scores of all rows; `gram` their inner products",
    disclosure=method.Disclosure(
        "its numbers of rows and columns, the sum of squares of its columns, its part of each product `X X' Q` (with "
        "`merge` its leading scores, with `gram` all inner products of rows over its columns), and in the last round "
        "the squares that the scores leave",
        "the scores of all rows on the pooled components, and the blocks, which span the scores of each round",
    ),
    summed_disclosure=method.Disclosure(
        "the sum of squares of the columns, each product `X X' Q` (with `gram` all inner products of rows), and the "
        "squares that the scores leave; about each site its numbers of rows and columns, and a digest of its ids",
        "the scores of all rows on the pooled components, and the blocks, which span the scores of each round",
    ),
    options=VerticalOptions,
    script=vertical_script,
    reference="Cheung et al. 2022, section 3.1, equations 1 and 2; Golub and Underwood 1977; Musco and Musco 2015",
    differences="The method solves the problem of the paper's equation 2 for centred columns exactly. The paper's "
    "own algorithms are `vfedpca` and `vfedakpca`.",
    examples=({}, {"solver": "gram"}, {"solver": "merge"}),
    split="columns",
    exposes="scores",
)


class Vertical(method.Strategy):
    """Strategy of VERTICAL: scores as eigenvectors of ``X X'``, the sum of the parties' inner products of rows.

    With the SVD ``X = U diag(s) V'`` the scores are ``U diag(s)``, and theta is s^2 (Cheung et al. 2022, section 3.1).
    The solver ``krylov`` finds the leading eigenvectors of A in the span of ``[Q, A Q, A^2 Q, ...]`` for a random block
    Q, by Rayleigh-Ritz (Golub and Underwood 1977; Musco and Musco 2015).
    """

    card = CARD
    options: VerticalOptions

    @property
    @override
    def exact(self) -> bool:
        """True, but for the merge solver only if no party has more columns than directions sent."""
        if self.options.solver == "merge":
            return max(self.widths) <= self.options.directions_sent(self.n_rows)
        return super().exact

    @override
    def aggregate(self) -> method.Fitting:
        """Run the solver after `columns.rows_and_energy`; raise ConfigError, ContractError or DataError as both."""
        yield from columns.rows_and_energy(self)
        solvers = {"krylov": self._krylov, "gram": self._gram, "merge": self._merge}
        return (yield from solvers[self.options.solver]())

    def _gram(self) -> method.Fitting:
        """Ask for the inner products (n, n) of all rows, and return their leading eigenpairs; raise as `_krylov`."""
        sums: method.Total = yield from columns.sum_in_digits(self, "gram", {})
        pairs = eigen.leading_eigenpairs(unpack(sums["gram"], self.n_rows), self.options.n_components)
        return method.Solution(pairs=pairs, total=self.total)

    def _merge(self) -> method.Fitting:
        """Ask for the parties' leading singular directions, merge them, and measure the sum of squares along each.

        Raise ConfigError if the parties send fewer directions than components.
        """
        k, rank = self.options.n_components, self.options.directions_sent(self.n_rows)
        total_directions = sum(min(rank, width) for width in self.widths)
        if total_directions < k:
            raise method.ConfigError(
                f"run-config: 'rank' is {self.options.rank}: the {len(self.widths)} parties send {total_directions} "
                f"directions in all, fewer than n-components = {k}; raise 'rank' (0: 2 n-components)"
            )
        replies = yield method.Round("merge")
        blocks = sorted((reply.fields["directions"] for reply in replies), key=lambda block: block.tobytes())
        directions, following = algebra.merge_directions(blocks, k)
        pairs = yield from columns.pairs_by_energy(directions)
        return method.Solution(pairs=replace(pairs, following=following), total=self.total)

    def _krylov(self) -> method.Fitting:
        """Run block Krylov rounds with products ``X X' Q`` until the angle to the exact scores is certified.

        Without a certificate the run ends after `max_rounds`, with a note. Raise ContractError for impossible products,
        and ConfigError for sums that no digits resolve.
        """
        options, n, converged = self.options, self.n_rows, False
        start = random_block(n, options.width(n), self.config.seed)
        iteration = block_iteration.BlockIteration(
            start, options.n_components, trace=self.total, tolerance=options.tolerance
        )
        while not converged and iteration.product_count < options.max_rounds:
            Q, R = qr(iteration.block, mode="economic")  # parties answer orthonormal blocks only
            sums: method.Total = yield from columns.sum_in_digits(self, "product", {"block": Q})
            require_possible_product(sums["product"], Q, self.total)
            error = eigen.frobenius_norm(sums.error_bounds.get("product", np.zeros(1))) * float(np.linalg.norm(R, 2))
            converged = iteration.add(iteration.block, sums["product"] @ R, error=error)
        self.certificate = iteration.certificate
        return method.Solution(
            pairs=iteration.pairs,
            total=self.total,
            notes=block_iteration.shortfall_notes(iteration, f"max-rounds = {options.max_rounds}"),
            measurements=block_iteration.certificate_measurements(iteration),
        )
