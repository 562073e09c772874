"""How often intervals cover what they are for: variances and loadings of a population, of which parties hold samples.

    python -m simulations.benchmarks coverage

Eight features of known variances in a random basis, three components, intervals at 95 %. The parties are of equal and
of very unequal size; rows are normal, or have the heavier tails of Student's distribution with 9 degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from scipy.stats import norm, t

from fedpca_flwr import analyses
from fedpca_flwr.analyses import HowSure
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.inference import fourth_powers
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments

from .setting import parser

VARIANCES = 2.0 ** np.arange(4, -4, -1)
COMPONENTS = 3
PARTIES = {
    "20 parties of 50 rows": [50] * 20,
    "16 parties of 5 to 400 rows": [400, 200, 100, 80, 60, 40, 30, 20, 20, 10, 10, 10, 5, 5, 5, 5],
    "13 parties, one of 300 rows and 12 of 25": [300] + [25] * 12,
}
FREEDOM = 9


def drawn(sizes: Sequence[int], basis: Array, rng: Generator, *, heavy: bool) -> list[Array]:
    """Parties of so many rows."""
    parties = []
    for rows in sizes:
        shape = rows, len(VARIANCES)
        noise = rng.standard_t(FREEDOM, shape) * np.sqrt(1 - 2 / FREEDOM) if heavy else rng.standard_normal(shape)
        parties.append(noise * np.sqrt(VARIANCES) @ basis.T)
    return parties


def by_fourth_moments(parties: Sequence[Array], model: PCAModel, plain: HowSure) -> HowSure:
    """Intervals by what the parties of a run with ``fourth_moments=True`` add up in its last round."""
    fourth = np.sum([fourth_powers(model.transform(rows), model.explained_variance_) for rows in parties], axis=0)
    told = replace(model, log={**model.log, "kurtosis": (fourth / model.n_samples_).tolist()})
    return replace(plain, variance_intervals=analyses.variance_intervals(told))


def covered(found: HowSure, components: Array, basis: Array, step: float) -> tuple[Array, Array]:
    """Which variances (k,) an interval covers, and of each component the share of its loadings."""
    low, high = found.variance_intervals.T
    truth = VARIANCES[:COMPONENTS]
    turned = components * np.sign(np.sum(components * basis[:, :COMPONENTS].T, axis=1))[:, None]
    held = np.abs(turned - basis[:, :COMPONENTS].T) <= step * found.loading_errors
    return (low <= truth) & (truth <= high), held.mean(axis=1)


def main(arguments: Sequence[str]) -> None:
    trials = parser(__doc__, trials=2000).parse_args(arguments).trials
    basis = fix_signs(np.linalg.qr(np.random.default_rng(1).standard_normal((len(VARIANCES),) * 2))[0])
    print(head(["rows", "intervals", "parties", "variances covered (1, 2, 3)", "loadings covered (1, 2, 3)"]))
    for heavy in (False, True):
        for name, sizes in PARTIES.items():
            rng = np.random.default_rng(0)
            normal = norm.ppf(0.975)
            steps = {"asymptotic": normal, "fourth moments": normal, "by parties": t.ppf(0.975, len(sizes) - 1)}
            hits = {way: np.zeros((2, COMPONENTS)) for way in steps}
            for _ in range(trials):
                parties = drawn(sizes, basis, rng, heavy=heavy)
                own = {f"party {i}": Moments.of(rows) for i, rows in enumerate(parties)}
                moments = SecondMoments(pool(own.values()), parties=own)
                model, plain = analyses.pca(moments, COMPONENTS), analyses.how_sure(moments, COMPONENTS)
                components, _ = model.loadings()
                robust = by_fourth_moments(parties, model, plain)
                ways = plain, robust, analyses.how_sure_by_parties(moments, COMPONENTS)
                for way, found in zip(steps, ways, strict=True):
                    hits[way] += covered(found, components, basis, steps[way])
            for way, counts in hits.items():
                shares = [", ".join(f"{share:.1%}" for share in line / trials) for line in counts]
                print(row(["heavy tails" if heavy else "normal", way, name, *shares]), flush=True)
