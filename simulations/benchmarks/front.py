"""Bytes against rounds, to components that are exact to 1e-6 degrees for certain: ours, and what was published.

    python -m simulations.benchmarks front --dataset mnist --data-root DEST

10 clients, Dirichlet 0.1, 50 components. Rounds are those in which clients send statistics, MB the mean over the
clients, without the projection at the end. A line is on a front if no other that is certified to 1e-6 degrees has at
most its rounds and its bytes: the first front counts bytes up, the second bytes up and down. Published methods are as
written (`simulations.benchmarks.as_written`), without the bytes of messages; they certify nothing, so that their true
angle decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.eigen import EXACT, at_most, principal_angles
from fedpca_flwr.model.model import PCAModel

from .. import run
from . import as_written
from .setting import COMPONENTS, clients, data_parser, options_text, truth

CORRECTED = {"codec": "shared-step", "tolerance": EXACT}
OURS: list[tuple[str, dict[str, Any]]] = [
    ("p-cov", {}),
    ("qr-pca", {}),
    ("sub-it", {}),
    ("sub-it", {"block_size": 10}),
    ("sub-it", {"warm_start": "svd"}),
    ("sub-it", {"warm_start": "svd", "wire": "float32"}),
    *(("compressed", {**CORRECTED, "step": step}) for step in (1e-7, 2e-6, 2e-5, 2e-4)),
    ("adaptive", {}),
    ("adaptive", {"download_weight": 0.0}),
    ("adaptive", {"download_weight": 1e3}),
]
PUBLISHED: dict[str, Callable[..., as_written.Result]] = {
    "P-COV": as_written.p_cov,
    "SUB-IT": as_written.sub_it,
    "QR-PCA": as_written.qr_pca,
    "AP-STACK": as_written.ap_stack,
    "AP-COV": as_written.ap_cov,
}


class Line(NamedTuple):
    """A way, what it costs each client, how far off it is, and whether it counts as exact."""

    title: str
    rounds: int
    up: float
    down: float
    angle: float
    certified: str
    reached: bool

    def beaten_by(self, other: Line, cost: Callable[[Line], float]) -> bool:
        """Whether the other is nowhere worse, and somewhere better."""
        here, there = (self.rounds, cost(self)), (other.rounds, cost(other))
        return there != here and there[0] <= here[0] and there[1] <= here[1]


def ours(method: str, options: dict[str, Any], parts: list[NDArray[Any]], exact: PCAModel) -> Line:
    model = run(method, parts, n_components=COMPONENTS, engine="loopback", **options)
    entries = [entry for entry in model.log["rounds"] if entry["phase"] != "project"]
    up, down = (sum(sum(entry[way]) for entry in entries) / len(parts) for way in ("up", "down"))
    measured = model.log["measured"]
    bound = measured.get("angle_bound_degrees", measured.get("certified_angle_degrees"))
    angle = float(principal_angles(model.loadings()[0].T, exact.loadings()[0].T).max())
    certified = "exact" if bound is None else at_most(bound)
    title = f"{method} {options_text(options)}".strip()
    return Line(title, len(entries), up, down, angle, certified, reached=bool(model.log["exact"]))


def published(name: str, program: Callable[..., as_written.Result], parts: list[NDArray[Any]], exact: PCAModel) -> Line:
    found = program(parts, COMPONENTS)
    down = 8 * parts[0].shape[1] * COMPONENTS * (found.rounds - 1)
    angle = float(principal_angles(found.components.T, exact.loadings()[0].T).max())
    return Line(f"{name}, published", found.rounds, found.up, down, angle, "-", reached=angle <= EXACT)


def fronts(lines: Sequence[Line]) -> list[str]:
    """For each line on which of the two fronts it is: ``up``, ``up + down``, both or none."""
    reached = [line for line in lines if line.reached]
    costs: dict[str, Callable[[Line], float]] = {"up": lambda one: one.up, "up + down": lambda one: one.up + one.down}
    found = []
    for line in lines:
        on = [name for name, cost in costs.items() if not any(line.beaten_by(other, cost) for other in reached)]
        found.append(", ".join(on) if line in reached and on else "-")
    return found


def main(arguments: Sequence[str]) -> None:
    args = data_parser(__doc__).parse_args(arguments)
    parts = clients(args.dataset, args.data_root)
    exact = truth(parts)
    lines = [ours(method, options, parts, exact) for method, options in OURS]
    lines += [published(name, program, parts, exact) for name, program in PUBLISHED.items()]
    print(head(["method", "rounds", "MB up", "MB down", "MB up + down", "true angle", "certified", "on the front of"]))
    for line, on in sorted(zip(lines, fronts(lines), strict=True), key=lambda one: (one[0].rounds, one[0].up)):
        sent = [f"{nbytes / 1e6:.3g}" for nbytes in (line.up, line.down, line.up + line.down)]
        print(row([line.title, str(line.rounds), *sent, f"{line.angle:.1g}", line.certified, on]))
