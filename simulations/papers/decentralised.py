"""DSA and FAST-PCA (Gang and Bajwa 2021), which note 001 found in the literature: error by rounds and by bytes.

    python -m fedpca_flwr.simulations.papers decentralised --output DIR

Some five minutes on one core. Digits at 10 parties, alike and by Dirichlet 0.1, 5 components, on a ring, a grid, an
Erdős-Rényi and a complete graph, beside P-COV. Angles are the largest to the components of all rows, in degrees.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.figures.style import COLOURS
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks.harness import PARTITIONS, Rows, clients
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.papers.experiment import Line, Panel, Paper, Row, Step, markdown, plot, select

METHODS, GRAPHS = ("dsa", "fast-pca"), ("ring", "grid", "erdos-renyi", "complete")
COMPONENTS = 5


def steps(iterations: Sequence[int]) -> list[Step]:
    """List the steps: P-COV for each partition, and each decentralised method for each graph and partition."""
    plan = []
    for partition in ("IID", "Dirichlet 0.1"):
        kind = partition.replace(" ", "-")
        plan.append(Step(f"p-cov-{kind}", _exact, {"partition": partition}))
        for method in METHODS:
            for graph in GRAPHS:
                case = {"partition": partition, "method": method, "graph": graph, "iterations": list(iterations)}
                plan.append(Step(f"{method}-{graph}-{kind}", _approach, case))
    return plan


def _exact(*, partition: str) -> Iterable[Row]:
    """Yield cost and angle of P-COV, the exact method of a single round, on a partition of the digits."""
    parts = clients("digits", ".", **PARTITIONS[partition])
    yield _row(run("p-cov", parts, n_components=COMPONENTS, min_rows=1), parts)


def _approach(*, partition: str, method: str, graph: str, iterations: list[int]) -> Iterable[Row]:
    """Yield a decentralised method's cost, angle and disagreement of the parties, by number of iterations."""
    parts = clients("digits", ".", **PARTITIONS[partition])
    for number in iterations:
        chosen: dict[str, Any] = {"graph": graph, "iterations": number, "min_rows": 1}
        model = run(method, parts, n_components=COMPONENTS, **chosen)
        yield {"iterations": number, **_row(model, parts), "apart": model.log["measured"]["consensus_error_degrees"]}


def _row(model: PCAModel, parts: Sequence[Rows]) -> Row:
    """Return a model's rounds, mean MB of a party, and largest angle in degrees to the pooled components."""
    angle = principal_angles(model, pooled_pca(np.vstack(parts), COMPONENTS)).max
    sent = {"MB up": model.bytes_up / len(parts) / 1e6, "MB down": model.bytes_down / len(parts) / 1e6}
    return {"rounds": model.rounds, **sent, "angle": angle}


def _figures(results: Mapping[str, list[Row]], folder: Path) -> dict[str, str]:
    """Draw angles by rounds and by bytes, with P-COV as a star, and return the report's texts by heading."""
    kinds = list(select(results, "p-cov-"))
    panels = []
    for cost, label in (("rounds", "rounds"), ("MB up", "MB sent by a party")):
        for kind in kinds:
            lines = []
            for method, style in zip(METHODS, (":", "-"), strict=True):
                for graph, colour, marker in zip(GRAPHS, COLOURS, "os^D", strict=False):
                    look = {"linestyle": style, "color": colour, "marker": marker}
                    name = f"{method}, {graph}"
                    lines.append(Line.of(name, results[f"{method}-{graph}-{kind}"], cost, "angle", look))
            (best,) = results[f"p-cov-{kind}"]
            star = {"linestyle": "", "marker": "*", "color": "black", "markersize": 12}
            lines.append(Line("p-cov", [best[cost]], [max(best["angle"], 1e-7)], star))
            scales = {"xscale": "log", "yscale": "log"}
            panels.append(Panel(lines, {"title": kind, "xlabel": label, "ylabel": "largest angle, degrees", **scales}))
    plot(folder / "decentralised.png", panels, wide=len(kinds), sharey=True)
    keys = ("rounds", "MB up", "MB down", "angle")
    table = [{"method and graph": name, **{key: rows[-1][key] for key in keys}} for name, rows in results.items()]
    return {"Error by rounds and by bytes": "![](decentralised.png)", "At the end": markdown(table, ".3g")}


TITLE = "Without a server: DSA and FAST-PCA on graphs"
PAPER = Paper("decentralised", __doc__, TITLE, {"iterations": [30, 100, 300, 1000]}, steps, _figures)
