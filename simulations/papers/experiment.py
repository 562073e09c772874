"""A paper as a command: steps that are not done twice, figures and a report.

Each step's rows are a CSV file, written whole, whose first line is a comment with the step's settings. A step whose
file is there with the same settings is read, not run, so an interrupted experiment goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from fedpca_flwr import cli
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.markdown import table
from fedpca_flwr.state.files import SHARED, atomic_file, require_writable_folder

Row = dict[str, Any]  # numbers and texts of a line of a table, by column


@dataclass(frozen=True)
class Step:
    """Part of an experiment: name of its table's file, function that yields the rows, and keyword arguments in JSON."""

    name: str
    function: Callable[..., Iterable[Row]]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Paper:
    """Reproduction of a paper as a command: name, help, title, options, steps, and function for the figures."""

    name: str
    doc: str | None
    title: str
    options: Mapping[str, Any]  # defaults of the command's options beside ``--output``
    steps: Callable[..., list[Step]]  # function from the options' values to the steps
    figures: Callable[[dict[str, list[Row]], Path], dict[str, str]]
    """Function that writes the figures of the steps' rows to a folder, and returns the report's sections by heading."""

    def command(self) -> click.Command:
        """Return the command that runs the steps and writes figures and report."""

        def reproduce(output: Path, **values: Any) -> None:
            self.make(output, {key: [*value] if isinstance(value, tuple) else value for key, value in values.items()})

        return command(self.name, self.doc, self.options, reproduce)

    def make(self, folder: Path, values: Mapping[str, Any]) -> dict[str, list[Row]]:
        """Run every step that is not done, write tables, figures and report to the folder, and return all rows."""
        results = run_steps(self.steps(**values), folder / "steps")
        sections = self.figures(results, folder)
        parts = [f"# {self.title}", *(f"## {heading}\n\n{text}" for heading, text in sections.items())]
        write_text(folder / "report.md", "\n\n".join(parts) + "\n")
        return results


def command(name: str, doc: str | None, options: Mapping[str, Any], callback: Callable[..., None]) -> click.Command:
    """Return a command with ``--output`` and options of the types of their defaults; a list takes several values."""
    text = "Folder for figures and report."
    output = click.Option(["--output"], type=click.Path(path_type=Path), required=True, help=text)
    parameters: list[click.Parameter] = [output]
    for option, default in options.items():
        several = isinstance(default, list)
        kind = type(default[0] if several else default)
        flags = [f"--{option.replace('_', '-')}"]
        parameters.append(click.Option(flags, type=kind, default=default, multiple=several, is_flag=kind is bool))
    help_text = cli.readable(doc or "")
    settings: Any = {"help": help_text, "context_settings": cli.HELP_OPTIONS, "rich_markup_mode": None}
    return cli.Command(name, callback=callback, params=parameters, **settings)


def run_steps(steps: Sequence[Step], folder: Path) -> dict[str, list[Row]]:
    """Run the steps without a table of these settings, and return all rows by step; ConfigError for other files."""
    require_writable_folder(folder, SHARED)  # before any work
    results = {}
    for step in track(steps, "reproducing", console=Console(stderr=True)):
        target = folder / f"{step.name}.csv"
        if _read_settings(target) != step.settings:
            write_table(target, list(step.function(**step.settings)), step.settings)
        results[step.name] = read_table(target)
    return results


def write_table(target: Path, rows: Sequence[Row], settings: Mapping[str, Any]) -> None:
    """Write rows of equal columns, at least one, as CSV below a comment with the settings, completely or not at all."""
    text = io.StringIO()
    text.write(f"# {json.dumps(settings, sort_keys=True)}\n")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(target, text.getvalue())


def write_text(target: Path, text: str) -> None:
    """Write a file completely or not at all."""
    with atomic_file(target, SHARED) as stream:
        stream.write(text.encode())


