"""Harness of the benchmarks: commands, tables, records, clocks, memory, data and figures."""

import importlib
import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import click
import numpy as np
import typer
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedpca_flwr import cli
from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.simulations.engines import run

Rows = NDArray[Any]
Lines = Iterator[str | Sequence[object]]
Program = Callable[[], object]
Body = Callable[..., Lines]
Points = list[tuple[float, float]]

COMMANDS: dict[str, click.Command] = {}  # commands by name; importing the module of a benchmark adds them
COMPONENTS = 50
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"kind": "iid"},
    "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5},
    "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1},
    "shards": {"kind": "shards"},
}

QUICK = "Run with the smallest sizes that fill the table."
Dataset = Annotated[Literal["mnist", "images", "digits"], typer.Option(help="'images' is CIFAR-10 as JPEG files.")]
Required = Annotated[str, typer.Option()]  # type of an option without a default
Clients = Annotated[int, typer.Option("--clients", help="Number of parties.")]


def benchmark(page: str, *, blas_threads: int | None = None, **quick: object) -> Callable[[Body], Body]:
    """Return a decorator that registers a generator as a benchmark command of its own name.

    The generator's parameters are the command's options, and its docstring is the help. It yields texts, and tuples of
    cells (`print_tables`). ``page`` is the page of docs that quotes the table, from the project's root. ``quick`` has
    the options' defaults with ``--quick``. BLAS has by default a thread for each core.
    """

    def shrink(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.default_map = quick if value else {}

    def register(body: Body) -> Body:
        name = body.__name__.strip("_").replace("_", "-")
        app, texts = cli.new_app(), {"help": cli.readable(body.__doc__ or ""), "epilog": f"Quoted in {page}."}
        app.command(name, cls=cli.Command, context_settings=cli.HELP_OPTIONS, **cast(Any, texts))(body)
        command = COMMANDS[name] = typer.main.get_command(app)
        call = cast(Body, command.callback)

        def run_and_print(text: bool, record: str, **options: Any) -> None:
            logging.getLogger("flwr").setLevel(logging.ERROR)
            with threadpool_limits(blas_threads, user_api="blas") if blas_threads else nullcontext():
                for cells in print_tables(call(**options), text=text):
                    if record:
                        line = {"benchmark": name, "time": datetime.now(UTC).isoformat(), "options": options, **cells}
                        with Path(record).open("a", encoding="utf-8") as file:
                            file.write(json.dumps(line) + "\n")

        command.callback = run_and_print
        command.params += [
            click.Option(["--quick"], is_flag=True, is_eager=True, expose_value=False, callback=shrink, help=QUICK),
            click.Option(["--text"], is_flag=True, help="Print aligned columns instead of Markdown."),
            click.Option(["--record"], default="", help="File that gets a JSON line for each line of a table."),
        ]
        return body

    return register


def print_tables(lines: Lines, *, text: bool = False) -> Iterator[dict[str, str]]:
    """Print texts and tables, Markdown or at the end as aligned ``text``; yield each table's lines as dicts by head.

    A tuple is a line of a table; the first, and the first after a text, are heads, which are not yielded.
    """
    table = list[list[str]]()
    for line in (*lines, None) if text else lines:  # aligned columns need all lines
        if text and table and not isinstance(line, tuple):
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            for cells in table:
                print("  ".join(map(str.ljust, cells, widths)).rstrip())
        if isinstance(line, str):
            table.clear()
            print(line, flush=True)
        elif line is not None:
            cells = [str(cell) for cell in line]
            if not text:
                print(row(cells) if table else head(cells), flush=True)
            table.append(cells)
            if len(table) > 1:
                yield dict(zip(table[0], cells, strict=True))


class Ratio(NamedTuple):
    """Median seconds of two programs that are measured in turn, and the ratio of times in each repetition."""

    ours: float
    theirs: float
    ratios: Array

    def __str__(self) -> str:
        """Write the median ratio, with the least and the largest in brackets."""
        return f"{np.median(self.ratios):.2f} ({self.ratios.min():.2f} to {self.ratios.max():.2f})"


def wall_seconds(program: Program) -> float:
    """Return the wall-clock seconds that a program takes."""
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def cpu_seconds(program: Program) -> float:
    """Return the CPU seconds of a program in this process and in child processes that end during the program."""
    from resource import RUSAGE_CHILDREN, getrusage  # POSIX only

    def used() -> float:
        children = getrusage(RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    start = used()
    program()
    return used() - start


def time_pair(ours: Program, theirs: Program, repeats: int, clock: Callable[[Program], float] = cpu_seconds) -> Ratio:
    """Measure two programs in turn by a clock, ``repeats`` times after a first run of each that does not count."""
    times = np.array([[clock(ours), clock(theirs)] for _ in range(repeats + 1)])[1:]
    ours_seconds, theirs_seconds = np.median(times, axis=0)
    return Ratio(float(ours_seconds), float(theirs_seconds), times[:, 0] / times[:, 1])


class Usage(NamedTuple):
    """CPU seconds, peak memory in MB, and return value of a program that ran in its own process."""

    cpu: float
    peak_mb: float
    value: Any


def isolate(program: Callable[..., Any], *arguments: Any, load: Any = None, warm_up: Any = None) -> Usage:
    """Measure CPU seconds and peak MB of a function of a module in a new process with a single BLAS thread.

    ``load`` turns the arguments into a list of the program's, outside the CPU time. ``warm_up`` has arguments of a
    small first call that loads libraries; memory is then beyond them.
    """
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (program, arguments, load, warm_up))


def _measure(program: Callable[..., Any], arguments: Sequence[Any], load: Any = None, warm_up: Any = None) -> Usage:
    """Measure a program in this process, with the arguments of `isolate`."""
    with threadpool_limits(1, user_api="blas"):
        libraries = 0.0
        if warm_up is not None:
            program(*warm_up)
            libraries = peak_mb()
        values, arguments = list[Any](), load(*arguments) if load else arguments
        seconds = cpu_seconds(lambda: values.append(program(*arguments)))
        return Usage(seconds, peak_mb() - libraries, values[0])


def peak_mb() -> float:
    """Return the peak resident memory of this process in MB."""
    return process_status("VmHWM") / 1e6


def process_status(name: str) -> int:
    """Return an entry of this process's status, such as VmHWM, in bytes, from /proc (Linux only)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def clients(dataset: str, root: str, number: int = 10, *, seed: int = 42, **partition: Any) -> list[Rows]:
    """Split the rows of a data set in the folder ``root`` among clients; return each client's rows (n_i, d).

    ``partition`` has the keywords of `split`; by default it is Dirichlet 0.1 over the classes.
    """
    source = datasets.load(dataset, root)
    rows = source.all_rows()
    return [rows[part] for part in split(source.labels, number, seed=seed, **partition or PARTITIONS["Dirichlet 0.1"])]


def exact_components(parts: Sequence[Rows]) -> Array:
    """Return the components (d, 50) of all parties' rows (n_i, d) by the exact method P-COV."""
    return run("p-cov", parts, n_components=COMPONENTS, min_rows=1).loadings()[0].T


def options_text(*words: str, **options: Any) -> str:
    """Write words and options as a single text, the options as ``key=value``."""
    return " ".join([*words, *(f"{key}={value}" for key, value in options.items())])


def plot(
    file: str, panels: Mapping[str, Mapping[str, Sequence[tuple[float, ...]]]], labels: Sequence[str], **looks: Any
) -> None:
    """Draw panels of curves, with the ``labels`` of the two axes, into a file; draw nothing if its name is empty.

    ``panels`` has points by title and label: abscissa, mean ordinate, and perhaps the lowest and highest draw. The
    ``looks`` are: number of ``rows``, ``ticks`` of ordinates, ``colours`` by label, ``equal_steps`` of abscissas.
    """
    if not file:
        return
    style, figures, lines = (
        importlib.import_module(name) for name in ("fedpca_flwr.figures.style", "matplotlib.figure", "matplotlib.lines")
    )
    as_text = {"svg.fonttype": "none", "svg.hashsalt": "benchmarks"}  # small, and the same each time
    look: dict[str, tuple[str, str]] = {}
    for name, (colour, marker) in zip(dict.fromkeys(itertools.chain(*panels.values())), style.looks(), strict=False):
        look[name] = looks.get("colours", {}).get(name, colour), marker
    with importlib.import_module("matplotlib").rc_context({**style.STYLE, **as_text}):
        rows = looks.get("rows", 1)
        columns = len(panels) // rows
        figure = figures.Figure(figsize=(max(6.0, 2.3 * columns), 1.8 + 1.2 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, sharex="col", sharey=True, squeeze=False)
        entries, bars = dict[str, Any](), dict[str, Any]()
        for axes, (title, curves) in zip(grid.flat, panels.items(), strict=True):
            steps = sorted({point[0] for points in curves.values() for point in points})
            places = range(len(steps)) if looks.get("equal_steps") else steps
            axes.set(xscale="linear" if looks.get("equal_steps") else "log")
            for label, points in curves.items():
                sizes, y, *ends = zip(*points, strict=True)
                x, (colour, marker) = [places[steps.index(size)] for size in sizes], look[label]
                entries.setdefault(label, axes.plot(x, y, marker, ls="-", ms=5, color=colour, label=label)[0])
                if ends:
                    axes.errorbar(x, y, yerr=np.abs(np.subtract(ends, y)), fmt="none", ecolor=colour, capsize=3)
                    bar = {"ls": "none", "marker": "|", "markersize": 12, "color": style.GREY}
                    bars["draws"] = lines.Line2D([], [], label="lowest to\nhighest draw", **bar)
            axes.set_xticks(places, [_size_text(value) for value in steps], minor=False)
            axes.set_xticks([], minor=True)
            if "ticks" in looks:
                axes.set_yticks(looks["ticks"])
            axes.set_title(title, fontsize=8)
        figure.supxlabel(labels[0], fontsize=9)
        figure.supylabel(labels[1], fontsize=9)
        style.add_legend(figure, [*entries.values(), *bars.values()])
        figure.savefig(file, metadata={"Date": None}, facecolor="none")
    if file.endswith(".svg"):
        Path(file).write_text(follow_page(Path(file).read_text(encoding="utf-8")), encoding="utf-8")


def follow_page(svg: str) -> str:
    """Return a figure without paper whose ink is dark on light pages and light on dark pages."""
    style = "<style>svg{color:#333}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
    return re.sub("<svg[^>]*>", rf"\g<0>{style}", svg.replace("#333333", "currentColor"), count=1)


def _size_text(size: float) -> str:
    """Return a size in a few letters: 3000, 50k, 10M."""
    if size >= 1e6:
        return f"{size / 1e6:g}M"
    return f"{size / 1e3:g}k" if size >= 1e4 else f"{size:g}"
