"""Judgements that sites make of their rows in the last round, and what options of stages declare and go with."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import chi2, f, kurtosis

from fedpca_flwr import analyses
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.questions.row_limits import MAX_ROWS
from fedpca_flwr.stages.odd_rows import outlier_limits
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import fit, require_limits
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

SECURE = {"secure_aggregation": True, "bound": 1000.0}
each_way = pytest.mark.parametrize("way", [{}, SECURE, {**SECURE, "survivors": 3}], ids=str)
X = rows(600, 12) + np.arange(12)
X[:60] += 9 * np.random.default_rng(3).standard_normal((60, 12))
X[300:304] *= 20
PARTIES = cut(X, 300, 200, 100)
PEOPLE = np.random.default_rng(1).integers(18, 98, (40, 3)).astype(float)
OPTIONS = METHODS["p-cov"].strategy.card.options


@each_way
@pytest.mark.parametrize(("stored", "scale"), [(np.asarray, False), (np.asarray, True), (sparse.csr_array, False)])
def test_sites_judge_rows_as_the_pooled_analysis(way, stored, scale, tmp_path):
    paths = [tmp_path / f"scores{i}.npy" for i in range(3)]
    options = {"n_components": 3, "outliers": "sites", "scale": scale, "scores": paths, **way}
    model = fit("p-cov", list(map(stored, PARTIES)), **options)
    pooled = analyses.pca(SecondMoments.of(X), 3, scale=scale)
    result = analyses.outliers(pooled, X)
    values = np.linalg.eigvalsh(np.cov(X / (pooled.scale_ if scale else 1), rowvar=False))
    one, two = values[:-3].sum(), (values[:-3] ** 2).sum()
    limits = 3 * (600**2 - 1) / (600 * 597) * f.ppf(0.99, 3, 597), two / one * chi2.ppf(0.99, one**2 / two)
    files = [tmp_path / f"scores{i}-outliers.csv" for i in range(3)]
    report = np.vstack([np.genfromtxt(file, delimiter=",", skip_header=1, usecols=range(5)) for file in files])
    odd = (result.t_squared > limits[0]) | (result.spe > limits[1])
    expected = np.column_stack(np.broadcast_arrays(result.t_squared, limits[0], result.spe, limits[1], odd))
    np.testing.assert_allclose(report, expected, rtol=1e-6)
    features = " ".join(map(str, np.argsort(-result.spe_contributions[303])[:3]))
    assert files[1].read_text().splitlines()[4].split(",")[-2:] == [features, "3"]
    assert "rows_above_spe_limit" not in model.log["measured"]


@each_way
def test_rows_beyond_the_limits_are_counted(way):
    model = fit("p-cov", PARTIES, n_components=3, outliers="counts", min_rows=10, **way)
    result = analyses.outliers(model, X)
    t_squared, spe = (result.t_squared, result.spe) > outlier_limits(model)[:, None]
    assert t_squared[:300].sum() >= 10
    assert 0 < t_squared[300:500].sum() < 10
    report, counted = model.log["measured"], [t_squared[:300].sum(), spe[:300].sum()]
    assert [report["rows_above_t_squared_limit"], report["rows_above_spe_limit"]] == counted
    line = next(line for line in model.summary(full=True).splitlines() if "odd rows" in line)
    assert not unnamed(line, *counted)
    assert ("most at" in line) == bool(model.log["outliers"]) == (not way)
    if not way:
        first, second, _ = model.log["outliers"]
        assert [first["above_t_squared_limit"], first["above_spe_limit"]] == counted
        assert second["above_t_squared_limit"] == 0
        assert f"most at client 0: {max(counted) / 300:.1%} of its rows" in line


@pytest.mark.parametrize(
    ("rows", "variances", "directions", "size"),
    [(5, [2.0, 1.0, 1.0], 2.0, 2), (4, [2.0, 1.0, 1.0], 2.0, 0), (5, [2.0, 1.0, 1e-20], 2.0, 0), (5, [2.0], None, 0)],
)
def test_limits_need_components_above_rounding(rows, variances, directions, size):
    log = {"measured": {"left_out_directions": directions}}
    model = SimpleNamespace(log=log, explained_variance_=np.array(variances), n_samples_=rows, total_variance=5.0)
    assert outlier_limits(model).size == size


@each_way
def test_fourth_moment_intervals_are_of_the_pooled_rows(way):
    heavy = np.random.default_rng(0).standard_t(9, (900, 5)) * [4, 3, 2, 1, 1]
    model = fit("p-cov", cut(heavy, 500, 300, 100), n_components=2, fourth_moments=True, **way)
    known = kurtosis(model.transform(heavy), fisher=False) * (899 / 900) ** 2  # variances with divisor n - 1
    np.testing.assert_allclose(model.log["kurtosis"], known, rtol=1e-9)
    step = 1.959963984540054 * np.sqrt((known - 1) / 900)
    expected = model.explained_variance_[:, None] / np.column_stack([1 + step, 1 - step])
    np.testing.assert_allclose(analyses.variance_intervals(model), expected, rtol=1e-9)
    assert f"{expected[0, 0]:.3g} to {expected[0, 1]:.3g} (95 %, by fourth moments)" in model.summary(full=True)


def test_missing_limits_are_noted(tmp_path):
    with refused(ConfigError, "p-cov", "fourth_moments=True"):
        analyses.variance_intervals(fit("p-cov", PARTIES, n_components=2))
    model = fit("p-cov", PARTIES, n_components=12, outliers="counts", scores=[tmp_path / f"{i}.csv" for i in range(3)])
    assert any("rows have no limits" in note for note in model.log["notes"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.csv", "1.csv", "2.csv"]
    asked_for_none = fit("p-cov", PARTIES, n_components=12, fourth_moments=True)
    assert not any("limits" in note for note in asked_for_none.log["notes"])


def asked_for_moments(folder, **node):
    run = {"method": "p-cov", "n-components": 1, "outliers": "counts"}
    session = HostileSession(folder, PEOPLE, run, **{"may-show": "distribution", **node})
    assert session.ask("moments", [])[0]
    return session


def boundary(mean, limit):
    """Return a last question whose SPE is the squared distance to a point in two directions."""
    return [np.eye(1, 3), np.asarray(mean, float), np.empty(0), np.ones(1), np.array([1e300, limit])]


@pytest.mark.engine
@pytest.mark.parametrize("beyond", [0, 1, 9, 10, 30, 31, 39])
def test_no_boundary_is_drawn_around_a_few_rows(tmp_path, beyond):
    """A server that knows a person's values draws the boundary around the person, at any size."""
    person = PEOPLE[7]
    inner, outer = [0.0, *np.sort(((PEOPLE - person) ** 2)[:, 1:].sum(axis=1)), 2e4][40 - beyond :][:2]
    assert inner < outer
    session = asked_for_moments(tmp_path, **{"min-rows": 10})
    (_, _, above), _ = session.ask("project", boundary(person, (inner + outer) / 2))
    assert above[1] == (beyond if 10 <= beyond <= 30 else 0 if beyond < 10 else 40)


