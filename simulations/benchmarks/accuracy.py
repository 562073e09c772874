"""P-COV and AP-COV against `PCA(svd_solver="full")` of the pooled rows: angles, eigenvalues, k-NN accuracy.

python -m simulations.benchmarks accuracy --dataset mnist --data-root DEST
python -m simulations.benchmarks accuracy --dataset images --data-root DEST/cifar10-jpeg
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import row, table
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import knn_accuracy, pooled_pca, principal_angles

from .. import run
from .setting import COMPONENTS, PARTITIONS, data_parser

METHODS = ("p-cov", "ap-cov")
HEADS = (
    "partition",
    "method",
    "max angle (deg)",
    "mean",
    "eigenvalues (rel.)",
    "ratio",
    "bytes up per client",
    "k-NN(5)",
)


def lines(dataset: str, root: str, clients: int, k: int, seed: int, knn: bool) -> list[list[str]]:
    """The rows of one data set's table."""
    source = datasets.load(dataset, root)
    rows = source.all_rows()
    truth = pooled_pca(rows, k)
    found = [["pooled", "PCA full", "0", "0", "0", "0", "-", _knn(truth, source, rows, knn)]]
    for name, how in PARTITIONS.items():
        parts = split(source.labels, clients, seed=seed, **how)
        for method in METHODS:
            model = run(method, [rows[part] for part in parts], n_components=k, engine="loopback", min_rows=1)
            found.append([name, method, *_errors(model, truth), _knn(model, source, rows, knn)])
            print(row(found[-1]), flush=True)
    return found


def _errors(model: PCAModel, truth: PCAModel) -> list[str]:
    angles = principal_angles(model, truth)
    values = np.abs(model.explained_variance_ / truth.explained_variance_ - 1).max()
    ratio = np.abs(model.explained_variance_ratio_ - truth.explained_variance_ratio_).max()
    upload = max(model.log["rounds"][0]["up"])
    return [f"{angles.max:.1e}", f"{angles.mean:.1e}", f"{values:.1e}", f"{ratio:.1e}", f"{upload:,}"]


def _knn(model: PCAModel, source: datasets.Dataset, rows: NDArray[Any], wanted: bool) -> str:
    if not wanted or source.test is None:
        return "-"
    test, truth = source.test()
    return f"{knn_accuracy(model, rows, source.labels, test, truth):.2%}"


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, dataset="digits", clients=10, components=COMPONENTS, seed=42)
    options.add_argument("--no-knn", action="store_true", help="leave out the k-NN column")
    args = options.parse_args(arguments)
    rows = lines(args.dataset, args.data_root, args.clients, args.components, args.seed, not args.no_knn)
    print(f"\n{args.dataset}, {args.clients} clients, {args.components} components, seed {args.seed}\n")
    print(table(HEADS, rows))
