"""Compare methods: any set of them on any data sets, partitions and numbers of clients.

    python -m simulations.compare --methods p-cov sub-it "compressed codec=shared-step step=1e-4" \\
        --dataset mnist --data-root DEST --partition dirichlet --alpha 0.1 --clients 10

A method may carry options, as in the example. With ``--output FOLDER`` every run is one line of JSON in its
``runs.jsonl``, with all that is needed to repeat it, beside its model; what is there already is not run again, so
an interrupted comparison goes on where it stopped. ``report.html`` shows it all (extra ``plots``). Angles are to
``PCA(svd_solver="full")`` of the pooled rows in float64. `simulations.benchmarks.published` makes of such runs the
design notes' tables, ours beside the published numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from fedpca_flwr import data
from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.files import written_whole
from fedpca_flwr.metrics import knn_accuracy, principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import PARTITIONS, split
from fedpca_flwr.reference import pooled_pca
from simulations.run import ENGINES, run
from strategies import method_named

Record = dict[str, Any]

RUNS = "runs.jsonl"

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
        yield {
            "method": name,
            "options": options,
            "dataset": dataset,
            "partition": partition,
            "alpha": alpha,
            "clients": number,
        }


def parsed(method: str) -> tuple[str, Record]:
    """``"sub-it block-size=10"`` as name and options, those of the method or ``secure-aggregation`` and ``bound``.

    Raises
    ------
    ConfigError
        For a word that is not ``key=value``, an unknown method or option, or a value that is not allowed.
    """
    name, *words = method.split() or [""]
    known = method_named(name).strategy.card.options
    options: Record = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"method '{method}': '{word}' is not an option, expected key=value")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    own = {key: value for key, value in options.items() if key not in {"secure-aggregation", "bound"}}
    if "n-components" in own:
        raise ConfigError(f"method '{method}': the number of components is that of the comparison (--components)")
    known.parse(own, source=f"method '{method}'")
    return name, options


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
    output : path, optional
        A folder for ``runs.jsonl``, to which each run is added as it ends, and for its model.

    Returns
    -------
    list of dict
        A run that failed has ``error`` instead of results.
    """
    place = str(Path(data_root).resolve()) if any(name not in BUILT_IN for name in datasets) else "."
    common = {"components": components, "seed": seed, "engine": engine, "knn": knn, "data root": place}
    RunConfig.parse({"seed": seed}, source="comparison")
    for alpha in alphas:
        RunConfig.parse({"alpha": alpha}, source="comparison")
    for number in clients:
        RunConfig.parse({"clients": number or -1}, source="comparison")
    wanted = [{**one, **common} for one in settings(methods, datasets, partitions, alphas, clients)]
    folder = Path(output) if output else None
    known = {_identity(record): record for record in _read(folder)}
    records = []
    for one in track(wanted, "comparing", console=Console(stderr=True)):
        record = known.get(_identity(one))
        if record is None:
            try:
                record = {**one, **_measured(one, data_root, folder)}
            except FedPCAError as error:
                record = {**one, "error": f"{type(error).__name__}: {error}"}
            if folder and "error" not in record:
                _append(folder, record)
        records.append(record)
    return records


def table(records: Iterable[Record]) -> str:
    """Markdown; MB are the mean over the clients. Accuracies are there if any were measured."""
    records = list(records)
    accuracies = any(r.get("knn accuracy") is not None for r in records)
    heads = ["data", "partition", "clients", "method", "max angle (deg)", "mean", "rounds", "MB up", "MB down"]
    heads += ["k-NN(5)"] if accuracies else []
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for r in records:
        where = r["partition"] + (f" {r['alpha']:g}" if r["alpha"] is not None else "")
        told = " ".join([r["method"], *(f"{key}={value}" for key, value in r["options"].items())])
        cells = [r["dataset"], where, str(r["clients"]), told]
        if "error" in r:
            cells += [r["error"].replace("\n", " "), *[""] * (len(heads) - 5)]
        else:
            cells += [f"{r['max angle']:.2g}", f"{r['mean angle']:.2g}", str(r["rounds"])]
            cells += [f"{r['MB up']:.3g}", f"{r['MB down']:.3g}"]
            if accuracies:
                cells.append("" if r.get("knn accuracy") is None else f"{r['knn accuracy']:.2%}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _measured(one: Record, data_root: str, folder: Path | None) -> Record:
    center, scale = (bool(one["options"].get(key, default)) for key, default in (("center", True), ("scale", False)))
    pool = (one["dataset"], data_root, one["components"], center, scale)
    source, truth = _truth(*pool)
    extra = {} if one["alpha"] is None else {"alpha": one["alpha"]}
    parts = split(source.labels, one["clients"], kind=one["partition"], seed=one["seed"], **extra)
    rows = source.all_rows()
    options = {key.replace("-", "_"): value for key, value in one["options"].items()}
    options = {"n_components": one["components"], "seed": one["seed"], "min_rows": 1, **options}
    started = time.monotonic()
    model = run(one["method"], [rows[part] for part in parts], engine=one["engine"], **options)
    seconds = time.monotonic() - started
    fit = [entry for entry in model.log["rounds"] if entry["phase"] != "project"]
    angles = principal_angles(model, truth)
    name = f"models/{hashlib.sha256(_identity(one).encode()).hexdigest()[:16]}.npz" if folder else None
    if folder and name:
        model.save(folder / name)
    return {
        "model": name,
        "max angle": angles.max,
        "mean angle": angles.mean,
        "explained variance": float(model.explained_variance_ratio_.sum()),
        "rounds": len(fit),
        "MB up": float(np.mean(sum(np.array(entry["up"]) for entry in fit)) / 1e6),
        "MB down": float(np.mean(sum(np.array(entry["down"]) for entry in fit)) / 1e6),
        "seconds": round(seconds, 3),
        "knn accuracy": _accuracy(model, source) if one["knn"] else None,
        "pooled knn accuracy": _pooled_accuracy(*pool) if one["knn"] else None,
        "exact": model.log["exact"],
        "measured": model.log["measured"],
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


def _identity(record: Record) -> str:
    where = ("dataset", "data root", "partition", "alpha", "clients")
    keys = ("method", "options", *where, "components", "seed", "engine", "knn")
    return json.dumps([record[key] for key in keys], sort_keys=True)


def _read(folder: Path | None) -> list[Record]:
    """The records of an earlier run; a last line that was cut short is left out, and run again."""
    if folder is None or not (target := folder / RUNS).exists():
        return []
    try:
        *lines, cut = target.read_text().split("\n")
        records = [json.loads(line) for line in lines]
        for record in records:
            _identity(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{target} is not a file of a comparison ({type(error).__name__}); name another") from None
    if cut:  # no newline at the end: the line was being written
        with written_whole(target) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode())
    return records


def _append(folder: Path, record: Record) -> None:
    with (folder / RUNS).open("a") as stream:
        stream.write(json.dumps(record) + "\n")


def _reported(output: str, records: list[Record], data_root: str) -> str:
    try:
        from simulations.report import write_report
    except (ImportError, ConfigError):  # matplotlib is an extra
        return "no report: it needs matplotlib (python -m pip install 'fedpca-flwr[plots]')"
    return f"report: {write_report(output, records, data_root=data_root)}"


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
    parser.add_argument("--output", help="a folder for the runs, their models and the report")
    args = parser.parse_args(arguments)
    try:
        records = compare(**vars(args))
        print(table(records))
        if args.output:
            print(f"\n{_reported(args.output, records, args.data_root)}")
    except FedPCAError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return int(any("error" in record for record in records))


if __name__ == "__main__":
    sys.exit(main())
