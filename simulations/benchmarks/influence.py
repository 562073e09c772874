"""Parties that lie: whom a run's notes name, and what a median over groups of parties would make of lies."""

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs, principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.simulations.benchmarks.harness import DIGITS, PARTITIONS, Lines, Rows, benchmark, clients
from fedpca_flwr.simulations.engines import run

Lie = Callable[[Rows, np.random.Generator], Rows]


def along_a_direction(rows: Rows, rng: np.random.Generator) -> Rows:
    """Legal pixels (0 to 16) along a direction of its own choice."""
    signs = rng.choice([-1, 1], (len(rows), 1)) * rng.uniform(0.8, 1, (len(rows), 1))
    return np.asarray(8 + 8 * signs * rng.choice([-1, 1], rows.shape[1]))


LIES: dict[str, Lie] = {
    "a direction": along_a_direction,
    "noise": lambda rows, rng: rng.uniform(0, 16, rows.shape),
    "100 times": lambda rows, rng: 100 * rows,
    "columns swapped": lambda rows, rng: rows[:, rng.permutation(rows.shape[1])],
}


def digits(seed: int, alpha: float = 0.1) -> list[Rows]:
    """The rows of ten honest parties."""
    return clients("digits", ".", kind="dirichlet", alpha=alpha, seed=seed)


def liars_of(parties: Sequence[Rows]) -> list[int]:
    """Two parties of middling size."""
    return sorted(int(party) for party in np.argsort([len(rows) for rows in parties], kind="stable")[[5, 7]])


def with_lies(parties: Sequence[Rows], lie: Lie, seed: int) -> list[Rows]:
    """The same parties, two of which lie."""
    return sent_by(parties, liars_of(parties), lie, np.random.default_rng(seed))


def sent_by(parties: Sequence[Rows], liars: Sequence[int], lie: Lie, rng: np.random.Generator) -> list[Rows]:
    """What the parties send, some of which lie."""
    return [lie(rows, rng) if party in liars else rows for party, rows in enumerate(parties)]


def fitted(parties: Sequence[Rows], components: int) -> PCAModel:
    return run("p-cov", parties, n_components=components, min_rows=1)


def named_in(model: PCAModel) -> list[int]:
    """The parties that the notes name."""
    return [int(note.split()[1].rstrip(":")) for note in model.log["notes"] if "stands out" in note]


def until_nobody_stands_out(parties: Sequence[Rows], components: int) -> tuple[list[int], PCAModel]:
    """Whom to leave out, one run after the other, and the model of the others."""
    left, out = list(range(len(parties))), list[int]()
    while True:
        model = fitted([parties[party] for party in left], components)
        found = [left[place] for place in named_in(model)]
        if not found or len(found) == len(left):
            return sorted(out), model
        out += found
        left = [party for party in left if party not in out]


@benchmark(**DIGITS, seeds=20, components=10, repeats=9, cost=False)
def influence(args: Namespace) -> Lines:
    """Whom the model's notes name when parties lie, whom they name when nobody does, and what finding out costs.

        python -m fedpca_flwr.simulations.benchmarks influence [--seeds 20] [--components 10]
        python -m fedpca_flwr.simulations.benchmarks influence --cost --dataset mnist --data-root DEST

    10 parties, Dirichlet 0.1, digits, p-cov. Two parties of middling size send something else than their rows: rows
    along a direction of their own choice (every value legal), uniform noise, a hundred times their rows, their columns
    in another order. Whoever stands out is left out, and the rest runs again, until nobody does. Angles (means over
    components and seeds, degrees) are to the PCA of all ten had they been honest. ``--cost`` measures the CPU time that
    honest runs spend on it, on its way: two runs differ by more than it is.
    """
    if args.cost:
        yield "parties", "CPU time with, of that without"
        for count in (10, 50):
            parties = clients(args.dataset, args.data_root, count)
            yield count, f"{np.median([with_of_without(parties, args.components) for _ in range(args.repeats)]):.3f}"
        return
    named = "liars named at once", "after all", "honest named"
    yield "lie", *named, "angle with them", "without", "of honest others"
    for name, lie in {"none": None, **LIES}.items():
        found = np.array([_tried(lie, seed, args.components) for seed in range(args.seeds)])
        counts, angles = found[:, :3].sum(axis=0), found[:, 3:].mean(axis=0)
        liars = 0 if lie is None else 2 * args.seeds
        shares = zip(counts, (liars, liars, 10 * args.seeds - liars), strict=True)
        yield name, *(f"{count:.0f} of {of}" for count, of in shares), *(f"{angle:.2g}" for angle in angles)


