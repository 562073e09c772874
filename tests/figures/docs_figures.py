"""The figures of docs that show an example, and the command that draws them.

    python -m tests.figures.docs_figures [FIGURE ...]

It writes all of them, or those named, into docs. The benchmarks of their pages draw private and robust, and
picture is written by hand.
"""

import re
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedpca_flwr import analyses, run
from fedpca_flwr.figures import plots
from fedpca_flwr.figures.style import STYLE, add_legend, looks
from fedpca_flwr.simulations import worth
from fedpca_flwr.simulations.benchmarks.harness import follow_page

ROOT = Path(__file__).parents[2]
SVG = {"svg.fonttype": "none", "svg.hashsalt": "docs", "savefig.facecolor": "none"}
"""Texts stay texts, the same figure has the same bytes, and no paper."""


def of_page(page: str, saved: str) -> str:
    """Return the figure that an example of a page saves."""
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)
    (example,) = [text for text in examples if saved in text]
    with TemporaryDirectory() as folder, chdir(folder), matplotlib.rc_context(SVG), redirect_stdout(StringIO()):
        exec(compile(example, page, "exec"), {})
        return Path(saved).read_text(encoding="utf-8")


def as_svg(figure: Figure) -> str:
    stream = StringIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(stream, format="svg")
    return stream.getvalue()


def genotypes() -> str:
    """People of three populations at three sites, each of which has people of all three."""
    rng = np.random.default_rng(0)
    ancestral = rng.uniform(0.1, 0.9, 2000)
    frequencies = rng.beta(19 * ancestral, 19 * (1 - ancestral), (3, 2000))  # Fst 0.05
    shares = {"north": (40, 10, 10), "south": (10, 30, 5), "east": (15, 10, 25)}
    sites = {name: rng.binomial(2, np.repeat(frequencies, counts, 0)).astype(float) for name, counts in shares.items()}
    return as_svg(plots.scores(run("qr-pca", sites, n_components=2, genotypes=True), sites))


def single_cells() -> str:
    """Cells of four kinds at three laboratories that measure differently, before and after Harmony."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(0, 3, (4, 30))
    cells = {
        name: kinds[rng.integers(0, 4, 80)] + rng.normal(0, 2, 30) + rng.normal(0, 1, (80, 30))
        for name in ("north", "south", "east")
    }
    model = run("p-cov", cells, n_components=10, clusters=8, clustering="harmony")
    after = {name: analyses.harmonised(model, rows, name) for name, rows in cells.items()}
    panels = {"scores of PCA": {name: model.transform(rows) for name, rows in cells.items()}, "after Harmony": after}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 3.8))
        grid = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, (title, scores) in zip(grid, panels.items(), strict=True):
            for (colour, marker), points in zip(looks(), scores.values(), strict=False):
                axes.scatter(*points[:, :2].T, 18, color=colour, marker=marker, alpha=0.6, linewidths=0)
            axes.set(title=title, xlabel="PC1")
        grid[0].set_ylabel("PC2")
        marks = zip(looks(), cells, strict=False)
        add_legend(figure, [Line2D([], [], ls="none", marker=m, color=c, ms=5, label=name) for (c, m), name in marks])
        return as_svg(figure)


def forecast() -> str:
    """Return the figure of the page that `site worth` writes for a tenth of the digits."""
    with TemporaryDirectory() as folder:
        site, run_config = "partition-id=0 num-partitions=10", "n-components=4 partition='iid'"
        worth.main(5000, node_config=site, run_config=run_config, output=(page := Path(folder) / "worth.html"))
        text = page.read_text(encoding="utf-8")
        return text[text.index("<svg") : text.index("</svg>")] + "</svg>\n"


FIGURES: dict[str, Callable[[], str]] = {
    "scores": lambda: of_page("README.md", "scores.svg"),
    "clusters": lambda: of_page("docs/mixed.md", "clusters.svg"),
    "mixed": lambda: of_page("docs/mixed.md", "levels.svg"),
    "genotypes": genotypes,
    "single-cells": single_cells,
    "worth": forecast,
}
"""Functions that return the figure as SVG, by its name in docs."""


def main(*names: str) -> None:
    """Write the figures, or those named, without indents, metadata, document type and rare fonts."""
    omitted = r"<metadata>.*?</metadata>|<!DOCTYPE.*?>|'Bitstream [^;]*Garde', |^ +"
    for name in names or FIGURES:
        svg = re.sub(omitted, "", FIGURES[name](), flags=re.S | re.M)
        (ROOT / "docs" / f"{name}.svg").write_text(follow_page(svg), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
