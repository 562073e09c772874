"""Numbers along logarithmic axes, of figures; needs the extra ``plots``."""

from __future__ import annotations

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedpca_flwr.maths.arrays import Array


def few_ticks(axis: Axis, values: Array) -> None:
    """Numbers at 1, 2 and 5 of each power of ten, or over several powers at these alone: none overprints another."""
    positive = values[values > 0]
    wide = positive.size > 0 and np.log10(positive.max() / positive.min()) > 2
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8 if wide else 99))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
