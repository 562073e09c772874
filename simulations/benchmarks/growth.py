"""Growth of runs with their data, and other programs for PCA beside ours, in a single process each."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from math import log
from typing import Annotated, Any, NamedTuple

import click
import numpy as np
import typer
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.decomposition import PCA, IncrementalPCA

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.moments import Moments, unpack_symmetric
from fedpca_flwr.maths.rows import centred_chunks
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines, Points, Rows
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.strategies import METHODS

PAGE = "docs/benchmarks.md"


class Point(NamedTuple):
    """Sizes of a run, share of nonzero values, and whether data are split among the parties by columns."""

    rows: int = 100_000
    features: int = 100
    components: int = 10
    parties: int = 10
    share: float = 1.0
    columns: bool = False


GROWN: dict[str, list[Point]] = {
    "rows": [Point(rows=rows) for rows in (10_000, 100_000, 1_000_000, 10_000_000)],
    "features": [Point(rows=10_000, features=features, parties=5) for features in (100, 300, 1000, 3000)],
    "sparse features": [Point(10_000, features, 10, 5, share=0.001) for features in (5000, 50_000, 1_000_000)],
    "components": [Point(rows=20_000, features=500, components=components) for components in (2, 20, 200)],
    "parties": [Point(rows=10 * parties, features=20, components=3, parties=parties) for parties in (50, 500, 10_000)],
    "column rows": [Point(rows, 60, 5, 3, columns=True) for rows in (1000, 25_000, 100_000)],
}
"""In each group one size grows (with the parties the rows do, ten of each)."""

ROW_METHODS = ("p-cov", "sub-it", "qr-pca")
COLUMN_METHODS = ("vertical", "vertical solver=gram")
MAX_FEATURES = {"p-cov": 3000, "qr-pca": 1000}
"""Features beyond which a method is left out: what it sends grows with their square, or with rows and features."""


@harness.benchmark(PAGE, max_rows=1000, groups=["parties", "column rows"], blas_threads=1)
def _growth(
    max_rows: int = 10_000_000,
    groups: Annotated[list[str], typer.Option(click_type=click.Choice([*GROWN]))] = [*GROWN],  # noqa: B006
    figure: str = "",
) -> Lines:
    """Measure CPU seconds of whole runs while rows, features, components or parties grow.

    Rows are drawn, in bytes where they are dense; deviations fall as a power of 0.6. Behind the seconds are the rounds
    and the milliseconds a message: each party sends one a round, and one that says what it holds. The exponent is that
    between the two largest. Methods for columns that grow with the square of the rows refuse a run by its size.
    """
    panels: dict[str, dict[str, Points]] = {}
    for name in groups:
        points = [point for point in GROWN[name] if point.rows <= max_rows]
        methods = COLUMN_METHODS if points and points[0].columns else ROW_METHODS
        yield f"\n{name}:\n"
        yield "size", *(f"{method}: CPU s; rounds; ms a message" for method in methods)
        curves: dict[str, Points] = {method: [] for method in methods}
        for point in points:
            size, parts = getattr(point, name.split()[-1]), list(_parties(point))
            yield f"{size:,}", *(_measure(method, point, size, parts, curves[method]) for method in methods)
        yield "exponent", *(exponent(curves[method]) for method in methods)
        panels[name] = {method: curve for method, curve in curves.items() if curve}
    harness.plot(figure, panels, ("size", "CPU seconds"), scale="log")


def _parties(point: Point) -> Iterator[Rows]:
    """Draw each party's data: rows of all features, or all rows of some columns."""
    rng, rows, d = np.random.default_rng(0), point.rows // point.parties, point.features
    unit = 40 * np.arange(1, d + 1) ** -0.6
    if point.columns:
        signal = rng.standard_normal((point.rows, 5)) * [5, 4, 3, 2, 1]
        yield from np.split(signal @ rng.standard_normal((5, d)) + rng.standard_normal((point.rows, d)), 3, axis=1)
        return
    for _ in range(point.parties):
        if point.share < 1:
            count = int(point.share * rows * d)
            places = rng.integers(rows, size=count), rng.integers(d, size=count)
            yield sparse.csr_array((rng.standard_normal(count) * unit[places[1]], places), shape=(rows, d))
        else:
            yield np.rint(rng.standard_normal((rows, d), dtype=np.float32) * unit).astype(np.int8)


def _measure(method: str, point: Point, size: int, parts: list[Rows], curve: Points) -> str:
    """Time a run by CPU; return the table's cell, and append size and seconds to the method's curve."""
    if point.features > MAX_FEATURES.get(method, point.features):
        return "-"
    settings: dict[str, Any] = {"n_components": point.components, "may_show": "inner products", "progress": False}
    models: list[PCAModel] = []

    def work() -> None:
        """Run the method, and keep its model unless the run is refused."""
        with suppress(FedPCAError):
            models.append(run(method, parts, min_rows=1, **settings))

    seconds = harness.cpu_seconds(work)
    if not models:
        return f"{seconds:.2f}; refused"
    curve.append((size, seconds))
    messages = point.parties * (1 + len(models[0].log["rounds"]))
    return f"{seconds:.3g}; {models[0].rounds}; {1e3 * seconds / messages:.2f}"


