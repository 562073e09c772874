"""What kept moments give beside scikit-learn on the pooled rows: images classified, and Horn's parallel analysis.

    python -m simulations.benchmarks kept-moments --dataset mnist --data-root DEST
    python -m simulations.benchmarks kept-moments --horn rows.csv

The first: linear discriminants of 10 clients (Dirichlet 0.1), whose rows have a column for each class, by one run of
p-cov. With ``--horn`` the components that parallel analysis keeps by 100 triangular factors and by 1,000 whole data
matrices, on the sets that scikit-learn has and on the numeric columns of other files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedpca_flwr import analyses
from fedpca_flwr.analyses import Discriminant
from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.model.second_moments import SecondMoments

from .. import run
from .setting import data_parser

WHOLE_DRAWS = 1000


def classified(dataset: str, root: str) -> None:
    source = datasets.load(dataset, root)
    rows, labels = np.asarray(source.all_rows(), dtype=np.float64), source.labels
    classes, d = np.unique(labels), rows.shape[1]
    coded = np.hstack([rows, labels[:, None] == classes])
    parties = [coded[part] for part in split(labels, 10, kind="dirichlet", alpha=0.1, seed=42)]
    model = run("p-cov", parties, n_components=1, keep="moments", engine="loopback", min_rows=1)
    assert model.moments_ is not None
    ours: Discriminant = analyses.discriminant(model.moments_, list(range(d, d + len(classes))))
    theirs = LinearDiscriminantAnalysis().fit(rows, labels)
    new, truth = (rows, labels) if source.test is None else source.test()
    own, other = classes[ours.predict(new)], theirs.predict(new)
    difference = np.abs(ours.decision(new) - theirs.decision_function(new)).max()
    print(head(["rows classified", "in the same class", "right, ours", "right, scikit-learn", "largest difference"]))
    shares = [f"{np.mean(own == truth):.2%}", f"{np.mean(other == truth):.2%}"]
    print(row([str(len(new)), str(int((own == other).sum())), *shares, f"{difference:.1e}"]))


def horn(files: Sequence[str]) -> None:
    sets = {"digits": load_digits().data, "wine": load_wine().data, "breast-cancer": load_breast_cancer().data}
    for file in files:
        table = np.genfromtxt(file, delimiter=",")
        sets[Path(file).stem] = table[:, ~np.isnan(table).any(axis=0)]
    print(head(["data", "scaled", "triangular factors", "whole data matrices"]))
    for name, rows in sets.items():
        for scale in (False, True):
            found = analyses.how_many(SecondMoments.of(rows), scale=scale).by_rule["parallel analysis (Horn)"]
            print(row([name, str(scale), str(found), str(_by_whole_draws(rows, scale=scale))]), flush=True)


def _by_whole_draws(X: NDArray[Any], *, scale: bool) -> int:
    spread = X.std(axis=0)
    X, spread = (X / np.where(spread > 0, spread, 1), np.where(spread > 0, 1.0, 0.0)) if scale else (X, spread)
    rng = np.random.default_rng(1)
    drawn = [
        np.linalg.eigvalsh(np.cov(rng.standard_normal(X.shape) * spread, rowvar=False)) for _ in range(WHOLE_DRAWS)
    ]
    above = np.linalg.eigvalsh(np.cov(X, rowvar=False)) > np.percentile(drawn, 95, axis=0)
    return int(np.append(above[::-1], False).argmin())


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, dataset="digits")
    options.add_argument("--horn", nargs="*", metavar="CSV")
    args = options.parse_args(arguments)
    return classified(args.dataset, args.data_root) if args.horn is None else horn(args.horn)
