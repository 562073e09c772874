"""Clusters of the scores of all rows, and Harmony, by sums: equal to those over all rows, and safe for a site."""

from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.linear_model import Ridge
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from fedpca_flwr import analyses
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths import clustering, harmony
from fedpca_flwr.maths.harmony import CLUSTER_WIDTH
from fedpca_flwr.protocol.question import Total
from fedpca_flwr.questions.row_limits import MAX_ROWS
from fedpca_flwr.stages import clusters as questions
from fedpca_flwr.stages import harmony as steps_of_harmony
from fedpca_flwr.strategies import METHODS
from tests.families import cut
from tests.harness import finish, fit, require_limits, server_of, tamper_arrays
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

X = load_iris().data[np.random.default_rng(0).permutation(150)]
PARTIES = cut(X, 80, 40, 30)
SECURE = {"secure_aggregation": True, "bound": 100.0}
RUN = {"method": "p-cov", "n-components": 2, "clusters": 2, "clustering": "mixture"}
AXES, MEAN, NONE, ONES = np.eye(4)[:2], X.mean(axis=0), np.empty(0), np.ones(4)
MEANS, WEIGHTS, COVARIANCES, NO_MOVES = np.zeros((2, 2)), np.ones(2), np.array([np.eye(2)] * 2), np.empty((0,) * 4)
CHANGES = [(NONE, AXES[::-1], NONE, ["'components'", "earlier"]), (ONES, AXES, 2 * ONES, ["'scale'", "earlier"])]
CHANGES += [(NONE, AXES, ONES, ["'scale'", "scale=False"]), (ONES, AXES, NONE, ["'scale'", "scale=True"])]
SHAPES = [((2, 2, 2), (2, 2, 3)), ((1, 2, 2), (1, 3, 3)), ((1, 2, 3), (1, 2, 3))]
MISFITS: list[tuple] = [("mixed", (np.ones(one), np.zeros(two), NO_MOVES), "'penalties'") for one, two in SHAPES]
MISFITS += [("shares", (np.zeros((2, 3)), WEIGHTS, COVARIANCES), "2 components")]
MISFITS += [("shares", (MEANS, np.array([1.0, 0.0]), COVARIANCES), "'weights'")]
MISFITS += [("shares", (MEANS, WEIGHTS, 0 * COVARIANCES), "'covariances'")]
HARMONY = {"n_components": 6, "clusters": 12, "clustering": "harmony"}
RNG, BATCH = np.random.default_rng(0), np.repeat([0, 1, 2], [160, 100, 130])
MIXTURES = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.5, 0]])
KINDS = np.array([RNG.choice(4, p=MIXTURES[batch]) for batch in BATCH])
ROWS_OF_BATCHES = RNG.normal(0, 3, (4, 12))[KINDS] + RNG.normal(0, 1.2, (3, 12))[BATCH] + RNG.normal(0, 1, (390, 12))
BATCHES = cut(ROWS_OF_BATCHES, 160, 100, 130)
TWO_PARTIES = SimpleNamespace(parties=2, config=SimpleNamespace(seed=0))
# Clusters of rows whose scores are at most 2.5 in size.
PLACES = np.array([[3.0, 0.0], [0.0, -4.0]])
FARTHEST = np.array([[5.5, 2.5], [2.5, 6.5]])
CELLS = {"counts": 1, "sums": np.array([5.5, 6.5]), "inertia": 5.5**2 + 6.5**2}
MOVES = {"counts": 1, "units": 1, "sums": 2.5, "objective": 4 + CLUSTER_WIDTH * np.log(4)}
SHARES = {"counts": 1, "sums": FARTHEST, "products": np.einsum("mi,mj->mij", FARTHEST, FARTHEST)}
SHARES["log_density"] = clustering.MAX_LOG_DENSITY


def written(folder, what="clusters"):
    return np.vstack([np.loadtxt(folder / f"{i}-{what}.csv", delimiter=",", skiprows=1) for i in range(3)])


