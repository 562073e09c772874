"""Growth of a run with its number of parties, in this process and in Flower's simulation on Ray."""

import hashlib
import itertools
from typing import Annotated, Any

import click
import typer

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.simulations.engines import run

ROWS, FEATURES, COMPONENTS = 10, 64, 5
DEADLINES = {"join_deadline": 36_000.0, "round_deadline": 36_000.0}
"""Seconds: the parties of a simulation wait for their turn."""


@harness.benchmark("docs/scaling.md", parties=[3], blas_threads=1)
def _parties(
    parties: list[int] = [100, 1000, 10_000],  # noqa: B006
    engines: Annotated[list[str], typer.Option(click_type=click.Choice(["loopback", "ray"]))] = ["loopback"],  # noqa: B006
) -> Lines:
    """Measure a run of p-cov over many parties: seconds, CPU time of the server's process and its peak memory.

    Each party has 10 rows of 64 features. Each run has a process of its own, which with the engine loopback computes
    the parties' answers too. RAY_ADDRESS names a running Ray cluster; without it, Ray starts on this machine. The last
    column shows whether two runs have the same bits.
    """
    yield "parties", "engine", "seconds", "CPU s", "CPU ms a message", "peak, MB", "SHA-256 of the model"
    for number, engine in itertools.product(parties, engines):
        usage = harness.isolate(_run, number, engine, load=_load)
        seconds, messages, digest = usage.value
        cpu = f"{usage.cpu:.2f}", f"{1e3 * usage.cpu / messages:.2f}"
        yield f"{number:,}", engine, f"{seconds:.1f}", *cpu, f"{usage.peak_mb:.0f}", digest[:12]


def _load(number: int, engine: str) -> tuple[list[Array], str]:
    """Draw the parties' rows."""
    return harness.draw_parties(number, ROWS, FEATURES), engine


def _run(parts: list[Array], engine: str) -> tuple[float, int, str]:
    """Run p-cov, and return its seconds, the number of messages and a digest of the model."""
    models: list[Any] = []
    settings: dict[str, Any] = {"n_components": COMPONENTS, "min_rows": 1, "progress": False, **DEADLINES}
    seconds = harness.wall_seconds(lambda: models.append(run("p-cov", parts, engine=engine, **settings)))
    model = models[0]
    arrays = model.components_, model.mean_, model.explained_variance_
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return seconds, len(parts) * (1 + len(model.log["rounds"])), digest
