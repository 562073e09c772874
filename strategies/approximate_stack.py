"""AP-STACK: the singular vectors of the sites' stacked eigenvectors, in one round.

AP-STACK is for comparison. With ``party-weights="none"``, as published, all sites have the same weight, and the
server leaves out the scatter between their means. The error then stays however many eigenvectors r a site sends
(MNIST, Dirichlet 0.1: about 28 degrees at r = 200). With ``party-weights="rows"`` the method is QR-PCA with truncated
factors and without filler, and converges to the exact components as r grows.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import factors
from fedpca_flwr.maths.eigen import angle_bound
from fedpca_flwr.questions import method


class StackOptions(method.Options, method.VariantOptions):
    """Options of AP-STACK: components, directions of each party, and the weights of parties and directions."""

    published: ClassVar[Mapping[str, Any]] = {"eigenvalues": False}

    rank: Annotated[int, Limits(ge=0, examples=["k", "2k", 100])] = 0
    """Number r of eigenvectors that each site sends. With 0 it is n-components."""
    party_weights: Literal["none", "rows"] = "none"
    """Weight of a site: the same for all ('none'), or by its number of rows, and with its mean ('rows')."""
    eigenvalues: bool = True
    """Multiply each eigenvector by the root of its eigenvalue. Without, all eigenvectors of a site have the same
    length, and means are left out (Fan, Wang, Wang and Zhu 2019, Distributed estimation of principal eigenspaces)."""


def stack_script(config: method.RunConfig, options: StackOptions) -> method.Questions:
    """Return the questions of AP-STACK: a low-rank factor of each party's scatter, and the projection of rows."""
    truncated = method.truncated_questions(lambda public: min(max(options.rank, options.n_components), public.features))
    return {**truncated, **method.projection_questions()}


CARD = method.MethodCard(
    name="ap-stack",
    title="Stacked eigenvectors",
    exact=False,
    result="",
    rounds="1",
    upload="d `rank` + d + 3, for d features",
    server_sees="leading local components",
    disclosure=method.Disclosure("its number of rows, mean, total variance and leading components"),
    options=StackOptions,
    script=stack_script,
    reference="Balcan, Kanchanapally, Liang and Woodruff 2014, Improved distributed principal component analysis",
    variance_base="the parties' own variances, with party-weights='none' each of equal weight",
    differences="The unpublished design note 001 stacks eigenvectors as they are (`variant='paper'`). By default "
    "each is multiplied by the root of its eigenvalue, because directions of noise then count little. Site weights "
    "are not in the note, and by default all are equal. On the digits (10 sites, Dirichlet 0.1, seed 42, 10 "
    "components) the default is on average 12 degrees from the exact components, and `variant='paper'` 17.",
)

MIN_LENGTH_SHARE = 1e-7  # of a party's longest row, below which a row is noise of rounding
NO_BOUND_NOTE = "no bound on the angle, which party-weights='rows' with eigenvalues=true has"


class ApproximateStack(method.Strategy):
    """Strategy of AP-STACK: leading right singular vectors of the parties' stacked low-rank factors.

    The truncated factor of party k has r rows ``R_k = diag(sqrt(l_1), ..., sqrt(l_r)) V_k^T``, from the leading
    eigenvalues l and eigenvectors V_k of its scatter S_k. With ``party-weights="rows"`` the factors are stacked with
    one row ``sqrt(n_k) (m_k - m)`` for each party, and the first omitted eigenvalues bound the error of the stack's
    scatter. With "none" the factors are weighted by ``sqrt(N / (K n_k))`` for K parties, as if all had the same number
    of rows, and there is no bound (Balcan, Kanchanapally, Liang and Woodruff 2014, Improved distributed principal
    component analysis).
    """

    card = CARD
    options: StackOptions

    @override
    def aggregate(self) -> method.Fitting:
        """Stack the parties' low-rank factors, weighted by rows or equally, and return the SVD's solution.

        Raise ConfigError for more components than the rows allow, and DataError if the rows do not vary, or with equal
        weights if those of each party do not.
        """
        parts = [method.read_factor(reply) for reply in (yield method.Round("truncated"))]
        parts.sort(key=lambda part: (part.head.n, part.head.mean.tobytes(), part.trace))
        pooled = factors.stack_factors(parts)
        n_components = self.n_components(pooled.head.n, pooled.head.mean.size)
        method.require_variance(pooled.diagonal(), pooled.head.n, pooled.head.mean)
        if self.options.party_weights == "none":
            pooled = _average_parties(parts, pooled)
            if not pooled.trace > 0:
                raise method.DataError(
                    "the rows of each party are identical (it may have one row only): party-weights='none' leaves out "
                    "the variance between parties, and there is no other; set party-weights='rows', or take 'qr-pca'"
                )
        # truncated factors come from scatters, so small components are resolved no better than by a scatter
        pairs = replace(factors.factor_eigenpairs(pooled, n_components), resolution=None)
        by_rows = self.options.party_weights == "rows"
        bounded = by_rows and self.options.eigenvalues
        if not self.options.eigenvalues:
            pairs = _bare_pairs(parts, pooled, self.options.n_components, by_rows=by_rows)
        return method.Solution(
            pairs=pairs,
            mean=pooled.head.mean,
            total=pooled.trace,
            rows=pooled.head.n,
            notes=[] if bounded else [NO_BOUND_NOTE],
            measurements={"angle_bound_degrees": angle_bound(pooled.error, pairs)} if bounded else {},
        )


def _average_parties(parts: list[factors.Factor], pooled: factors.Factor) -> factors.Factor:
    """Return the pooled factor with other rows and trace: those by which each local covariance counts equally."""
    weights = [pooled.head.n / len(parts) / part.head.n for part in parts]
    rows = [np.sqrt(weight) * part.rows for weight, part in zip(weights, parts, strict=True)]
    trace = sum(weight * part.trace for weight, part in zip(weights, parts, strict=True))
    return replace(pooled, rows=np.vstack(rows), trace=trace)


def _bare_pairs(parts: list[factors.Factor], pooled: factors.Factor, k: int, *, by_rows: bool) -> method.Eigenpairs:
    """Return the k leading singular vectors of the stacked unit eigenvectors, by their variances in the pooled factor.

    A direction without variance, up to rounding, is no eigenvector. Equal weights count parties, ``by_rows`` rows.
    """
    stack = []
    for part in parts:
        lengths = np.linalg.norm(part.rows, axis=1)
        units = part.rows[lengths > MIN_LENGTH_SHARE * lengths.max()]
        stack.append(units / np.linalg.norm(units, axis=1, keepdims=True) * np.sqrt(part.head.n if by_rows else 1))
    rows = np.vstack([*stack, np.zeros((k, pooled.rows.shape[1]))])  # k or more
    vectors = factors.factor_eigenpairs(replace(pooled, rows=rows), k).vectors
    values = np.einsum("ij,ij->j", vectors, pooled.times(vectors))
    order = np.argsort(-values, kind="stable")
    return method.Eigenpairs(values[order], vectors[:, order], 0.0)
