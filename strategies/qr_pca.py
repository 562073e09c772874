"""QR-PCA: the exact components from triangular factors of the sites' rows, in one round.

Take QR-PCA if each site has fewer rows than features, or if small components matter. Site k sends its number of rows
n_k, its mean m_k and the triangular factor R_k of its centred rows. The stack of all R_k, and of one row
``sqrt(n_k) (m_k - m)`` for each site, has the singular values and right singular vectors of all rows about their mean
m. No value is squared, so singular values resolve down to about 1e-15 of the first one, where a covariance resolves
them down to about 3e-7. If sites have many rows, QR-PCA takes about twice the CPU time of P-COV.

With ``rank = r`` each site sends only the best r rows of its factor, and the model states a bound on the angle. With
``filler`` the server assumes half of the first omitted eigenvalue in every omitted direction, which halves the bound.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import factors, moments
from fedpca_flwr.maths.codecs import power_of_two_unit
from fedpca_flwr.maths.eigen import angle_bound
from fedpca_flwr.protocol.replies import stream_replies
from fedpca_flwr.questions import method
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.rows import feature_divisors

NEGLIGIBLE_REMAINDER = 1e-15  # of a mean, in standard deviations, below which the factor's own rounding is larger


class QROptions(method.WeightOptions, method.VariantOptions):
    """Options of QR-PCA: components, scaling, and the size and precision of the factors."""

    published: ClassVar[Mapping[str, Any]] = {"rank": "n-components", "filler": False}

    rank: Annotated[method.Size, Limits(examples=["k", "2k", 100])] = 0
    """Rows of a truncated factor, as many as components with 'n-components'. With 0 the factor is complete and the
    result exact."""
    filler: bool = True
    """Assume some variance in the directions that truncation omits."""
    wire: Literal["float64", "float32"] = "float64"
    """Precision of a complete factor. With float32 the model states a bound on the angle."""


def factor_script(config: method.RunConfig, options: QROptions) -> method.Questions:
    """Return the questions of QR-PCA: a triangular or truncated factor of the rows, and the projection of rows.

    Raise ConfigError for ``rank`` below n-components, with scaling, without centring or with a fraction of the
    variance, and for ``wire="float32"`` with ``rank`` or with scaling.
    """
    in_float32 = options.wire == "float32"
    if in_float32 and (options.rank or options.divided):
        raise method.ConfigError("run-config: 'wire' is 'float32', which goes only with rank=0 and scale=false")
    if not options.rank:
        unit = (method.Field("unit", (), kind="positive"),) if in_float32 else ()
        reply = method.Payload((*method.HEAD, *unit, method.Field("factor", ("trapezoid",), dtype=options.wire)))
        answer = _answer_float32_factor if in_float32 else _answer_factor
        return {"factor": method.Question(reply=reply, answer=answer), **method.projection_questions()}
    if options.divided or not options.center:
        raise method.ConfigError("run-config: 'rank' goes only with center=true and scale=false")
    if isinstance(options.n_components, float):
        raise method.ConfigError("run-config: 'rank' needs a number of components, not a fraction of the variance")
    rank = options.rank if isinstance(options.rank, int) else options.n_components
    if rank < options.n_components:
        raise method.ConfigError(
            f"run-config: 'rank' is {rank}, expected at least n-components = {options.n_components}, "
            "and better twice that: with less, whole directions are lost"
        )
    truncated = method.truncated_questions(lambda public: min(rank, public.features))
    return {**truncated, **method.projection_questions()}


def _answer_factor(party: method.Party, request: method.Fields) -> method.Fields:
    """Return the count, mean and packed triangular factor of a party's centred rows."""
    head, R = party.vault.triangular()
    head_fields = method.head_fields(head, np.einsum("ij,ij->j", R, R), NEGLIGIBLE_REMAINDER)
    return {**head_fields, "factor": factors.pack_trapezoid(R)}


def _answer_float32_factor(party: method.Party, request: method.Fields) -> method.Fields:
    """Return the fields of `_answer_factor`, with the factor in float32, divided by the field ``unit``."""
    fields = _answer_factor(party, request)
    unit = _magnitude_unit(fields["factor"])
    return {**fields, "unit": np.asarray(unit), "factor": (fields["factor"] / unit).astype(np.float32)}


CARD = method.MethodCard(
    name="qr-pca",
    title="QR factors",
    exact=True,
    result="With `rank` or `wire='float32'` it is approximate, with an error bound",
    rounds="1",
    upload="h d - h(h-1)/2 + d + 1, for n rows, d features and h = min(n - 1, d); with `rank` about d `rank`",
    server_sees="each party's covariance, or its leading components",
    disclosure=method.Disclosure(
        "its number of rows, mean, and a factor of its covariance, which tells as much as the covariance (with `rank` "
        "its leading components)"
    ),
    pools_moments=True,
    mixed=True,
    options=QROptions,
    script=factor_script,
    reference="Bai, Chan and Luk 2005, Principal component analysis for distributed data sets with updating",
    examples=({}, {"rank": 20}),
    differences="By default each site sends a complete factor of its scatter, and the result is exact. The "
    "unpublished design note 001 sends fewer vectors, and does not say how many: `variant='paper'` sends k vectors "
    "for k components, without filler. On the digits (10 sites, Dirichlet 0.1, seed 42, 10 components) it is up to "
    "10 degrees from the exact components, and with `rank` 2k up to 1.5.",
)


