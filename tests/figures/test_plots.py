"""Figures show what they are given: the data behind each mark, not its look (which is looked at by hand)."""

import sys
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib import markers, patches, path
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from scipy import sparse

from fedpca_flwr import FederatedPCA, analyses, run
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.figures import plots, score_plots, style
from fedpca_flwr.figures.style import COLOURS, GREY
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused

X = rows(300, 12)
PARTS = cut(X, 180, 100, 20)
NAMED = dict(zip(["north", "south", "west"], PARTS, strict=True))
TRUTH = pooled_pca(X, 4)
MODEL = run("p-cov", PARTS, n_components=4)
KEPT = run("p-cov", PARTS, n_components=4, keep="moments")
MOMENTS = SecondMoments.of(X)
LABELS = np.arange(300) % 3
PER_PARTY = cut(LABELS, 180, 100, 20)


def points(axes):
    scattered = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    return [collection.get_offsets() for collection in scattered if len(collection.get_offsets())]


def widths(axes):
    return [bar.get_width() for bar in axes.patches]


def texts(shown) -> list[str]:
    return [text.get_text() for text in shown]


def legend_of(figure) -> list[str]:
    (legend,) = figure.legends
    return texts(legend.get_texts())


def tips_of(axes):
    """Return the ends of arrows, which are annotations without text."""
    return {tuple(text.xy) for text in axes.texts if text.get_text() == ""}


def test_scores_are_those_of_each_party_and_of_estimators_and_frames():
    figure = plots.scores(MODEL, NAMED, components=(2, 4))
    (axes,) = figure.axes
    for drawn, part in zip(points(axes), PARTS, strict=True):
        np.testing.assert_allclose(drawn, MODEL.transform(part)[:, [1, 3]])
    looks = {(mark.get_facecolor()[0].tobytes(), mark.get_paths()[0].vertices.tobytes()) for mark in axes.collections}
    assert [len(set(kind)) for kind in zip(*looks, strict=True)] == [3, 3]
    assert legend_of(figure)[:3] == ["north (180 rows)", "south (100 rows)", "west (20 rows)"]
    assert f"PC2 ({MODEL.explained_variance_ratio_[1]:.1%}" in axes.get_xlabel()
    assert "PC4" in axes.get_ylabel()
    below_the_noise = replace(MODEL, explained_variance_ratio_=np.full(4, np.nan))
    assert plots.scores(below_the_noise, PARTS).axes[0].get_xlabel() == "PC1"
    assert [axes.get_title() for axes in plots.loadings(below_the_noise).axes] == ["PC1", "PC2", "PC3"]
    parties = {"north": PARTS[1], "south": PARTS[0]}
    estimator = FederatedPCA(3).fit(parties)
    model = estimator.model_
    frame = model.scores_frame(parties)
    expected, *others = (
        points(plots.scores(model=first, parties=second, components=(2, 3)).axes[0])
        for first, second in ((model, parties), (estimator, parties), (None, frame), (model, frame))
    )
    for other in others:
        for one, two in zip(other, expected, strict=True):
            np.testing.assert_allclose(one, two)
    lines = [plots.scree(given).axes[0].lines[0].get_ydata() for given in (estimator, {"one": estimator}, model)]
    assert [list(line) for line in lines] == [list(lines[0])] * 3
    assert plots.loadings(model=estimator).axes


def test_with_labels_colours_are_of_the_classes_of_all_parties():
    """The legend has whole names of parties, and no mark of a party for a class."""
    names = [f"Hospital of the University of the {part} of the Country" for part in ("North", "South", "West")]
    figure = plots.scores(MODEL, dict(zip(names, PARTS, strict=True)), labels=PER_PARTY)
    entries, handles = [" ".join(text.split()) for text in legend_of(figure)], figure.legends[0].legend_handles
    assert entries[3:6] == [f"{name} ({count} rows)" for name, count in zip(names, (180, 100, 20), strict=True)]
    assert [isinstance(handle, patches.Patch) for handle in handles[:6]] == [True] * 3 + [False] * 3
    (axes,) = figure.axes
    colours = np.concatenate([mark.get_facecolor() for mark in axes.collections])
    pairs = {(label, colour.tobytes()) for label, colour in zip(LABELS, colours, strict=True)}
    assert [len(set(kind)) for kind in (pairs, *zip(*pairs, strict=True))] == [3, 3, 3]
    assert len(axes.lines) == 3  # an ellipse for each class


