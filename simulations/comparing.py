"""Comparisons: runs of every combination of methods, data sets, partitions and numbers of clients."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.figures import markdown
from fedpca_flwr.model.tables import DisplayTable, import_pandas, table_to_html
from fedpca_flwr.simulations import sources
from fedpca_flwr.simulations.measuring import measure_run
from fedpca_flwr.simulations.progress import with_progress_bar
from fedpca_flwr.simulations.recommending import choices, recommendation_text
from fedpca_flwr.simulations.records import (
    AS_GIVEN,
    HEADS,
    SETTING,
    Record,
    append_record,
    columns_of,
    format_result,
    group_by_setting,
    method_text,
    parse_method,
    read_records,
    run_identity,
    setting_title,
)
from fedpca_flwr.simulations.report import write_report
from fedpca_flwr.state.files import require_writable_folder
from fedpca_flwr.strategies import METHODS

if TYPE_CHECKING:
    import pandas

BUILT_IN = {"digits", "breast-cancer", "wine", "synthetic"}
"""Data sets that no folder is needed for."""

WITH_ALPHA = {"dirichlet", "quantity"}
"""Partitions that have an alpha."""


class Comparison(list[Record]):
    """Records of the runs of a comparison; printed, a table with recommendations for each setting.

    A record of a run that failed has ``error`` instead of results.
    """

    folder: Path | None = None  # of the runs and their models

    def frame(self) -> pandas.DataFrame:
        """Return a data frame with a line for each run: the settings that differ, and the results.

        Returns
        -------
        pandas.DataFrame
            The frame.
        """
        differing = [key for key in SETTING if len({record[key] for record in self}) > 1]
        keys = [*differing, *columns_of(self), *(["error"] if any("error" in record for record in self) else [])]
        return import_pandas().DataFrame(
            [{"method": method_text(record), **{key: record.get(key) for key in keys}} for record in self]
        )

    def report(self) -> Path:
        """Write the HTML page of all runs in the folder, and of the runs of this comparison that failed.

        Returns
        -------
        Path
            Path of the page.

        Raises
        ------
        ConfigError
            If the comparison has no folder, or matplotlib or jinja2 is not installed.
        """
        if self.folder is None:
            raise ConfigError("a report needs the models of the runs: give compare an 'output', the folder for them")
        return write_report(self.folder, read_records(self.folder) + [record for record in self if "error" in record])

    def __str__(self) -> str:
        """Write the table of results, and the recommendations for each setting."""
        recommended = [(setting_title(runs[0]), choices(runs)) for runs in group_by_setting(self)]
        texts = (f"\n{title}:\n{recommendation_text(best)}" for title, best in recommended if best)
        return "\n".join([table(self), *texts])

    def _repr_html_(self) -> str:
        """Return the table of results as HTML, for notebooks."""
        return table_to_html(DisplayTable("", *cells(self)))


def settings(
    methods: Sequence[str],
    datasets: Sequence[str],
    partitions: Sequence[str],
    alphas: Sequence[float],
    clients: Sequence[int],
    bounds: Sequence[float],
) -> Iterator[Record]:
    """Yield the setting of every combination of method, data set, partition, number of clients and bound.

    Parameters
    ----------
    methods : sequence of str
        Methods with their options; ``"all"`` is every method.
    datasets : sequence of str
        Names of data sets.
    partitions : sequence of str
        Kinds of partitions.
    alphas : sequence of float
        Parameters of ``dirichlet`` and ``quantity``.
    clients : sequence of int
        Numbers of clients.
    bounds : sequence of float
        Bounds of secure aggregation; 0 is in clear.

    Yields
    ------
    dict
        Method, options and setting of a run.

    Raises
    ------
    ConfigError
        If a method or an option is not allowed.
    """
    methods = [name for method in methods for name in (METHODS if method == "all" else [method])]
    splits = [(p, a) for p in partitions for a in (alphas if p in WITH_ALPHA else [None])]
    for dataset, (partition, alpha), number, bound, method in itertools.product(
        datasets, splits, clients, bounds, methods
    ):
        name, options = parse_method(method)
        setting = {"dataset": dataset, "partition": partition, "alpha": alpha, "clients": number, "bound": bound}
        yield {"method": name, "options": options, **setting}


def compare(
    parties: Any = None,
    *,
    methods: Sequence[str] = ("all",),
    datasets: Sequence[str] | None = None,
    data_root: str = ".",
    partitions: Sequence[str] | None = None,
    alphas: Sequence[float] = (0.1,),
    clients: Sequence[int] | None = None,
    components: int = 10,
    seed: int = 42,
    engine: str = "loopback",
    knn: bool = False,
    bounds: Sequence[float] = (0.0,),
    output: str | Path | None = None,
) -> Comparison:
    """Run methods on every combination of data set, partition and clients that ``output`` does not hold already.

    Parameters
    ----------
    parties : list or mapping of tables, or list of files' names, optional
        Rows of your own, as `run` takes them, or the files that hold them: one for each party. They take the place of
        data sets, partitions and numbers of clients.
    methods : sequence of str
        Names, each with its options: ``"sub-it block-size=10"``; ``"all"`` is every method.
    datasets, partitions : sequence of str, optional
        Names of data sets, ``["digits"]`` where nothing else is named, and kinds of partitions, ``["dirichlet"]``.
    data_root : str
        Folder of data sets that are read from a folder.
    alphas : sequence of float
        Parameters of ``dirichlet`` and ``quantity``: the smaller, the more uneven.
    clients : sequence of int, optional
        Numbers of clients; ``[10]`` where nothing else is named.
    components, seed : int
        Number of components; seed of partitions and of methods that draw anything.
    engine : {"loopback", "ray"}
        This process, or Flower's simulation, with equal results.
    knn : bool
        Whether to measure the accuracy of k-NN(5) on test rows, too, if the data set has some.
    bounds : sequence of float
        Bounds on the size of a value with secure aggregation; 0 is a run in clear.
    output : path, optional
        Folder for ``runs.jsonl``, to which each run is added as it ends, and for the models.

    Returns
    -------
    Comparison
        A list of records. A run that failed has ``error`` instead of results.

    Raises
    ------
    ConfigError
        If a method, an option or a setting is not allowed, or ``output`` is no folder of a comparison.
    """
    common = {"components": components, "seed": seed, "engine": engine, "knn": knn}
    checked_keys = {"bound": bounds, "alpha": alphas, "seed": [seed]}
    for key, value in [(key, value) for key, values in checked_keys.items() for value in values]:
        RunConfig.parse({key: value}, source="comparison")
    places, partitions, clients = _places(parties, datasets, data_root, partitions, clients)
    combinations = settings(methods, list(places), partitions, alphas, clients, bounds)
    runs = [{**setting, **common, "data root": places[setting["dataset"]]} for setting in combinations]
    folder = require_writable_folder(Path(output).expanduser()) if output else None
    stored = {run_identity(record): record for record in read_records(folder)} if folder else {}
    bar = with_progress_bar(runs, lambda run: f"{method_text(run)} on {run['dataset']}, {run['clients']} clients")
    comparison = Comparison(stored.get(run_identity(run)) or _run_and_record(run, folder) for run in bar)
    comparison.folder = folder
    return comparison


def _places(
    parties: Any,
    datasets: Sequence[str] | None,
    data_root: str,
    partitions: Sequence[str] | None,
    clients: Sequence[int] | None,
) -> tuple[dict[str, str], Sequence[str], Sequence[int]]:
    """Return the folder or files of each data set, the partitions, and the numbers of clients of a comparison."""
    if parties is None:
        if refused_numbers := [str(number) for number in clients or () if number < 1]:
            raise ConfigError(f"comparison: 'clients' is {', '.join(refused_numbers)}, expected whole numbers from 1")
        names = datasets or ("digits",)
        places = {name: "." if name in BUILT_IN else str(Path(data_root).resolve()) for name in names}
        return places, partitions or ("dirichlet",), clients or (10,)
    arguments = {"datasets": datasets, "partitions": partitions, "clients": clients}
    if refused := [name for name, value in arguments.items() if value is not None]:
        raise ConfigError(
            f"comparison: the parties are given, each with rows of its own; leave out {', '.join(refused)}"
        )
    are_files = isinstance(parties, list | tuple) and all(isinstance(path, str | os.PathLike) for path in parties)
    files = sources.files_of(parties) if are_files else []
    name = sources.hand_over(sources.tables_of(files) if files else parties)
    return {name: os.pathsep.join(files) or "."}, (AS_GIVEN,), (len(sources.HELD_TABLES[name].rows),)


def _run_and_record(setting: Record, folder: Path | None) -> Record:
    """Run a setting and return its record, with results or an error; store only a record with results."""
    try:
        record = {**setting, **measure_run(setting, folder)}
    except FedPCAError as error:
        return {**setting, "error": f"{type(error).__name__}: {error}"}
    if folder:
        append_record(folder, record)
    return record


def table(records: Iterable[Record]) -> str:
    """Write the results of runs as a Markdown table.

    Parameters
    ----------
    records : iterable of dict
        Records of runs.

    Returns
    -------
    str
        The table.
    """
    return markdown.table(*cells(list(records)))


def cells(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the column heads and the lines of cells of the table of results.

    Parameters
    ----------
    records : sequence of dict
        Records of runs.

    Returns
    -------
    tuple of list
        Heads of the columns, and the cells of each line.
    """
    columns = columns_of(records)
    lines = []
    for record in records:
        partition = record["partition"] + (f" {record['alpha']:g}" if record["alpha"] is not None else "")
        sums = [f"secure, bound {record['bound']:g}" if record["bound"] else "clear"]
        error = [record["error"].replace("\n", " "), *[""] * (len(columns) - 1)] if "error" in record else None
        results = error or [format_result(record, key) for key in columns]
        lines.append([record["dataset"], partition, str(record["clients"]), method_text(record), *sums, *results])
    return ["data", "partition", "clients", "method", "sums", *(HEADS[key] for key in columns)], lines
