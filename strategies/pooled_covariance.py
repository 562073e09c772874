"""P-COV: the PCA of all rows together, exactly, in one round.

Every party k sends its count n_k, mean m_k and centred scatter S_k. The server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

and takes its leading eigenvectors. Exact up to rounding for any partition of the rows, however unequal or shifted.

Upload per party: d (d + 1) / 2 + d + 1 values, in one round. The server sees each party's covariance; with secure
aggregation sums only, in more rounds (docs/secure-aggregation.md has the bytes of each). What a party is asked, in
clear, masked and with survivors, and what it answers, is in `fedpca_flwr.questions.rows.moments_phases`.
The last round may have more than the projection (`fedpca_flwr.questions.last_round`).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.rows import Rows, dense_rows
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.questions import adjustment, last_round, method, weights
from fedpca_flwr.questions.genotypes import genotype_phases
from fedpca_flwr.site import scores


class PooledOptions(last_round.LastRoundOptions, adjustment.AdjustOptions):
    """Options of P-COV."""


def phases(config: method.RunConfig, options: PooledOptions) -> method.Questions:
    """The moments, and the last question."""
    return weights.weighted(
        config, options, last_round.with_more(genotype_phases(config, options, _of_moments), options)
    )


def _of_moments(config: method.RunConfig, options: PooledOptions) -> method.Questions:
    return adjustment.with_adjustment(
        {
            **adjustment.adjusted_phases(config, options),
            **method.projection_phase(about="" if options.genotypes else "centre"),
        },
        options,
    )


class PooledCovarianceClient(method.Client):
    """Sends the moments of its rows.

    In the last round it adjusts its rows as the run does, and judges each of them where the run has limits for that.
    """

    options: PooledOptions
    odd: scores.OddRows | None = None

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Of the covariates."""
        return adjustment.covariate_places(self.options.covariates, self.site.table)

    def about(self) -> dict[str, Any]:
        told = {"covariates": " ".join(map(str, self.places.tolist()))} if self.places.size else {}
        return {**super().about(), **told}

    def require_ready(self) -> None:
        super().require_ready()
        assert self.places is not None  # or it was refused

    def centred(self, rows: Rows, asked: method.Fields) -> Iterator[Any]:
        adjusted = self.options.adjusts
        for centred in self.adjusted(asked).centred(rows) if adjusted else super().centred(rows, asked):
            if self.odd is not None:
                for part in dense_rows(centred):
                    self.odd.add(part)
            yield centred

    def squared_error(self, asked: method.Fields) -> float:
        if not self.options.adjusts:
            return super().squared_error(asked)
        return self.adjusted(asked).squared_error(self.loadings(asked))

    @property
    def writes_scores(self) -> bool:
        return super().writes_scores or self.odd is not None

    def own_loadings(self, asked: method.Fields, components: method.Array) -> Loadings:
        if not self.options.adjusts:
            return super().own_loadings(asked, components)
        return self.adjusted(asked).loadings(components, self.site.table.columns)

    def project(self, asked: method.Fields) -> method.Fields:
        if "variances" not in asked:
            return super().project(asked)
        components, variances, limits = asked["components"], asked["variances"], asked.get("limits", np.empty(0))
        if len(components) != variances.size:
            raise method.ContractError(
                f"{method.SERVER}: it sent {variances.size} variances of {len(components)} components"
            )
        with scores.outlier_file(self.site.node.scores, limits) as stream:
            self.odd = scores.OddRows(components, variances, limits, len(self.data), stream)
            reply = super().project(asked)
        counts = [
            last_round.told_count(int(count), len(self.data), self.site.node.min_rows) for count in self.odd.above
        ]
        return {**reply, "above": np.array(counts), "fourth": self.odd.fourth}

    def adjusted(self, asked: method.Fields) -> adjustment.OwnAdjustment:
        """How this party's rows are adjusted, by what the run tells."""
        if "harmonised" in self.questions:
            said = b"".join(np.ascontiguousarray(asked[name]).tobytes() for name in ("slopes", "spread"))
            self.site.repeats(self.card.split).permit_slopes(hashlib.sha256(said).hexdigest())
        return adjustment.OwnAdjustment(self.own, self.places, self.options.within, asked)


CARD = method.MethodCard(
    name="p-cov",
    title="Pooled covariance",
    exact=True,
    rounds="1",
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    shows=method.Shown(
        "number of rows, mean, covariance matrix, count and squared error of the last round",
        "the pooled components, mean and scales",
    ),
    shows_summed=method.Shown(
        "number of rows, mean, variances, scatter, squared error",
        "mean, variances and number of rows of all; the pooled components",
    ),
    pools_moments=True,
    weighted=True,
    options=PooledOptions,
    phases=phases,
    reference="Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance (how moments pool)",
    examples=({}, {"harmonise": "variances"}, {"genotypes": True}),
)


class PooledCovariance(method.Strategy):
    """P-COV."""

    card = CARD
    party = PooledCovarianceClient
    options: PooledOptions
    adjusted: adjustment.Adjusted | None = None
    """What the run has taken out of the rows, if its options say so."""

    def aggregate(self) -> method.Fitting:
        options = self.options.model_dump(include=set(method.ScaledOptions.model_fields))
        if not self.options.adjusts:
            found = yield from method.pooled_moments(self)
            return replace(method.solve(found.moments, found.diagonal, **options), evidence=found.evidence)
        moments, self.adjusted, evidence = yield from adjustment.adjusted_moments(self, self.options)
        done = self.adjusted.adjustment
        check_components(self.options.n_components, moments.count, moments.n_features - done.places.size)
        solution = method.solve(moments, moments.diagonal(), **options)
        solution.pairs.vectors[moments.diagonal() == 0] = 0.0  # where nothing is left, rounding is no loading
        return replace(solution, adjustment=done, evidence=evidence).extended(notes=self.adjusted.notes)

    def loadings(self, model: method.PCAModel, solution: method.Solution) -> method.Fields:
        told = {} if self.adjusted is None else self.adjusted.told
        return {**super().loadings(model, solution), **told, **last_round.more_asked(model, self.options)}

    def conclude(self, model: method.PCAModel, fit: method.Total) -> None:
        last_round.conclude(model, fit, self.options)