def test_ellipses_are_of_rows_or_of_means_and_say_which():
    turned = np.random.default_rng(0).standard_normal((4000, 2)) @ [[3.0, 1.0], [0.0, 0.5]] + [10.0, -5.0]
    outline = path.Path(np.asarray(plots.scores(None, {"all": turned}).axes[0].lines[0].get_xydata()))
    assert np.mean(outline.contains_points(turned)) == pytest.approx(0.95, abs=0.01)
    assert sum(map(len, points(plots.scores(None, [turned] * 3).axes[0]))) <= score_plots.MAX_SCORE_MARKS
    normal = np.random.default_rng(0).standard_normal((10, 10, 20, 2))
    figures = [plots.scores(None, list(tens), ellipses="mean") for tens in normal]
    outlines = [path.Path(np.asarray(line.get_xydata())) for figure in figures for line in figure.axes[0].lines]
    assert len(outlines) == 100
    assert 0.91 <= np.mean([outline.contains_point((0, 0)) for outline in outlines]) <= 0.99
    for kind, text in (("rows", "95 % of rows"), ("mean", "mean"), ("none", "")):
        entries = legend_of(plots.scores(None, {"all": normal[0, 0]}, ellipses=kind))
        assert [text in entry for entry in entries[1:]] == [True] * (kind != "none")
    with refused(ConfigError, "'ellipses'", "'all'", "'mean'"):
        plots.scores(MODEL, PARTS, ellipses="all")


def test_loadings_are_bars_of_the_largest_or_images():
    panels = plots.loadings(MODEL, components=range(1, 5)).axes
    assert texts(panels[0].get_yticklabels()) == list(map(str, range(12)))
    for panel, component in zip(panels, MODEL.components_, strict=True):
        np.testing.assert_array_equal(widths(panel), component)
        colours = [to_hex(bar.get_facecolor()).upper() for bar in panel.patches]
        assert colours == [COLOURS[0] if loading > 0 else COLOURS[3] for loading in component]
    assert panels[0].yaxis_inverted()  # the first feature stands above
    many = pooled_pca(rows(60, 40), 5)
    for component, axes in zip((2, 5), plots.loadings(many, components=(2, 5)).axes, strict=True):
        largest = np.argsort(-np.abs(many.components_[component - 1]))[:12]
        assert texts(axes.get_yticklabels()) == list(map(str, largest))
        np.testing.assert_array_equal(widths(axes), many.components_[component - 1, largest])
    turned = replace(MODEL, components_=-MODEL.components_)  # whose largest loadings are below zero
    *panels, scale = plots.component_images(turned, (3, 4), components=(1, 2, 3)).axes
    assert scale.get_ylabel() == "loading"
    for panel, component in zip(panels, turned.components_[:3], strict=True):
        np.testing.assert_allclose(panel.images[0].get_array(), component.reshape(3, 4))
        assert panel.images[0].get_clim() == pytest.approx(np.abs(component).max() * np.array([-1, 1]))
    assert len(plots.component_images(MODEL, (3, 4)).axes) == 5  # with the scale; of ten, so many has the model
    coloured = plots.component_images(MODEL, (2, 2, 3), components=(1, 2)).axes[0].images[0].get_array()
    loadings = MODEL.components_[0].reshape(2, 2, 3)
    np.testing.assert_allclose(coloured, loadings / (2 * np.abs(loadings).max()) + 0.5)
    with refused(ConfigError, "(5, 5)", 25, 12):
        plots.component_images(MODEL, (5, 5))