def read_table(target: Path) -> list[Row]:
    """Read the rows of a CSV table that `write_table` wrote; texts that look like numbers become int or float."""
    lines = target.read_text(encoding="utf-8").splitlines()[1:]
    return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(lines)]


def select(results: Mapping[str, list[Row]], prefix: str) -> dict[str, list[Row]]:
    """Return the rows of the steps whose names begin with a prefix, by the rest of the name."""
    return {name.removeprefix(prefix): rows for name, rows in results.items() if name.startswith(prefix)}


def markdown(rows: Sequence[Row], form: str = ".4f") -> str:
    """Write rows of equal columns, at least one, as a Markdown table; ``form`` is the format of floats."""
    cells = ([f"{value:{form}}" if isinstance(value, float) else value for value in row.values()] for row in rows)
    return table(list(rows[0]), cells)


@contextmanager
def figure(
    target: Path, lines: int = 1, columns: int = 1, *, figsize: tuple[float, float], sharey: bool = False
) -> Iterator[Any]:
    """Yield an array of axes (lines, columns), and write the figure, of a size in inches, as PNG at the end."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install '.[plots]' in the repository") from None
    drawn = Figure(figsize)
    yield drawn.subplots(lines, columns, squeeze=False, sharey=sharey)
    drawn.tight_layout()
    with atomic_file(target, SHARED) as stream:
        drawn.savefig(stream, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})


class Line(NamedTuple):
    """Line of a figure: name in the legend, x and y coordinates, and matplotlib's keywords for its look."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, rows: Sequence[Row], x: str, y: str, look: Mapping[str, Any]) -> Line:
        """Return the line through two columns, x and y, of a table's rows."""
        return cls(name, [float(row[x]) for row in rows], [float(row[y]) for row in rows], look)


class Panel(NamedTuple):
    """Lines on common axes, and matplotlib's settings of the axes: title, labels and scales."""

    lines: Sequence[Line]
    labels: Mapping[str, Any]


def plot(target: Path, panels: Sequence[Panel], *, wide: int = 3, sharey: bool = False) -> None:
    """Draw panels in a grid, ``wide`` in a line at most, with a common legend below, into a PNG file."""
    columns = min(wide, len(panels))
    lines = -(-len(panels) // columns)
    with figure(target, lines, columns, figsize=(4.6 * columns, 3.6 * lines), sharey=sharey) as grid:
        for axis in grid.flat[len(panels) :]:
            axis.remove()
        lines_by_name: dict[str, Any] = {}
        for axis, panel in zip(grid.flat, panels, strict=False):
            for line in panel.lines:
                lines_by_name[line.name] = axis.plot(line.x, line.y, **line.look)[0]
            axis.set(**panel.labels)
            axis.grid(alpha=0.3)
            _rescale(axis, panel)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 5, "frameon": False}
        grid[0][0].figure.legend(lines_by_name.values(), lines_by_name.keys(), **below)


def _rescale(axis: Any, panel: Panel) -> None:
    """Put plain numbers along logarithmic axes; one of positive values within a factor 2 becomes linear."""
    from fedpca_flwr.figures.style import few_ticks  # needs matplotlib

    for which, of in (("x", axis.xaxis), ("y", axis.yaxis)):
        if panel.labels.get(f"{which}scale") == "log":
            values = np.array([value for line in panel.lines for value in getattr(line, which)])
            positive = values[values > 0]
            if positive.size and positive.max() > 2 * positive.min():
                few_ticks(of, positive)
            else:
                axis.set(**{f"{which}scale": "linear"})


def _read_settings(target: Path) -> dict[str, Any] | None:
    """Read the settings in a table's first line; None if there is no file, and ConfigError if it is another file."""
    if not target.exists():
        return None
    try:
        settings: dict[str, Any] = json.loads(target.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "))
        return settings
    except ValueError:
        raise ConfigError(f"{target} is not a table of this experiment; name another folder, or remove it") from None


def _value(text: str) -> Any:
    """Convert a text to int or float if possible, else return the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
