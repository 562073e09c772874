"""Parties that lie: whom a run's notes name."""

from collections.abc import Callable, Sequence

import numpy as np

from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines, Rows
from fedpca_flwr.simulations.engines import run

COMPONENTS = 10
Lie = Callable[[Rows, np.random.Generator], Rows]


def _along_a_direction(rows: Rows, rng: np.random.Generator) -> Rows:
    """Return false rows of legal pixels (0 to 16) that all lie along a single random direction."""
    signs = rng.choice([-1, 1], (len(rows), 1)) * rng.uniform(0.8, 1, (len(rows), 1))
    return np.asarray(8 + 8 * signs * rng.choice([-1, 1], rows.shape[1]))


LIES: dict[str, Lie] = {
    "a direction": _along_a_direction,
    "noise": lambda rows, rng: rng.uniform(0, 16, rows.shape),
    "100 times": lambda rows, rng: 100 * rows,
    "columns swapped": lambda rows, rng: rows[:, rng.permutation(rows.shape[1])],
}


def _middling_parties(parties: Sequence[Rows]) -> list[int]:
    """Return the numbers of two parties of medium size (places 5 and 7 by size), which are to lie."""
    return sorted(int(party) for party in np.argsort([len(rows) for rows in parties], kind="stable")[[5, 7]])


def _replace_by_lies(parties: Sequence[Rows], liars: Sequence[int], lie: Lie, rng: np.random.Generator) -> list[Rows]:
    """Return the rows of all parties; a liar's rows are replaced by the result of the function ``lie``."""
    return [lie(rows, rng) if party in liars else rows for party, rows in enumerate(parties)]


def _fit(parties: Sequence[Rows], components: int = COMPONENTS) -> PCAModel:
    """Run P-COV on the parties, and return the model."""
    return run("p-cov", parties, n_components=components, min_rows=1)


def _named_parties(model: PCAModel) -> list[int]:
    """Return the numbers of the parties whose influence stands out by the model's notes."""
    return [int(note.split()[1].rstrip(":")) for note in model.log["notes"] if "stands out" in note]


def _exclude(parties: Sequence[Rows]) -> tuple[list[int], PCAModel]:
    """Run again without the parties that stand out until none does; return the excluded numbers and last model."""
    remaining, excluded = list(range(len(parties))), list[int]()
    while True:
        model = _fit([parties[party] for party in remaining])
        named = [remaining[i] for i in _named_parties(model)]
        if not named or len(named) == len(remaining):
            return sorted(excluded), model
        excluded += named
        remaining = [party for party in remaining if party not in excluded]


@harness.benchmark("docs/security/reviewer.md", seeds=1)
def _influence(seeds: int = 20) -> Lines:
    """Count the liars and the honest parties that a run's notes name as influential.

    10 parties, Dirichlet 0.1, digits, p-cov. Two parties of middling size send something else than their rows: rows
    along a direction of their own choice (every value legal), uniform noise, a hundred times their rows, their columns
    in another order. Whoever stands out is left out, and the rest runs again, until nobody does. Angles (means over
    components and seeds, degrees) are to the PCA of all ten had they been honest.
    """
    named = "liars named at once", "after all", "honest named"
    yield "lie", *named, "angle with them", "without", "of honest others"
    for name, lie in {"none": None, **LIES}.items():
        table = np.array([_outcome(lie, seed) for seed in range(seeds)])
        liars = 0 if lie is None else 2 * seeds
        totals = zip(table[:, :3].sum(axis=0), (liars, liars, 10 * seeds - liars), strict=True)
        angles = table[:, 3:].mean(axis=0)
        yield name, *(f"{count:.0f} of {total}" for count, total in totals), *(f"{angle:.2g}" for angle in angles)


def _outcome(lie: Lie | None, seed: int) -> list[float]:
    """Run with two lying parties; return counts of named liars and honest parties, and mean angles to the truth."""
    parties = harness.clients("digits", ".", seed=seed)
    liars = _middling_parties(parties) if lie else []
    sent = _replace_by_lies(parties, liars, lie, np.random.default_rng(seed)) if lie else parties
    first, (excluded, last), truth = _fit(sent), _exclude(sent), _fit(parties).loadings()[0].T
    honest = _fit([rows for party, rows in enumerate(parties) if party not in liars])
    angles = [float(principal_angles(model.loadings()[0].T, truth).mean()) for model in (first, last, honest)]
    right = set(excluded) & set(liars)
    return [len(set(_named_parties(first)) & set(liars)), len(right), len(excluded) - len(right), *angles]
