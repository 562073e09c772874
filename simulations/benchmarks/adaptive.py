"""Adaptive: what it chooses, what it forecasts and what happens, by partition and target.

    python -m simulations.benchmarks adaptive --dataset mnist --data-root DEST
    python -m simulations.benchmarks adaptive --dataset images --data-root DEST/cifar10-jpeg

10 clients, 50 components; targets in degrees, 0: exact. MB are per client, forecast and spent, the survey (some 36
bytes a feature) left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.eigen import at_most
from fedpca_flwr.model.reference import principal_angles

from .. import run
from .setting import COMPONENTS, PARTITIONS, clients, data_parser, options_text, truth

TARGETS = (0.0, 0.02, 0.2, 2.0)


def main(arguments: Sequence[str]) -> None:
    args = data_parser(__doc__).parse_args(arguments)
    heads = [
        "partition",
        "score",
        "target",
        "chosen",
        "rounds: forecast, spent",
        "MB up",
        "MB down",
        "angle",
        "certified",
    ]
    print(head(heads))
    for name, how in PARTITIONS.items():
        parts = clients(args.dataset, args.data_root, **how)
        exact = truth(parts)
        for target in TARGETS:
            model = run("adaptive", parts, n_components=COMPONENTS, engine="loopback", target=target)
            measured, way = model.log["measured"], model.log["chosen"]
            numbers = [measured[f"{when}_rounds"] for when in ("forecast", "spent")]
            sent = [
                ", ".join(f"{measured[f'{when}_bytes_{where}_per_party'] / 1e6:.2f}" for when in ("forecast", "spent"))
                for where in ("up", "down")
            ]
            angle = principal_angles(model, exact).max
            bounds = [measured[name] for name in ("angle_bound_degrees", "certified_angle_degrees") if name in measured]
            bound = at_most(bounds[0]) if bounds else "exact"
            chosen = f"{way['method']} {options_text(way['options'])}"
            cells = [
                name,
                f"{measured['heterogeneity_score']:.2f}",
                target,
                chosen,
                ", ".join(map(str, numbers)),
                *sent,
            ]
            print(row([*cells, f"{angle:.2g}", bound]), flush=True)