class QRPCA(method.Strategy):
    """Strategy of QR-PCA: right singular vectors of the parties' stacked triangular factors.

    The QR decomposition ``X_k - 1 m_k^T = Q_k R_k`` of the n_k centred rows of party k gives a triangular R_k
    with ``R_k^T R_k = S_k``, the scatter of those rows (Bai, Chan and Luk 2005, Principal component analysis for
    distributed data sets with updating). The stack of all R_k and of the rows ``sqrt(n_k) (m_k - m)`` is a factor R of
    the pooled scatter S, with ``R = U diag(s) V^T``. The columns of V are the components, and s^2 divided by N - 1 are
    the explained variances.

    A truncated factor leaves out the eigenvalues of S_k from the first omitted one on, l_k. The scatter of the stack is
    off by at most ``sum l_k`` in the spectral norm, and by half of that with ``filler``.
    """

    card = CARD
    options: QROptions

    @property
    @override
    def exact(self) -> bool:
        """True if factors are complete and in float64."""
        return not self.options.rank and self.options.wire == "float64"

    @override
    def aggregate(self) -> method.Fitting:
        """Stack the parties' triangular or truncated factors, and return the leading eigenpairs; raise as `_solve`."""
        if not self.options.rank:
            arrivals: dict[str, factors.Factor] = {}

            def unpack(fields: method.Fields, sender: str) -> None:
                """Store the factor in a reply, of which the packed triangle is then released."""
                arrivals[sender] = _read_factor(fields)

            replies = yield from stream_replies(method.Round("factor"), unpack)
            parts = {reply.sender: arrivals.pop(reply.sender) for reply in replies}
            evidence = method.Evidence(contributions=Contributions(parts))
            return replace(self._solve_complete(factors.stack_factors(list(parts.values()))), evidence=evidence)
        parts = {reply.sender: method.read_factor(reply) for reply in (yield method.Round("truncated"))}
        if self.options.filler:
            parts = {sender: factor.with_floor() for sender, factor in parts.items()}
        evidence = method.Evidence(contributions=Contributions(parts))
        pooled = factors.stack_factors(list(parts.values()))
        solution = self._solve(pooled, pooled.trace)
        pairs = replace(solution.pairs, resolution=None)  # truncated factors come from scatters
        measured = {"angle_bound_degrees": angle_bound(pooled.error, pairs)}
        return replace(solution, pairs=pairs, measurements=measured, evidence=evidence)

    def _solve_complete(self, pooled: factors.Factor) -> method.Solution:
        """Return the solution from the stack of complete factors, with centring, scaling and a float32 error bound."""
        rows, head = pooled.rows, pooled.head
        diagonal = pooled.diagonal()
        scale = feature_divisors(self, diagonal, head)
        rank = int(moments.varying_features(diagonal, head.mean).sum()) + (not self.options.center)
        if not self.options.center:
            rows = np.vstack([rows, np.sqrt(head.n) * (head.mean + head.remainder)])
            head = moments.Head(head.n, np.zeros_like(head.mean), np.zeros_like(head.mean))
        rows = rows if scale is None else rows / scale
        unit = 1.0 if scale is None else scale
        solution = self._solve(replace(pooled, head=head, rows=rows), float(np.vdot(rows, rows)), unit)
        if self.options.wire == "float32":
            pairs = replace(solution.pairs, resolution=None, error=_float32_error_bound(rows, solution.pairs.values[0]))
            solution = replace(solution, pairs=pairs)
            solution = solution.with_details(measurements={"angle_bound_degrees": angle_bound(pairs.error, pairs)})
        pairs = solution.pairs.with_rank_bound(rank)
        return replace(solution, pairs=pairs, scale=scale)

    def _solve(self, pooled: factors.Factor, total: float, scale: method.Array | float = 1.0) -> method.Solution:
        """Return a solution with the leading eigenpairs of a pooled factor, whose features are over the ``scale``.

        Raise ConfigError for more components than the rows allow, and DataError for rows without variance.
        """
        head = pooled.head
        n_components = self.n_components(head.n, head.mean.size)
        method.require_variance(pooled.diagonal(), head.n, head.mean / scale)
        pairs = factors.factor_eigenpairs(pooled, n_components)
        return method.Solution(pairs=pairs, mean=head.mean, total=total, rows=head.n)


def _read_factor(fields: method.Fields) -> factors.Factor:
    """Return the complete factor in the fields of a reply: unpacked triangle in float64, in units of the data."""
    head, packed = method.read_head(fields), fields["factor"].astype(np.float64, copy=False)
    if "unit" in fields:
        packed *= float(fields["unit"])
    d = head.mean.size
    rows = factors.unpack_trapezoid(packed, min(int(head.n) - 1, d), d)
    return factors.Factor(head, rows, float(np.vdot(packed, packed)))


def _magnitude_unit(values: method.Array) -> float:
    """Return a power of two near the largest absolute value; division by it is exact."""
    return power_of_two_unit(float(np.abs(values).max(initial=0.0)))


def _float32_error_bound(rows: method.Array, first: float) -> float:
    """Return a bound on the spectral norm of the error that float32 leaves in a factor's scatter.

    Every entry of the factor ``rows`` (h, d) is off by half a unit in its last place, or by half the smallest number
    that float32 holds. With the error F of the factor R, the scatter is off by ``|R'F + F'R + F'F| <= (2 |R| + |F|)
    |F|``, where ``|R|^2`` is the first eigenvalue.
    """
    limits = np.finfo(np.float32)
    smallest = float(limits.smallest_subnormal) * _magnitude_unit(rows) * float(np.sqrt(rows.size))
    rounding = (float(limits.eps) * float(np.linalg.norm(rows)) + smallest) / 2
    return (2 * float(np.sqrt(first)) + rounding) * rounding
