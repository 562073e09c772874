"""Rounds and bytes of components, by method and option, and the angles that they leave."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines, Rows
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.measuring import bytes_down_by_party

PAGE = "docs/benchmarks.md"
COST = "rounds", "MB up", "MB down", "max angle (deg)", "mean", "certified"


class Cost(NamedTuple):
    """Costs of a method: rounds, bytes up and down (means over clients), angles (k,) in degrees, and whether exact.

    ``certified`` is the bound on the angle as a text, "exact", or "-" without a certificate.
    """

    title: str
    rounds: int
    up: float
    down: float
    angles: Array
    certified: str
    exact: bool

    def cells(self) -> list[object]:
        """Return the table cells below the heads `COST`: rounds, MB up and down, angles, certified bound."""
        megabytes = [f"{nbytes / 1e6:.3g}" for nbytes in (self.up, self.down)]
        return [self.rounds, *megabytes, f"{self.angles.max():.2g}", f"{self.angles.mean():.2g}", self.certified]


def _cost(parts: Sequence[Rows], truth: Array, method: str, **options: Any) -> tuple[Cost, PCAModel]:
    """Run a method, and return its costs, with angles in degrees to the exact components (d, k), and its model."""
    model = run(method, parts, n_components=COMPONENTS, **options)
    angles, numbers = eigen.principal_angles(model.loadings()[0].T, truth), model.log["measured"]
    up, down = float(np.mean(model.bytes_up_by_party)), float(np.mean(bytes_down_by_party(model)))
    bound = numbers.get("angle_bound_degrees", numbers.get("certified_angle_degrees"))
    certified = eigen.format_upper_bound(bound) if bound is not None else "exact" if model.log["exact"] else "-"
    title = harness.options_text(method, **options)
    if forecast := numbers.get("forecast_bytes_up_per_party"):
        title += f" (forecast {forecast / 1e6:.3g} MB up)"
    return Cost(title, model.rounds, up, down, angles, certified, bool(model.log["exact"])), model


CODECS: list[dict[str, Any]] = [
    *({"codec": "quantise", "bits": bits} for bits in (12, 16, 24)),
    {"codec": "shared-step", "step": 3e-6},
    *({"codec": "shared-step", "step": 6e-4, "corrections": times} for times in (1, 2, 3)),
    {"codec": "low-rank", "rank": 100, "bits": 8},
    *({"codec": "low-rank", "rank": 100, "bits": 8, "corrections": times} for times in (1, 2)),
]


@harness.benchmark(PAGE, dataset="digits")
def _compression(dataset: harness.Dataset, data_root: str = ".") -> Lines:
    """Compare the codecs of `compressed` by bytes, by angles, and with a full float64 covariance.

    10 clients, Dirichlet 0.1, 50 components. Bytes are the mean over the clients, count and mean included.
    """
    parts = harness.clients(dataset, data_root)
    truth = harness.exact_components(parts)
    yield "method", "times less", *COST
    for options in CODECS:
        if options.get("rank", 0) <= len(truth):
            cost, model = _cost(parts, truth, "compressed", **options)
            yield cost.title, f"{model.log['measured']['compression_ratio']:.1f}", *cost.cells()


CORRECTED = {"codec": "shared-step", "tolerance": eigen.EXACT_ANGLE_DEGREES}
OURS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in ("p-cov", "qr-pca", "sub-it", "adaptive")),
    *(("sub-it", options) for options in ({"block_size": 10}, {"warm_start": "svd"})),
    *(("compressed", {**CORRECTED, "step": step}) for step in (2e-6, 2e-4)),
    ("adaptive", {"download_weight": 0.0}),
]


@harness.benchmark(PAGE, dataset="digits")
def _front(dataset: harness.Dataset, data_root: str = ".") -> Lines:
    """Compare bytes and rounds of our methods and published ones, for components certified to 1e-6 degrees.

    10 clients, Dirichlet 0.1, 50 components, without the projection at the end. A line is on a front if no other that
    is certified to 1e-6 degrees has at most its rounds and its bytes: up, or up and down. Published methods are as
    written, without the bytes of messages; they certify nothing, so that their angle decides.
    """
    parts = harness.clients(dataset, data_root)
    truth = harness.exact_components(parts)
    lines = [_cost(parts, truth, method, **options)[0] for method, options in OURS]
    for name, program in PUBLISHED.items():
        components, _, rounds, up = program(parts, COMPONENTS)
        angles = eigen.principal_angles(components.T, truth)
        down, exact = 8 * truth.size * (rounds - 1), bool(angles.max() <= eigen.EXACT_ANGLE_DEGREES)
        lines.append(Cost(f"{name}, published", rounds, up, down, angles, "-", exact))
    yield "method", *COST, "on the front of"
    for line, on in sorted(zip(lines, fronts(lines), strict=True), key=lambda pair: (pair[0].rounds, pair[0].up)):
        yield line.title, *line.cells(), on


def fronts(lines: Sequence[Cost]) -> list[str]:
    """Return for each program the Pareto fronts (rounds, bytes "up", "up + down") that it is on, if exact; else "-"."""
    names: list[list[str]] = [[] for _ in lines]
    for name, down in (("up", 0), ("up + down", 1)):
        costs = np.array([(line.rounds, line.up + down * line.down) for line in lines])
        rivals = costs[[line.exact for line in lines]]
        for line, cost, on in zip(lines, costs, names, strict=True):
            if line.exact and not any((rivals <= cost).all(axis=1) & (rivals < cost).any(axis=1)):
                on.append(name)
    return [", ".join(on) or "-" for on in names]


# Algorithms of the design notes (paper/published.md) as written, faults included. Written anew from the notes and from
# what is known of their program. All rows are in one process, and what a client sends is counted without messages.

# components (k, d), variances (k,), rounds in which clients send something, and bytes that each client sends
Result = tuple[Array, Array, int, float]


def _p_cov(parts: Sequence[Rows], k: int) -> Result:
    """Compute published P-COV, exact: pooled covariance from full matrices, and all its eigenvectors."""
    mean = np.vstack(parts).mean(axis=0)
    means = [X.mean(axis=0) - mean for X in parts]
    covariances = [np.cov(X, rowvar=False, ddof=0) + np.outer(m, m) for X, m in zip(parts, means, strict=True)]
    return _leading(np.average(covariances, axis=0, weights=[*map(len, parts)]), k)


def _ap_cov(parts: Sequence[Rows], k: int) -> Result:
    """Compute published AP-COV: the mean of the clients' covariances, without the variance between clients."""
    covariances = [np.cov(X, rowvar=False, ddof=0) for X in parts]
    return _leading(np.average(covariances, axis=0, weights=[*map(len, parts)]), k)


