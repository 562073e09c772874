"""EM on rows with missing values, by a covariance or by few factors: the pooled iteration's result, R's, the notes."""

import logging
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.feature_selection import VarianceThreshold
from sklearn.preprocessing import scale

from fedpca_flwr import run
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths import eigen, moments
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.strategies.em import method as em
from fedpca_flwr.strategies.em.factor_em import FactorEM, FactorGaussian
from fedpca_flwr.strategies.em.gaussian_em import Gaussian
from fedpca_flwr.strategies.em.incomplete_client import IncompleteClient
from tests.families import cut, rows
from tests.harness import CLUSTER_STEPS, fit
from tests.hostile import HostileSession
from tests.pairwise import pairwise_by_day
from tests.refusals import refused
from tests.strategies.em.test_incomplete import plain_em, plain_ppca, textbook, with_holes

MASKED = {"secure_aggregation": True, "min_parties": 2, "bound": 1e3}
WIDE = {"model": "factors", "n_components": 2, "tolerance": 1e-9}
MODELS = {"gaussian": {"n_components": 3, "tolerance": 1e-9}, "factors": {**WIDE, "factors": 2}}
every_model = pytest.mark.parametrize("model_options", MODELS.values(), ids=MODELS)
every_way = pytest.mark.parametrize("way", [{}, MASKED], ids=["clear", "masked"])
CLUSTERINGS = product(["k-means", "mixture"], [False, True], [{}, MASKED])
TABLE = [(load_wine, 0.05, 4.5, 10), (load_wine, 0.4, 21.0, 20), (load_breast_cancer, 0.2, 5.0, 15)]
"""Of docs/missing.md: degrees to the complete rows' components (mean of three draws), and most rounds."""
RUN = {"method": "em", "n-components": 2}
CENTRE, UNIT, ZERO = np.full(5, 50.0), np.full(5, 10.0), np.zeros(5)
COVARIANCE = np.eye(5)[np.triu_indices(5)] + 0.5 * (np.arange(15) == 1)
RARE = np.isin(np.arange(76), range(3, 53, 10))
"""Rows whose gaps too few share: a site with a file of its own leaves them out of every sum, and scores them."""


def parties_of_three(share=0.2):
    return cut(with_holes(rows(150, 6), share, 1), 90, 40, 20)


def of_factors(n=120, d=40, k=2, share=0.2, noise=0.5, seed=0):
    """Rows of k factors with so much missing completely at random, in a unit of their own."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, k)) * np.arange(k + 1, 1, -1) @ rng.standard_normal((k, d))
    return with_holes(50 + 10 * (X + noise * rng.standard_normal((n, d))), share, seed)


def angle(model, vectors):
    return float(principal_angles(model.components_.T, vectors).max())


def pooled_em(X):
    """Return the mean and the scatter of pooled rows by the textbook's EM, in the units of the observed deviations."""
    mean, unit = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    m, T = plain_em(scale(X), 100.0, 150)
    return mean + unit * m, T * np.outer(unit, unit)


@pytest.mark.engine
@every_way
def test_parties_get_what_the_same_em_gives_on_pooled_rows(way):
    parties = parties_of_three()
    parties[2][:, 2] = np.nan  # a party that never measured a feature
    m, T = pooled_em(np.vstack(parties))
    values, vectors = np.linalg.eigh(T)
    model = fit("em", parties, n_components=3, prior=100.0, tolerance=1e-9, **way)
    assert angle(model, vectors[:, :-4:-1]) <= 1e-8
    np.testing.assert_allclose(model.singular_values_**2, values[:-4:-1], rtol=1e-9)
    np.testing.assert_allclose(model.mean_, m, atol=1e-10)
    assert model.log["measured"]["degrees_ahead"] <= 1e-9


@pytest.mark.engine
@pytest.mark.parametrize("scaled", [False, True])
def test_factors_are_those_of_the_pooled_rows(scaled):
    parties = cut(of_factors(n=70, d=12, k=3), 40, 20, 10)
    parties[2][:, 3] = np.nan
    X = np.vstack(parties)
    mean, deviations = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    unit = deviations if scaled else np.full(deviations.size, np.sqrt(np.mean(deviations**2)))
    m, V, _ = plain_ppca((X - mean) / unit, 3, 10.0, 120)
    for way in ({}, MASKED):
        model = fit("em", parties, **WIDE, factors=3, scale=scaled, **way)
        assert angle(model, V[:, :2]) <= 1e-8
        np.testing.assert_allclose(model.mean_, mean + unit * m, rtol=1e-9)
        assert model.log["measured"]["degrees_ahead"] <= 1e-9


