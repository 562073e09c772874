"""Adaptive: what it chooses, what it forecasts and what happens, by partition and target.

    python -m simulations.benchmarks adaptive --dataset mnist --data-root DEST
    python -m simulations.benchmarks adaptive --dataset images --data-root DEST/cifar10-jpeg

10 clients, 50 components; targets in degrees, 0: exact. MB are up plus down per client, the survey (about 32 bytes a
feature) left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpca_flwr.markdown import head, row
from fedpca_flwr.maths.certificate import at_most
from fedpca_flwr.metrics import principal_angles
from fedpca_flwr.model import PCAModel
from simulations import run
from simulations.benchmarks.setting import COMPONENTS, PARTITIONS, clients, data_parser, options_text, truth

TARGETS = (0.0, 0.02, 0.2, 2.0)


def spent(model: PCAModel) -> tuple[int, float]:
    entries = [entry for entry in model.log["rounds"] if entry["phase"] not in {"survey", "project"}]
    total = sum(sum(entry["up"]) + sum(entry["down"]) for entry in entries)
    return len(entries), total / len(entries[0]["up"]) / 1e6


def main(arguments: Sequence[str]) -> None:
    args = data_parser(__doc__).parse_args(arguments)
    heads = ["partition", "score", "target", "chosen", "rounds: forecast, spent", "MB", "largest angle", "bound"]
    print(head(heads))
    for name, how in PARTITIONS.items():
        parts = clients(args.dataset, args.data_root, **how)
        exact = truth(parts)
        for target in TARGETS:
            model = run("adaptive", parts, n_components=COMPONENTS, engine="loopback", target=target)
            way, measured = model.log["candidates"][0], model.log["measured"]
            rounds, megabytes = spent(model)
            forecast = (way["up"] + way["down"]) / 1e6
            angle = principal_angles(model, exact).max
            bounds = [measured[name] for name in ("angle_bound_degrees", "certified_angle_degrees") if name in measured]
            bound = at_most(bounds[0]) if bounds else "exact"
            score = f"{measured['heterogeneity_score']:.2f}"
            chosen = f"{way['method']} {options_text(way['options'])}"
            cells = [name, score, target, chosen, f"{way['rounds']}, {rounds}"]
            cells += [f"{forecast:.2f}, {megabytes:.2f}", f"{way['angle']:.2g}, {angle:.2g}", bound]
            print(row(cells), flush=True)
