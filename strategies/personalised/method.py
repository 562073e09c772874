"""Personalised PCA: each site has its own components, drawn towards shared components (Ozkara et al. 2023).

Take personalised PCA if sites differ so much that each one wants components of its own. The server sends the shared
components V (d x k). Each site i, with the centred rows Y_i, keeps its own components U_i (d x k), and returns its
projector times V (`fedpca_flwr.strategies.personalised.mixing`). With a strength c::

    U_i = leading eigenvectors of Y_i'Y_i + c V V',     V <- orth(sum U_i U_i'V)

V starts as the PCA of all rows. The strength c is ``mu`` times the k-th eigenvalue of the pooled scatter, divided by
the number of sites, or follows from the deviations of the paper's model (``mu="sigma"``). By default the run first
chooses the ``mu`` with the smallest error on a fifth of each site's rows, held out. A site with a file of its own must
allow this choice (``may-show="distribution"``), because it shows more than moments of these rows. With another ``mu``
the run shows functions of count, mean and scatter only, whatever the server sends
(`fedpca_flwr.strategies.personalised.own_rows`). All rows are centred by their common mean. In a simulation,
``run(...).own_components_`` has the components of each site.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh
from typing_extensions import override

from fedpca_flwr.maths import block_iteration, eigen, moments
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.model.solution import ALL_ROWS
from fedpca_flwr.questions import method, products
from fedpca_flwr.questions.rows import pooled_centre
from fedpca_flwr.strategies.personalised import party as party_half
from fedpca_flwr.strategies.personalised.mixing import subspace_distance

CARD = method.MethodCard(
    name="personalised",
    title="Personalised PCA",
    exact=False,
    result="The iteration may end before V converges",
    rounds="about 5, then at most `iterations`; twice as many to choose `mu`",
    upload="d b in each of the first rounds for d features, then d k in each iteration (6 d k to choose `mu`)",
    server_sees="products with d x b blocks, each party's own components",
    disclosure=method.Disclosure(
        "its number of rows, mean, variances, and products of its covariance with blocks of vectors; in each "
        "iteration its projector times the shared components, from which its own components follow; the variance of "
        "its rows in the shared components, the error of its own components, and their distance from the shared ones",
        "the shared components and mean",
    ),
    summed_disclosure=method.Disclosure(
        "the number of rows, mean, variances, products of the scatter with the blocks, the shared components, errors "
        "and distances",
        "the number, mean and variances of all rows; the shared components",
    ),
    options=party_half.PersonalisedOptions,
    script=party_half.personalised_script,
    reference="Ozkara, Huang and Diggavi 2023, Personalized PCA for Federated Heterogeneous Data",
    local_components="personal",
    needs=("rows",),
    differences="By default the run chooses `mu`, centres the rows, starts from the PCA of all rows, and computes "
    "components by eigenvectors. The paper knows the deviations, does not centre, starts from random components, and "
    "takes gradient steps. `variant='paper'` is the paper's Algorithm 1 as printed, with the noise, the largest "
    "spread and the tuned step sizes of Figure 2. Fact 1 of the paper has half of the gradient; `solver='stiefel'` "
    "takes the whole gradient, which finite differences confirm. On digits (600 rows of 20 features, sorted by kind "
    "among 5 sites, 3 components) the squared error per row is 138 by default, and 1537 with `variant='paper'`, "
    "whose steps are too long for such rows.",
)


@dataclass(frozen=True)
class RowsUsed:
    """Rows of a single pass (all rows, or all but held-out rows): their number, mean, total variance and rounding."""

    prefix: str  # of the names of the pass' phases
    rows: int  # number of rows of all parties
    mean: method.Array  # (d,) or zero without centring
    centre: dict[str, method.Array]  # fields ``mean`` and ``remainder`` that every question of the pass sends
    total: float  # trace of the scatter
    error_bound: method.Array  # (d,) on the rounding of fixed point in the scatter's diagonal


@dataclass(frozen=True)
class SharedComponents:
    """Result of a pass: the pooled PCA of its rows, and the shared components V for each strength c."""

    pooled: method.Array  # (d, k) components of all rows of the pass
    strengths: method.Array  # (m,) strengths c, in squared units of the data
    shared: method.Array  # (m, d, k) V for each strength
    iterations: int = 0


class Personalised(method.Strategy):
    """Strategy of personalised PCA: chooses the strength mu by held-out rows, and fits shared components V.

    With P_V the projection to the tangent space at V, the parties minimise (Ozkara, Huang and Diggavi 2023,
    Personalized PCA for Federated Heterogeneous Data, equation 4)::

        sum_i  -|Y_i U_i|^2 / 2 + c |P_V(U_i)|^2 / 2

    For a fixed V the best U_i are the leading eigenvectors of ``Y_i'Y_i + c V V'``, and for fixed U_i the best V are
    those of ``sum_i U_i U_i'``. One iteration takes one step of subspace iteration for V. ``solver="stiefel"`` takes
    the gradient steps of the paper's Algorithm 1 instead.
    """

    card = CARD
    party = party_half.PersonalisedClient
    options: party_half.PersonalisedOptions
    _error = 0.0

    @override
    def aggregate(self) -> method.Fitting:
        """Choose mu by held-out rows if requested, fit the shared V, and measure errors; raise as `_measure_rows`."""
        mus, measured = self.options.grid, dict[str, float]()
        notes = ["scores are by each party's own components; the model holds the shared ones"]
        if self.options.mu == "held-out":
            first = yield from self._measure_rows(party_half.HELD_OUT_PREFIX)
            components = yield from self._share_components(first, mus, [])
            sums: method.Total = yield method.SumRound("choose", {"shared": components.pooled, **first.centre})
            errors = sums["errors"]  # of the local components, those of each mu of the grid, and the pooled ones
            mus, best = _best_mu(errors, first.total)
        used = yield from self._measure_rows("")
        if self.options.mu == "held-out":
            held_out_rows = used.rows - first.rows
            local, personal, pooled = map(float, errors[[0, best, -1]] / max(held_out_rows, 1))
            measured = {
                "held_out_rows": held_out_rows,
                "held_out_squared_error_per_row": personal,
                "local_held_out_squared_error_per_row": local,
                "global_held_out_squared_error_per_row": pooled,
            }
            notes += [] if held_out_rows else ["no party has 5 rows, of which one can be held out: mu is infinity"]
        components = yield from self._share_components(used, mus, notes)
        return (yield from self._solution(used, components, mus[0], notes, measured))

    @override
    def squared_error(self, model: method.PCAModel) -> float:
        """Return the mean squared error of the parties' own components, from their report, whatever the model."""
        return self._error

    def _measure_rows(self, prefix: str) -> Generator[method.Round, Any, RowsUsed]:
        """Ask for number, mean and variances of a pass's rows; raise ConfigError if few, DataError if equal."""
        rows_text = (
            f"{ALL_ROWS} but those held out to choose 'mu' (set it, and none is held out)" if prefix else ALL_ROWS
        )
        if f"{prefix}start" in self.script:
            replies = yield method.Round(f"{prefix}start")
            pooled, diagonal = _pool_heads(replies, holds_out=bool(prefix))
            centre, error_bound = (pooled.mean, pooled.remainder), np.zeros(1)
            self.n_components(sum(reply.rows for reply in replies), pooled.mean.size)
        else:
            sums = yield from pooled_centre(self, prefix, subject=rows_text)
            pooled, diagonal, error_bound = sums.head, sums.diagonal, sums.error_bound
            centre = sums.centre, sums.remainder  # to the last bit what the parties were told
            if prefix:
                self._require_enough_rows(sums.rows)
            self.n_components(sums.rows, pooled.mean.size)
        mean = pooled.mean
        if not self.options.center:
            mean_squares = pooled.n * np.square(mean + pooled.remainder)
            diagonal = diagonal + mean_squares
            mean = np.zeros_like(mean)
            centre = mean, mean
        method.require_variance(diagonal, pooled.n, mean, which=rows_text)
        request = dict(zip(("mean", "remainder"), centre, strict=True))
        return RowsUsed(prefix, int(pooled.n), mean, request, float(diagonal.sum()), error_bound)

    def _require_enough_rows(self, rows: float) -> None:
        """Raise ConfigError if the rows of the first pass, without those held out, are fewer than n-components."""
        if self.options.n_components > rows:
            raise method.ConfigError(
                f"run-config: 'n-components' is {self.options.n_components}, and all parties together have {rows} rows "
                "while some are held out to choose 'mu'; ask for so many at most, or set 'mu'"
            )

    def _fit_pooled(self, used: RowsUsed, notes: list[str]) -> Generator[method.Round, Any, eigen.Eigenpairs]:
        """Return a pass's pooled PCA, and append to ``notes`` if uncertified; raise as `require_possible_product`."""
        d = used.mean.size
        block = random_block(d, self.options.width(self.public), self.config.seed)
        iteration = block_iteration.BlockIteration(block, self.options.n_components, trace=used.total)
        converged = False
        while not converged and iteration.product_count < party_half.MAX_POOLED_ROUNDS:
            request = {"block": iteration.block, **used.centre}
            sums: method.Total = yield method.SumRound(f"{used.prefix}product", request)
            products.require_possible_product(sums["product"], iteration.block, used.total)
            error_bound = eigen.frobenius_norm(sums.error_bounds.get("product", np.zeros(1)))
            converged = iteration.add(iteration.block, sums["product"], error=error_bound)
        shortfall = block_iteration.shortfall_notes(iteration, f"{party_half.MAX_POOLED_ROUNDS} rounds were over")
        notes += [f"PCA of all rows: {note}" for note in shortfall]
        return iteration.pairs

    def _share_components(
        self, used: RowsUsed, mus: Sequence[float], notes: list[str]
    ) -> Generator[method.Round, Any, SharedComponents]:
        """Fit the shared components V for each value of mu, by rounds that sum the parties' projections of V.

        For a mu of 0 or infinity V is the pooled PCA. Append to ``notes`` if V does not converge. Raise ContractError
        if a sum is larger than that of any projections.
        """
        options, unit = self.options, 1.0
        start = pooled = _random_components(used.mean.size, options.n_components, self.config.seed)
        if not options.leaves_out_pooled:
            pairs = yield from self._fit_pooled(used, notes)
            pooled = pairs.vectors
            if options.mu != "sigma":
                unit = max(float(pairs.values[-1]), 1e-12 * float(pairs.values[0])) / self.quorum.expected  # never zero
        strengths, iterates = np.array(mus) * unit, 0 < mus[0] < math.inf
        V = np.repeat((start if iterates and options.start == "uniform" else pooled)[None], len(mus), axis=0)
        iterations, shift, tolerance = 0, np.inf, math.sin(math.radians(options.tolerance)) ** 2
        if not iterates:
            return SharedComponents(pooled, strengths, V)
        while shift > tolerance and iterations < options.iterations:
            request = {"shared": V, "strengths": strengths, **used.centre}
            sums: method.Total = yield method.SumRound(f"{used.prefix}share", request)
            largest = float(np.abs(sums["shared"]).max())
            if not largest <= products.MAX_PRODUCT_RATIO * self.quorum.expected:
                raise method.ContractError(
                    f"the parties' parts of the shared components add up to {largest:.1g}, and each has orthonormal "
                    "columns: some party sends what is not so"
                )
            closed = options.solver == "closed-form"  # Algorithm 1 depends on the rotation of V, and retracts
            next_V = np.linalg.qr(sums["shared"]).Q if closed else eigen.polar_factor(sums["shared"])
            shift, V = float(subspace_distance(next_V, V).max()), next_V
            iterations += 1
        if shift > tolerance:
            angle = math.degrees(math.asin(min(1.0, math.sqrt(shift))))
            move = f"V still moved by {angle:.2g} degrees (tolerance {options.tolerance:.2g})"
            notes.append(f"stopped after iterations = {iterations}; {move}")
        return SharedComponents(pooled, strengths, V, iterations)

    def _solution(
        self, used: RowsUsed, components: SharedComponents, mu: float, notes: list[str], choice: dict[str, float]
    ) -> method.Fitting:
        """Ask for the report, and return V ordered by variance, measured by errors, distances and ``choice``."""
        finite = components.strengths[np.isfinite(components.strengths)]
        request = {"shared": components.shared[0], "strengths": finite, **used.centre}
        sums: method.Total = yield method.SumRound("report", request)
        gram, distances = sums["gram"], float(sums["distance"])
        values, rotation = eigh((gram + gram.T) / 2)
        pairs = eigen.Eigenpairs(values[::-1], eigen.fix_signs(components.shared[0] @ rotation[:, ::-1]), following=0.0)
        self._error = float(sums["error"]) / used.rows
        measured = {**({} if self.options.mu == "sigma" else {"mu": mu}), **choice}
        if 0 < mu < math.inf:
            measured["objective_per_row"] = self._error + float(components.strengths[0]) * distances / used.rows
            measured["objective_iterations"] = components.iterations
        sine = math.sqrt(max(0.0, distances) / (sums.parties * len(values)))
        measured["own_from_shared_degrees"] = math.degrees(math.asin(min(1.0, sine)))
        return method.Solution(
            pairs=pairs,
            mean=used.mean,
            total=used.total,
            rows=used.rows,
            notes=notes,
            measurements=measured,
            evidence=method.Evidence(error_bound=used.error_bound),
        )


