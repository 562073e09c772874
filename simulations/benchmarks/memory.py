"""Memory: of the server while replies come, and of runs and parties whose rows are sparse."""

import gc
import itertools
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse
from flwr.common import Code, FitIns, FitRes, Parameters, Scalar, Status, ndarrays_to_parameters
from flwr.server.client_proxy import ClientProxy
from sklearn.decomposition import PCA

from fedpca_flwr.maths import eigen, secure
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.protocol.replies import ReplyCollector
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions import rows as row_questions
from fedpca_flwr.simulations import loopback
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.encoding import MASKED_PAYLOAD, MaskedSum

REPLY_ROWS, DISTINCT_REPLIES, COMPONENTS, TOPICS = 64, 3, 10, 10
# bytes that the server stores for the parties' influence
WAYS = {"clear": row_questions.MAX_INFLUENCE_BYTES, "clear, nothing kept": 0, "masked": 0}


@harness.benchmark("docs/streaming.md", parties=[3], features=[60])
def _memory(
    parties: list[int] = [60, 1000],  # noqa: B006
    features: list[int] = [256, 3072],  # noqa: B006
) -> Lines:
    """Measure the server's peak memory while p-cov's replies arrive, are added up and become components.

    Each reply has bytes of its own, as a message brings them. Memory is what Python and NumPy take beyond what they had
    when the question was out, in MB and in matrices of d x d float64. In clear: as it is; with nothing kept for the
    parties' influence, as where that would be too much. Masked: words.
    """
    _take_clear(DISTINCT_REPLIES, 20)  # libraries are loaded
    yield "features", "way", "parties", "all replies, MB", "peak, MB", "in d x d matrices"
    for d, way, number in itertools.product(features, WAYS, parties):
        with mock.patch.object(row_questions, "MAX_INFLUENCE_BYTES", WAYS[way]):
            nbytes = (_take_masked if way == "masked" else _take_clear)(number, d)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        yield f"{d:,}", way, f"{number:,}", f"{number * nbytes / 1e6:,.0f}", f"{peak:.1f}", f"{peak / d**2 / 8e-6:.1f}"


def _take_clear(parties: int, features: int) -> int:
    """Let a server receive P-COV's replies and compute components; return a reply's bytes, and leave tracemalloc on."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((REPLY_ROWS, features)) / np.sqrt(np.arange(1, features + 1)) for _ in range(3)]
    rows += [np.eye(2, features)] * (parties - DISTINCT_REPLIES)  # their replies are copies of the first ones
    server, questions = ask_for_moments(rows, COMPONENTS)
    questions.sort(key=lambda question: int(question[0].cid))  # as the parties are numbered
    replies = [client.fit(question, None, 1) for client, question in questions[:DISTINCT_REPLIES]]
    answers: list[tuple[ClientProxy, FitRes | BaseException]] = []
    gc.collect()
    tracemalloc.start()
    for party, (client, _) in enumerate(questions):
        reply = _copy(replies[party % DISTINCT_REPLIES], party)
        server.receive(client, reply)
        answers.append((client, reply))
    server.aggregate_fit(1, answers, [])
    return sum(map(len, replies[0].parameters.tensors))


def _take_masked(parties: int, features: int) -> int:
    """Add up masked vectors of scatters, and decode the sum; return a vector's bytes, and leave tracemalloc on."""
    layout, rng = secure.Layout({"scatter": np.ones(packed_size(features))}), np.random.default_rng()
    words = ndarrays_to_parameters([rng.integers(0, 2**64 - 1, layout.size, np.uint64)])
    info: dict[str, Scalar] = {"partition-id": 0, "num-partitions": parties, "simulated": True}
    info |= {"name": "", "columns": ""}
    reply = FitRes(Status(Code.OK, ""), words, REPLY_ROWS, info)
    gc.collect()
    tracemalloc.start()
    total = MaskedSum(layout)
    incoming = ReplyCollector(MASKED_PAYLOAD, {}, total.add)
    for party in range(parties):
        incoming.receive(_copy(reply, party))
    layout.decode(total.words)
    return 8 * layout.size


def _copy(reply: FitRes, party: int) -> FitRes:
    """Return a copy of a reply under another party's number, in memory of its own."""
    tensors = [bytes(bytearray(tensor)) for tensor in reply.parameters.tensors]
    parameters, info = Parameters(tensors, reply.parameters.tensor_type), {**reply.metrics, "partition-id": party}
    return FitRes(reply.status, parameters, reply.num_examples, info)


