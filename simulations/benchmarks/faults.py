"""Faults of sensors found by SPE, by a federated model and by scikit-learn's PCA of the pooled rows.

    python -m simulations.benchmarks faults --motes q8calibLight.dat

Light at 48 motes, of which six parties hold the first half of the time. On the second half one sensor of every
twentieth row is stuck at another row's value, or off by as much as its deviation. AUC: how often a faulty row has a
larger SPE than a good one. Without --motes, rows of five hidden signals stand for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from fedpca_flwr import analyses
from fedpca_flwr.figures.markdown import head, row

from .. import run
from .setting import parser

PARTIES, EVERY = 6, 20


def faulty(rows: NDArray[Any], kind: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Rows with a fault in one sensor of some, and which these are."""
    rng = np.random.default_rng(0)
    spoilt, marked = rows.copy(), np.arange(len(rows)) % EVERY == 0
    for i in np.flatnonzero(marked):
        j = rng.integers(rows.shape[1])
        spoilt[i, j] = rows[rng.integers(len(rows)), j] if kind == "stuck" else rows[i, j] + rows[:, j].std()
    return spoilt, marked


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__, components=4)
    options.add_argument("--motes", type=Path)
    args = options.parse_args(arguments)
    rows = _signals() if args.motes is None else np.loadtxt(args.motes)
    before, after = np.array_split(rows, 2)
    k = args.components
    model = run("p-cov", np.array_split(before, PARTIES), n_components=k, engine="loopback")
    pooled = PCA(k, svd_solver="full").fit(before)
    print(head(["fault", "AUC, federated", "AUC, pooled", "difference"]))
    for kind in ("stuck", "off"):
        spoilt, marked = faulty(after, kind)
        left = spoilt - pooled.inverse_transform(pooled.transform(spoilt))
        ours = roc_auc_score(marked, analyses.outliers(model, spoilt).spe)
        theirs = roc_auc_score(marked, np.sum(left**2, axis=1))
        print(row([kind, f"{ours:.4f}", f"{theirs:.4f}", f"{abs(ours - theirs):.0e}"]), flush=True)


def _signals() -> NDArray[Any]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((2000, 5)) @ rng.standard_normal((5, 20)) + 0.3 * rng.standard_normal((2000, 20))