def _leading(C: Array, k: int) -> Result:
    """Return the k leading eigenvectors and eigenvalues of a covariance C (d, d), a single round, and its bytes."""
    values, vectors = np.linalg.eigh(C)
    return vectors[:, ::-1][:, :k].T, values[::-1][:k], 1, 8 * (C.size + len(C) + 1)


def _sub_it(parts: Sequence[Rows], k: int, iterations: int = 100) -> Result:
    """Compute published SUB-IT (subspace iteration, fixed rounds); its eigenvalues are off by a factor and a square."""
    rows = np.vstack(parts).astype(np.float64)
    centred, d = rows - rows.mean(axis=0), rows.shape[1]
    V = np.linalg.qr(np.random.default_rng(42).standard_normal((d, k)))[0]
    for _ in range(iterations):
        V, R = np.linalg.qr(centred.T @ (centred @ V))
    return V.T, np.diag(R) ** 2 / len(rows), 1 + iterations, 8 * (d + 1) + 8 * d * k * iterations


def _qr_pca(parts: Sequence[Rows], k: int) -> Result:
    """Compute published QR-PCA: clients' factors cut to 2k rows, wrongly weighted by row counts twice."""
    total, mean, stack = sum(map(len, parts)), np.vstack(parts).mean(axis=0), []
    for X in parts:
        _, s, Vt = np.linalg.svd(np.linalg.qr(X - X.mean(axis=0), mode="r"), full_matrices=False)
        factor = np.vstack([s[: 2 * k, None] * Vt[: 2 * k], np.sqrt(len(X)) * (X.mean(axis=0) - mean)])
        stack.append(np.sqrt(len(X) / total) * factor)
    _, s, Vt = np.linalg.svd(np.vstack(stack), full_matrices=False)
    return Vt[:k], s[:k] ** 2 / total, 1, 8 * (2 * k * mean.size + mean.size + 1)


