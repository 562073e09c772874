"""Blind runs beside masked ones, and beside FedSVD: CPU, bytes and angles."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.rotation import HaarRotation
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines, Rows
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.loopback import assemble
from fedpca_flwr.strategies import METHODS


class MaskedTables(NamedTuple):
    """Result of FedSVD, and the bytes that each party sends.

    Parameters
    ----------
    components : ndarray of shape (d, k)
        Components as columns.
    nbytes : int
        Bytes of a party's upload.
    """

    components: Array
    nbytes: int


def fedsvd(parts: Sequence[Rows], k: int, block: int = 1000) -> MaskedTables:
    """Compute components by FedSVD (Chai et al., KDD 2022), for parties that hold rows.

    An authority gives all parties an orthogonal P (d, d) and Q (n, n), which consists of blocks. Of the whole table
    (d, n) party i has some columns X_i, and sends ``P X_i Q_i`` with its rows Q_i of Q: a whole (d, n), under masks
    that cancel in the sum. The server decomposes ``P X Q``, and the parties take P off its left singular vectors.

    Shapes: parts (n_i, d).
    """
    d, n = parts[0].shape[1], sum(map(len, parts))
    left = HaarRotation(bytes(32), d)
    total, start = np.zeros((d, n)), 0
    for part in parts:
        sent = np.zeros((d, n))  # with masks, no entry of it is zero
        sent[:, start : start + len(part)] = left.turned_back(part.T)
        for first in range(start - start % block, start + len(part), block):
            columns = slice(first, min(first + block, n))
            right = HaarRotation(first.to_bytes(32, "little"), columns.stop - first)
            sent[:, columns] = right.turned_back(sent[:, columns].T).T
        total, start = total + sent, start + len(part)
    _, vectors = np.linalg.eigh(total @ total.T)
    components = left.turned_back(np.eye(d)).T @ vectors[:, : -k - 1 : -1]
    return MaskedTables(components, total.nbytes)


@harness.benchmark("docs/benchmarks.md", blas_threads=1, repeats=1, dataset="digits", data_root=".")
def _blind(dataset: harness.Dataset = "mnist", data_root: str = ".", repeats: int = 3, bound: float = 256.0) -> Lines:
    """Compare blind runs with masked ones and with FedSVD: CPU of a whole run, a party's upload, angles.

    Ten parties. No value is larger in size than the bound. FedSVD is the protocol as a program, of which an upload is
    counted and not sent.
    """
    parts = harness.clients(dataset, data_root)
    exact = harness.exact_components(parts)
    options: dict[str, Any] = {"n_components": COMPONENTS, "secure_aggregation": True, "bound": bound, "min_rows": 1}
    blind, masked = partial(run, "p-cov", parts, blind=True, **options), partial(run, "p-cov", parts, **options)
    ratio = harness.time_pair(blind, masked, repeats)
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in parts) / sum(map(len, parts))
    tables = fedsvd([part - mean for part in parts], COMPONENTS)
    yield "run", "CPU (s)", "bytes up, a party", "largest angle (degrees)"
    angles = [f"{principal_angles(program().loadings()[0].T, exact)[0]:.1e}" for program in (masked, blind)]
    yield "masked", f"{ratio.theirs:.1f}", f"{_upload(parts, blind=False, bound=bound):,}", angles[0]
    yield f"blind, {ratio} times masked", f"{ratio.ours:.1f}", f"{_upload(parts, blind=True, bound=bound):,}", angles[1]
    yield "FedSVD", "-", f"{tables.nbytes:,}", f"{principal_angles(tables.components, exact)[0]:.1e}"


def _upload(parts: Sequence[Rows], *, blind: bool, bound: float) -> int:
    """Return the most bytes that a party sends in all rounds of a run."""
    keys = {"clients": len(parts), "n-components": COMPONENTS, "secure-aggregation": True, "bound": bound}
    server = assemble(METHODS.run_config({"method": "p-cov", "blind": blind, **keys}), parts, {"min-rows": 1})
    server.fit(num_rounds=server.strategy.rounds, timeout=None)
    return max(map(sum, zip(*(entry["up"] for entry in server.strategy.round_log), strict=True)))