def exponent(curve: Points) -> str:
    """Return the exponent by which CPU time grows between the last two points."""
    if len(curve) < 2:
        return "-"
    (size, seconds), (next_size, next_seconds) = curve[-2:]
    return f"{log(next_seconds / seconds) / log(next_size / size):.2f}"


Components = Callable[[Array, int], Array]
"""Components (k, d) of rows (n, d)."""


def _lower_bound(rows: Array, k: int) -> None:
    """Compute moments, their leading eigenvectors by ARPACK and all scores, the least work of any PCA."""
    moments = Moments.from_rows(rows)
    _, vectors = eigsh(unpack_symmetric(moments.scatter, moments.n_features), k, tol=0)
    for chunk in centred_chunks(rows, moments.mean):
        chunk @ vectors


def _scikit_learn(solver: str) -> Components:
    """Return a function that computes components by scikit-learn's PCA with a given solver."""
    return lambda rows, k: np.asarray(PCA(k, svd_solver=solver, random_state=0).fit(rows).components_)


def _dask(rows: Array, k: int) -> Array:
    """Return the components of rows by dask-ml, which gets the rows in ten chunks."""
    parts = import_module("dask.array").from_array(rows, chunks=(len(rows) // 10, rows.shape[1]))
    return np.asarray(import_module("dask_ml.decomposition").PCA(k, svd_solver="full").fit(parts).components_)


def _faiss(rows: Array, k: int) -> Array:
    """Return the components of rows by faiss, in single precision."""
    faiss = import_module("faiss")
    matrix = faiss.PCAMatrix(rows.shape[1], k)
    matrix.train(np.ascontiguousarray(rows, dtype=np.float32))
    return np.asarray(faiss.vector_to_array(matrix.A), dtype=np.float64).reshape(-1, rows.shape[1])[:k]


RIVALS: dict[str, Components] = {
    **{f"scikit-learn, `{solver}`": _scikit_learn(solver) for solver in ("covariance_eigh", "arpack", "randomized")},
    "scikit-learn, `IncrementalPCA`": lambda rows, k: np.asarray(IncrementalPCA(k).fit(rows).components_),
    "dask-ml, `full`, 10 chunks": _dask,
    "faiss, `PCAMatrix`": _faiss,
}
"""Programs that have all rows."""


@harness.benchmark(PAGE, repeats=1, methods=["p-cov", "sub-it"], blas_threads=1)
def _rivals(
    dataset: harness.Dataset = "digits",
    data_root: str = ".",
    components: int = 10,
    rows: int = 10_000,
    methods: list[str] = ["p-cov", "sub-it", "qr-pca"],  # noqa: B006
    repeats: int = 3,
) -> Lines:
    """Compare CPU times of our methods and other PCA programs with those of the least work of any PCA.

    The least: the moments of the pooled rows, ARPACK on them, and the projection of every row, without any federation.
    The ratios are CPU times measured in turn; the angle is the largest to ``PCA(svd_solver="full")``, in degrees.
    --rows 0 takes all rows, by Dirichlet 0.1; a method can have options, as "sub-it block-size=10". Methods for columns
    get the columns in ten equal parts.
    """
    parts = [np.asarray(part, dtype=np.float64) for part in harness.clients(dataset, data_root)]
    pooled = np.vstack(parts)
    if rows:
        pooled = np.random.default_rng(0).permutation(pooled)[:rows]
        parts = np.array_split(pooled, 10)
    exact = _scikit_learn("full")(pooled, components)
    yield "program", "CPU s", "CPU, over the least", "largest angle", "rounds", "MB up", "certified"
    for program in [*methods, *RIVALS]:
        cells, loadings = ["-"] * 3, None

        def work(program: str = program) -> None:
            """Run a method of ours or another program; keep its costs and components."""
            nonlocal cells, loadings
            if program in RIVALS:
                loadings = RIVALS[program](pooled, components)
                return
            by_columns = METHODS[program.split()[0]].strategy.card.split == "columns"
            vaults = np.array_split(pooled, 10, axis=1) if by_columns else parts
            model = run(program, vaults, n_components=components, may_show="scores", progress=False)
            bound, up = model.log["measured"].get("certified_angle_degrees"), max(model.bytes_up_by_party) / 1e6
            cells = [str(model.rounds), f"{up:.3g}", f"{bound:.1e}" if bound else "-"]
            loadings = None if by_columns else model.loadings()[0]

        try:
            ratio = harness.time_pair(work, lambda: _lower_bound(pooled, components), repeats)
        except ImportError:
            yield program, "not installed", *["-"] * 5
            continue
        angle = "-" if loadings is None else f"{principal_angles(loadings.T, exact.T).max():.1g}"
        yield program, f"{ratio.ours:.2f}", ratio, angle, *cells
