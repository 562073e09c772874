"""Comparisons: runs of every combination of methods, data sets, partitions, numbers of clients and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.figures import markdown
from fedpca_flwr.model.tables import DisplayTable, import_pandas, table_to_html
from fedpca_flwr.simulations import seed_means, settings, sources
from fedpca_flwr.simulations.measuring import measure_run
from fedpca_flwr.simulations.progress import with_progress_bar
from fedpca_flwr.simulations.recommending import choices, recommendation_text
from fedpca_flwr.simulations.records import (
    ANGLES,
    AS_GIVEN,
    HEADS,
    SETTING,
    SIZES,
    Record,
    columns_of,
    format_result,
    group_by_setting,
    interval_ends,
    is_installed,
    method_text,
    run_identity,
    setting_title,
)
from fedpca_flwr.simulations.report import write_report
from fedpca_flwr.simulations.runs_file import append_record, read_records
from fedpca_flwr.state.files import SHARED, require_writable_folder

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MAX_HTML_ROWS = 200  # lines of a comparison's table in a notebook


class Comparison(list[Record]):
    """Records of the runs of a comparison, which print as a table of means over seeds with recommendations.

    The record of a failed run has ``error`` instead of results.
    """

    folder: Path | None = None  # of the runs and their models

    def frame(self) -> pandas.DataFrame:
        """Return a data frame with a line for each run.

        Returns
        -------
        pandas.DataFrame
            Method, setting with the seed, and results of each run.
        """
        keys = [*self._shown_keys("seed"), *columns_of(self)]
        keys += ["error"] if any("error" in record for record in self) else []
        lines = [{"method": method_text(record), **{key: record.get(key) for key in keys}} for record in self]
        return import_pandas().DataFrame(lines)

    def means(self) -> pandas.DataFrame:
        """Return a data frame with a line for each method and setting: the means over the seeds, with 95 % intervals.

        Returns
        -------
        pandas.DataFrame
            Columns are the setting, the number of ``runs`` with results, and for each result its mean and the ends of
            its interval (Student's t, cut at 0, and for shares at 1), such as ``max angle``, ``max angle low`` and
            ``max angle high``. A single run has no interval.
        """
        averaged = seed_means.average_seeds(self)
        lines = []
        for record in averaged:
            line = {"method": method_text(record), **{key: record[key] for key in self._shown_keys()}}
            line["runs"] = seed_means.count_runs(record)
            for key in columns_of(averaged):
                mean, ends = record.get(key), tuple[float | None, float | None]((None, None))
                if mean is not None and seed_means.count_runs(record) > 1:
                    ends = interval_ends(mean, record.get("intervals", {}).get(key, 0.0), key)
                line |= {key: mean, f"{key} low": ends[0], f"{key} high": ends[1]}
            lines.append(line)
        return import_pandas().DataFrame(lines)

    def figure(self, over: str = "", result: str = "max angle") -> Figure:
        """Draw a result against alpha, the number of clients or the methods: means over the seeds, with 95 % intervals.

        Parameters
        ----------
        over : {"", "alpha", "clients", "methods"}
            Quantity on the horizontal axis; by default the first of them that has several values. Every combination of
            other settings has a panel of its own, and over methods a colour.
        result : str
            Column of `means`, such as ``"max angle"``, ``"captured variance"`` or ``"MB up"``.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ConfigError
            If the runs have a single value along the axis, if there are more panels than a figure holds, or if
            matplotlib is not installed.
        """
        from fedpca_flwr.figures import plots  # matplotlib is needed for figures only

        over = over or (*seed_means.axes_with_values(self), "methods")[0]
        panels = seed_means.curves(self, over, result)
        if len(panels) > seed_means.MAX_PANELS:
            raise ConfigError(
                f"the figure would have {len(panels)} panels, expected at most {seed_means.MAX_PANELS}; draw a part of "
                "the runs: Comparison(run for run in made if run['clients'] == 10).figure()"
            )
        ylabel = HEADS[result] + (", MB" if result in SIZES else "")
        ticks = seed_means.methods_with(self, result) if over == "methods" else ()
        xlabel = seed_means.AXES[over]
        return plots.results_over(panels, xlabel=xlabel, ylabel=ylabel, angles=result in ANGLES, ticks=ticks)

    def to_latex(self) -> str:
        """Write the table of results in LaTeX (package booktabs), without the columns of settings that do not vary.

        Returns
        -------
        str
        """
        heads, lines = cells(self)
        varied = [j for j, column in enumerate(zip(*lines, strict=True)) if len(set(column)) > 1 or j == 3 or j > 4]
        return markdown.latex_table([heads[j] for j in varied], [[line[j] for j in varied] for line in lines])

    def _shown_keys(self, *further: str) -> list[str]:
        """Return the keys of settings that a frame has: those of the data, and the others that differ."""
        keys = ["dataset", "partition", "alpha", "clients", "components", *further, "bound"]
        others = [key for key in SETTING if key not in (*keys, "seed")]
        return keys + [key for key in others if len({record[key] for record in self}) > 1]

    def report(self) -> Path:
        """Write the HTML page of all runs in the folder, and of the runs of this comparison that failed.

        Returns
        -------
        Path

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
        by_setting = ((runs, choices(seed_means.average_seeds(runs))) for runs in group_by_setting(self))
        texts = [f"\n{setting_title(runs)}:\n{recommendation_text(best)}" for runs, best in by_setting if best]
        averaged = seed_means.average_seeds(self)
        notes = [f"\n{seed_means.SEEDS_NOTE}"] if any("seeds" in record for record in averaged) else []
        failed = [f"{method_text(record)}, {text}" for record in averaged for text in seed_means.failure_texts(record)]
        return "\n".join([table(self), *notes, *failed, *texts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table of results as HTML, for notebooks."""
        return table_to_html(DisplayTable("", *cells(self)), max_rows=MAX_HTML_ROWS)


def compare(
    parties: Any = None,
    *,
    table: Any = None,
    label: Any = None,
    methods: Any = "all",
    datasets: str | Iterable[str] | None = None,
    data_root: str | Path = ".",
    partitions: str | Iterable[str] | None = None,
    alphas: float | Iterable[float] = 0.1,
    clients: int | Iterable[int] | None = None,
    n_components: int = 10,
    seed: int | None = None,
    seeds: int | Iterable[int] | None = None,
    engine: str = "loopback",
    knn: bool = False,
    scale: bool = False,
    bounds: float | Iterable[float] = 0.0,
    output: str | Path | None = None,
) -> Comparison:
    """Run methods on every combination of data set, partition, clients and seed that ``output`` does not hold yet.

    Arguments that take several values also take a single value, such as ``alphas=0.1``.

    Parameters
    ----------
    parties : list or mapping of tables, or list of files' names, optional
        Your own data: tables, as `run` takes them, or names of files, one for each party. They replace ``datasets``,
        ``partitions`` and ``clients``.
    table : table of shape (n, d), optional
        Your own rows in one table, instead of ``datasets``. ``partitions`` share them out over ``clients``.
    label : str or array-like of shape (n,), optional
        Column of the table that is no feature, or labels of its rows. The partitions ``dirichlet`` and ``shards`` share
        out the rows of each label.
    methods : str, type, or iterable of these
        Names of methods with their options, such as ``"sub-it block-size=10"``, or classes of your own
        (docs/own-method.md). ``"all"`` stands for every method. Runs of a class are always repeated, because its code
        may have changed.
    datasets, partitions : str or iterable of str, optional
        Names of data sets (by default ``"digits"``) and kinds of partitions (by default ``"dirichlet"``, and for a
        table without labels ``"iid"``).
    data_root : path
        Folder of the data sets that are stored as files.
    alphas : float or iterable of float
        Parameters of the partitions ``dirichlet`` and ``quantity``. With a smaller value the parties differ more.
    clients : int or iterable of int, optional
        Numbers of clients; by default 10.
    n_components : int
        Number of components.
    seed : int, optional
        Single seed of the partitions and of methods that draw random numbers; by default 42.
    seeds : int or iterable of int, optional
        Several seeds, such as ``range(5)``. Every combination runs with each seed, and results are means with 95 %
        intervals.
    engine : {"loopback", "ray"}
        "loopback" runs in this process, "ray" in Flower's simulation. Results are equal.
    knn : bool
        Whether to also measure the accuracy of k-NN(5) on test rows, if the data set has test rows.
    scale : bool
        Whether to divide each feature by its deviation in all rows, once and before the runs, so that methods without
        an option ``scale`` are compared on scaled rows, too.
    bounds : float or iterable of float
        Bounds on the size of a value, for runs with secure aggregation. 0 stands for a run in clear.
    output : path, optional
        Folder for the models and for ``runs.jsonl``, to which each run is appended when it ends.

    Returns
    -------
    Comparison
        List of records, one for each run.

    Raises
    ------
    FedPCAError
        If a method, an option, a setting or the data are wrong, before anything runs; or if ``output`` is not the
        folder of a comparison.

    Examples
    --------
    >>> from fedpca_flwr import compare
    >>> made = compare(methods=["p-cov", "ap-cov"], datasets="wine", clients=3, n_components=2, seeds=range(3))
    >>> made.means()["runs"].tolist()
    [3, 3]

    Rows of one table, shared out by the column "cultivar":

    >>> from sklearn.datasets import load_wine
    >>> wine = load_wine(as_frame=True).frame.rename(columns={"target": "cultivar"})
    >>> made = compare(table=wine, label="cultivar", methods="ap-cov", alphas=[0.1, 10], clients=3, scale=True)
    >>> len(made)
    2
    """
    if seed is not None and seeds is not None:
        raise ConfigError("comparison: both 'seed' and 'seeds' are given; give the seeds of all runs as 'seeds'")
    seeds = (42 if seed is None else seed) if seeds is None else seeds
    own = parties is not None
    others = {"datasets": datasets, "partitions": partitions, "clients": clients}
    places, number = settings.place_parties(parties, others) if own else ({}, 10)
    if table is not None or label is not None:
        places, partitions = settings.place_table(table, label, partitions, {"parties": parties, "datasets": datasets})
    arguments = {"methods": methods, "alphas": alphas, "seeds": seeds, "bounds": bounds}
    arguments["clients"] = number if clients is None else clients
    if not own:
        arguments |= {"datasets": datasets or "digits", "partitions": partitions or "dirichlet"}
    lists = settings.check_arguments(arguments, n_components, engine)
    places = places or settings.place_data(lists.pop("datasets"), data_root)
    lists.setdefault("partitions", [AS_GIVEN])
    if scale:
        places = {sources.scale(name, root): "." for name, root in places.items()}
    common = {"components": n_components, "engine": engine, "knn": bool(knn)}
    runs = list(settings.settings(places, lists, common))
    folder = require_writable_folder(Path(output).expanduser(), SHARED) if output else None
    recorded = read_records(folder) if folder else []
    stored = {run_identity(record): record for record in recorded if is_installed(record["method"])}
    settings.check_data([run for run in runs if run_identity(run) not in stored])
    bar = with_progress_bar(runs, lambda run: f"{method_text(run)} on {run['dataset']}, {run['clients']} clients")
    with _one_engine(engine):
        comparison = Comparison(stored.get(run_identity(run)) or _run_and_record(run, folder) for run in bar)
    comparison.folder = folder
    return comparison


def _one_engine(engine: str) -> AbstractContextManager[None]:
    """Return a context in which all runs share one Ray, if they run on it."""
    if engine != "ray":
        return nullcontext()
    from fedpca_flwr.simulations.ray_engine import running_ray  # Ray is imported by those who use it

    return running_ray()


def _run_and_record(setting: Record, folder: Path | None) -> Record:
    """Run a setting and return its record, with results or an ``error``; append those with results to the folder."""
    try:
        record = {**setting, **measure_run(setting, folder)}
    except FedPCAError as error:
        return {**setting, "error": f"{type(error).__name__}: {error}"}
    if folder:
        append_record(folder, record)
    return record


def table(records: Iterable[Record]) -> str:
    """Write the results of runs as a Markdown table."""
    return markdown.table(*cells(list(records)))


def cells(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the column heads, and the lines of cells, of the table of results, a line for all seeds of a method."""
    averaged = seed_means.average_seeds(records)
    columns = columns_of(averaged)
    several = any("seeds" in record for record in averaged)
    lines = []
    for record in averaged:
        partition = record["partition"] + (f" {record['alpha']:g}" if record["alpha"] is not None else "")
        sums = [f"secure, bound {record['bound']:g}" if record["bound"] else "clear"]
        error = [record["error"].replace("\n", " "), *[""] * (len(columns) - 1)] if "error" in record else None
        results = error or [format_result(record, key) for key in columns]
        runs = [seed_means.runs_text(record)] if several else []
        setting = [record["dataset"], partition, str(record["clients"]), method_text(record)]
        lines.append([*setting, *sums, *runs, *results])
    heads = [*(["runs"] if several else []), *(HEADS[key] for key in columns)]
    return ["data", "partition", "clients", "method", "sums", *heads], lines