def _tried(lie: Lie | None, seed: int, components: int) -> list[float]:
    """Liars named at once and after all, honest ones named; angles with the liars, without the named, without liars."""
    parties = digits(seed)
    liars = liars_of(parties) if lie else []
    sent = with_lies(parties, lie, seed) if lie else parties
    first = fitted(sent, components)
    out, last = until_nobody_stands_out(sent, components)
    honest = fitted([rows for party, rows in enumerate(parties) if party not in liars], components)
    *models, truth = (model.loadings()[0].T for model in (first, last, honest, fitted(parties, components)))
    angles = [float(principal_angles(found, truth).mean()) for found in models]
    at_once = len(set(named_in(first)) & set(liars))
    return [at_once, len(set(out) & set(liars)), len(set(out) - set(liars)), *angles]


def with_of_without(parties: Sequence[Rows], components: int) -> float:
    own = 0.0
    honest = Contributions.influence

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal own
        start = time.process_time()
        found = honest(*args, **options)
        own += time.process_time() - start
        return found

    with mock.patch.object(Contributions, "influence", timed):
        start = time.process_time()
        fitted(parties, components)
        whole = time.process_time() - start
    return whole / (whole - own)


LEADING = 10
"""Components of groups."""

CASES = [(name, parties, liars) for name in ("IID", "Dirichlet 0.1") for parties, liars in ((10, 2), (30, 2), (60, 4))]


@benchmark(seeds=10, size=3)
def groups(args: Namespace) -> Lines:
    """What a median over sums of groups of parties would make of lies, if secure sums were taken over groups.

    Digits, ten components. Parties are dealt into groups of at least ``--size`` at random; of each group its covariance
    about the median of the groups' means is known, and nothing of a single party. Two medians: the geometric one of the
    covariances, and that of the projectors on each group's own components. Mean angles (degrees) to the PCA of all rows
    had everybody been honest; with lies the mean over those of `influence`, by parties drawn at random.
    """
    both = "covariances: none lies", "lies", "projectors: none lies", "lies"
    yield "partition", "parties, liars, groups", "groups with a liar", "all rows: lies", "honest others", *both
    for name, count, liars in CASES:
        made = []
        for seed in range(args.seeds):
            parties = clients("digits", ".", count, seed=seed, **PARTITIONS[name])
            made.append(_angles(parties, liars, args.size, np.random.default_rng(seed)))
        hit, *angles = np.mean(made, axis=0)
        numbers = f"{count}, {liars}, {count // args.size}"
        yield name, numbers, f"{hit:.1f}", *(f"{angle:.2g}" for angle in angles)


def geometric_median(matrices: Sequence[Array]) -> Array:
    """The matrix with the least sum of distances to these (Weiszfeld's iteration)."""
    stack = np.stack(matrices)
    found: Array = stack.mean(axis=0)
    for _ in range(50):
        weights = 1 / np.maximum(np.linalg.norm(stack - found, axis=(1, 2)), 1e-12)
        found = np.tensordot(weights / weights.sum(), stack, 1)
    return found


def leading(matrix: Array) -> Array:
    """The leading components (d, k) of a covariance."""
    return leading_eigenpairs(np.asfortranarray(matrix), LEADING).vectors


def of_groups(parties: Sequence[Rows], groups: Sequence[NDArray[np.int64]]) -> list[Array]:
    """The components by each of the medians."""
    rows = [np.vstack([parties[party] for party in group]) for group in groups]
    centre = np.median([group.mean(axis=0) for group in rows], axis=0)
    covariances = [(group - centre).T @ (group - centre) / len(group) for group in rows]
    projectors = [V @ V.T for V in map(leading, covariances)]
    return [leading(geometric_median(matrices)) for matrices in (covariances, projectors)]


def _angles(parties: Sequence[Rows], liars: int, size: int, rng: np.random.Generator) -> list[float]:
    """How many groups have a liar, and the angles of one draw, in the order of `groups`."""
    truth = _pooled(parties)
    bad = rng.choice(len(parties), liars, replace=False).tolist()
    groups = np.array_split(rng.permutation(len(parties)), len(parties) // size)
    honest = [rows for party, rows in enumerate(parties) if party not in bad]
    sent = [sent_by(parties, bad, lie, rng) for lie in LIES.values()]

    def angle(V: Array) -> float:
        return float(principal_angles(V, truth).mean())

    quiet = [angle(V) for V in of_groups(parties, groups)]
    lied = np.mean([[angle(V) for V in of_groups(each, groups)] for each in sent], axis=0)
    pooled = float(np.mean([angle(_pooled(each)) for each in sent]))
    hit = sum(bool(set(group) & set(bad)) for group in groups)
    return [hit, pooled, angle(_pooled(honest)), quiet[0], lied[0], quiet[1], lied[1]]


def _pooled(parties: Sequence[Rows]) -> Array:
    return leading(np.cov(np.vstack(parties).T))