@pytest.mark.engine
@every_way
@every_model
def test_offsets_and_divisions_change_nothing(model_options, way):
    """Up to means of 1e15, whose neighbours in float64 are an eighth apart, with a constant feature that has gaps."""
    parties = [np.column_stack([np.round(part * 4) / 4, part[:, 0] * 0]) for part in parties_of_three()]
    near, offset = fit("em", parties, **model_options, **way), np.array([1, -1, 0, 0.5, 1, -0.25, 1])
    moved = [([part + size * offset for part in parties], {"bound": 10 * size}) for size in (1e8, 1e15)]
    for others, bound in (([np.vstack(parties)[i::7] for i in range(7)], {}), *moved):
        other = fit("em", others, **model_options, **(way and way | bound))
        assert angle(other, near.components_.T) <= 1e-8
        np.testing.assert_allclose(other.explained_variance_, near.explained_variance_, rtol=1e-8)


@pytest.mark.engine
@pytest.mark.parametrize("offset", [0.0, 1e14, 1e15])
@pytest.mark.parametrize("scaled", [False, True])
@every_model
def test_em_without_gaps_is_p_cov(model_options, scaled, offset):
    by_covariance, k = "model" not in model_options, model_options["n_components"]
    parties = cut(rows(300), 180, 100, 20) if by_covariance else cut(of_factors(share=0.0), 70, 50)
    parties = [part + offset * np.linspace(-1, 1, part.shape[1]) for part in parties]
    ours = fit("em", parties, **{**model_options, "factors": 0}, scale=scaled)
    theirs = fit("p-cov", parties, n_components=k, scale=scaled)
    assert angle(ours, theirs.components_.T) <= (1e-9 if by_covariance else 1e-7)
    shares = [model.explained_variance_ratio_ for model in (ours, theirs)]
    np.testing.assert_allclose(*shares, rtol=1e-12 if by_covariance else 1e-10)
    assert (ours.rounds == 3) == any("no value is missing" in note for note in ours.log["notes"]) == by_covariance


@every_way
def test_expected_moments_are_kept(way):
    complete = cut(rows(300), 180, 100, 20)
    ours, theirs = (fit(method, complete, n_components="auto", keep="moments", **way) for method in ("em", "p-cov"))
    np.testing.assert_allclose(ours.moments_.covariance, theirs.moments_.covariance, rtol=1e-9, atol=1e-9)
    assert ours.components_.shape == theirs.components_.shape
    model = fit("em", parties_of_three(), n_components=2, keep="moments", **way)
    variances = np.linalg.eigvalsh(model.moments_.covariance)[::-1][:2]
    np.testing.assert_allclose(variances, model.explained_variance_, rtol=1e-12)
    assert any("missing values for known" in note for note in model.log["notes"])


@pytest.mark.engine
@pytest.mark.parametrize(("kind", "scaled", "way"), pairwise_by_day(CLUSTERINGS, [(0, 1), (0, 2), (1, 2)]), ids=str)
def test_clusters_are_those_of_the_expected_scores(kind, scaled, way, monkeypatch):
    """Without gaps they are those of p-cov; with gaps all rows but the empty ones are in one."""
    if kind == "mixture":
        monkeypatch.setattr(*CLUSTER_STEPS)
    options = {"n_components": 2, "clusters": 3, "clustering": kind, "scale": scaled, **way}
    complete = cut(rows(150, 6), 90, 40, 20)
    ours, theirs = (fit(name, complete, **options).log["clusters"] for name in ("em", "p-cov"))
    assert ours["rows"] == theirs["rows"]
    np.testing.assert_allclose(ours["centres"], theirs["centres"], atol=1e-9)
    parties = parties_of_three()
    parties[1][3] = np.nan
    model = fit("em", parties, **options)
    X = np.vstack(parties)
    scores = model.transform(X[~np.isnan(X).all(axis=1)])
    assert len(scores) == 149 == model.n_samples_
    if kind == "k-means":
        squares = ((scores[:, None] - np.array(model.log["clusters"]["centres"])) ** 2).sum(axis=2)
        assert model.log["clusters"]["rows"] == np.bincount(squares.argmin(axis=1)).tolist()
        assert model.log["clusters"]["inertia"] == pytest.approx(squares.min(axis=1).sum(), rel=1e-9)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_levels_beside_gaps_are_those_of_the_same_em(share):
    """Indicators take the units of Pages."""
    kind = np.where(np.random.default_rng(4).random(150) < share, "a", "b")
    numbers = with_holes(rows(150, 4) + (kind == "a")[:, None], 0.2, 1)
    frame = pd.DataFrame(numbers, columns=list("wxyz")).assign(kind=kind)
    options = {"n_components": 2, "scale": True, "levels": {"kind": ["a", "b"]}, "prior": 100.0, "tolerance": 1e-9}
    model = fit("em", [frame[:90], frame[90:130], frame[130:]], **options)
    m, T = pooled_em(np.column_stack([numbers, kind == "a", kind == "b"]))
    scale = np.append(np.sqrt(np.diag(T)[:4] / 150), np.sqrt(m[4:]))
    values, vectors = np.linalg.eigh(T / np.outer(scale, scale))
    np.testing.assert_allclose(model.singular_values_**2, values[:-3:-1], rtol=1e-8)
    assert float(principal_angles(model.components_[:, :6].T, vectors[:, :-3:-1]).max()) <= 1e-7


