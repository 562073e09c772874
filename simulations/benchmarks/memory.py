"""Memory: of the server while replies come, and of runs and parties whose rows are sparse."""

import gc
import itertools
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import scipy.sparse
from flwr.client import Client
from flwr.common import Code, FitRes, Parameters, Scalar, Status, ndarrays_to_parameters
from flwr.server.client_proxy import ClientProxy
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from fedpca_flwr.maths import eigen, secure
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, packed_size
from fedpca_flwr.maths.rows import sparse_rows
from fedpca_flwr.protocol.replies import ReplyCollector
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions import rows as arriving_moments
from fedpca_flwr.questions.fields import MOMENTS
from fedpca_flwr.simulations import loopback
from fedpca_flwr.simulations.benchmarks.harness import Lines, alone, benchmark, peak_mb
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.encoding import MASKED_PAYLOAD, MaskedSum

ROWS, DIFFERENT, COMPONENTS = 64, 3, 10
"""Rows that a reply is of, how many replies are made, and components."""

TOPICS = 10


class Peak(NamedTuple):
    """Bytes that all replies have together, and that the process took, in MB."""

    replies: float
    taken: float


def clear(clients: int, features: int, kept: int | None) -> Peak:
    """In clear, with ``kept`` bytes for the parties' influence (None: as it is)."""
    most = arriving_moments.MAX_INFLUENCE_BYTES if kept is None else kept
    with mock.patch.object(arriving_moments, "MAX_INFLUENCE_BYTES", most):
        strategy, messages = asking(clients, features, COMPONENTS), made(features)
        answers = []
        gc.collect()
        tracemalloc.start()
        for party in range(clients):
            (answer,) = results([copied(messages[party % DIFFERENT])], [ROWS], first=party, parties=clients)
            strategy.receive(*answer)
            answers.append(answer)
        strategy.aggregate_fit(1, answers, [])
        size = sum(map(len, messages[0].tensors))
    return Peak(clients * size / 1e6, taken_mb())


def masked(clients: int, features: int) -> Peak:
    """Masked vectors of scatters, which a server adds up and decodes."""
    layout, rng = secure.Layout({"scatter": np.ones(packed_size(features))}), np.random.default_rng()
    words = ndarrays_to_parameters([rng.integers(0, 2**64 - 1, layout.size, np.uint64)])
    gc.collect()
    tracemalloc.start()
    total = MaskedSum(layout)
    incoming = ReplyCollector(MASKED_PAYLOAD, {}, total.add)
    for party in range(clients):
        ((_, reply),) = results([copied(words)], [ROWS], first=party, parties=clients)
        incoming.receive(reply)
    layout.decode(total.complete([]))
    return Peak(clients * layout.size * 8 / 1e6, taken_mb())


WAYS: dict[str, tuple[Any, ...]] = {
    "clear": (clear, None),
    "clear, nothing kept": (clear, 0),
    "clear, all kept": (clear, 2**60),
    "masked": (masked,),
}
SHOWN = ["clear", "clear, nothing kept", "masked"]


def made(features: int) -> list[Parameters]:
    """Replies, made with little more memory than they have."""
    rng, found = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        rows = rng.standard_normal((ROWS, features)) / np.sqrt(np.arange(1, features + 1))
        rows -= rows.mean(axis=0)
        packed = np.concatenate([rows[:, i] @ rows[:, i:] for i in range(features)])
        found.append(message(Moments(ROWS, rng.standard_normal(features), np.zeros(features), packed)))
    return found


def copied(sent: Parameters) -> Parameters:
    return Parameters([bytes(bytearray(tensor)) for tensor in sent.tensors], sent.tensor_type)


def taken_mb() -> float:
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return peak


def message(moments: Moments) -> Parameters:
    """The payload of P-COV that a party with these moments sends."""
    empty = np.empty(0)
    fields = {"mean": moments.mean, "remainder": empty, "scatter": moments.scatter}
    return ndarrays_to_parameters(MOMENTS.to_arrays({"count": np.asarray(moments.count), **fields}))


def asking(parties: int, features: int, n_components: int) -> PCAStrategy:
    """P-COV's server half, which has asked so many parties and waits for their moments."""
    rows = [np.eye(2, features)] * parties  # what they hold is in the replies that are made
    run_config = METHODS.run_config({"method": "p-cov", "n-components": n_components, "clients": parties})
    server = loopback.assemble(run_config, rows, {"min-rows": 1})
    server.strategy.configure_fit(1, Parameters([], ""), server.client_manager())
    return server.strategy


def results(
    messages: Sequence[Parameters], rows: Sequence[int], *, first: int = 0, parties: int = 0
) -> list[tuple[ClientProxy, FitRes]]:
    """One result a message, as if its party of so many rows had sent it.

    The parties are those from ``first`` on, of so many in all (0: there are no others).
    """
    found: list[tuple[ClientProxy, FitRes]] = []
    for party, (sent, count) in enumerate(zip(messages, rows, strict=True), first):
        about: dict[str, Scalar] = {"partition-id": party, "num-partitions": parties or len(messages)}
        about |= {"name": "", "columns": "", "simulated": True}
        parameters = Parameters(list(sent.tensors), sent.tensor_type)
        reply = FitRes(Status(Code.OK, ""), parameters, count, about)
        found.append((loopback.LoopbackProxy(str(party + 1), Client), reply))
    return found


