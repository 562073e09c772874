"""Look of all figures: the colours of Okabe and Ito (2008), four more where there are ten classes, and marks.

All ten differ for protanopes and deuteranopes too (a test simulates both). A figure brings its paper: no single colour
of text is legible on white and on the dark pages of notebooks, as the contrasts of a colour with white and with #111
multiply to 18.9, which is less than 4.5 times 4.5.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, cycle
from typing import Any, cast

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B43C48", "#605460", "#8478FC", "#C00C90")
MARKERS = "osD^vP*X<>"
PAPER, INK = "#FFFFFF", "#333333"

# of lines: its contrast is 4 or more on white and on dark pages, which a drawing without its paper may stand on
GREY = "#767676"

STYLE: Any = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "auto",
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "font.size": 10,
}


MAX_PLOTTED_ROWS = 300  # rows of a scatter plot with names or pairs; more hide each other


def canvas(width: float, height: float, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """Return a new figure of a size in inches and its single axes, or the axes ``ax`` with their figure."""
    if ax is not None:
        return cast(Figure, ax.figure), ax
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def refuse_axes(ax: Axes | None, panels: int) -> None:
    """Raise ConfigError if a figure of several panels is to be drawn into ``ax``."""
    if ax is not None and panels > 1:
        raise ConfigError(f"'ax' is for one panel, and this figure has {panels}; leave out 'ax', or show less")


def panel_grid(
    ax: Axes | None, panels: int, columns: int, size: tuple[float, float], **shared: Any
) -> tuple[Figure, NDArray[Any]]:
    """Return a new figure of a size in inches and its panels, or ``ax`` with its figure, which is for a single one."""
    refuse_axes(ax, panels)
    if ax is not None:
        return cast(Figure, ax.figure), np.array([ax])
    figure = Figure(figsize=size)
    grid = figure.subplots(-(-panels // columns), columns, squeeze=False, **shared).ravel()
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid[:panels]


def label_edges(grid: NDArray[Any], columns: int, xlabel: str, ylabel: str) -> None:
    """Label the x axes of the lowest panel of each column, and the y axes of the first column."""
    for axes in grid[-columns:]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(xlabel)
    for axes in grid[::columns]:
        axes.set_ylabel(ylabel)


def add_title(place: Figure | Axes, title: str | None, default: str = "") -> None:
    """Write a title, in several lines if it is long, above axes or a figure; None stands for the default."""
    text = "\n".join(textwrap.wrap(default if title is None else title, 50))
    if isinstance(place, Axes):
        place.set_title(text, fontsize=10)
    elif text:
        place.suptitle(text, fontsize=10)


def thin_rows(rows: int, maximum: int) -> slice:
    """Return a slice that selects at most ``maximum`` evenly spread rows."""
    return slice(None, None, max(1, -(-rows // maximum)))


def few_ticks(axis: Axis, values: Array) -> None:
    """Set ticks of a logarithmic axis at 1, 2 and 5 of powers of ten; over more than a factor 100 at powers only."""
    positive = values[values > 0]
    wide = positive.size > 0 and np.log10(positive.max() / positive.min()) > 2
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8 if wide else 99))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


MAX_NAME_LETTERS = 28  # of a name in a legend, on an axis or at an arrow; of longer ones the middle is left out
MAX_LEGEND_LINES = 20  # entries of a column of a legend
MAX_LEGEND_ENTRIES = 40  # entries of a legend; of more the last one says how many are not named


def short_names(names: Iterable[object], most: int = MAX_NAME_LETTERS) -> list[str]:
    """Return names of at most ``most`` letters (12 or more), without the middle of longer ones, that still differ."""
    full = [" ".join(str(name).split()) for name in names]
    cut = [text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[len(text) - most // 2 :]}" for text in full]
    firsts: dict[str, dict[str, int]] = {}
    for text, whole in zip(cut, full, strict=True):
        firsts.setdefault(text, {}).setdefault(whole, len(firsts[text]) + 1)
    return [
        text if len(firsts[text]) == 1 else f"{text[: most - 5]} ({firsts[text][whole]})"
        for text, whole in zip(cut, full, strict=True)
    ]


def wrapped_names(names: Iterable[object]) -> list[str]:
    """Return names for a legend: long names in several lines, or shortened if the legend would be too high."""
    full = list(names)
    wrapped = [textwrap.fill(text, MAX_NAME_LETTERS) for text in short_names(full, 3 * MAX_NAME_LETTERS)]
    return wrapped if sum(text.count("\n") + 1 for text in wrapped) <= MAX_LEGEND_LINES else short_names(full)


def number_colours() -> Colormap:
    """Return the colours of numbers, which are legible without hues, with grey for missing numbers."""
    return colormaps["viridis"].with_extremes(bad=GREY)


def looks() -> Iterator[tuple[str, str]]:
    """Return an endless iterator of pairs of a colour and a marker, of which the first 100 differ."""
    marks = (MARKERS[(i + i // len(COLOURS)) % len(MARKERS)] for i in count())
    return zip(cycle(COLOURS), marks, strict=False)


def add_legend(figure: Figure | Axes, handles: Sequence[Any], *, below: bool = False, columns: int = 0) -> None:
    """Put a legend to the right of all axes, or below in a line, and enlarge the figure; or into a caller's axes."""
    if not (shown := list(handles)):
        return
    if (hidden := len(shown) - MAX_LEGEND_ENTRIES) > 0:
        shown[MAX_LEGEND_ENTRIES:] = [Line2D([], [], linestyle="none", label=f"and {hidden} more")]
    if isinstance(figure, Axes):
        figure.legend(handles=shown, fontsize="small")
        return
    columns = columns or len(shown) if below else -(-len(shown) // (MAX_LEGEND_LINES + 1))
    legend = figure.legend(handles=shown, loc="outside lower center" if below else "outside right upper", ncols=columns)
    width, height = np.array(legend.get_window_extent().size) / figure.dpi
    old_width, old_height = figure.get_size_inches()
    if below:
        figure.set_size_inches(max(old_width, width + 0.2), old_height + height)
    else:
        figure.set_size_inches(old_width + width, max(old_height, height + 0.2))


def number_axis(axis: Axis, last: int) -> None:
    """Set the limits of an axis of whole numbers from 1 to ``last``, and whole numbers as its ticks."""
    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    margin = max(0.4, 0.03 * last)
    axis.set_view_interval(1 - margin, last + margin, ignore=True)