def test_each_party_has_the_moments_expected_of_its_rows():
    parties = dict(zip(("north", "south", "west"), parties_of_three(), strict=True))
    parties["west"] = np.vstack([parties["west"], np.full((2, 6), np.nan)])  # which have no part
    model = run("em", parties, n_components=2, keep="parties", tolerance=1e-9)
    assert list(model.moments_.parties) == list(parties)
    for name, part in model.moments_.parties.items():
        X = parties[name][~np.isnan(parties[name]).all(axis=1)]
        y, C = textbook(X - model.mean_, model.covariance_)
        assert part.count == len(X)
        np.testing.assert_allclose(part.mean, model.mean_ + y.mean(axis=0), atol=1e-7)
        np.testing.assert_allclose(moments.dense_scatter(part), np.cov(y.T, ddof=0) * len(y) + C, atol=1e-6)
    pooled = pool(list(model.moments_.parties.values()))
    np.testing.assert_allclose(moments.dense_scatter(pooled), model.moments_.scatter, rtol=1e-9, atol=1e-9)


@pytest.mark.engine
@pytest.mark.parametrize(("load", "share", "degrees", "max_rounds"), TABLE)
def test_the_components_are_nearer_than_those_of_means(load, share, degrees, max_rounds):
    X = load().data
    truth, angles = PCA(3).fit(scale(X)).components_.T, []
    for seed in range(3):
        Y = with_holes(X, share, seed)
        model = fit("em", np.array_split(Y, 3), n_components=3, scale=True)
        assert model.rounds <= max_rounds
        means = np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)
        angles.append((angle(model, truth), principal_angles(PCA(3).fit(scale(means)).components_.T, truth).max()))
    ours, by_means = np.mean(angles, axis=0)
    assert ours <= min(degrees, by_means)


@pytest.mark.engine
def test_rounds_and_bytes_are_few_and_what_is_left_is_foretold():
    model = fit("em", np.array_split(of_factors(n=60, d=300), 2), **{**WIDE, "tolerance": 0.01})
    assert model.rounds <= 40
    assert max(model.bytes_up_by_party) < model.rounds * (8 * (300 * 13 + 2) + 1000)
    assert (model.covariance_, model.factors_.shape) == (None, (13, 300))
    for name, times, steps in (("gaussian", 20, 5), ("gaussian", 20, 11), ("factors", 10, 5), ("factors", 10, 11)):
        parties, options = parties_of_three(share=0.5), {**WIDE, "model": name}
        limit, stopped = fit("em", parties, **options), fit("em", parties, **options, max_rounds=steps)
        assert angle(stopped, limit.components_.T) <= times * stopped.log["measured"]["degrees_ahead"]
        assert any(f"after max-rounds = {steps} steps" in note for note in stopped.log["notes"])


