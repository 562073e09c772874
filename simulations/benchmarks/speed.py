"""Times of runs and of their parts, as ratios of two programs measured in turn."""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from scipy.linalg import blas, eigh
from scipy.sparse.linalg import eigsh
from sklearn.decomposition import PCA, IncrementalPCA

from fedpca_flwr.data import datasets
from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, head_and_diagonal, scatter_product, unpack_symmetric
from fedpca_flwr.maths.rows import centred_chunks
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks import harness, memory
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines, Program, Rows
from fedpca_flwr.simulations.benchmarks.trees import compare_trees
from fedpca_flwr.simulations.engines import run

PAGE = "docs/benchmarks.md"
Pair = tuple[str, Program, Program]  # title, our program and the one beside it


@harness.benchmark(PAGE, data_root="", repeats=1, blas_threads=1)
def _speed(data_root: harness.Required, repeats: int = 7, threads: int = 2, beside: str = "", only: str = "") -> Lines:
    """Measure a client's moments, the server and a whole run, each beside the fastest program for the same task.

    The folder holds MNIST/ and cifar10-jpeg/ (--quick: the digits stand for both). The ratios are what we claim: the
    median over the repetitions, with the least and the largest. The last table has the wall time of a site's work with
    one of its `threads` over that with several: with fewer idle cores than threads the ratio is less.

    --beside measures whole runs beside those of another checkout in place of all that; --only has words of a task.
    """
    if beside:
        yield from compare_trees(beside, data_root, repeats, only)
        return
    yield from _tabulate(_pairs_of_images(data_root, repeats), repeats)
    pixels = datasets.load("mnist" if data_root else "digits", data_root).all_rows()[:40_000]
    numbers = pixels.astype(np.float64)
    block = np.random.default_rng(0).standard_normal((numbers.shape[1], COMPONENTS))
    work: dict[str, Callable[[int], object]] = {
        "moments from_rows uint8": partial(Moments.from_rows, pixels),
        "moments from_rows float64": partial(Moments.from_rows, numbers),
        "product with 50 columns": partial(scatter_product, numbers, head_and_diagonal(numbers)[0], block),
    }
    yield f"\none thread, and {threads} threads:\n"
    pairs = ((name, partial(program, 1), partial(program, threads)) for name, program in work.items())
    yield from _tabulate(pairs, repeats, harness.wall_seconds)


def _tabulate(pairs: Iterable[Pair], repeats: int, clock: Callable[[Program], float] = harness.cpu_seconds) -> Lines:
    """Measure pairs of programs in turn; yield a line of seconds and ratio for each pair."""
    yield "what", "ours, s", "theirs, s", "ratio"
    for title, ours, theirs in pairs:
        ratio = harness.time_pair(ours, theirs, repeats, clock)
        yield title, f"{ratio.ours:.3f}", f"{ratio.theirs:.3f}", ratio


