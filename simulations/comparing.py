"""Comparisons: runs of every combination of methods, data sets, partitions, numbers of clients and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpca_flwr.errors import ConfigError, FedPCAError, printable_text, value_text
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
    RESULTS_NOTE,
    SETTING,
    SIZES,
    Record,
    columns_of,
    format_result,
    group_by_setting,
    interval_ends,
    is_installed,
    method_text,
    note_kind,
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

    The record of a failed run has ``error`` instead of results. A mark such as [1] beside a method is that of a note
    below the table, and `frame` has the notes in full.
    """

    folder: Path | None = None  # of the runs and their models

    def frame(self) -> pandas.DataFrame:
        """Return a data frame with a line for each run.

        Returns
        -------
        pandas.DataFrame
            Method, setting with the seed, and results of each run.
        """
        errors = ["error"] * any("error" in record for record in self)
        keys = [*self._shown_keys("seed"), *columns_of(self), "notes", *errors]
        lines = [{"method": method_text(record), **{key: record.get(key) for key in keys}} for record in self]
        return import_pandas().DataFrame(lines)

    def means(self) -> pandas.DataFrame:
        """Return a data frame with a line for each method and setting: the means over the seeds, with 95 % intervals.

        Returns
        -------
        pandas.DataFrame
            Columns are the setting, the number of ``runs`` with results, and for each result its mean and the ends of
            its interval (Student's t, cut at 0, for shares at 1 and for angles at 90), such as ``max angle``,
            ``max angle low`` and ``max angle high``. A single run has no interval. Last are the ``notes`` of the runs.
        """
        averaged = seed_means.average_seeds(self)
        lines = []
        for record in averaged:
            line = {"method": method_text(record), **{key: record[key] for key in self._shown_keys()}}
            line["runs"] = runs = seed_means.count_runs(record)
            for key in columns_of(averaged):
                mean, half_width = record.get(key), record.get("intervals", {}).get(key, 0.0)
                ends = (None, None) if mean is None or runs < 2 else interval_ends(mean, half_width, key)
                line |= {key: mean, f"{key} low": ends[0], f"{key} high": ends[1]}
            lines.append({**line, "notes": record.get("notes", [])})
        return import_pandas().DataFrame(lines)

    def figure(self, over: str = "", result: str = "max angle") -> Figure:
        """Draw a result against a quantity: means over the seeds, with 95 % intervals.

        Parameters
        ----------
        over : {"", "alpha", "clients", "methods", "MB up"}
            Quantity on the horizontal axis; by default the first of them that has several values. Other settings have
            panels, over methods colours. ``"MB up"`` draws the largest angles of all settings in one panel.
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
        if over == "MB up":
            return plots.bytes_against_error(panels[""])
        if len(panels) > seed_means.MAX_PANELS:
            raise ConfigError(
                f"the figure would have {len(panels)} panels, expected at most {seed_means.MAX_PANELS}; draw a part of "
                "the runs: Comparison(run for run in made if run['clients'] == 10).figure()"
            )
        ticks = seed_means.methods_with(self, result) if over == "methods" else ()
        xlabel, ylabel = seed_means.AXES[over], HEADS[result] + (", MB" if result in SIZES else "")
        return plots.results_over(panels, xlabel=xlabel, ylabel=ylabel, angles=result in ANGLES, ticks=ticks)

    def to_latex(self, results: str | Iterable[str] = ("max angle", "captured variance", "rounds", "MB up")) -> str:
        """Write the table of results in LaTeX (package booktabs), and below it notes and settings that do not vary.

        Parameters
        ----------
        results : str or iterable of str
            Results to write, by their columns of `means`.

        Returns
        -------
        str
        """
        title, heads, lines, notes = cells(self, settings.list_values(results))
        return markdown.latex_table(heads, lines, [*notes, title])

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
        (title, heads, lines, notes), averaged = cells(self), seed_means.average_seeds(self)
        failed = [f"{method_text(record)}, {text}" for record in averaged for text in seed_means.failure_texts(record)]
        return "\n".join([title, "", markdown.table(heads, lines), "", *notes, RESULTS_NOTE, *failed, *texts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table of results as HTML, for notebooks."""
        title, heads, lines, notes = cells(self)
        below = "".join(f"<p>{escape(printable_text(note))}</p>" for note in notes)
        return table_to_html(DisplayTable(title, heads, lines), max_rows=MAX_HTML_ROWS) + below


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

    Parameters
    ----------
    parties : list or mapping of tables, or list of files' names, optional
        Your own data: tables, as `run` takes them, or names of files, one for each party. They replace ``datasets``,
        ``partitions`` and ``clients``.
    table : table of shape (n, d), optional
        Your own rows in one table, instead of ``datasets``. ``partitions`` share them out over ``clients``.
    label : str, int or array-like of shape (n,), optional
        Column of the table that is no feature, or labels of its rows. The partitions ``dirichlet`` and ``shards`` share
        out the rows of each label.
    methods : str, type, or iterable of these
        Names of methods with their options, such as ``"sub-it block-size=10"``, classes of your own
        (docs/own-method.md), or ``"all"``. Runs of a class are always repeated, because its code may have changed.
    datasets, partitions : str or iterable of str, optional
        Names of data sets (by default ``"digits"``) and kinds of partitions (by default ``"dirichlet"``, and for a
        table without labels ``"iid"``). A partition gives each client at least 10 rows, or an even share if there are
        fewer. Runs have a note if most clients have no more.
    data_root : path
        Folder of the data sets that are stored as files.
    alphas : float or iterable of float
        Parameters of the partitions ``dirichlet`` and ``quantity``. With a smaller value the parties differ more.
    clients : int or iterable of int, optional
        Numbers of clients; by default 10.
    n_components : int
        Number of components.
    seed, seeds : int or iterable of int, optional
        One seed, or several, of the partitions and of methods that draw random numbers; by default 42. Results of
        several seeds are means with 95 % intervals.
    engine : {"loopback", "ray"}
        "loopback" runs in this process, "ray" in Flower's simulation. Results are equal.
    knn : bool
        Whether to also measure the accuracy of k-NN(5) on test rows, if the data set has test rows.
    scale : bool
        Whether to divide each feature by its deviation in all rows, before the runs of all methods.
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
    >>> from sklearn.datasets import load_wine
    >>> wine = load_wine(as_frame=True).frame
    >>> made = compare(table=wine, label="target", methods="ap-cov", alphas=[0.1, 10], clients=3, seeds=range(3))
    >>> made.means()["runs"].tolist()
    [3, 3]
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