@pytest.mark.parametrize("way", [{}, SECURE, {"scale": True}, {"adjust_for": "3"}], ids=str)
def test_k_means_is_that_of_scikit_learn(way, tmp_path):
    model = fit("p-cov", PARTIES, n_components=2, clusters=3, scores=[tmp_path / f"{i}.csv" for i in range(3)], **way)
    result, scores = analyses.clusters(model), model.transform(X)
    every = clustering.draw_starts(model.explained_variance_, 3, questions.STARTS, seed=42)
    fits = [KMeans(3, init=item, n_init=1, tol=0, max_iter=300).fit(scores) for item in every]
    theirs = min(fits, key=lambda item: item.inertia_)  # not the first
    order = np.argsort(-np.bincount(theirs.labels_), kind="stable")
    np.testing.assert_allclose(result.centres, theirs.cluster_centers_[order], atol=1e-8)
    assert list(result.rows) == np.bincount(theirs.labels_)[order].tolist()
    assert model.log["clusters"]["inertia"] == pytest.approx(theirs.inertia_, rel=1e-9)
    assert model.log["clusters"]["steps"] == max(item.n_iter_ for item in fits)
    np.testing.assert_array_equal(order[result.of(X)], theirs.labels_)
    report = written(tmp_path)
    np.testing.assert_array_equal(report[:, 0], result.of(X))
    np.testing.assert_allclose(report[:, 1], np.linalg.norm(scores - result.centres[result.of(X)], axis=1), rtol=1e-6)


@pytest.mark.parametrize("clustering", ["k-means", "mixture", "harmony"])
def test_scores_of_huge_spectra_are_within_limits(clustering):
    """The scores' variances are eigenvalues, which rounding of the first may make zero."""
    rng = np.random.default_rng(0)
    rows = 30 * rng.standard_normal((60, 8)) + np.outer(1e11 * rng.standard_normal(60), rng.standard_normal(8))
    way = {"secure_aggregation": True, "bound": float(np.abs(rows).max())}
    model = fit("p-cov", cut(rows, 30, 20, 10), n_components=8, clusters=2, clustering=clustering, **way)
    assert model.n_samples_ == 60


@pytest.mark.parametrize("way", [{}, pytest.param(SECURE, marks=pytest.mark.engine)], ids=str)
def test_a_mixture_is_that_of_scikit_learn(way, tmp_path):
    paths, options = [tmp_path / f"{i}.npy" for i in range(3)], {"n_components": 3, "clusters": 3}
    model = fit("p-cov", PARTIES, clustering="mixture", scores=paths, **options, **way)
    before = fit("p-cov", PARTIES, **options)
    result, start, scores = analyses.clusters(model), analyses.clusters(before), before.transform(X)
    regular = clustering.RIDGE_SHARE * model.explained_variance_.mean()
    spread = before.log["clusters"]["inertia"] / len(X) / 3 + regular
    weights, precisions = (np.array(start.rows) + 1) / (len(X) + 3), [np.eye(3) / spread] * 3
    starts = {"weights_init": weights, "means_init": start.centres, "precisions_init": precisions}
    theirs = GaussianMixture(3, tol=1e-9, max_iter=100, reg_covar=regular, **starts).fit(scores)
    assert theirs.n_iter_ == model.log["clusters"]["steps"]
    assert model.log["clusters"]["mean_log_density"] == pytest.approx(theirs.lower_bound_, rel=1e-9)
    order = np.argsort(-theirs.weights_, kind="stable")
    np.testing.assert_allclose(result.centres, theirs.means_[order], atol=1e-8)
    np.testing.assert_allclose(result.mixture.covariances, theirs.covariances_[order], atol=1e-8)
    np.testing.assert_allclose(result.mixture.weights, theirs.weights_[order], atol=1e-8)
    np.testing.assert_array_equal(order[result.of(X)], theirs.predict(scores))
    np.testing.assert_allclose(written(tmp_path)[:, 1], theirs.predict_proba(scores).max(axis=1), atol=1e-8)


