"""Every figure of the package can be read: on pages of any colour, and by protanopes and deuteranopes."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from fedpca_flwr import analyses, run
from fedpca_flwr.figures import analysis_plots, plots
from fedpca_flwr.figures.style import COLOURS, GREY, INK, MARKERS, PAPER
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows

X = rows(200, 12)
MODEL = pooled_pca(X, 4)
MOMENTS = SecondMoments.of(X)
LABELS = np.arange(len(X)) % 10
WARDS = pd.DataFrame(X[:, :2], columns=["age", "mass"]).assign(ward=[f"ward {i % 7}" for i in range(200)])
LEVELS = analyses.categories(run("p-cov", [WARDS], n_components=2, scale=True, levels=["ward"]))

FIGURES = {
    "scores": lambda: plots.scores(cut(X, 120, 60, 20), MODEL),
    "loadings": lambda: plots.loadings(MODEL),
    "projection_overlay": lambda: plots.projection_overlay(MODEL, MODEL, X, LABELS, title="rows"),
    "projection_grid": lambda: plots.projection_grid(MODEL, {"one": MODEL, "other": MODEL}, X, LABELS),
    "scree": lambda: plots.scree({"pooled": MODEL, "other": pooled_pca(X[:99], 4)}),
    "angle_by_round": lambda: plots.angle_by_round({"sub-it": [10.0, 1.0]}, tolerance=0.1),
    "bytes_against_error": lambda: plots.bytes_against_error({"a": [(2, 1e-9)], "b": [(1, 1.0)]}),
    "heterogeneity": lambda: plots.heterogeneity(cut(X, 120, 60, 20), MODEL),
    "component_images": lambda: plots.component_images(MODEL, (3, 4)),
    "how_many": lambda: analysis_plots.how_many(analyses.how_many(MOMENTS)),
    "outlier_map": lambda: analysis_plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 3), X)),
    "variables": lambda: analysis_plots.variables(analyses.read(MOMENTS, 2, supplementary=[0])),
    "levels": lambda: analysis_plots.levels(LEVELS, MODEL.transform(X)),
    "squared_correlations": lambda: analysis_plots.squared_correlations(LEVELS),
    "contributions": lambda: analysis_plots.contributions(analyses.read(MOMENTS, 2, supplementary=[0])),
    "biplot": lambda: analysis_plots.biplot(analyses.read(MOMENTS, 2), MODEL.transform(X)),
}

AXES = {
    "scores": ["PC1", "PC2"],
    "loadings": ["loading", "PC1", "PC2", "PC3"],
    "projection_overlay": ["rows", "first", "second"],
    "projection_grid": ["first", "second", "one", "other"],
    "scree": ["component", "explained", "component", "cumulative"],
    "angle_by_round": ["round", "angle"],
    "bytes_against_error": ["MB up", "angle"],
    "heterogeneity": ["rows", "distance", "explained"],
    "component_images": ["1", "2", "3", "4"],
    "how_many": ["component", "variance"],
    "outlier_map": ["T²", "SPE"],
    "variables": ["first", "second"],
    "levels": ["PC1", "PC2"],
    "squared_correlations": ["PC1", "PC2"],
    "contributions": ["PC1"],
    "biplot": ["first", "second"],
}
"""A word of each text at the axes of a figure: those of the whole figure, then each panel's title, x and y."""


@pytest.mark.parametrize("name", FIGURES)
def test_each_axis_says_what_is_along_it(name):
    figure = FIGURES[name]()
    texts = [figure.get_supxlabel(), figure.get_supylabel()]
    texts += [text for axes in figure.axes for text in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel())]
    assert not [text for word, text in zip(AXES[name], filter(None, texts), strict=True) if word not in text]


PAGES = {"white": "#FFFFFF", "black": "#000000", "a dark notebook": "#111111"}


def rgb(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def linear(c):
    """Light of sRGB values (IEC 61966-2-1)."""
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2 contrast of two sRGB colours in [0, 1]."""
    darker, lighter = sorted(float(linear(np.asarray(c)[:3]) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
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


def test_every_figure_of_the_package_is_here():
    public = {
        name
        for module in (plots, analysis_plots)
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }
    assert public == set(FIGURES)


@pytest.mark.engine
@pytest.mark.parametrize("name", FIGURES)
def test_text_is_ink_on_paper(name):
    figure = FIGURES[name]()
    assert to_hex(figure.get_facecolor()).upper() == PAPER
    assert {axes.get_facecolor()[3] for axes in figure.axes} == {0.0}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    assert {to_hex(text.get_color()).upper() for text in texts} == {INK}


def test_ink_is_legible_on_paper_and_lines_are_seen_without_it():
    assert contrast(rgb(INK), rgb(PAPER)) >= 4.5
    assert min(contrast(rgb(GREY), rgb(page)) for page in PAGES.values()) >= 3


@pytest.mark.parametrize("sight", SIGHT)
def test_ten_classes_have_ten_colours_for_every_sight(sight):
    """CIE 1976 differences; and ten marks, for people who see no colour."""
    seen = [lab(np.asarray(SIGHT[sight]) @ linear(rgb(colour))) for colour in COLOURS]
    nearest = min(combinations(range(10), 2), key=lambda pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]))
    assert np.linalg.norm(seen[nearest[0]] - seen[nearest[1]]) >= 10, [COLOURS[i] for i in nearest]
    assert len(set(MARKERS)) == len(COLOURS) == 10