def _random_components(d: int, k: int, seed: int) -> method.Array:
    """Draw orthonormal components (d, k), uniform on the Stiefel manifold."""
    return eigen.polar_factor(np.random.default_rng(seed).standard_normal((d, k)))


def _pool_heads(replies: Sequence[method.Reply], *, holds_out: bool) -> tuple[moments.Head, method.Array]:
    """Return count and mean of a pass's rows, and the diagonal (d,) of their scatter, whatever the replies' order.

    Raise ContractError if a party has used another number of rows than all, or all but the fifth held out.
    """
    ordered = sorted(replies, key=lambda reply: (reply.rows, *(value.tobytes() for value in reply.fields.values())))
    heads = []
    for reply in ordered:
        used_rows, mean, remainder = (reply.fields[name] for name in ("used", "mean", "remainder"))
        expected = reply.rows - (reply.rows // 5 if holds_out else 0)  # a fifth is held out
        if used_rows != expected:
            raise method.ContractError(
                f"{reply.sender}: it used {int(used_rows)} rows, expected {expected} of its {reply.rows}"
            )
        heads.append(moments.Head(int(used_rows), mean, remainder if remainder.size else np.zeros_like(mean)))
    pooled, deviations = moments.pool_heads(heads)
    between = (head.n * deviation**2 for head, deviation in zip(heads, deviations, strict=True))
    return pooled, np.sum([*(reply.fields["diagonal"] for reply in ordered), *between], axis=0)


def _best_mu(errors: method.Array, total: float) -> tuple[tuple[float], int]:
    """Return the mu of the least held-out error (of nearly equal ones the largest mu), as a grid of one, and its index.

    ``errors`` (g + 2,) are for mu = 0, each of the g values of `MU_GRID`, and infinity, which the index counts.
    Those within 1e-9 ``total``, the trace of the scatter, of the least are nearly equal.
    """
    best = int(np.flatnonzero(errors <= errors.min() + 1e-9 * total)[-1])
    return ((0.0, *party_half.MU_GRID, math.inf)[best],), best