@pytest.mark.parametrize("variances", [np.ones(2), -np.ones(1)], ids=str)
def test_variances_are_positive_and_as_many_as_components(tmp_path, variances):
    question = boundary(np.zeros(3), 1.0)
    question[3] = variances
    assert asked_for_moments(tmp_path).refusal("project", question).startswith(("ContractError", "PartyError"))


def test_limits_in_closed_form():
    request = {"mean": np.zeros(2), "scale": np.empty(0), "variances": np.array([0.0, 0.5])}
    config, sums = RunConfig(**SECURE | {"bound": 3.0}), {"outliers": "counts", "fourth_moments": True}
    question = METHODS["p-cov"].strategy.card.script(config, OPTIONS.parse(sums))["project"]
    limits = question.limits(request, SimpleNamespace(config=config, parties=3, features=2))
    squared = 2 * 2 * 3.0**2
    expected = {"count": 1, "squared": squared, "above": 1, "fourth": np.array([0.0, (squared / 0.5) ** 2])}
    require_limits(limits, {name: MAX_ROWS * value for name, value in expected.items()})


def test_a_run_shows_what_its_options_declare():
    for options, exposes, words in [
        *((options, "", []) for options in ({}, {"adjust_for": "1"}, {"outliers": "sites"})),
        *(({"harmonise": what}, "", ["harmonise"]) for what in ("means", "variances")),
        *(({"clusters": 2, "clustering": way}, "scores", []) for way in ("k-means", "mixture")),
        ({"clusters": 2, "clustering": "harmony"}, "scores", ["harmony"]),
        ({"outliers": "counts"}, "distribution", ["outliers"]),
        ({"fourth_moments": True}, "distribution", []),
        ({"harmonise": "means", "outliers": "counts"}, "distribution", ["harmonise", "outliers"]),
    ]:
        chosen = OPTIONS.parse(options)
        assert (chosen.exposes, list(chosen.sum_disclosures)) == (exposes, words), options
    # Variances that are harmonised disclose more than means.
    less, more = (OPTIONS.parse({"harmonise": what}).sum_disclosures["harmonise"] for what in ("means", "variances"))
    assert more != less
    assert more.startswith(less)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"adjust_for": "1, 1"}, ["adjust_for"]),
        ({"adjust_for": "0,1,2,3,4,5,6,7"}, ["adjust_for", 8]),
        ({"adjust_for": "1, 4", "center": False}, ["adjust_for", "center=True"]),
        ({"adjust_for": "1, 4", "genotypes": True}, ["adjust_for", "genotypes"]),
        ({"adjust_for": "1", "n_components": 8}, ["n_components", 8, 7]),
        *(
            ({"adjust_for": "1, 4", "method": name}, ["adjust_for", "p-cov"])
            for name in ("ap-cov", "sub-it", "qr-pca", "streaming", "dp-pca")
        ),
        ({"harmonise": "means", "keep": "moments", **SECURE}, ["'keep'", "'moments'", "'harmonise'"]),
        ({"harmonise": "variances", **SECURE, "survivors": 3}, ["moments", "harmonised"]),
        ({"clusters": 2, **SECURE, "survivors": 2}, ["'survivors'", "cells"]),
        ({"outliers": "sites", "center": False}, ["'outliers'", "center=True"]),
        ({"outliers": "sites", "method": "dp-pca"}, ["dp-pca", "'outliers'"]),
        *(
            ({"fourth_moments": True, **other}, ["fourth_moments", "center=True", "scale=False"])
            for other in ({"scale": True}, {"center": False})
        ),
        ({"weights": "6", "method": "em"}, ["'6'", "p-cov"]),
        ({"weights": "6", "keep": "moments"}, ["'6'", "keep"]),
        ({"weights": "6", "n_components": "auto"}, ["'6'", "n_components='auto'"]),
        ({"weights": "6", "method": "sub-it", "warm_start": "svd"}, ["'6'", "warm_start"]),
        ({"weights": "6", "clusters": 2}, ["'6'", "clusters"]),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_named(options, named):
    parties = cut(rows(60, 8), 30, 20, 10)
    with refused(ConfigError, *named):
        fit(**{"method": "p-cov", "parties": parties, "n_components": 2, **options})
