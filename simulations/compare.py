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
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedpca_flwr import data, markdown
from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.files import writable
from fedpca_flwr.partition import PARTITIONS
from simulations.columns import HEADS, columns_of, shown
from simulations.measuring import WITHOUT_COMPONENTS, measured
from simulations.progress import with_a_bar
from simulations.recommending import choices, sentence
from simulations.records import Record, append, by_setting, forget, identity, named, parsed, read
from simulations.run import ENGINES
from strategies import METHODS

BUILT_IN = {"digits", "breast-cancer", "wine", "synthetic"}
"""Data sets that are not read from a folder."""

SPREAD = {"dirichlet", "quantity"}
"""Partitions that have an alpha."""


ALL = "all"


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
        Names, each with its options: ``"sub-it block-size=10"``; ``"all"`` is every method.
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
    methods = [name for method in methods for name in (everything() if method == ALL else [method])]
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
                record = {**one, **measured(one, folder)}
            except FedPCAError as error:
                record = {**one, "error": f"{type(error).__name__}: {error}"}
            if folder and "error" not in record:
                append(folder, record)
        records.append(record)
    return records


def everything() -> list[str]:
    """The methods that compute components."""
    return [name for name in METHODS if name not in WITHOUT_COMPONENTS]


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


def _reported(output: str, records: list[Record]) -> str:
    """Write the report of all runs in the folder, and of those that failed just now."""
    try:
        from simulations.report import write_report
    except (ImportError, ConfigError):  # matplotlib is an extra
        return "no report: it needs matplotlib (pip install '.[plots]' in the repository)"
    folder = Path(output).expanduser()
    return f"report: {write_report(folder, read(folder) + [r for r in records if 'error' in r])}"


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add(
        "--methods",
        nargs="+",
        default=[ALL],
        metavar="METHOD",
        help="names, each with its options in quotes: \"sub-it block-size=10\"; 'all' (the default) is every method",
    )
    add(
        "--dataset",
        nargs="+",
        default=["digits"],
        choices=list(data.DATASETS),
        dest="datasets",
        help="data sets (digits); docs/data.md says what each needs",
    )
    add("--data-root", default=".", help="the folder of data sets that are read from one (the present one)")
    add(
        "--partition",
        nargs="+",
        default=["dirichlet"],
        choices=list(PARTITIONS),
        dest="partitions",
        help="how rows are spread over the clients (dirichlet); methods for columns get equal numbers of columns",
    )
    add(
        "--alpha",
        nargs="+",
        type=float,
        default=[0.1],
        dest="alphas",
        help="of dirichlet and quantity: the smaller, the more uneven (0.1)",
    )
    add("--clients", nargs="+", type=int, default=[10], help="numbers of clients (10)")
    add("--components", type=int, default=10, help="number of components (10)")
    add("--seed", type=int, default=42, help="of the partition and of methods that draw anything (42)")
    add(
        "--engine",
        choices=list(ENGINES),
        default="loopback",
        help="this process, or Flower's simulation: the same results, later (loopback)",
    )
    add("--knn", action="store_true", help="also the accuracy of k-NN(5) on the test rows, where there are some")
    add(
        "--bound",
        type=float,
        default=0.0,
        help="above 0: with secure aggregation, and this bound on the size of every value",
    )
    add("--output", help="a folder that gathers the runs of all comparisons, their models and the report")
    add("--fresh", action="store_true", help="first remove the runs, models and figures that --output holds")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = vars(parser().parse_args(arguments))
    fresh, output = given.pop("fresh"), given["output"]
    try:
        if fresh and output:
            forget(Path(output).expanduser())
        records = compare(**given)
        print(table(records))
        for runs in by_setting(records):
            print(f"\n{sentence(choices(runs))}")
        if output:
            print(f"\n{_reported(output, records)}")
    except KeyboardInterrupt:
        kept = (
            f"the runs that ended are kept in {output}, and the same command goes on" if output else "nothing is kept"
        )
        print(f"\ninterrupted: {kept}{'' if output else '; with --output FOLDER every run is'}", file=sys.stderr)
        return 130
    except (FedPCAError, OSError) as error:  # a disk that is full, say
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return int(any("error" in record for record in records))


if __name__ == "__main__":
    sys.exit(main())
