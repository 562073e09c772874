"""Compare methods: any set of them on any data sets, partitions and numbers of clients.

    python -m simulations.compare --methods p-cov sub-it "compressed codec=shared-step step=1e-4" \\
        --dataset mnist --data-root DEST --partition dirichlet --alpha 0.1 --clients 10

A method may carry options, written as in run-config. With ``--output FOLDER`` every run is one line of JSON in its
``runs.jsonl``, with all that is needed to repeat it, beside its model; what is there already is not run again, so
an interrupted comparison goes on where it stopped. ``report.html`` shows all runs of the folder, those of earlier
comparisons too (extra ``plots``). Angles are to ``PCA(svd_solver="full")`` of the pooled rows in float64; the variance
captured is the share of these rows' variance that the components hold, the one claimed what the model says.
`simulations.benchmarks.published` makes of such runs the design notes' tables, ours beside the published numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedpca_flwr import data, markdown
from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.files import writable
from fedpca_flwr.metrics import captured_variance, knn_accuracy, principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import PARTITIONS, split
from fedpca_flwr.reference import pooled_pca
from simulations.columns import HEADS, columns_of, shown
from simulations.progress import with_a_bar
from simulations.records import Record, append, identity, named, parsed, read
from simulations.run import ENGINES, run

BUILT_IN = {"digits", "breast-cancer", "wine", "synthetic"}
"""Data sets that are not read from a folder."""

SPREAD = {"dirichlet", "quantity"}
"""Partitions that have an alpha."""


def settings(
    methods: Sequence[str],
    datasets: Sequence[str],
    partitions: Sequence[str],
    alphas: Sequence[float],
    clients: Sequence[int],
) -> Iterator[Record]:
    """Every combination; a partition without alpha occurs once."""
    ways = [(p, a) for p in partitions for a in (alphas if p in SPREAD else [None])]
    for dataset, (partition, alpha), number, method in itertools.product(datasets, ways, clients, methods):
        name, options = parsed(method)
        where = {"dataset": dataset, "partition": partition, "alpha": alpha, "clients": number}
        yield {"method": name, "options": options, **where}


def compare(
    methods: Sequence[str],
    *,
    datasets: Sequence[str] = ("digits",),
    data_root: str = ".",
    partitions: Sequence[str] = ("dirichlet",),
    alphas: Sequence[float] = (0.1,),
    clients: Sequence[int] = (10,),
    components: int = 10,
    seed: int = 42,
    engine: str = "loopback",
    knn: bool = False,
    bound: float = 0.0,
    output: str | Path | None = None,
) -> list[Record]:
    """Run every combination and return one record each, those included that ``output`` holds already.

    Parameters
    ----------
    methods : sequence of str
        Names, each with its options: ``"sub-it block-size=10"``.
    datasets, partitions : sequence of str
    data_root : str
    alphas : sequence of float
        For ``dirichlet`` and ``quantity``.
    clients : sequence of int
    components, seed : int
    engine : {"loopback", "ray"}
    knn : bool
        Also the accuracy of k-NN(5) on the data set's test rows, where it has some.
    bound : float
        Above 0: with secure aggregation, and this bound on the size of a value.
    output : path, optional
        A folder for ``runs.jsonl``, to which each run is added as it ends, and for its model.

    Returns
    -------
    list of dict
        A run that failed has ``error`` instead of results.
    """
    common = {"components": components, "seed": seed, "engine": engine, "knn": knn, "bound": bound}
    places = {name: "." if name in BUILT_IN else str(Path(data_root).resolve()) for name in datasets}
    RunConfig.parse({"seed": seed, "bound": bound}, source="comparison")
    for alpha in alphas:
        RunConfig.parse({"alpha": alpha}, source="comparison")
    for number in clients:
        RunConfig.parse({"clients": number or -1}, source="comparison")
    every = settings(methods, datasets, partitions, alphas, clients)
    wanted = [{**one, **common, "data root": places[one["dataset"]]} for one in every]
    folder = writable(Path(output).expanduser()) if output else None
    known = {identity(record): record for record in read(folder)} if folder else {}
    records = []
    for one in with_a_bar(wanted, lambda one: f"{named(one)} on {one['dataset']}, {one['clients']} clients"):
        record = known.get(identity(one))
        if record is None:
            try:
                record = {**one, **_measured(one, folder)}
            except FedPCAError as error:
                record = {**one, "error": f"{type(error).__name__}: {error}"}
            if folder and "error" not in record:
                append(folder, record)
        records.append(record)
    return records


def table(records: Iterable[Record]) -> str:
    """The results as Markdown, in the columns of the report."""
    records = list(records)
    columns = columns_of(records)
    lines = []
    for r in records:
        where = r["partition"] + (f" {r['alpha']:g}" if r["alpha"] is not None else "")
        error = [r["error"].replace("\n", " "), *[""] * (len(columns) - 1)] if "error" in r else None
        results = error or [shown(r, key) for key in columns]
        lines.append([r["dataset"], where, str(r["clients"]), named(r), *results])
    return markdown.table(["data", "partition", "clients", "method", *(HEADS[key] for key in columns)], lines)


def _measured(one: Record, folder: Path | None) -> Record:
    center, scale = (bool(one["options"].get(key, default)) for key, default in (("center", True), ("scale", False)))
    pool = (one["dataset"], one["data root"], one["components"], center, scale)
    source, truth = _truth(*pool)
    extra = {} if one["alpha"] is None else {"alpha": one["alpha"]}
    parts = split(source.labels, one["clients"], kind=one["partition"], seed=one["seed"], **extra)
    rows = source.all_rows()
    how = {
        "secure_aggregation": one["bound"] > 0,
        "bound": one["bound"],
        "seed": one["seed"],
        "min_rows": 1,
        "progress": False,
    }
    started = time.monotonic()
    model = run(named(one), [rows[part] for part in parts], n_components=one["components"], engine=one["engine"], **how)
    seconds = time.monotonic() - started
    fit = [entry for entry in model.log["rounds"] if entry["phase"] != "project"]
    angles = principal_angles(model, truth)
    name = f"models/{hashlib.sha256(identity(one).encode()).hexdigest()[:16]}.npz" if folder else None
    if folder and name:
        model.save(folder / name)
    return {
        "model": name,
        "max angle": angles.max,
        "mean angle": angles.mean,
        "captured variance": captured_variance(model, truth, rows),
        "explained variance": float(model.explained_variance_ratio_.sum()),
        "rounds": model.rounds,
        "MB up": float(np.mean(model.bytes_up_by_party) / 1e6),
        "MB down": float(np.mean(sum(np.array(entry["down"]) for entry in fit)) / 1e6),
        "seconds": round(seconds, 3),
        "knn accuracy": _accuracy(model, source) if one["knn"] else None,
        "pooled knn accuracy": _pooled_accuracy(*pool) if one["knn"] else None,
        "exact": model.log["exact"],
        "measured": model.log["measured"],
        "chosen": model.log.get("chosen", {}).get("method"),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("fedpca-flwr", "flwr", "numpy")}},
    }


@cache
def _truth(dataset: str, data_root: str, k: int, center: bool, scale: bool) -> tuple[data.Dataset, PCAModel]:
    source = data.load(dataset, data_root)
    rows = source.all_rows()
    if not 1 <= k <= min(rows.shape):
        raise ConfigError(f"comparison: 'components' is {k}, expected 1 to {min(rows.shape)} for {dataset}")
    return source, pooled_pca(rows, k, center=center, scale=scale)


@cache
def _pooled_accuracy(dataset: str, data_root: str, k: int, center: bool, scale: bool) -> float | None:
    source, truth = _truth(dataset, data_root, k, center, scale)
    return _accuracy(truth, source)


def _accuracy(model: PCAModel, source: data.Dataset) -> float | None:
    if source.test is None:
        return None
    test, labels = source.test()
    return knn_accuracy(model, source.all_rows(), source.labels, test, labels)


def _reported(output: str, records: list[Record]) -> str:
    """Write the report of all runs in the folder, and of those that failed just now."""
    try:
        from simulations.report import write_report
    except (ImportError, ConfigError):  # matplotlib is an extra
        return "no report: it needs matplotlib (python -m pip install 'fedpca-flwr[plots]')"
    folder = Path(output).expanduser()
    return f"report: {write_report(folder, read(folder) + [r for r in records if 'error' in r])}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", required=True, metavar="METHOD")
    parser.add_argument("--dataset", nargs="+", default=["digits"], choices=list(data.DATASETS), dest="datasets")
    parser.add_argument("--data-root", default=".")
    parser.add_argument("--partition", nargs="+", default=["dirichlet"], choices=list(PARTITIONS), dest="partitions")
    parser.add_argument("--alpha", nargs="+", type=float, default=[0.1], dest="alphas")
    parser.add_argument("--clients", nargs="+", type=int, default=[10])
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--engine", choices=list(ENGINES), default="loopback")
    parser.add_argument("--knn", action="store_true", help="also the accuracy of k-NN(5) on the test rows")
    parser.add_argument("--bound", type=float, default=0.0, help="with secure aggregation: no value is larger in size")
    parser.add_argument("--output", help="a folder for the runs, their models and the report")
    args = parser.parse_args(arguments)
    try:
        records = compare(**vars(args))
        print(table(records))
        if args.output:
            print(f"\n{_reported(args.output, records)}")
    except (FedPCAError, OSError) as error:  # a disk that is full, say
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return int(any("error" in record for record in records))


if __name__ == "__main__":
    sys.exit(main())
