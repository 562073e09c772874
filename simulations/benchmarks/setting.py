"""The setting of the published tables: 10 clients, Dirichlet 0.1, seed 42, 50 components.

The truth is P-COV, which is itself at 1e-12 degrees from scikit-learn (`simulations.benchmarks.accuracy`).
"""

from __future__ import annotations

import argparse
from typing import Any

from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.model.model import PCAModel

from .. import run

COMPONENTS = 50
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"kind": "iid"},
    "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5},
    "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1},
    "shards": {"kind": "shards"},
}


def parser(doc: str | None, **defaults: int | float) -> argparse.ArgumentParser:
    """Of a benchmark; ``doc`` is its help, and each default an option of its type."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.benchmarks NAME",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser


def data_parser(doc: str | None, *, dataset: str | None = None, **defaults: int | float) -> argparse.ArgumentParser:
    """Of a benchmark on MNIST, CIFAR-10 (JPEG) or the digits; which one must be said, unless ``dataset`` does."""
    options = parser(doc, **defaults)
    choices = ["mnist", "images", "digits"]
    options.add_argument("--dataset", choices=choices, required=dataset is None, default=dataset)
    options.add_argument("--data-root", default=".")
    return options


def clients(
    dataset: str, root: str, *, kind: str = "dirichlet", alpha: float = 0.1, seed: int = 42
) -> list[NDArray[Any]]:
    """The clients' rows."""
    source = datasets.load(dataset, root)
    rows = source.all_rows()
    return [rows[part] for part in split(source.labels, 10, kind=kind, alpha=alpha, seed=seed)]


def truth(parts: list[NDArray[Any]]) -> PCAModel:
    return run("p-cov", parts, n_components=COMPONENTS, engine="loopback")


def options_text(options: dict[str, Any]) -> str:
    """Options as a table shows them."""
    return " ".join(f"{key}={value}" for key, value in options.items())
