"""Genotypes: rounds, bytes, memory and angles beside PLINK 2."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.genetics.calls import StandardisedCalls
from fedpca_flwr.genetics.genotypes import count_alleles, genotype_deviation, standardised_blocks
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.site.readers.files import read

FST = MISSING = 0.01
ON_REAL: list[tuple[str, dict[str, Any]]] = [
    ("qr-pca", {}),
    ("qr-pca", {"wire": "float32"}),
    ("adaptive", {"target": 1e-4}),
    ("sub-it", {"tolerance": 1e-4}),
    ("sub-it", {"tolerance": 1e-4, "block_size": 2, "secure_aggregation": True}),
]
ON_DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("sub-it", {"tolerance": 1e-3}),
    ("sub-it", {"tolerance": 1e-3, "secure_aggregation": True}),
]
POPULATIONS = 4


@harness.benchmark("docs/benchmarks.md", parties=3, rows=300, variants=400)
def _genotypes(parties: int = 10, rows: int = 2000, variants: int = 4000, components: int = 0, bed: str = "") -> Lines:
    """Measure rounds, bytes, memory and angles of a PCA of genotypes, beside PLINK 2 with --bed FILE.

    The people of the file are dealt out to the parties, and the reference are the eigenvectors of PLINK 2's
    relationship matrix (in doubles: those that ``--pca`` prints have six digits). Without --bed people of a few
    populations are drawn (Balding and Nichols 1995, Fst 0.01; each population but one makes a component), 1 % of the
    calls are missing, and the reference is SciPy's ARPACK on all standardised rows. Angles are between the scores of
    each component, in degrees. Memory is the peak of one process that is all parties and the server, with libraries.
    """
    with TemporaryDirectory() as folder:
        if bed:
            k, files, title = components or 4, [bed], "PLINK 2 (one thread)"
            reference = harness.isolate(_plink, bed, parties, k)
        else:
            k, files = components or POPULATIONS - 1, [f"{folder}/{party}.bed" for party in range(parties)]
            harness.isolate(_draw, folder, parties, rows, variants)
            title, reference = "ARPACK on all rows", harness.isolate(_lanczos, files, parties, k, load=_load)
        truth, peak = reference.value if bed else (reference.value, reference.peak_mb)
        yield "program", "CPU s", "peak MB", "rounds", "MB up a party", "certified", "angles"
        yield title, f"{reference.cpu:.1f}", f"{peak:.0f}", "-", "-", "-", "-"
        for method, options in ON_REAL if bed else ON_DRAWN:
            usage = harness.isolate(_federated, files, parties, method, {"n_components": k, **options}, load=_load)
            scores, *cells = usage.value
            off = ", ".join(f"{angle:.0e}" for angle in _angles(scores, truth))
            yield harness.options_text(method, **options), f"{usage.cpu:.1f}", f"{usage.peak_mb:.0f}", *cells, off


def _draw(folder: str, parties: int, rows: int, variants: int) -> None:
    """Write a .bed file for each party, with people of all populations and random missing calls."""
    from bed_reader import to_bed

    rng = np.random.default_rng(0)
    ancestral = rng.uniform(0.05, 0.95, variants) * (1 - FST) / FST
    shares = rng.beta(ancestral, (1 - FST) / FST - ancestral, size=(POPULATIONS, variants))
    # a random 16-bit word is below the limit with the probability of the allele
    limits = np.floor(shares * 2**16).astype(np.uint16)
    properties = {"chromosome": ["1"] * variants, "bp_position": list(range(1, variants + 1))}
    properties |= {"allele_1": ["A"] * variants, "allele_2": ["G"] * variants}
    for party in range(parties):
        population = rng.integers(0, POPULATIONS, rows // parties)
        genotypes = np.zeros((population.size, variants), np.int8)
        for start in range(0, population.size, 500):
            limit, block = limits[population[start : start + 500]], genotypes[start : start + 500]
            for _ in range(2):
                block += rng.integers(0, 2**16, limit.shape, dtype=np.uint16) < limit
            block[rng.integers(0, 2**16, limit.shape, dtype=np.uint16) < MISSING * 2**16] = -127
        to_bed(Path(folder, f"{party}.bed"), genotypes, properties=properties)


def _load(files: Sequence[str], parties: int, *further: Any) -> list[Any]:
    """Read the rows of each party, from its own file or dealt out from a single file, before further arguments."""
    rows: list[Rows] = [read(file).rows for file in files]
    if len(rows) == 1:
        dealt = _deal(len(rows[0]), parties)
        rows = [rows[0][dealt == party] for party in range(parties)]
    return [rows, *further]


def _deal(people: int, parties: int) -> NDArray[np.int64]:
    """Return the number of the party to which each person of a file is dealt at random, with a fixed seed."""
    return np.random.default_rng(0).permutation(people) % parties


def _federated(rows: list[Rows], method: str, options: dict[str, Any]) -> tuple[Array, int, str, str]:
    """Run a method on genotypes; return all scores (n, k), rounds, MB up of the largest sender, and angle bound.

    The bound is in degrees, and "-" if there is none.
    """
    with TemporaryDirectory() as folder:
        files = [f"{folder}/{party}.npy" for party in range(len(rows))]
        model = run(method, rows, genotypes=True, scores=files, join_deadline=1e6, round_deadline=1e6, **options)
        scores = np.vstack([np.load(file) for file in files])
    numbers = model.log["measured"]
    bound = numbers.get("certified_angle_degrees", numbers.get("angle_bound_degrees"))
    up = max(model.bytes_up_by_party) / 1e6
    return scores, len(model.log["rounds"]), f"{up:.1f}", "-" if bound is None else f"{bound:.0e}"


def _lanczos(rows: list[Rows], components: int) -> Array:
    """Return the scores (n, k) by ARPACK on products with the standardised genotypes of all parties."""
    counts = [count_alleles(part) for part in rows]
    called, alleles = (sum(getattr(count, name) for count in counts) for name in ("called", "alleles"))
    frequencies: Array = np.asarray(alleles / (2 * np.maximum(called, 1)))
    mean, unit = 2 * frequencies, genotype_deviation(frequencies)

    def chunks() -> Iterator[StandardisedCalls]:
        return (z for part in rows for z in standardised_blocks(part, mean, unit))

    def multiply(v: Array) -> Any:
        return sum(z.T @ (z @ v) for z in chunks())

    operator = LinearOperator((mean.size, mean.size), matvec=multiply, dtype=np.float64)
    values, vectors = eigsh(operator, components, tol=1e-10, v0=np.random.default_rng(1).standard_normal(mean.size))
    return np.vstack([z @ vectors[:, np.argsort(-values)] for z in chunks()])


def _plink(file: str, parties: int, components: int) -> tuple[Array, float]:
    """Return PLINK 2's eigenvectors (n, k) of the relationship matrix, people in the parties' order, and its peak MB.

    Raise ConfigError if there is no plink2.
    """
    import resource  # POSIX only

    program = shutil.which("plink2")
    if program is None:
        raise ConfigError("there is no plink2 on this machine (Debian's package 'plink2')")
    with TemporaryDirectory() as folder:
        command = [program, "--bfile", str(Path(file).with_suffix("")), "--make-rel", "bin", "square", "--threads", "1"]
        subprocess.run([*command, "--out", f"{folder}/all"], check=True, capture_output=True)
        matrix = np.fromfile(f"{folder}/all.rel.bin")
    n = round(np.sqrt(matrix.size))
    _, vectors = np.linalg.eigh(matrix.reshape(n, n))
    order = np.argsort(_deal(n, parties), kind="stable")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    return vectors[order, ::-1][:, :components], peak


def _angles(scores: Array, truth: Array) -> Array:
    """Return the angles (k,), in degrees, between each column of the scores (n, k) and of the reference."""
    ours, theirs = (X / np.linalg.norm(X, axis=0) for X in (scores, truth))
    rest = ours - theirs * np.einsum("ij,ij->j", ours, theirs)
    return np.asarray(np.degrees(np.arcsin(np.linalg.norm(rest, axis=0).clip(max=1.0))))