@benchmark(clients=[60, 1000], features=[256, 3072], ways={"nargs": "+", "choices": list(WAYS), "default": SHOWN})
def memory(args: Namespace) -> Lines:
    """The server's peak memory while replies come, are added and become components, by parties and features.

    Replies of p-cov, a few repeated under the names of all parties, each in bytes of its own as a message brings them.
    Memory is what Python and NumPy take beyond what they had when the question was out, in MB and in matrices of d x d
    float64. In clear: as it is; with nothing kept for the parties' influence, as where that would be too
    much; with all kept, as `max-share` wants it. Masked: words, added as they come.
    """
    clear(2, 20, None)  # libraries are loaded
    yield "features", "way", "parties", "all replies, MB", "peak, MB", "in d x d matrices"
    for features, way, clients in itertools.product(args.features, args.ways, args.clients):
        program, *more = WAYS[way]
        found = program(clients, features, *more)
        matrices = found.taken / (features**2 * 8e-6)
        yield f"{features:,}", way, f"{clients:,}", f"{found.replies:,.0f}", f"{found.taken:.1f}", f"{matrices:.1f}"


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
        where = scipy.sparse.random_array((n, features), density=density, rng=rng, format="coo")
        i, j = where.coords
        weights = rng.gamma(0.5, 1.0, size=(n, TOPICS))
        values = np.einsum("et,te->e", weights[i], topics[:, j]) + 0.1 * rng.standard_normal(i.size)
        blocks.append(scipy.sparse.csr_array((values, (i, j)), shape=(n, features)))
    return scipy.sparse.vstack(blocks, format="csr")


def write(folder: str, parties: int, rows: int, features: int, density: float) -> None:
    """The parties' files, and one of all rows."""
    parts = [mixtures(rows // parties, features, density, party) for party in range(parties)]
    for party, part in enumerate(parts):
        scipy.sparse.save_npz(Path(folder, f"{party}.npz"), part, compressed=False)
    scipy.sparse.save_npz(Path(folder, "all.npz"), scipy.sparse.vstack(parts, format="csr"), compressed=False)


def scikit_learn(folder: str, parties: int) -> Measured:
    pca = PCA(COMPONENTS, svd_solver="covariance_eigh")
    return _measured(lambda data: pca.fit(data[0]).components_, [Path(folder, "all.npz")])


def whole_run(folder: str, parties: int) -> Measured:
    files = [Path(folder, f"{party}.npz") for party in range(parties)]
    return _measured(lambda data: run("p-cov", data, n_components=COMPONENTS).components_, files)


def one_party(folder: str, parties: int) -> Measured:
    def answer(data: list[Any]) -> None:
        run_config = METHODS.run_config({"method": "p-cov", "n-components": COMPONENTS, "clients": 1})
        server = loopback.assemble(run_config, [sparse_rows(data[0])], {})
        ((client, ins),) = server.strategy.configure_fit(1, Parameters([], ""), server.client_manager())
        assert client.fit(ins, None, 1).parameters.tensors

    return _measured(answer, [Path(folder, "0.npz")])


def _measured(program: Callable[[list[Any]], Array | None], files: list[Path]) -> Measured:
    with threadpool_limits(1, user_api="blas"):
        program([mixtures(50, 20, 0.05, 0)])  # libraries are loaded
        before = peak_mb()
        data = [scipy.sparse.load_npz(file) for file in files]
        start = time.process_time()
        components = program(data)
        seconds = time.process_time() - start
    size = sum(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes for part in data) / 1e6
    return Measured(seconds, size, peak_mb() - before, components)


@benchmark(parties=10, rows=200_000, features=2000, density=0.05)
def sparse(args: Namespace) -> Lines:
    """Sparse rows: a run's angle, CPU and peak memory, beside scikit-learn's PCA of the pooled CSR matrix.

    Rows are mixtures of ten topics, with noise, where they are not zero. Each program has a process of its own and one
    BLAS thread: scikit-learn, the whole run of p-cov in one process (parties, server and messages), and a party that
    answers the first question alone. Memory is what each takes beyond its libraries, the data included, in MB, and as a
    share of 1.5 times its data and three d x d matrices.
    """
    with TemporaryDirectory() as folder:
        alone(write, folder, args.parties, args.rows, args.features, args.density)
        programs = {
            "PCA(svd_solver='covariance_eigh')": scikit_learn,
            f"p-cov, {args.parties} parties and the server": whole_run,
            "p-cov, one party": one_party,
        }
        found = {name: alone(program, folder, args.parties) for name, program in programs.items()}
    theirs, ours, _ = found.values()
    yield "program", "CPU", "data", "peak", "of 1.5 data + 3 d x d"
    for name, one in found.items():
        most = 1.5 * one.data + 3 * 8e-6 * args.features**2
        times = f"{one.seconds / theirs.seconds:.2f}"
        yield name, times, f"{one.data:.0f}", f"{one.peak:.0f}", f"{one.peak / most:.2f}"
    yield f"\nlargest angle {eigen.principal_angles(ours.components.T, theirs.components.T).max():.1e} degrees"