@pytest.mark.parametrize(("clustering", "value"), [("k-means", "distance"), ("mixture", "probability")])
def test_rows_that_take_no_part_have_clusters_in_the_files(clustering, value, tmp_path):
    options = {"n_components": 2, "clusters": 2, "clustering": clustering, "round_rows": 7}
    model = fit("p-cov", PARTIES, scores=[tmp_path / f"{i}.csv" for i in range(3)], **options)
    assert sum(analyses.clusters(model).rows) == pytest.approx(77 + 35 + 28, abs=1)
    assert len(written(tmp_path)) == 150
    assert (tmp_path / "0-clusters.csv").read_text().split("\n")[0] == f"cluster,{value}"


def test_steps_are_limited_and_parties_have_the_rows_of_the_run(monkeypatch):
    monkeypatch.setattr(questions, "MAX_STEPS", 1)
    assert "the clusters still moved after 1 steps" in fit("p-cov", PARTIES, n_components=2, clusters=3).log["notes"]
    server = server_of("p-cov", PARTIES, n_components=2, clusters=3)
    tamper_arrays(server, 1, lambda arrays: [arrays[0] + 1, *arrays[1:]], "cells")
    with refused(ContractError, 150):
        finish(server)
    monkeypatch.undo()  # centres without rows stay, and few rows are not counted
    points, centres = np.array([[0.0], [1.0]]), np.array([[[0.5], [9.0]]])
    cells = clustering.CellSums.empty(centres)
    cells.add(points, centres)
    np.testing.assert_array_equal(cells.step(centres), centres)
    for few, report in ((9, None), (10, 10)):
        distant = np.vstack([X[:80], X[:few] + 50.0])
        result = analyses.clusters(fit("p-cov", [distant, *PARTIES[1:]], n_components=2, clusters=2))
        assert result.rows == (150, report)
        assert ("few" in repr(result)) == (report is None)


def test_runs_and_models_that_have_no_clusters_say_why():
    run = partial(fit, "p-cov", PARTIES, n_components=2)
    with refused(ContractError, "clusters=4"):
        analyses.clusters(run())
    with refused(ContractError, "clustering='harmony'"):
        analyses.harmonised(run(), X, 0)
    for way in ("k-means", "harmony"):
        with refused(DisclosureError, "scores", "distribution"):
            run(clusters=2, clustering=way, may_show="distribution")


def session(folder, **options):
    request = HostileSession(folder, X, {**RUN, **options})
    assert request.ask("moments", [])[0]
    return request


@pytest.mark.parametrize(("first", "axes", "then", "named"), CHANGES)
def test_a_run_has_one_set_of_components(tmp_path, caplog, first, axes, then, named):
    """A server that turned the components, or divided by other deviations, would learn every feature of a row."""
    request, centres = session(tmp_path, scale=first is ONES), np.zeros((1, 2, 2))
    assert request.ask("cells", [AXES, MEAN, first, centres])[0]
    assert request.refusal("cells", [axes, MEAN, then, centres])
    assert not unnamed(caplog.text, *named)


@pytest.mark.parametrize(("phase", "step", "named"), MISFITS)
def test_steps_that_do_not_fit_are_refused(tmp_path, caplog, phase, step, named):
    request = session(tmp_path, clustering="mixture" if phase == "shares" else "harmony")
    assert phase == "mixed" or request.ask("cells", [AXES, MEAN, NONE, np.zeros((1, 2, 2))])[0]
    assert request.refusal(phase, [AXES, MEAN, NONE, *step])
    assert not unnamed(caplog.text, named)


def test_two_centres_tell_the_row_that_lies_between_them(tmp_path):
    """The attack for which a site must say may-show='scores': the server learns the scores of a single row."""
    request, edge = session(tmp_path), np.sort(X[:, 0] - MEAN[0])

    def sums(boundary):
        centres = np.array([[[boundary - 1e3, 0.0], [boundary + 1e3, 0.0]]])
        counts, report, _ = request.ask("cells", [AXES, MEAN, NONE, centres])[0]
        return report[0, 0] + counts[0, 0] * centres[0, 0]

    low, high = sums((edge[-2] + edge[-1]) / 2), sums(edge[-1] + 1.0)
    np.testing.assert_allclose(high - low, (X - MEAN)[X[:, 0].argmax(), :2], atol=1e-6)
    assert HostileSession(tmp_path / "nothing", X, RUN, **{"may-show": "distribution"}).refusal("moments", [])


