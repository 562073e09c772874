"""QR-PCA truncated, with and without filler, and AP-STACK, on MNIST or CIFAR-10 (JPEG); and wide data, exactly.

    python -m simulations.benchmarks truncation --dataset mnist --data-root DEST
    python -m simulations.benchmarks truncation --dataset mnist --data-root DEST --seeds 42 0 1 2 3 4 5 6
    python -m simulations.benchmarks truncation --wide

10 clients, Dirichlet 0.1, 50 components; wide: 20 clients with 200 rows of 20,000 features. With ``--seeds`` only
QR-PCA, on a draw of the partition for each seed: the largest angle depends on the draw more than on anything else.
"""

from __future__ import annotations

import itertools
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.model.reference import principal_angles

from .. import run
from .setting import COMPONENTS, clients, data_parser, options_text, truth


def truncation(dataset: str, root: str) -> None:
    parts = clients(dataset, root)
    exact = truth(parts)
    settings: list[tuple[str, dict[str, Any]]] = [("qr-pca", {})]
    for rank in (50, 100, 200, 400):
        settings += [("qr-pca", {"rank": rank, "filler": filler}) for filler in (True, False)]
        settings += [("ap-stack", {"rank": rank, "weights": weights}) for weights in ("none", "rows")]
    print(head(["method", "options", "max angle (deg)", "mean", "MB up per client"]))
    for method, options in settings:
        model = run(method, parts, n_components=COMPONENTS, engine="loopback", **options)
        angles = principal_angles(model, exact)
        up = max(model.log["rounds"][0]["up"]) / 1e6
        cells = [method, options_text(options) or "exact", f"{angles.max:.2g}", f"{angles.mean:.2g}", f"{up:.2f}"]
        print(row(cells), flush=True)


def draws(dataset: str, root: str, seeds: Sequence[int]) -> None:
    exact = truth(clients(dataset, root))
    heads = ["partition seed", "fewest rows", "rank 100: max / mean (deg)", "no filler", "rank 200", "no filler"]
    print(head(heads))
    for seed in seeds:
        parts = clients(dataset, root, seed=seed)
        cells = [str(seed), str(min(map(len, parts)))]
        for rank, filler in itertools.product((100, 200), (True, False)):
            model = run("qr-pca", parts, n_components=COMPONENTS, engine="loopback", rank=rank, filler=filler)
            angles = principal_angles(model, exact)
            cells.append(f"{angles.max:.2g} / {angles.mean:.2g}")
        print(row(cells), flush=True)


def wide() -> None:
    rng = np.random.default_rng(0)
    d, n, number = 20_000, 200, 20
    spectrum = np.arange(1, d + 1) ** -0.6
    parts = [(rng.standard_normal((n, d)) + 0.3 * rng.standard_normal(d)) * spectrum for _ in range(number)]
    model = run("qr-pca", parts, n_components=COMPONENTS, engine="loopback")
    pooled = np.vstack(parts)
    pooled -= pooled.mean(axis=0)
    _, left = eigh(pooled @ pooled.T, subset_by_index=(len(pooled) - COMPONENTS, len(pooled) - 1))
    exact, _ = np.linalg.qr(pooled.T @ left)
    angle = angles_between(model.loadings()[0].T, exact).max()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    up = max(model.log["rounds"][0]["up"]) / 1e6
    print(f"{number} clients, {n} rows of {d:,} features: max angle {angle:.1e} degrees, {up:.1f} MB up per client")
    print(f"peak memory of everything here {peak:.0f} MB; one d x d matrix would have {8 * d * d / 1e6:.0f} MB")


def main(arguments: Sequence[str]) -> None:
    if list(arguments) == ["--wide"]:
        return wide()
    options = data_parser(__doc__)
    options.add_argument("--seeds", nargs="+", type=int, default=[], help="of the partition, one line each")
    args = options.parse_args(arguments)
    if args.seeds:
        return draws(args.dataset, args.data_root, args.seeds)
    return truncation(args.dataset, args.data_root)
