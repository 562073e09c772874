"""Parties that lie: whom a run's notes name, and what a median over groups of parties would make of lies."""

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs, principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines, Rows
from fedpca_flwr.simulations.engines import run

PAGE = "docs/security/lies.md"
Lie = Callable[[Rows, np.random.Generator], Rows]


def _along_a_direction(rows: Rows, rng: np.random.Generator) -> Rows:
    """Return legal pixels (0 to 16) along a random direction."""
    signs = rng.choice([-1, 1], (len(rows), 1)) * rng.uniform(0.8, 1, (len(rows), 1))
    return np.asarray(8 + 8 * signs * rng.choice([-1, 1], rows.shape[1]))


LIES: dict[str, Lie] = {
    "a direction": _along_a_direction,
    "noise": lambda rows, rng: rng.uniform(0, 16, rows.shape),
    "100 times": lambda rows, rng: 100 * rows,
    "columns swapped": lambda rows, rng: rows[:, rng.permutation(rows.shape[1])],
}


def middling_parties(parties: Sequence[Rows]) -> list[int]:
    """Return the numbers of two parties of middling size, which lie."""
    return sorted(int(party) for party in np.argsort([len(rows) for rows in parties], kind="stable")[[5, 7]])


def tell_lies(parties: Sequence[Rows], liars: Sequence[int], lie: Lie, rng: np.random.Generator) -> list[Rows]:
    """Replace the rows of some parties by lies.

    Parameters
    ----------
    parties : Sequence of ndarray
        Honest rows of each party.
    liars : Sequence of int
        Numbers of the parties that lie.
    lie : Callable
        One of `LIES`.
    rng : numpy.random.Generator
        Source of the lie.

    Returns
    -------
    list of ndarray
        Rows that each party uses.
    """
    return [lie(rows, rng) if party in liars else rows for party, rows in enumerate(parties)]


def _fit(parties: Sequence[Rows], components: int) -> PCAModel:
    return run("p-cov", parties, n_components=components, min_rows=1)


def parties_in_notes(model: PCAModel) -> list[int]:
    """Return the numbers of the parties that the notes say stand out."""
    return [int(note.split()[1].rstrip(":")) for note in model.log["notes"] if "stands out" in note]


def exclude_until_nobody_stands_out(parties: Sequence[Rows], components: int) -> tuple[list[int], PCAModel]:
    """Run again and again without the parties that the notes name.

    Parameters
    ----------
    parties : Sequence of ndarray
        Rows of each party.
    components : int
        Number of components.

    Returns
    -------
    tuple
        Numbers of the excluded parties, and the model of the remaining ones.
    """
    remaining, excluded = list(range(len(parties))), list[int]()
    while True:
        model = _fit([parties[party] for party in remaining], components)
        named = [remaining[i] for i in parties_in_notes(model)]
        if not named or len(named) == len(remaining):
            return sorted(excluded), model
        excluded += named
        remaining = [party for party in remaining if party not in excluded]


@harness.benchmark(PAGE, seeds=1, repeats=1)
def _influence(
    seeds: int = 20,
    components: int = 10,
    cost: bool = False,
    dataset: harness.Dataset = "digits",
    data_root: str = ".",
    repeats: int = 9,
) -> Lines:
    """Count whom the notes name when parties lie, and whom when nobody does; with --cost measure the CPU time of that.

    10 parties, Dirichlet 0.1, digits, p-cov. Two parties of middling size send something else than their rows: rows
    along a direction of their own choice (every value legal), uniform noise, a hundred times their rows, their columns
    in another order. Whoever stands out is left out, and the rest runs again, until nobody does. Angles (means over
    components and seeds, degrees) are to the PCA of all ten had they been honest. --cost measures the CPU time that
    honest runs spend on influence while they run: two runs differ by more than that.
    """
    if cost:
        yield "parties", "CPU time with, of that without"
        for count in (10, 50):
            parties = harness.clients(dataset, data_root, count)
            yield count, f"{np.median([_relative_cost(parties, components) for _ in range(repeats)]):.3f}"
        return
    named = "liars named at once", "after all", "honest named"
    yield "lie", *named, "angle with them", "without", "of honest others"
    for name, lie in {"none": None, **LIES}.items():
        table = np.array([_outcome(lie, seed, components) for seed in range(seeds)])
        liars = 0 if lie is None else 2 * seeds
        totals = zip(table[:, :3].sum(axis=0), (liars, liars, 10 * seeds - liars), strict=True)
        angles = table[:, 3:].mean(axis=0)
        yield name, *(f"{count:.0f} of {total}" for count, total in totals), *(f"{angle:.2g}" for angle in angles)