def by_blocks(Z):
    """Run the paper's program on all rows: counts are taken anew after each twentieth of the rows."""
    rng, n, of_batch = np.random.default_rng(0), len(Z), np.eye(3)[BATCH]
    units = harmony.normalise_rows(Z)
    centres, moved = units[rng.choice(n, 12, replace=False)], Z
    R = np.exp(-20 * (1 - units @ centres.T))
    R /= R.sum(axis=1, keepdims=True)
    for _ in range(6):
        for _ in range(15):
            centres = harmony.normalise_rows(R.T @ units)
            near = np.exp(-20 * (1 - units @ centres.T))
            for block in np.array_split(rng.permutation(n), 20):
                rest = np.delete(np.arange(n), block)
                shares, part = R[rest].T @ of_batch[rest], of_batch[rest].mean(axis=0)
                expected = shares.sum(axis=1, keepdims=True) * part
                R[block] = near[block] * (((expected + 1) / (shares + 1)) ** 2)[:, BATCH[block]].T
                R[block] /= R[block].sum(axis=1, keepdims=True)
        effects = [Ridge(solver="cholesky").fit(of_batch, Z, sample_weight=share).coef_.T[BATCH] for share in R.T]
        moved = Z - np.einsum("mi,mij->ij", R.T, effects)
        units = harmony.normalise_rows(moved)
    return moved


def mixed(Z, labels, near=30):
    """Return the mean number of labels near a row, less 1, as a share of the possible (the inverse Simpson index)."""
    result = NearestNeighbors(n_neighbors=near + 1).fit(Z).kneighbors(Z, return_distance=False)[:, 1:]
    shares = np.stack([(labels[result] == item).mean(axis=1) for item in np.unique(labels)])
    return ((1 / (shares**2).sum(axis=0)).mean() - 1) / (len(np.unique(labels)) - 1)


@pytest.mark.engine
def test_batches_are_mixed_as_by_the_papers_program(tmp_path):
    model = fit("p-cov", BATCHES, **HARMONY, scores=[tmp_path / f"{i}.csv" for i in range(3)])
    Z = model.transform(ROWS_OF_BATCHES)
    ours = np.vstack([analyses.harmonised(model, rows, i) for i, rows in enumerate(BATCHES)])
    assert mixed(Z, BATCH) < 0.2 < 0.4 < mixed(ours, BATCH)
    assert mixed(ours, BATCH) == pytest.approx(mixed(by_blocks(Z), BATCH), abs=0.02)
    assert mixed(ours, KINDS) < 0.01
    np.testing.assert_allclose(written(tmp_path, "harmony"), ours, atol=1e-7)
    secure = fit("p-cov", BATCHES, **HARMONY, **SECURE)
    np.testing.assert_allclose(secure.log["harmony"]["moves"], model.log["harmony"]["moves"], atol=1e-8)
    with refused(ConfigError, "'party'", 3):
        analyses.harmonised(model, BATCHES[0], 3)


@pytest.mark.parametrize(
    ("moved", "gain", "corrections", "questions"),
    [
        (0.5, 1e-3, 10, 10 + 10 * 20),  # both go on: the most that the script allows
        (0.002, 1e-3, 10, 10 + 10 * 20),
        (0.0005, 1e-3, 10, 11 + 9 * 2),  # no rows move: the first ten steps are free
        (0.5, 5e-5, 2, 30 + 20),
        (0.5, -1e-3, 2, 30 + 20),
    ],
)
def test_harmony_ends_where_rows_and_objective_rest(moved, gain, corrections, questions):
    """A share of the rows moves in each step, and each correction lowers the objective by a share."""
    model = SimpleNamespace(explained_variance_=np.ones(2), log={})
    program = steps_of_harmony.harmonise(model, {}, 2, TWO_PARTIES)
    question, shift = next(program), moved / 2 * np.array([[1, -1], [-1, 1]])
    number = 0
    with suppress(StopIteration):
        for number in range(1, 1000):
            objective = -1e3 * (1 + gain) ** len(question.request["moves"])
            sums = {"counts": 500 * (1 + (-1) ** number * shift), "units": np.ones((2, 2)), "sums": np.zeros((2, 2, 2))}
            question = program.send(Total({**sums, "objective": np.asarray(objective)}, 2))
    assert number == model.log["harmony"]["steps"] == questions <= steps_of_harmony.MAX_QUESTIONS == 210
    assert len(model.log["harmony"]["moves"]) == corrections


