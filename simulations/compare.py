"""The command `compare`: any set of methods on any data sets, partitions and numbers of clients."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from click import Choice
from typer import Exit, Option

from fedpca_flwr import cli
from fedpca_flwr.data.datasets import DATASETS
from fedpca_flwr.data.partition import PARTITIONS
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.simulations import ENGINES

if TYPE_CHECKING:
    from fedpca_flwr.simulations.comparing import Comparison


def main(
    methods: Annotated[list[str], Option(metavar="METHOD...")] = ["all"],  # noqa: B006 (nobody changes it)
    data: Annotated[list[str] | None, Option(metavar="FILE...")] = None,
    datasets: Annotated[list[str] | None, Option(click_type=Choice(list(DATASETS)))] = None,
    data_root: Annotated[str, Option(metavar="FOLDER")] = ".",
    partitions: Annotated[list[str] | None, Option(click_type=Choice(list(PARTITIONS)))] = None,
    alphas: Annotated[list[float], Option(metavar="NUMBER...")] = [0.1],  # noqa: B006
    clients: Annotated[list[int] | None, Option(metavar="N...")] = None,
    n_components: int = 10,
    seeds: Annotated[list[int], Option(metavar="N...")] = [42],  # noqa: B006
    engine: Annotated[str, Option(click_type=Choice(list(ENGINES)))] = "loopback",
    knn: bool = False,
    bounds: Annotated[list[float], Option(metavar="NUMBER...")] = [0.0],  # noqa: B006
    output: Annotated[Path | None, Option(metavar="FOLDER")] = None,
    fresh: bool = False,
) -> cli.Report:
    r"""Compare any methods on any data sets, partitions and numbers of clients.

        fedpca compare --methods p-cov sub-it "compressed codec=shared-step step=1e-4" \
            --datasets mnist --data-root DEST --partitions dirichlet --alphas 0.1 --clients 10 --seeds 0 1 2 3 4
        fedpca compare --data north.csv south.csv west.parquet --n-components 3

    A method may carry options, written as in run-config. With `--output FOLDER` every run is one line of JSON in its
    `runs.jsonl`, with all that is needed to repeat it, beside its model. A run that is there already is not repeated,
    so an interrupted comparison goes on where it stopped. `report.html` shows all runs of the folder, those of earlier
    comparisons too (extra `plots`).

    Parameters
    ----------
    methods : list of str
        Names, each with its options in quotes: "sub-it block-size=10"; 'all' is every method.
    data : list of str, optional
        Files of your own rows, one for each party, or their folder; instead of --datasets, --partitions, --clients.
    datasets : list of str, optional
        Data sets (digits); docs/data.md says what each needs.
    data_root : str
        The folder of data sets that are read from one.
    partitions : list of str, optional
        How rows are spread over the clients (dirichlet); methods for columns get equal numbers of columns.
    alphas : list of float
        Parameter of dirichlet and quantity: the smaller, the more uneven, down to 10 rows (or an even share) a client.
    clients : list of int, optional
        Numbers of clients (10).
    n_components : int
        Number of components.
    seeds : list of int
        Seeds of the partition and of methods that draw anything. Results of several are means with 95 % intervals.
    engine : str
        This process, or Flower's simulation: the same results, later.
    knn : bool
        Also the accuracy of k-NN(5) on the test rows, where there are some.
    bounds : list of float
        0: in clear; above 0: with secure aggregation, and this bound on the size of every value; '0 100' runs both.
    output : Path, optional
        A folder that gathers the runs of all comparisons, their models and the report.
    fresh : bool
        First remove the runs, models and figures that --output holds.

    Returns
    -------
    Report
        The table and the recommendations, and for programs the record of every run.

    Raises
    ------
    Exit
        With code 130, if the comparison was interrupted.
    """
    from fedpca_flwr.simulations.comparing import compare  # here: a help needs nothing of it
    from fedpca_flwr.simulations.runs_file import record_line, remove_runs

    try:
        if fresh and output:
            remove_runs(output.expanduser())
        kinds: dict[str, Any] = {"datasets": datasets, "data_root": data_root, "partitions": partitions}
        kinds |= {"alphas": alphas, "clients": clients, "n_components": n_components, "seeds": seeds, "bounds": bounds}
        comparison = compare(data, methods=methods, engine=engine, knn=knn, output=output, **kinds)
        text = f"{comparison}\n\n{_report(comparison)}" if output else str(comparison)
    except KeyboardInterrupt:
        note = "nothing is kept; with --output FOLDER every run is"
        if output:
            note = f"the runs that ended are kept in {output}, and the same command goes on"
        print(f"\ninterrupted: {note}", file=sys.stderr)
        raise Exit(130) from None
    failed = sum("error" in record for record in comparison)
    fault = f"{failed} of {len(comparison)} runs failed; their records say why" if failed else ""
    return cli.Report(text, [json.loads(record_line(record)) for record in comparison], fault)


def _report(comparison: "Comparison") -> str:
    """Write the page of all runs, and return a line with its path, or with the reason why there is none."""
    try:
        return f"report: {comparison.report()}"
    except ConfigError as error:
        return f"no report: {error}"