@pytest.mark.engine
@pytest.mark.parametrize(
    ("complete", "options", "share", "better"),
    [(rows(450, 6) + 3.0, MODELS["gaussian"], 0.3, 0.8), (of_factors(share=0.0, n=300), WIDE, 0.5, 0.2)],
    ids=MODELS,
)
def test_new_rows_are_completed_by_what_is_expected_of_them(complete, options, share, better, tmp_path):
    earlier, new = complete[:-50], complete[-50:]
    model = fit("em", np.array_split(with_holes(earlier, 0.2, 0), 3), **options)
    truth, incomplete = model.transform(new), with_holes(new, share, 4)
    by_means = model.transform(np.where(np.isnan(incomplete), model.mean_, incomplete))
    assert np.linalg.norm(model.transform(incomplete) - truth) < better * np.linalg.norm(by_means - truth)
    loaded = PCAModel.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.transform(incomplete), model.transform(incomplete))
    np.testing.assert_allclose(model.transform(np.full((1, new.shape[1]), np.nan)), 0.0, atol=1e-12)
    with refused(DataError, "X", match="infinity"):
        model.transform(np.full((1, new.shape[1]), np.inf))


@every_way
@pytest.mark.parametrize(("model", "scaled"), [("gaussian", False), ("gaussian", True), ("factors", True)])
def test_sites_keep_the_scores_of_incomplete_rows(tmp_path, way, model, scaled):
    parties = parties_of_three() if model == "gaussian" else cut(of_factors(), 70, 30, 20)
    parties[0][3] = np.nan
    files = [tmp_path / f"{i}.npy" for i in range(3)]
    fitted = fit("em", parties, **{**MODELS[model], "tolerance": 0.1}, scores=files, scale=scaled, **way)
    for part, file in zip(parties, files, strict=True):
        np.testing.assert_allclose(np.load(file), fitted.transform(part), atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_rounding_does_not_scale_a_constant_feature(model):
    """Deviations of 1e-16 and 1e-29 passed for some, and by masked sums a mean was off by a whole unit."""
    X = rows(100, 17)
    X[:, 4:] = [0.0, 5.3, 0.1, 1 / 3, 12345.678, *rows(1, 8, seed=1)[0]]  # sums over so many rows are rounded
    X[::7, 4] = X[::5, 5] = X[::6, 8] = X[::9, 2] = np.nan
    options = {"n_components": 2, "model": model, "scale": True}
    clear, masked = (fit("em", cut(X, 13, 32, 55), **options, **way) for way in ({}, MASKED | {"bound": 1e5}))
    np.testing.assert_allclose(masked.scale_, clear.scale_, rtol=1e-9)
    for fitted in (clear, masked):
        np.testing.assert_array_equal(fitted.scale_[4:], 1.0)
        np.testing.assert_allclose(fitted.mean_[4:], X[1, 4:], rtol=1e-14)
        np.testing.assert_allclose(fitted.components_[:, 4:], 0.0, atol=1e-4)
        if model == "factors":
            np.testing.assert_array_equal(fitted.factors_[:-1, 4:], 0.0)
        assert fitted.log["measured"]["squared_error_per_row"] <= fitted.total_variance
    np.testing.assert_allclose(masked.transform(X[:1] + 1.0), clear.transform(X[:1] + 1.0), atol=1e-4)
    assert "13 features were taken for constant" in " ".join(masked.log["notes"])


def test_rows_at_both_ends_of_the_bound_are_within_the_limits():
    """Few rows are at the lower end: far more than the distance of their mean from the upper end suggests."""
    X = rows(200, 6)
    X[:, 0], X[::7, 1] = np.where(np.arange(200) % 20, 99.0, -99.0), np.nan
    assert fit("em", cut(X, 100, 60, 40), n_components=2, tolerance=1.0, **{**MASKED, "bound": 100.0}).n_samples_ == 200
    # Observed deviations are resolved, and products of features 1e20 times apart are not: they would be noise.
    unequal_parties = cut(rows(100, 6) * np.geomspace(1e10, 1e-10, 6), 50, 30, 20)
    with refused(ConfigError, "'bound'"):
        fit("em", unequal_parties, n_components=4, secure_aggregation=True, bound=1e17)


@pytest.mark.engine
def test_empty_rows_are_counted_and_rare_values_refused():
    for options in MODELS.values():
        parties = parties_of_three()
        with_empty = [np.vstack([parties[0], np.full((7, 6), np.nan)]), *parties[1:]]
        complete, extended = (fit("em", some, **options) for some in (parties, with_empty))
        assert angle(complete, extended.components_.T) <= 1e-8
        assert extended.n_samples_ == 150
        assert "7 rows without any value were left out" in " ".join(extended.log["notes"])
        with refused(DataError, "[1, 4]"):
            fit("em", [np.where(np.isin(np.arange(6), [1, 4]), np.nan, part) for part in parties], **options)
    parties[0][:, 1] = parties[1][:, 4] = parties[2][:, 4] = np.nan
    for tables, said in ((parties, ["1 pairs of features have no row in common"]), (parties_of_three(), [])):
        notes = [note for note in fit("em", tables, n_components=2).log["notes"] if "pairs of features" in note]
        assert [note[:41] for note in notes] == said
    parties = parties_of_three()
    parties[2][:, 3] = np.nan
    assert fit("em", parties, n_components=2, min_rows=10).n_samples_ == 150  # it has none of that feature
    parties[2][:9, 3] = 1.0
    with refused(DisclosureError, "party 2", "min_rows", 10, match="values"):
        fit("em", parties, n_components=2, min_rows=10)
    with refused(DisclosureError, "party 2", "min_rows"):  # the last five rows are left out
        fit("em", cut(np.vstack(parties_of_three()), 90, 35, 25), n_components=2, min_rows=19, round_rows=10)


def with_gaps():
    """Return 40 complete rows, 30 without the last of five features (5 with further gaps), and an empty row."""
    X = np.random.default_rng(0).normal(50, 10, (76, 5))
    X[RARE] = 1000.0
    X[40:70, 4] = np.nan
    X[[3, 13, 23, 23, 33, 43], [0, 1, 2, 3, 0, 1]] = X[33, 4] = X[70] = np.nan
    return X


def replies_of_a_site(folder, X, run, **node):
    """Return a site's replies to all questions of an honest server but the last."""
    session = HostileSession(folder, X, run, journal="", **node)
    first = session.ask("observed", [])[0]
    second = session.ask("deviations", [first[0], CENTRE])[0]
    model = [np.eye(5, 2), np.array([2.0, 1.5]), np.asarray(0.5)] if "model" in run else [COVARIANCE]
    step = "products" if "model" in run else "expected"
    return [*first, *second, *session.ask(step, [first[0], CENTRE, UNIT, ZERO, *model])[0]]


@pytest.mark.parametrize("run", [RUN, {**RUN, "model": "factors"}], ids=["gaussian", "factors"])
def test_rows_of_unshared_gaps_are_in_no_sum(tmp_path, caplog, run):
    X = with_gaps()
    with caplog.at_level(logging.WARNING, "fedpca_flwr.client"):
        ours = replies_of_a_site(tmp_path / "all", X, run)
    for mine, theirs in zip(ours, replies_of_a_site(tmp_path / "few", X[~RARE], run), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ours[0] == len(X) - 5
    assert "5 rows take no part in this run" in caplog.text
    for place, node in {"gaps": {"gaps": "all"}, "one": {"min-rows": 1}}.items():
        assert replies_of_a_site(tmp_path / place, X, run, **node)[0] == len(X)


def test_sites_without_shared_gaps_refuse_and_others_score_all(tmp_path):
    alone = np.where(np.random.default_rng(0).random((60, 12)) < 0.2, np.nan, 1.0)  # each with gaps of its own
    properties = HostileSession(tmp_path / "alone", alone, RUN, journal="").client.get_properties({})
    assert properties["error"] == "DisclosureError"
    assert "gaps='all'" in properties["message"]
    with refused(ConfigError, "'gaps'", "'shared'", "'all'"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 1, "gaps": "some"}, source="node-config")
    X, scores, packed = with_gaps(), tmp_path / "scores.npy", np.eye(5)[np.triu_indices(5)]
    session = HostileSession(tmp_path, X, {**RUN, "max-rounds": 1}, journal="", scores=str(scores))
    count = session.ask("observed", [])[0][0]
    session.ask("deviations", [count, CENTRE])
    session.ask("expected", [count, CENTRE, UNIT, ZERO, packed])
    projected_count, squared = session.ask("project", [np.eye(2, 5), CENTRE, np.empty(0), packed])[0]
    assert projected_count == count
    np.testing.assert_allclose(np.load(scores), np.nan_to_num(X - 50)[:, :2], atol=1e-9)
    np.testing.assert_allclose(squared, np.nansum((X[~RARE] - 50)[:, 2:] ** 2), rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"model": "factors"}, {"scale": True}], ids=str)
