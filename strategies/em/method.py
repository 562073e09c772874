"""EM: the components of rows with missing values, by maximum likelihood in a Gaussian model of all rows together.

A method of its own, and not an option of others: what it asks, how often, what that shows and what the result is are
its own; every other method refuses missing values and names this one.

In each round the server sends mean m and covariance S of the model, and every party returns sums of what its rows are
expected to be under it (`fedpca_flwr.maths.incomplete`): a value that is there as it is, a missing one by its
conditional mean, and to the products the conditional covariance. They add up to those of all rows, so the result is
that of the same iteration on the pooled rows (`fedpca_flwr.maths.gaussian_em`). SQUAREM saves rounds. The components
are those of the expected scatter at the end; without missing values they are P-COV's, after one such round.

``prior`` rows' worth of unrelated features keep S away from the accidents of few complete rows. The default was the
best on two data sets, a twentieth to two fifths of whose values were made to be missing (docs/missing.md).

``model='factors'`` is for wide rows: probabilistic PCA, in which `factors` directions and equal noise in all others
stand for the covariance. A round then has products of the expected scatter with these directions instead of the
scatter (`fedpca_flwr.maths.factor_model`, `factor_em`), and no party and no server forms a matrix of d x d.

The iteration ends when what is left to go, as the last steps foretell it, is less than ``tolerance`` degrees. That is
an estimate, too small as often as not, and no bound; nor does it say anything of the distance to the components of
complete rows, which nobody knows. What EM presumes: whether a value is missing does not depend on the value itself,
given what is there (missing at random).

A party's answers are sums over the rows that share their gaps, of which each follows from the count, mean and scatter
of such a group (`fedpca_flwr.maths.gap_groups`). Rows whose gaps too few share are left out by a site's own rule.

Upload per party: 8 (d (d + 1) / 2 + d) bytes a round; of q factors 8 (d (q + 1) + 2).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.gaussian_em import GaussianEM
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.subspace import principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.card import MethodCard, Shown
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.solution import Solution, solve
from fedpca_flwr.statistics.checked_sums import sums_of_rows
from fedpca_flwr.statistics.incomplete import ObservedValues, expected, observed_values
from fedpca_flwr.statistics.incomplete_client import IncompleteClient
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

from .factors import by_factors
from .options import EMOptions, phases

CARD = MethodCard(
    name="em",
    title="Expectation-maximisation",
    exact=False,
    result="maximum likelihood for rows with missing values",
    rounds="2, then until it rests, some 10; `model='factors'` some 25",
    upload="d(d+1)/2 + d in each round; `model='factors'` d(q+1) + 2, q = k + 10",
    server_sees="each party's expected covariances, how often each two features have values together; "
    "`model='factors'` their products with d x q blocks, how often each feature has a value",
    shows=Shown(
        "number of rows, how often each two features have values together, mean and variances of what is there; "
        "in each round the expected covariance under the model of that round: more than one covariance, see "
        "[below](#missing-values-em)",
        "number of rows of all, means and variances of what is there, the model's covariance in each round; the "
        "components",
        "sizes and times of messages, number of rounds",
    ),
    options=EMOptions,
    phases=phases,
    incomplete=True,
    examples=({}, {"model": "factors"}),
    reference="Dempster, Laird and Rubin 1977; Little and Rubin 2002, section 11.2; Varadhan and Roland 2008; factors: "
    "Tipping and Bishop 1999, Henderson and Varadhan 2019",
    beyond_moments="a group of rows for each pattern of gaps",
)


class EM(RowsStrategy):
    """EM.

    Attributes
    ----------
    every : int
        Rows of all parties, also those without any value.
    covariance : ndarray of shape (d, d) or None
        The one under which missing values are expected.
    factors : ndarray of shape (q + 1, d) or None
        The same as loadings and noise, of a model of factors.
    """

    card = CARD
    options: EMOptions
    every: int
    covariance: Array | None = None
    factors: Array | None = None

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        observed = yield from observed_values(self)
        self.every = observed.every
        if self.options.model == "factors":
            solution, self.factors, self.missed, ahead = yield from by_factors(self, observed, self.options)
        else:
            solution, ahead = yield from self._by_covariance(observed)
        return solution.extended(notes=_notes(observed, ahead, self.options), measured=_measured(observed, ahead))

    def _by_covariance(self, observed: ObservedValues) -> Generator[Ask, Any, tuple[Solution, float]]:
        options, steps, before = self.options, 0, None
        found = GaussianEM(observed.rows, observed.mean, prior=options.prior)
        while True:
            model = found.model
            sums, missed = yield from expected(self, observed, model)
            steps += 1
            with sums_of_rows():
                found.add(sums)
            self.missed = missed * observed.spread**2
            moments = observed.moments(found.mean, found.scatter)
            solution = solve(
                moments, moments.diagonal(), n_components=options.n_components, center=True, scale=options.scale
            )
            if not observed.share:
                ahead = 0.0
            elif found.ahead is not None and before is not None:
                ahead = min(90.0, found.ahead * _turned(before, solution))
            else:
                ahead = 90.0
            if ahead <= options.tolerance or steps == options.max_rounds:
                break
            before = solution
        self.covariance = model.covariance * np.outer(observed.deviation, observed.deviation)
        return solution, ahead

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        expects = {} if self.covariance is None else {"covariance": pack(self.covariance)}
        if self.factors is not None:
            expects = {"factors": self.factors}
        return {**super().loadings(model, solution), **expects}

    def modelled(self, solution: Solution) -> PCAModel:
        return replace(super().modelled(solution), covariance_=self.covariance, factors_=self.factors)

    def rows_here(self, model: PCAModel) -> int:
        return self.every


class EMClient(IncompleteClient):
    """Sends sums of what its rows are expected to be."""


def _turned(before: Solution, after: Solution) -> float:
    """Largest angle between two solutions' components, in degrees; 90 where they are not as many."""
    one, other = before.pairs.vectors, after.pairs.vectors
    return float(principal_angles(one, other).max()) if one.shape == other.shape else 90.0


def _measured(observed: ObservedValues, ahead: float) -> dict[str, float]:
    return {"missing_share": observed.share, "degrees_ahead": ahead}


def _notes(observed: ObservedValues, ahead: float, options: EMOptions) -> list[str]:
    if not observed.share and options.model == "gaussian":
        return ["no value is missing: these are the components of the rows"]
    notes = ["components by maximum likelihood (EM): those of the complete rows may be others"]
    if observed.apart:
        notes.append(f"{observed.apart} pairs of features have no row in common: how they go together is the model's")
    if observed.rows < observed.every:
        notes.append(f"{observed.every - observed.rows} rows without any value were left out")
    if ahead > options.tolerance:
        notes.append(
            f"after max-rounds = {options.max_rounds} steps the components had an estimated {ahead:.2g} degrees to go; "
            "it may be more, the estimate is no bound"
        )
    return notes
