"""Genotypes: rounds, bytes, memory and angles beside PLINK 2, and restarts of the server's basis on rows as wide."""

import resource
import shutil
import subprocess
import time
import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, lobpcg
from threadpoolctl import threadpool_limits

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths import krylov
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import format_upper_bound
from fedpca_flwr.maths.genotypes import count_alleles, genotype_deviation, standardised_chunks
from fedpca_flwr.maths.krylov import ProductBasis
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.simulations.benchmarks.harness import Lines, alone, benchmark, options_text, peak_mb
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.site.readers import read

FST = MISSING = 0.01
SECURE: dict[str, Any] = {"secure_aggregation": True}
ON_REAL: list[tuple[str, dict[str, Any]]] = [
    ("qr-pca", {}),
    ("qr-pca", {"wire": "float32"}),
    ("adaptive", {"target": 1e-4}),
    ("sub-it", {"tolerance": 1e-4}),
    ("sub-it", {"tolerance": 1e-4, "certify": "signal", "n_components": 10}),
    ("sub-it", {"tolerance": 1e-4, **SECURE}),
    ("sub-it", {"tolerance": 1e-4, "block_size": 2, **SECURE}),
]
ON_DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("sub-it", {"tolerance": 1e-3}),
    ("sub-it", {"tolerance": 1e-3, **SECURE}),
]


class Measured(NamedTuple):
    """Of a program: its scores (n, k), CPU seconds, MB at the peak, rounds with the last one, and MB up per party."""

    scores: Array
    seconds: float
    peak: float
    rounds: int = 0
    up: float = 0.0
    certified: str = ""