def test_a_feature_in_another_unit_is_named(options):
    rng = np.random.default_rng(0)
    parties = {
        name: rng.normal([50, 5, 170, 2], [8, 1, 9, 0.3], (80, 4)) for name in ("north", "south", "east", "west")
    }
    parties["east"][:, 1] *= 88.4  # micromoles instead of milligrams
    parties["south"][:20, 2] = np.nan
    parties["west"][:, 3] = np.nan  # which it never measured
    model = run("em", parties, n_components=1, min_rows=1, **options)
    assert [(unit["party"], unit["feature"]) for unit in model.log["other_units"]] == [("client 2 (east)", 1)]
    assert any("client 2 (east)" in note and "unit" in note for note in model.log["notes"])
    del parties["east"]
    assert "other_units" not in run("em", parties, n_components=1, min_rows=1, **options).log


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("less", [0.0, 1e-9])
def test_the_next_factor_or_the_noise_follows(less, scaled, monkeypatch):
    """What follows the last component varies as this, or a little less."""
    X, vectors, mean = np.vstack(parties := parties_of_three()), np.eye(6)[:, :3], np.zeros(6)
    square = 1.0 if scaled else np.nanvar(X, axis=0).mean()
    for third, noise in ((3 * (1 - less), 1.0), (0.5, 0.5 * (1 - less))):
        k, values, total = 2 if noise == 1 else 3, np.array([4, 3, third]), 7 + third + 3 * noise
        fitted = {"mean": mean, "values": values, "vectors": vectors, "total": total}
        monkeypatch.setattr(FactorEM, "add", lambda self, sums, fitted=fitted: self.__dict__.update(fitted))
        model = fit("em", parties, **{**WIDE, "n_components": k}, factors=3, max_rounds=1, scale=scaled)
        notes = [note for note in model.log["notes"] if f"components {k} and {k + 1} have equal variance" in note]
        assert len(notes) == (less == 0)
        np.testing.assert_allclose(model.singular_values_**2, square * values[:k], rtol=1e-12)
        np.testing.assert_allclose(model.explained_variance_ratio_, values[:k] / total, rtol=1e-12)