def test_more_parties_than_colours_have_a_panel_each_and_the_rest_is_counted():
    """30 ellipses and a legend of 30 colours, of which three are the same, showed nothing."""
    parties = {f"clinic {i}": X[i::12] for i in range(12)}
    for panel, (name, part) in zip(plots.scores(MODEL, parties).axes, parties.items(), strict=True):
        everyone, own = panel.lines[:2]
        np.testing.assert_allclose(own.get_xydata(), MODEL.transform(part)[:, :2])
        assert (len(everyone.get_xdata()), panel.get_title()) == (300, f"{name}\n25 rows")
    many = plots.scores(MODEL, [X[i::100] for i in range(100)]).axes
    assert (len(many), many[-1].get_title()) == (36, "65 others\n195 rows")
    classes = [[f"kind {i % 12}" for i in range(len(part))] for part in PARTS]
    titles = [panel.get_title().split("\n")[0] for panel in plots.scores(MODEL, PARTS, labels=classes).axes]
    assert titles == [f"kind {i}" for i in range(12)]
    panels = [len(plots.scores(MODEL, [X[i::n] for i in range(n)], ellipses="none").axes) for n in (10, 11, 36, 37)]
    assert panels == [1, 12, 36, 36]
    entries = [legend_of(plots.angle_by_round({f"m{i}": [1.0] for i in range(n)}))[-1] for n in (40, 41, 42)]
    assert entries == ["m39", "and 1 more", "and 2 more"]
    for d, label in ((30, ""), (31, "the largest 12 of 31 features")):
        assert plots.loadings(pooled_pca(rows(60, d), 1)).axes[0].get_ylabel() == label


@pytest.mark.parametrize("clouds", [2, 3])
def test_rows_in_several_clouds_have_no_ellipse_of_rows(clouds):
    rng = np.random.default_rng(0)
    people = 8 * np.array([[0, 0], [1, 0], [0, 1]])[np.arange(120) % clouds] + rng.standard_normal((120, 2))

    def ellipses(own, **more):
        return len(plots.scores(None, {"site": own}, **more).axes[0].lines)

    assert not ellipses(people)
    assert "several clouds" in legend_of(plots.scores(None, {"site": people}))[-1]
    assert (ellipses(people, labels=[np.arange(120) % clouds]), ellipses(people, ellipses="mean")) == (clouds, 1)
    normal = rng.standard_normal((20, 30, 2))
    assert sum(map(ellipses, normal)) >= 19
    assert (ellipses(normal[0][:9]), ellipses(normal[0][:10])) == (0, 1)  # of fewer rows there is none


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_classes_are_a_column_of_the_parties_tables(library):
    wards = [[f"ward {i % 2}" for i in range(len(part))] for part in PARTS]
    columns = [{"age": part[:, 0], "mass": part[:, 1]} for part in PARTS]
    parties = [library(own) for own in columns]
    tables = [library({**own, "ward": ward}) for own, ward in zip(columns, wards, strict=True)]
    model = run("p-cov", parties, n_components=2)
    by_column, by_lists = plots.scores(model, tables, labels="ward"), plots.scores(model, parties, labels=wards)
    assert legend_of(by_column) == legend_of(by_lists)
    for marks, expected in zip(by_column.axes[0].collections, by_lists.axes[0].collections, strict=True):
        np.testing.assert_array_equal(marks.get_offsets(), expected.get_offsets())
        np.testing.assert_array_equal(marks.get_facecolor(), expected.get_facecolor())
    for column, given in (("sex", tables), ("ward", PARTS)):
        with refused(ConfigError, "'labels'", column, "'party 0'"):
            plots.scores(model, given, labels=column)


def test_scores_of_sites_files_are_those_of_their_rows(tmp_path):
    paths = [str(tmp_path / "north.csv"), str(tmp_path / "south.npy")]
    model = run("p-cov", PARTS[:2], n_components=4, scores=paths)
    of_files, of_rows = plots.scores(model, paths), plots.scores(model, PARTS[:2])
    for drawn, expected in zip(points(of_files.axes[0]), points(of_rows.axes[0]), strict=True):
        np.testing.assert_allclose(drawn, expected)
    assert legend_of(of_files)[:2] == ["north (180 rows)", "south (100 rows)"]
    (tmp_path / "other.csv").write_text("age\nold\n")
    with refused(DataError, "'other'"):
        plots.scores(None, [tmp_path / "other.csv"])
    with refused(ConfigError, "'north'", "(180, 4)", 5):
        plots.scores(None, paths, components=(1, 5))
    with refused(ConfigError, "'labels'", "[180, 99]", "[180, 100]"):
        plots.scores(None, paths, labels=[LABELS[:180], LABELS[:99]])


