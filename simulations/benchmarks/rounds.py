"""SUB-IT on MNIST or CIFAR-10 (JPEG): rounds and bytes to 1e-6 degrees, and where the certificate stops.

    python -m simulations.benchmarks rounds --dataset mnist --data-root DEST
    python -m simulations.benchmarks rounds --dataset images --data-root DEST/cifar10-jpeg

10 clients, Dirichlet 0.1, 50 components. The truth is P-COV, itself at 1e-12 degrees (`accuracy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.eigen import at_most
from fedpca_flwr.model.reference import principal_angles

from .. import run
from .setting import COMPONENTS, clients, data_parser, truth

SETTINGS: dict[str, dict[str, Any]] = {
    "block Krylov, b = 60": {},
    "block Krylov, b = 10": {"block_size": 10},
    "sketch and refine, r = 200": {"warm_start": "svd"},
    "sketch and refine, r = 200, float32": {"warm_start": "svd", "wire": "float32"},
    "plain, b = 50": {"acceleration": "none", "block_size": 50},
}
FEW = {"mnist": (8, 19, 4, 4, 100), "images": (9, 22, 5, 5, 100), "digits": (1, 5, 1, 1, 100)}


def main(arguments: Sequence[str]) -> None:
    args = data_parser(__doc__).parse_args(arguments)
    parts = clients(args.dataset, args.data_root)
    exact = truth(parts)
    print(head(["method", "rounds", "max angle (deg)", "certified", "MB up per client", "MB down per client"]))
    for (name, options), few in zip(SETTINGS.items(), FEW[args.dataset], strict=True):
        stops = [few] if "plain" in name else [few, 100]
        for rounds in stops:
            model = run("sub-it", parts, n_components=COMPONENTS, engine="loopback", max_rounds=rounds, **options)
            fit = [entry for entry in model.log["rounds"] if entry["phase"] != "project"]
            up = max(model.bytes_up_by_party) / 1e6
            down = max(map(sum, zip(*(entry["down"] for entry in fit), strict=True))) / 1e6
            degrees = model.log["measured"]["certified_angle_degrees"]
            certified = at_most(degrees) if degrees < 90 else "no bound"
            angle = principal_angles(model, exact).max
            print(row([name, model.rounds, f"{angle:.1e}", certified, f"{up:.2f}", f"{down:.2f}"]), flush=True)
