"""How runs grow with their data, and where they stand beside other programs for PCA, in one process each."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from math import log
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy import sparse
from sklearn.decomposition import PCA, IncrementalPCA

from fedpca_flwr.figures.style import COLOURS, MARKERS, STYLE
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines, Rows, benchmark
from fedpca_flwr.simulations.engines import run


class Point(NamedTuple):
    """What a run is of; the ``share`` of values that are not zero."""

    rows: int = 100_000
    features: int = 100
    components: int = 10
    parties: int = 10
    share: float = 1.0


GROWN: dict[str, list[Point]] = {
    "rows": [Point(rows=rows) for rows in (10_000, 100_000, 1_000_000, 10_000_000)],
    "features": [Point(rows=10_000, features=features, parties=5) for features in (100, 300, 1000, 3000)],
    "sparse features": [Point(10_000, features, 10, 5, share=0.001) for features in (5000, 50_000, 1_000_000)],
    "components": [Point(rows=20_000, features=500, components=components) for components in (2, 20, 200)],
    "parties": [Point(rows=10 * parties, features=20, components=3, parties=parties) for parties in (50, 500, 10_000)],
}
"""Of each only one thing grows (with parties the rows do, ten of each)."""

METHODS = ("p-cov", "sub-it", "qr-pca")
LARGEST = {"p-cov": 3000, "qr-pca": 1000}
"""Features beyond which a method is left out: what it sends grows with their square, or with rows and features."""


@benchmark(figure="", most=10_000_000, blas_threads=1)
def growth(args: Namespace) -> Lines:
    """CPU seconds of whole runs as rows, features, components and parties grow, each alone, and their exponents.

    Rows are drawn, in bytes where they are dense; deviations fall as a power of 0.6. The exponent is that between the
    two largest. ``--most`` leaves out what has more rows; ``--figure FILE`` draws the table.
    """
    drawn: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, points in GROWN.items():
        yield f"\n{name}:\n"
        yield "size", *(f"{method}: CPU s; rounds" for method in METHODS)
        found: dict[str, list[tuple[int, float]]] = {method: [] for method in METHODS}
        for point in points:
            if point.rows <= args.most:
                yield grown(point, getattr(point, name.split()[-1]), found)
        yield "exponent", *(exponent(found[method]) for method in METHODS)
        drawn[name] = found
    if args.figure:
        curves(drawn).savefig(args.figure, metadata={"Date": None})


def grown(point: Point, size: int, found: dict[str, list[tuple[int, float]]]) -> list[str]:
    """The line of one point, which is added to what was ``found``."""
    parts, cells = list(parties_of(point)), [f"{size:,}"]
    for method in METHODS:
        if point.features > LARGEST.get(method, point.features):
            cells.append("-")
            continue
        rounds: list[int] = []

        def work(method: str = method, rounds: list[int] = rounds) -> None:
            model = run(method, parts, n_components=point.components, min_rows=1, progress=False)
            rounds.append(model.rounds)

        spent = harness.cpu_seconds(work)
        found[method].append((size, spent))
        cells.append(f"{spent:.3g}; {rounds[0]}")
    return cells


def parties_of(point: Point) -> Iterator[Rows]:
    """The rows of each party."""
    rng, rows = np.random.default_rng(0), point.rows // point.parties
    unit = 40 * np.arange(1, point.features + 1) ** -0.6
    for _ in range(point.parties):
        if point.share < 1:
            values = int(point.share * rows * point.features)
            places = rng.integers(rows, size=values), rng.integers(point.features, size=values)
            given = rng.standard_normal(values) * unit[places[1]]
            yield sparse.csr_array((given, places), shape=(rows, point.features))
        else:
            yield np.rint(rng.standard_normal((rows, point.features), dtype=np.float32) * unit).astype(np.int8)


def exponent(found: list[tuple[int, float]]) -> str:
    """How CPU time grows between the last two points."""
    if len(found) < 2:
        return "-"
    (size, spent), (larger, more) = found[-2:]
    return f"{log(more / spent) / log(larger / size):.2f}"


@rc_context(STYLE)
def curves(drawn: dict[str, dict[str, list[tuple[int, float]]]]) -> Figure:
    """CPU seconds by size, a panel each."""
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, len(drawn), sharey=True), drawn.items(), strict=True):
        for method, colour, marker in zip(METHODS, COLOURS, MARKERS, strict=False):
            if found[method]:
                axes.loglog(*zip(*found[method], strict=True), marker=marker, color=colour, label=method)
        axes.set_xlabel(name)
    figure.axes[0].set_ylabel("CPU seconds")
    figure.axes[0].legend()
    return figure


def scikit_learn(solver: str) -> Callable[[Array, int], Array]:
    return lambda rows, k: np.asarray(PCA(k, svd_solver=solver, random_state=0).fit(rows).components_)


def federated(method: str) -> Callable[[Array, int], Array]:
    def components(rows: Array, k: int) -> Array:
        found = run(method, np.array_split(rows, 10), n_components=k, progress=False).components_
        assert found is not None
        return found

    return components


def of_dask(rows: Array, k: int) -> Array:
    parts = import_module("dask.array").from_array(rows, chunks=(len(rows) // 10, rows.shape[1]))
    found = import_module("dask_ml.decomposition").PCA(k, svd_solver="full").fit(parts)
    return np.asarray(found.components_)


def of_faiss(rows: Array, k: int) -> Array:
    faiss = import_module("faiss")
    matrix = faiss.PCAMatrix(rows.shape[1], k)
    matrix.train(np.ascontiguousarray(rows, dtype=np.float32))
    return np.asarray(faiss.vector_to_array(matrix.A), dtype=np.float64).reshape(-1, rows.shape[1])[:k]


def of_scanpy(rows: Array, k: int) -> Array:
    table = import_module("anndata").AnnData(sparse.csr_array(rows))
    import_module("scanpy").pp.pca(table, n_comps=k)
    return np.asarray(table.varm["PCs"]).T


RIVALS: dict[str, Callable[[Array, int], Array]] = {
    **{f"`{method}`, 10 parties": federated(method) for method in METHODS},
    **{f"scikit-learn, `{solver}`": scikit_learn(solver) for solver in ("covariance_eigh", "arpack", "randomized")},
    "scikit-learn, `IncrementalPCA`": lambda rows, k: np.asarray(IncrementalPCA(k).fit(rows).components_),
    "dask-ml, `full`, 10 chunks": of_dask,
    "faiss, `PCAMatrix`": of_faiss,
    "scanpy, `pp.pca` of sparse rows": of_scanpy,
}
"""Each finds the components (k, d) of rows; those that are not installed are left out."""


@benchmark(**harness.DIGITS, components=10, rows=10_000, figure="", blas_threads=1)
def rivals(args: Namespace) -> Lines:
    """CPU seconds and angles of programs for PCA, ours with ten parties in this process and others with all rows.

        python -m fedpca_flwr.simulations.benchmarks rivals --dataset mnist --data-root DEST --components 50

    The angle is the largest to ``PCA(svd_solver="full")``, in degrees. ``--figure FILE`` draws one against the other.
    """
    rows = np.vstack(harness.clients(args.dataset, args.data_root, 1, kind="iid"))[: args.rows].astype(np.float64)
    exact = scikit_learn("full")(rows, args.components)
    points: list[tuple[str, float, float]] = []
    yield "program", "CPU s", "largest angle"
    for name, program in RIVALS.items():
        try:
            program(rows, args.components)  # loads what it needs
        except ImportError:
            yield name, "not installed", "-"
            continue
        found: list[Array] = []
        spent = harness.cpu_seconds(lambda program=program, found=found: found.append(program(rows, args.components)))  # type: ignore[misc]
        angle = float(principal_angles(found[0].T, exact.T).max())
        points.append((name, spent, angle))
        yield name, f"{spent:.2f}", f"{angle:.1g}"
    if args.figure:
        against_angle(points).savefig(args.figure, metadata={"Date": None})


@rc_context(STYLE)
def against_angle(points: list[tuple[str, float, float]]) -> Figure:
    """CPU seconds against the angle."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, spent, angle), colour, marker in zip(points, COLOURS, MARKERS, strict=False):
        axes.loglog(
            max(angle, 1e-14), spent, marker=marker, color=colour, linestyle="none", label=name.replace("`", "")
        )
    axes.set(xlabel="largest angle to the exact components (degrees)", ylabel="CPU seconds")
    figure.legend(loc="outside right upper")
    return figure