def draw(folder: str, parties: int, rows: int, variants: int, populations: int) -> None:
    """A .bed file for each party, of people of all populations."""
    from bed_reader import to_bed

    rng = np.random.default_rng(0)
    ancestral = rng.uniform(0.05, 0.95, variants) * (1 - FST) / FST
    shares = rng.beta(ancestral, (1 - FST) / FST - ancestral, size=(populations, variants))
    limits = np.floor(shares * 2**16).astype(np.uint16)
    properties = {"chromosome": ["1"] * variants, "bp_position": list(range(1, variants + 1))}
    properties |= {"allele_1": ["A"] * variants, "allele_2": ["G"] * variants}
    for party in range(parties):
        of = rng.integers(0, populations, rows // parties)
        genotypes = np.empty((of.size, variants), np.int8)
        for start in range(0, of.size, 500):
            most = limits[of[start : start + 500]]
            block = genotypes[start : start + 500]
            block[:] = 0
            for _ in range(2):
                block += rng.integers(0, 2**16, most.shape, dtype=np.uint16) < most
            block[rng.integers(0, 2**16, most.shape, dtype=np.uint16) < MISSING * 2**16] = -127
        to_bed(Path(folder, f"{party}.bed"), genotypes, properties=properties)


def rows_of(files: Sequence[str], parties: int) -> list[Rows]:
    """A file for each party, or one that is dealt out to them."""
    if len(files) > 1:
        return [read(file).rows for file in files]
    rows = read(files[0]).rows
    dealt = dealt_out(len(rows), parties)
    return [rows[dealt == party] for party in range(parties)]


def dealt_out(people: int, parties: int) -> NDArray[np.int64]:
    """The party of each."""
    return np.random.default_rng(0).permutation(people) % parties


def federated(files: Sequence[str], parties: int, method: str, options: dict[str, Any]) -> Measured:
    """A run, parties and server in one process; scores in the order of the parties."""
    with threadpool_limits(1, user_api="blas"), TemporaryDirectory() as folder:
        rows = rows_of(files, parties)
        written = [str(Path(folder, f"{party}.npy")) for party in range(parties)]
        start = time.process_time()
        model = run(method, rows, genotypes=True, scores=written, join_deadline=1e6, round_deadline=1e6, **options)
        seconds = time.process_time() - start
        scores = np.vstack([np.load(file) for file in written])
    said = model.log["measured"].get("certified_angle_degrees", model.log["measured"].get("angle_bound_degrees"))
    up = max(model.bytes_up_by_party) / 1e6
    certified = "-" if said is None else f"{said:.0e}"
    return Measured(scores, seconds, peak_mb(), len(model.log["rounds"]), up, certified)


def pooled(files: Sequence[str], parties: int, components: int, steps: int) -> Measured:
    """LOBPCG (SciPy) on products of the standardised rows of all files."""
    with threadpool_limits(1, user_api="blas"):
        start = time.process_time()
        rows = rows_of(files, parties)
        counts = [count_alleles(part) for part in rows]
        called, alleles = (sum(getattr(one, name) for one in counts) for name in ("called", "alleles"))
        frequencies: Array = np.asarray(alleles / (2 * np.maximum(called, 1)))
        mean, unit = 2 * frequencies, genotype_deviation(frequencies)
        entries = sum(one.rows for one in counts) * mean.size

        def times(V: Array) -> Array:
            product = np.zeros((mean.size, V.shape[1]))
            for part in rows:
                for z in standardised_chunks(part, mean, unit):
                    product += z.T @ (z @ V)
            return product / entries

        operator = LinearOperator((mean.size, mean.size), matvec=times, matmat=times, dtype=np.float64)
        first = np.random.default_rng(1).standard_normal((mean.size, components + 5))
        with warnings.catch_warnings(action="ignore"):  # what is not converged are the further vectors
            values, vectors = lobpcg(operator, first, tol=1e-10, maxiter=steps)
        V = vectors[:, np.argsort(-values)[:components]]
        scores = np.vstack([z @ V for part in rows for z in standardised_chunks(part, mean, unit)])
        return Measured(scores, time.process_time() - start, peak_mb())


def plink(file: str, parties: int, components: int) -> Measured:
    """Eigenvectors of PLINK 2's relationship matrix, people in the order of the parties."""
    program = shutil.which("plink2")
    if program is None:
        raise ConfigError("there is no plink2 on this machine (Debian's package 'plink2')")
    with TemporaryDirectory() as folder:
        out, before = str(Path(folder, "all")), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [program, "--bfile", str(Path(file).with_suffix("")), "--make-rel", "bin", "square", "--threads", "1"]
        subprocess.run([*command, "--out", out], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        matrix = np.fromfile(f"{out}.rel.bin")
    n = round(np.sqrt(matrix.size))
    _, vectors = np.linalg.eigh(matrix.reshape(n, n))
    order = np.argsort(dealt_out(n, parties), kind="stable")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(vectors[order, ::-1][:, :components], seconds, after.ru_maxrss * 1024 / 1e6)


def angles(scores: Array, truth: Array) -> Array:
    """Of each component's scores (n, k) to those of the reference, in degrees."""
    own, known = (X / np.linalg.norm(X, axis=0) for X in (scores, truth))
    beside = own - known * np.einsum("ij,ij->j", own, known)
    return np.asarray(np.degrees(np.arcsin(np.linalg.norm(beside, axis=0).clip(max=1.0))))


@benchmark(parties=10, rows=2000, variants=4000, populations=4, components=0, steps=20, bed="")
def genotypes(args: Namespace) -> Lines:
    """Genotypes: bytes, rounds, memory and the angle of each component, simulated or beside PLINK 2 on a real file.

        python -m fedpca_flwr.simulations.benchmarks genotypes --rows 100000 --variants 20000
        python -m fedpca_flwr.simulations.benchmarks genotypes --bed EUR_subset.bed --parties 5 --components 4

    Without ``--bed`` people of a few populations are drawn (Balding and Nichols 1995, Fst 0.01; each population but one
    makes a component), 1 % of the calls are missing, and each party has a .bed file. The reference is SciPy's LOBPCG on
    all standardised rows. With ``--bed`` (its .bim and .fam beside it) the people of that file are dealt out to the
    parties, and the reference are the eigenvectors of PLINK 2's relationship matrix (``plink2 --make-rel``, in doubles:
    those that ``--pca`` prints have six digits). Angles are between scores, each component with its own, in degrees.
    Every program has a process of its own and one BLAS thread; memory is the peak of a process that is all parties and
    the server, libraries included.
    """
    with TemporaryDirectory() as folder:
        if args.bed:
            files, k = [args.bed], args.components or 4
            title, reference = "PLINK 2 (one thread)", alone(plink, args.bed, args.parties, k)
        else:
            alone(draw, folder, args.parties, args.rows, args.variants, args.populations)
            files = [str(Path(folder, f"{party}.bed")) for party in range(args.parties)]
            k = args.components or args.populations - 1
            title, reference = "LOBPCG on all rows", alone(pooled, files, args.parties, k, args.steps)
        yield "program", "CPU s", "peak MB", "rounds", "MB up a party", "certified", "angles"
        yield title, f"{reference.seconds:.1f}", f"{reference.peak:.0f}", "-", "-", "-", "-"
        for method, options in ON_REAL if args.bed else ON_DRAWN:
            found = alone(federated, files, args.parties, method, {"n_components": k, **options})
            apart = ", ".join(f"{angle:.0e}" for angle in angles(found.scores[:, :k], reference.scores))
            cells = f"{found.seconds:.1f}", f"{found.peak:.0f}", found.rounds, f"{found.up:.1f}", found.certified
            yield f"{method} {options_text(options)}".strip(), *cells, apart


@benchmark(parties=5, components=4, bed="")
def restarts(args: Namespace) -> Lines:
    """Restarts of SUB-IT's basis at the server: rounds and columns with and without, and the angles between the two.

        python -m fedpca_flwr.simulations.benchmarks restarts --bed EUR_subset.bed --parties 5

    A run restarts where basis and products would take more than a gigabyte (`fedpca_flwr.maths.krylov`); here one line
    is without that, the other restarts as early as any. Without ``--bed`` (a file of genotypes, with its .bim and .fam
    beside it) rows are drawn, whose variances fall slowly.
    """
    rng = np.random.default_rng(0)
    if args.bed:
        parts: list[Any] = rows_of([args.bed], args.parties)
    else:
        parts = [rng.standard_normal((200, 4000)) * np.linspace(2, 1, 4000) ** 3 for _ in range(args.parties)]
    yield "restarts", "rounds", "columns", "certified (deg)", "largest angle to the first line (deg)"
    first: Any = None
    ritz = ProductBasis.ritz
    for name, limit in {"never": 2**62, "as early as any": 0}.items():
        columns = [0]

        def noting(known: ProductBasis, columns: list[int] = columns) -> Any:
            columns.append(known.Q.shape[1])
            return ritz(known)

        with patch.object(krylov, "MAX_BASIS_BYTES", limit), patch.object(ProductBasis, "ritz", noting):
            options: dict[str, Any] = {"tolerance": 1e-4, "genotypes": bool(args.bed)}
            model = run("sub-it", parts, n_components=args.components, **options)
        angle = f"{principal_angles(model, first).max:.1e}" if first else "-"
        first = first or model
        certified = format_upper_bound(model.log["measured"]["certified_angle_degrees"])
        yield name, model.rounds, max(columns), certified, angle
