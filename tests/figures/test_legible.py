"""Every figure of the package can be read: on pages of any colour, and by protanopes and deuteranopes."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fedpca_flwr.figures import plots
from fedpca_flwr.figures.style import COLOURS, GREY, INK, MARKERS, MAX_NAME_LETTERS, PAPER, short_names
from tests.figures.contact_sheet import FIGURES, long_names

AXES = {
    "scores": ["p-cov, 300 rows", "PC1", "PC2"],
    "loadings": ["PC1", "loading", "PC2", "loading", "PC3", "loading"],
    "projection_overlay": ["90 rows", "PC1", "PC2"],
    "scree": ["component", "explained", "component", "cumulative"],
    "angle_by_round": ["round", "angle"],
    "bytes_against_error": ["B up", "angle"],
    "results_over": ["4 clients", "alpha", "largest angle"],
    "heterogeneity": ["rows", "distance", "explained"],
    "component_images": ["PC1", "PC2", "PC3", "PC4", "loading"],
    "how_many": ["component", "variance"],
    "outlier_map": ["T²", "SPE"],
    **{name: ["300 rows", "PC1", "PC2"] for name in ("variables", "biplot")},
    **{name: ["300 rows, scaled", "PC1", "PC2"] for name in ("levels", "squared_correlations")},
    "contributions": ["300 rows", "PC1"],
}
"""A word of each text at the axes of a figure: those of the whole figure, then each panel's title, x and y."""


@pytest.mark.parametrize("name", FIGURES)
def test_each_axis_of_every_figure_says_what_is_along_it_in_ink_on_paper(name):
    assert {*dir(plots)} - {"hover"} == set(FIGURES) == set(AXES)
    figure = FIGURES[name]["plain"]()
    assert to_hex(figure.get_facecolor()).upper() == PAPER
    assert {axes.get_facecolor()[3] for axes in figure.axes} == {0.0}
    shown = [text for text in figure.findobj(Text) if text.get_text().strip()]
    assert {to_hex(text.get_color()).upper() for text in shown} == {INK}
    texts = [figure.get_supxlabel(), figure.get_supylabel()]
    texts += [text for axes in figure.axes for text in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel())]
    assert not [text for word, text in zip(AXES[name], filter(None, texts), strict=True) if word not in text]


def linear(c):
    """Light of sRGB values (IEC 61966-2-1)."""
    c = np.asarray(c)
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2 contrast of two sRGB colours."""
    darker, lighter = sorted(float(linear(to_rgb(colour)) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(light):
    """CIE L*a*b* (D65) of light in sRGB's primaries."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = to_xyz @ np.clip(light, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(x > (6 / 29) ** 3, np.cbrt(x), x / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


SIGHT = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
"""What is seen of linear sRGB (Machado, Oliveira and Fernandes 2009, severity 1)."""


BY_DAY = {("heterogeneity", "30 parties of 58 letters"), ("results_over", "30 methods"), ("how_many", "500 features")}
BY_DAY |= {("biplot", "30 like features")}
"""Of the inputs that begin with a number, of parties, methods or features, those that are drawn by day."""

HARD = [
    pytest.param(name, what, marks=pytest.mark.nightly if what[0].isdigit() and (name, what) not in BY_DAY else ())
    for name, inputs in FIGURES.items()
    for what in inputs
    if what != "plain"
]


@pytest.mark.engine
@pytest.mark.parametrize(("name", "what"), HARD)
def test_hard_inputs_keep_within_the_figure(name, what):
    """Legends of 30 parties and names of 58 letters ran out of the picture or into each other, or left no room."""
    figure = FIGURES[name][what]()
    figure.draw_without_rendering()
    drawn, paper = figure.get_tightbbox(), figure.bbox_inches  # in inches
    assert min(drawn.x0, drawn.y0, paper.x1 - drawn.x1, paper.y1 - drawn.y1) > -0.02
    panels = [axes for axes in figure.axes if axes.get_visible()]
    boxes = [axes.get_window_extent() for axes in panels]
    legends = [legend.get_window_extent() for legend in figure.legends]
    titles = [text.get_window_extent() for text in figure.texts]
    assert not [legend for legend in legends if any(legend.overlaps(box) for box in boxes + titles)]
    assert sum(box.width * box.height for box in boxes) > 0.25 * np.prod(figure.bbox.size)  # the rest is names
    names = [len(legend.get_texts()) for legend in figure.legends]
    names += [len(of) for axes in panels for of in (axes.texts, axes.get_yticklabels(), axes.get_xticklabels())]
    assert max(names) <= (61 if name in ("biplot", "variables") else 45)  # 40, that of the rest, and those of ellipses
    if what in ("30 like features", "rows far off"):
        texts = [text for text in panels[0].texts if text.get_text()]
        assert len(texts) == 30 if name == "biplot" else len(texts) > 6
        assert max(len(text.get_text()) for text in texts) == (MAX_NAME_LETTERS if name == "biplot" else 3)
        places = [text.get_window_extent() for text in texts]
        assert not [pair for pair in combinations(places, 2) if pair[0].overlaps(pair[1])]
        assert name != "biplot" or all(Bbox.intersection(place, boxes[0]).bounds == place.bounds for place in places)


def test_short_names_are_short_and_differ():
    short = short_names([*long_names("serum", 30), "short", "a" * 40 + "b" + "a" * 40, "a" * 81, "short"])
    assert max(map(len, short)) <= 28
    assert len(set(short)) == 33  # the same name twice is the same
    assert (short[0][:5], short[7][-3:], short[-1]) == ("xxxse", "007", "short")


@pytest.mark.parametrize("sight", SIGHT)
def test_ink_and_ten_colours_of_ten_classes_are_seen_by_every_sight(sight):
    """CIE 1976 differences; and ten marks, for people who see no colour."""
    assert contrast(INK, PAPER) >= 4.5
    assert min(contrast(GREY, page) for page in ("#FFFFFF", "#000000", "#111111")) >= 3  # of a dark notebook, the last
    seen = [lab(np.asarray(SIGHT[sight]) @ linear(to_rgb(colour))) for colour in COLOURS]
    nearest = min(combinations(range(10), 2), key=lambda pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]))
    assert np.linalg.norm(seen[nearest[0]] - seen[nearest[1]]) >= 10, [COLOURS[i] for i in nearest]
    assert len(set(MARKERS)) == len(COLOURS) == 10
