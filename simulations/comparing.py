"""Runs of every combination of methods, data sets, partitions and numbers of clients, each once."""

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
from fedpca_flwr.simulations.measuring import measured
from fedpca_flwr.simulations.progress import with_a_bar
from fedpca_flwr.simulations.recommending import choices, sentence
from fedpca_flwr.simulations.records import (
    AS_GIVEN,
    HEADS,
    SETTING,
    Record,
    append,
    by_setting,
    columns_of,
    identity,
    named,
    parsed,
    read,
    shown,
    title,
)
from fedpca_flwr.simulations.report import write_report
from fedpca_flwr.state.files import require_writable_folder
from fedpca_flwr.strategies import METHODS

if TYPE_CHECKING:
    import pandas

BUILT_IN = {"digits", "breast-cancer", "wine", "synthetic"}
"""Data sets that are not read from a folder."""

SPREAD = {"dirichlet", "quantity"}
"""Partitions that have an alpha."""


class Comparison(list[Record]):
    """The records of a comparison, one for each run; printed it is a table, with what is recommended for each setting.

    A record of a run that failed has ``error`` instead of results.
    """

    folder: Path | None = None  # which holds the runs and their models

    def frame(self) -> pandas.DataFrame:
        """A data frame with a line for each run, and a column for each result and whatever the settings differ in."""
        own = [key for key in SETTING if len({one[key] for one in self}) > 1]
        keys = [*own, *columns_of(self), *(["error"] if any("error" in one for one in self) else [])]
        return import_pandas().DataFrame(
            [{"method": named(one), **{key: one.get(key) for key in keys}} for one in self]
        )

    def report(self) -> Path:
        """Write the page of all runs in the folder, and of those that failed just now; it needs matplotlib."""
        if self.folder is None:
            raise ConfigError("a report needs the models of the runs: give compare an 'output', the folder for them")
        return write_report(self.folder, read(self.folder) + [one for one in self if "error" in one])

    def __str__(self) -> str:
        found = [(runs, choices(runs)) for runs in by_setting(self)]
        return "\n".join([table(self), *(f"\n{title(runs[0])}:\n{sentence(best)}" for runs, best in found if best)])

    def _repr_html_(self) -> str:
        return table_to_html(DisplayTable("", *cells(self)))


def settings(
    methods: Sequence[str],
    datasets: Sequence[str],
    partitions: Sequence[str],
    alphas: Sequence[float],
    clients: Sequence[int],
    bounds: Sequence[float],
) -> Iterator[Record]:
    """Every combination; a partition without alpha occurs once, and ``"all"`` is every method."""
    methods = [name for method in methods for name in (METHODS if method == "all" else [method])]
    ways = [(p, a) for p in partitions for a in (alphas if p in SPREAD else [None])]
    every = itertools.product(datasets, ways, clients, bounds, methods)
    for dataset, (partition, alpha), number, bound, method in every:
        name, options = parsed(method)
        where = {"dataset": dataset, "partition": partition, "alpha": alpha, "clients": number, "bound": bound}
        yield {"method": name, "options": options, **where}


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
    """Run every combination, those left out that ``output`` holds already.

    Parameters
    ----------
    parties : list or mapping of tables, or list of files' names, optional
        Rows of your own, as `run` takes them, or the files that hold them: one for each party. They take the place of
        data sets, partitions and numbers of clients.
    methods : sequence of str
        Names, each with its options: ``"sub-it block-size=10"``; ``"all"`` is every method.
    datasets, partitions : sequence of str, optional
        ``["digits"]`` and ``["dirichlet"]`` where nothing else is named.
    data_root : str
    alphas : sequence of float
        For ``dirichlet`` and ``quantity``.
    clients : sequence of int, optional
        ``[10]`` where nothing else is named.
    components, seed : int
    engine : {"loopback", "ray"}
    knn : bool
        Also the accuracy of k-NN(5) on the data set's test rows, where it has some.
    bounds : sequence of float
        0 is in clear; above it, with secure aggregation, and this bound on the size of a value.
    output : path, optional
        A folder for ``runs.jsonl``, to which each run is added as it ends, and for its model.

    Returns
    -------
    Comparison
        A list of records. A run that failed has ``error`` instead of results.
    """
    common = {"components": components, "seed": seed, "engine": engine, "knn": knn}
    several = {"bound": bounds, "alpha": alphas, "seed": [seed]}
    for key, value in [(key, value) for key, values in several.items() for value in values]:
        RunConfig.parse({key: value}, source="comparison")
    places, partitions, clients = _places(parties, datasets, data_root, partitions, clients)
    every = settings(methods, list(places), partitions, alphas, clients, bounds)
    wanted = [{**one, **common, "data root": places[one["dataset"]]} for one in every]
    folder = require_writable_folder(Path(output).expanduser()) if output else None
    known = {identity(record): record for record in read(folder)} if folder else {}
    bar = with_a_bar(wanted, lambda one: f"{named(one)} on {one['dataset']}, {one['clients']} clients")
    made = Comparison(known.get(identity(one)) or _recorded(one, folder) for one in bar)
    made.folder = folder
    return made


def _places(
    parties: Any,
    datasets: Sequence[str] | None,
    data_root: str,
    partitions: Sequence[str] | None,
    clients: Sequence[int] | None,
) -> tuple[dict[str, str], Sequence[str], Sequence[int]]:
    """The data sets with the folders or files that they are read from, how rows are spread, and over how many."""
    if parties is None:
        if none := [str(number) for number in clients or () if number < 1]:
            raise ConfigError(f"comparison: 'clients' is {', '.join(none)}, expected whole numbers from 1")
        names = datasets or ("digits",)
        places = {name: "." if name in BUILT_IN else str(Path(data_root).resolve()) for name in names}
        return places, partitions or ("dirichlet",), clients or (10,)
    given = {"datasets": datasets, "partitions": partitions, "clients": clients}
    if refused := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"comparison: the parties are given, each with rows of its own; leave out {', '.join(refused)}"
        )
    are_files = isinstance(parties, list | tuple) and all(isinstance(one, str | os.PathLike) for one in parties)
    files = sources.files_of(parties) if are_files else []
    name = sources.hand_over(sources.tables_of(files) if files else parties)
    return {name: os.pathsep.join(files) or "."}, (AS_GIVEN,), (len(sources.HANDED[name].rows),)


def _recorded(one: Record, folder: Path | None) -> Record:
    """Run a method: its record, which stands in the folder where the run did not fail."""
    try:
        record = {**one, **measured(one, folder)}
    except FedPCAError as error:
        return {**one, "error": f"{type(error).__name__}: {error}"}
    if folder:
        append(folder, record)
    return record


def table(records: Iterable[Record]) -> str:
    """The results as Markdown, in the columns of the report."""
    return markdown.table(*cells(list(records)))


def cells(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """The heads and lines of the table of results."""
    columns = columns_of(records)
    lines = []
    for r in records:
        where = r["partition"] + (f" {r['alpha']:g}" if r["alpha"] is not None else "")
        sums = [f"secure, bound {r['bound']:g}" if r["bound"] else "clear"]
        error = [r["error"].replace("\n", " "), *[""] * (len(columns) - 1)] if "error" in r else None
        results = error or [shown(r, key) for key in columns]
        lines.append([r["dataset"], where, str(r["clients"]), named(r), *sums, *results])
    return ["data", "partition", "clients", "method", "sums", *(HEADS[key] for key in columns)], lines