def test_heterogeneity_measures_each_client_by_its_name():
    shifted = [PARTS[0], PARTS[1] + 5.0, PARTS[2]]
    counts, shift, kept = map(widths, plots.heterogeneity(MODEL, shifted).axes)
    assert counts == [180, 100, 20]
    own = shifted[1] - shifted[1].mean(axis=0)
    distance = np.linalg.norm(shifted[1].mean(axis=0) - MODEL.mean_)
    np.testing.assert_allclose(shift[1], distance / np.sqrt(MODEL.total_variance))
    np.testing.assert_allclose(kept[1], 100 * np.sum((own @ MODEL.components_.T) ** 2) / np.sum(own**2))
    nothing = np.ones((6, 3))
    axes = plots.heterogeneity(pooled_pca(nothing, 1), [nothing[:2], nothing[2:]]).axes
    assert widths(axes[1]) == widths(axes[2]) == [0, 0]
    axes = plots.heterogeneity(run("p-cov", NAMED, n_components=2, scale=True), PARTS).axes
    assert texts(axes[0].get_yticklabels()) == [*NAMED]
    distances = [np.linalg.norm((part.mean(axis=0) - X.mean(axis=0)) / X.std(axis=0)) for part in PARTS]
    np.testing.assert_allclose(widths(axes[1]), distances / np.sqrt(12 * 300 / 299))


def test_an_exact_models_crosses_lie_in_their_circles():
    figure = plots.projection_overlay(MODEL, X, reference=TRUTH, labels=LABELS)
    circles_and_crosses = points(figure.axes[0])
    assert [len(marks) for marks in circles_and_crosses] == [100] * 6
    np.testing.assert_allclose(circles_and_crosses[:3], circles_and_crosses[3:], atol=1e-9)
    assert legend_of(figure) == ["pooled PCA", "federated", "0", "1", "2"]
    (joins,) = (one for one in figure.axes[0].collections if isinstance(one, LineCollection))
    assert len(joins.get_segments()) == 300
    of_ten = plots.projection_overlay(MODEL, PARTS, reference=TRUTH, labels=np.arange(300) % 10).axes[0].collections
    drawn = [one for one in of_ten if isinstance(one, PathCollection) and len(one.get_offsets())]
    assert len({one.get_paths()[0].vertices.tobytes() for one in drawn[:10]}) == 10
    turned = replace(MODEL, components_=MODEL.components_ * [[-1], [1], [1], [1]])
    circles, crosses = points(plots.projection_overlay(turned, X, reference=TRUTH).axes[0])
    np.testing.assert_allclose(circles, crosses, atol=1e-9)
    figure = plots.projection_overlay(dict.fromkeys("abcd", MODEL), X, reference=TRUTH, labels=LABELS)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == list("abcd")


