"""P-COV and AP-COV against `PCA(svd_solver="full")` of the pooled rows: angles, eigenvalues, k-NN accuracy.

python -m simulations.benchmarks.accuracy --dataset mnist --data-root DEST
python -m simulations.benchmarks.accuracy --dataset images --data-root DEST/cifar10-jpeg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr import data
from fedpca_flwr.metrics import knn_accuracy, principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import split
from fedpca_flwr.reference import pooled_pca
from simulations import run
from simulations.benchmarks.setting import PARTITIONS

METHODS = ("p-cov", "ap-cov")


def table(dataset: str, root: str, clients: int, k: int, seed: int, knn: bool) -> list[str]:
    """The Markdown rows of one data set."""
    source = data.load(dataset, root)
    rows = source.all_rows()
    truth = pooled_pca(rows, k)
    lines = [
        "| partition | method | max angle (deg) | mean | eigenvalues (rel.) | ratio | bytes up per client | k-NN(5) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        f"| pooled | PCA full | 0 | 0 | 0 | 0 | - | {_knn(truth, source, rows, knn)} |",
    ]
    for name, how in PARTITIONS.items():
        parts = split(source.labels, clients, seed=seed, **how)
        for method in METHODS:
            model = run(method, [rows[part] for part in parts], n_components=k, engine="loopback", min_rows=1)
            lines.append(f"| {name} | {method} | {_errors(model, truth)} | {_knn(model, source, rows, knn)} |")
            print(lines[-1], flush=True)
    return lines


def _errors(model: PCAModel, truth: PCAModel) -> str:
    angles = principal_angles(model, truth)
    values = np.abs(model.explained_variance_ / truth.explained_variance_ - 1).max()
    ratio = np.abs(model.explained_variance_ratio_ - truth.explained_variance_ratio_).max()
    upload = max(model.log["rounds"][0]["up"])
    return f"{angles.max:.1e} | {angles.mean:.1e} | {values:.1e} | {ratio:.1e} | {upload:,}"


def _knn(model: PCAModel, source: data.Dataset, rows: NDArray[Any], wanted: bool) -> str:
    if not wanted or source.test is None:
        return "-"
    test, truth = source.test()
    return f"{knn_accuracy(model, rows, source.labels, test, truth):.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", choices=list(data.DATASETS))
    parser.add_argument("--data-root", default=".")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-knn", action="store_true", help="leave out the k-NN column")
    args = parser.parse_args(arguments)
    lines = table(args.dataset, args.data_root, args.clients, args.components, args.seed, not args.no_knn)
    print(f"\n{args.dataset}, {args.clients} clients, {args.components} components, seed {args.seed}\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