def _pairs_of_images(root: str, repeats: int) -> Iterator[Pair]:
    """Yield pairs of programs (ours, rival) for clients, servers and whole runs on image data sets."""
    for name, folder in {"mnist": root, "images": f"{root}/cifar10-jpeg"}.items() if root else [("digits", ".")]:
        source = datasets.load(name, folder)
        rows = source.rows(np.arange(0, len(source.labels), 10))
        centred = np.asfortranarray((rows.astype(np.float64) - rows.mean(axis=0)).T)
        syrk = partial(blas.dsyrk, 1.0, centred, lower=1)
        for dtype in (np.uint8, np.float64):
            ours = partial(Moments.from_rows, rows.astype(dtype))
            yield f"{name}: client, {len(rows)} rows of {dtype.__name__}", ours, syrk
        parts = [rows[i::10] for i in range(10)]
        yield f"{name}: server, 10 replies", *_server(parts, min(COMPONENTS, rows.shape[1] // 2), repeats)
    for dtype in (np.uint8, np.float64):
        parties = [part.astype(dtype) for part in harness.clients("mnist" if root else "digits", root or ".")]
        whole_run = partial(run, "p-cov", parties, n_components=COMPONENTS)
        theirs = partial(PCA(COMPONENTS, svd_solver="covariance_eigh").fit_transform, np.vstack(parties))
        yield f"whole run, 10 clients, {dtype.__name__}", whole_run, theirs


def _server(parts: list[Rows], components: int, repeats: int) -> tuple[Program, Program]:
    """Return two programs: P-COV's server on replies, and SciPy's faster eigensolver on the pooled matrix.

    The first can be called ``repeats`` + 1 times: each call takes a server, which empties the replies that it gets.
    """
    d, matrix = parts[0].shape[1], np.cov(np.vstack(parts), rowvar=False)
    direct = partial(eigh, matrix, driver="evr", subset_by_index=(d - components, d - 1), check_finite=False)
    servers = [memory.ask_for_moments(parts, components) for _ in range(repeats + 1)]
    replies = [(proxy, proxy.fit(question, None, 1)) for proxy, question in servers[0][1]]
    theirs = min((partial(eigsh, matrix, components, tol=0), direct), key=harness.wall_seconds)

    def serve() -> None:
        servers.pop()[0].aggregate_fit(1, [(proxy, deepcopy(reply)) for proxy, reply in replies], [])

    return serve, theirs


@harness.benchmark("docs/secure-aggregation.md", repeats=1, blas_threads=1)
def _secure(dataset: harness.Dataset = "digits", data_root: str = ".", repeats: int = 3, bound: float = 16.0) -> Lines:
    """Compare secure aggregation with the same method in clear: angles, bytes and wall time of ten parties.

    No value is larger in size than the bound.
    """
    vaults = harness.clients(dataset, data_root)
    pooled = pooled_pca(np.vstack(vaults), COMPONENTS)
    yield "method", "angle to plain (deg)", "to pooled PCA", "fixed point", "bytes up, times plain", "down", "time"
    for method in ("p-cov", "sub-it", "ap-cov"):
        models: dict[str, PCAModel] = {}

        def fit(kind: str, options: dict[str, Any], method: str = method, models: Any = models) -> None:
            models[kind] = run(method, vaults, n_components=COMPONENTS, min_rows=1, **options)

        secure = partial(fit, "masked", {"secure_aggregation": True, "bound": bound})
        ratio = harness.time_pair(secure, partial(fit, "clear", {}), repeats, harness.wall_seconds)
        masked, clear = models["masked"], models["clear"]
        up, down = (_nbytes(masked, way) / _nbytes(clear, way) for way in ("up", "down"))
        angles = [f"{principal_angles(masked, other).max:.1e}" for other in (clear, pooled)]
        rounding = f"{masked.log['measured']['fixed_point_variance_share']:.1g} of the variance"
        yield method, *angles, rounding, f"{up:.3f}", f"{down:.2f}", f"{ratio}, {ratio.ours:.2f} s"


def _nbytes(model: PCAModel, direction: str) -> int:
    """Return the bytes "up" or "down" of all parties in all rounds."""
    return sum(sum(entry[direction]) for entry in model.log["rounds"])


Components = Callable[[Array, int], Array]  # components (k, d) of rows (n, d)


def _lower_bound(rows: Array, k: int) -> None:
    """Compute moments, their leading eigenvectors by ARPACK and all scores, the least work of any PCA."""
    moments = Moments.from_rows(rows)
    _, vectors = eigsh(unpack_symmetric(moments.scatter, moments.n_features), k, tol=0)
    for chunk in centred_chunks(rows, moments.mean):
        chunk @ vectors


def _components_by(solver: str) -> Components:
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


# programs that have all rows
RIVALS: dict[str, Components] = {
    **{f"scikit-learn, `{solver}`": _components_by(solver) for solver in ("covariance_eigh", "arpack", "randomized")},
    "scikit-learn, `IncrementalPCA`": lambda rows, k: np.asarray(IncrementalPCA(k).fit(rows).components_),
    "dask-ml, `full`, 10 chunks": _dask,
    "faiss, `PCAMatrix`": _faiss,
}


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
    --rows 0 takes all rows, by Dirichlet 0.1; a method can have options, as "sub-it block-size=10".
    """
    parts = [np.asarray(part, dtype=np.float64) for part in harness.clients(dataset, data_root)]
    pooled = np.vstack(parts)
    if rows:
        pooled = np.random.default_rng(0).permutation(pooled)[:rows]
        parts = np.array_split(pooled, 10)
    exact = _components_by("full")(pooled, components)
    yield "program", "CPU s", "CPU, over the least", "largest angle", "rounds", "MB up", "certified"
    for program in [*methods, *RIVALS]:
        cells, loadings = ["-"] * 3, np.empty(0)

        def work(program: str = program) -> None:
            """Run a method of ours or another program; keep its costs and components."""
            nonlocal cells, loadings
            if program in RIVALS:
                loadings = RIVALS[program](pooled, components)
                return
            model = run(program, parts, n_components=components, progress=False)
            bound, up = model.log["measured"].get("certified_angle_degrees"), max(model.bytes_up_by_party) / 1e6
            cells = [str(model.rounds), f"{up:.3g}", f"{bound:.1e}" if bound else "-"]
            loadings = model.loadings()[0]

        try:
            ratio = harness.time_pair(work, lambda: _lower_bound(pooled, components), repeats)
        except ImportError:
            yield program, "not installed", *["-"] * 5
            continue
        angle = eigen.principal_angles(loadings.T, exact.T).max()
        yield program, f"{ratio.ours:.2f}", ratio, f"{angle:.1g}", *cells
