"""Comparisons over several seeds: means with intervals, figures over alpha and clients, and pages that stay small."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from fedpca_flwr import cli
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.simulations.comparing import Comparison, compare
from fedpca_flwr.simulations.recommending import choices
from fedpca_flwr.simulations.runs_file import read_records
from fedpca_flwr.simulations.seed_means import average_seeds, count_runs, interval, runs_text
from tests.refusals import refused
from tests.simulations.test_compare import WINE, undrawn


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return runs over four seeds, two alphas and two numbers of clients, with their models."""
    many = {**WINE, "alphas": [0.1, 10], "clients": [2, 4]}
    return compare(methods=["p-cov", "ap-cov"], seeds=range(4), output=tmp_path_factory.mktemp("seeds"), **many)


@pytest.mark.parametrize(
    ("record", "completed", "text"),
    [
        ({"seed": 3}, 1, "1"),
        ({"seed": 3, "error": "no rows"}, 0, "0 of 1"),
        ({"seed": 1, "seeds": [1, 2], "failures": {}}, 2, "2"),
        ({"seed": 1, "seeds": [1, 2], "failures": {1: "no rows"}}, 1, "1 of 2"),
        ({"seed": 1, "seeds": [1, 2], "failures": {1: "no rows", 2: "no rows"}, "error": "no rows"}, 0, "0 of 2"),
    ],
)
def test_runs_are_counted_with_those_that_failed(record, completed, text):
    assert (count_runs(record), runs_text(record)) == (completed, text)


def test_an_interval_is_that_of_students_t():
    values = [1.0, 2.0, 4.0, 8.5]
    mean, half_width = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (mean, half_width) == pytest.approx((np.mean(values), (high - low) / 2), rel=1e-12)
    assert interval([3.0]) == (3.0, None)


def test_means_are_of_the_seeds_of_a_method_and_setting(several):
    frame, means = several.frame(), several.means()
    assert len(frame) == 2 * 2 * 2 * 4
    assert frame["seed"].nunique() == 4
    assert means["runs"].tolist() == [4] * 8
    by_hand = frame.groupby(["method", "alpha", "clients"])["max angle"].agg(["mean", "sem"])
    for line in means.to_dict("records"):
        mean, error = by_hand.loc[(line["method"], line["alpha"], line["clients"])]
        assert line["max angle"] == pytest.approx(mean)
        half_width = stats.t.ppf(0.975, 3) * error
        ends = [max(0, mean - half_width), mean + half_width]
        assert [line["max angle low"], line["max angle high"]] == pytest.approx(ends)
    text = str(several)
    assert re.search(r"\| wine \| dirichlet 0.1 \| 2 \| ap-cov \| clear \| 4 \| [\d.]+ \(0 to [\d.]+\) \|", text)
    assert text.count("seeds 0 to 3:") == 4


def test_recommended_within_an_angle_is_what_every_seed_keeps():
    def record(seed, angle):
        results = {"max angle": angle, "mean angle": angle, "exact": False, "MB up": 1.0, "rounds": 1}
        setting = dict.fromkeys(["dataset", "data root", "partition", "alpha", "clients", "engine", "knn", "bound"])
        return {"method": "ap-cov", "options": {}, **setting, "components": 2, "seed": seed, "measured": {}, **results}

    (mean,) = average_seeds([record(0, 0.01), record(1, 0.01), record(2, 1.3)])
    assert mean["max angle"] == pytest.approx(0.44)
    assert [choice.wish for choice in choices([mean])] == ["within 10°"]


def test_seeds_that_failed_are_counted_and_told(several):
    runs = [run for run in several if (run["method"], run["alpha"], run["clients"]) == ("ap-cov", 0.1, 2)]
    results = {key: value for key, value in runs[0].items() if key not in ("max angle", "rounds", "measured")}
    made = Comparison([{**results, "error": "DataError: a site is away"}, *runs[1:]])
    assert made.means()["runs"].tolist() == [3]
    assert "| 3 of 4 |" in str(made)
    assert "ap-cov, seed 0 failed: DataError: a site is away" in str(made)


