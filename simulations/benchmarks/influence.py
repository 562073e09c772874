"""Whom the model's notes name when parties lie, whom they name when nobody does, and what finding out costs.

    python -m simulations.benchmarks influence [--seeds 20] [--components 10]
    python -m simulations.benchmarks influence --cost --dataset mnist --data-root DEST

10 parties, Dirichlet 0.1, digits, p-cov. Two parties of middling size send something else than their rows: rows along a
direction of their own choice (every value legal), uniform noise, a hundred times their rows, their columns in another
order. Whoever stands out is left out, and the rest runs again, until nobody does. Angles (means over components and
seeds, degrees) are to the PCA of all ten had they been honest. ``--cost`` measures what honest runs spend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.questions.influence import Contributions

from .. import run
from .setting import data_parser

Rows = NDArray[Any]
Lie = Callable[[Rows, np.random.Generator], Rows]


def along_a_direction(rows: Rows, rng: np.random.Generator) -> Rows:
    """Legal pixels (0 to 16) along a direction of its own choice."""
    signs = rng.choice([-1, 1], (len(rows), 1)) * rng.uniform(0.8, 1, (len(rows), 1))
    lie: Rows = 8 + 8 * signs * rng.choice([-1, 1], rows.shape[1])
    return lie


LIES: dict[str, Lie] = {
    "a direction": along_a_direction,
    "noise": lambda rows, rng: rng.uniform(0, 16, rows.shape),
    "100 times": lambda rows, rng: 100 * rows,
    "columns swapped": lambda rows, rng: rows[:, rng.permutation(rows.shape[1])],
}


def digits(seed: int, alpha: float = 0.1) -> list[Rows]:
    """The rows of ten honest parties."""
    source = datasets.load("digits", ".")
    return [source.rows(part) for part in split(source.labels, 10, kind="dirichlet", alpha=alpha, seed=seed)]


def liars_of(parties: Sequence[Rows]) -> list[int]:
    """Two parties of middling size."""
    return sorted(int(party) for party in np.argsort([len(rows) for rows in parties], kind="stable")[[5, 7]])


def with_lies(parties: Sequence[Rows], lie: Lie, seed: int) -> list[Rows]:
    """The same parties, two of which lie."""
    rng, liars = np.random.default_rng(seed), liars_of(parties)
    return [lie(rows, rng) if party in liars else rows for party, rows in enumerate(parties)]


def fitted(parties: Sequence[Rows], components: int) -> PCAModel:
    return run("p-cov", parties, n_components=components, engine="loopback", min_rows=1)


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


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, dataset="digits", seeds=20, components=10, repeats=9)
    options.add_argument("--cost", action="store_true")
    args = options.parse_args(arguments)
    if args.cost:
        _cost(args.dataset, args.data_root, args.components, args.repeats)
        return
    print(
        head(
            [
                "lie",
                "liars named at once",
                "after all",
                "honest named",
                "angle with them",
                "without",
                "of honest others",
            ]
        )
    )
    for name, lie in {"none": None, **LIES}.items():
        found = np.array([_tried(lie, seed, args.components) for seed in range(args.seeds)])
        counts, angles = found[:, :3].sum(axis=0), found[:, 3:].mean(axis=0)
        liars = 0 if lie is None else 2 * args.seeds
        cells = [f"{counts[0]:.0f} of {liars}", f"{counts[1]:.0f} of {liars}"]
        cells.append(f"{counts[2]:.0f} of {10 * args.seeds - liars}")
        print(row([name, *cells, *(f"{angle:.2g}" for angle in angles)]), flush=True)


def _tried(lie: Lie | None, seed: int, components: int) -> list[float]:
    """Liars named at once and after all, honest ones named; angles with the liars, without the named, without liars."""
    parties = digits(seed)
    liars = liars_of(parties) if lie else []
    sent = with_lies(parties, lie, seed) if lie else parties
    first = fitted(sent, components)
    out, last = until_nobody_stands_out(sent, components)
    honest = fitted([rows for party, rows in enumerate(parties) if party not in liars], components)
    truth = _components(fitted(parties, components))
    angles = [float(principal_angles(_components(model), truth).mean()) for model in (first, last, honest)]
    at_once = len(set(named_in(first)) & set(liars))
    return [at_once, len(set(out) & set(liars)), len(set(out) - set(liars)), *angles]


def _components(model: PCAModel) -> Array:
    return model.loadings()[0].T


def _cost(dataset: str, root: str, components: int, repeats: int) -> None:
    """CPU time of honest runs, of which the part is measured on its way: two runs differ by more than it is."""
    source = datasets.load(dataset, root)
    rows = source.all_rows()
    print(head(["parties", "CPU time with, of that without"]))
    for count in (10, 50):
        parties = [rows[part] for part in split(source.labels, count, kind="dirichlet", alpha=0.1, seed=42)]
        print(row([str(count), f"{np.median([_ratio(parties, components) for _ in range(repeats)]):.3f}"]), flush=True)


def _ratio(parties: Sequence[Rows], components: int) -> float:
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
