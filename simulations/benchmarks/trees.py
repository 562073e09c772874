"""Times of whole runs in two source trees, one process each, which get the same tasks in turn."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits, load_wine

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines, Rows

WORKER = """
import gc, json, sys, time
from pathlib import Path
import numpy as np
from fedpca_flwr import run
from threadpoolctl import threadpool_limits

answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    task = json.loads(line)
    with np.load(Path(sys.argv[1], task["parties"] + ".npz")) as file:
        parties = list(file.values())
    gc.collect()
    with threadpool_limits(1, user_api="blas"):
        start = time.process_time()
        try:
            run(task["method"], parties, progress=False, **task["options"])
            seconds = time.process_time() - start
        except Exception as error:
            seconds = float("nan")
            print(f"{task['parties']} {task['method']}: {error}")
    print(json.dumps(seconds), file=answers, flush=True)
"""
"""Program of both trees' processes: CPU seconds of the task of each line, a run in the tree's own package."""

ROOT = Path(__file__).resolve().parents[2]


class Task(NamedTuple):
    """A run: the name of its parties, a key of `parties`; its method and options."""

    parties: str
    method: str
    options: dict[str, Any]


def parties(data_root: str) -> dict[str, Callable[[], list[Rows]]]:
    """Return functions that make the parties of the tasks by name; those of MNIST only with its folder."""
    digits, wine = load_digits().data, load_wine().data
    makers: dict[str, Callable[[], list[Rows]]] = {
        "wine": lambda: np.array_split(wine, 3),
        "digits": lambda: np.array_split(digits, 10),
        "drawn": lambda: [np.clip(part, -19, 19) for part in _drawn_rows(10, 500, 256)],
    }
    if data_root:
        makers |= {
            "mnist-60000": lambda: _mnist(data_root, 60_000),
            "mnist-10000": lambda: _mnist(data_root, 10_000),
            "mnist-holes": lambda: [_with_holes(part, seed) for seed, part in enumerate(_mnist(data_root, 10_000))],
            "mnist-columns": lambda: _by_columns(_mnist(data_root, 10_000)),
            "mnist-1500": lambda: _by_columns([np.vstack(_mnist(data_root, 10_000))[::7]]),
        }
    return makers


def tasks() -> list[Task]:
    """Return the tasks that the page of benchmarks lists: small tables, each method on MNIST, and secure sums."""
    fifty, masked = {"n_components": COMPONENTS}, {"secure_aggregation": True, "bound": 20.0}
    small = [Task("wine", "p-cov", {"n_components": 3}), Task("digits", "p-cov", {"n_components": 10})]
    small += [Task("digits", method, {"n_components": 10}) for method in ("fast-pca", "dsa")]
    small += [Task("drawn", "p-cov", {"n_components": 10, **options}) for options in ({}, masked)]
    large = [Task("mnist-60000", "p-cov", fifty)]
    methods = (
        "p-cov",
        "ap-cov",
        "sub-it",
        "qr-pca",
        "compressed",
        "adaptive",
        "sapca",
        "dp-pca",
        "robust",
        "personalised",
    )
    large += [Task("mnist-10000", method, fifty) for method in methods]
    large += [Task("mnist-columns", method, {**fifty, "may_show": "scores"}) for method in ("vertical", "vfedpca")]
    large += [Task("mnist-1500", "vfedakpca", {"n_components": 10, "may_show": "inner products"})]
    return [*small, *large, Task("mnist-holes", "em", fifty)]


def compare_trees(checkout: str, data_root: str, repeats: int, chosen: str) -> Lines:
    """Yield a line for each task whose words hold ``chosen``: least and median CPU seconds of both trees, and ratios.

    ``checkout`` is the folder of the other tree. A first run in each tree does not count. A ratio is of the least
    seconds; in brackets are the least and the largest ratio of two runs one after the other.
    """
    yield "parties", "method", "here, s (median)", "there, s (median)", "ratio", "load"
    sources = parties(data_root)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        workers = [_Worker(tree, folder, stack) for tree in (str(ROOT), checkout)]
        for task in tasks():
            title = task.method + " masked" * ("secure_aggregation" in task.options)
            if task.parties not in sources or chosen not in f"{task.parties} {title}":
                continue
            if not (file := Path(folder, f"{task.parties}.npz")).exists():
                np.savez(file, *sources[task.parties]())
            times = np.array([[worker.seconds(task) for worker in workers] for _ in range(repeats + 1)])[1:]
            (here, there), (ours, theirs) = times.min(axis=0), np.median(times, axis=0)
            ratios = times[:, 0] / times[:, 1]
            spread = f"{here / there:.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
            yield (
                task.parties,
                title,
                f"{here:.3g} ({ours:.3g})",
                f"{there:.3g} ({theirs:.3g})",
                spread,
                f"{os.getloadavg()[0]:.1f}",
            )


class _Worker:
    """A process of a source tree, which answers tasks until the stack of contexts ends."""

    def __init__(self, tree: str, folder: str, stack: ExitStack) -> None:
        environment = {**os.environ, "PYTHONPATH": tree, "OPENBLAS_NUM_THREADS": "1"}
        command, pipe = [sys.executable, "-P", "-c", WORKER, folder], subprocess.PIPE
        self.process = stack.enter_context(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)
        )

    def seconds(self, task: Task) -> float:
        """Run a task and return its CPU seconds, or NaN where the tree cannot run it."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(task._asdict()) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))


def _drawn_rows(number: int, n: int, d: int) -> Iterator[Rows]:
    """Draw normal rows (n, d) for a number of parties, with deviations from 3 down to 0.3."""
    generator, deviations = np.random.default_rng(0), np.linspace(3, 0.3, d)
    for _ in range(number):
        yield generator.standard_normal((n, d)) * deviations


def _mnist(data_root: str, rows: int) -> list[Rows]:
    """Split as many rows of MNIST among ten parties by Dirichlet 0.1, in float64."""
    source = datasets.load("mnist", data_root)
    chosen = np.sort(np.random.default_rng(1).permutation(len(source.labels))[:rows])
    pixels = source.rows(chosen).astype(np.float64)
    return [pixels[part] for part in split(source.labels[chosen], 10, seed=42, kind="dirichlet", alpha=0.1)]


def _with_holes(part: Rows, seed: int) -> Rows:
    """Return rows without 5 % of their values."""
    return np.where(np.random.default_rng(seed).random(part.shape) < 0.05, np.nan, part)


def _by_columns(parts: list[Rows]) -> list[Rows]:
    """Split the columns of all parties' rows among ten parties."""
    pooled = np.vstack(parts)
    columns = np.array_split(np.random.default_rng(3).permutation(pooled.shape[1]), 10)
    return [np.ascontiguousarray(pooled[:, chosen]) for chosen in columns]
