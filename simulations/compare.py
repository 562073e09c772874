"""Compare methods: any set of them on any data sets, partitions and numbers of clients.

    python -m fedpca_flwr compare --methods p-cov sub-it "compressed codec=shared-step step=1e-4" \\
        --dataset mnist --data-root DEST --partition dirichlet --alpha 0.1 --clients 10

A method may carry options, written as in run-config. With ``--output FOLDER`` every run is one line of JSON in its
``runs.jsonl``, with all that is needed to repeat it, beside its model; what is there already is not run again, so
an interrupted comparison goes on where it stopped. ``report.html`` shows all runs of the folder, those of earlier
comparisons too (extra ``plots``). Angles are to ``PCA(svd_solver="full")`` of the pooled rows in float64; the variance
captured is the share of these rows' variance that the components hold, the one claimed what the model says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import PARTITIONS
from fedpca_flwr.errors import FedPCAError

from . import ENGINES


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m fedpca_flwr compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add(
        "--methods",
        nargs="+",
        default=["all"],
        metavar="METHOD",
        help="names, each with its options in quotes: \"sub-it block-size=10\"; 'all' (the default) is every method",
    )
    add(
        "--dataset",
        nargs="+",
        default=["digits"],
        choices=list(datasets.DATASETS),
        dest="datasets",
        metavar="DATASET",
        help=f"data sets (digits): {', '.join(datasets.DATASETS)}; docs/data.md says what each needs",
    )
    add(
        "--data-root",
        default=".",
        metavar="FOLDER",
        help="the folder of data sets that are read from one (the present one)",
    )
    add(
        "--partition",
        nargs="+",
        default=["dirichlet"],
        choices=list(PARTITIONS),
        dest="partitions",
        metavar="PARTITION",
        help=f"how rows are spread over the clients (dirichlet): {', '.join(PARTITIONS)}; methods for columns get "
        "equal numbers of columns",
    )
    add(
        "--alpha",
        nargs="+",
        type=float,
        default=[0.1],
        dest="alphas",
        metavar="ALPHA",
        help="of dirichlet and quantity: the smaller, the more uneven (0.1)",
    )
    add("--clients", nargs="+", type=int, default=[10], metavar="N", help="numbers of clients (10)")
    add("--components", type=int, default=10, metavar="K", help="number of components (10)")
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
    add(
        "--output",
        metavar="FOLDER",
        help="a folder that gathers the runs of all comparisons, their models and the report",
    )
    add("--fresh", action="store_true", help="first remove the runs, models and figures that --output holds")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = vars(parser().parse_args(arguments))
    fresh, output = given.pop("fresh"), given["output"]

    from .comparing import compare, reported, table  # here: a help needs nothing of it
    from .recommending import choices, sentence
    from .records import by_setting, forget, title

    try:
        if fresh and output:
            forget(Path(output).expanduser())
        records = compare(**given)
        print(table(records))
        for runs in by_setting(records):
            if found := choices(runs):
                print(f"\n{title(runs[0])}:\n{sentence(found)}")
        if output:
            print(f"\n{reported(output, records)}")
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
