"""Clusters of the scores of all rows: scikit-learn's, from sums, and what a site answers about them."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths import clustering
from fedpca_flwr.questions import clusters as questions
from tests.families import cut
from tests.harness import fit
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

X = load_iris().data[np.random.default_rng(0).permutation(150)]
PARTIES = cut(X, 80, 40, 30)
SECURE = {"secure_aggregation": True, "bound": 100.0}

each_way = pytest.mark.parametrize("way", [{}, SECURE, {"scale": True}, {"adjust_for": "3"}], ids=str)


def same_start(model, clusters):
    """scikit-learn from each start, of which the first is not the best."""
    scores = model.transform(X)
    every = clustering.starts(model.explained_variance_, clusters, questions.STARTS, seed=42)
    fits = [KMeans(clusters, init=one, n_init=1, tol=0, max_iter=300).fit(scores) for one in every]
    return scores, min(fits, key=lambda one: one.inertia_)


@each_way
def test_k_means_is_that_of_scikit_learn(way, tmp_path):
    paths = [tmp_path / f"{i}.csv" for i in range(3)]
    model = fit("p-cov", PARTIES, n_components=2, clusters=3, scores=paths, **way)
    found = analyses.clusters(model)
    scores, theirs = same_start(model, 3)
    order = np.argsort(-np.bincount(theirs.labels_), kind="stable")
    np.testing.assert_allclose(found.centres, theirs.cluster_centers_[order], atol=1e-8)
    assert list(found.rows) == np.bincount(theirs.labels_)[order].tolist()
    assert model.log["clusters"]["inertia"] == pytest.approx(theirs.inertia_, rel=1e-9)
    np.testing.assert_array_equal(order[found.of(X)], theirs.labels_)
    told = np.vstack([np.loadtxt(tmp_path / f"{i}-clusters.csv", delimiter=",", skiprows=1) for i in range(3)])
    np.testing.assert_array_equal(told[:, 0], found.of(X))
    np.testing.assert_allclose(told[:, 1], np.linalg.norm(scores - found.centres[found.of(X)], axis=1), rtol=1e-6)


@pytest.mark.parametrize("way", [{}, SECURE], ids=str)
def test_a_mixture_is_that_of_scikit_learn(way, tmp_path):
    paths = [tmp_path / f"{i}.npy" for i in range(3)]
    model = fit("p-cov", PARTIES, n_components=3, clusters=3, clustering="mixture", scores=paths, **way)
    found, scores = analyses.clusters(model), fit("p-cov", PARTIES, n_components=3, clusters=3).transform(X)
    start = analyses.clusters(fit("p-cov", PARTIES, n_components=3, clusters=3))
    spread = np.eye(3) * len(X) * 3 / fit("p-cov", PARTIES, n_components=3, clusters=3).log["clusters"]["inertia"]
    regular = clustering.REGULAR * model.explained_variance_.mean()
    theirs = GaussianMixture(
        3,
        tol=0,
        max_iter=model.log["clusters"]["steps"],
        reg_covar=regular,
        weights_init=(np.array(start.rows) + 1) / (len(X) + 3),
        means_init=start.centres,
        precisions_init=[np.linalg.inv(np.linalg.inv(spread) + regular * np.eye(3))] * 3,
    )
    with pytest.warns(match="converge"):  # it is to take as many steps
        theirs.fit(scores)
    order = np.argsort(-theirs.weights_, kind="stable")
    np.testing.assert_allclose(found.centres, theirs.means_[order], atol=1e-8)
    np.testing.assert_allclose(found.mixture.covariances, theirs.covariances_[order], atol=1e-8)
    np.testing.assert_allclose(found.mixture.weights, theirs.weights_[order], atol=1e-8)
    np.testing.assert_array_equal(order[found.of(X)], theirs.predict(scores))
    told = np.vstack([np.loadtxt(tmp_path / f"{i}-clusters.csv", delimiter=",", skiprows=1) for i in range(3)])
    np.testing.assert_allclose(told[:, 1], theirs.predict_proba(scores).max(axis=1), atol=1e-8)


def test_centres_without_rows_stay_and_few_rows_are_not_counted():
    points, centres = np.array([[0.0], [1.0]]), np.array([[[0.5], [9.0]]])
    cells = clustering.Cells.about(centres)
    cells.add(points, centres)
    np.testing.assert_array_equal(cells.step(centres), centres)
    far = np.vstack([X[:80], X[:4] + 50.0])
    found = analyses.clusters(fit("p-cov", [far, *PARTIES[1:]], n_components=2, clusters=2))
    assert found.rows == (150, None)
    assert "few" in repr(found)


def test_runs_and_models_that_have_no_clusters_say_why():
    with refused(ContractError, "clusters=4"):
        analyses.clusters(fit("p-cov", PARTIES, n_components=2))
    with refused(DisclosureError, "scores", "distribution"):
        fit("p-cov", PARTIES, n_components=2, clusters=2, may_show="distribution")
    with refused(ConfigError, "'survivors'", "cells"):
        fit("p-cov", PARTIES, n_components=2, clusters=2, **SECURE, survivors=2)


RUN = {"method": "p-cov", "n-components": 2, "clusters": 2, "clustering": "mixture"}
AXES, MEAN, SCALE = np.eye(4)[:2], X.mean(axis=0), np.empty(0)


def session(tmp_path, **node):
    asked = HostileSession(tmp_path, X, RUN, **node)
    assert asked.ask("moments", [])[0]
    return asked


ONES = np.ones(4)


@pytest.mark.parametrize(
    ("run", "first", "second", "named"),
    [
        (RUN, (AXES, SCALE), (AXES[::-1], SCALE), ["'components'", "earlier"]),
        ({**RUN, "scale": True}, (AXES, ONES), (AXES, 2 * ONES), ["'scale'", "earlier"]),
        (RUN, (AXES, SCALE), (AXES, ONES), ["'scale'", "scale=False"]),
        ({**RUN, "scale": True}, (AXES, ONES), (AXES, SCALE), ["'scale'", "scale=True"]),
    ],
)
def test_a_run_has_one_set_of_components(tmp_path, caplog, run, first, second, named):
    """A server that turned them, or divided by other deviations, would learn every feature of a row."""
    asked, centres = HostileSession(tmp_path, X, run), np.zeros((1, 2, 2))
    assert asked.ask("moments", [])[0]
    assert asked.ask("cells", [first[0], MEAN, first[1], centres])[0]
    assert asked.refusal("cells", [second[0], MEAN, second[1], centres])
    assert not unnamed(caplog.text, *named)


@pytest.mark.parametrize(
    ("means", "weights", "covariances", "named"),
    [
        (np.zeros((2, 3)), np.ones(2), np.array([np.eye(3)] * 2), "2 components"),
        (np.zeros((2, 2)), np.array([1.0, 0.0]), np.array([np.eye(2)] * 2), "'weights'"),
        (np.zeros((2, 2)), np.ones(2), np.zeros((2, 2, 2)), "'covariances'"),
    ],
)
def test_what_is_no_mixture_is_refused(tmp_path, caplog, means, weights, covariances, named):
    asked = session(tmp_path)
    assert asked.ask("cells", [AXES, MEAN, SCALE, np.zeros((1, 2, 2))])[0]
    assert asked.refusal("shares", [AXES, MEAN, SCALE, means, weights, covariances])
    assert not unnamed(caplog.text, named)


def test_two_centres_tell_the_row_that_lies_between_them(tmp_path):
    """The attack for which a site must say may-show='scores': what it is told is the scores of one row."""
    asked = session(tmp_path)
    order = np.argsort(X[:, 0] - MEAN[0])
    edge = np.sort(X[:, 0] - MEAN[0])

    def sums(boundary):
        centres = np.array([[[boundary - 1e3, 0.0], [boundary + 1e3, 0.0]]])
        counts, told, _ = asked.ask("cells", [AXES, MEAN, SCALE, centres])[0]
        return told[0, 0] + counts[0, 0] * centres[0, 0]

    low, high = sums((edge[-2] + edge[-1]) / 2), sums(edge[-1] + 1.0)
    np.testing.assert_allclose(high - low, (X - MEAN)[order[-1], :2], atol=1e-6)
    assert HostileSession(tmp_path / "nothing", X, RUN, **{"may-show": "distribution"}).refusal("moments", [])