def _outcome(lie: Lie | None, seed: int, components: int) -> list[float]:
    """Liars named at once and after all, honest ones named; angles with the liars, without the named, without liars."""
    parties = harness.clients("digits", ".", seed=seed)
    liars = middling_parties(parties) if lie else []
    sent = tell_lies(parties, liars, lie, np.random.default_rng(seed)) if lie else parties
    first = _fit(sent, components)
    excluded, last = exclude_until_nobody_stands_out(sent, components)
    honest = _fit([rows for party, rows in enumerate(parties) if party not in liars], components)
    truth = harness.exact_components(parties, components)
    angles = [float(principal_angles(model.loadings()[0].T, truth).mean()) for model in (first, last, honest)]
    at_once = len(set(parties_in_notes(first)) & set(liars))
    return [at_once, len(set(excluded) & set(liars)), len(set(excluded) - set(liars)), *angles]


def _relative_cost(parties: Sequence[Rows], components: int) -> float:
    """Return the CPU time of a run over that of all but the computation of influence."""
    spent = 0.0
    compute = Contributions.influence

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal spent
        start = time.process_time()
        influence = compute(*args, **options)
        spent += time.process_time() - start
        return influence

    with mock.patch.object(Contributions, "influence", timed):
        start = time.process_time()
        _fit(parties, components)
        total = time.process_time() - start
    return total / (total - spent)


COMPONENTS = 10
CASES = [(name, parties, liars) for name in ("IID", "Dirichlet 0.1") for parties, liars in ((10, 2), (30, 2), (60, 4))]


@harness.benchmark(PAGE, seeds=1)
def _groups(seeds: int = 10, size: int = 3) -> Lines:
    """Measure what a median over sums of groups of parties makes of lies, if secure sums were taken over groups.

    Digits, ten components. Parties are dealt into groups of at least --size at random; of each group its covariance
    about the median of the groups' means is known, and nothing of a single party. Two medians: the geometric one of the
    covariances, and that of the projectors on each group's own components. Mean angles (degrees) to the PCA of all rows
    had everybody been honest; with lies the mean over those of `influence`, by parties drawn at random.
    """
    both = "covariances: none lies", "covariances: lies", "projectors: none lies", "projectors: lies"
    yield "partition", "parties, liars, groups", "groups with a liar", "all rows: lies", "honest others", *both
    for name, count, liars in CASES:
        draws = []
        for seed in range(seeds):
            parties = harness.clients("digits", ".", count, seed=seed, **harness.PARTITIONS[name])
            truth, rng = _pooled(parties), np.random.default_rng(seed)
            bad = rng.choice(count, liars, replace=False).tolist()
            groups = np.array_split(rng.permutation(count), count // size)
            honest = _pooled([rows for party, rows in enumerate(parties) if party not in bad])
            lies = [tell_lies(parties, bad, lie, rng) for lie in LIES.values()]
            bases = [*_medians(parties, groups), honest, *map(_pooled, lies)]
            bases += [V for sent in lies for V in _medians(sent, groups)]
            plain, projected, others, *of_lies = (float(principal_angles(V, truth).mean()) for V in bases)
            medians = np.reshape(of_lies[len(lies) :], (-1, 2)).mean(axis=0)
            hit = sum(bool(set(group) & set(bad)) for group in groups)
            draws.append([hit, np.mean(of_lies[: len(lies)]), others, plain, medians[0], projected, medians[1]])
        hits, *means = np.mean(draws, axis=0)
        yield name, f"{count}, {liars}, {count // size}", f"{hits:.1f}", *(f"{angle:.2g}" for angle in means)


def geometric_median(matrices: Sequence[Array]) -> Array:
    """Return the matrix with the least sum of distances to these (Weiszfeld's iteration)."""
    stack = np.stack(matrices)
    median: Array = stack.mean(axis=0)
    for _ in range(50):
        weights = 1 / np.maximum(np.linalg.norm(stack - median, axis=(1, 2)), 1e-12)
        median = np.tensordot(weights / weights.sum(), stack, 1)
    return median


def _leading(matrix: Array) -> Array:
    return leading_eigenpairs(np.asfortranarray(matrix), COMPONENTS).vectors


def _pooled(parties: Sequence[Rows]) -> Array:
    return _leading(np.cov(np.vstack(parties).T))


def _medians(parties: Sequence[Rows], groups: Sequence[NDArray[np.int64]]) -> list[Array]:
    """Return the components (d, k) by the median of covariances and by that of projectors."""
    rows = [np.vstack([parties[party] for party in group]) for group in groups]
    centre = np.median([group.mean(axis=0) for group in rows], axis=0)
    covariances = [(group - centre).T @ (group - centre) / len(group) for group in rows]
    projectors = [V @ V.T for V in map(_leading, covariances)]
    return [_leading(geometric_median(matrices)) for matrices in (covariances, projectors)]