@pytest.mark.parametrize("kind", [np.asarray, sparse.coo_array, sparse.csc_matrix, pd.DataFrame])
def test_overlays_thin_many_rows_of_any_kind(kind):
    many = np.tile(X, (20, 1))
    shown = points(plots.projection_overlay(MODEL, kind(many), reference=TRUTH).axes[0])[0]
    thinned = many[:: -(-len(many) // style.MAX_PLOTTED_ROWS)]
    np.testing.assert_allclose(shown, TRUTH.transform(thinned)[:, :2], atol=1e-12)


def test_screes_and_rounds_show_their_numbers_names_and_rules():
    for given in (MODEL, {"p-cov": MODEL}):
        left, right = plots.scree(given).axes
        (line,) = left.lines
        np.testing.assert_allclose(line.get_ydata(), 100 * MODEL.explained_variance_ratio_)
        np.testing.assert_allclose(right.lines[0].get_ydata()[-1], 100 * MODEL.explained_variance_ratio_.sum())
        assert all(place == round(place) for place in left.get_xticks())
    shares, cumulated = plots.scree(KEPT).axes  # with all eigenvalues that the moments have
    np.testing.assert_allclose(shares.lines[0].get_ydata(), 100 * pooled_pca(X, 12).explained_variance_ratio_)
    assert (shares.lines[1].get_xdata()[0], cumulated.lines[0].get_ydata()[-1]) == (4.5, pytest.approx(100))
    lines = plots.angle_by_round({"sub-it": [10, 1, 0]}, tolerance=1e-6).axes[0].lines
    np.testing.assert_allclose(lines[0].get_xydata(), [[1, 10], [2, 1], [3, 1e-14]])
    assert set(lines[1].get_ydata()) == {1e-6}
    figure = plots.scree({"pooled": TRUTH, "p-cov": MODEL, "other": pooled_pca(X[:150], 4)})
    assert legend_of(figure) == ["pooled = p-cov", "other"]
    found = analyses.how_many(MOMENTS)
    figure = plots.how_many(found)
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), found.spectrum)
    band = axes.collections[0].get_datalim(axes.transData)
    assert (band.y0, band.y1) == (0, pytest.approx(found.null_band[0]))
    firsts = {k: rule for rule, k in reversed(found.by_rule.items())}
    shown = [rule.strip() for text in legend_of(figure)[2:] for rule in text.split("\n")]
    assert sorted(shown) == sorted(f"{k}: {rule}" if firsts[k] == rule else rule for rule, k in found.by_rule.items())
    rules = {"far": 9, "near": 2, "last": 8, "none": 0, "unknown": None}
    figure = plots.how_many(analyses.HowMany(rules, np.arange(8.0, 0, -1), np.ones(8)))
    assert legend_of(figure)[2:] == ["0: none", "2: near", "8: last"]
    assert [int(line.get_xdata()[0]) for line in figure.axes[0].lines[1:]] == [0, 2, 8]  # behind so many components


@pytest.mark.parametrize(
    ("points", "front", "unit"),
    [
        ({"a": [(2, 1e-9), (3, 1e-6)], "b": [(1, 1.0), (1.5, 2.0)]}, [(1, 1.0), (2, 1e-6)], "MB"),
        # Rounding below a millionth of a degree made one exact method look better than another.
        ({"a": [(2, 1e-9)], "b": [(3, 1e-13)]}, [(2, 1e-6)], "MB"),
        ({"a": [(0.005, 0.02), (0.018, 1e-9)]}, [(5, 0.02), (18, 1e-6)], "kB"),
        ({"a": [(0.005, 0.02), (1.5, 1e-9)]}, [(0.005, 0.02), (1.5, 1e-6)], "MB"),
    ],
)
def test_the_front_is_what_nothing_beats(points, front, unit):
    (axes,) = plots.bytes_against_error(points).axes
    np.testing.assert_allclose(next(line for line in axes.lines if line.get_label() == "front").get_xydata(), front)
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [x * (1000 if unit == "kB" else 1) for x, _ in points["a"]])
    assert axes.get_xlabel() == f"{unit} up per client"


