"""P-COV: the PCA of all rows together, exactly, in one round.

Every party k sends its count n_k, mean m_k and centred scatter S_k. The server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

and takes its leading eigenvectors. Exact up to rounding for any partition of the rows, however unequal or shifted.

Upload per party: d (d + 1) / 2 + d + 1 values, in one round. The server sees each party's covariance; with secure
aggregation sums only, in more rounds (docs/secure-aggregation.md has the bytes of each). What a party is asked, in
clear, masked and with survivors, and what it answers, is in `fedpca_flwr.questions.rows.moments_phases`.
The last round may have more than the projection (`fedpca_flwr.questions.last_round`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, dense_rows
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution, check_components, solve
from fedpca_flwr.protocol.card import MethodCard, ScaledOptions, Shown
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import SERVER, Ask, Questions, Total
from fedpca_flwr.questions.adjustment import (
    Adjusted,
    AdjustOptions,
    OwnAdjustment,
    adjusted_moments,
    adjusted_phases,
    covariate_places,
    with_adjustment,
)
from fedpca_flwr.questions.genotypes import genotype_phases
from fedpca_flwr.questions.last_round import LastRoundOptions, conclude, more_asked, told_count, with_more
from fedpca_flwr.questions.rows import pooled_moments, projection_phase
from fedpca_flwr.questions.rows_run import RowsClient, RowsStrategy
from fedpca_flwr.site.scores import OddRows, outlier_file


class PooledOptions(LastRoundOptions, AdjustOptions):
    """Options of P-COV."""


def phases(config: RunConfig, options: PooledOptions) -> Questions:
    """The moments, and the last question."""
    return with_more(genotype_phases(config, options, _of_moments), options)


def _of_moments(config: RunConfig, options: PooledOptions) -> Questions:
    return with_adjustment(
        {**adjusted_phases(config, options), **projection_phase(about="" if options.genotypes else "centre")},
        options,
    )


class PooledCovarianceClient(RowsClient):
    """Sends the moments of its rows.

    In the last round it adjusts its rows as the run does, and judges each of them where the run has limits for that.
    """

    options: PooledOptions
    odd: OddRows | None = None

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Of the covariates."""
        return covariate_places(self.options.covariates, self.site.table)

    def about(self) -> dict[str, Any]:
        told = {"covariates": " ".join(map(str, self.places.tolist()))} if self.places.size else {}
        return {**super().about(), **told}

    def require_ready(self) -> None:
        super().require_ready()
        assert self.places is not None  # or it was refused

    def centred(self, rows: Rows, asked: Fields) -> Iterator[Any]:
        adjusted = self.options.adjusts
        for centred in self.adjusted(asked).centred(rows) if adjusted else super().centred(rows, asked):
            if self.odd is not None:
                for part in dense_rows(centred):
                    self.odd.add(part)
            yield centred

    def squared_error(self, asked: Fields) -> float:
        if not self.options.adjusts:
            return super().squared_error(asked)
        return self.adjusted(asked).squared_error(self.loadings(asked))

    @property
    def writes_scores(self) -> bool:
        return super().writes_scores or self.odd is not None

    def own_loadings(self, asked: Fields, components: Array) -> Loadings:
        if not self.options.adjusts:
            return super().own_loadings(asked, components)
        return self.adjusted(asked).loadings(components, self.site.table.columns)

    def project(self, asked: Fields) -> Fields:
        if "variances" not in asked:
            return super().project(asked)
        components, variances, limits = asked["components"], asked["variances"], asked.get("limits", np.empty(0))
        if len(components) != variances.size:
            raise ContractError(f"{SERVER}: it sent {variances.size} variances of {len(components)} components")
        with outlier_file(self.site.node.scores, limits) as stream:
            self.odd = OddRows(components, variances, limits, len(self.data), stream)
            reply = super().project(asked)
        counts = [told_count(int(count), len(self.data), self.site.node.min_rows) for count in self.odd.above]
        return {**reply, "above": np.array(counts), "fourth": self.odd.fourth}

    def adjusted(self, asked: Fields) -> OwnAdjustment:
        """How this party's rows are adjusted, by what the run tells."""
        if "harmonised" in self.questions:
            said = b"".join(np.ascontiguousarray(asked[name]).tobytes() for name in ("slopes", "spread"))
            self.site.repeats(self.card.split).permit_slopes(hashlib.sha256(said).hexdigest())
        return OwnAdjustment(self.own, self.places, self.options.within, asked)


CARD = MethodCard(
    name="p-cov",
    title="Pooled covariance",
    exact=True,
    rounds="1",
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    shows=Shown(
        "number of rows, mean, covariance matrix, count and squared error of the last round",
        "the pooled components, mean and scales",
    ),
    shows_summed=Shown(
        "number of rows, mean, variances, scatter, squared error",
        "mean, variances and number of rows of all; the pooled components",
    ),
    pools_moments=True,
    options=PooledOptions,
    phases=phases,
    reference="Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance (how moments pool)",
    examples=({}, {"harmonise": "variances"}, {"genotypes": True}),
)


class PooledCovariance(RowsStrategy):
    """P-COV.

    Attributes
    ----------
    adjusted : Adjusted or None
        What the run has taken out of the rows, if its options say so.
    """

    card = CARD
    party = PooledCovarianceClient
    options: PooledOptions
    adjusted: Adjusted | None = None

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        options = self.options.model_dump(include=set(ScaledOptions.model_fields))
        if not self.options.adjusts:
            found = yield from pooled_moments(self)
            return replace(solve(found.moments, found.diagonal, **options), evidence=found.evidence)
        moments, self.adjusted, evidence = yield from adjusted_moments(self, self.options)
        adjustment = self.adjusted.adjustment
        check_components(self.options.n_components, moments.count, moments.n_features - adjustment.places.size)
        solution = solve(moments, moments.diagonal(), **options)
        solution.pairs.vectors[moments.diagonal() == 0] = 0.0  # where nothing is left, rounding is no loading
        return replace(solution, adjustment=adjustment, evidence=evidence).extended(notes=self.adjusted.notes)

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        told = {} if self.adjusted is None else self.adjusted.told
        return {**super().loadings(model, solution), **told, **more_asked(model, self.options)}

    def conclude(self, model: PCAModel, fit: Total) -> None:
        conclude(model, fit, self.options)
