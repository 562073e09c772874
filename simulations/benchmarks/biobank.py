"""A PCA at the size of a biobank: drawn people at several sites, secure sums, and the angle to the drawn truth."""

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh
from typer import Option

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.genotypes import count_alleles, genotype_deviation, standardise
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.maths.subspace_error import Distance, estimate_subspace_error
from fedpca_flwr.simulations.benchmarks import harness, peaks
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.site.bed_file import MAGIC, Variant, write_bim
from fedpca_flwr.site.readers import read

DIVERGENCE = 0.05
"""Fst of each population from the ancestral one (Balding and Nichols 1995)."""

CODES = np.array([3, 2, 0], np.uint8)
"""Two bits of a .bed file for 0, 1 and 2 copies of the first allele."""

VARIANTS_AT_ONCE = 256
FREQUENCIES = "frequencies.npy"


@harness.benchmark("docs/benchmarks.md", folder="", parties=3, people=600, variants=800, components=2, sample=200)
def _biobank(
    folder: Annotated[str, Option(help="Folder of the .bed files; a temporary one by default.")] = "",
    parties: int = 10,
    people: int = 100_000,
    variants: int = 50_000,
    components: int = 20,
    tolerance: float = 0.01,
    sample: int = 1000,
    threads: int = 2,
) -> Lines:
    """Measure a masked sub-it on drawn people, a .bed file a site: time, bytes, memory, and the angle to the truth.

    One more population than components is drawn (Balding and Nichols 1995): a variant's ancestral frequency is uniform
    between 0.1 and 0.9, that of each population has a beta distribution with Fst 0.05, and a person of each site has a
    population at random. Variants are independent given the population, so that the covariance of the standardised
    genotypes is known: its leading eigenvectors are the truth. The distance to the truth is the root of the summed
    squared sines of the angles. The forecast is made from `sample` people of the first site alone, as by `site worth`.
    Sites and server take turns in one process, and the memory of each is beyond its libraries; sites allow rare values.
    Files that are in the folder from an earlier run with the same sizes are drawn no more.
    """
    with TemporaryDirectory() as temporary:
        place = Path(folder or temporary)
        place.mkdir(parents=True, exist_ok=True)
        seconds = harness.wall_seconds(partial(draw_sites, place, parties, people, variants, components + 1))
        yield f"{people:,} people, {variants:,} variants, {parties} sites, drawn in {seconds:.0f} s:\n"
        yield "what", "measured"
        median, low, high = forecast(place, components, sample, people)
        usage = harness.isolate(measure_masked_run, place, parties, components, tolerance, threads)
        result = usage.value
        yield "wall seconds of the run", f"{result['seconds']:.0f}"
        yield "CPU seconds of all sites and the server", f"{usage.cpu:.0f}"
        yield "rounds", result["rounds"]
        yield "MB up, a site", f"{result['up'] / 1e6:.1f}"
        yield "MB down, a site", f"{result['down'] / 1e6:.1f}"
        yield "peak MB of a site", f"{result['site'] / 1e6:.0f}"
        yield "peak MB of the server", f"{result['server'] / 1e6:.0f}"
        yield "certified angle, degrees", f"{result['certified']:.1g}"
        yield "distance to the truth", f"{result['distance']:.4f}"
        yield f"forecast from {sample:,} people of one site", f"{median:.4f} ({low:.4f} to {high:.4f})"
        yield "largest angle to the truth, degrees", f"{result['angle']:.2f}"