def test_odd_rows_are_crosses_beyond_the_limits():
    odd = X.copy()
    odd[3] *= 20
    found = analyses.outliers(analyses.pca(MOMENTS, 3), odd)
    figure = plots.outlier_map(found)
    (axes,) = figure.axes
    even, crosses, *limits = axes.lines
    assert len(even.get_xdata()) + len(crosses.get_xdata()) == 300
    assert found.t_squared[3] in crosses.get_xdata()
    assert (even.get_xdata() <= found.t_squared_limit).all()
    assert (limits[0].get_xdata()[0], limits[1].get_ydata()[0]) == (found.t_squared_limit, found.spe_limit)
    assert (texts(axes.texts), found.oddest[0]) == ([str(row) for row in found.oddest[:10]], 3)
    people = plots.outlier_map(replace(found, labels=tuple(f"$person {i}" for i in range(300))))
    assert people.axes[0].texts[0].get_text() == "$person 3"
    people.draw_without_rendering()
    assert legend_of(figure)[1:] == [f"odd rows: {found.odd.sum()} of 300", "limits of 99 % of new rows"]
    looser = plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 3), odd, level=0.95))
    assert legend_of(looser)[2] == "limits of 95 % of new rows"
    # Over less than a power of ten, each of 2 to 9 had a number of three letters' width, over the next.
    figure = plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 3), X))
    figure.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [tick.label1.get_window_extent() for tick in axis.get_major_ticks() if tick.label1.get_text()]
        assert len(boxes) > 1
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        assert not any(texts(axis.get_minorticklabels()))


@pytest.mark.engine
@pytest.mark.parametrize("turn", [1, -1])
def test_of_many_features_the_longest_arrows_are_shown(turn):
    lengths, angles = np.arange(1, 41)[::turn] / 40, np.linspace(0, 6, 40)
    correlations = lengths * [np.cos(angles), np.sin(angles)]
    wide = analyses.read(SecondMoments.of(np.random.default_rng(0).standard_normal((50, 40))), 2)
    (axes,) = plots.variables(replace(wide, correlations=correlations, features=tuple(f"f{j}" for j in range(40)))).axes
    longest = {j for j in range(40) if lengths[j] > 10 / 40}
    assert set(texts(axes.texts)) == {"", *(f"f{j}" for j in longest)}
    assert tips_of(axes) == {tuple(correlations[:, j]) for j in longest}
    assert legend_of(axes.figure)[1] == "features (30 of 40): correlations"
    assert plots.contributions(wide).axes[0].get_ylabel() == "the largest 30 of 40 features"


def test_a_biplot_has_arrows_of_correlations():
    """The fault: arrows of a rotated reading over the scores of a PCA that is not rotated."""
    found = analyses.read(MOMENTS, 3, rotation="varimax")
    (axes,) = plots.biplot(found, {"north": X[:20], "south": X[20:]}).axes
    (drawn,) = points(axes)
    np.testing.assert_allclose(np.abs(drawn).max(axis=0), 1)
    np.testing.assert_allclose(np.corrcoef(np.c_[drawn, X].T)[:2, 2:], found.correlations[:2], atol=1e-9)
    assert tips_of(axes) == set(map(tuple, found.correlations[:2].T))
    assert set(texts(axes.texts)) == {"", *map(str, range(12))}
    with refused(ConfigError, "'components'", (1, 2)):
        plots.biplot(analyses.read(MOMENTS, 1), X)
    with refused(DataError, 12, 3):  # scores are no rows
        plots.biplot(found, found.scores(X))
    # So has a correlation circle.
    found = analyses.read(MOMENTS, 3, supplementary=[0])
    (axes,) = plots.variables(found).axes
    np.testing.assert_allclose(np.hypot(*axes.lines[0].get_data()), 1)
    assert tips_of(axes) == set(map(tuple, found.correlations[:2].T))
    arrows = [text for text in axes.texts if not text.get_text()]
    dashed = [tuple(arrow.xy) for arrow in arrows if arrow.arrow_patch.get_linestyle() == "--"]
    assert dashed == [tuple(found.correlations[:2, -1])]