def _ap_stack(parts: Sequence[Rows], k: int) -> Result:
    """Compute published AP-STACK: the SVD of clients' scaled eigenvectors, without row counts and means."""
    stack = []
    for X in parts:
        values, vectors = np.linalg.eigh(np.cov(X, rowvar=False, ddof=0))
        stack.append((vectors[:, -k:] * np.sqrt(values[-k:].clip(min=0.0))).T)
    _, s, Vt = np.linalg.svd(np.vstack(stack), full_matrices=False)
    return Vt[:k], s[:k] ** 2 / len(parts), 1, 8 * (k * parts[0].shape[1] + k)


PUBLISHED: dict[str, Callable[[Sequence[Rows], int], Result]] = {"P-COV": _p_cov, "SUB-IT": _sub_it, "QR-PCA": _qr_pca}
PUBLISHED |= {"AP-STACK": _ap_stack, "AP-COV": _ap_cov}
TRUNCATED: list[tuple[str, dict[str, Any]]] = [("qr-pca", {"filler": True}), ("qr-pca", {"filler": False})]
TRUNCATED += [("ap-stack", {"party-weights": weights}) for weights in ("none", "rows")]


@harness.benchmark(PAGE, dataset="digits", seeds=[42, 1])
def _truncation(
    dataset: harness.Dataset = "mnist",
    data_root: str = ".",
    seeds: list[int] = [42],  # noqa: B006
    wide: bool = False,
) -> Lines:
    """Compare truncated QR-PCA and AP-STACK, by rank and by the seed of the partition among clients.

    10 clients, Dirichlet 0.1, 50 components: the largest angle depends on the draw more than on anything else. With
    --wide exact QR-PCA of 20 clients with 200 rows of 20,000 features instead.
    """
    yield "partition seed", "fewest rows", "method", *COST
    if wide:
        rng, shape, unit = np.random.default_rng(0), (200, 20_000), np.arange(1, 20_001) ** -0.6
        # feature j deviates by the unit, and its means by 0.3 times that
        drawn = ((rng.standard_normal(shape) + 0.3 * rng.standard_normal(shape[1])) * unit for _ in range(20))
        parts: Sequence[Rows] = list(drawn)
        rows = np.vstack(parts)
        rows -= rows.mean(axis=0)
        _, vectors = eigh(rows @ rows.T, subset_by_index=(len(rows) - COMPONENTS, len(rows) - 1))
        cost, _ = _cost(parts, np.linalg.qr(rows.T @ vectors)[0], "qr-pca")
        yield "-", 200, cost.title, *cost.cells()
        yield f"\npeak memory {harness.peak_mb():.0f} MB; a d x d matrix would have {8e-6 * rows.shape[1] ** 2:.0f} MB"
        return
    for seed in seeds:
        parts = harness.clients(dataset, data_root, seed=seed)
        truth = harness.exact_components(parts)
        ranks: list[dict[str, Any]] = [{"rank": rank} for rank in (50, 100, 200, 400) if rank <= len(truth)]
        ways = [(method, {**options, **rank}) for rank in ranks for method, options in TRUNCATED]
        for method, options in [("qr-pca", {}), *ways]:
            cost, _ = _cost(parts, truth, method, **options)
            yield seed, min(map(len, parts)), cost.title, *cost.cells()
