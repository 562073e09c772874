"""Rounds and bytes of components, by method and option, and the angles that they leave."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.benchmarks import as_written, harness
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines, Rows
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.measuring import down_by_party

PAGE = "docs/benchmarks.md"
COST = "rounds", "MB up", "MB down", "max angle (deg)", "mean", "certified"


class Cost(NamedTuple):
    """Title of a method, rounds, bytes up and down (means over clients), angles, bound, and whether they are exact."""

    title: str
    rounds: int
    up: float
    down: float
    angles: Array
    certified: str
    exact: bool

    def cells(self) -> list[object]:
        """Return the cells that `COST` heads."""
        megabytes = [f"{nbytes / 1e6:.3g}" for nbytes in (self.up, self.down)]
        return [self.rounds, *megabytes, f"{self.angles.max():.2g}", f"{self.angles.mean():.2g}", self.certified]


def _cost(parts: Sequence[Rows], truth: Array, method: str, **options: Any) -> tuple[Cost, PCAModel]:
    """Run a method beside the exact components (d, k)."""
    model = run(method, parts, n_components=COMPONENTS, **options)
    angles, numbers = eigen.principal_angles(model.loadings()[0].T, truth), model.log["measured"]
    up, down = float(np.mean(model.bytes_up_by_party)), float(np.mean(down_by_party(model)))
    bound = numbers.get("angle_bound_degrees", numbers.get("certified_angle_degrees"))
    exact = bool(model.log["exact"])
    certified = eigen.at_most(bound) if bound is not None else "exact" if exact else "-"
    return Cost(harness.options_text(method, **options), model.rounds, up, down, angles, certified, exact), model


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


@harness.benchmark(PAGE, dataset="digits")
def _compression(dataset: harness.Dataset, data_root: str = ".") -> Lines:
    """Compare the codecs of `compressed`: bytes, times less than a full float64 covariance, and angles.

    10 clients, Dirichlet 0.1, 50 components. Bytes are the mean over the clients, count and mean included.
    """
    parts = harness.clients(dataset, data_root)
    truth = harness.exact_components(parts)
    yield "method", "times less", *COST
    for options in CODECS:
        if options.get("rank", 0) <= len(truth):
            cost, model = _cost(parts, truth, "compressed", **options)
            yield cost.title, f"{model.log['measured']['compression_ratio']:.1f}", *cost.cells()


@harness.benchmark(PAGE, dataset="digits")
def _adaptive(dataset: harness.Dataset, data_root: str = ".") -> Lines:
    """Compare what `adaptive` forecasts with what it spends, by partition and target (degrees; 0: exact).

    10 clients, 50 components. MB are per client, forecast and spent, the survey (some 36 bytes a feature) left out.
    """
    costs = "rounds: forecast, spent", "MB up: forecast, spent", "MB down: forecast, spent"
    yield "partition", "score", "target", "chosen", *costs, "angle", "certified"
    for name, how in harness.PARTITIONS.items():
        parts = harness.clients(dataset, data_root, **how)
        truth = harness.exact_components(parts)
        for target in (0.0, 0.02, 0.2, 2.0):
            cost, model = _cost(parts, truth, "adaptive", target=target)
            numbers, chosen = model.log["measured"], model.log["chosen"]
            cells = [f"{numbers['forecast_rounds']}, {numbers['spent_rounds']}"]
            for way in ("up", "down"):
                forecast, spent = (numbers[f"{when}_bytes_{way}_per_party"] / 1e6 for when in ("forecast", "spent"))
                cells.append(f"{forecast:.2f}, {spent:.2f}")
            title, score = harness.options_text(chosen["method"], **chosen["options"]), numbers["heterogeneity_score"]
            yield name, f"{score:.2f}", target, title, *cells, f"{cost.angles.max():.2g}", cost.certified


CORRECTED = {"codec": "shared-step", "tolerance": eigen.EXACT}
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


@harness.benchmark(PAGE, dataset="digits")
def _front(dataset: harness.Dataset, data_root: str = ".") -> Lines:
    """Compare bytes and rounds to components that are certified to 1e-6 degrees: our methods and published ones.

    10 clients, Dirichlet 0.1, 50 components, without the projection at the end. A line is on a front if no other that
    is certified to 1e-6 degrees has at most its rounds and its bytes: up, or up and down. Published methods are as
    written (`as_written`), without the bytes of messages; they certify nothing, so that their angle decides.
    """
    parts = harness.clients(dataset, data_root)
    truth = harness.exact_components(parts)
    lines = [_cost(parts, truth, method, **options)[0] for method, options in OURS]
    for name, program in PUBLISHED.items():
        result = program(parts, COMPONENTS)
        angles = eigen.principal_angles(result.components.T, truth)
        down, exact = 8 * truth.size * (result.rounds - 1), bool(angles.max() <= eigen.EXACT)
        lines.append(Cost(f"{name}, published", result.rounds, result.up, down, angles, "-", exact))
    yield "method", *COST, "on the front of"
    for line, on in sorted(zip(lines, fronts(lines), strict=True), key=lambda pair: (pair[0].rounds, pair[0].up)):
        yield line.title, *line.cells(), on


def fronts(lines: Sequence[Cost]) -> list[str]:
    """Return for each line on which of the two fronts it is: ``up``, ``up + down``, both or none (``-``)."""
    costs: dict[str, Callable[[Cost], float]] = {
        "up": lambda line: line.up,
        "up + down": lambda line: line.up + line.down,
    }
    names = []
    for line in lines:
        on = []
        for name, cost in costs.items():
            place = (line.rounds, cost(line))
            rivals = [(rival.rounds, cost(rival)) for rival in lines if rival.exact]
            if not any(rival != place and rival[0] <= place[0] and rival[1] <= place[1] for rival in rivals):
                on.append(name)
        names.append(", ".join(on) if line.exact and on else "-")
    return names


TRUNCATED: list[tuple[str, dict[str, Any]]] = [("qr-pca", {})]
for _rank in (50, 100, 200, 400):
    TRUNCATED += [("qr-pca", {"rank": _rank, "filler": filler}) for filler in (True, False)]
    TRUNCATED += [("ap-stack", {"rank": _rank, "party-weights": weights}) for weights in ("none", "rows")]


@harness.benchmark(PAGE, dataset="digits", seeds=[42, 1])
def _truncation(
    dataset: harness.Dataset = "mnist",
    data_root: str = ".",
    seeds: list[int] = [42],  # noqa: B006
    wide: bool = False,
) -> Lines:
    """Compare truncated QR-PCA, with and without filler, and AP-STACK, by the seed of the partition.

    10 clients, Dirichlet 0.1, 50 components: the largest angle depends on the draw more than on anything else. With
    --wide exact QR-PCA of 20 clients with 200 rows of 20,000 features instead.
    """
    yield "partition seed", "fewest rows", "method", *COST
    for seed in seeds:
        parts = (
            harness.draw_parties(20, 200, 20_000, 0.6, 0.3) if wide else harness.clients(dataset, data_root, seed=seed)
        )
        truth = _components_of_few(parts) if wide else harness.exact_components(parts)
        for method, options in TRUNCATED[:1] if wide else TRUNCATED:
            if options.get("rank", 0) <= len(truth):
                cost, _ = _cost(parts, truth, method, **options)
                yield seed, min(map(len, parts)), cost.title, *cost.cells()
    if wide:
        yield f"\npeak memory {harness.peak_mb():.0f} MB; a d x d matrix would have {8e-6 * len(truth) ** 2:.0f} MB"


def _components_of_few(parts: Sequence[Rows]) -> Array:
    """Return the components (d, k) of fewer rows than features, by the inner products of the rows."""
    rows = np.vstack(parts)
    rows -= rows.mean(axis=0)
    _, vectors = eigh(rows @ rows.T, subset_by_index=(len(rows) - COMPONENTS, len(rows) - 1))
    return np.asarray(np.linalg.qr(rows.T @ vectors)[0])