def test_levels_and_contributions_are_drawn_at_their_values():
    three = np.arange(6.0).reshape(2, 3)
    shares, cosines = np.array([0.2, 0.8]), np.array([[0.2, 0.3, 0.9], [0.1, 0.6, 0.0]])
    found = analyses.Categories(("mass", "sex"), cosines, ("sex=f", "sex=m"), shares, three, three, cosines)
    (axes,) = plots.levels(found, X[:, :3]).axes
    np.testing.assert_array_equal(points(axes)[0], X[:, :2])
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), three[::-1, :2])  # those first of which two hold most
    assert texts(axes.texts) == ["sex=m", "sex=f"]
    (axes,) = plots.squared_correlations(found).axes
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), cosines[::-1, :2])
    assert texts(axes.texts) == ["sex", "mass"]
    turned = replace(found, squared_cosines=cosines[:, [1, 0, 2]], squared_correlations=cosines[:, [1, 0, 2]])
    for figure in (plots.levels(turned, X[:, :3]), plots.squared_correlations(turned)):
        assert figure.axes[0].texts[0].get_text() in ("sex=m", "sex")
    reading = analyses.read(MOMENTS, 2, supplementary=[0])
    (axes,) = plots.contributions(reading, 2).axes
    shares = reading.contributions[1][:11]
    np.testing.assert_allclose(widths(axes), 100 * np.sort(shares)[::-1])
    assert texts(axes.get_yticklabels()) == [str(j) for j in np.argsort(-shares)]
    assert axes.yaxis_inverted()  # the largest stands above
    assert axes.lines[0].get_xdata()[0] == pytest.approx(100 / 11)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("contribution to PC2 (%)", "")
    assert legend_of(axes.figure) == ["9.09 %, if all features had the same"]
    for component in (0, 3):
        with refused(ConfigError, "'component'", component, "1 to 2"):
            plots.contributions(reading, component)


@pytest.mark.parametrize("labels", [None, LABELS], ids=["parties", "classes"])
def test_a_single_component_is_drawn_as_strips_of_the_parties(labels):
    model, truth = run("p-cov", PARTS, n_components=1), pooled_pca(X, 1)
    axes = plots.scores(model, PARTS, labels=None if labels is None else PER_PARTY).axes[0]
    drawn = np.concatenate(points(axes))
    for place, part in enumerate(PARTS):
        strip = drawn[np.round(drawn[:, 1]) == place, 0]
        np.testing.assert_allclose(np.sort(strip), np.sort(model.transform(part)[:, 0]))
    assert texts(axes.get_yticklabels()) == [f"party {i} ({len(part)})" for i, part in enumerate(PARTS)]
    expected = np.sort(np.abs(model.transform(X)[:, 0]))
    for given in (model, {"one": model, "four": MODEL}):
        figure = plots.projection_overlay(given, X, reference=truth, labels=labels)
        assert "number of the row" in (figure.get_supylabel(), figure.axes[0].get_ylabel())
        drawn = np.concatenate(points(figure.axes[0]))
        np.testing.assert_allclose(np.sort(np.abs(drawn[:, 0]))[::2], expected, atol=1e-9)
    for figure in (plots.loadings(model), plots.scree(model), plots.heterogeneity(model, PARTS)):
        assert figure.axes
    with refused(ConfigError, "(180, 1)"):
        plots.scores(model, PARTS, components=(1, 2))


@pytest.mark.parametrize(
    ("draw", "given", "named"),
    [
        (plots.loadings, (None,), ["'model'", "NoneType", "PCAModel"]),
        (plots.heterogeneity, ([X], MODEL), ["'model'", "list", "PCAModel", "first"]),
        *((plots.scree, ({},), ["'models'"]), (plots.scree, ({"a": 3},), ["'models'", "'a'", "PCAModel"])),
        (partial(plots.projection_overlay, reference=MODEL), ([MODEL], X), ["'models'", "list", "Mapping", "first"]),
        (partial(plots.projection_overlay, reference=MODEL), (MODEL, None), ["'parties'", "NoneType"]),
        (plots.component_images, (MODEL, "ab"), ["'shape'", "'ab'"]),
        (plots.how_many, (X,), ["'result'", "ndarray", "HowMany"]),
        (plots.biplot, (MODEL, X), ["'moments'", "PCAModel", "keep='moments'"]),
        (plots.scores, ([X], MODEL), ["'model'", "list", "scores(model, parties)"]),
        (plots.scores, (None, MODEL), ["'parties'", "scores(model, parties)"]),
        (partial(plots.scores, components=(1, 2, 3)), (MODEL, [X]), ["'components'", "(1, 2, 3)"]),
        (partial(plots.scores, components=2), (MODEL, [X]), ["'components'", 2]),
        (plots.outlier_map, (X,), ["'model'", "ndarray", "Outliers"]),
    ],
    ids=range(14),
)
def test_an_argument_of_another_type_is_named(draw, given, named):
    with refused(ConfigError, *named):
        draw(*given)


