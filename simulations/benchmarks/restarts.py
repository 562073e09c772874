"""Restarts of SUB-IT's basis at the server: rounds and columns with and without, and the angles between the two.

    python -m simulations.benchmarks restarts --bed EUR_subset.bed --parties 5
    python -m simulations.benchmarks restarts

A run restarts where basis and products would take more than a gigabyte (`fedpca_flwr.maths.krylov`); here one line
is without that, the other restarts as early as any. Without ``--bed`` rows are drawn, whose variances fall slowly.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths import krylov
from fedpca_flwr.maths.eigen import at_most
from fedpca_flwr.maths.krylov import KnownProducts
from fedpca_flwr.model.reference import principal_angles

from .. import run
from .genotypes import rows_of
from .setting import parser

LIMITS = {"never": 2**62, "as early as any": 0}


def drawn(parties: int) -> list[Any]:
    """Rows (200, 4000) for each party."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((200, 4000)) * np.linspace(2, 1, 4000) ** 3 for _ in range(parties)]


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__, parties=5, components=4)
    options.add_argument("--bed", default="", help="a file of genotypes, with its .bim and .fam beside it")
    args = options.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    parts = rows_of([args.bed], args.parties) if args.bed else drawn(args.parties)
    own = {"genotypes": True} if args.bed else {}
    print(head(["restarts", "rounds", "columns", "certified (deg)", "largest angle to the first line (deg)"]))
    first: Any = None
    for name, limit in LIMITS.items():
        columns, ritz = [0], KnownProducts.ritz

        def noting(known: KnownProducts, columns: list[int] = columns, ritz: Any = ritz) -> Any:
            columns.append(known.Q.shape[1])
            return ritz(known)

        with patch.object(krylov, "BASIS_BYTES", limit), patch.object(KnownProducts, "ritz", noting):
            model = run("sub-it", parts, n_components=args.components, engine="loopback", tolerance=1e-4, **own)
        first = first or model
        certified = at_most(model.log["measured"]["certified_angle_degrees"])
        angle = f"{principal_angles(model, first).max:.1e}" if model is not first else "-"
        print(row([name, str(model.rounds), str(max(columns)), certified, angle]), flush=True)
