"""What every benchmark has: a name and its options, a Markdown table printed as it grows, data, clocks, memory.

A benchmark is a generator with `benchmark` above it. What it yields is printed at once: a text as it is, and cells as a
line of a table, of which the first is the head. Its name is the function's, its help the docstring.
"""

import logging
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.simulations.programs import parser

Rows = NDArray[Any]
Lines = Iterator[str | Sequence[object]]
"""What a benchmark yields."""
Body = Callable[[Namespace], Lines]
Program = Callable[[], object]

BENCHMARKS: dict[str, Callable[[Sequence[str]], None]] = {}
"""Each by its name, as a function of the command's arguments; filled as modules are imported."""

COMPONENTS = 50
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"kind": "iid"},
    "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5},
    "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1},
    "shards": {"kind": "shards"},
}
DATA: dict[str, Any] = {"dataset": {"choices": ["mnist", "images", "digits"], "required": True}, "data_root": "."}
"""Options of a benchmark on MNIST, CIFAR-10 (JPEG) or the digits, which must be named."""

DIGITS: dict[str, Any] = {**DATA, "dataset": {"choices": ["mnist", "images", "digits"], "default": "digits"}}
"""The same; the digits, where nothing else is named."""


def benchmark(*, blas_threads: int | None = None, **options: Any) -> Callable[[Body], Body]:
    """A generator as a benchmark, with options as `programs.parser` has them, and so many BLAS threads."""

    def named(body: Body) -> Body:
        name = body.__name__.strip("_").replace("_", "-")

        def main(arguments: Sequence[str]) -> None:
            args = parser(f"fedpca_flwr.simulations.benchmarks {name}", body.__doc__, options).parse_args(arguments)
            logging.getLogger("flwr").setLevel(logging.ERROR)
            with threadpool_limits(blas_threads, user_api="blas") if blas_threads else nullcontext():
                printed(body(args))

        BENCHMARKS[name] = main
        return body

    return named


def printed(lines: Lines) -> None:
    """Print lines as they come; after a text a new table begins."""
    begun = False
    for line in lines:
        text = line if isinstance(line, str) else row(line) if begun else head([str(cell) for cell in line])
        begun = not isinstance(line, str)
        print(text, flush=True)


def clients(dataset: str, root: str, number: int = 10, *, seed: int = 42, **partition: Any) -> list[Rows]:
    """The rows of so many clients: Dirichlet 0.1, if no partition is named."""
    source = datasets.load(dataset, root)
    rows = source.all_rows()
    chosen = partition or PARTITIONS["Dirichlet 0.1"]
    return [rows[part] for part in split(source.labels, number, seed=seed, **chosen)]


def truth(parts: list[Rows]) -> PCAModel:
    """P-COV of all rows, which is itself at 1e-12 degrees from scikit-learn (`accuracy`)."""
    return run("p-cov", parts, n_components=COMPONENTS)


def drawn(number: int, rows: int, features: int, power: float = 0.5, shift: float = 1.0) -> list[Array]:
    """Rows (rows, features) for each of so many parties: deviations that fall as a power, and means that differ."""
    rng = np.random.default_rng(0)
    unit = np.arange(1, features + 1) ** -power
    return [
        (rng.standard_normal((rows, features)) + shift * rng.standard_normal(features)) * unit for _ in range(number)
    ]


def options_text(options: dict[str, Any]) -> str:
    """Options as a table shows them."""
    return " ".join(f"{key}={value}" for key, value in options.items())


def seconds(program: Program) -> float:
    """Of a clock on the wall."""
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def cpu_seconds(program: Program) -> float:
    """Of this process: others on the machine count less."""
    start = time.process_time()
    program()
    return time.process_time() - start


def alternated(programs: Sequence[Program], repeats: int, clock: Callable[[Program], float] = seconds) -> Array:
    """Seconds of every program, measured in turn: one row for each repetition."""
    return np.array([[clock(program) for program in programs] for _ in range(repeats)])


def ratio(times: Array, of: int, to: int) -> float:
    """The median, over the repetitions, of one program's time to another's: it holds on other machines."""
    return float(np.median(times[:, of] / times[:, to]))


def alone(program: Callable[..., Any], *arguments: Any) -> Any:
    """What a program returns, in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(program, arguments)


def peak_mb() -> float:
    """The most memory of this process since it began (Linux); what `resource` reports begins with the parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmHWM"))
