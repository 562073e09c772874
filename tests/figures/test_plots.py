"""Figures show what they are given: the data behind each mark, not its look (which is looked at by hand)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.path import Path as MatplotlibPath

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.figures import plots
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

X = rows(300, 12)
PARTS = cut(X, 180, 100, 20)
TRUTH = pooled_pca(X, 4)
MODEL = run("p-cov", PARTS, n_components=4)
LABELS = np.arange(300) % 3


def points(axes):
    scattered = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    return [collection.get_offsets() for collection in scattered if len(collection.get_offsets())]


def test_scores_are_those_of_each_party_with_its_colour_and_mark():
    axes = plots.scores({"north": PARTS[0], "south": PARTS[1], "west": PARTS[2]}, MODEL, components=(2, 4)).axes[0]
    for found, rows_of_it in zip(points(axes), PARTS, strict=True):
        np.testing.assert_allclose(found, MODEL.transform(rows_of_it)[:, [1, 3]])
    marks = axes.collections
    assert len({mark.get_facecolor()[0].tobytes() for mark in marks}) == 3
    assert len({mark.get_paths()[0].vertices.tobytes() for mark in marks}) == 3
    shown = axes.get_legend()
    assert shown is not None
    assert [text.get_text() for text in shown.get_texts()] == ["north (180 rows)", "south (100 rows)", "west (20 rows)"]
    assert f"PC2 ({MODEL.explained_variance_ratio_[1]:.1%}" in axes.get_xlabel()
    assert "PC4" in axes.get_ylabel()


def test_parties_and_classes_have_marks_of_their_own():
    marks = plots.scores([X[i::25] for i in range(25)], MODEL).axes[0].collections
    looks = {(mark.get_facecolor()[0].tobytes(), mark.get_paths()[0].vertices.tobytes()) for mark in marks}
    assert len(looks) == 25
    figure = plots.projection_overlay(TRUTH, MODEL, X, np.arange(300) % 10)
    drawn = [one for one in figure.axes[0].collections if isinstance(one, PathCollection) and len(one.get_offsets())]
    assert len({one.get_paths()[0].vertices.tobytes() for one in drawn[::2]}) == 10


def test_with_labels_colours_are_of_the_classes_of_all_parties():
    labels = [LABELS[:180], LABELS[180:280], LABELS[280:]]
    axes = plots.scores(PARTS, MODEL, labels=labels).axes[0]
    colours: dict[Any, set[bytes]] = {}
    for mark, own in zip(axes.collections, labels, strict=True):
        for colour, label in zip(mark.get_facecolor(), own, strict=True):
            colours.setdefault(label, set()).add(colour.tobytes())
    assert [len(found) for found in colours.values()] == [1, 1, 1]
    assert len(set.union(*colours.values())) == 3
    assert len(axes.lines) == 3  # an ellipse for each class


def test_ellipses_hold_95_percent_and_loadings_are_bars_or_a_map():
    turned = np.random.default_rng(0).standard_normal((4000, 2)) @ [[3.0, 1.0], [0.0, 0.5]] + [10.0, -5.0]
    axes = plots.scores({"all": turned}).axes[0]
    outline = MatplotlibPath(np.asarray(axes.lines[0].get_xydata()))
    assert np.mean(outline.contains_points(turned)) == pytest.approx(0.95, abs=0.01)
    assert len(points(axes)[0]) <= plots.MOST_SCORES
    for panel, component in zip(plots.loadings(MODEL, most=4).axes, MODEL.components_, strict=True):
        np.testing.assert_array_equal([bar.get_width() for bar in bars_of(panel)], component)
    wide = pooled_pca(rows(60, 40), 5)
    image = plots.loadings(wide, most=5).axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), wide.components_.T)


def test_scores_of_sites_files_are_those_of_their_rows(tmp_path):
    paths = [str(tmp_path / "north.csv"), str(tmp_path / "south.npy")]
    run("p-cov", PARTS[:2], n_components=4, scores=paths)
    model = run("p-cov", PARTS[:2], n_components=4)
    of_files, of_rows = plots.scores(paths, model).axes[0], plots.scores(PARTS[:2], model).axes[0]
    for one, other in zip(points(of_files), points(of_rows), strict=True):
        np.testing.assert_allclose(one, other)
    legend = of_files.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["north (180 rows)", "south (100 rows)"]
    (tmp_path / "other.csv").write_text("age\nold\n")
    with refused(DataError, "'other'"):
        plots.scores([tmp_path / "other.csv"])
    with refused(ConfigError, "'north'", "(180, 4)", 5):
        plots.scores(paths, components=(1, 5))


def bars_of(axes) -> list[Any]:
    return list(axes.patches)


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


def test_overlays_turn_components_round_thin_many_rows_and_have_a_panel_a_model():
    other = replace(MODEL, components_=MODEL.components_ * [[-1], [1], [1], [1]])
    circles, crosses = points(plots.projection_overlay(TRUTH, other, X).axes[0])
    np.testing.assert_allclose(circles, crosses, atol=1e-9)
    many = np.tile(X, (20, 1))
    shown = points(plots.projection_overlay(TRUTH, MODEL, many).axes[0])[0]
    step = -(-len(many) // plots.MOST)
    np.testing.assert_allclose(shown, TRUTH.transform(many[::step])[:, :2])
    figure = plots.projection_grid(TRUTH, dict.fromkeys("abcd", MODEL), X, LABELS)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == list("abcd")


def test_scree_and_rounds_show_their_numbers_and_names():
    left, right = plots.scree({"p-cov": MODEL}).axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), 100 * MODEL.explained_variance_ratio_)
    np.testing.assert_allclose(right.lines[0].get_ydata()[-1], 100 * MODEL.explained_variance_ratio_.sum())
    assert all(place == round(place) for place in left.get_xticks())
    lines = plots.angle_by_round({"sub-it": [10, 1, 0]}, tolerance=1e-6).axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), [10, 1, 1e-14])
    (line,) = plots.scree(MODEL).axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), 100 * MODEL.explained_variance_ratio_)
    (legend,) = plots.scree({"pooled": TRUTH, "p-cov": MODEL, "other": pooled_pca(X[:150], 4)}).legends
    assert [text.get_text() for text in legend.get_texts()] == ["pooled = p-cov", "other"]


def test_the_front_is_what_nothing_beats_in_kilobytes_or_megabytes():
    figure = plots.bytes_against_error({"a": [(2, 1e-9), (3, 1e-6)], "b": [(1, 1.0), (1.5, 2.0)]})
    front = next(line for line in figure.axes[0].lines if line.get_label() == "front")
    np.testing.assert_allclose(front.get_xydata(), [(1, 1.0), (2, 1e-6)])
    # Rounding below a millionth of a degree made one exact method look better than another.
    figure = plots.bytes_against_error({"a": [(2, 1e-9)], "b": [(3, 1e-13)]})
    front = next(line for line in figure.axes[0].lines if line.get_label() == "front")
    np.testing.assert_allclose(front.get_xydata(), [(2, 1e-6)])
    (axes,) = plots.bytes_against_error({"a": [(0.005, 0.02), (0.018, 1e-9)]}).axes
    assert axes.get_xlabel() == "kB up per client"
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [5, 18])
    (axes,) = plots.bytes_against_error({"a": [(0.005, 0.02), (1.5, 1e-9)]}).axes
    assert axes.get_xlabel() == "MB up per client"


def heights(axes) -> list[float]:
    return [bar.get_height() for bar in bars_of(axes)]


def test_heterogeneity_names_the_parties_and_is_none_without_variance():
    nothing = np.ones((6, 3))
    axes = plots.heterogeneity([nothing[:2], nothing[2:]], pooled_pca(nothing, 1)).axes
    assert heights(axes[1]) == [0, 0]
    assert heights(axes[2]) == [0, 0]
    model = run("p-cov", dict(zip(["north", "south", "west"], PARTS, strict=True)), n_components=2)
    for panel in plots.heterogeneity(PARTS, model).axes:
        assert [text.get_text() for text in panel.get_xticklabels()] == ["north", "south", "west"]


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


def test_scores_of_a_private_model_without_a_component_above_the_noise_have_no_share():
    unknown = replace(MODEL, explained_variance_ratio_=np.full(4, np.nan))
    assert plots.scores(PARTS, unknown).axes[0].get_xlabel() == "PC1"
    assert [axes.get_title() for axes in plots.loadings(unknown).axes] == ["PC1", "PC2", "PC3"]
