"""The look of all figures: the colours of Okabe and Ito (2008), four more where there are ten classes, and marks.

Colour-blind readers tell the first six colours apart; the marks tell all ten.
"""

from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#A6761D", "#808080", "#B5A400", "#8A6FE8")

MARKERS = "osD^vP*X<>"
GREY = "#767676"
"""The one grey whose contrast is 4.5 on white and on black."""

STYLE: Any = {
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlecolor": GREY,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "font.size": 10,
}
