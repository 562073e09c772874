"""Compare methods: any set of them on any data sets, partitions and numbers of clients.

    python -m fedpca_flwr compare --methods p-cov sub-it "compressed codec=shared-step step=1e-4" \\
        --dataset mnist --data-root DEST --partition dirichlet --alpha 0.1 --clients 10
    python -m fedpca_flwr compare --data north.csv south.csv west.parquet --components 3

A method may carry options, written as in run-config. With ``--output FOLDER`` every run is one line of JSON in its
``runs.jsonl``, with all that is needed to repeat it, beside its model; what is there already is not run again, so
an interrupted comparison goes on where it stopped. ``report.html`` shows all runs of the folder, those of earlier
comparisons too (extra ``plots``). Angles are to ``PCA(svd_solver="full")`` of the pooled rows in float64; the variance
captured is the share of these rows' variance that the components hold, the one claimed what the model says.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import PARTITIONS
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.simulations import ENGINES
from fedpca_flwr.simulations.programs import described

if TYPE_CHECKING:
    from fedpca_flwr.simulations.comparing import Comparison

HELP = {
    "methods": "names, each with its options in quotes: \"sub-it block-size=10\"; 'all' (the default) is every method",
    "data": "rows of your own: files, one for each party, or a folder of such files; instead of --dataset, --partition "
    "and --clients",
    "dataset": f"data sets (digits): {', '.join(datasets.DATASETS)}; docs/data.md says what each needs",
    "data-root": "the folder of data sets that are read from one (the present one)",
    "partition": f"how rows are spread over the clients (dirichlet): {', '.join(PARTITIONS)}; methods for columns get "
    "equal numbers of columns",
    "alpha": "of dirichlet and quantity: the smaller, the more uneven (0.1)",
    "clients": "numbers of clients (10)",
    "components": "number of components (10)",
    "seed": "of the partition and of methods that draw anything (42)",
    "engine": "this process, or Flower's simulation: the same results, later (loopback)",
    "knn": "also the accuracy of k-NN(5) on the test rows, where there are some",
    "bound": "0: in clear (the default); above 0: with secure aggregation, and this bound on the size of every value; "
    "'0 100' runs both",
    "output": "a folder that gathers the runs of all comparisons, their models and the report",
    "fresh": "first remove the runs, models and figures that --output holds",
}


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = described("fedpca_flwr compare", __doc__)

    def add(name: str, **keywords: Any) -> None:
        made.add_argument(f"--{name}", help=HELP[name], **keywords)

    def several(name: str, key: str, **keywords: Any) -> None:
        add(name, nargs="+", dest=key, metavar=name.upper(), **keywords)

    add("methods", nargs="+", default=["all"], metavar="METHOD")
    several("data", "parties", type=str)
    several("dataset", "datasets", choices=list(datasets.DATASETS))
    add("data-root", default=".", metavar="FOLDER")
    several("partition", "partitions", choices=list(PARTITIONS))
    several("alpha", "alphas", default=[0.1], type=float)
    add("clients", nargs="+", type=int, metavar="N")
    add("components", default=10, type=int, metavar="K")
    add("seed", default=42, type=int)
    add("engine", default="loopback", choices=list(ENGINES))
    add("knn", action="store_true")
    several("bound", "bounds", default=[0.0], type=float)
    add("output", metavar="FOLDER")
    add("fresh", action="store_true")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = vars(parser().parse_args(arguments))
    fresh, output = given.pop("fresh"), given["output"]

    from fedpca_flwr.simulations.comparing import compare  # here: a help needs nothing of it
    from fedpca_flwr.simulations.records import forget

    try:
        if fresh and output:
            forget(Path(output).expanduser())
        made = compare(**given)
        print(made)
        if output:
            print(f"\n{_report(made)}")
    except KeyboardInterrupt:
        kept = (
            f"the runs that ended are kept in {output}, and the same command goes on" if output else "nothing is kept"
        )
        print(f"\ninterrupted: {kept}{'' if output else '; with --output FOLDER every run is'}", file=sys.stderr)
        return 130
    except (FedPCAError, OSError) as error:  # a disk that is full, say
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return int(any("error" in record for record in made))


def _report(made: "Comparison") -> str:
    """Where the page of all runs is, or why there is none."""
    try:
        return f"report: {made.report()}"
    except ConfigError as error:
        return f"no report: {error}"


if __name__ == "__main__":
    sys.exit(main())
