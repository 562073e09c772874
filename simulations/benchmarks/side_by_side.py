"""Ours beside the algorithms of the design notes as written, and beside scikit-learn."""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.simulations.benchmarks import as_written
from fedpca_flwr.simulations.benchmarks.as_written import Result
from fedpca_flwr.simulations.benchmarks.harness import (
    CLIPS,
    COMPONENTS,
    DATA,
    Lines,
    Rows,
    alternated,
    benchmark,
    clients,
    options_text,
    ratio,
)
from fedpca_flwr.simulations.engines import run


class Pair(NamedTuple):
    """An algorithm as written, and what answers to it here."""

    written: Callable[..., Result]
    method: str
    options: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.method} {options_text(self.options)}".rstrip()


def pairs(dataset: str) -> list[Pair]:
    clip, centre = CLIPS.get(dataset, (None, None))
    private = {"release": "two-stage", "epsilon": 1.0, "clip": clip, "centre_clip": centre, "noise_seed": 1}
    return [
        Pair(as_written.p_cov, "p-cov", {}),
        Pair(as_written.sub_it, "sub-it", {}),
        Pair(as_written.qr_pca, "qr-pca", {}),
        Pair(as_written.qr_pca, "qr-pca", {"rank": 2 * COMPONENTS}),
        Pair(as_written.ap_stack, "ap-stack", {}),
        Pair(as_written.ap_cov, "ap-cov", {}),
        Pair(partial(as_written.quantised, bits=16), "compressed", {"codec": "quantise", "bits": 16}),
        Pair(partial(as_written.quantised, bits=8), "compressed", {"codec": "quantise", "bits": 8}),
        Pair(partial(as_written.low_rank, rank=100), "compressed", {"codec": "low-rank", "rank": 100}),
        Pair(as_written.adaptive, "adaptive", {}),
        *([Pair(partial(as_written.dp_pca, epsilon=1.0), "dp-pca", private)] if clip else []),
    ]


@benchmark(**DATA, repeats=3, blas_threads=1)
def side_by_side(args: Namespace) -> Lines:
    """Ours, the published algorithms as written, and scikit-learn on the pooled rows: in one run, on one partition.

    10 clients, Dirichlet 0.1, 50 components, one BLAS thread. Angles (largest / mean, degrees) and eigenvalues (the
    largest relative error) are to ``PCA(svd_solver="full")`` of the pool. Rounds are those in which clients send, MB
    those sent by a client. Times are multiples of ``PCA(svd_solver="covariance_eigh").fit_transform`` of the pool,
    measured in turn, the median of the repetitions. Ours have all messages, checks and the projection of every row;
    those as written have none.
    """
    parts = clients(args.dataset, args.data_root)
    truth = pooled_pca(np.vstack(parts), COMPONENTS)
    whats = ("angle", "eigenvalues", "rounds", "MB up", "time")
    yield "method", *(head for what in whats for head in (f"{what}: as written", "ours"))
    for pair in pairs(args.dataset):
        yield both(pair, parts, truth, args.repeats)


def both(pair: Pair, parts: list[Rows], truth: PCAModel, repeats: int) -> list[str]:
    """One method's cells."""
    found: dict[str, Any] = {}

    def theirs() -> None:
        found["written"] = pair.written(parts, COMPONENTS)

    def ours() -> None:
        found["ours"] = run(pair.method, parts, n_components=COMPONENTS, min_rows=1, **pair.options)

    pool = np.vstack(parts)
    pca = PCA(COMPONENTS, svd_solver="covariance_eigh")
    times = alternated([theirs, ours, lambda: pca.fit_transform(pool)], repeats)
    written, model = found["written"], found["ours"]
    scale = pool.shape[0] / (pool.shape[0] - 1)  # the notes divide by N
    cells = [
        (_angle(written.components, truth), _angle(model.loadings()[0], truth)),
        (_error(written.variances * scale, truth), _error(model.explained_variance_, truth)),
        (str(written.rounds), str(model.rounds)),
        (f"{written.up / 1e6:.3g}", f"{model.bytes_up / len(parts) / 1e6:.3g}"),
        (f"{ratio(times, 0, 2):.2g}", f"{ratio(times, 1, 2):.2g}"),
    ]
    return [pair.title, *(cell for two in cells for cell in two)]


def _angle(components: Array, truth: PCAModel) -> str:
    degrees = angles_between(components.T, truth.loadings()[0].T)
    return f"{degrees.max():.2g} / {degrees.mean():.2g}"


def _error(variances: Array, truth: PCAModel) -> str:
    return f"{np.abs(variances / truth.explained_variance_ - 1).max():.1g}"