@pytest.mark.parametrize(
    ("over", "panels"), [("alpha", ["2 clients", "4 clients"]), ("clients", ["alpha 0.1", "alpha 10"])]
)
def test_figures_have_a_panel_for_what_else_differs(several, over, panels):
    figure = several.figure(over, "captured variance")
    assert [axes.get_title() for axes in figure.axes] == panels
    assert {axes.get_xlabel() for axes in figure.axes} == {"alpha" if over == "alpha" else "number of clients"}
    means = several.means()
    shown = means[(means["clients"] == 2) & (means["method"] == "ap-cov")]["captured variance"]
    if over == "alpha":
        (line,) = (line for line in figure.axes[0].get_lines() if line.get_label() == "ap-cov")
        np.testing.assert_allclose(line.get_ydata(), shown)


def test_figures_of_a_single_value_say_so(several):
    single = Comparison(run for run in several if run["alpha"] == 0.1)
    with refused(ConfigError, "alpha", 0.1):
        single.figure("alpha")
    with refused(ConfigError, "'over'", "'seeds'", "clients"):
        single.figure("seeds")
    with refused(ConfigError, "'result'", "'angle'", "max angle"):
        single.figure("clients", "angle")


def test_the_page_has_means_and_two_figures(several):
    page = several.report().read_text()
    assert page.count("<svg ") == 2
    assert "The largest angle by alpha" in page
    assert page.count("<tr><td>") + page.count('<tr class="best">') == 8
    assert page.count("<td>4</td>") == 8
    assert "seeds 0 to 3</div>" in page


def test_the_command_takes_seeds(tmp_path, monkeypatch, capsys):
    undrawn(monkeypatch)
    given = ["compare", "--methods", "ap-cov", "--datasets", "wine", "--clients", "3", "--n-components", "2"]
    assert cli.main([*given, "--seeds", "0", "1", "--output", str(tmp_path)]) == 0
    assert "| ap-cov | clear | 2 |" in capsys.readouterr().out
    assert [run["seed"] for run in read_records(tmp_path)] == [0, 1]
    assert cli.main([*given, "--seeds", "0", "1", "--seed", "3"]) == 2


# What is refused before the first run, all of a kind at once


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"partitions": ["diri", "iid", 3]}, ["'partitions'", "'diri'", 3, "'dirichlet'", "quantity"]),
        ({"datasets": ["digit", "wine"]}, ["'datasets'", "'digit'", "'digits'", "openml:NAME"]),
        ({"alphas": [-1, "a"]}, ["'alphas'", -1, "'a'"]),
        ({"clients": [3.5, 0]}, ["'clients'", 3.5, 0]),
        ({"n_components": 0}, ["'n_components'", 0]),
        ({"n_components": "x"}, ["'n_components'", "'x'"]),
        ({"seeds": [1.5, -2]}, ["'seeds'", 1.5, -2]),
        ({"engine": "rays"}, ["'engine'", "'rays'", "loopback"]),
        ({"methods": ["p-covv", "sub-itt", 3]}, ["'p-covv'", "'sub-itt'", 3]),
        ({"methods": None}, ["'methods'", None]),
        ({"methods": []}, ["'methods'", "empty"]),
        ({"clients": [], "engine": 1}, ["'clients'", "empty", "'engine'"]),
        ({"datasets": ["wine", "digits"], "n_components": 100}, ["'n_components'", 100, "wine", "digits"]),
        ({"datasets": "wine", "clients": [1000, 500]}, ["'clients'", 500, 1000, 178, "wine"]),
        ({"datasets": ["mnist", "cifar10"], "data_root": "/nowhere"}, ["'mnist'", "cifar10"]),
        ({"parties": "wine"}, ["'parties'", "'wine'", "datasets"]),
    ],
    ids=str,
)
def test_all_wrong_values_are_named_before_a_run(arguments, named, monkeypatch):
    monkeypatch.setattr("fedpca_flwr.simulations.measuring.run", lambda *_, **__: pytest.fail("there was work"))
    with refused(Exception, *named):
        compare(**{"methods": "p-cov", "n_components": 2, **arguments})


def test_single_values_are_lists_of_one():
    setting = {"datasets": "wine", "partitions": "quantity", "alphas": np.float64(0.5), "clients": 3, "seeds": 7}
    (record,) = compare(methods="ap-cov", n_components=2, **setting)
    assert (record["alpha"], record["clients"], record["seed"], record["bound"]) == (0.5, 3, 7, 0.0)
    assert math.isfinite(record["max angle"])