def cells(records: Sequence[Record], results: Sequence[str] = ()) -> tuple[str, list[str], list[list[str]], list[str]]:
    """Return the title (settings that do not vary), heads, lines and notes of the table of ``results``, or of all."""
    averaged = seed_means.average_seeds(records)
    if wrong := [result for result in results if result not in HEADS]:
        raise ConfigError(f"'results' has {value_text(wrong)}, expected of: {', '.join(HEADS)}")
    columns = [key for key in columns_of(averaged) if not results or key in results]
    numbers, lines = dict[str, int](), list[list[str]]()  # numbers of notes, by their kind
    for record in averaged:
        partition = record["partition"] + (f" {record['alpha']:g}" if record["alpha"] is not None else "")
        marks = [f" [{numbers.setdefault(note_kind(note), len(numbers) + 1)}]" for note in record.get("notes", [])]
        error = [record["error"].replace("\n", " "), *[""] * (len(columns) - 1)] if "error" in record else None
        method = "".join([method_text(record), *dict.fromkeys(marks)])
        sums = [seed_means.value_words(record, "bound"), seed_means.runs_text(record)]
        setting = [record["dataset"], partition, str(record["clients"]), method, *sums]
        lines.append([*setting, *(error or [format_result(record, key) for key in columns])])
    heads = ["data", "partition", "clients", "method", "aggregation", "runs", *(HEADS[key] for key in columns)]
    varied = [j for j in range(len(heads)) if j == 3 or j > 5 or len({line[j] for line in lines}) > 1]
    title = "; ".join(f"{head}: {lines[0][j]}" for j, head in enumerate(heads) if lines and j not in varied)
    notes = [f"[{number}] {kind}" for kind, number in numbers.items()]
    notes += [seed_means.SEEDS_NOTE] * any("seeds" in record for record in averaged)
    return title, [heads[j] for j in varied], [[line[j] for j in varied] for line in lines], notes
