"""Figures of analyses show their numbers."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures import analysis_plots
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import rows
from tests.refusals import refused

X = rows(200, 8)
MOMENTS = SecondMoments.of(X)


def texts_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def tips_of(axes):
    """Where arrows end, which are annotations without text."""
    texts: list[Any] = axes.texts
    return {tuple(text.xy) for text in texts if text.get_text() == ""}


def overlap(boxes):
    return any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_the_scree_has_the_band_and_a_line_for_each_rule_that_is_shown():
    found = analyses.how_many(MOMENTS)
    (axes,) = analysis_plots.how_many(found).axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), found.spectrum)
    assert axes.collections[0].get_datalim(axes.transData).y1 == pytest.approx(found.null_band[0])
    assert texts_of(axes)[2:] == [f"{k}: {rule}" for rule, k in found.by_rule.items()]
    found = analyses.HowMany({"far": 9, "near": 2}, np.arange(8.0, 0, -1), np.ones(8))
    (axes,) = analysis_plots.how_many(found).axes
    assert texts_of(axes)[2:] == ["2: near"]


def test_odd_rows_are_crosses_beyond_the_limits_and_numbers_of_an_axis_do_not_overprint():
    """The fault: over less than a power of ten, each of 2 to 9 had a number of three letters' width."""
    odd = X.copy()
    odd[3] *= 20
    found = analyses.outliers(analyses.pca(MOMENTS, 3), odd)
    (axes,) = analysis_plots.outlier_map(found).axes
    even, crosses = axes.lines[:2]
    assert len(even.get_xdata()) + len(crosses.get_xdata()) == 200
    assert found.t_squared[3] in crosses.get_xdata()
    assert (even.get_xdata() <= found.t_squared_limit).all()
    assert axes.lines[2].get_xdata()[0] == found.t_squared_limit
    assert axes.lines[3].get_ydata()[0] == found.spe_limit
    figure = analysis_plots.outlier_map(analyses.outliers(analyses.pca(MOMENTS, 3), X))
    figure.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        boxes = [tick.label1.get_window_extent() for tick in axis.get_major_ticks() if tick.label1.get_text()]
        assert len(boxes) > 1
        assert not overlap(boxes)
        assert not any(text.get_text() for text in axis.get_minorticklabels())


@pytest.mark.engine
def test_names_of_arrows_are_inside_the_axes_and_do_not_overprint():
    """30 features that go with the first component, with names of different lengths, one longer than is shown."""
    rng = np.random.default_rng(0)
    alike = pd.DataFrame(X[:, :1] + 0.01 * rng.standard_normal((200, 30)))
    alike.columns = [f"the concentration of {'n' * (j % 7)} {j}" for j in range(29)] + ["f" * 60]
    moments = SecondMoments.of(alike)
    figure = analysis_plots.biplot(analyses.read(moments, 2), analyses.pca(moments, 2).transform(alike))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    inside = axes.get_window_extent()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == 30
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
    assert all(inside.y0 <= box.y0 and box.y1 <= inside.y1 for box in boxes)
    assert not overlap(boxes)


@pytest.mark.engine
@pytest.mark.parametrize("turn", [1, -1])
def test_of_many_features_the_longest_arrows_are_shown(turn):
    """40 features, the j-th of length j / 40."""
    lengths = np.arange(1, 41)[::turn] / 40
    angles = np.linspace(0, 6, 40)
    correlations = lengths * [np.cos(angles), np.sin(angles)]
    found = analyses.Reading(correlations, lengths**2, correlations**2, np.eye(2), tuple(f"f{j}" for j in range(40)))
    (axes,) = analysis_plots.biplot(found, np.ones((3, 2))).axes
    longest = {j for j in range(40) if lengths[j] > 10 / 40}
    assert {text.get_text() for text in axes.texts} == {"", *(f"f{j}" for j in longest)}
    assert tips_of(axes) == {tuple(correlations[:, j]) for j in longest}


def test_a_biplot_has_arrows_of_correlations_and_rows_in_the_unit_of_the_largest_score_whatever_its_sign():
    found = analyses.read(MOMENTS, 2)
    (axes,) = analysis_plots.biplot(found, np.array([[-4.0, 1.0], [2.0, -2.0]])).axes
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[-1.0, 0.5], [0.5, -1.0]])
    assert tips_of(axes) == set(map(tuple, found.correlations.T))
    assert {text.get_text() for text in axes.texts} == {"", *map(str, range(8))}
    with refused(ConfigError):
        analysis_plots.biplot(analyses.read(MOMENTS, 1), X[:, :2])


def test_contributions_are_shares_of_those_that_take_part():
    found = analyses.read(MOMENTS, 2, supplementary=[0])
    axes: Any = analysis_plots.contributions(found, 2).axes[0]
    shares = found.contributions[1][:7]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], 100 * np.sort(shares)[::-1])
    assert axes.lines[0].get_xdata()[0] == pytest.approx(100 / 7)
    for component in (0, 3):
        with refused(ConfigError, "'component'", component, "1 to 2"):
            analysis_plots.contributions(found, component)