def test_one_party_has_nothing_taken_off_in_one_correction(tmp_path):
    model = fit("p-cov", [ROWS_OF_BATCHES], scores=[tmp_path / "0.csv"], **HARMONY)
    report, scores = pd.read_csv(tmp_path / "0-harmony.csv"), model.transform(ROWS_OF_BATCHES)
    assert list(report) == [f"harmony{j}" for j in range(1, 7)]
    for corrected in (report, analyses.harmonised(model, ROWS_OF_BATCHES, 0)):
        np.testing.assert_allclose(corrected, scores, atol=1e-6, rtol=0)
    rows = np.repeat([[-3.0], [5.0]], 20, axis=0)
    model = fit("p-cov", [rows], n_components=1, clusters=2, clustering="harmony", seed=1)
    assert model.log["harmony"]["objective"] == 0
    assert len(model.log["harmony"]["moves"]) == 2
    assert model.log["harmony"]["steps"] == 11 + 2  # one more than are free, and one more than nothing changes in


def test_steps_of_harmony_are_those_of_the_rows(monkeypatch):
    """Two batches have four rows each, and three of the rows in a cluster of their own, where two are expected."""
    monkeypatch.setattr(steps_of_harmony, "FIRST_STEPS", 1)
    model = SimpleNamespace(explained_variance_=np.ones(2), log={})
    program = steps_of_harmony.harmonise(model, {}, 2, TWO_PARTIES)
    last_centre = next(program).request["centres"][-1][1]
    counts, units = np.array([[3.0, 1.0], [1.0, 3.0]]), np.array([[0.0, 2.0], [0.0, 0.0]])
    total = Total({"counts": counts, "units": units, "sums": np.zeros((2, 2, 2)), "objective": np.asarray(5.0)}, 2)
    request = program.send(total).request
    np.testing.assert_array_equal(request["centres"][-1], [[0, 1], last_centre])
    np.testing.assert_allclose(request["penalties"][-1], np.log([[3 / 4, 3 / 2], [3 / 2, 3 / 4]]), rtol=1e-14)
    assert len(list(iter(partial(program.send, total), None))) == 2  # nothing moves: a correction, and the last one
    expected = 5 + 0.1 * 2 * (6 * np.log(4 / 3) + 2 * np.log(2 / 3))
    assert model.log["harmony"]["objective"] == pytest.approx(expected, rel=1e-14)
    # Moves are those of a ridge regression of the rows.
    rng = np.random.default_rng(1)
    Z, of_batch, share = rng.normal(size=(60, 2)), np.eye(3)[rng.integers(0, 3, 60)], rng.random(60)
    sums = np.einsum("n,nb,nd->bd", share, of_batch, Z)
    moves = harmony.ridge_moves((share @ of_batch)[None], sums[None])[0]
    ridge = Ridge(solver="cholesky").fit(of_batch, Z, sample_weight=share)
    np.testing.assert_allclose(moves, ridge.coef_.T, atol=1e-12)


def test_limits_in_closed_form():
    card, config = METHODS["p-cov"].strategy.card, RunConfig(**SECURE | {"bound": 1.25 / np.sqrt(MAX_ROWS)})
    request = {"mean": np.zeros(2), "scale": np.empty(0), "means": PLACES}
    mixture = [("mixture", "cells", PLACES[None], CELLS), ("mixture", "shares", None, SHARES)]
    for way, phase, centres, of_one_row in (*mixture, ("harmony", "mixed", np.zeros((1, 3, 2)), MOVES)):
        question = card.script(config, card.options.parse({"clusters": 2, "clustering": way}))[phase]
        limits = question.limits({**request, "centres": centres}, SimpleNamespace(config=config, features=2))
        require_limits(limits, {name: 2 * MAX_ROWS * value for name, value in of_one_row.items()})
