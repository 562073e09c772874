"""What components cost in rounds and bytes, by method and option, and how far off they then are."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.maths import eigen
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.simulations.benchmarks import as_written, harness
from fedpca_flwr.simulations.benchmarks.harness import (
    COMPONENTS,
    DATA,
    PARTITIONS,
    Lines,
    Rows,
    benchmark,
    clients,
    options_text,
    truth,
)
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.measuring import down_by_party

CODECS: list[dict[str, Any]] = [
    *({"codec": "quantise", "bits": bits} for bits in (8, 12, 16, 24)),
    *({"codec": "shared-step", "step": step} for step in (3e-6, 1.5e-5, 5e-5, 1.4e-4, 3e-4)),
    *({"codec": "shared-step", "step": 2e-3, "corrections": times} for times in (1, 2)),
    *({"codec": "shared-step", "step": 6e-4, "corrections": times} for times in (1, 2, 3)),
    {"codec": "shared-step", "step": 2e-4, "tolerance": 1e-6},
    *({"codec": "low-rank", "rank": rank, "bits": bits} for rank, bits in ((100, 8), (100, 10), (150, 12), (200, 12))),
    *({"codec": "low-rank", "rank": 100, "bits": 8, "corrections": times} for times in (1, 2, 4)),
    {"codec": "sketch", "rank": 200, "bits": 24},
]


@benchmark(**DATA)
def compression(args: Namespace) -> Lines:
    """Compressed on MNIST or CIFAR-10 (JPEG): bytes against angle, each codec.

    10 clients, Dirichlet 0.1, 50 components. Bytes are the mean over the clients, count and mean included; times less
    is against a full float64 covariance.
    """
    parts = clients(args.dataset, args.data_root)
    exact = truth(parts)
    yield "codec", "kB up per client", "times less", "mean angle (deg)", "max"
    for options in CODECS:
        model = run("compressed", parts, n_components=COMPONENTS, **options)
        angles = principal_angles(model, exact)
        each, times = model.bytes_up / len(parts), model.log["measured"]["compression_ratio"]
        yield options_text(options), f"{each / 1e3:.0f}", f"{times:.1f}", f"{angles.mean:.2g}", f"{angles.max:.2g}"


@benchmark(**DATA)
def adaptive(args: Namespace) -> Lines:
    """Adaptive: what it chooses, what it forecasts and what happens, by partition and target.

    10 clients, 50 components; targets in degrees, 0: exact. MB are per client, forecast and spent, the survey (some 36
    bytes a feature) left out.
    """
    costs = "rounds: forecast, spent", "MB up", "MB down"
    yield "partition", "score", "target", "chosen", *costs, "angle", "certified"
    for name, how in PARTITIONS.items():
        parts = clients(args.dataset, args.data_root, **how)
        exact = truth(parts)
        for target in (0.0, 0.02, 0.2, 2.0):
            model = run("adaptive", parts, n_components=COMPONENTS, target=target)
            measured, way = model.log["measured"], model.log["chosen"]
            spent = ", ".join(str(measured[f"{when}_rounds"]) for when in ("forecast", "spent"))
            megabytes = [
                ", ".join(f"{measured[f'{when}_bytes_{where}_per_party'] / 1e6:.2f}" for when in ("forecast", "spent"))
                for where in ("up", "down")
            ]
            chosen = f"{way['method']} {options_text(way['options'])}"
            angle = principal_angles(model, exact).max
            score = f"{measured['heterogeneity_score']:.2f}"
            yield name, score, target, chosen, spent, *megabytes, f"{angle:.2g}", certificate(model)


def certificate(model: PCAModel) -> str:
    """The bound of a run as tables show it."""
    measured = model.log["measured"]
    bound = measured.get("angle_bound_degrees", measured.get("certified_angle_degrees"))
    return "exact" if bound is None else eigen.format_upper_bound(bound)


CORRECTED = {"codec": "shared-step", "tolerance": eigen.EXACT_ANGLE_DEGREES}
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


@benchmark(**DATA)
def front(args: Namespace) -> Lines:
    """Bytes against rounds, to components that are exact to 1e-6 degrees for certain: ours, and what was published.

    10 clients, Dirichlet 0.1, 50 components. Rounds are those in which clients send statistics, MB the mean over the
    clients, without the projection at the end. A line is on a front if no other that is certified to 1e-6 degrees has
    at most its rounds and its bytes: the first front counts bytes up, the second bytes up and down. Published methods
    are as written (`as_written`), without the bytes of messages; they certify nothing, so that
    their true angle decides.
    """
    parts = clients(args.dataset, args.data_root)
    exact = truth(parts)
    lines = [ours(method, options, parts, exact) for method, options in OURS]
    lines += [published(name, program, parts, exact) for name, program in PUBLISHED.items()]
    yield "method", "rounds", "MB up", "MB down", "MB up + down", "true angle", "certified", "on the front of"
    for line, on in sorted(zip(lines, fronts(lines), strict=True), key=lambda one: (one[0].rounds, one[0].up)):
        megabytes = [f"{nbytes / 1e6:.3g}" for nbytes in (line.up, line.down, line.up + line.down)]
        yield line.title, line.rounds, *megabytes, f"{line.angle:.1g}", line.certified, on


def ours(method: str, options: dict[str, Any], parts: list[Rows], exact: PCAModel) -> Line:
    model = run(method, parts, n_components=COMPONENTS, **options)
    up, down = np.mean(model.bytes_up_by_party), np.mean(down_by_party(model))
    title = f"{method} {options_text(options)}".strip()
    reached, angle = bool(model.log["exact"]), principal_angles(model, exact).max
    return Line(title, model.rounds, float(up), float(down), angle, certificate(model), reached)


def published(name: str, program: Callable[..., as_written.Result], parts: list[Rows], exact: PCAModel) -> Line:
    found = program(parts, COMPONENTS)
    down = 8 * parts[0].shape[1] * COMPONENTS * (found.rounds - 1)
    angle = float(eigen.principal_angles(found.components.T, exact.loadings()[0].T).max())
    return Line(
        f"{name}, published", found.rounds, found.up, down, angle, "-", reached=angle <= eigen.EXACT_ANGLE_DEGREES
    )


def fronts(lines: Sequence[Line]) -> list[str]:
    """For each line on which of the two fronts it is: ``up``, ``up + down``, both or none."""
    reached = [line for line in lines if line.reached]
    costs: dict[str, Callable[[Line], float]] = {"up": lambda one: one.up, "up + down": lambda one: one.up + one.down}
    found = []
    for line in lines:
        on = [name for name, cost in costs.items() if not any(line.beaten_by(other, cost) for other in reached)]
        found.append(", ".join(on) if line in reached and on else "-")
    return found


@benchmark(
    dataset={"choices": ["mnist", "images", "digits"], "default": "mnist"},
    data_root=".",
    seeds={"nargs": "+", "type": int, "default": []},
    wide=False,
)
def truncation(args: Namespace) -> Lines:
    """QR-PCA truncated, with and without filler, and AP-STACK, on MNIST or CIFAR-10 (JPEG); and wide data, exactly.

        python -m fedpca_flwr.simulations.benchmarks truncation --dataset mnist --data-root DEST \
            --seeds 42 0 1 2 3 4 5 6
        python -m fedpca_flwr.simulations.benchmarks truncation --wide

    10 clients, Dirichlet 0.1, 50 components; wide: 20 clients with 200 rows of 20,000 features. With ``--seeds`` only
    QR-PCA, on a draw of the partition for each seed: the largest angle depends on the draw more than on anything else.
    """
    if args.wide:
        yield from on_wide_data()
        return
    parts = clients(args.dataset, args.data_root)
    exact = truth(parts)
    if args.seeds:
        yield from by_draw(args, exact)
        return
    settings: list[tuple[str, dict[str, Any]]] = [("qr-pca", {})]
    for rank in (50, 100, 200, 400):
        settings += [("qr-pca", {"rank": rank, "filler": filler}) for filler in (True, False)]
        settings += [("ap-stack", {"rank": rank, "party-weights": weights}) for weights in ("none", "rows")]
    yield "method", "options", "max angle (deg)", "mean", "MB up per client"
    for method, options in settings:
        model = run(method, parts, n_components=COMPONENTS, **options)
        angles = principal_angles(model, exact)
        up = max(model.log["rounds"][0]["up"]) / 1e6
        yield method, options_text(options) or "exact", f"{angles.max:.2g}", f"{angles.mean:.2g}", f"{up:.2f}"


def by_draw(args: Namespace, exact: PCAModel) -> Lines:
    yield "partition seed", "fewest rows", "rank 100: max / mean (deg)", "no filler", "rank 200", "no filler"
    for seed in args.seeds:
        parts = clients(args.dataset, args.data_root, seed=seed)
        cells = []
        for rank, filler in itertools.product((100, 200), (True, False)):
            model = run("qr-pca", parts, n_components=COMPONENTS, rank=rank, filler=filler)
            angles = principal_angles(model, exact)
            cells.append(f"{angles.max:.2g} / {angles.mean:.2g}")
        yield seed, min(map(len, parts)), *cells


def on_wide_data() -> Lines:
    number, n, d = 20, 200, 20_000
    parts = harness.drawn(number, n, d, power=0.6, shift=0.3)
    model = run("qr-pca", parts, n_components=COMPONENTS)
    pooled = np.vstack(parts)
    pooled -= pooled.mean(axis=0)
    _, left = eigh(pooled @ pooled.T, subset_by_index=(len(pooled) - COMPONENTS, len(pooled) - 1))
    exact, _ = np.linalg.qr(pooled.T @ left)
    angle = eigen.principal_angles(model.loadings()[0].T, exact).max()
    up = max(model.log["rounds"][0]["up"]) / 1e6
    yield f"{number} clients, {n} rows of {d:,} features: max angle {angle:.1e} degrees, {up:.1f} MB up per client"
    matrix = 8 * d * d / 1e6
    yield f"peak memory of everything here {harness.peak_mb():.0f} MB; one d x d matrix would have {matrix:.0f} MB"
