"""What a median over sums of groups of parties would make of lies, if secure sums were taken over groups.

    python -m simulations.benchmarks groups [--seeds 10] [--size 3]

Digits, ten components. Parties are dealt into groups of at least ``--size`` at random; of each group its covariance
about the median of the groups' means is known, and nothing of a single party. Two medians: the geometric one of the
covariances, and that of the projectors on each group's own components. Mean angles (degrees) to the PCA of all rows had
everybody been honest; with lies the mean over those of `simulations.benchmarks.influence`, by parties drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs, principal_angles

from .influence import LIES, Lie
from .setting import PARTITIONS, parser

COMPONENTS = 10
HEADS = (
    "partition",
    "parties, liars, groups",
    "groups with a liar",
    "all rows: lies",
    "honest others",
    "covariances: none lies",
    "lies",
    "projectors: none lies",
    "lies",
)
CASES = [(name, parties, liars) for name in ("IID", "Dirichlet 0.1") for parties, liars in ((10, 2), (30, 2), (60, 4))]


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
    return leading_eigenpairs(np.asfortranarray(matrix), COMPONENTS).vectors


def of_groups(parties: Sequence[NDArray[Any]], groups: Sequence[NDArray[np.int64]]) -> list[Array]:
    """The components by each of the medians."""
    rows = [np.vstack([parties[party] for party in group]) for group in groups]
    centre = np.median([group.mean(axis=0) for group in rows], axis=0)
    covariances = [(group - centre).T @ (group - centre) / len(group) for group in rows]
    projectors = [V @ V.T for V in map(leading, covariances)]
    return [leading(geometric_median(matrices)) for matrices in (covariances, projectors)]


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, seeds=10, size=3).parse_args(arguments)
    source = datasets.load("digits", ".")
    print(head(list(HEADS)))
    for name, count, liars in CASES:
        made = []
        for seed in range(args.seeds):
            shares = split(source.labels, count, seed=seed, **PARTITIONS[name])
            parties = [source.rows(part) for part in shares]
            made.append(_angles(parties, liars, args.size, np.random.default_rng(seed)))
        hit, *angles = np.mean(made, axis=0)
        groups = count // args.size
        print(
            row([name, f"{count}, {liars}, {groups}", f"{hit:.1f}", *(f"{angle:.2g}" for angle in angles)]), flush=True
        )


def _angles(parties: Sequence[NDArray[Any]], liars: int, size: int, rng: np.random.Generator) -> list[float]:
    """How many groups have a liar, and the angles of one draw, in the order of `HEADS`."""
    truth = _pooled(parties)
    bad = rng.choice(len(parties), liars, replace=False)
    groups = np.array_split(rng.permutation(len(parties)), len(parties) // size)
    honest = [rows for party, rows in enumerate(parties) if party not in bad]
    told = [_lying(parties, bad, lie, rng) for lie in LIES.values()]

    def angle(V: Array) -> float:
        return float(principal_angles(V, truth).mean())

    quiet = [angle(V) for V in of_groups(parties, groups)]
    lied = np.mean([[angle(V) for V in of_groups(each, groups)] for each in told], axis=0)
    pooled = float(np.mean([angle(_pooled(each)) for each in told]))
    hit = sum(bool(set(group) & set(bad)) for group in groups)
    return [hit, pooled, angle(_pooled(honest)), quiet[0], lied[0], quiet[1], lied[1]]


def _lying(
    parties: Sequence[NDArray[Any]], bad: NDArray[np.int64], lie: Lie, rng: np.random.Generator
) -> list[NDArray[Any]]:
    return [lie(rows, rng) if party in bad else rows for party, rows in enumerate(parties)]


def _pooled(parties: Sequence[NDArray[Any]]) -> Array:
    return leading(np.cov(np.vstack(parties).T))