def test_factors_are_ten_more_than_components_or_as_asked():
    for k, requested, count in ((2, 0, 12), (2, 3, 3), (39, 0, 39), (2, 39, 39)):
        parties, options = np.array_split(of_factors(150), 3), {**WIDE, "n_components": k, "max_rounds": 1}
        assert fit("em", parties, **options, factors=requested).factors_.shape == (count + 1, 40)


def test_pixels_that_few_rows_have_do_not_hold_the_iteration_up():
    """A gap in one of the few rows that decide about a pixel makes EM slow: SQUAREM stood still until max-rounds."""
    pixels = VarianceThreshold().fit_transform(load_digits().data[::3, 8:40])
    parties = np.array_split(with_holes(pixels, 0.05, 0), 2)
    model, last = (fit("em", parties, n_components=5, tolerance=tolerance) for tolerance in (0.01, 1e-6))
    assert model.log["measured"]["degrees_ahead"] <= 0.01
    assert model.rounds < 60
    assert principal_angles(model.components_.T, last.components_.T).max() < 0.02


def test_factors_end_after_two_small_turns(monkeypatch):
    turns = iter([0, 0, 5, 0.006, 0.004])
    turning = {**vars(eigen), "principal_angles": lambda *_: np.array([next(turns)])}
    monkeypatch.setattr(em, "eigen", SimpleNamespace(**turning))
    assert fit("em", parties_of_three(), **{**WIDE, "tolerance": 0.01}).log["measured"]["degrees_ahead"] == 0.006
    assert next(turns, None) is None


def test_impossible_covariances_are_refused(monkeypatch):
    monkeypatch.setattr(FactorGaussian, "noise", property(lambda self: 5.0))
    with refused(ContractError, "party 0", "'noise'", 5):
        fit("em", parties_of_three(), **WIDE)
    singular = SimpleNamespace(model=Gaussian(np.zeros(6), np.ones((6, 6))))
    monkeypatch.setattr(em, "GaussianEM", lambda *_, **__: singular)
    with refused(ContractError, "party 0", "'covariance'"):
        fit("em", parties_of_three(), n_components=2)


@every_way
@pytest.mark.parametrize(("model", "field"), [("gaussian", "second"), ("factors", "product")])
def test_sums_of_no_rows_are_a_share_that_is_false(monkeypatch, model, field, way):
    honest = IncompleteClient.statistics

    def statistics(self, phase, request):
        answer = honest(self, phase, request)
        wrong = phase in {"expected", "products"} and self.site.node.partition_id == 1
        return {**answer, field: -answer[field]} if wrong else answer

    monkeypatch.setattr(IncompleteClient, "statistics", statistics)
    with pytest.raises(ContractError, match="share|party 1: .*diagonal"):
        fit("em", parties_of_three()[1::-1], n_components=2, model=model, **way)
