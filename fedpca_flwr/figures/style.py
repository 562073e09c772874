"""Look of all figures: the colours of Okabe and Ito (2008), four more where there are ten classes, and marks.

All ten differ for protanopes and deuteranopes too (a test simulates both), and so do the marks. A figure brings its
paper: no single colour of text is legible on white and on the dark pages of notebooks, as the contrasts of a colour
with white and with #111 multiply to 18.9, which is less than 4.5 times 4.5. Needs the extra ``plots``.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedpca_flwr.maths.arrays import Array

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B43C48", "#605460", "#8478FC", "#C00C90")
MARKERS = "osD^vP*X<>"
PAPER, INK = "#FFFFFF", "#333333"

GREY = "#767676"
"""Of lines: its contrast is 4 or more on white and on dark pages, which a drawing without its paper may stand on."""

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


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a new figure of a size in inches, and its single axes.

    Parameters
    ----------
    width, height : float
        Size in inches.

    Returns
    -------
    figure : Figure
    axes : Axes
    """
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def thin_rows(rows: int, maximum: int) -> slice:
    """Return a slice that selects at most ``maximum`` evenly spread rows.

    Parameters
    ----------
    rows : int
        Number of rows.
    maximum : int
        Largest number of rows to select.

    Returns
    -------
    slice
    """
    return slice(None, None, max(1, -(-rows // maximum)))


def few_ticks(axis: Axis, values: Array) -> None:
    """Set ticks at 1, 2 and 5 of each power of ten, or only at powers of ten over a wide range: labels never overlap.

    Parameters
    ----------
    axis : Axis
        A logarithmic axis.
    values : ndarray
        The values along the axis.
    """
    positive = values[values > 0]
    wide = positive.size > 0 and np.log10(positive.max() / positive.min()) > 2
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8 if wide else 99))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
