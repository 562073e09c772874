"""Figures of an association: a Manhattan plot and a QQ plot. They need the extra ``plots``."""

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedpca_flwr.figures.style import COLOURS, GREY, STYLE, add_legend, canvas
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.association import inflation

GENOME_WIDE = 5e-8
"""P value below which an association counts by convention, for a million independent variants."""

MIN_TICK_DISTANCE = 0.022
"""Share of the width below which the names of two chromosomes would touch."""


@rc_context(STYLE)
def manhattan(chromosomes: Sequence[str], positions: Sequence[int], p: Array) -> Figure:
    """Draw -log10 p of each variant at its place in the genome, chromosomes in turns of two colours.

    Parameters
    ----------
    chromosomes : sequence of str
        Chromosome of each variant, in the order of the genome.
    positions : sequence of int
        Position on the chromosome, in base pairs.
    p : ndarray of shape (d,)
        P values; NaN is left out.

    Returns
    -------
    Figure
    """
    names, place, start = np.asarray(chromosomes), np.asarray(positions, dtype=np.float64), 0.0
    height = -np.log10(p.clip(min=np.finfo(np.float64).tiny))
    figure, axes = canvas(9.0, 3.6)
    middles: list[float] = []
    for number, name in enumerate(dict.fromkeys(chromosomes)):
        own = names == name
        x = start + place[own] - place[own].min()
        axes.plot(x, height[own], "o", markersize=2.5, color=COLOURS[number % 2], rasterized=True)
        middles.append(float(x.min() + x.max()) / 2)
        start = float(x.max()) + 0.02 * float(x.max() - x.min() + 1)
    text = f"p = {GENOME_WIDE:g}: genome-wide significance"
    line = axes.axhline(-np.log10(GENOME_WIDE), color=GREY, linestyle="--", linewidth=1, label=text)
    labels, last = list(dict.fromkeys(chromosomes)), -np.inf
    for number, middle in enumerate(middles):  # of those too near each other the first is named
        if middle - last < MIN_TICK_DISTANCE * start:
            labels[number] = ""
        else:
            last = middle
    if len(labels) > 1:
        axes.set_xticks(middles, labels)
        axes.set_xlabel("chromosome")
    else:
        first = place.min()
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{(x + first) / 1e6:g}"))
        axes.set_xlabel(f"position on chromosome {labels[0]} (Mb)")
    axes.margins(x=0.01)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="$-\\log_{10}\\,p$", ylim=(0, None))
    add_legend(figure, [line], below=True)
    return figure


@rc_context(STYLE)
def quantiles(statistics: Array, p: Array) -> Figure:
    """Draw the sorted -log10 p against those expected without any association, with the genomic inflation.

    Parameters
    ----------
    statistics : ndarray of shape (d,)
        T or normal statistics.
    p : ndarray of shape (d,)
        Their p values; NaN is left out.

    Returns
    -------
    Figure
    """
    values = np.sort(p[np.isfinite(p)]).clip(min=np.finfo(np.float64).tiny)
    expected = -np.log10((np.arange(values.size) + 0.5) / values.size)
    figure, axes = canvas(4.2, 4.0)
    axes.plot([0, expected[0]], [0, expected[0]], color=GREY, linewidth=1)
    axes.plot(expected, -np.log10(values), "o", markersize=3, color=COLOURS[0], rasterized=True)
    axes.set(xlabel="expected $-\\log_{10}\\,p$", ylabel="observed $-\\log_{10}\\,p$", xlim=(0, None), ylim=(0, None))
    axes.text(0.05, 0.93, f"inflation λ = {inflation(statistics):.3f}", transform=axes.transAxes)
    return figure