def ask_for_moments(rows: Sequence[Any], components: int) -> tuple[PCAStrategy, list[tuple[ClientProxy, FitIns]]]:
    """Return P-COV's server strategy for parties with ``rows`` (n_i, d), and its unanswered question to each party."""
    run_config = METHODS.run_config({"method": "p-cov", "n-components": components, "clients": len(rows)})
    server = loopback.assemble(run_config, rows, {"min-rows": 1})
    return server.strategy, server.strategy.configure_fit(1, Parameters([], ""), server.client_manager())


@harness.benchmark("docs/benchmarks.md", rows=2000, features=100)
def _sparse(parties: int = 10, rows: int = 200_000, features: int = 2000, density: float = 0.05) -> Lines:
    """Compare a run on sparse rows with scikit-learn's PCA of the pooled CSR matrix: angle, CPU and peak memory.

    Rows are mixtures of ten topics, with noise. The run of p-cov is in one process (parties, server and messages).
    Memory is what each takes beyond its libraries, the data included, in MB, and as a share of 1.5 times its data and
    three d x d matrices.
    """
    with TemporaryDirectory() as folder:
        size = harness.isolate(_write, folder, parties, rows, features, density).value
        files, few = [Path(folder, f"{party}.npz") for party in range(parties)], [_mixtures(50, 20, 0.05, 0)]
        theirs = harness.isolate(_scikit_learn, [Path(folder, "all.npz")], load=_load, warm_up=[few])
        ours = harness.isolate(_run_pcov, files, load=_load, warm_up=[few])
    yield "program", "CPU", "data", "peak", "of 1.5 data + 3 d x d"
    names = "PCA(svd_solver='covariance_eigh')", f"p-cov, {parties} parties and the server"
    for name, usage in zip(names, (theirs, ours), strict=True):
        share = usage.peak_mb / (1.5 * size + 3 * 8e-6 * features**2)
        yield name, f"{usage.cpu / theirs.cpu:.2f}", f"{size:.0f}", f"{usage.peak_mb:.0f}", f"{share:.2f}"
    yield f"\nlargest angle {eigen.principal_angles(ours.value.T, theirs.value.T).max():.1e} degrees"


def _mixtures(rows: int, features: int, density: float, seed: int) -> Any:
    """Draw sparse rows (n, d): random nonzero places hold mixtures of ten topics of halving strength, plus noise."""
    topics = np.random.default_rng(0).gamma(0.5, 1.0, size=(TOPICS, features)) / 2.0 ** np.arange(TOPICS)[:, None]
    rng, blocks = np.random.default_rng((1, seed)), []
    for start in range(0, rows, 1000):
        n = min(1000, rows - start)
        i, j = scipy.sparse.random_array((n, features), density=density, rng=rng, format="coo").coords
        weights = rng.gamma(0.5, 1.0, size=(n, TOPICS))
        values = np.einsum("et,te->e", weights[i], topics[:, j]) + 0.1 * rng.standard_normal(i.size)
        blocks.append(scipy.sparse.csr_array((values, (i, j)), shape=(n, features)))
    return scipy.sparse.vstack(blocks, format="csr")


def _write(folder: str, parties: int, rows: int, features: int, density: float) -> float:
    """Write a sparse file for each party, and a file of all rows; return the MB of all rows."""
    parts = [_mixtures(rows // parties, features, density, party) for party in range(parties)]
    for name, part in [*enumerate(parts), ("all", scipy.sparse.vstack(parts, format="csr"))]:
        scipy.sparse.save_npz(Path(folder, f"{name}.npz"), part, compressed=False)
    return float(sum(part.data.nbytes + part.indices.nbytes + part.indptr.nbytes for part in parts) / 1e6)


def _load(files: Sequence[Path]) -> list[Any]:
    """Return the only argument of a measured program, in a list: the sparse tables that the files hold."""
    return [[scipy.sparse.load_npz(file) for file in files]]


def _scikit_learn(data: list[Any]) -> Array:
    """Return the components (k, d) of the first table by scikit-learn's PCA."""
    return np.asarray(PCA(COMPONENTS, svd_solver="covariance_eigh").fit(data[0]).components_)


def _run_pcov(data: list[Any]) -> Array:
    """Return the components (k, d) of all tables, a table for each party, by a run of P-COV."""
    return run("p-cov", data, n_components=COMPONENTS).loadings()[0]
