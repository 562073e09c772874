"""P-COV: the PCA of all rows together, exactly, in one round.

Begin with P-COV where rows are complete numbers of up to some thousand features. Party k sends its count n_k, mean m_k
and centred scatter S_k. The server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

and takes the leading eigenvectors of S. The result is exact up to rounding for any partition of the rows, however
unequal or shifted. With secure aggregation the same sums take more rounds (docs/secure-aggregation.md).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.questions import adjustment, clusters, harmony, last_round, method, weights
from fedpca_flwr.questions.genotypes import genotype_phases
from fedpca_flwr.site import scores


class PooledOptions(last_round.LastRoundOptions, adjustment.AdjustOptions, clusters.ClusterOptions):
    """Options of P-COV."""

    @property
    def exposes(self) -> str:
        return "scores" if self.clusters else super().exposes


def phases(config: method.RunConfig, options: PooledOptions) -> method.Questions:
    """The moments, clusters, and the last question."""
    found = clusters.with_clusters(genotype_phases(config, options, _of_moments), options)
    return weights.weighted(config, options, last_round.with_more(found, options))


def _of_moments(config: method.RunConfig, options: PooledOptions) -> method.Questions:
    return adjustment.with_adjustment(
        {
            **adjustment.adjusted_phases(config, options),
            **method.projection_phase(),
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
        found = self.adjusted(asked).centred(rows) if self.options.adjusts else super().centred(rows, asked)
        return found if self.odd is None else self.odd.passing(found)

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

    def points(self, asked: method.Fields, *, every: bool = False) -> Iterator[method.Array]:
        """The scores of the rows of the run, chunk by chunk, or of every row of the site."""
        if self.options.genotypes:
            self._require_told(asked)
        clusters.require_scale(asked["scale"], scaled=self.options.scale or self.options.genotypes)
        for part in self.parts if every else (self.unscaled,):
            for centred in self.centred(part, asked):
                yield centred @ self.loadings(asked).T

    def project(self, asked: method.Fields) -> method.Fields:
        if "moves" in asked:
            points = self.points(asked, every=True)
            harmony.keep_corrected(self.site.node.scores, asked, points, self.site.node.partition_id)
        elif "centres" in asked:
            clusters.keep_clusters(self.site.node.scores, asked, self.points(asked, every=True))
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
    mixed=True,
    options=PooledOptions,
    phases=phases,
    reference="Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance (how moments pool)",
    examples=(
        {},
        {"harmonise": "variances"},
        {"genotypes": True},
        {"genotypes": True, "prune": 0.2},
        {"clusters": 2, "clustering": "mixture"},
        {"clusters": 2, "clustering": "harmony"},
    ),
)


class PooledCovariance(method.Strategy):
    """P-COV."""

    card = CARD
    party = PooledCovarianceClient
    options: PooledOptions
    adjusted: adjustment.Adjusted | None = None
    """What the run has taken out of the rows, if its options say so."""
    clusters: method.Fields = MappingProxyType({})
    """What the sites tell by which cluster a row is in, if the options say so."""

    def aggregate(self) -> method.Fitting:
        options = self.options.model_dump(include=set(method.ScaledOptions.model_fields))
        if not self.options.adjusts:
            found = yield from method.pooled_moments(self)
            return replace(
                method.solve(found.moments, found.diagonal, indicators=self.config.indicators, **options),
                evidence=found.evidence,
            )
        moments, self.adjusted, evidence = yield from adjustment.adjusted_moments(self, self.options)
        done = self.adjusted.adjustment
        check_components(self.options.n_components, moments.count, moments.n_features - done.places.size)
        solution = method.solve(moments, moments.diagonal(), indicators=self.config.indicators, **options)
        solution.pairs.vectors[moments.diagonal() == 0] = 0.0  # where nothing is left, rounding is no loading
        return replace(solution, adjustment=done, evidence=evidence).extended(notes=self.adjusted.notes)

    def projected(self, model: method.PCAModel, solution: method.Solution) -> method.Program:
        self.clusters = {}
        if self.options.clusters:
            told = self.loadings(model, solution)
            self.clusters = yield from clusters.clusters_of(model, told, self.options, self.public)
        yield from super().projected(model, solution)

    def loadings(self, model: method.PCAModel, solution: method.Solution) -> method.Fields:
        told = dict(self.clusters)
        told |= {} if self.adjusted is None else self.adjusted.told
        return {**super().loadings(model, solution), **told, **last_round.more_asked(model, self.options)}

    def conclude(self, model: method.PCAModel, fit: method.Total) -> None:
        last_round.conclude(model, fit, self.options)
