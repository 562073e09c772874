"""Sparse rows: a run's angle, CPU and peak memory, beside scikit-learn's PCA of the pooled CSR matrix.

    python -m simulations.benchmarks sparse

Rows are mixtures of ten topics, with noise, where they are not zero. Each program has a process of its own and one BLAS
thread: scikit-learn, the whole run of p-cov in one process (parties, server and messages), and a party that answers
the first question alone. Memory is what each takes beyond its libraries, the data
included, in MB, and as a share of 1.5 times its data and three d x d matrices.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from flwr.common import Parameters
from scipy import sparse
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.rows import sparse_rows
from fedpca_flwr.packages import strategies

from .. import run
from ..loopback import assemble
from .setting import parser

COMPONENTS = 10
TOPICS = 10


class Measured(NamedTuple):
    """CPU seconds, MB of the data and at the peak, and components (k, d) where there are any."""

    seconds: float
    data: float
    peak: float
    components: Array | None


def mixtures(rows: int, features: int, density: float, seed: int) -> Any:
    """CSR rows (n, d): topics of halving strength where they are not zero, with noise."""
    topics = np.random.default_rng(0).gamma(0.5, 1.0, size=(TOPICS, features)) / 2.0 ** np.arange(TOPICS)[:, None]
    rng = np.random.default_rng((1, seed))
    blocks = []
    for start in range(0, rows, 1000):
        n = min(1000, rows - start)
        where = sparse.random_array((n, features), density=density, rng=rng, format="coo")
        i, j = where.coords
        weights = rng.gamma(0.5, 1.0, size=(n, TOPICS))
        values = np.einsum("et,te->e", weights[i], topics[:, j]) + 0.1 * rng.standard_normal(i.size)
        blocks.append(sparse.csr_array((values, (i, j)), shape=(n, features)))
    return sparse.vstack(blocks, format="csr")


def write(folder: str, parties: int, rows: int, features: int, density: float) -> None:
    """The parties' files, and one of all rows."""
    parts = [mixtures(rows // parties, features, density, party) for party in range(parties)]
    for party, part in enumerate(parts):
        sparse.save_npz(Path(folder, f"{party}.npz"), part, compressed=False)
    sparse.save_npz(Path(folder, "all.npz"), sparse.vstack(parts, format="csr"), compressed=False)


def scikit_learn(folder: str, parties: int) -> Measured:
    def fit(data: list[Any]) -> Array:
        fitted: Array = PCA(COMPONENTS, svd_solver="covariance_eigh").fit(data[0]).components_
        return fitted

    return _measured(fit, [Path(folder, "all.npz")])


def whole_run(folder: str, parties: int) -> Measured:
    def fit(data: list[Any]) -> Array | None:
        return run("p-cov", data, n_components=COMPONENTS, engine="loopback").components_

    return _measured(fit, [Path(folder, f"{party}.npz") for party in range(parties)])


def one_party(folder: str, parties: int) -> Measured:
    def answer(data: list[Any]) -> None:
        run_config = strategies.run_config_of({"method": "p-cov", "n-components": COMPONENTS, "clients": 1})
        server = assemble(run_config, [sparse_rows(data[0])], {})
        ((client, ins),) = server.strategy.configure_fit(1, Parameters([], ""), server.client_manager())
        assert client.fit(ins, None, 1).parameters.tensors

    return _measured(answer, [Path(folder, "0.npz")])


def _measured(program: Callable[[list[Any]], Array | None], files: list[Path]) -> Measured:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with threadpool_limits(1, user_api="blas"):
        program([mixtures(50, 20, 0.05, 0)])  # libraries are loaded
        before = _peak_mb()
        data = [sparse.load_npz(file) for file in files]
        start = time.process_time()
        components = program(data)
        seconds = time.process_time() - start
    size = sum(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes for part in data) / 1e6
    return Measured(seconds, size, _peak_mb() - before, components)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _alone(program: Callable[..., Any], *arguments: Any) -> Any:
    """What a program returns, in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(program, arguments)


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, parties=10, rows=200_000, features=2000, density=0.05).parse_args(arguments)
    with TemporaryDirectory() as folder:
        _alone(write, folder, args.parties, args.rows, args.features, args.density)
        programs = {
            "PCA(svd_solver='covariance_eigh')": scikit_learn,
            f"p-cov, {args.parties} parties and the server": whole_run,
            "p-cov, one party": one_party,
        }
        found = {name: _alone(program, folder, args.parties) for name, program in programs.items()}
    theirs, ours, _ = found.values()
    print(head(("program", "CPU", "data", "peak", "of 1.5 data + 3 d x d")))
    for name, one in found.items():
        most = 1.5 * one.data + 3 * 8e-6 * args.features**2
        cells = (f"{one.seconds / theirs.seconds:.2f}", f"{one.data:.0f}", f"{one.peak:.0f}", f"{one.peak / most:.2f}")
        print(row((name, *cells)))
    print(f"\nlargest angle {principal_angles(ours.components.T, theirs.components.T).max():.1e} degrees")
