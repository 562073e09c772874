"""DP-PCA on MNIST or CIFAR-10 (JPEG): what a privacy budget costs, for both kinds of trust.

    python -m simulations.benchmarks privacy --dataset mnist --data-root DEST

10 clients, Dirichlet 0.1, 50 components, delta 1e-5, add/remove of one row; means of several draws of the noise. The
default clips are 7 and 12 times 255: the median distance of MNIST's rows from their mean, and about the largest. They
were read off the data, and so was the default `centre-share` (0.03 of 0.02 to 0.2 tried), which epsilon does not
account for: a user has to guess them. Captured variance is against the exact components'. k-NN(5) says little: a random
projection of MNIST gives 93.9 %. With ``trust='distributed'`` the server of this simulation adds the replies up itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpca_flwr import data
from fedpca_flwr.markdown import head, row
from fedpca_flwr.metrics import knn_accuracy, principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import split
from simulations import run
from simulations.benchmarks.setting import data_parser

CLIENTS, COMPONENTS = 10, 50
EPSILONS = (0.5, 1.0, 5.0, 10.0)


def captured(model: PCAModel, truth: PCAModel) -> float:
    """The variance that a model's components hold, as a share of what the exact ones do.

    The second moment of the rows is taken from all components of the exact model, so no row is read.
    """
    loadings = model.loadings()[0] @ truth.loadings()[0].T
    best = truth.explained_variance_[: model.n_components_].sum()
    return float((loadings**2 @ truth.explained_variance_).sum() / best)


def main(arguments: Sequence[str]) -> None:
    args = data_parser(__doc__, clip=1785.0, centre_clip=3060.0, draws=3).parse_args(arguments)
    source = data.load(args.dataset, args.data_root)
    rows = source.all_rows()
    parts = [rows[part] for part in split(source.labels, CLIENTS, kind="dirichlet", alpha=0.1, seed=42)]
    whole = run("p-cov", parts, n_components=rows.shape[1], engine="loopback")
    truth = run("p-cov", parts, n_components=COMPONENTS, engine="loopback")
    print(head(["trust", "epsilon", "mean angle (deg)", "max", "captured variance", "k-NN(5)"]))
    for trust in ("local", "distributed"):
        for epsilon in EPSILONS:
            options = {"epsilon": epsilon, "clip": args.clip, "centre_clip": args.centre_clip, "trust": trust}
            measured = []
            for _ in range(args.draws):
                model = run(
                    "dp-pca", parts, n_components=COMPONENTS, honest_parties=CLIENTS, engine="loopback", **options
                )
                accuracy = knn_accuracy(model, rows, source.labels, *source.test()) if source.test else np.nan
                angles = principal_angles(model, truth)
                measured.append((angles.mean, angles.max, captured(model, whole), accuracy))
            mean, most, held, accuracy = np.mean(measured, axis=0)
            cells = [trust, f"{epsilon:g}", f"{mean:.1f}", f"{most:.0f}", f"{held:.2%}", f"{accuracy:.2%}"]
            print(row(cells), flush=True)