def draw_sites(folder: Path, parties: int, people: int, variants: int, populations: int) -> None:
    """Write a .bed file for each site, with .bim and .fam, and the populations' frequencies; keep files of these sizes."""
    rng = np.random.default_rng(0)
    ancestral = rng.uniform(0.1, 0.9, variants) * (1 - DIVERGENCE) / DIVERGENCE
    shares = rng.beta(ancestral, (1 - DIVERGENCE) / DIVERGENCE - ancestral, size=(populations, variants)).T
    np.save(folder / FREQUENCIES, shares)
    # a random 16-bit word is below the first limit for two copies, below the second one for at least one copy
    two, one = (np.minimum(p * 2**16, 2**16 - 1).astype(np.uint16) for p in (shares**2, 1 - (1 - shares) ** 2))
    markers = [Variant("1", j + 1, "A", "G") for j in range(variants)]
    n = people // parties
    for party, draws in enumerate(rng.spawn(parties)):
        file = folder / f"{party}.bed"
        if file.exists() and file.stat().st_size == len(MAGIC) + variants * -(-n // 4):
            continue
        write_bim(markers, file.with_suffix(".bim"))
        file.with_suffix(".fam").write_text("".join(f"0 {i} 0 0 0 -9\n" for i in range(n)), encoding="utf-8")
        population = draws.integers(0, populations, n)
        with file.open("wb") as stream:
            stream.write(MAGIC)
            for start in range(0, variants, VARIANTS_AT_ONCE):
                limits = (limit[start : start + VARIANTS_AT_ONCE].take(population, axis=1) for limit in (two, one))
                words = draws.integers(0, 2**16, (min(VARIANTS_AT_ONCE, variants - start), n), dtype=np.uint16)
                copies = sum((words < limit).view(np.uint8) for limit in limits)
                stream.write(_pack(CODES.take(copies)).tobytes())


def _pack(codes: Any) -> Any:
    """Return codes (d, n) of two bits as bytes (d, ceil(n / 4)), the first code in the lowest bits."""
    d, n = codes.shape
    quads = np.zeros((d, -(-n // 4), 4), np.uint8)
    quads.reshape(d, -1)[:, :n] = codes
    return np.bitwise_or.reduce(quads << np.array([0, 2, 4, 6], np.uint8), axis=2)


def forecast(folder: Path, components: int, sample: int, people: int) -> Distance:
    """Forecast the distance of the components of all people to the truth, from some people of the first site."""
    rows = read(folder / "0.bed").rows
    chosen = np.zeros(len(rows), np.bool_)
    chosen[np.random.default_rng(1).permutation(len(rows))[:sample]] = True
    some = rows[chosen]
    X = to_array(standardise(some, count_alleles(some).frequencies))
    return estimate_subspace_error(X, components).distance(people)


def truth(folder: Path, components: int) -> Array:
    """Return the leading eigenvectors of the covariance of the drawn, standardised genotypes.

    Shapes: -> (d, components).
    """
    shares: Array = np.load(folder / FREQUENCIES)
    mean = shares.mean(axis=1)
    unit = genotype_deviation(mean)
    between = 2 * (shares - mean[:, None]) / unit[:, None] / np.sqrt(shares.shape[1])
    within = (2 * shares * (1 - shares)).mean(axis=1) / unit**2

    def multiply(v: Array) -> Array:
        """Multiply the covariance with a vector."""
        product: Array = between @ (between.T @ v) + within * v.ravel()
        return product

    start = np.random.default_rng(0).standard_normal(mean.size)
    operator = LinearOperator((mean.size, mean.size), matvec=multiply, dtype=np.float64)
    vectors: Array = eigsh(operator, components, v0=start)[1]
    return vectors


def measure_masked_run(folder: Path, parties: int, components: int, tolerance: float, threads: int) -> dict[str, Any]:
    """Run sub-it in secure sums over the sites of a folder, and measure it."""
    options = {"n-components": components, "tolerance": tolerance, "genotypes": True, "secure-aggregation": True}
    files = [folder / f"{party}.bed" for party in range(parties)]
    keys = {"rare-values": "allow", "threads": threads}
    start = time.perf_counter()
    model, meter = peaks.run_sites("sub-it", files, options, keys, peaks.ResidentMeter)
    seconds = time.perf_counter() - start
    angles = np.radians(principal_angles(model.loadings()[0].T, truth(folder, components)))
    return {
        "seconds": seconds,
        "rounds": len(model.log["rounds"]),
        "up": max(model.bytes_up_by_party),
        "down": model.bytes_down / parties,
        "site": meter.site_peak,
        "server": meter.server_peak,
        "certified": model.log["measured"]["certified_angle_degrees"],
        "distance": float(np.linalg.norm(np.sin(angles))),
        "angle": float(np.degrees(angles.max())),
    }
