"""DP-PCA by directions, which need no bound, beside two stages with clips that were searched for with the data in hand.

    python -m simulations.benchmarks privacy --dataset mnist --data-root DEST

Dirichlet 0.1 (a file of numbers: split evenly), delta 1e-5, one row added or removed; means of several draws of the
noise. Clips are multiples of the median distance of the rows from their mean, centre clips of their median length:
``--clips`` and ``--centre-clips`` name those that are tried, of which epsilon takes no account; a user guesses them.
Captured variance is against the exact components'; claimed, what the model's own variances say. ``--replaced 0.05`` has
every twentieth row replaced by one of 1e6 in each feature, captured variance being that of the other rows. With
``trust='distributed'`` the server of this simulation adds the replies up itself; ``--clients 1 --trust local`` is the
same noise in all, drawn once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.private_scatter import lengths
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import principal_angles

from .. import run
from .setting import parser


def main(arguments: Sequence[str]) -> None:
    given = parser(__doc__, clients=10, components=50, draws=3, replaced=0.0)
    given.add_argument("--dataset", choices=["mnist", "images", "digits", "breast-cancer"])
    given.add_argument("--data-root", default=".")
    given.add_argument("--file", help="of numbers, by commas, in the place of a data set; other columns are left out")
    given.add_argument("--trust", default="distributed", choices=["local", "distributed"])
    given.add_argument("--epsilons", type=float, nargs="*", default=[0.5, 1.0, 2.0])
    given.add_argument("--clips", type=float, nargs="*", default=[0.25, 1.0, 4.0])
    given.add_argument("--centre-clips", type=float, nargs="*", default=[1.0])
    args = given.parse_args(arguments)
    rows, parts = rows_of(args)
    whole = run("p-cov", [rows], n_components=rows.shape[1], engine="loopback")
    truth = run("p-cov", [rows], n_components=args.components, engine="loopback")
    private = [dirty(part, args.replaced) for part in parts]
    print(head(["release", "epsilon", "captured variance", "claimed", "mean angle (deg)", "max"]))
    for release in releases(rows, args.clips, args.centre_clips):
        for epsilon in args.epsilons:
            options = {"epsilon": epsilon, "trust": args.trust, "honest_parties": args.clients, **release}
            measured = []
            for _ in range(args.draws):
                model = run("dp-pca", private, n_components=args.components, engine="loopback", **options)
                angles = principal_angles(model, truth)
                claimed = float(model.explained_variance_ratio_.sum())
                measured.append((captured(model, whole), claimed, angles.mean, angles.max))
            held, claimed, mean, most = np.mean(measured, axis=0)
            name = " ".join(str(value) if isinstance(value, str) else f"{value:.4g}" for value in release.values())
            share = "unknown" if np.isnan(claimed) else f"{claimed:.2%}"
            print(row([name, f"{epsilon:g}", f"{held:.2%}", share, f"{mean:.1f}", f"{most:.0f}"]), flush=True)


def rows_of(args: Any) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """All rows, and those of each client."""
    if args.file:
        table = np.genfromtxt(args.file, delimiter=",")
        rows = table[:, np.isfinite(table).all(axis=0)]
        return rows, np.array_split(rows, args.clients)
    source = datasets.load(args.dataset, args.data_root)
    rows = source.all_rows()
    places = split(source.labels, args.clients, kind="dirichlet", alpha=0.1, seed=42)
    return rows, [rows[part] for part in places]


def releases(rows: NDArray[Any], clips: Sequence[float], centre_clips: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Options of `dp-pca`: the one that needs no bounds, and the other with bounds that were read off the data."""
    yield {"release": "directions"}
    sample = rows[:: max(1, len(rows) // 5000)].astype(np.float64)
    distance, length = np.median(lengths(sample - sample.mean(axis=0))), np.median(lengths(sample))
    for clip in clips:
        for centre_clip in centre_clips:
            bounds = {"clip": float(clip * distance), "centre_clip": float(centre_clip * length)}
            yield {"release": "two-stage", **bounds}


def dirty(rows: NDArray[Any], share: float) -> NDArray[Any]:
    """Rows of which a share is replaced by what is far off."""
    changed = rows
    if share:
        changed = rows.astype(np.float64)
        changed[:: round(1 / share)] = 1e6
    return changed


def captured(model: PCAModel, truth: PCAModel) -> float:
    """The variance that a model's components hold, as a share of what the exact ones do.

    The second moment of the rows is taken from all components of the exact model, so no row is read.
    """
    loadings = model.loadings()[0] @ truth.loadings()[0].T
    best = truth.explained_variance_[: model.n_components_].sum()
    return float((loadings**2 @ truth.explained_variance_).sum() / best)
