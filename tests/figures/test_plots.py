"""Figures show what they are given: the data behind each mark, not its look (which is looked at by hand)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PathCollection

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures import plots
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

X = rows(300, 12)
PARTS = cut(X, 180, 100, 20)
TRUTH = pooled_pca(X, 4)
MODEL = run("p-cov", PARTS, n_components=4, engine="loopback")
LABELS = np.arange(300) % 3


def points(axes):
    scattered = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    return [collection.get_offsets() for collection in scattered if len(collection.get_offsets())]


def test_the_overlay_puts_every_cross_of_an_exact_model_into_its_circle():
    figure = plots.projection_overlay(TRUTH, MODEL, X, LABELS)
    circles_and_crosses = points(figure.axes[0])
    assert len(circles_and_crosses) == 6
    for circles, crosses in zip(circles_and_crosses[::2], circles_and_crosses[1::2], strict=True):
        np.testing.assert_allclose(circles, crosses, atol=1e-9)
    assert sum(map(len, circles_and_crosses)) == 600
    (joins,) = (one for one in figure.axes[0].collections if isinstance(one, LineCollection))
    assert len(joins.get_segments()) == 300
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "1", "2"]


def test_a_component_that_points_the_other_way_is_turned_round():
    other = replace(MODEL, components_=MODEL.components_ * [[-1], [1], [1], [1]])
    circles, crosses = points(plots.projection_overlay(TRUTH, other, X).axes[0])
    np.testing.assert_allclose(circles, crosses, atol=1e-9)


def test_ten_classes_have_ten_marks():
    figure = plots.projection_overlay(TRUTH, MODEL, X, np.arange(300) % 10)
    marks = [one for one in figure.axes[0].collections if isinstance(one, PathCollection) and len(one.get_offsets())]
    assert len({one.get_paths()[0].vertices.tobytes() for one in marks[::2]}) == 10


def test_many_rows_are_thinned_evenly():
    many = np.tile(X, (20, 1))
    shown = points(plots.projection_overlay(TRUTH, MODEL, many).axes[0])[0]
    step = -(-len(many) // plots.MOST)
    np.testing.assert_allclose(shown, TRUTH.transform(many[::step])[:, :2])


def test_the_grid_has_one_panel_a_model():
    figure = plots.projection_grid(TRUTH, dict.fromkeys("abcd", MODEL), X, LABELS)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == list("abcd")


def test_scree_and_rounds_show_their_numbers():
    left, right = plots.scree({"p-cov": MODEL}).axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), 100 * MODEL.explained_variance_ratio_)
    np.testing.assert_allclose(right.lines[0].get_ydata()[-1], 100 * MODEL.explained_variance_ratio_.sum())
    assert all(place == round(place) for place in left.get_xticks())
    lines = plots.angle_by_round({"sub-it": [10, 1, 0]}, tolerance=1e-6).axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), [10, 1, 1e-14])


def test_the_front_is_what_nothing_beats():
    figure = plots.bytes_against_error({"a": [(2, 1e-9), (3, 1e-6)], "b": [(1, 1.0), (1.5, 2.0)]})
    front = next(line for line in figure.axes[0].lines if line.get_label() == "front")
    np.testing.assert_allclose(front.get_xydata(), [(1, 1.0), (2, 1e-6)])


def test_what_is_exact_is_one():
    """Rounding below a millionth of a degree made one exact method look better than another."""
    figure = plots.bytes_against_error({"a": [(2, 1e-9)], "b": [(3, 1e-13)]})
    front = next(line for line in figure.axes[0].lines if line.get_label() == "front")
    np.testing.assert_allclose(front.get_xydata(), [(2, 1e-6)])


def test_sizes_below_a_megabyte_are_in_kilobytes():
    (axes,) = plots.bytes_against_error({"a": [(0.005, 0.02), (0.018, 1e-9)]}).axes
    assert axes.get_xlabel() == "kB up per client"
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [5, 18])
    (axes,) = plots.bytes_against_error({"a": [(0.005, 0.02), (1.5, 1e-9)]}).axes
    assert axes.get_xlabel() == "MB up per client"


def test_one_model_needs_no_name():
    (line,) = plots.scree(MODEL).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), 100 * MODEL.explained_variance_ratio_)


def test_equal_curves_are_one_with_all_their_names():
    (legend,) = plots.scree({"pooled": TRUTH, "p-cov": MODEL, "other": pooled_pca(X[:150], 4)}).legends
    assert [text.get_text() for text in legend.get_texts()] == ["pooled = p-cov", "other"]


def heights(axes) -> list[float]:
    bars: list[Any] = axes.patches
    return [bar.get_height() for bar in bars]


def test_heterogeneity_of_rows_without_variance_is_none():
    nothing = np.ones((6, 3))
    axes = plots.heterogeneity([nothing[:2], nothing[2:]], pooled_pca(nothing, 1)).axes
    assert heights(axes[1]) == [0, 0]
    assert heights(axes[2]) == [0, 0]


def test_heterogeneity_measures_each_client():
    shifted = [PARTS[0], PARTS[1] + 5.0, PARTS[2]]
    counts, shift, kept = map(heights, plots.heterogeneity(shifted, MODEL).axes)
    assert counts == [180, 100, 20]
    distance = np.linalg.norm(shifted[1].mean(axis=0) - MODEL.mean_)
    assert np.argmax(shift) == 1
    np.testing.assert_allclose(shift[1], distance / np.sqrt(MODEL.total_variance))
    own = shifted[1] - shifted[1].mean(axis=0)
    held = own @ MODEL.components_.T
    np.testing.assert_allclose(kept[1], 100 * np.vdot(held, held) / np.vdot(own, own))


def test_components_as_images():
    figure = plots.component_images(MODEL, (3, 4), count=3)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), MODEL.components_[0].reshape(3, 4))
    coloured = plots.component_images(MODEL, (2, 2, 3), count=2).axes[0].images[0].get_array()
    loadings = MODEL.components_[0].reshape(2, 2, 3)
    np.testing.assert_allclose(coloured, loadings / (2 * np.abs(loadings).max()) + 0.5)
    with refused(ConfigError, "(5, 5)", 25, 12):
        plots.component_images(MODEL, (5, 5))