def test_an_interval_that_reaches_zero_has_an_upper_end_and_an_arrow_on_a_logarithmic_axis():
    """The fault: a lower end at a third of the mean, which no reader can tell from the end of an interval."""
    lines = ({"fast-pca": [(0.1, 30.0, half_width), (1.0, 3.0, 1.0)]} for half_width in (4.0, 40.0))
    above, reaching = (plots.results_over({"": line}, xlabel="", ylabel="angle", angles=True) for line in lines)
    down = markers.CARETDOWN, markers.CARETDOWNBASE
    carets = [line for line in reaching.axes[0].lines if line.get_marker() in down]
    assert [line.get_xydata()[:, 0].round(3).tolist() for line in carets] == [[0.1]]
    bars = [item for item in reaching.axes[0].collections if isinstance(item, LineCollection)]
    ends = {end for item in bars for segment in item.get_segments() for end in segment[:, 1]}
    np.testing.assert_allclose(sorted(ends), [2, 4, 10, 30, 70])
    assert legend_of(above) == ["fast-pca", "bar: 95 % interval\nof the mean"]
    assert legend_of(reaching) == [*legend_of(above), "the interval reaches 0"]


def test_numbers_have_a_bar_of_colours_in_every_figure_of_rows():
    """The fault: an age was a class for each year, with a panel for each class."""
    frame = pd.DataFrame(X).rename(columns=str)
    model = run("p-cov", [frame], n_components=3, keep="moments", scale=True)
    parties = [part.assign(age=np.where(part["0"] > 0, part["0"], np.nan)) for part in (frame[:180], frame[180:])]
    for draw in (plots.scores, plots.biplot, partial(plots.projection_overlay, reference=model)):
        axes, bar = draw(model, parties, labels="age", components=(1, 3)).axes
        colours = np.concatenate([mark.get_facecolors() for mark in axes.collections if len(mark.get_offsets()) > 1])
        assert bar.get_ylabel() == "age"
        assert np.isclose(colours[:, :3], to_rgb(GREY)).all(axis=1).any()  # of unknown ages
        assert "PC3" in axes.get_ylabel()
        assert axes.get_title() == "p-cov, 300 rows, scaled"
    codes = list(range(10)) * 30  # of ten classes
    assert len(plots.scores(model, [frame], labels=codes).axes[0].lines) == 10
    hollow = plots.scores(model, [frame], labels=codes, title="mine", ax=(given := Figure().subplots()))
    assert (hollow.axes, given.get_title(), len(hollow.legends)) == ([given], "mine", 0)
    with refused(ConfigError, "'ax'"):
        plots.loadings(model, ax=given)
    with refused(ConfigError, "'ax'"):
        plots.scores(MODEL, [X[i::11] for i in range(11)], ax=given)


def test_each_mark_has_the_name_of_its_row(monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "plotly", None)
        with pytest.raises(ConfigError, match="pip install plotly"):
            plots.hover(MODEL, NAMED)
    pytest.importorskip("plotly", reason="draws the figure")
    figure = plots.hover(MODEL, NAMED, components=(3, 1))
    north, south, _ = figure.data
    np.testing.assert_allclose(np.column_stack([south.x, south.y]), MODEL.transform(PARTS[1])[:, [2, 0]])
    assert (north.name, list(south.text)) == ("north", [str(i) for i in range(100)])
    people = pd.DataFrame(PARTS[0], index=[f"patient <{i}>" for i in range(180)])
    assert plots.hover(MODEL, {**NAMED, "north": people}).data[0].text[7] == "patient &lt;7&gt;"
    assert "%" in figure.layout.xaxis.title.text
    with refused(ConfigError, "'components'", 5, 4):
        plots.hover(MODEL, NAMED, components=(1, 5))
